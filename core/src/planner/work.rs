//! The work of a planner, counted: what bounds its rounds, what clients are charged, and what checkers look at.
//!
//! A *unit* is one node, vertex of an index, or bundle that is looked at: some tens of ns. Units depend on what
//! is asked and on the nodes alone, so the same jobs cost the same units on every machine. Following the shards'
//! views is not counted: that is as much work as the shards do.
//!
//! A round takes things up in turn (groups that lost, jobs, proofs, groups that wait, a ticket), each within a
//! share of [`PlannerBudget::round`]; what is left over is taken up in the next round. One search is given up at
//! [`PlannerBudget::search`], and a proof goes on in the next round after [`PlannerBudget::proof`].

use std::cell::Cell;

use crate::limits::{PROOF_FLOW_MAX, PROOF_WORK_MAX, ROUND_WORK_MAX, SEARCH_WORK_MAX};

/// Bounds of the work of one planner, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannerBudget {
    /// A round takes nothing more up after so many.
    pub round: u64,
    /// The search for the places of one group is given up after so many.
    pub search: u64,
    /// A proof that a group is infeasible goes on in a later round after so many.
    pub proof: u64,
}

impl Default for PlannerBudget {
    fn default() -> Self {
        Self { round: ROUND_WORK_MAX, search: SEARCH_WORK_MAX, proof: PROOF_WORK_MAX }
    }
}

impl PlannerBudget {
    /// The most units of one round over so many nodes, for groups of at most so many bundles: its own, and what
    /// the last thing of each share may go beyond it. A search that has begun looks at each node a few times more
    /// at most before it is given up. What a list of groups shows is not in it.
    #[must_use]
    pub fn most_per_round(&self, nodes: usize, bundles: usize) -> u64 {
        const SHARES: u64 = 6;
        let edges = (nodes.saturating_mul(bundles)) as u64;
        let of_flow = edges.saturating_mul(edges).min(PROOF_FLOW_MAX as u64) / LOOKS_PER_UNIT;
        let nodes = nodes as u64;
        let bundles = bundles as u64;
        // Searched again where views moved, and once more for what a refusal says.
        let of_search = 3 * (self.search + 8 * nodes + 2 * bundles);
        let of_proof = self.proof + 8 * nodes + of_flow;
        self.round + SHARES * (of_search + of_proof)
    }
}

/// Looks at a kind and a sink of a flow that are one unit: each takes some ns.
pub(super) const LOOKS_PER_UNIT: u64 = 16;

/// What a planner did since its start, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerWork {
    /// Units in all.
    pub units: u64,
    /// The most units of one round.
    pub most_per_round: u64,
    /// Searches for the places of a group.
    pub searches: u64,
    /// Of these, those that were given up at their bound.
    pub given_up: u64,
    /// Turns of proofs: each [`PlannerBudget::proof`] units at most, but for its last step.
    pub proofs: u64,
    /// Groups that were decided by what was found for an equal one, without a search.
    pub recalled: u64,
}

/// Counts units. Everything that searches on the copies of one planner shares it.
#[derive(Debug)]
pub(super) struct Meter {
    spent: Cell<u64>,
    limit: Cell<u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Self { spent: Cell::new(0), limit: Cell::new(u64::MAX) }
    }
}

impl Meter {
    pub(super) fn charge(&self, units: u64) {
        self.spent.set(self.spent.get() + units);
    }

    /// Units since the start.
    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// What begins now is given up after so many units.
    pub(super) fn allow(&self, units: u64) {
        self.limit.set(self.spent().saturating_add(units));
    }

    /// Units until what has begun is given up.
    pub(super) fn left(&self) -> u64 {
        self.limit.get().saturating_sub(self.spent())
    }

    /// Whether what has begun is to be given up.
    pub(super) fn is_spent(&self) -> bool {
        self.spent() >= self.limit.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand from what it says of itself.
    #[test]
    fn the_most_of_a_round_is_its_own_units_and_what_six_shares_go_beyond_them() {
        let budget = PlannerBudget { round: 1000, search: 100, proof: 10 };
        let of_search = 3 * (100 + 8 * 10 + 2 * 4);
        // Forty edges, squared.
        let of_proof = 10 + 8 * 10 + 1600 / LOOKS_PER_UNIT;
        assert_eq!(budget.most_per_round(10, 4), 1000 + 6 * (of_search + of_proof));
        // However many edges there are, a flow that costs more is not sought.
        let of_proof = 10 + 8 * 10_000 + PROOF_FLOW_MAX as u64 / LOOKS_PER_UNIT;
        let of_search = 3 * (100 + 8 * 10_000 + 2 * 1000);
        assert_eq!(budget.most_per_round(10_000, 1000), 1000 + 6 * (of_search + of_proof));
    }
}
