//! Operations of a planner on its private copy of a shard. They search and take with the shard's own code,
//! without recording allocations, and reset nodes to the shard's view.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::ids::{AllocationId, NodeId};
use crate::index::Slot;
use crate::limits::{RANKINGS_KEPT_MAX, SELECTORS_KEPT_MAX};
use crate::node::{NodeSpec, NodeState};
use crate::request::{PlacementRequest, Policy, Refusal};
use crate::resource::{Amount, Demand, GpuAssignment};
use crate::shard::Shard;
use crate::shard::books::Dirty;
use crate::shard::choose::{Choice, Eligibility, Eligible};
use crate::view::{ColdImage, HotImage, View};

/// The result of taking tentatively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tentative {
    pub(crate) slot: Slot,
    pub(crate) node: NodeId,
    pub(crate) gpus: GpuAssignment,
}

impl Shard {
    /// Switches this replica to `view`. The caller must [renew](Self::renew) the nodes that changed.
    pub(crate) fn follow_view(&mut self, view: &Arc<View>) {
        self.rebase(view);
    }

    /// Resets a node to the replica's view.
    pub(crate) fn renew(&mut self, slot: Slot) {
        let view = Arc::clone(self.base().expect("a replica that follows a view"));
        let image = view.hot(slot).copied().unwrap_or_default();
        self.apply_image(slot, &image, view.cold(slot));
        let shown = image.state.map(|_| image.id);
        assert!(
            !self.books.nodes.is_there(slot) || shown == self.node_at(slot),
            "slot {slot} is of another node"
        );
        self.forget_planned(slot);
    }

    /// Takes what `request` asks according to its policy, without recording an allocation.
    pub(crate) fn take_tentatively(&mut self, request: &PlacementRequest) -> Option<Tentative> {
        let (Choice { slot, .. }, (gpus, _)) = self.take_unrecorded(request)?;
        Some(Tentative { slot, node: self.books.nodes.hot(slot).id, gpus })
    }

    /// Returns the node where `request` would be placed. Ignores fragmentation.
    pub(crate) fn find_tentatively(&mut self, request: &PlacementRequest) -> Option<Slot> {
        if request.policy.is_fragmentation_aware() {
            let request = PlacementRequest { policy: Policy::BestFit, ..request.clone() };
            return self.find_tentatively(&request);
        }
        let scope = self.choose.eligibility(&self.books, request);
        let slot = self.choose.find(&self.books, request, scope)?.slot;
        assert!(self.is_ready(slot), "a node was found that takes no new work");
        assert!(self.has_room(slot, &request.demand), "a node was found that does not fit");
        Some(slot)
    }

    /// Takes `demand` on a node if the node is ready and fits. Uses `gpus` if these instances are given and free.
    pub(crate) fn take_on(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: Option<GpuAssignment>,
    ) -> Option<Tentative> {
        assert!(self.replica.is_some(), "only a replica takes what it does not record");
        if !self.is_ready(slot) || !self.has_room(slot, demand) {
            return None;
        }
        let hot = self.books.nodes.hot(slot);
        let node = hot.id;
        let free =
            |gpus: &GpuAssignment| gpus.instances().all(|instance| hot.gpus.free(instance) >= gpus.part);
        let choice = Choice { slot, gpus: gpus.filter(free), alternative: 0, is_own: false };
        let (gpus, _) = self.books.take(demand, &choice);
        self.follow(Dirty::changed(slot));
        Some(Tentative { slot, node, gpus })
    }

    /// Returns whether labels, taints and names allow new work of `request` on the node, with its selector or a
    /// fallback.
    pub(crate) fn may_hold(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        let scope = self.choose.eligibility(&self.books, request);
        self.choose.eligible(&self.books, request, scope).allows(slot)
    }

    /// Removes a ready node of a replica from every search, until [`unhide`](Self::unhide).
    pub(crate) fn hide(&mut self, slot: Slot) {
        self.change_readiness(slot, NodeState::Ready, NodeState::Draining);
    }

