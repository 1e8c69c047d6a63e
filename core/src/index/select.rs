//! Searches that do not compare coordinates, or only those of named nodes.

use super::coordinate::{Coordinate, ResourceVector};
use super::ordinal::OrdinalTree;
use super::tree::{Direction, Wanted};
use super::{DistBuckets, Marks, Meter, PolicyState, Slot};
use crate::ids::Ordinal;
use crate::limits::{DIMENSIONS_MAX, RANDOM_DRAWS_MAX, RANDOM_DRAWS_MIN, RANDOM_DRAWS_PART};
use crate::planted::{PlantedBug, is_planted};
use crate::request::Policy;

impl DistBuckets {
    /// The same for the policies that do not compare coordinates.
    #[inline(never)]
    pub(super) fn select_by_ordinal<M: Meter>(
        &mut self,
        policy: Policy,
        (asked, marks): (&ResourceVector, Marks),
        state: &mut PolicyState,
        visits: &mut M,
        mut accept: impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        let wanted = Wanted { coordinates: self.geometry.coordinates(asked), marks };
        match policy {
            Policy::FirstFit => self.ordinals().first_from(Ordinal(0), &wanted, visits, accept),
            Policy::NextFit => {
                let start = Ordinal(state.next_fit.0 + u64::from(is_planted(PlantedBug::NextFitOneLate)));
                let ordinals = self.ordinals();
                let found = ordinals
                    .first_from(start, &wanted, visits, &mut accept)
                    .or_else(|| ordinals.first_from(Ordinal(0), &wanted, visits, &mut accept));
                self.stopped_at(found, state)
            }
            Policy::Spread => {
                let start = Ordinal(state.next_fit.0 + 1);
                let ordinals = self.ordinals();
                let found = ordinals
                    .first_from(start, &wanted, visits, &mut accept)
                    .or_else(|| ordinals.first_from(Ordinal(0), &wanted, visits, &mut accept));
                self.stopped_at(found, state)
            }
            Policy::Random => self.drawn((asked, marks), state, visits, &mut accept),
            Policy::Hybrid => unreachable!("the hybrid policy has an order of its own"),
            _ => unreachable!("the policy compares coordinates"),
        }
    }

    /// Returns an accepted node, each with equal probability.
    ///
    /// Draws from all nodes succeed soon unless few nodes are accepted. After a number of draws, the accepted
    /// nodes whose coordinates suffice are listed instead.
    fn drawn<M: Meter>(
        &mut self,
        wanted: (&ResourceVector, Marks),
        state: &mut PolicyState,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        let ordinals = self.ordinals();
        if ordinals.is_empty() {
            return None;
        }
        // Depends only on the nodes, so a rebuilt shard makes the same draws as the original.
        let draws = (ordinals.len() / RANDOM_DRAWS_PART).clamp(RANDOM_DRAWS_MIN, RANDOM_DRAWS_MAX);
        for draw in 0..draws {
            // Further draws only make sense if any node is accepted.
            if draw == RANDOM_DRAWS_MIN {
                self.first(0, Direction::Greatest, wanted, visits, accept)?;
            }
            let ordinals = self.ordinals();
            let slot = ordinals.nth(state.rng.below(ordinals.len() as u64), visits);
            if accept(slot, visits) {
                return Some(slot);
            }
        }
        let mut fitting = Vec::new();
        let none = self.first(0, Direction::Smallest, wanted, visits, &mut |slot, visits| {
            if accept(slot, visits) {
                fitting.push(slot);
            }
            false
        });
        debug_assert!(none.is_none());
        fitting.sort_unstable_by_key(|&slot| self.ranks.of(slot));
        (!fitting.is_empty()).then(|| fitting[state.rng.below(fitting.len() as u64) as usize])
    }

    /// The same as [`select_in_order`](Self::select_in_order), over named slots. Only nodes that come before the
    /// best one so far are checked exactly.
    #[inline(never)]
    pub(super) fn select_walking<M: Meter>(
        &self,
        order: usize,
        policy: Policy,
        slots: &[Slot],
        state: &mut PolicyState,
        visits: &mut M,
        mut accept: impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        let standing = |slot: Slot, visits: &mut M| {
            self.ranks.tell(slot, visits);
            self.first.tell_place(slot, visits);
            Some((self.ranks.ordinal_if(slot)?, self.coordinate(slot)?))
        };
        if policy == Policy::Random {
            let mut fitting = Vec::new();
            for &slot in slots {
                if let Some((ordinal, _)) = standing(slot, visits)
                    && accept(slot, visits)
                {
                    fitting.push((ordinal, slot));
                }
            }
            fitting.sort_unstable();
            return (!fitting.is_empty()).then(|| fitting[state.rng.below(fitting.len() as u64) as usize].1);
        }
        let turn = |behind: bool| Coordinate([u16::from(behind); DIMENSIONS_MAX]);
        let mut best: Option<((Coordinate, Ordinal), Slot)> = None;
        for &slot in slots {
            let Some((ordinal, coordinate)) = standing(slot, visits) else { continue };
            let first = match policy {
                Policy::LeastFit => Coordinate(self.geometry.ordered(order, &coordinate).0.map(|c| !c)),
                Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
                    self.geometry.ordered(order, &coordinate)
                }
                Policy::NextFit => turn(ordinal < state.next_fit),
                Policy::Spread => turn(ordinal <= state.next_fit),
                Policy::FirstFit | Policy::Random => turn(false),
                Policy::Hybrid => unreachable!("the hybrid policy has an order of its own"),
            };
            if best.is_some_and(|(best, _)| best < (first, ordinal)) {
                visits.vertex();
            } else if accept(slot, visits) {
                best = Some(((first, ordinal), slot));
            }
        }
        let found = best.map(|(_, slot)| slot);
        if matches!(policy, Policy::NextFit | Policy::Spread) { self.stopped_at(found, state) } else { found }
    }

    fn stopped_at(&self, found: Option<Slot>, state: &mut PolicyState) -> Option<Slot> {
        if let Some(slot) = found {
            state.next_fit = self.ranks.ordinal(slot);
        }
        found
    }

    fn ordinals(&mut self) -> &OrdinalTree {
        if self.ordinals.is_none() {
            let mut sorted: Vec<(Ordinal, Slot, Coordinate, Marks)> = self
                .entries()
                .map(|(slot, (ordinal, at, marks))| (ordinal, slot, at.coordinate, marks))
                .collect();
            sorted.sort_unstable_by_key(|&(ordinal, ..)| ordinal);
            self.ordinals = Some(OrdinalTree::build(&sorted));
        }
        self.ordinals.as_ref().expect("built above")
    }
}
