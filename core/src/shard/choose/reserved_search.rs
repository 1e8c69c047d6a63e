//! The search for an owner's request among the nodes reserved for it, as the owner sees them. It supports every
//! policy and prefers nodes by rank, like a search among all nodes.

use std::collections::BTreeSet;

use super::fragmented::AsOwner;
use super::hybrid_order::{Place, draw_of};
use super::ranked::{first_preferred, hybrid_place, preferred_slots};
use super::{Choice, Choose, Eligibility, Eligible};
use crate::books::RESERVED;
use crate::fragmentation::Among;
use crate::ids::OwnerId;
use crate::index::Candidates;
use crate::index::Slot;
use crate::limits::CANDIDATE_WALK_MAX;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy, Rank};
use crate::resource::GpuAssignment;
use crate::shard::books::Books;

/// A node, and the GPUs if the policy chose them.
type Found = (Slot, Option<GpuAssignment>);

/// The nodes of an owner, as a search for its request looks at them.
struct Search<'a> {
    books: &'a Books,
    own: &'a BTreeSet<Slot>,
    request: &'a PlacementRequest,
    scope: Eligibility,
    /// The rank that is searched now. `None` if the labels and taints decide nothing but eligibility.
    rank: Option<Rank>,
}

impl Search<'_> {
    /// Returns whether the node can be chosen, and has the rank that is searched.
    fn accepts(&self, eligible: &Eligible<'_>, slot: Slot) -> bool {
        let rank = eligible.rank(slot);
        let nodes = &self.books.nodes;
        self.rank.map_or_else(|| rank.is_eligible(), |searched| rank == searched)
            && nodes.state(slot) == NodeState::Ready
            && eligible.is_candidate(slot)
            && self.books.fits(slot, RESERVED, &self.request.demand)
    }
}

impl Choose {
    /// Returns the node that the request's policy chooses among those reserved for `owner`. Looks at each of
    /// them at most once per rank, and at no other node.
    pub(super) fn choose_reserved(
        &mut self,
        books: &Books,
        owner: OwnerId,
        request: &PlacementRequest,
        scope: Eligibility,
    ) -> Option<Choice> {
        let own = books.reservations.of_owner(owner)?;
        assert!(!own.is_empty(), "an owner is known who has no node");
        let mut search = Search { books, own, request, scope, rank: None };
        let found = match scope {
            Eligibility::Plain(_) => self.find_reserved(&search),
            Eligibility::Ranked(_) => {
                let eligible = self.eligible(books, request, scope);
                let ranks: BTreeSet<Rank> = own.iter().map(|&slot| eligible.rank(slot)).collect();
                let preferred = self.own_preferred(&search);
                ranks.into_iter().filter(|rank| rank.is_eligible()).find_map(|rank| {
                    if let Some((group, slot)) = preferred
                        && group <= rank.group()
                    {
                        return self.take_preferred(&search, slot);
                    }
                    search.rank = Some(rank);
                    self.find_reserved(&search)
                })
            }
        };
        let (slot, gpus) = found?;
        assert!(own.contains(&slot), "a node was chosen that is not reserved for the owner");
        assert!(books.nodes.takes_work(slot), "a node was chosen that takes no new work");
        Some(Choice { slot, gpus, alternative: self.alternative(scope, slot), is_own: true })
    }

    /// Returns the first of the fitting preferred nodes with the smallest group. The hybrid policy handles them
    /// separately.
    fn own_preferred(&self, search: &Search<'_>) -> Option<(u16, Slot)> {
        let &Search { books, own, request, scope, .. } = search;
        if request.policy == Policy::Hybrid {
            return None;
        }
        let eligible = self.eligible(books, request, scope);
        let mut preferred = preferred_slots(books, request);
        let fitting =
            preferred.by_ref().filter(|slot| own.contains(slot) && search.accepts(&eligible, *slot));
        first_preferred(fitting, &eligible)
    }

    /// Returns a preferred node. The policy chooses only the GPUs, so its cursor does not move.
    fn take_preferred(&mut self, search: &Search<'_>, slot: Slot) -> Option<Found> {
        assert!(search.own.contains(&slot), "a preferred node is not reserved for the owner");
        if !search.request.policy.is_fragmentation_aware() {
            return Some((slot, None));
        }
        let own = BTreeSet::from([slot]);
        self.find_reserved(&Search { own: &own, rank: None, ..*search })
    }

