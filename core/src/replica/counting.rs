//! Counts over the nodes of all replicas, for explanations of what waits: a page at a time, so that other work runs in
//! between. Each node is counted as it is when its page is read.

use super::Replica;
use crate::index::Slot;
use crate::limits::EXPLAIN_NODES_MAX;
use crate::request::{Explain, NodeCounts, NodeLook, PlacementRequest};

/// Counts for one request, until all nodes are counted.
pub(crate) struct Counting {
    request: Box<PlacementRequest>,
    /// The replica that is read, and the slot where its next page begins.
    shard: usize,
    from: Slot,
    counts: NodeCounts,
}

impl Counting {
    /// Begins to count for a request.
    pub(crate) fn new(request: &PlacementRequest) -> Self {
        // All nodes are counted, page by page.
        let request = Box::new(PlacementRequest { explain: Explain::Full, ..request.clone() });
        Self { request, shard: 0, from: 0, counts: NodeCounts::default() }
    }

    /// Counts one page. Returns how many nodes were looked at. `None`: all are counted.
    pub(crate) fn step(&mut self, replicas: &mut [Replica]) -> Option<u64> {
        self.step_with(replicas, |_, _, _| {})
    }

    /// Does the same, and tells of each node that labels and taints allow: its replica, its slot there, and what it has room
    /// for.
    pub(crate) fn step_with(
        &mut self,
        replicas: &mut [Replica],
        mut each: impl FnMut(usize, Slot, &NodeLook),
    ) -> Option<u64> {
        let shard = self.shard;
        let replica = replicas.get_mut(shard)?;
        let NodeCounts { refusal, room } = &mut self.counts;
        let page =
            replica.room_page(&self.request, self.from, room, &mut |slot, look| each(shard, slot, look));
        let looked_at = page.examined.min(u64::from(EXPLAIN_NODES_MAX));
        // Of each shard, all nodes are there from its first page on.
        let nodes = refusal.nodes + if self.from == 0 { page.nodes } else { 0 };
        match page.rest {
            Some(rest) => self.from = rest,
            None => (self.shard, self.from) = (self.shard + 1, 0),
        }
        refusal.merge(&page);
        refusal.nodes = nodes;
        refusal.feasible = room.sample.is_some();
        Some(looked_at)
    }

    /// Returns the counts.
    pub(crate) fn into_counts(self) -> NodeCounts {
        self.counts
    }
}
