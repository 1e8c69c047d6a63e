//! Ray's hybrid policy: orders nodes by utilization and draws one of the first.
//!
//! A node's *score* is the larger of its cpu and memory utilization before the request, in 1/10,000 rounded
//! down. Scores below the threshold are zero. Nodes are ordered by score, then by order of registration. One of
//! the first k fitting nodes is drawn uniformly, where k is the share `top_k` of all nodes, and at least one. A
//! preferred node that fits wins if no fitting node has a lower score. Ray compares scores as floating-point
//! numbers. Here they are integers, so nodes whose utilization differs by less than 1/10,000 are equal.
//!
//! The order is built when the policy is first used, and is maintained from then on. The drawn node is found by
//! counting (`hybrid_order.rs`). Source: `hybrid_scheduling_policy.cc` in Ray.

use crate::resource::Amount;

/// The whole, in the parts that scores and settings use.
pub const WHOLE: u16 = 10_000;

/// The settings of the hybrid policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridSettings {
    /// Utilization below this counts as zero, in 1/10,000: `0..=10_000`.
    pub threshold: u16,
    /// The share of all nodes that a draw is from, in 1/10,000: `0..=10_000`.
    pub top_k: u16,
}

impl Default for HybridSettings {
    /// Ray's defaults: one half, and one fifth.
    fn default() -> Self {
        Self { threshold: WHOLE / 2, top_k: WHOLE / 5 }
    }
}

impl HybridSettings {
    /// Returns the score of a node. Takes available and total amounts of cpu, then of memory.
    #[must_use]
    pub fn score(&self, books: [(Amount, Amount); 2]) -> u16 {
        let used = |(available, total): (Amount, Amount)| {
            let available = available.units() as u64;
            let total = total.units() as u64;
            let used = total - available;
            let whole = u64::from(WHOLE);
            // A resource with a total of zero has no utilization. The quotient is at most 10,000.
            let score = match used.checked_mul(whole) {
                Some(scaled) => scaled.checked_div(total).unwrap_or(0),
                // The product overflowed 64 bits, so the total is not zero.
                None => (u128::from(used) * u128::from(whole) / u128::from(total)) as u64,
            };
            score as u16
        };
        let score = used(books[0]).max(used(books[1]));
        if score < self.threshold { 0 } else { score }
    }

    /// Returns the number of nodes, of `nodes` in total, that a draw is from. At least one.
    #[must_use]
    pub fn drawn_from(&self, nodes: usize) -> u64 {
        (nodes as u64 * u64::from(self.top_k) / u64::from(WHOLE)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_busier_resource_above_the_threshold() {
        let settings = HybridSettings::default();
        let score = |cpu: (u32, u32), memory: (u32, u32)| {
            settings.score(
                [cpu, memory].map(|(available, total)| (Amount::whole(available), Amount::whole(total))),
            )
        };
        assert_eq!(score((10, 10), (10, 10)), 0);
        assert_eq!(score((6, 10), (10, 10)), 0, "below the threshold");
        assert_eq!(score((5, 10), (10, 10)), 5000);
        assert_eq!(score((5, 10), (1, 10)), 9000);
        assert_eq!(score((2, 3), (1, 3)), 6666);
        assert_eq!(score((0, 0), (0, 5)), 10_000, "a resource that is not there does not count");
    }

    #[test]
    fn the_largest_amounts_have_scores_too() {
        let most = Amount::try_from_units(crate::limits::AMOUNT_MAX).unwrap();
        let third = Amount::try_from_units(crate::limits::AMOUNT_MAX / 3).unwrap();
        let settings = HybridSettings::default();
        assert_eq!(settings.score([(Amount::ZERO, most), (most, most)]), 10_000);
        assert_eq!(settings.score([(third, most), (most, most)]), 6666);
    }
}
