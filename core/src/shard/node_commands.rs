//! Commands for nodes: they join, change, report, leave, and show their books.

use super::books::NodeBooks;
use super::{NodeChange, NodeRejection, NodeReply, Shard, UnknownNode};
use crate::ids::{AllocationId, NodeId, ResourceId};
use crate::index::Slot;
use crate::limits::{CUSTOM_RESOURCES_MAX, HOME_LOOKS_MAX};
use crate::node::{AgentReport, LifeEvent, NodeRegistration, NodeSpec, NodeState, Unhealthy, align_devices};
use crate::resource::{Amount, Demand, GPU_UNIT, ResourceKind};
use crate::view::EndCause;

impl Shard {
    /// Adds a node. A node that rejoins continues from its `former` version; otherwise versions start at 0.
    pub(super) fn handle_add_node(
        &mut self,
        registration: NodeRegistration,
        former: Option<u64>,
    ) -> NodeChange {
        let id = registration.id;
        let slot = self.add_node(registration);
        if let Some(version) = former {
            self.books.set_version(slot, version + 1);
        }
        assert!(self.books.slot(id).ok() == Some(slot), "node {id} was added and is not found");
        NodeChange::Added(id)
    }

    /// Applies an agent's report of capacity, labels and health. A lost node comes back with it.
    pub(super) fn handle_report(&mut self, node: NodeId, report: AgentReport) -> NodeReply {
        let slot = self.books.slot(node)?;
        let AgentReport { mut spec, boot, gpus } = report;
        let known = self.books.nodes.cold(slot).registration.agent.clone().unwrap_or_default();
        let (facts, unhealthy) = align_devices(&known, &boot, gpus);
        // Taints belong to the operator: an agent neither adds nor removes them. Capacity belongs to the agent:
        // amounts set by an operator last until the next report.
        spec.taints = self.books.nodes.cold(slot).registration.spec.taints.clone();
        spec.gpus = u8::try_from(facts.gpus.len()).expect("no more instances than a node can have");
        // A report without news changes neither the version nor the growth counter.
        if self.books.nodes.cold(slot).registration.spec != spec {
            self.handle_update_node(node, spec)?;
        }
        self.books.set_agent(slot, facts);
        self.set_health(slot, unhealthy);
        let reply = self.handle_life(node, LifeEvent::Report);
        let is_lost = matches!(self.books.nodes.state(slot), NodeState::Lost { .. });
        assert!(!is_lost, "node {node} reported and is still lost");
        reply
    }

    pub(super) fn handle_set_health(&mut self, node: NodeId, unhealthy: Unhealthy) -> NodeReply {
        let slot = self.books.slot(node)?;
        self.set_health(slot, unhealthy);
        Ok(NodeChange::Health(node))
    }

    fn set_health(&mut self, slot: Slot, unhealthy: Unhealthy) {
        let dirty = self.books.set_health(slot, unhealthy);
        self.follow(dirty);
    }

    pub(super) fn handle_life(&mut self, node: NodeId, event: LifeEvent) -> NodeReply {
        let slot = self.books.slot(node)?;
        let before = self.books.nodes.state(slot);
        let after = before.after(event).map_err(|illegal| NodeRejection::IllegalChange(node, illegal))?;
        if before != after {
            self.change_state(slot, after);
            self.books.bump_version(slot);
        }
        Ok(NodeChange::State(node, after))
    }

    /// Changes the state of a node.
    pub(super) fn change_state(&mut self, slot: Slot, state: NodeState) {
        if matches!(state, NodeState::Lost { .. }) {
            self.audit.work.allocations_looked_at += self.books.lose_bundles(slot);
        }
        let dirty = self.books.set_state(slot, state);
        self.follow(dirty);
    }

    /// Registers a node.
    pub(super) fn add_node(&mut self, registration: NodeRegistration) -> Slot {
        let slot = self.books.add_node(registration);
        self.choose.node_joined(&self.books, slot);
        self.pending.homes.note_change(slot);
        self.publish.growth += u64::from(self.books.nodes.state(slot) == NodeState::Ready);
        self.pending.wake_for(&self.books, slot);
        slot
    }

    /// Replaces capacity, labels and taints of a node.
    pub(super) fn handle_update_node(&mut self, node: NodeId, spec: NodeSpec) -> NodeReply {
        let slot = self.books.slot(node)?;
        let former = self.books.nodes.cold(slot).registration.spec.clone();
        let dirty = self.books.respecify(slot, spec);
        self.choose.node_respecified(&self.books, slot, &former);
        self.pending.homes.note_change(slot);
        self.follow(dirty);
        Ok(NodeChange::Updated(node))
    }

