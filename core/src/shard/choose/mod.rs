//! The choice of a node. Every placement, plan and reservation of a shard is decided here.
//!
//! [`Choose`] has the structures of searches: indexes, candidate sets, rankings, orders of policies, and measures of
//! fragmentation. It reads the books and never changes them. [`choose`](Choose::choose) is its only answer to where
//! a request is placed, and [`Eligible`] is the only rule for the nodes that a request may use.

mod check;
mod eligible;
mod explain;
mod fragmented;
mod granularity;
mod hybrid;
mod hybrid_order;
mod label_index;
mod named;
mod node_set;
mod order;
mod rank_parts;
mod ranked;
mod rankings;
mod reserved_search;
mod selectors;

pub(crate) use eligible::{Eligibility, Eligible};
pub(crate) use explain::Page;
pub use hybrid::{HybridSettings, WHOLE as HYBRID_WHOLE};
pub(crate) use label_index::LabelIndex;

use crate::fragmentation::Fragmentation;
use crate::ids::Ordinal;
use crate::index::{Candidates, DistBuckets, Geometry, Marks, Meter, PolicyState, Slot, Visits};
use crate::memory::Per;
use crate::node::NodeSpec;
use crate::request::PlacementRequest;
use crate::resource::GpuAssignment;
use crate::rng::Rng;
use crate::shard::books::{Books, Dirty, Room};
use granularity::Granularity;
use hybrid_order::HybridOrder;
use rankings::Rankings;
use selectors::SelectorSets;

/// A node for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) slot: Slot,
    /// The GPU instances, if the policy chooses them. Otherwise the books choose them.
    pub(crate) gpus: Option<GpuAssignment>,
    /// The selector that matches: 0 for the request's own, 1 for the first fallback, and so on.
    pub(crate) alternative: u8,
    /// The node is reserved for the owner of the request, and the amounts come out of the reservation.
    pub(crate) is_own: bool,
}

/// The structures of searches.
pub(crate) struct Choose {
    /// The nodes that take work, at what they have available.
    index: DistBuckets,
    /// Every registered node at its capacity. Answers whether any node could ever hold a request.
    capacities: DistBuckets,
    /// Reserved nodes as their owners see them.
    reserved: DistBuckets,
    selectors: SelectorSets,
    rankings: Rankings,
    /// Built when the policy is first used.
    hybrid: Option<HybridOrder>,
    hybrid_settings: HybridSettings,
    fragmentation: Fragmentation,
    policy_state: PolicyState,
    granularity: Option<Box<Granularity>>,
    visits: Visits,
}

impl Choose {
    /// Creates the structures of a shard without nodes. `seed` is the seed of random policies.
    pub(crate) fn new(geometry: &Geometry, hybrid_settings: HybridSettings, seed: u64) -> Self {
        Self {
            index: DistBuckets::new(geometry.clone()),
            capacities: DistBuckets::new(geometry.clone()),
            reserved: DistBuckets::new(geometry.clone()),
            selectors: SelectorSets::default(),
            rankings: Rankings::default(),
            hybrid: None,
            hybrid_settings,
            fragmentation: Fragmentation::default(),
            policy_state: PolicyState { next_fit: Ordinal(0), rng: Rng::new(seed) },
            granularity: Granularity::of(geometry),
            visits: Visits::default(),
        }
    }

    /// Chooses a node that fits `request` now. An owner's reserved nodes come before all others.
    #[inline(always)]
    pub(crate) fn choose(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        scope: Eligibility,
    ) -> Option<Choice> {
        if let Some(owner) = request.owner
            && let Some(choice) = self.choose_reserved(books, owner, request, scope)
        {
            return Some(choice);
        }
        match scope {
            Eligibility::Plain(set) if request.policy.is_fragmentation_aware() => {
                self.choose_least_fragmented(books, request, set)
            }
            Eligibility::Ranked(id) if request.policy.is_fragmentation_aware() => {
                self.choose_least_fragmented_ranked(books, request, id)
            }
            _ => self.find(books, request, scope),
        }
    }

