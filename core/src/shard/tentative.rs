//! Operations of a planner on its private copy of a shard. They search and take with the shard's own code,
//! without recording allocations, and reset nodes to the shard's view.

use std::sync::Arc;

use super::ranked::Eligibility;
use super::{Shard, ShardConfig, Slot};
use crate::ids::NodeId;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy, Refusal};
use crate::resource::{Amount, Demand, GpuAssignment};
use crate::view::View;

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
        self.apply_image(slot, &view.hot(slot).copied().unwrap_or_default(), view.cold(slot));
        self.forget_planned(slot);
    }

    /// Takes what `request` asks according to its policy, without recording an allocation.
    pub(crate) fn take_tentatively(&mut self, request: &PlacementRequest) -> Option<Tentative> {
        let (slot, (gpus, _), _) = self.take_unrecorded(request)?;
        Some(Tentative { slot, node: self.nodes.hot(slot).id, gpus })
    }

    /// Returns the node where `request` would be placed. Ignores fragmentation.
    pub(crate) fn find_tentatively(&mut self, request: &PlacementRequest) -> Option<Slot> {
        if request.policy.is_fragmentation_aware() {
            let request = PlacementRequest { policy: Policy::BestFit, ..request.clone() };
            return self.find_tentatively(&request);
        }
        match self.scope(request) {
            Eligibility::Plain(set) => self.find(request, set),
            Eligibility::Ranked(id) => self.find_ranked(request, id).0,
        }
    }

    /// Takes `demand` on a node if the node is ready and fits. Uses `gpus` if these instances are given and
    /// free. The caller updates the index with [`follow_tentative`](Self::follow_tentative).
    pub(crate) fn take_on(
        &mut self,
        slot: Slot,
        demand: &Demand,
        gpus: Option<GpuAssignment>,
    ) -> Option<Tentative> {
        if self.nodes.room(slot).state != Some(NodeState::Ready) || !self.nodes.fits(slot, demand) {
            return None;
        }
        let free = |gpus: &GpuAssignment| {
            gpus.instances().all(|instance| self.nodes.hot(slot).gpus.free(instance) >= gpus.part)
        };
        let (gpus, _) = match gpus.filter(free) {
            Some(gpus) => self.nodes.take_chosen(slot, demand, gpus),
            None => self.nodes.take(slot, demand),
        };
        Some(Tentative { slot, node: self.nodes.hot(slot).id, gpus })
    }

    /// Updates the structures that depend on a node's books.
    pub(crate) fn follow_tentative(&mut self, slot: Slot) {
        self.follow_books(slot);
    }

    /// Returns whether labels, taints and names allow new work of `request` on the node, with its selector or a
    /// fallback.
    pub(crate) fn may_hold(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        let named =
            request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&self.nodes.hot(slot).id).is_ok());
        named
            && match self.scope(request) {
                Eligibility::Plain(set) => set.is_none_or(|set| self.selectors.at(set).contains(slot)),
                Eligibility::Ranked(id) => self.rankings.at(id).rank(slot).is_eligible(),
            }
    }

    /// Removes a ready node of a replica from every search, until [`unhide`](Self::unhide).
    pub(crate) fn hide(&mut self, slot: Slot) {
        if self.is_ready(slot) {
            self.nodes.set_state(slot, NodeState::Draining);
            self.follow_index(slot);
            self.fragmentation.touch(slot);
            self.follow_hybrid(slot);
        }
    }

    /// Adds a hidden node to every search again.
    pub(crate) fn unhide(&mut self, slot: Slot) {
        if self.nodes.room(slot).state == Some(NodeState::Draining) {
            self.nodes.set_state(slot, NodeState::Ready);
            self.follow_index(slot);
            self.fragmentation.touch(slot);
            self.follow_hybrid(slot);
        }
    }

    /// Returns the configuration of a shard like this one.
    pub(crate) fn alike(&self) -> ShardConfig {
        ShardConfig {
            shard: self.id,
            incarnation: self.incarnation,
            partitions: self.sequences.iter().map(|(partition, _)| partition).collect(),
            geometry: self.index.geometry().clone(),
            seed: 0,
            hybrid: self.hybrid_settings,
        }
    }

    /// Returns the refusal of `request`.
    pub(crate) fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let scope = self.scope(request);
        self.explain(request, scope)
    }

    /// Returns the id of the node in a slot, if any.
    pub(crate) fn node_at(&self, slot: Slot) -> Option<NodeId> {
        self.nodes.room(slot).state.map(|_| self.nodes.hot(slot).id)
    }

    /// Returns the slot of a node.
    pub(crate) fn slot_of(&self, node: NodeId) -> Option<Slot> {
        self.nodes.slot(node)
    }

    /// Returns whether the node takes new work.
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        self.nodes.room(slot).state == Some(NodeState::Ready)
    }

    /// Returns the value of a label for each node that has it, regardless of the node's state.
    pub(crate) fn label_values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (Slot, &'a str)> {
        self.nodes
            .iter()
            .filter_map(move |(slot, _, cold)| Some((slot, cold.registration.spec.labels.get(key)?)))
    }

    /// Returns a predicate for nodes that take new work and that the labels and taints allow for `request`.
    pub(crate) fn eligible(&mut self, request: &PlacementRequest) -> impl Fn(Slot) -> bool + use<'_> {
        let scope = self.scope(request);
        let this = &*self;
        move |slot| {
            this.is_ready(slot)
                && match scope {
                    Eligibility::Plain(set) => set.is_none_or(|set| this.selectors.at(set).contains(slot)),
                    Eligibility::Ranked(id) => this.rankings.at(id).rank(slot).is_eligible(),
                }
        }
    }

    /// Returns what is free on a node: cpu, memory and GPUs, in units.
    pub(crate) fn free_on(&self, slot: Slot) -> [i64; 3] {
        let room = self.nodes.room(slot);
        let gpus = &self.nodes.hot(slot).gpus;
        [room.cpu.units(), room.memory.units(), gpus.total_free()]
    }

    /// Returns whether `demand` fits what is free on the node, regardless of its state.
    pub(crate) fn has_room(&self, slot: Slot, demand: &Demand) -> bool {
        self.nodes.fits(slot, demand)
    }

    /// Returns the value of a label of one node.
    pub(crate) fn label_of(&self, slot: Slot, key: &str) -> Option<&str> {
        self.nodes.cold(slot).registration.spec.labels.get(key)
    }

    /// Returns whether the node could hold `demand` if it were empty.
    pub(crate) fn could_hold(&self, slot: Slot, demand: &Demand) -> bool {
        self.nodes.could_fit(slot, demand)
    }

    /// Returns the ready nodes, each with the sum of the free shares of its cpu, memory and GPUs, in 1/1000 of
    /// each.
    pub(crate) fn free_shares(&self) -> impl Iterator<Item = (Slot, u64)> {
        let part = |free: Amount, of: Amount| match of.units() {
            0 => 0,
            total => u64::try_from(i128::from(free.units()) * 1000 / i128::from(total)).unwrap_or(0),
        };
        self.nodes.iter().filter(|&(slot, ..)| self.is_ready(slot)).map(move |(slot, _, cold)| {
            let room = self.nodes.room(slot);
            let spec = &cold.registration.spec;
            let gpus = &self.nodes.hot(slot).gpus;
            let free = Amount::from_parts((0..spec.gpus).map(|instance| u32::from(gpus.free(instance))));
            let gpus = part(free, Amount::whole(u32::from(spec.gpus)));
            (slot, part(room.cpu, spec.cpu) + part(room.memory, spec.memory) + gpus)
        })
    }
}
