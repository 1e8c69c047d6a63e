//! One queue of the hierarchy.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::past::QueuePast;
use super::{JobId, QueueId, QueueSpec, Usage};

/// A queue with what is in it and below it.
#[derive(Debug)]
pub struct Queue {
    pub(super) spec: QueueSpec,
    pub(super) children: Vec<QueueId>,
    pub(super) jobs: BTreeSet<JobId>,
    /// The jobs with pending tasks.
    pub(super) waiting: BTreeSet<JobId>,
    pub(super) usage: Usage,
    /// The number of pending tasks of its jobs and those of the queues below it.
    pub(super) pending_tasks: u64,
    /// The number of the last change of its jobs, or of those of the queues below it.
    pub(super) changed: u64,
    /// What it has held, if that counts.
    pub(super) past: Option<Box<QueuePast>>,
}

impl Queue {
    pub(super) fn new(spec: QueueSpec) -> Self {
        Self {
            spec,
            children: Vec::new(),
            jobs: BTreeSet::new(),
            waiting: BTreeSet::new(),
            usage: Usage::default(),
            pending_tasks: 0,
            changed: 0,
            past: None,
        }
    }

    /// Returns what is in the place of a queue that was removed.
    pub(super) fn vacant() -> Self {
        Self::new(QueueSpec { open: false, ..QueueSpec::new("") })
    }

    /// Returns the queue as it was submitted.
    #[must_use]
    pub fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Returns the queues directly below it.
    #[must_use]
    pub fn children(&self) -> &[QueueId] {
        &self.children
    }

    /// Returns whether it may have jobs.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// Returns its jobs in the order of submission, without those of queues below it.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = JobId> + '_ {
        self.jobs.iter().copied()
    }

    /// Returns its jobs after one, in the order of submission.
    pub fn jobs_after(&self, after: Option<JobId>) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.range((after.map_or(Unbounded, Excluded), Unbounded)).copied()
    }

    /// Returns its jobs that have pending tasks, in the order of submission.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = JobId> + '_ {
        self.waiting.iter().copied()
    }

    /// Returns its jobs after one that have pending tasks, in the order of submission.
    pub fn waiting_after(&self, after: Option<JobId>) -> impl Iterator<Item = JobId> + '_ {
        self.waiting.range((after.map_or(Unbounded, Excluded), Unbounded)).copied()
    }

    /// Returns what its jobs and those of the queues below it use.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the number of the last change of its jobs, or of those of the queues below it. It is another one after each
    /// change of a task.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Returns the number of pending tasks of its jobs and those of the queues below it.
    #[must_use]
    pub fn pending_tasks(&self) -> u64 {
        self.pending_tasks
    }
}