    /// Chooses a node by a policy of the index or by the hybrid policy.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        scope: Eligibility,
    ) -> Option<Choice> {
        let slot = match scope {
            Eligibility::Plain(set) => {
                let mut visits = self.visits;
                let found = self.find_plain(books, request, set, &mut visits);
                self.visits = visits;
                found
            }
            Eligibility::Ranked(id) => self.find_ranked(books, request, id),
        }?;
        let alternative = self.alternative(scope, slot);
        Some(Choice { slot, gpus: None, alternative, is_own: false })
    }

    /// Returns the number of the selector by which a node was chosen.
    #[inline]
    fn alternative(&self, scope: Eligibility, slot: Slot) -> u8 {
        match scope {
            Eligibility::Plain(_) => 0,
            Eligibility::Ranked(id) => self.rankings.at(id).rank(slot).alternative(),
        }
    }

    /// Returns the node that the request's policy chooses among those that fit now. `set` is the candidate set
    /// of its selector.
    #[inline(always)]
    pub(crate) fn find_plain(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        set: Option<selectors::SetId>,
        visits: &mut impl Meter,
    ) -> Option<Slot> {
        if set.is_none() && request.candidates.is_none() {
            return self.find_anywhere(books, request, visits);
        }
        self.find_in(books, request, set, visits)
    }

    /// The same among all nodes.
    #[inline(always)]
    fn find_anywhere(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        visits: &mut impl Meter,
    ) -> Option<Slot> {
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(books, request);
        self.index.select_in_order(
            order,
            request.policy,
            &asked,
            Candidates::All,
            &mut self.policy_state,
            visits,
            |slot| books.nodes.fits(slot, &request.demand),
        )
    }

    /// The same among the members of a set, among named candidates, or both.
    #[inline(never)]
    fn find_in(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        set: Option<selectors::SetId>,
        visits: &mut impl Meter,
    ) -> Option<Slot> {
        if let Some(found) = self.find_among_many(books, request, set, visits) {
            return found;
        }
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(books, request);
        let named = books.nodes.named(request);
        if named.is_none()
            && let Some(found) = set.and_then(|set| self.find_in_unmarked(books, request, set, visits))
        {
            return found;
        }
        let nodes = &books.nodes;
        let scope = Eligibility::Plain(set);
        let eligible = Eligible::of(&self.selectors, &self.rankings, books, request, scope);
        let set = set.map(|set| self.selectors.at(set));
        let candidates = match (&named, set) {
            (Some(named), Some(set)) => match set.few() {
                Some(few) if few.len() < named.len() => Candidates::Walk(few),
                _ => Candidates::Walk(named),
            },
            (Some(named), None) => Candidates::Walk(named),
            (None, Some(set)) => set.candidates(),
            (None, None) => unreachable!("all nodes are searched in another way"),
        };
        let demand = &request.demand;
        let found = self.index.select_in_order(
            order,
            request.policy,
            &asked,
            candidates,
            &mut self.policy_state,
            visits,
            |slot| nodes.fits(slot, demand) && eligible.allows(slot),
        );
        let is_usable = found.is_none_or(|slot| nodes.takes_work(slot));
        assert!(is_usable, "the index has a node that takes no new work");
        found
    }

    /// Returns whether anything other than the first tree of the index follows the nodes.
    pub(crate) fn has_rare(&self) -> bool {
        let is_followed = self.fragmentation.is_in_use() | self.hybrid.is_some() | !self.reserved.is_empty();
        is_followed | self.index.has_more_trees()
    }

    /// Brings the searches up to date with a node that has `room` after a placement or a release of the usual kind. Without
    /// `RARE`, see [`has_rare`](Self::has_rare).
    // Always inlined, so that what the node has stays in registers.
    #[inline(always)]
    pub(crate) fn follow_plain<const RARE: bool>(&mut self, books: &Books, slot: Slot, room: &Room) {
        // Custom kinds are not asked for: an index with these follows in another way.
        if !(room.takes_work() && self.index.follow::<RARE>(slot, &room.available())) {
            self.follow_index_any(books, slot);
        }
        if RARE {
            self.follow_rare(books, slot);
        }
    }

    /// Brings the searches up to date with the books of a node.
    #[inline(never)]
    pub(crate) fn follow(&mut self, books: &Books, Dirty { slot, .. }: Dirty) {
        self.follow_plain::<true>(books, slot, books.nodes.room(slot));
    }

    /// Follows a node in everything but the index.
    #[inline]
    fn follow_rare(&mut self, books: &Books, slot: Slot) {
        self.fragmentation.touch(slot);
        self.follow_hybrid(books, slot);
        if !self.reserved.is_empty() || !books.reservations.is_empty() {
            self.follow_reserved(books, slot);
        }
    }

    /// Updates the index for a node. The index contains the nodes that are ready and below the limit of allocations,
    /// at what they have available. So searches do not walk over full nodes. A node that enters or leaves it comes here, and
    /// any node where the index has custom kinds.
    #[inline(never)]
    fn follow_index_any(&mut self, books: &Books, slot: Slot) {
        let nodes = &books.nodes;
        match (self.index.contains(slot), nodes.takes_work(slot)) {
            (true, true) => self.index.update_any(slot, nodes.available(slot)),
            (true, false) => self.index.remove(slot),
            (false, true) => {
                let marks = self.marks_of(slot);
                self.index.insert(slot, nodes.ordinal(slot), &nodes.available(slot), marks);
            }
            (false, false) => {}
        }
        assert!(self.index.len() <= self.capacities.len(), "the index has a node without a capacity");
    }

    #[inline(never)]
    fn follow_reserved(&mut self, books: &Books, slot: Slot) {
        let available = books.available_to_owner(slot);
        match (self.reserved.contains(slot), available) {
            (true, Some(available)) => self.reserved.update(slot, &available),
            (true, None) => self.reserved.remove(slot),
            (false, Some(available)) => {
                self.reserved.insert(slot, books.nodes.ordinal(slot), &available, Marks::NONE);
            }
            (false, None) => {}
        }
        assert!(self.reserved.len() <= self.capacities.len(), "a reserved node has no capacity");
    }

    /// Returns the marks that a node must have.
    fn marks_of(&self, slot: Slot) -> Marks {
        self.rankings.marks_of(slot, self.selectors.marks_of(slot))
    }

    /// Adds a node that was just registered.
    pub(crate) fn node_joined(&mut self, books: &Books, slot: Slot) {
        let nodes = &books.nodes;
        let spec = &nodes.cold(slot).registration.spec;
        self.fragmentation.touch_identity(slot);
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_joined(slot, spec);
        let marks = self.marks_of(slot);
        self.capacities.insert(slot, nodes.ordinal(slot), &nodes.capacity(slot), marks);
        assert!(self.capacities.len() == nodes.len(), "capacities are known of other nodes than there are");
        self.follow(books, Dirty::changed(slot));
        self.node_resized(books, None, Some(slot));
    }

    /// Follows a change of capacity, labels or taints. `former` is what the node had before.
    pub(crate) fn node_respecified(&mut self, books: &Books, slot: Slot, former: &NodeSpec) {
        let nodes = &books.nodes;
        let spec = &nodes.cold(slot).registration.spec;
        self.fragmentation.touch_identity(slot);
        self.selectors.node_labelled(slot, &spec.labels);
        self.rankings.node_changed(slot, spec);
        let marks = self.marks_of(slot);
        self.capacities.update(slot, &nodes.capacity(slot));
        self.capacities.mark(slot, marks);
        if self.index.contains(slot) {
            assert!(nodes.takes_work(slot), "the index has a node that takes no new work");
            self.index.mark(slot, marks);
        }
        self.node_resized(books, Some(former), Some(slot));
    }

    /// Removes a node that just left.
    pub(crate) fn node_left(&mut self, books: &Books, slot: Slot, former: &NodeSpec) {
        for tree in [&mut self.index, &mut self.reserved] {
            if tree.contains(slot) {
                tree.remove(slot);
            }
        }
        self.capacities.remove(slot);
        let nodes = books.nodes.len();
        assert!(self.capacities.len() == nodes, "capacities are known of others than the {nodes} nodes");
        self.selectors.node_removed(slot);
        self.rankings.node_removed(slot);
        self.leave_hybrid(slot);
        self.fragmentation.touch_identity(slot);
        self.node_resized(books, Some(former), None);
    }

    /// Returns an upper bound on what any node has available, in the configured geometry.
    pub(crate) fn highest(&mut self) -> crate::index::Coordinate {
        let mut highest = self.index.highest();
        if !self.reserved.is_empty() {
            highest = highest.highest(&self.reserved.highest());
        }
        match &self.granularity {
            None => highest,
            Some(granularity) => granularity.published(self.index.geometry(), highest),
        }
    }

    /// Returns the cursor and the random state of the policies.
    pub(crate) fn policy_state(&self) -> &PolicyState {
        &self.policy_state
    }

    /// Sets the cursor and the random state of the policies.
    pub(crate) fn set_policy_state(&mut self, state: PolicyState) {
        self.policy_state = state;
    }

    /// Returns the nodes by their labels.
    pub(crate) fn labels(&self) -> &LabelIndex {
        self.selectors.labels()
    }

    /// Returns the index of the registered nodes at their capacity.
    pub(crate) fn capacities_mut(&mut self) -> &mut DistBuckets {
        &mut self.capacities
    }

    /// Returns the cost of all searches so far.
    pub(crate) fn visits(&self) -> Visits {
        self.visits
    }

    /// Returns the nodes and words of nodes that were looked at to compute candidate sets and rankings.
    pub(crate) fn looked_at(&self) -> [u64; 2] {
        let [selectors, rankings] = [self.selectors.looked_at, self.rankings.looked_at];
        [selectors.nodes + rankings.nodes, selectors.words + rankings.words]
    }

    /// Returns the lines of a node in the index.
    pub(crate) fn lines(&self, slot: Slot) -> Option<crate::index::IndexLines> {
        self.index.lines(slot)
    }

    /// Reads what a release reads of a node's place in the index, only so that it is in the cache.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> u32 {
        self.index.prefetch(slot) as u32
    }

    /// Reports the bytes of each structure.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, Per, u64)) {
        add("index of what is free", Per::Node, self.index.bytes() as u64);
        add("index of capacities", Per::Node, self.capacities.bytes() as u64);
        add("index of reserved nodes", Per::Shard, self.reserved.bytes() as u64);
        add("nodes by their labels", Per::Node, self.selectors.labels().memory());
        add("candidate sets of selectors", Per::Shard, self.selectors.memory());
        add("nodes by their taints and GPUs", Per::Node, self.rankings.traits_memory());
        add("rankings of preferences", Per::Shard, self.rankings.memory());
        if let Some(order) = &self.hybrid {
            add("hybrid order", Per::Node, order.memory());
        }
        self.fragmentation.memory(add);
    }
}
