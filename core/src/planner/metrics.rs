//! Counters of a planner: conflicts, useful work and wasted work. They follow Omega (Schwarzkopf et al.,
//! EuroSys 2013, section 4).

use super::Purpose;
use crate::cycle::Plan;
use crate::group::StatementReport;
use crate::statement::Operation;

/// Counters of one planner since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerMetrics {
    /// Statements that were sent to shards.
    pub statements: u64,
    /// Of these, statements that were committed at least in part.
    pub committed: u64,
    /// Of these, statements with a conflict.
    pub conflicted: u64,
    /// Of these, statements that shards ended at their deadline.
    pub expired: u64,
    /// Of all statements, those that tried to place bundles of groups.
    pub attempts: u64,
    /// Of these, statements that placed some bundles. Attempts per placing correspond to the paper's attempts
    /// per job.
    pub placings: u64,
    /// Operations that were sent to shards.
    pub operations: u64,
    /// Of these, operations that were granted. This is useful work; the rest was wasted.
    pub granted: u64,
    /// Of the keeper of jobs: cycles that looked at anything.
    pub cycles: u64,
    /// How long its cycles took, with the rest of their rounds, in ns.
    pub cycle_ns: u64,
    /// Tasks that cycles gave a node or a claim.
    pub tasks_placed: u64,
    /// Tasks that cycles evicted for others.
    pub tasks_evicted: u64,
    /// Tasks that wait in queues now, with placements and bundles of groups.
    pub tasks_pending: u64,
}

impl PlannerMetrics {
    pub(super) fn count_statement(&mut self, operations: usize, purpose: &Purpose) {
        self.statements += 1;
        self.attempts += u64::from(matches!(purpose, Purpose::Place(_)));
        self.operations += operations as u64;
    }

    /// Counts what shards have granted of a plan of a cycle.
    pub(super) fn count_plan(&mut self, plan: &Plan) {
        let evicted = plan.operations().filter(|(_, of)| matches!(of, Operation::Evict(_))).count();
        self.tasks_placed += (plan.operations().count() - evicted) as u64;
        // Without a task that is placed, what is evicted has run for too long.
        self.tasks_evicted += if plan.placed_job().is_some() { evicted as u64 } else { 0 };
    }

    pub(super) fn count_concluded(&mut self, concluded: &StatementReport, purpose: &Purpose) {
        self.committed += u64::from(!concluded.applied.is_empty());
        self.conflicted += u64::from(!concluded.conflicts.is_empty());
        self.expired += u64::from(concluded.expired);
        let granted: usize = concluded.applied.iter().map(|applied| applied.granted.len()).sum();
        self.granted += granted as u64;
        self.placings += u64::from(granted > 0 && matches!(purpose, Purpose::Place(_)));
    }
}
