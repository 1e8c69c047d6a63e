//! Placements that go by more than fit and policy: by [rank](crate::request::Rank), preferred
//! nodes, and the hybrid policy.

use super::hybrid::{HybridOrder, HybridSettings};
use super::rankings::RankingId;
use super::selectors::SetId;
use super::table::NodeTable;
use super::{Shard, Slot};
use crate::ids::Ordinal;
use crate::index::{Candidates, ResourceVector};
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};

/// Which nodes a request may be placed on, as the shard keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    /// All nodes, or those of the selector's candidate set, each as good as the other.
    Plain(Option<SetId>),
    /// By rank.
    Ranked(RankingId),
}

impl Shard {
    /// What is kept for requests such as this one, made now if it is not there.
    pub(super) fn scope(&mut self, request: &PlacementRequest) -> Scope {
        if self.rankings.concern(request) {
            return Scope::Ranked(self.rankings.keep(request, &self.nodes));
        }
        Scope::Plain(request.selector.as_ref().map(|selector| self.keep_selector(selector)))
    }

    /// As [`find`](Self::find), by rank; and which of the request's selectors holds.
    pub(super) fn find_ranked(&mut self, request: &PlacementRequest, id: RankingId) -> (Option<Slot>, u8) {
        let found = self.find_by_rank(request, id);
        (found, found.map_or(0, |slot| self.rankings.at(id).rank(slot).alternative()))
    }

    fn find_by_rank(&mut self, request: &PlacementRequest, id: RankingId) -> Option<Slot> {
        let named = self.named(request);
        let preferred = self.preferred_slots(request);
        let hybrid = request.policy == Policy::Hybrid;
        if hybrid {
            self.build_hybrid();
        }
        // Of the preferred nodes that fit, the first of the smallest group.
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
            let (ranking, nodes) = (self.rankings.at(id), &self.nodes);
            let here: Vec<Slot>;
            let candidates = match &named {
                None => ranking.tiers()[tier].candidates(),
                Some(named) => {
                    here = named.iter().copied().filter(|&slot| ranking.rank(slot) == rank).collect();
                    Candidates::Walk(&here)
                }
            };
            let fits = |slot: Slot| ranking.rank(slot) == rank && nodes.fits(slot, &request.demand);
            let (state, visits) = (&mut self.policy_state, &mut self.visits);
            let found = match &mut self.hybrid {
                Some(order) if hybrid => {
                    let drawn_from = self.hybrid_settings.drawn_from(nodes.len());
                    let preferred = preferred.first().copied().filter(|&slot| names(request, nodes, slot));
                    order.choose(candidates, preferred, drawn_from, &mut state.rng, visits, fits)
                }
                _ => {
                    let asked = ResourceVector::asked(&request.demand);
                    self.index.select(request.policy, &asked, candidates, state, visits, fits)
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The nodes that fit and of which none is wanted more than the others: the preferred one, if
    /// it comes before the rest. O(nodes).
    pub(super) fn wanted_most(&self, request: &PlacementRequest, id: RankingId) -> Vec<Slot> {
        let best = self.best_preferred(request, id, &self.preferred_slots(request));
        let ranking = self.rankings.at(id);
        let all: Vec<Slot> =
            self.named(request).unwrap_or_else(|| self.nodes.iter().map(|(slot, ..)| slot).collect());
        for tier in ranking.tiers() {
            if let Some((group, slot)) = best
                && group <= tier.rank.group()
            {
                return vec![slot];
            }
            let fits = |slot: Slot| {
                ranking.rank(slot) == tier.rank
                    && self.nodes.state(slot) == NodeState::Ready
                    && self.nodes.fits(slot, &request.demand)
            };
            let here: Vec<Slot> = all.iter().copied().filter(|&slot| fits(slot)).collect();
            if !here.is_empty() {
                return here;
            }
        }
        Vec::new()
    }

    /// The slots of the preferred nodes that are registered here, in order.
    pub(super) fn preferred_slots(&self, request: &PlacementRequest) -> Vec<Slot> {
        let nodes = request.preferences.as_ref().map_or(&[][..], |preferences| &preferences.nodes);
        nodes.iter().filter_map(|&id| self.nodes.slot(id)).collect()
    }

    fn best_preferred(
        &self,
        request: &PlacementRequest,
        id: RankingId,
        slots: &[Slot],
    ) -> Option<(u16, Slot)> {
        let ranking = self.rankings.at(id);
        let fits = |slot: Slot| {
            ranking.rank(slot).is_eligible()
                && self.nodes.state(slot) == NodeState::Ready
                && names(request, &self.nodes, slot)
                && self.nodes.fits(slot, &request.demand)
        };
        let fitting = slots.iter().copied().filter(|&slot| fits(slot));
        // Of equal groups `min_by_key` answers the first.
        fitting.map(|slot| (ranking.rank(slot).group(), slot)).min_by_key(|&(group, _)| group)
    }

    /// Gives a tier that is about to be searched its mark, where it wants one.
    fn mark_tier(&mut self, id: RankingId, tier: usize) {
        if let Some(mark) = self.rankings.give_mark(id, tier, self.nodes.len()) {
            let ranking = self.rankings.at(id);
            let rank = ranking.tiers()[tier].rank;
            self.index.assign(mark, |slot| ranking.rank(slot) == rank);
            self.capacities.assign(mark, |slot| ranking.rank(slot) == rank);
        }
    }

    /// Builds the order of the hybrid policy when it is first asked for.
    pub(super) fn build_hybrid(&mut self) {
        if self.hybrid.is_none() {
            self.hybrid = Some(HybridOrder::default());
            let slots: Vec<Slot> = self.nodes.iter().map(|(slot, ..)| slot).collect();
            for slot in slots {
                self.follow_hybrid(slot);
            }
        }
    }

    /// A node has other books, capacity or state: its place in the hybrid order follows.
    #[inline]
    pub(super) fn follow_hybrid(&mut self, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            order.set(slot, hybrid_place(&self.nodes, self.hybrid_settings, slot));
        }
    }

    /// A node is about to leave.
    pub(super) fn leave_hybrid(&mut self, slot: Slot) {
        if let Some(order) = &mut self.hybrid {
            order.set(slot, None);
        }
    }

    /// Checks the place of a node in the hybrid order, where that is kept.
    pub(super) fn check_hybrid(&self, slot: Slot) -> Result<(), String> {
        let expected = hybrid_place(&self.nodes, self.hybrid_settings, slot);
        match &self.hybrid {
            Some(order) if order.place(slot) != expected => Err(format!(
                "slot {slot} stands at {:?} in the hybrid order, expected {expected:?}",
                order.place(slot)
            )),
            _ => Ok(()),
        }
    }
}

pub(super) fn hybrid_place(
    nodes: &NodeTable,
    settings: HybridSettings,
    slot: Slot,
) -> Option<(u16, Ordinal)> {
    let (room, cold) = (nodes.room(slot), nodes.cold(slot));
    let registration = &cold.registration;
    let books = [(room.cpu, registration.spec.cpu), (room.memory, registration.spec.memory)];
    (room.state == Some(NodeState::Ready)).then(|| (settings.score(books), registration.ordinal))
}

/// Whether the request names no candidates, or this one among them.
pub(super) fn names(request: &PlacementRequest, nodes: &NodeTable, slot: Slot) -> bool {
    let id = nodes.hot(slot).id;
    request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
}
