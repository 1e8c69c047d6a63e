//! The status of a shard: pages of its nodes, and its sums.

use std::ops::Bound;

use super::command::Audit;
use super::{NodeState, NodeView, Shard, ShardStatus, Slot};
use crate::ids::Ordinal;

impl Shard {
    /// Returns up to `limit` nodes after `after`, in order of registration.
    pub(super) fn list_nodes(&mut self, after: Ordinal, limit: u16) -> Vec<NodeView> {
        let later = self.by_ordinal.range((Bound::Excluded(after), Bound::Unbounded));
        let page: Vec<Slot> = later.take(usize::from(limit)).map(|(_, &slot)| slot).collect();
        self.work.nodes_looked_at += page.len() as u64;
        page.into_iter().map(|slot| self.view(slot)).collect()
    }

    fn view(&self, slot: Slot) -> NodeView {
        let room = self.nodes.room(slot);
        let hot = self.nodes.hot(slot);
        NodeView {
            registration: self.nodes.cold(slot).registration.clone(),
            state: self.nodes.state(slot),
            version: hot.version,
            cpu_available: room.cpu,
            memory_available: room.memory,
            gpus_available: hot.gpus,
            unhealthy: self.nodes.unhealthy(slot).to_vec(),
            allocations: hot.allocations,
            reserved: self.reservations.at(slot).map(|there| (there.owner, there.until)),
        }
    }

    /// Returns sums and counters.
    pub(super) fn status(&mut self, audit: Option<Audit>) -> ShardStatus {
        let totals = &self.sums.kept.all;
        ShardStatus {
            shard: self.id,
            nodes_ready: totals.nodes_in(NodeState::Ready),
            nodes_draining: totals.nodes_in(NodeState::Draining),
            nodes_joining: totals.nodes_in(NodeState::Joining),
            nodes_lost: totals.nodes_in(NodeState::Lost { draining: false }),
            allocations: (self.ledger.len() + self.bundles.len_inside()) as u64,
            placed: self.sums.placed,
            refused: self.sums.refused,
            released: self.sums.released,
            resources: self.sums_with_reserved(),
            waiting: self.waiting_shapes(),
            nodes_reserved: self.nodes_reserved(),
            audit,
        }
    }
}
