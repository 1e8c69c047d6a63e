//! Placements by [rank](crate::request::Rank), by preferred nodes, and by the hybrid policy.

use super::hybrid::{HybridSettings, WHOLE};
use super::hybrid_order::{HybridOrder, Sought};
use super::rankings::RankingId;
use super::{Choose, Eligibility, Eligible};
use crate::broken::{Broken, broken};
use crate::ids::Ordinal;
use crate::index::Candidates;
use crate::index::Slot;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};
use crate::shard::books::{Books, NodeTable, Room};

impl Choose {
    /// Like [`find_plain`](Self::find_plain), by rank.
    pub(super) fn find_ranked(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        id: RankingId,
    ) -> Option<Slot> {
        let nodes = &books.nodes;
        let named = nodes.named(request);
        let hybrid = request.policy == Policy::Hybrid;
        let order = self.order_of(books, request);
        if hybrid {
            self.build_hybrid(books);
        }
        // The first of the fitting preferred nodes with the smallest group.
        let best = if hybrid { None } else { self.best_preferred(books, request, id) };
        for tier in 0..self.rankings.at(id).tiers().len() {
            let rank = self.rankings.at(id).tiers()[tier].rank;
            assert!(rank.is_eligible(), "nodes are searched that the request may not use");
            if let Some((group, slot)) = best
                && group <= rank.group()
            {
                return Some(slot);
            }
            if named.is_none() && !hybrid {
                self.mark_tier(books, id, tier);
            }
            let ranking = self.rankings.at(id);
            let scope = Eligibility::Ranked(id);
            let eligible = Eligible::of(&self.selectors, &self.rankings, books, request, scope);
            let here: Vec<Slot>;
            let candidates = match &named {
                None => ranking.tiers()[tier].candidates(),
                Some(named) => {
                    here = named.iter().copied().filter(|&slot| ranking.is_of(tier, slot)).collect();
                    Candidates::Walk(&here)
                }
            };
            let fits = |slot: Slot| ranking.is_of(tier, slot) && nodes.fits(slot, &request.demand);
            let state = &mut self.policy_state;
            let visits = &mut self.visits;
            let found = match &mut self.hybrid {
                Some(order) if hybrid => {
                    let sought = Sought {
                        request,
                        any: request.demand.custom.is_none() && ranking.tiers()[tier].len() == nodes.len(),
                        drawn_from: self.hybrid_settings.drawn_from(nodes.len()),
                        preferred: preferred_slots(books, request)
                            .next()
                            .filter(|&slot| eligible.is_candidate(slot)),
                    };
                    match candidates {
                        Candidates::Walk(few) => order.choose_of(few, &sought, &mut state.rng, visits, fits),
                        _ => order.choose(&sought, &mut state.rng, visits, fits),
                    }
                }
                _ => {
                    let asked = self.index.geometry().asked(&request.demand);
                    let index = &mut self.index;
                    let policy = request.policy;
                    index.select_in_order(order, policy, &asked, candidates, state, visits, fits)
                }
            };
            if let Some(slot) = found {
                assert!(nodes.takes_work(slot), "a node was found that takes no new work");
                return found;
            }
        }
        None
    }

    /// Returns the first of the fitting preferred nodes with the smallest group, and the group.
    pub(super) fn best_preferred(
        &self,
        books: &Books,
        request: &PlacementRequest,
        id: RankingId,
    ) -> Option<(u16, Slot)> {
        let eligible = self.eligible(books, request, Eligibility::Ranked(id));
        let nodes = &books.nodes;
        let fits = |slot: Slot| {
            nodes.state(slot) == NodeState::Ready
                && eligible.allows(slot)
                && nodes.fits(slot, &request.demand)
        };
        first_preferred(preferred_slots(books, request).filter(|&slot| fits(slot)), &eligible)
    }

    /// Gives a mark to a tier that is about to be searched, if it needs one.
    fn mark_tier(&mut self, books: &Books, id: RankingId, tier: usize) {
        if let Some(mark) = self.rankings.give_mark(id, tier, books.nodes.len()) {
            let ranking = self.rankings.at(id);
            self.index.assign(mark, |slot| ranking.is_of(tier, slot));
            self.capacities.assign(mark, |slot| ranking.is_of(tier, slot));
        }
    }

    /// Builds the order of the hybrid policy on first use.
    pub(crate) fn build_hybrid(&mut self, books: &Books) {
        if self.hybrid.is_none() {
            self.hybrid = Some(HybridOrder::default());
            for (slot, ..) in books.nodes.iter() {
                self.follow_hybrid(books, slot);
            }
        }
    }

    /// Updates the hybrid order after a node's books, capacity or state changed.
    #[inline(always)]
    pub(crate) fn follow_hybrid(&mut self, books: &Books, slot: Slot) {
        if self.hybrid.is_some() {
            self.move_in_hybrid(books, slot);
        }
    }

    #[inline(never)]
    fn move_in_hybrid(&mut self, books: &Books, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            let room = books.nodes.room(slot);
            let place = hybrid_place(&books.nodes, self.hybrid_settings, slot, room);
            assert!(place.is_none_or(|(score, _)| score <= WHOLE), "more is used of slot {slot} than it has");
            order.set(slot, place, *room);
        }
    }

    /// Removes a node that left from the hybrid order.
    pub(crate) fn leave_hybrid(&mut self, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            order.set(slot, None, Room::VACANT);
        }
    }

    /// Checks the place of a node in the hybrid order, if that is maintained.
    pub(crate) fn check_hybrid(&self, books: &Books, slot: Slot) -> Result<(), Broken> {
        let room = books.nodes.room(slot);
        let expected = hybrid_place(&books.nodes, self.hybrid_settings, slot, room);
        match &self.hybrid {
            Some(order) if order.place(slot) != expected => Err(broken!(
                "slot {slot} is at {:?} in the hybrid order, expected {expected:?}",
                order.place(slot)
            )),
            Some(order) if expected.is_some() && order.room(slot) != Some(*room) => {
                Err(broken!("the hybrid order knows another room of slot {slot}"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the slots of the preferred nodes that are registered here, in order.
pub(super) fn preferred_slots(books: &Books, request: &PlacementRequest) -> impl Iterator<Item = Slot> {
    let nodes = request.preferences.as_ref().map_or(&[][..], |preferences| &preferences.nodes);
    nodes.iter().filter_map(|&id| books.nodes.slot(id))
}

/// Returns the first of `slots` with the smallest group, and the group.
pub(super) fn first_preferred(
    slots: impl Iterator<Item = Slot>,
    eligible: &Eligible<'_>,
) -> Option<(u16, Slot)> {
    // For equal groups, `min_by_key` returns the first.
    slots.map(|slot| (eligible.rank(slot).group(), slot)).min_by_key(|&(group, _)| group)
}

/// Returns the place of a node with `room` in the hybrid order. `None` if it takes no new work.
pub(super) fn hybrid_place(
    nodes: &NodeTable,
    settings: HybridSettings,
    slot: Slot,
    room: &Room,
) -> Option<(u16, Ordinal)> {
    let registration = &nodes.cold(slot).registration;
    let books = [(room.cpu, registration.spec.cpu), (room.memory, registration.spec.memory)];
    (room.state == Some(NodeState::Ready)).then(|| (settings.score(books), registration.ordinal))
}