    /// Adds a hidden node to every search again.
    pub(crate) fn unhide(&mut self, slot: Slot) {
        self.change_readiness(slot, NodeState::Draining, NodeState::Ready);
    }

    fn change_readiness(&mut self, slot: Slot, from: NodeState, to: NodeState) {
        assert!(self.replica.is_some(), "only a replica shows nodes in other states");
        if self.books.nodes.room(slot).state == Some(from) {
            let dirty = self.books.show_state(slot, to);
            self.follow(dirty);
        }
    }

    /// Frees a node of a replica of its reservation and of all allocations in the view except `kept`. Returns the
    /// images of the node without them, which the caller must [apply](Self::apply_image), and their number.
    pub(crate) fn empty_tentatively(
        &mut self,
        slot: Slot,
        kept: &BTreeSet<AllocationId>,
    ) -> (HotImage, ColdImage, usize) {
        let view = Arc::clone(self.base().expect("a replica that follows a view"));
        let ended: Vec<_> = view.allocations(slot).filter(|of_node| !kept.contains(&of_node.id)).collect();
        self.books.empty(slot, &ended);
        let registration = view.cold(slot).map(|cold| &cold.registration);
        let cold = self.cold_image(slot, registration).expect("a registered node");
        (self.hot_image(slot), cold, ended.len())
    }

