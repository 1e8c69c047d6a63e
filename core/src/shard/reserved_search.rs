//! The search for an owner's request among the nodes reserved for it, as the owner sees them. It supports every
//! policy and prefers nodes by rank, like a search among all nodes.

use std::collections::BTreeSet;

use super::hybrid_order::{Place, draw_of};
use super::ranked::{Eligibility, hybrid_place, is_candidate};
use super::rankings::Rankings;
use super::reservations::Reservations;
use super::selectors::SelectorSets;
use super::table::NodeTable;
use super::{Shard, Slot};
use crate::fragmentation::Among;
use crate::ids::OwnerId;
use crate::index::Candidates;
use crate::limits::CANDIDATE_WALK_MAX;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy, Rank};
use crate::resource::GpuAssignment;

/// A node, the GPUs if the policy chose them, and the number of the selector that matches.
type Found = (Slot, Option<GpuAssignment>, u8);

/// The parts of a shard that decide whether a request may be placed on a node.
#[derive(Clone, Copy)]
struct Sight<'a> {
    nodes: &'a NodeTable,
    reservations: &'a Reservations,
    selectors: &'a SelectorSets,
    rankings: &'a Rankings,
    request: &'a PlacementRequest,
    scope: Eligibility,
}

impl Sight<'_> {
    /// Returns whether the node can be chosen, and has `rank` if one is given.
    fn may_take(&self, slot: Slot, rank: Option<Rank>) -> bool {
        let in_scope = match self.scope {
            Eligibility::Plain(set) => set.is_none_or(|set| self.selectors.at(set).contains(slot)),
            Eligibility::Ranked(id) => {
                let of_slot = self.rankings.at(id).rank(slot);
                rank.map_or_else(|| of_slot.is_eligible(), |rank| of_slot == rank)
            }
        };
        in_scope
            && self.nodes.state(slot) == NodeState::Ready
            && is_candidate(self.request, self.nodes, slot)
            && self.reservations.fits(self.nodes, slot, self.request)
    }
}

impl Shard {
    fn sight<'a>(&'a self, request: &'a PlacementRequest, scope: Eligibility) -> Sight<'a> {
        let Self { nodes, reservations, selectors, rankings, .. } = self;
        Sight { nodes, reservations, selectors, rankings, request, scope }
    }

    /// Returns the node that the request's policy chooses among those reserved for `owner`. Looks at each of
    /// them at most once per rank, and at no other node.
    pub(super) fn find_reserved(
        &mut self,
        owner: OwnerId,
        request: &PlacementRequest,
        scope: Eligibility,
    ) -> Option<Found> {
        let own = self.reservations.of_owner(owner)?.clone();
        match scope {
            Eligibility::Plain(_) => self.find_among(&own, request, scope, None),
            Eligibility::Ranked(id) => {
                let ranking = self.rankings.at(id);
                let ranks: BTreeSet<Rank> = own.iter().map(|&slot| ranking.rank(slot)).collect();
                let preferred = self.own_preferred(&own, request, scope);
                for rank in ranks.into_iter().filter(|rank| rank.is_eligible()) {
                    if let Some((group, slot)) = preferred
                        && group <= rank.group()
                    {
                        // The policy's cursor does not move, because the policy chooses only the GPUs here.
                        if request.policy.is_fragmentation_aware() {
                            return self.find_among(&BTreeSet::from([slot]), request, scope, None);
                        }
                        return Some((slot, None, self.rankings.at(id).rank(slot).alternative()));
                    }
                    let found = self.find_among(&own, request, scope, Some(rank));
                    if found.is_some() {
                        return found;
                    }
                }
                None
            }
        }
    }

    /// Returns the first of the fitting preferred nodes with the smallest group. The hybrid policy handles them
    /// separately.
    fn own_preferred(
        &self,
        own: &BTreeSet<Slot>,
        request: &PlacementRequest,
        scope: Eligibility,
    ) -> Option<(u16, Slot)> {
        let Eligibility::Ranked(id) = scope else { return None };
        if request.policy == Policy::Hybrid {
            return None;
        }
        let sight = self.sight(request, scope);
        let preferred = self.preferred_slots(request).into_iter();
        let fitting = preferred.filter(|slot| own.contains(slot) && sight.may_take(*slot, None));
        let ranking = self.rankings.at(id);
        // For equal groups, `min_by_key` returns the first.
        fitting.map(|slot| (ranking.rank(slot).group(), slot)).min_by_key(|&(group, _)| group)
    }

