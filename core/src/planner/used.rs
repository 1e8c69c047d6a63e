//! The nodes with bundles of one group. Spreading uses them last.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Draft, Replicas};
use crate::index::Slot;
use crate::request::PlacementRequest;

/// Nodes with their number of bundles of the group.
#[derive(Debug, Default)]
pub(super) struct Used {
    counts: BTreeMap<(usize, Slot), u32>,
    /// The same entries, fewest bundles first.
    order: BTreeSet<(u32, usize, Slot)>,
}

impl Used {
    /// Counts another bundle on the node.
    pub(super) fn add(&mut self, (shard, slot): (usize, Slot)) {
        let count = self.counts.entry((shard, slot)).or_default();
        self.order.remove(&(*count, shard, slot));
        *count += 1;
        self.order.insert((*count, shard, slot));
    }

    fn fewest_first(&self) -> impl Iterator<Item = (usize, Slot)> {
        self.order.iter().map(|&(_, shard, slot)| (shard, slot))
    }
}

impl Replicas {
    /// Takes a bundle on the node of `used` that has the fewest bundles and fits. All nodes of `used` are
    /// hidden, and stay hidden.
    pub(super) fn take_used(
        &mut self,
        draft: &mut Draft,
        used: &Used,
        bundle: u32,
        request: &PlacementRequest,
    ) -> bool {
        for (shard, slot) in used.fewest_first() {
            self.meter.charge(1);
            if !self.copies[shard].shard().has_room(slot, &request.demand) {
                continue;
            }
            self.copies[shard].show(slot);
            let placed = self.take_on(draft, (shard, slot), bundle, request);
            self.copies[shard].hide(slot);
            if placed {
                return true;
            }
        }
        // Only the search finds capacity that is reserved for the owner.
        request.owner.is_some() && self.take_reserved_of(draft, used, bundle, request)
    }

    /// Returns the number of nodes that have room for `request` now. Stops counting at `enough`, or when
    /// `units` are spent.
    pub(super) fn count_with_room(&mut self, request: &PlacementRequest, enough: usize, units: u64) -> usize {
        self.meter.allow(units);
        let mut count = 0;
        for shard in 0..self.copies.len() {
            while count < enough
                && !self.meter.is_spent()
                && let Some(slot) = self.search(shard, |copy| copy.shard_mut().find_tentatively(request))
            {
                self.copies[shard].hide(slot);
                count += 1;
            }
        }
        self.meter.allow(u64::MAX);
        self.unhide_all();
        count
    }

    fn take_reserved_of(
        &mut self,
        draft: &mut Draft,
        used: &Used,
        bundle: u32,
        request: &PlacementRequest,
    ) -> bool {
        used.fewest_first().for_each(|(shard, slot)| self.copies[shard].show(slot));
        let placed = self.take(draft, bundle, request);
        used.fewest_first().for_each(|(shard, slot)| self.copies[shard].hide(slot));
        placed
    }
}
