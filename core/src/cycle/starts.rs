//! Starts that are given up.

use super::trial::Cycle;
use crate::jobs::{JobId, JobPhase, Task, TaskState};
use crate::planted::{PlantedBug, is_planted};

impl Cycle<'_> {
    /// Has jobs looked at by `starve` that lost claims which were made for them.
    pub(super) fn look_at_starts_again(&mut self) {
        let has_no_claim = |&id: &JobId| self.jobs.job(id).count(TaskState::Pipelined) == 0;
        let left: Vec<JobId> = self.jobs.starting().filter(has_no_claim).collect();
        left.into_iter().for_each(|id| self.starvation.look_again(id));
    }

    /// Gives up what jobs have that lack others of their tasks, and are promised none: neither claims nor a date.
    ///
    /// A job gets what it needs in one plan, but a part of that may be claims, and a claim can be lost with its node. If this
    /// cycle found no other place either, the rest would be held and used by nobody, and two such jobs would wait for each
    /// other for ever.
    pub(super) fn give_up_starts(&mut self) {
        if is_planted(PlantedBug::StartHeldForEver) {
            return;
        }
        let is_hopeless = |&id: &JobId| {
            let job = self.jobs.job(id);
            let is_over = job.phase().is_end() || job.phase() == JobPhase::Restarting;
            !is_over
                && job.count(TaskState::Pipelined) == 0
                && !self.has_enough(id)
                && !self.dated.has_date(id)
                && !job.tasks().iter().any(Task::is_planned)
        };
        let hopeless: Vec<JobId> = self.jobs.starting().filter(is_hopeless).collect();
        for id in hopeless {
            self.jobs.give_up_start(id);
        }
    }
}