    /// Returns the refusal of `request`.
    pub(crate) fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let scope = self.choose.eligibility(&self.books, request);
        self.explain(request, scope)
    }

    /// Returns the id of the node in a slot, if any.
    pub(crate) fn node_at(&self, slot: Slot) -> Option<NodeId> {
        self.books.nodes.room(slot).state.map(|_| self.books.nodes.hot(slot).id)
    }

    /// Returns the slot of a node.
    pub(crate) fn slot_of(&self, node: NodeId) -> Option<Slot> {
        self.books.nodes.slot(node)
    }

    /// Returns whether the node takes new work.
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        self.books.nodes.room(slot).state == Some(NodeState::Ready)
    }

    /// Returns the value of a label for each node that has it, regardless of the node's state.
    pub(crate) fn label_values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (Slot, &'a str)> {
        self.books
            .nodes
            .iter()
            .filter_map(move |(slot, _, cold)| Some((slot, cold.registration.spec.labels.get(key)?)))
    }

    /// Returns the specs of all nodes, regardless of their state.
    pub(crate) fn specs(&self) -> impl Iterator<Item = (Slot, NodeId, &NodeSpec)> {
        let nodes = self.books.nodes.iter();
        nodes.map(|(slot, _, cold)| (slot, self.books.nodes.hot(slot).id, &cold.registration.spec))
    }

    /// Returns itself with the rule of labels, taints and names for `request`.
    fn eligible_by_names<'a>(&'a mut self, request: &'a PlacementRequest) -> (&'a Self, Eligible<'a>) {
        let scope = self.choose.eligibility(&self.books, request);
        let this = &*self;
        (this, this.choose.eligible(&this.books, request, scope))
    }

    /// Returns a predicate for nodes that the labels, taints and names allow for `request`, regardless of their state.
    pub(crate) fn allowed<'a>(
        &'a mut self,
        request: &'a PlacementRequest,
    ) -> impl Fn(Slot) -> bool + use<'a> {
        let (_, eligible) = self.eligible_by_names(request);
        move |slot| eligible.allows(slot)
    }

    /// Returns a predicate for nodes that take new work and that the labels, taints and names allow for `request`.
    pub(crate) fn eligible<'a>(
        &'a mut self,
        request: &'a PlacementRequest,
    ) -> impl Fn(Slot) -> bool + use<'a> {
        let (this, eligible) = self.eligible_by_names(request);
        move |slot| this.is_ready(slot) && eligible.allows(slot)
    }

    /// Returns what is free on a node: cpu, memory and GPUs, in units.
    pub(crate) fn free_on(&self, slot: Slot) -> [i64; 3] {
        let room = self.books.nodes.room(slot);
        let gpus = &self.books.nodes.hot(slot).gpus;
        [room.cpu.units(), room.memory.units(), gpus.total_free()]
    }

    /// Returns whether `demand` fits what is free on the node, regardless of its state.
    pub(crate) fn has_room(&self, slot: Slot, demand: &Demand) -> bool {
        self.books.nodes.fits(slot, demand)
    }

    /// Returns the value of a label of one node.
    pub(crate) fn label_of(&self, slot: Slot, key: &str) -> Option<&str> {
        self.books.nodes.cold(slot).registration.spec.labels.get(key)
    }

    /// Returns whether the node could hold `demand` if it were empty.
    pub(crate) fn could_hold(&self, slot: Slot, demand: &Demand) -> bool {
        self.books.nodes.could_fit(slot, demand)
    }

    /// Returns the ready nodes, each with the sum of the free shares of its cpu, memory and GPUs, in 1/1000 of
    /// each.
    pub(crate) fn free_shares(&self) -> impl Iterator<Item = (Slot, u64)> {
        let part = |free: Amount, of: Amount| match of.units() {
            0 => 0,
            total => u64::try_from(i128::from(free.units()) * 1000 / i128::from(total)).unwrap_or(0),
        };
        self.books.nodes.iter().filter(|&(slot, ..)| self.is_ready(slot)).map(move |(slot, _, cold)| {
            let room = self.books.nodes.room(slot);
            let spec = &cold.registration.spec;
            let gpus = &self.books.nodes.hot(slot).gpus;
            let free = Amount::from_parts((0..spec.gpus).map(|instance| u32::from(gpus.free(instance))));
            let gpus = part(free, Amount::whole(u32::from(spec.gpus)));
            (slot, part(room.cpu, spec.cpu) + part(room.memory, spec.memory) + gpus)
        })
    }

    /// Returns the specs of all ready nodes.
    pub(crate) fn ready_specs(&self) -> impl Iterator<Item = &NodeSpec> {
        let ready = self.books.nodes.iter().filter(|&(slot, ..)| self.is_ready(slot));
        ready.map(|(_, _, cold)| &cold.registration.spec)
    }

    /// Visits the nodes in `slots`, in any state. The bits passed to `visit` say which requests the node could
    /// hold, one at a time, if it were empty and its labels, taints and name allow it. Returns whether more
    /// slots follow.
    ///
    /// # Panics
    /// If there are more than 64 requests.
    pub(crate) fn capable(
        &mut self,
        requests: &[&PlacementRequest],
        slots: Range<Slot>,
        mut visit: impl FnMut(Slot, &NodeSpec, u64),
    ) -> bool {
        const { assert!(RANKINGS_KEPT_MAX >= 64 && SELECTORS_KEPT_MAX >= 64, "kept while they are looked at") };
        assert!(requests.len() <= 64, "a bit for each of {} requests", requests.len());
        let scopes: Vec<Eligibility> =
            requests.iter().map(|request| self.choose.eligibility(&self.books, request)).collect();
        let pairs = requests.iter().zip(scopes);
        let eligible: Vec<(&PlacementRequest, Eligible<'_>)> = pairs
            .map(|(&request, scope)| (request, self.choose.eligible(&self.books, request, scope)))
            .collect();
        let nodes = &self.books.nodes;
        let end = slots.end.min(nodes.slots());
        for slot in slots.start..end {
            if !nodes.is_there(slot) {
                continue;
            }
            let mut bits = 0;
            for (at, (request, eligible)) in eligible.iter().enumerate() {
                bits |= u64::from(eligible.allows(slot) && nodes.could_fit(slot, &request.demand)) << at;
            }
            visit(slot, &nodes.cold(slot).registration.spec, bits);
        }
        end < nodes.slots()
    }
}
