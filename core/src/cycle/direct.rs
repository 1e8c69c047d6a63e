//! Places a task outside of cycles.

use std::sync::Arc;

use super::Scheduler;
use super::report::{Plan, PlannedTask, allocation};
use crate::ids::NodeId;
use crate::jobs::{TaskId, TaskState};
use crate::request::{PlacementRequest, Refusal};
use crate::time::Time;

/// A task that was placed on a replica.
pub(crate) struct PlacedNow {
    /// The statement to commit.
    pub(crate) plan: Plan,
    /// The index of its shard.
    pub(crate) shard: usize,
    /// The selector that holds: 0 is the request's own, 1 the first fallback, and so on.
    pub(crate) alternative: u8,
}

impl Scheduler {
    /// Gives a pending task the node that its policy chooses, on capacity that is free on the replicas. Caps are not asked.
    /// [`take_back`](Self::take_back) undoes it. Returns `None` if no node has room.
    ///
    /// A selector is tried in all shards before its first fallback is. A shard with a preferred node comes first.
    pub(crate) fn place_now(&mut self, task: TaskId, now: Time) -> Option<PlacedNow> {
        let class = Arc::clone(&self.jobs.task(task).class);
        let request = &*class.request;
        let first = self.shard_to_try(request);
        let fallbacks = u8::try_from(request.fallbacks().len()).expect("FALLBACK_SELECTORS_MAX fits u8");
        let shards = self.replicas.len();
        for alternative in 0..=fallbacks {
            let alone = (fallbacks > 0).then(|| request.with_alternative(alternative));
            let request = alone.as_ref().unwrap_or(request);
            for step in 0..shards {
                let shard = (first + step) % shards;
                let Some((taken, key)) = self.replicas[shard].take(request) else { continue };
                let before = self.jobs.task(task).clone();
                let operation = allocation(task, taken.node, request);
                self.jobs.set(task, TaskState::Allocated, Some(taken.node), now);
                let planned = PlannedTask {
                    task,
                    node: taken.node,
                    before,
                    shard,
                    slot: taken.slot,
                    key: Some(key),
                    operation: Some(operation),
                };
                return Some(PlacedNow { plan: Plan { tasks: vec![planned] }, shard, alternative });
            }
        }
        None
    }

    /// Returns the shard where a request is tried first: that of a preferred node or candidate, or else each in turn.
    fn shard_to_try(&mut self, request: &PlacementRequest) -> usize {
        let preferred = request.preferences.iter().flat_map(|preferences| preferences.nodes.iter());
        let named = preferred.chain(request.candidates.iter().flat_map(|ids| ids.iter()).take(1));
        let of_named =
            |&node: &NodeId| self.replicas.iter().position(|replica| replica.shard().slot_of(node).is_some());
        let found = named.into_iter().find_map(of_named);
        self.next_shard = (self.next_shard + 1) % self.replicas.len();
        found.unwrap_or(self.next_shard)
    }

    /// Returns the number of the first selector of a request that a node satisfies: 0 for its own, 1 for the first fallback, and
    /// so on. 0 if none does: the labels of the node have changed.
    pub(crate) fn alternative_of(&self, request: &PlacementRequest, node: NodeId) -> u8 {
        let fallbacks = request.fallbacks();
        let spec = self.replicas.iter().find_map(|replica| replica.spec(replica.shard().slot_of(node)?));
        let (Some(spec), Some(own)) = (spec, &request.selector) else { return 0 };
        let selectors = std::iter::once(own).chain(fallbacks);
        let found = (0..).zip(selectors).find(|(_, selector)| selector.holds(&spec.labels));
        found.map_or(0, |(number, _)| number)
    }

    /// Returns the counts of all nodes that cannot hold a request now.
    pub(crate) fn refusal_of(&mut self, request: &PlacementRequest) -> Refusal {
        let mut all = Refusal::default();
        for replica in &mut self.replicas {
            all.merge(&replica.refusal(request));
        }
        all
    }

    /// Returns how many nodes and vertices of the index searches have looked at so far.
    pub(crate) fn looked_at(&self) -> u64 {
        self.replicas.iter().map(crate::replica::Replica::looked_at).sum()
    }
}
