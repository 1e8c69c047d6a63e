//! Bounds that are in the way of queues and jobs.

use crate::fairness::Dim;
use crate::jobs::{Capped, QueueId, QueueRule};

/// A bound that keeps a queue from having more, or from admitting a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) rule: QueueRule,
    pub(super) queue: QueueId,
    /// What it bounds. Resources are counted in 1/10,000.
    pub(super) of: Capped,
    pub(super) bound: i64,
    /// What counts against it now.
    pub(super) used: i64,
    /// What is asked for in addition.
    pub(super) asked: i64,
}

impl Limit {
    /// Returns the kind of resource that it bounds, if it bounds one.
    pub(super) fn dim(self) -> Option<Dim> {
        match self.of {
            Capped::Resource(dim) => Some(dim),
            Capped::Allocations => None,
        }
    }

    /// Returns how much is asked for beyond the bound.
    pub(super) fn excess(self) -> i64 {
        self.used.saturating_add(self.asked).saturating_sub(self.bound)
    }
}
