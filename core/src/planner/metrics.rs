//! What a planner did: Omega's figures (Schwarzkopf et al., EuroSys 2013, section 4): conflicts, work
//! that was useful and work that was wasted.

use super::flight::Concluded;

/// Counters of one planner since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerMetrics {
    /// Statements that were sent to shards.
    pub statements: u64,
    /// Of them, those that were committed, at least in part.
    pub committed: u64,
    /// Of them, those in which something conflicted.
    pub conflicted: u64,
    /// Of them, those that shards ended at their deadline.
    pub expired: u64,
    /// Operations that were sent to shards.
    pub operations: u64,
    /// Of them, those that were granted: useful work. The rest was wasted.
    pub granted: u64,
}

impl PlannerMetrics {
    pub(super) fn count_statement(&mut self, operations: usize) {
        self.statements += 1;
        self.operations += operations as u64;
    }

    pub(super) fn count_concluded(&mut self, concluded: &Concluded) {
        self.committed += u64::from(!concluded.applied.is_empty());
        self.conflicted += u64::from(!concluded.conflicts.is_empty());
        self.expired += u64::from(concluded.expired);
        let granted = concluded.applied.iter().map(|applied| applied.granted.len());
        self.granted += granted.sum::<usize>() as u64;
    }
}
