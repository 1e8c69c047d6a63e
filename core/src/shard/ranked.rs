//! Placements by [rank](crate::request::Rank), by preferred nodes, and by the hybrid policy.

use super::hybrid::HybridSettings;
use super::hybrid_order::{HybridOrder, Sought};
use super::rankings::RankingId;
use super::selectors::SetId;
use super::table::NodeTable;
use super::{Shard, Slot};
use crate::ids::Ordinal;
use crate::index::Candidates;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};

/// The nodes that a request may be placed on, as cached by the shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Eligibility {
    /// All nodes, or the candidate set of the selector. All of equal rank.
    Plain(Option<SetId>),
    /// Nodes by rank.
    Ranked(RankingId),
}

impl Shard {
    /// Returns the eligibility for requests like this one. Creates it if it is not cached.
    pub(super) fn scope(&mut self, request: &PlacementRequest) -> Eligibility {
        if self.rankings.concern(request) {
            return Eligibility::Ranked(self.rankings.keep(request, &self.nodes, &mut self.selectors));
        }
        Eligibility::Plain(request.selector.as_ref().map(|selector| self.keep_selector(selector)))
    }

    /// Like [`find`](Self::find), by rank. Also returns the number of the selector that matches.
    pub(super) fn find_ranked(&mut self, request: &PlacementRequest, id: RankingId) -> (Option<Slot>, u8) {
        let found = self.find_by_rank(request, id);
        (found, found.map_or(0, |slot| self.rankings.at(id).rank(slot).alternative()))
    }

    fn find_by_rank(&mut self, request: &PlacementRequest, id: RankingId) -> Option<Slot> {
        let named = self.named(request);
        let preferred = self.preferred_slots(request);
        let hybrid = request.policy == Policy::Hybrid;
        let order = self.order_of(request);
        if hybrid {
            self.build_hybrid();
        }
        // The first of the fitting preferred nodes with the smallest group.
        let best = if hybrid { None } else { self.best_preferred(request, id, &preferred) };
        for tier in 0..self.rankings.at(id).tiers().len() {
            let rank = self.rankings.at(id).tiers()[tier].rank;
            if let Some((group, slot)) = best
                && group <= rank.group()
            {
                return Some(slot);
            }
            if named.is_none() && !hybrid {
                self.mark_tier(id, tier);
            }
            let ranking = self.rankings.at(id);
            let nodes = &self.nodes;
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
                        preferred: preferred
                            .first()
                            .copied()
                            .filter(|&slot| is_candidate(request, nodes, slot)),
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
                    index.select_shape(None, order, policy, &asked, candidates, state, visits, fits)
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the slots of the preferred nodes that are registered here, in order.
    pub(super) fn preferred_slots(&self, request: &PlacementRequest) -> Vec<Slot> {
        let nodes = request.preferences.as_ref().map_or(&[][..], |preferences| &preferences.nodes);
        nodes.iter().filter_map(|&id| self.nodes.slot(id)).collect()
    }

    pub(super) fn best_preferred(
        &self,
        request: &PlacementRequest,
        id: RankingId,
        slots: &[Slot],
    ) -> Option<(u16, Slot)> {
        let ranking = self.rankings.at(id);
        let fits = |slot: Slot| {
            ranking.rank(slot).is_eligible()
                && self.nodes.state(slot) == NodeState::Ready
                && is_candidate(request, &self.nodes, slot)
                && self.nodes.fits(slot, &request.demand)
        };
        let fitting = slots.iter().copied().filter(|&slot| fits(slot));
        // For equal groups, `min_by_key` returns the first.
        fitting.map(|slot| (ranking.rank(slot).group(), slot)).min_by_key(|&(group, _)| group)
    }

    /// Gives a mark to a tier that is about to be searched, if it needs one.
    fn mark_tier(&mut self, id: RankingId, tier: usize) {
        if let Some(mark) = self.rankings.give_mark(id, tier, self.nodes.len()) {
            let ranking = self.rankings.at(id);
            self.index.assign(mark, |slot| ranking.is_of(tier, slot));
            self.capacities.assign(mark, |slot| ranking.is_of(tier, slot));
        }
    }

    /// Builds the order of the hybrid policy on first use.
    pub(super) fn build_hybrid(&mut self) {
        if self.hybrid.is_none() {
            self.hybrid = Some(HybridOrder::default());
            let slots: Vec<Slot> = self.nodes.iter().map(|(slot, ..)| slot).collect();
            for slot in slots {
                self.follow_hybrid(slot);
            }
        }
    }

    /// Updates the hybrid order after a node's books, capacity or state changed.
    #[inline]
    pub(super) fn follow_hybrid(&mut self, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            order.set(slot, hybrid_place(&self.nodes, self.hybrid_settings, slot), *self.nodes.room(slot));
        }
    }

    /// Removes a node that is about to leave from the hybrid order.
    pub(super) fn leave_hybrid(&mut self, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            order.set(slot, None, *self.nodes.room(slot));
        }
    }

    /// Checks the place of a node in the hybrid order, if that is maintained.
    pub(super) fn check_hybrid(&self, slot: Slot) -> Result<(), String> {
        let expected = hybrid_place(&self.nodes, self.hybrid_settings, slot);
        match &self.hybrid {
            Some(order) if order.place(slot) != expected => Err(format!(
                "slot {slot} is at {:?} in the hybrid order, expected {expected:?}",
                order.place(slot)
            )),
            Some(order) if expected.is_some() && order.room(slot) != Some(*self.nodes.room(slot)) => {
                Err(format!("the hybrid order knows another room of slot {slot}"))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn hybrid_place(
    nodes: &NodeTable,
    settings: HybridSettings,
    slot: Slot,
) -> Option<(u16, Ordinal)> {
    let room = nodes.room(slot);
    let cold = nodes.cold(slot);
    let registration = &cold.registration;
    let books = [(room.cpu, registration.spec.cpu), (room.memory, registration.spec.memory)];
    (room.state == Some(NodeState::Ready)).then(|| (settings.score(books), registration.ordinal))
}

/// Returns whether the request names no candidates, or names this node.
pub(super) fn is_candidate(request: &PlacementRequest, nodes: &NodeTable, slot: Slot) -> bool {
    let id = nodes.hot(slot).id;
    request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
}
