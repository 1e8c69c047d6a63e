//! Ray's hybrid policy: nodes in order of utilisation, one drawn from the first of them.
//!
//! A node's *score* is the larger of its cpu's and its memory's utilisation as it is now, without
//! the request, in 1/10 000 rounded down; below the threshold it is zero. Nodes go by score, then
//! by order of registration; of those that fit, one is drawn uniformly from the first
//! `top_k` of all nodes (at least one). A preferred node that fits wins if no other has a lower
//! score. Ray compares scores as floating-point numbers; here they are integers, so nodes whose
//! utilisation differs by less than 1/10 000 are equal.
//!
//! The order is built when the policy is first asked for and kept from then on. A search walks it
//! from its beginning and stops at the node that was drawn: it visits the nodes before it that do
//! not fit, and at most `top_k` that do. Only where fewer than were drawn from fit does it visit
//! every node, once. Source: `hybrid_scheduling_policy.cc` in Ray.

use std::collections::BTreeSet;

use crate::ids::Ordinal;
use crate::index::{Candidates, Slot, Visits};
use crate::resource::Amount;
use crate::rng::Rng;

/// The whole of something, in the parts that scores and settings count in.
pub const WHOLE: u16 = 10_000;

/// What the hybrid policy can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridSettings {
    /// Utilisation below which a node counts as unused, in 1/10 000: `0..=10_000`.
    pub threshold: u16,
    /// Of all nodes, the part from whose best one is drawn, in 1/10 000: `0..=10_000`.
    pub top_k: u16,
}

impl Default for HybridSettings {
    /// Ray's: half, and a fifth.
    fn default() -> Self {
        Self { threshold: WHOLE / 2, top_k: WHOLE / 5 }
    }
}

impl HybridSettings {
    /// The score of a node: available and total of cpu, then of memory.
    #[must_use]
    pub fn score(&self, books: [(Amount, Amount); 2]) -> u16 {
        let used = |(available, total): (Amount, Amount)| {
            let (available, total) = (available.units() as u64, total.units() as u64);
            // At most 2^53 times 10 000: it fits, and the quotient is at most 10 000.
            // None: a resource that is not there is not used.
            ((total - available) * u64::from(WHOLE)).checked_div(total).unwrap_or(0) as u16
        };
        let score = used(books[0]).max(used(books[1]));
        if score < self.threshold { 0 } else { score }
    }

    /// How many of `nodes` a draw is from, at least one.
    #[must_use]
    pub fn drawn_from(&self, nodes: usize) -> u64 {
        (nodes as u64 * u64::from(self.top_k) / u64::from(WHOLE)).max(1)
    }
}

/// Score, order of registration, node.
pub(super) type Place = (u16, Ordinal, Slot);

/// The nodes that take work, in order of score and registration.
#[derive(Default)]
pub(super) struct HybridOrder {
    order: BTreeSet<Place>,
    /// By slot.
    places: Vec<Option<Place>>,
    /// Fitting nodes that a search passed: kept for its memory alone.
    passed: Vec<Slot>,
}

impl HybridOrder {
    /// Gives `slot` its place, or takes it out.
    pub(super) fn set(&mut self, slot: Slot, place: Option<(u16, Ordinal)>) {
        let place = place.map(|(score, ordinal)| (score, ordinal, slot));
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, None);
        }
        let known = &mut self.places[slot as usize];
        if *known == place {
            return;
        }
        if let Some(before) = known.take() {
            self.order.remove(&before);
        }
        *known = place;
        self.order.extend(place);
    }

    pub(super) fn place(&self, slot: Slot) -> Option<(u16, Ordinal)> {
        self.places.get(slot as usize).copied().flatten().map(|(score, ordinal, _)| (score, ordinal))
    }

    /// The node that the policy chooses among `candidates` that `accept` accepts; `drawn_from` is
    /// how many of the first are drawn from.
    pub(super) fn choose(
        &mut self,
        candidates: Candidates<'_>,
        preferred: Option<Slot>,
        drawn_from: u64,
        rng: &mut Rng,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let mut accept = |slot: Slot| {
            visits.nodes += 1;
            accept(slot)
        };
        let preferred = preferred.and_then(|slot| self.places.get(slot as usize).copied().flatten());
        let preferred = preferred.filter(|&(.., slot)| accept(slot));
        if let Candidates::Walk(slots) = candidates {
            let mut fitting: Vec<Place> =
                slots.iter().filter_map(|&slot| self.places.get(slot as usize).copied().flatten()).collect();
            fitting.retain(|&(.., slot)| accept(slot));
            fitting.sort_unstable();
            return self.choose_of(fitting, preferred, drawn_from, rng);
        }
        let passed = &mut self.passed;
        passed.clear();
        draw(
            self.order.iter().copied().filter(|&(.., slot)| accept(slot)),
            preferred,
            drawn_from,
            passed,
            rng,
        )
    }
}

