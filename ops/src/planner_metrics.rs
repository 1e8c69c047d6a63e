//! Counters of the planner threads: conflicts, useful and wasted work (the metrics of the Omega paper).

use std::sync::Mutex;

use wharf_core::link::lock;
use wharf_core::planner::{Planner, PlannerMetrics};

use crate::metrics::Counter;

/// The counters of one planner. Its thread writes them, and scrapes read them.
#[derive(Debug, Default)]
pub struct PlannerCounters(Mutex<PlannerCounts>);

/// The counters of one planner at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlannerCounts {
    /// The counters of its work.
    pub metrics: PlannerMetrics,
    /// The number of groups that it keeps.
    pub groups: u64,
}

impl PlannerCounters {
    /// Copies the planner's counters. Called by the planner's own thread.
    pub fn follow(&self, planner: &Planner) {
        let groups = planner.group_count() as u64;
        *lock(&self.0) = PlannerCounts { metrics: *planner.metrics(), groups };
    }

    /// Returns the counters as of the last `follow`.
    #[must_use]
    pub fn get(&self) -> PlannerCounts {
        *lock(&self.0)
    }
}

pub(crate) const PLANNER_COUNTERS: [Counter<PlannerMetrics>; 8] = [
    ("statements", "Statements that planners sent to shards", |planner| planner.statements),
    ("statements_committed", "Statements committed, at least in part", |planner| planner.committed),
    ("statements_conflicted", "Statements in which something conflicted", |planner| planner.conflicted),
    ("statements_expired", "Statements that shards ended at their deadline", |planner| planner.expired),
    ("attempts", "Statements that placed bundles of groups, or tried to", |planner| planner.attempts),
    ("placings", "Attempts that placed any; attempts over these are attempts per statement", |planner| {
        planner.placings
    }),
    ("operations", "Operations that planners sent to shards", |planner| planner.operations),
    ("operations_granted", "Operations granted; the rest was wasted work", |planner| planner.granted),
];
