//! Counters of the planner threads: conflicts, useful and wasted work (the metrics of the Omega paper).

use std::sync::Mutex;

use wharf_core::planner::{Planner, PlannerMetrics};

use crate::metrics::lock;

/// The counters of one planner, and the number of its groups. Its thread writes them, and scrapes read them.
#[derive(Debug, Default)]
pub struct PlannerCounters(Mutex<Counters>);

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    metrics: PlannerMetrics,
    groups: u64,
}

impl PlannerCounters {
    /// Copies the planner's counters. Called by the planner's own thread.
    pub fn follow(&self, planner: &Planner) {
        let groups = planner.group_count() as u64;
        *lock(&self.0) = Counters { metrics: *planner.metrics(), groups };
    }

    /// Returns the counters as of the last `follow`.
    #[must_use]
    pub fn metrics(&self) -> PlannerMetrics {
        lock(&self.0).metrics
    }

    /// Returns the number of groups that the planner keeps.
    pub(crate) fn groups(&self) -> u64 {
        lock(&self.0).groups
    }

    /// Returns the counters: name, help text, value.
    pub(crate) fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        let metrics = self.metrics();
        [
            ("statements", "Statements that planners sent to shards", metrics.statements),
            ("statements_committed", "Statements committed, at least in part", metrics.committed),
            ("statements_conflicted", "Statements in which something conflicted", metrics.conflicted),
            ("statements_expired", "Statements that shards ended at their deadline", metrics.expired),
            ("attempts", "Statements that placed bundles of groups, or tried to", metrics.attempts),
            (
                "placings",
                "Attempts that placed any; attempts over these are attempts per statement",
                metrics.placings,
            ),
            ("operations", "Operations that planners sent to shards", metrics.operations),
            ("operations_granted", "Operations granted; the rest was wasted work", metrics.granted),
        ]
    }
}