impl HybridOrder {
    /// As [`choose`](Self::choose), of places that are given: fitting ones in order.
    pub(super) fn choose_of(
        &mut self,
        fitting: Vec<Place>,
        preferred: Option<Place>,
        drawn_from: u64,
        rng: &mut Rng,
    ) -> Option<Slot> {
        self.passed.clear();
        draw(fitting.into_iter(), preferred, drawn_from, &mut self.passed, rng)
    }
}

/// Draws from the first `drawn_from` of `fitting`, and looks no further than it must: a number
/// within `drawn_from` names a node unless there are fewer, and only then is it drawn again, from
/// those that were passed.
fn draw(
    mut fitting: impl Iterator<Item = Place>,
    preferred: Option<Place>,
    drawn_from: u64,
    passed: &mut Vec<Slot>,
    rng: &mut Rng,
) -> Option<Slot> {
    let (best, _, first) = fitting.next()?;
    if let Some((score, _, slot)) = preferred
        && score <= best
    {
        return Some(slot);
    }
    let drawn = rng.below(drawn_from) as usize;
    passed.push(first);
    while passed.len() <= drawn {
        match fitting.next() {
            Some((.., slot)) => passed.push(slot),
            None => return Some(passed[rng.below(passed.len() as u64) as usize]),
        }
    }
    passed.last().copied()
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
    fn a_draw_is_uniform_over_the_first_that_fit() {
        let mut order = HybridOrder::default();
        for slot in 0..40u32 {
            order.set(slot, Some((u16::from(slot >= 20) * 6000, Ordinal(u64::from(slot)))));
        }
        let mut rng = Rng::new(3);
        // The first 8 that fit are 0, 2, …, 14; of seven candidates five fit.
        for (candidates, expected) in [
            (Candidates::All, (0..16).step_by(2).collect::<Vec<Slot>>()),
            (Candidates::Walk(&[38, 1, 4, 30, 8, 33, 0]), vec![0, 4, 8, 30, 38]),
        ] {
            let mut counts = [0i64; 40];
            let draws = 1000 * expected.len() as i64;
            for _ in 0..draws {
                let mut visits = Visits::default();
                let even = |slot: Slot| slot.is_multiple_of(2);
                let found = order.choose(candidates, None, 8, &mut rng, &mut visits, even);
                counts[found.unwrap() as usize] += 1;
                assert!(visits.nodes <= 16, "{visits:?}");
            }
            let chi: i64 = expected.iter().map(|&slot| (counts[slot as usize] - 1000).pow(2)).sum();
            // 24.3 is the 0.999 quantile of chi-square with 7 degrees of freedom.
            assert!(chi < 24_300, "{counts:?}");
            assert_eq!(expected.iter().map(|&slot| counts[slot as usize]).sum::<i64>(), draws);
        }
    }

    #[test]
    fn a_preferred_node_wins_unless_another_is_less_used() {
        let mut order = HybridOrder::default();
        for (slot, score) in [(0, 6000), (1, 6000), (2, 7000)] {
            order.set(slot, Some((score, Ordinal(u64::from(slot)))));
        }
        let mut choose = |preferred| {
            order.choose(
                Candidates::All,
                Some(preferred),
                1,
                &mut Rng::new(1),
                &mut Visits::default(),
                |_| true,
            )
        };
        assert_eq!(choose(1), Some(1));
        assert_eq!(choose(2), Some(0));
        order.set(0, None);
        order.set(1, Some((8000, Ordinal(1))));
        let chosen =
            order.choose(Candidates::All, Some(2), 1, &mut Rng::new(1), &mut Visits::default(), |_| true);
        assert_eq!(chosen, Some(2));
    }
}
