//! Queues, jobs and tasks: the work that waits for resources, with what each of them uses.
//!
//! [`Jobs`] holds all of it. A task changes its state through one door, `Jobs::set`, which updates the sums of its
//! job and of its queue and all ancestors of it. So what a [cycle](crate::cycle) reads is always up to date, and
//! costs what changed.
//!
//! Terms follow Volcano (PodGroup and Queue) and Kubernetes (Job, PriorityClass).

mod ends;
mod error;
mod job;
mod queue;
mod spec;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod usage;

pub use error::{JobError, QueueError};
pub use job::{Job, Task};
pub use queue::Queue;
pub use spec::{JobSpec, QueueOrdering, QueueSpec, Role, TaskClass, TaskGroup};
pub use state::{JobPhase, TaskState};
pub use store::Jobs;
pub use usage::Usage;

use std::fmt;

/// A queue. 0 is the root of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl QueueId {
    /// The root, which contains all queues.
    pub const ROOT: Self = Self(0);
}

/// A job. Jobs are numbered in the order in which they were submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{}", self.0)
    }
}

/// A task: the job, and the task's index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The job.
    pub job: JobId,
    /// The index, from 0.
    pub index: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}
