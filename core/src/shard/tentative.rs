//! What a planner does with its private copy of a shard: it finds and takes by the code that
//! places, without a record, and makes nodes again what the shard's view says of them.

use std::sync::Arc;

use super::ranked::Eligibility;
use super::{Shard, ShardConfig, Slot};
use crate::ids::NodeId;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy, Refusal};
use crate::resource::{Amount, Demand, GpuAssignment};
use crate::view::View;

/// What was taken tentatively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tentative {
    pub(crate) slot: Slot,
    pub(crate) node: NodeId,
    pub(crate) gpus: GpuAssignment,
}

impl Shard {
    /// This replica follows `view` from now on; nodes that changed are to be [renewed](Self::renew).
    pub(crate) fn follow_view(&mut self, view: &Arc<View>) {
        self.rebase(view);
    }

    /// Makes a node what the view says of it that the replica follows.
    pub(crate) fn renew(&mut self, slot: Slot) {
        let view = Arc::clone(self.base().expect("a replica that follows a view"));
        self.apply_image(slot, &view.hot(slot).copied().unwrap_or_default(), view.cold(slot));
        self.forget_planned(slot);
    }

    /// Takes what `request` asks where its policy says, and records no allocation.
    pub(crate) fn take_tentatively(&mut self, request: &PlacementRequest) -> Option<Tentative> {
        let (slot, (gpus, _), _) = self.take_unrecorded(request)?;
        Some(Tentative { slot, node: self.nodes.hot(slot).id, gpus })
    }

    /// The node where `request` would be placed; fragmentation is not looked at.
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

    /// Takes `demand` on that node, if it is ready and fits: the very instances, if some are given
    /// and free. The index follows with [`follow_tentative`](Self::follow_tentative).
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

    /// What is kept of the books of a node follows them.
    pub(crate) fn follow_tentative(&mut self, slot: Slot) {
        self.follow_books(slot);
    }

    /// Whether new work may be put on the node now, as far as labels, taints and names go; for the
    /// first of its alternatives that holds.
    pub(crate) fn may_hold(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        let named =
            request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&self.nodes.hot(slot).id).is_ok());
        named
            && match self.scope(request) {
                Eligibility::Plain(set) => set.is_none_or(|set| self.selectors.at(set).contains(slot)),
                Eligibility::Ranked(id) => self.rankings.at(id).rank(slot).is_eligible(),
            }
    }

    /// Takes a ready node of a replica out of every search, until [`unhide`](Self::unhide).
    pub(crate) fn hide(&mut self, slot: Slot) {
        if self.is_ready(slot) {
            self.nodes.set_state(slot, NodeState::Draining);
            self.follow_index(slot);
            self.fragmentation.touch(slot);
            self.follow_hybrid(slot);
        }
    }

    /// Puts a node that was hidden back into every search.
    pub(crate) fn unhide(&mut self, slot: Slot) {
        if self.nodes.room(slot).state == Some(NodeState::Draining) {
            self.nodes.set_state(slot, NodeState::Ready);
            self.follow_index(slot);
            self.fragmentation.touch(slot);
            self.follow_hybrid(slot);
        }
    }

    /// What a shard like this one is made with.
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

    /// Why it would refuse `request`.
    pub(crate) fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let scope = self.scope(request);
        self.explain(request, scope)
    }

    /// Of a node by its slot: its id, if one is there.
    pub(crate) fn node_at(&self, slot: Slot) -> Option<NodeId> {
        self.nodes.room(slot).state.map(|_| self.nodes.hot(slot).id)
    }

    /// Where a node stands.
    pub(crate) fn slot_of(&self, node: NodeId) -> Option<Slot> {
        self.nodes.slot(node)
    }

    /// Whether the node takes new work.
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        self.nodes.room(slot).state == Some(NodeState::Ready)
    }

    /// The value of a label of each node, whatever its state.
    pub(crate) fn label_values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (Slot, &'a str)> {
        self.nodes
            .iter()
            .filter_map(move |(slot, _, cold)| Some((slot, cold.registration.spec.labels.get(key)?)))
    }

    /// Whether a node takes new work and `request` may stand there as far as labels and taints go.
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

    /// What is free on a node: cpu, memory and devices, in units.
    pub(crate) fn free_on(&self, slot: Slot) -> [i64; 3] {
        let room = self.nodes.room(slot);
        let gpus = &self.nodes.hot(slot).gpus;
        [room.cpu.units(), room.memory.units(), gpus.total_free()]
    }

    /// Whether what is free on the node suffices, whatever its state.
    pub(crate) fn has_room(&self, slot: Slot, demand: &Demand) -> bool {
        self.nodes.fits(slot, demand)
    }

    /// The value of a label of one node.
    pub(crate) fn label_of(&self, slot: Slot, key: &str) -> Option<&str> {
        self.nodes.cold(slot).registration.spec.labels.get(key)
    }

    /// Whether the node could hold `demand` if nothing ran there.
    pub(crate) fn could_hold(&self, slot: Slot, demand: &Demand) -> bool {
        self.nodes.could_fit(slot, demand)
    }

    /// The ready nodes, each with the part of its cpu, memory and GPUs that is free, in 1/1000 of each.
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
