//! Counters of a planner: conflicts, useful work and wasted work. They follow Omega (Schwarzkopf et al.,
//! EuroSys 2013, section 4).

use super::Purpose;
use crate::group::StatementReport;

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
}

impl PlannerMetrics {
    pub(super) fn count_statement(&mut self, operations: usize, purpose: &Purpose) {
        self.statements += 1;
        self.attempts += u64::from(matches!(purpose, Purpose::Place(_)));
        self.operations += operations as u64;
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
