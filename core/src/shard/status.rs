//! The status of a shard: pages of its nodes, and its sums.

use std::ops::Bound;

use crate::ids::{AllocationId, Ordinal};
use crate::index::Slot;
use crate::node::NodeState;
use crate::shard::NodeView;
use crate::shard::Shard;
use crate::shard::ShardStatus;
use crate::shard::command::Audit;
use crate::time::Time;

impl Shard {
    /// Returns whether an allocation is releasing.
    #[must_use]
    pub fn is_releasing(&self, id: AllocationId) -> bool {
        self.releasing_until(id).is_some()
    }

    /// Returns the time at which a releasing allocation ends by itself.
    #[must_use]
    pub fn releasing_until(&self, id: AllocationId) -> Option<Time> {
        self.books.releasing.until(id)
    }

    /// Returns up to `limit` nodes after `after`, in order of registration.
    pub(super) fn list_nodes(&mut self, after: Ordinal, limit: u16) -> Vec<NodeView> {
        let nodes = self.books.nodes.len();
        assert!(self.books.by_ordinal.len() == nodes, "others are listed than the {nodes} nodes");
        let later = self.books.by_ordinal.range((Bound::Excluded(after), Bound::Unbounded));
        let page: Vec<Slot> = later.take(usize::from(limit)).map(|(_, &slot)| slot).collect();
        self.audit.work.nodes_looked_at += page.len() as u64;
        page.into_iter().map(|slot| self.view(slot)).collect()
    }

    fn view(&self, slot: Slot) -> NodeView {
        let room = self.books.nodes.room(slot);
        let hot = self.books.nodes.hot(slot);
        NodeView {
            registration: self.books.nodes.cold(slot).registration.clone(),
            state: self.books.nodes.state(slot),
            version: hot.version,
            cpu_available: room.cpu,
            memory_available: room.memory,
            gpus_available: hot.gpus,
            unhealthy: self.books.unhealthy(slot).to_vec(),
            allocations: hot.allocations,
            reserved: self.books.reservation(slot).map(|there| (there.owner, there.until)),
        }
    }

    /// Returns sums and counters.
    pub(super) fn status(&mut self, audit: Option<Audit>) -> ShardStatus {
        let waiting = self.waiting_shapes();
        let totals = self.books.sums.kept.all();
        assert!(totals.nodes() == self.books.nodes.len() as u64, "the sums count other nodes than there are");
        ShardStatus {
            shard: self.id,
            nodes_ready: totals.nodes_in(NodeState::Ready),
            nodes_draining: totals.nodes_in(NodeState::Draining),
            nodes_joining: totals.nodes_in(NodeState::Joining),
            nodes_lost: totals.nodes_in(NodeState::Lost { draining: false }),
            allocations: (self.books.ledger.len() + self.books.bundles.len_inside()) as u64,
            placed: self.books.sums.placed,
            refused: self.books.sums.refused,
            released: self.books.sums.released,
            resources: totals.resources(),
            waiting,
            nodes_reserved: self.books.nodes_reserved(),
            audit,
        }
    }
}
