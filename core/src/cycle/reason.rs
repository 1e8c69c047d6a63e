//! Why jobs wait: what a cycle notes about each job as it decides, at a constant cost.
//!
//! A cycle notes one reason per job that it tried and did not place, and one mark per queue that it passed over. It
//! counts nothing for that: [explanations](super::explain) count when somebody asks. The notes are those of the last
//! cycle that looked at anything.

use std::collections::BTreeSet;

use super::config::Action;
use super::trial::Cycle;
use crate::jobs::{DomainLack, JobId, PendingReason, QueueId, TaskId};
use crate::map::FixedMap;

/// What a cycle noted about a job that it did not place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastTry {
    /// Why the first task without a place has none.
    pub(super) cause: PendingReason,
    /// The index of that task.
    pub(super) task: u32,
    /// The number of tasks that the job had, or could have had, a place for.
    pub(super) fit: u32,
    /// The actions that found nobody to evict, a bit each.
    no_victims: u8,
}

impl LastTry {
    /// Returns the actions that found nobody to evict.
    pub(super) fn no_victims(self) -> impl Iterator<Item = Action> {
        EVICTING.into_iter().filter(move |&action| self.no_victims & bit(action) != 0)
    }
}

/// The actions that evict.
const EVICTING: [Action; 3] = [Action::Preempt, Action::Reclaim, Action::Starve];

fn bit(action: Action) -> u8 {
    1 << action as u8
}

/// What the last cycle noted.
#[derive(Default)]
pub(super) struct LastTries {
    jobs: FixedMap<JobId, LastTry>,
    /// The queues that were passed over because they had all that they deserve.
    overused: BTreeSet<QueueId>,
    /// The first task of the job at work that got no place.
    first: Option<(TaskId, PendingReason)>,
    /// What domains lack for jobs that must be in one.
    lacks: FixedMap<JobId, DomainLack>,
}

impl LastTries {
    /// Forgets everything, and keeps the memory for the next cycle.
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.overused.clear();
        self.lacks.clear();
        self.first = None;
    }

    /// Returns what was noted about a job.
    pub(super) fn of(&self, job: JobId) -> Option<LastTry> {
        self.jobs.get(&job).copied()
    }

    /// Returns whether the jobs of a queue were passed over because it had all that it deserves.
    pub(super) fn is_overused(&self, queue: QueueId) -> bool {
        self.overused.contains(&queue)
    }

    /// Notes that the jobs of a queue are passed over.
    pub(super) fn note_overused(&mut self, queue: QueueId) {
        self.overused.insert(queue);
    }

    /// Notes that a task got no place.
    pub(super) fn refuse(&mut self, task: TaskId, reason: PendingReason) {
        self.first.get_or_insert((task, reason));
    }

    /// Returns why the first task of the job at work that got no place has none.
    pub(super) fn first_refusal(&self) -> Option<PendingReason> {
        self.first.map(|(_, reason)| reason)
    }

    /// Notes what domains lack for a job.
    pub(super) fn note_lack(&mut self, job: JobId, lack: DomainLack) {
        self.lacks.insert(job, lack);
    }

    /// Returns what domains lack for a job.
    pub(super) fn lack_of(&self, job: JobId) -> Option<&DomainLack> {
        self.lacks.get(&job)
    }

    /// Notes about a job what was noted about an equal one.
    pub(super) fn note_as(&mut self, job: JobId, equal: JobId) {
        if let Some(&tried) = self.jobs.get(&equal) {
            self.jobs.insert(job, tried);
        }
        if let Some(lack) = self.lacks.get(&equal).cloned() {
            self.lacks.insert(job, lack);
        }
    }

    /// Returns what was noted about the job at work, and forgets it.
    pub(super) fn take_first(&mut self) -> Option<(TaskId, PendingReason)> {
        self.first.take()
    }

    /// Notes again about the job at work what was noted earlier.
    pub(super) fn restore_first(&mut self, first: Option<(TaskId, PendingReason)>) {
        self.first = first;
    }

    /// Begins to try a job.
    pub(super) fn begin(&mut self) {
        self.first = None;
    }

    /// Notes that a job as a whole was not tried or not done, for a reason.
    pub(super) fn note(&mut self, job: JobId, cause: PendingReason) {
        self.jobs.entry(job).or_default().cause = cause;
    }

    /// Notes that an action found nobody to evict for a job.
    pub(super) fn note_no_victims(&mut self, job: JobId, action: Action) {
        self.jobs.entry(job).or_default().no_victims |= bit(action);
    }

    /// Forgets a job that has no pending tasks any longer.
    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.lacks.remove(&job);
    }
}

impl Cycle<'_> {
    /// Notes how a job was tried: the first task of it that got no place, and how many did or have one.
    pub(super) fn note_try(&mut self, job: JobId) {
        let of = self.jobs.job(job);
        let fit = of.ready_tasks() + of.count(crate::jobs::TaskState::Pipelined);
        match self.tries.first.take() {
            Some((task, cause)) => {
                let no_victims = self.tries.of(job).map_or(0, |of| of.no_victims);
                self.tries.jobs.insert(job, LastTry { cause, task: task.index, fit, no_victims });
            }
            None => self.tries.forget(job),
        }
    }

    /// Keeps all changes for a job for which an action may evict others, or takes them back and notes that it found
    /// nobody.
    pub(super) fn keep_or_note(&mut self, is_wanted: bool, savepoint: usize, job: JobId, action: Action) {
        if is_wanted {
            self.trim(job, savepoint, action.decision());
        }
        let is_placed = self.keep_if(is_wanted, savepoint);
        if self.jobs.job(job).pending().len() == 0 {
            self.tries.forget(job);
        } else if !is_placed {
            self.tries.note_no_victims(job, action);
        }
    }
}
