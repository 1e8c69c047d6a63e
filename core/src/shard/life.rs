//! The life of nodes in a shard: reports of agents, health, state changes, and nodes that join or rejoin.

use super::{Outcome, Rejection, Shard};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::node::{AgentReport, LifeEvent, NodeRegistration, NodeState, Unhealthy, align_devices};

impl Shard {
    /// Adds a node. A node that rejoins continues from its `former` version; otherwise versions start at 0.
    pub(super) fn handle_add_node(&mut self, registration: NodeRegistration, former: Option<u64>) -> Outcome {
        let id = registration.id;
        let slot = self.add_node(registration);
        if let Some(version) = former {
            self.nodes.hot_mut(slot).version = version + 1;
        }
        Outcome::NodeAdded(id)
    }

    /// Applies an agent's report of capacity, labels and health. A lost node comes back with it.
    pub(super) fn handle_report(&mut self, node: NodeId, report: AgentReport) -> Result<Outcome, Rejection> {
        let slot = self.slot(node)?;
        let AgentReport { mut spec, boot, gpus } = report;
        let known = self.nodes.cold(slot).registration.agent.clone().unwrap_or_default();
        let (facts, unhealthy) = align_devices(&known, &boot, gpus);
        // Taints belong to the operator: an agent neither adds nor removes them. Capacity belongs to the agent:
        // amounts set by an operator last until the next report.
        spec.taints = self.nodes.cold(slot).registration.spec.taints.clone();
        spec.gpus = u8::try_from(facts.gpus.len()).expect("no more instances than a node can have");
        // A report without news changes neither the version nor the growth counter.
        if self.nodes.cold(slot).registration.spec != spec {
            self.handle_update_node(node, spec)?;
        }
        self.nodes.set_agent(slot, facts);
        self.set_health(slot, unhealthy);
        self.handle_life(node, LifeEvent::Report)
    }

    pub(super) fn handle_set_health(
        &mut self,
        node: NodeId,
        unhealthy: Unhealthy,
    ) -> Result<Outcome, Rejection> {
        let slot = self.slot(node)?;
        self.set_health(slot, unhealthy);
        Ok(Outcome::HealthSet(node))
    }

    fn set_health(&mut self, slot: Slot, unhealthy: Unhealthy) {
        let healed = self.change_books(slot, |nodes| nodes.set_health(slot, unhealthy));
        self.sums.exceptions_changed(&self.nodes, slot);
        if self.replan_claims(slot) || healed {
            self.available_grew(slot);
        } else {
            self.follow_books(slot);
        }
    }

    pub(super) fn handle_life(&mut self, node: NodeId, event: LifeEvent) -> Result<Outcome, Rejection> {
        let slot = self.slot(node)?;
        let before = self.nodes.state(slot);
        let after = before.after(event).map_err(|illegal| Rejection::IllegalChange { node, illegal })?;
        if before != after {
            self.change_state(slot, before, after);
            self.nodes.hot_mut(slot).version += 1;
        }
        Ok(Outcome::StateSet(node, after))
    }

    /// Changes the state of a node, and updates the structures of nodes that take work.
    pub(super) fn change_state(&mut self, slot: Slot, before: NodeState, after: NodeState) {
        self.nodes.set_state(slot, after);
        self.sums.state_changed(slot, before, after);
        self.losses += u64::from(matches!(after, NodeState::Lost { .. }));
        self.growth += u64::from(after == NodeState::Ready);
        self.follow_books(slot);
        self.wake_for(slot, None);
    }
}