    /// Removes a node. With `force`, its allocations end with it.
    pub(super) fn handle_remove_node(&mut self, node: NodeId, force: bool) -> NodeReply {
        let slot = self.books.slot(node)?;
        let allocations = self.books.nodes.hot(slot).allocations;
        if allocations > 0 && !force {
            return Err(NodeRejection::InUse(node, allocations));
        }
        self.check_not_held(slot, node)?;
        self.audit.work.nodes_looked_at += 1;
        self.audit.work.allocations_looked_at += u64::from(allocations);
        self.books.end_claims(slot);
        self.end_reservation(slot);
        let ended: Vec<AllocationId> =
            self.books.ledger.of_node(slot, &self.books.nodes).map(|a| a.id).collect();
        let listed = ended.len();
        assert!(
            listed == allocations as usize,
            "node {node} counts {allocations} allocations, lists {listed}"
        );
        let live = self.books.ledger.len();
        let mut inside = 0;
        for id in ended {
            let ended = self.end_allocation(id, EndCause::NodeRemoved);
            inside += ended.expect("what a node lists is live");
        }
        assert!(self.books.ledger.len() + listed == live, "node {node} took allocations of others with it");
        let version = self.books.nodes.hot(slot).version;
        let registration = self.books.remove_node(slot);
        self.choose.node_left(&self.books, slot, &registration.spec);
        self.pending.homes.note_removed();
        Ok(NodeChange::Removed { node, allocations_ended: allocations + inside, version })
    }

    /// Returns the books of one node. The allocated amounts are summed from the ledger.
    pub(super) fn handle_node_books(&mut self, node: NodeId) -> Result<Box<NodeBooks>, UnknownNode> {
        let slot = self.books.slot(node)?;
        self.audit.work.nodes_looked_at += 1;
        self.audit.work.allocations_looked_at += u64::from(self.books.nodes.hot(slot).allocations);
        let mut books = self.books_at(slot);
        let balance = books.resources.iter().all(|(_, book)| book.balances());
        assert!(balance, "the books of node {node} do not balance: {books:?}");
        self.look_for_homes(HOME_LOOKS_MAX, true);
        for (demand, count) in self.pending.at(slot) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let mut load = |kind, amount: Amount| {
                if let Some((_, book)) = books.resources.iter_mut().find(|(known, _)| *known == kind) {
                    book.load = book.load.saturating_add(amount.units().saturating_mul(count));
                }
            };
            load(ResourceKind::Cpu, demand.cpu);
            load(ResourceKind::Memory, demand.memory);
            load(ResourceKind::Gpu, demand.gpu.amount());
            for &(id, amount) in demand.custom() {
                load(ResourceKind::Custom(id), amount);
            }
        }
        Ok(Box::new(books))
    }

    /// Returns the books of every node, without load and in no order. O(state). For checkers.
    #[must_use]
    pub fn books(&self) -> Vec<NodeBooks> {
        self.books.nodes.iter().map(|(slot, ..)| self.books_at(slot)).collect()
    }

    /// Returns the books of a node, without the load of waiting requests.
    pub(super) fn books_at(&self, slot: Slot) -> NodeBooks {
        self.books.node_books(slot, &self.in_use(slot))
    }

    /// Replaces the capacity of some resources of a node, all or none. Zero removes a resource. Use beyond the
    /// new capacity becomes a shortfall.
    pub(super) fn handle_set_resources(
        &mut self,
        node: NodeId,
        totals: &[(ResourceKind, Amount)],
    ) -> NodeReply {
        let slot = self.books.slot(node)?;
        let mut spec = self.books.nodes.cold(slot).registration.spec.clone();
        let mut custom: Vec<(ResourceId, Amount)> = spec.custom.as_deref().unwrap_or(&[]).to_vec();
        for &(kind, total) in totals {
            match kind {
                ResourceKind::Cpu => spec.cpu = total,
                ResourceKind::Memory => spec.memory = total,
                ResourceKind::Gpu => spec.gpus = (total.units() / i64::from(GPU_UNIT)) as u8,
                ResourceKind::Custom(id) => {
                    custom.retain(|&(known, _)| known != id);
                    custom.push((id, total));
                }
            }
        }
        spec.custom = Demand::canonical_custom(custom).expect("each kind was put in once");
        if spec.custom.as_ref().is_some_and(|custom| custom.len() > CUSTOM_RESOURCES_MAX) {
            return Err(NodeRejection::TooManyResources(node));
        }
        self.handle_update_node(node, spec)
    }
}
