//! Counts the work of a planner. The counts bound its rounds, charge its clients and serve the checkers.
//!
//! A *unit* is one node, index vertex or bundle that is looked at, and takes some tens of ns. Units depend
//! only on the requests and the nodes, so the same jobs cost the same units on every machine. Following the
//! shards' views is not counted, because it is as much work as the shards do.
//!
//! A round processes lost groups, jobs, proofs, waiting groups and a ticket in turn. Each has a share of
//! [`PlannerBudget::round`]. The next round continues with the rest. A search is given up at
//! [`PlannerBudget::search`]. A proof continues in the next round after [`PlannerBudget::proof`].

use std::cell::Cell;

use crate::limits::{PROOF_FLOW_MAX, PROOF_WORK_MAX, ROUND_WORK_MAX, SEARCH_WORK_MAX};

/// The bounds of the work of one planner, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannerBudget {
    /// The units after which a round begins no further work.
    pub round: u64,
    /// The units after which the search for one group is given up.
    pub search: u64,
    /// The units after which a proof of infeasibility continues in a later round.
    pub proof: u64,
}

impl Default for PlannerBudget {
    fn default() -> Self {
        Self { round: ROUND_WORK_MAX, search: SEARCH_WORK_MAX, proof: PROOF_WORK_MAX }
    }
}

impl PlannerBudget {
    /// Returns the most units of one round for this number of nodes and at most this number of bundles per
    /// group. This is the budget of the round plus what the last step of each share may exceed it by. A
    /// search may look at each node a few more times before it is given up. The groups shown by a list are
    /// not included.
    #[must_use]
    pub fn most_per_round(&self, nodes: usize, bundles: usize) -> u64 {
        const SHARES: u64 = 6;
        let edges = (nodes.saturating_mul(bundles)) as u64;
        let of_flow = edges.saturating_mul(edges).min(PROOF_FLOW_MAX as u64) / LOOKS_PER_UNIT;
        let nodes = nodes as u64;
        let bundles = bundles as u64;
        // A search is repeated if views moved, and once more for the reason of a refusal.
        let of_search = 3 * (self.search + 8 * nodes + 2 * bundles);
        let of_proof = self.proof + 8 * nodes + of_flow;
        self.round + SHARES * (of_search + of_proof)
    }
}

/// Flow steps per unit. Each step looks at a kind and a sink and takes some ns.
pub(super) const LOOKS_PER_UNIT: u64 = 16;

/// The counters of a planner's work since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerWork {
    /// All units.
    pub units: u64,
    /// The most units of one round.
    pub most_per_round: u64,
    /// Searches for the places of a group.
    pub searches: u64,
    /// Of these, searches that were given up at their bound.
    pub given_up: u64,
    /// Turns of proofs. Each takes at most [`PlannerBudget::proof`] units plus its last step.
    pub proofs: u64,
    /// Groups that were decided without a search, by the result for an equal group.
    pub recalled: u64,
}

/// Counts units. All searches on the replicas of one planner share it.
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

    /// Returns the units since the start.
    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// Sets the limit: the work that begins now is given up after this many units.
    pub(super) fn allow(&self, units: u64) {
        self.limit.set(self.spent().saturating_add(units));
    }

    /// Returns the units left before the limit.
    pub(super) fn left(&self) -> u64 {
        self.limit.get().saturating_sub(self.spent())
    }

    /// Returns whether the limit is reached.
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
        // A flow that would cost more than the bound is not computed for any number of edges.
        let of_proof = 10 + 8 * 10_000 + PROOF_FLOW_MAX as u64 / LOOKS_PER_UNIT;
        let of_search = 3 * (100 + 8 * 10_000 + 2 * 1000);
        assert_eq!(budget.most_per_round(10_000, 1000), 1000 + 6 * (of_search + of_proof));
    }

    #[test]
    fn a_meter_knows_what_is_left_before_its_limit() {
        let meter = Meter::default();
        meter.charge(5);
        assert_eq!((meter.spent(), meter.is_spent()), (5, false), "without a limit, nothing is too much");
        meter.allow(3);
        for left in [3, 2, 1] {
            assert_eq!((meter.left(), meter.is_spent()), (left, false));
            meter.charge(1);
        }
        assert_eq!((meter.left(), meter.is_spent()), (0, true));
        meter.charge(10);
        assert_eq!((meter.spent(), meter.left(), meter.is_spent()), (18, 0, true));
        meter.allow(u64::MAX);
        assert!(!meter.is_spent(), "a limit beyond all numbers is none");
    }
}
