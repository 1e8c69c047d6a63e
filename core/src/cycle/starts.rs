//! Starts that are given up.

use super::plugin::Counted;
use super::trial::Cycle;
use crate::jobs::{JobId, JobPhase, Task, TaskState};
use crate::planted::{PlantedBug, is_planted};

impl Cycle<'_> {
    /// Gives up what jobs have that lack others of their tasks, and are promised none.
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
                && !self.tiers().is_ready(self.facts(), id, Counted::Placed)
                && !job.tasks().iter().any(Task::is_planned)
        };
        let hopeless: Vec<JobId> = self.jobs.starting().filter(is_hopeless).collect();
        for id in hopeless {
            self.jobs.give_up_start(id);
        }
    }
}
