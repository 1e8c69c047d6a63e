//! The turns of queues: at each level of the hierarchy, the first queue by order is next.
//!
//! What a queue is given also changes the shares of the queues that contain it, and of no others. So one heap per parent
//! stays in order if the queues on the way to the one that was served are taken out and put back. A rule that orders by
//! more than that says when its order has changed, and all heaps are built again.

use std::collections::{BTreeMap, BTreeSet};

use super::heap::Heap;
use super::trial::Cycle;
use crate::jobs::QueueId;

/// The queues that still have turns.
pub(super) struct Turns {
    below: BTreeMap<QueueId, Heap<QueueId>>,
    /// The version of the order of the heaps.
    version: u64,
}

impl Turns {
    /// Creates the turns of these queues, which have no queues below them.
    pub(super) fn new(cycle: &Cycle<'_>, leaves: impl IntoIterator<Item = QueueId>) -> Self {
        let mut turns = Self { below: BTreeMap::new(), version: cycle.order_version() };
        let mut known = BTreeSet::new();
        for leaf in leaves {
            for queue in cycle.jobs.chain(leaf) {
                if queue == QueueId::ROOT || !known.insert(queue) {
                    break;
                }
                turns.put(cycle, queue);
            }
        }
        turns
    }

    fn put(&mut self, cycle: &Cycle<'_>, queue: QueueId) {
        let parent = cycle.jobs.queue(queue).spec().parent;
        let heap = self.below.entry(parent).or_insert_with(Heap::new);
        heap.push(queue, |&a, &b| cycle.compare_queues(a, b));
    }

    /// Returns the queue whose turn it is. It has no other turn until it is [put back](Self::put_back), and nor have
    /// the queues that contain it.
    pub(super) fn next(&mut self, cycle: &Cycle<'_>) -> Option<QueueId> {
        let version = cycle.order_version();
        if version != self.version {
            self.version = version;
            let queues: Vec<QueueId> = self.below.values_mut().flat_map(Heap::take).collect();
            queues.into_iter().for_each(|queue| self.put(cycle, queue));
        }
        let mut at = QueueId::ROOT;
        loop {
            let heap = self.below.get_mut(&at);
            match heap.and_then(|heap| heap.pop(|&a, &b| cycle.compare_queues(a, b))) {
                Some(queue) if cycle.jobs.queue(queue).is_leaf() => return Some(queue),
                Some(queue) => at = queue,
                // All below this queue have had their last turn.
                None if at == QueueId::ROOT => return None,
                None => {
                    let parent = cycle.jobs.queue(at).spec().parent;
                    self.put_back_above(cycle, parent);
                    at = QueueId::ROOT;
                }
            }
        }
    }

    /// Puts the queue of the last turn back, if it has more turns, and all that contain it.
    pub(super) fn put_back(&mut self, cycle: &Cycle<'_>, queue: QueueId, has_more: bool) {
        if has_more {
            self.put(cycle, queue);
        }
        self.put_back_above(cycle, cycle.jobs.queue(queue).spec().parent);
    }

    fn put_back_above(&mut self, cycle: &Cycle<'_>, queue: QueueId) {
        for queue in cycle.jobs.chain(queue).take_while(|&queue| queue != QueueId::ROOT).collect::<Vec<_>>() {
            self.put(cycle, queue);
        }
    }
}
