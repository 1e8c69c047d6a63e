//! One queue of the hierarchy.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::past::QueuePast;
use super::{JobId, QueueContents, QueueId, QueueSpec, Usage};

/// A queue with what is in it and below it.
#[derive(Debug)]
pub struct Queue {
    pub(super) spec: QueueSpec,
    pub(super) children: Vec<QueueId>,
    pub(super) jobs: BTreeSet<JobId>,
    /// The direct placements, which are not among `jobs`.
    pub(super) direct: BTreeSet<JobId>,
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
            direct: BTreeSet::new(),
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

    /// Returns its jobs in the order of submission, without those of queues below it and without direct placements.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = JobId> + '_ {
        self.jobs.iter().copied()
    }

    /// Returns its direct placements in the order of submission, without those of queues below it.
    pub fn direct(&self) -> impl ExactSizeIterator<Item = JobId> + '_ {
        self.direct.iter().copied()
    }

    /// Returns its jobs and then its direct placements.
    pub(crate) fn all_jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs().chain(self.direct())
    }

    /// Returns its jobs and then its direct placements after one. The flag says whether that is a direct placement.
    pub(crate) fn all_after(&self, after: Option<(bool, JobId)>) -> impl Iterator<Item = JobId> + '_ {
        let start = |of_direct: bool| match after {
            Some((is_direct, id)) if is_direct == of_direct => Some(Excluded(id)),
            // All jobs come before the first direct placement.
            Some((true, _)) => None,
            _ => Some(Unbounded),
        };
        let of_jobs = start(false).map(|start| self.jobs.range((start, Unbounded)));
        let of_direct = start(true).map(|start| self.direct.range((start, Unbounded)));
        of_jobs.into_iter().flatten().chain(of_direct.into_iter().flatten()).copied()
    }

    /// Returns whether it has jobs or direct placements, without those of queues below it.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !(self.jobs.is_empty() && self.direct.is_empty())
    }

    /// Returns how much is in it, without what is in queues below it. Ended jobs that are kept count.
    #[must_use]
    pub fn contents(&self) -> QueueContents {
        let placeholders = self.direct.range(JobId::FIRST_PLACEHOLDER..).count();
        QueueContents { jobs: self.jobs.len(), direct: self.direct.len() - placeholders, groups: 0 }
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