    fn find_among(
        &mut self,
        own: &BTreeSet<Slot>,
        request: &PlacementRequest,
        scope: Eligibility,
        rank: Option<Rank>,
    ) -> Option<Found> {
        let few = own.len() <= CANDIDATE_WALK_MAX;
        let policy = request.policy;
        let listed = few || policy == Policy::Hybrid || policy.is_fragmentation_aware();
        self.visits.nodes += if listed { own.len() as u64 } else { 0 };
        let sight = self.sight(request, scope);
        let fits = |slot: &Slot| sight.may_take(*slot, rank);
        let fitting: Vec<Slot> = if listed { own.iter().copied().filter(fits).collect() } else { Vec::new() };
        if listed && fitting.is_empty() {
            return None;
        }
        let (slot, gpus) = if policy.is_fragmentation_aware() {
            let (slot, gpus) = self.least_fragmented_of(&fitting, request)?;
            (slot, Some(gpus))
        } else if policy == Policy::Hybrid {
            (self.hybrid_of(&fitting, request)?, None)
        } else {
            (self.first_of(own, few.then_some(&fitting), request, scope, rank)?, None)
        };
        let alternative = match scope {
            Eligibility::Plain(_) => 0,
            Eligibility::Ranked(id) => self.rankings.at(id).rank(slot).alternative(),
        };
        Some((slot, gpus, alternative))
    }

    /// Applies a policy of the index to `fitting`. If the owner has many nodes, searches the tree of all
    /// reserved nodes instead.
    fn first_of(
        &mut self,
        own: &BTreeSet<Slot>,
        fitting: Option<&Vec<Slot>>,
        request: &PlacementRequest,
        scope: Eligibility,
        rank: Option<Rank>,
    ) -> Option<Slot> {
        let asked = self.reserved_tree.geometry().asked(&request.demand);
        let order = self.order_of(request);
        let Self { nodes, reservations, selectors, rankings, policy_state, visits, .. } = self;
        let sight = Sight { nodes, reservations, selectors, rankings, request, scope };
        let (candidates, listed) = match fitting {
            Some(fitting) => (Candidates::Walk(fitting), true),
            None => (Candidates::All, false),
        };
        let accept = |slot: Slot| listed || own.contains(&slot) && sight.may_take(slot, rank);
        let tree = &mut self.reserved_tree;
        let policy = request.policy;
        tree.select_shape(None, order, policy, &asked, candidates, policy_state, visits, accept)
    }

    /// Calls `look` while `slots` are as their owner sees them. Capacity withheld for claims stays withheld.
    fn with_restored<R>(&mut self, slots: &[Slot], look: impl FnOnce(&mut Self) -> R) -> R {
        for &slot in slots {
            self.restore_reserved(slot);
        }
        let seen = look(self);
        for &slot in slots {
            self.withhold_reserved(slot);
        }
        seen
    }

    fn hybrid_of(&mut self, fitting: &[Slot], request: &PlacementRequest) -> Option<Slot> {
        let settings = self.hybrid_settings;
        let mut places: Vec<Place> = self.with_restored(fitting, |shard| {
            let place = |slot: Slot| {
                let (score, ordinal) = hybrid_place(&shard.nodes, settings, slot)?;
                Some((score, ordinal, slot))
            };
            fitting.iter().copied().filter_map(place).collect()
        });
        places.sort_unstable();
        let preferred = self.preferred_slots(request).first().copied();
        let preferred = places.iter().copied().find(|&(.., slot)| Some(slot) == preferred);
        let drawn_from = settings.drawn_from(self.nodes.len());
        draw_of(&places, preferred, drawn_from, &mut self.policy_state.rng)
    }

    /// Chooses by fragmentation. During the search, the fitting nodes are rated as their owner sees them.
    fn least_fragmented_of(
        &mut self,
        fitting: &[Slot],
        request: &PlacementRequest,
    ) -> Option<(Slot, GpuAssignment)> {
        self.fragmentation.handle_arrival(request, &self.nodes);
        let found = self.with_restored(fitting, |shard| {
            for &slot in fitting {
                shard.fragmentation.touch(slot);
            }
            let Self { nodes, fragmentation, visits, .. } = shard;
            let among = Among::Few(fitting);
            let slot = fragmentation.choose(request, among, &*nodes, |_| Some(Rank::EQUAL), visits)?;
            Some((slot, fragmentation.instances(request, slot, &*nodes)))
        });
        for &slot in fitting {
            self.fragmentation.touch(slot);
        }
        found
    }
}