    fn find_reserved(&mut self, search: &Search<'_>) -> Option<Found> {
        let &Search { books, own, request, scope, .. } = search;
        let few = own.len() <= CANDIDATE_WALK_MAX;
        let policy = request.policy;
        let listed = few || policy == Policy::Hybrid || policy.is_fragmentation_aware();
        if !listed {
            return self.first_of(search, None).map(|slot| (slot, None));
        }
        self.visits.nodes += own.len() as u64;
        let eligible = self.eligible(books, request, scope);
        let fitting: Vec<Slot> =
            own.iter().copied().filter(|&slot| search.accepts(&eligible, slot)).collect();
        if fitting.is_empty() {
            return None;
        }
        if policy.is_fragmentation_aware() {
            return self.least_fragmented_of(search, &fitting);
        }
        let found = match policy {
            Policy::Hybrid => self.hybrid_of(search, &fitting),
            _ => self.first_of(search, Some(&fitting)),
        };
        assert!(found.is_some(), "a reserved node fits, and none is chosen");
        found.map(|slot| (slot, None))
    }

    /// Applies a policy of the index to `fitting`. If the owner has many nodes, searches the tree of all
    /// reserved nodes instead.
    fn first_of(&mut self, search: &Search<'_>, fitting: Option<&[Slot]>) -> Option<Slot> {
        let &Search { books, own, request, scope, .. } = search;
        assert!(own.len() <= self.reserved.len(), "the tree of reserved nodes lacks some of the owner");
        let asked = self.reserved.geometry().asked(&request.demand);
        let order = self.order_of(books, request);
        let Self { selectors, rankings, policy_state, visits, reserved, .. } = self;
        let eligible = Eligible::of(selectors, rankings, books, request, scope);
        let candidates = fitting.map_or(Candidates::All, Candidates::Walk);
        let listed = fitting.is_some();
        let accept = |slot: Slot| listed || own.contains(&slot) && search.accepts(&eligible, slot);
        let policy = request.policy;
        reserved.select_in_order(order, policy, &asked, candidates, policy_state, visits, accept)
    }

    fn hybrid_of(&mut self, search: &Search<'_>, fitting: &[Slot]) -> Option<Slot> {
        let &Search { books, request, .. } = search;
        let settings = self.hybrid_settings;
        let place = |&slot: &Slot| {
            let free = books.free(slot, RESERVED);
            let (score, ordinal) = hybrid_place(&books.nodes, settings, slot, &free.room)?;
            Some((score, ordinal, slot))
        };
        let mut places: Vec<Place> = fitting.iter().filter_map(place).collect();
        assert!(places.len() == fitting.len(), "a node fits that takes no new work");
        places.sort_unstable();
        let preferred = preferred_slots(books, request).next();
        let preferred = places.iter().copied().find(|&(.., slot)| Some(slot) == preferred);
        let drawn_from = settings.drawn_from(books.nodes.len());
        draw_of(&places, preferred, drawn_from, &mut self.policy_state.rng)
    }

    /// Chooses by fragmentation. The fitting nodes are rated as their owner sees them.
    fn least_fragmented_of(&mut self, search: &Search<'_>, fitting: &[Slot]) -> Option<Found> {
        let &Search { books, request, .. } = search;
        self.fragmentation.handle_arrival(request, &books.nodes);
        let free = fitting.iter().map(|&slot| (slot, books.free(slot, RESERVED))).collect();
        let nodes = AsOwner { nodes: &books.nodes, free };
        // What is known of these nodes is known of them as others see them.
        fitting.iter().for_each(|&slot| self.fragmentation.touch(slot));
        let among = Among::Few(fitting);
        let equal = |_| Some(Rank::EQUAL);
        let slot = self.fragmentation.choose(request, among, &nodes, equal, &mut self.visits);
        let found = slot.map(|slot| (slot, Some(self.fragmentation.instances(request, slot, &nodes))));
        fitting.iter().for_each(|&slot| self.fragmentation.touch(slot));
        let is_fitting = slot.is_none_or(|slot| fitting.binary_search(&slot).is_ok());
        assert!(is_fitting, "a node was chosen that does not fit");
        found
    }
}
