//! Rounds of planners are bounded, however much is asked of them.

use wharf_core::planner::{PlannerBudget, PlannerWork};

use super::{Verdict, ensure};

/// Most bundles of a group here: those that it is made with, and what it may grow by.
const BUNDLES_MAX: usize = 64;

/// No round of a planner did more than its budget allows over so many nodes.
///
/// # Errors
/// How much it did.
pub fn rounds_are_bounded(work: &PlannerWork, budget: &PlannerBudget, nodes: usize) -> Verdict {
    let most = budget.most_per_round(nodes, BUNDLES_MAX);
    ensure(work.most_per_round <= most, || {
        format!("a round over {nodes} nodes did {} units, {most} at most: {work:?}", work.most_per_round)
    })
}
