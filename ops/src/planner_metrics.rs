//! Counters of the planner threads: conflicts, useful and wasted work (the metrics of the Omega paper).

use std::sync::atomic::{AtomicU64, Ordering};

use wharf_core::planner::{Planner, PlannerMetrics};

/// The counters of one planner, and the number of its groups.
#[derive(Debug, Default)]
pub struct PlannerCounters {
    statements: AtomicU64,
    committed: AtomicU64,
    conflicted: AtomicU64,
    expired: AtomicU64,
    attempts: AtomicU64,
    placings: AtomicU64,
    operations: AtomicU64,
    granted: AtomicU64,
    groups: AtomicU64,
}

impl PlannerCounters {
    /// Copies the planner's counters. Called by the planner's own thread.
    pub fn follow(&self, planner: &Planner) {
        let metrics = planner.metrics();
        let groups = planner.group_count() as u64;
        let values = [
            (&self.statements, metrics.statements),
            (&self.committed, metrics.committed),
            (&self.conflicted, metrics.conflicted),
            (&self.expired, metrics.expired),
            (&self.attempts, metrics.attempts),
            (&self.placings, metrics.placings),
            (&self.operations, metrics.operations),
            (&self.granted, metrics.granted),
            (&self.groups, groups),
        ];
        // Relaxed: statistics; no other memory depends on them.
        values.into_iter().for_each(|(counter, value)| counter.store(value, Ordering::Relaxed));
    }

    /// Returns the counters as of the last `follow`.
    #[must_use]
    pub fn metrics(&self) -> PlannerMetrics {
        // Relaxed: as in `follow`.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PlannerMetrics {
            statements: load(&self.statements),
            committed: load(&self.committed),
            conflicted: load(&self.conflicted),
            expired: load(&self.expired),
            attempts: load(&self.attempts),
            placings: load(&self.placings),
            operations: load(&self.operations),
            granted: load(&self.granted),
        }
    }

    /// Returns the number of groups that the planner keeps.
    pub(crate) fn groups(&self) -> u64 {
        // Relaxed: as in `follow`.
        self.groups.load(Ordering::Relaxed)
    }

    /// Returns the counters: name, help text, value.
    pub(crate) fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        // Relaxed: as in `follow`.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("statements", "Statements that planners sent to shards", load(&self.statements)),
            ("statements_committed", "Statements committed, at least in part", load(&self.committed)),
            ("statements_conflicted", "Statements in which something conflicted", load(&self.conflicted)),
            ("statements_expired", "Statements that shards ended at their deadline", load(&self.expired)),
            ("attempts", "Statements that placed bundles of groups, or tried to", load(&self.attempts)),
            (
                "placings",
                "Attempts that placed any; attempts over these are attempts per statement",
                load(&self.placings),
            ),
            ("operations", "Operations that planners sent to shards", load(&self.operations)),
            ("operations_granted", "Operations granted; the rest was wasted work", load(&self.granted)),
        ]
    }
}
