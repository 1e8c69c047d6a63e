//! Rounds of planners are bounded, independent of the number of requests.

use wharf_core::planner::{PlannerBudget, PlannerWork};

use super::{Verdict, ensure};

/// The highest number of bundles of a group in these runs: its initial bundles and those it may grow by.
const BUNDLES_MAX: usize = 64;

/// Checks that no round of a planner did more than its budget permits for `nodes` nodes.
///
/// # Errors
/// Returns the amount of work done.
pub fn rounds_are_bounded(work: &PlannerWork, budget: &PlannerBudget, nodes: usize) -> Verdict {
    let most = budget.most_per_round(nodes, BUNDLES_MAX);
    ensure(work.most_per_round <= most, || {
        format!("a round over {nodes} nodes did {} units, {most} at most: {work:?}", work.most_per_round)
    })
}
