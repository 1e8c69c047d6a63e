//! The nodes with bundles of one group. Spreading uses them last.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Draft, Place, Replicas};
use crate::index::Slot;
use crate::request::PlacementRequest;

/// Nodes with their number of bundles of the group.
#[derive(Debug, Default)]
pub(super) struct Used {
    counts: BTreeMap<Place, u32>,
    /// The same entries, fewest bundles first.
    order: BTreeSet<(u32, usize, Slot)>,
}

impl Used {
    /// Counts another bundle on the node.
    pub(super) fn add(&mut self, (shard, slot): Place) {
        let count = self.counts.entry((shard, slot)).or_default();
        self.order.remove(&(*count, shard, slot));
        *count += 1;
        self.order.insert((*count, shard, slot));
    }

    fn fewest_first(&self) -> impl Iterator<Item = Place> {
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

#[cfg(test)]
mod tests {
    use super::super::strategy::Wanted;
    use super::super::test_bed::{Bed, cores, items_of, node_of, wanted_of};
    use super::*;
    use crate::group::Strategy;

    #[test]
    fn nodes_with_room_are_counted_up_to_what_is_enough_and_shown_again() {
        let mut bed = Bed::new(2);
        for number in 0..6 {
            bed.add(number % 2, node_of(if number < 4 { 4 } else { 1 }, &[]), false);
        }
        bed.sync();
        for (enough, count) in [(9, 4), (4, 4), (3, 3), (0, 0)] {
            assert_eq!(bed.replicas.count_with_room(&cores(3), enough, 1 << 20), count);
        }
        assert_eq!(bed.replicas.count_with_room(&cores(3), 9, 1), 1, "with one unit, one search is made");
        assert_eq!(
            bed.replicas.meter.left(),
            u64::MAX - bed.replicas.meter.spent(),
            "later work is not bound"
        );
    }

    #[test]
    fn the_node_with_the_fewest_bundles_is_used_again_first_if_it_has_room() {
        let mut bed = Bed::new(2);
        let ids = [(0, 8), (1, 8), (0, 2)].map(|(shard, cpu)| bed.add(shard, node_of(cpu, &[]), false));
        bed.sync();
        let mut used = Used::default();
        let place = |bed: &Bed, at: usize| bed.replicas.locate(ids[at]).expect("it is there");
        for at in [0, 0, 0, 1, 1, 2] {
            used.add(place(&bed, at));
        }
        for at in 0..3 {
            let (shard, slot) = place(&bed, at);
            bed.replicas.hide((shard, slot));
        }
        let mut draft = Draft::default();
        let item = &items_of([cores(3)])[0];
        // The third node has one bundle and too little room. The second has two, the first three.
        for (at, taken) in [(1, true), (1, true), (0, true), (0, true), (0, false)] {
            let before = draft.len();
            assert_eq!(bed.replicas.take_used(&mut draft, &used, 0, &item.request), taken);
            assert_eq!(draft[before..].iter().map(|t| t.node).next(), taken.then_some(ids[at]));
        }
        let none = Used::default();
        assert!(!bed.replicas.take_used(&mut draft, &none, 0, &item.request));
        bed.replicas.unhide_all();
        assert!(!bed.replicas.take(&mut draft, 0, &item.request), "two cores are left on each");
        assert!(bed.replicas.take(&mut draft, 0, &cores(2)));
    }

    /// On replicas of a cycle, some nodes are hidden. They are not used, also if they have bundles of the group, and stay hidden.
    #[test]
    fn nodes_that_are_left_out_are_not_used_again_and_stay_hidden() {
        let mut bed = Bed::new(1);
        let ids = [8, 4, 4].map(|cpu| bed.add(0, node_of(cpu, &[]), false));
        bed.sync();
        let places = ids.map(|id| bed.replicas.locate(id).expect("it is there"));
        bed.replicas.hide(places[0]);
        for strategy in [Strategy::Spread, Strategy::Pack, Strategy::StrictPack, Strategy::StrictSpread] {
            let items = items_of((0..4).map(|_| cores(2)));
            let wanted =
                Wanted { least: 2, standing: vec![places[0], places[1]], ..wanted_of(strategy, items) };
            let mut draft = Draft::default();
            let planned = bed.replicas.plan_apart(wanted, 1 << 20, &mut draft);
            let on = |at: usize| draft.iter().filter(|taken| taken.node == ids[at]).count();
            let expected = match strategy {
                Strategy::Spread | Strategy::Pack => [0, 2, 2],
                Strategy::StrictPack | Strategy::StrictSpread => [0, 0, 0],
            };
            assert_eq!([on(0), on(1), on(2)], expected, "{strategy:?}");
            assert_eq!(planned.is_ok(), expected[1] > 0, "{strategy:?}");
            bed.replicas.roll_back(&mut draft, 0);
            assert_eq!(bed.replicas.copies[0].show_all(), [places[0].1], "{strategy:?}");
            bed.replicas.hide(places[0]);
        }
    }
}
