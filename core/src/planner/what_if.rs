//! Plans where a group could be placed if nothing of others ran. A ticket reserves this plan.
//!
//! The search is the usual one, on the replicas, while some nodes are emptied of all but the group's own bundles.
//! Unhealthy instances stay unhealthy, and what statements hold stays held. Nodes that are reserved for others
//! keep what runs there, and nodes that take no new work take none.
//!
//! The nodes with the most free capacity are emptied, because they come free soonest. Several are chosen per
//! distinct request of the group and per value of the rule's label. If they do not suffice, more are chosen,
//! and in the end all. If a ticket fails because what runs there does not end, the group's next ticket
//! chooses nodes at random.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::colocate::Item;
use super::draft::{Draft, Place, PlannedBundle, Replicas};
use super::strategy::Wanted;
use crate::group::{Spreading, Strategy, TopologyRule};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::replica::Replica;
use crate::request::PlacementRequest;
use crate::rng::Rng;

/// The factor by which more nodes are chosen after each failure.
const MORE: usize = 4;

impl Replicas {
    /// Plans `wanted`, and gives up again what the plan took. Its keys are of no claims. The search is given up
    /// after `units`.
    pub(super) fn plan_only(&mut self, wanted: Wanted, units: u64) -> Option<Draft> {
        let mut draft = Draft::default();
        self.plan(wanted, units, &mut draft).ok()?;
        let plan = draft.iter().map(|taken| PlannedBundle { key: 0, ..*taken }).collect();
        self.roll_back(&mut draft, 0);
        Some(plan)
    }

    /// Plans `wanted` as if only `own` ran, the allocations of the group. The plan has only the least number of
    /// bundles, so that no more is reserved than necessary. `turn` is the number of tickets of the group that
    /// failed. The search is given up after `units`.
    pub(super) fn plan_ignoring_others(
        &mut self,
        wanted: &Wanted,
        own: &BTreeSet<AllocationId>,
        turn: u32,
        units: u64,
    ) -> Option<Draft> {
        let end = self.meter.spent() + units;
        let requests = distinct(&wanted.items);
        let mut places = self.most_free_first();
        self.meter.charge(places.len() as u64);
        if turn > 0 {
            let mut rng = Rng::new(u64::from(turn));
            for at in (1..places.len()).rev() {
                places.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        let mut most = first_choice(wanted);
        let plan = loop {
            let (mut chosen, left_out) = self.choose(&places, wanted, &requests, most);
            chosen.extend(&wanted.standing);
            self.meter.charge(places.len() as u64);
            for (shard, slot) in chosen {
                let looked_at = self.copies[shard].empty(slot, own);
                self.meter.charge(looked_at);
            }
            let left = end.saturating_sub(self.meter.spent()).max(1);
            let plan = self.plan_only(wanted.clone(), left);
            if plan.is_some() || !left_out || self.meter.spent() >= end {
                break plan;
            }
            most = most.saturating_mul(MORE);
        };
        self.copies.iter_mut().for_each(Replica::refill);
        // The bundles taken first satisfy the rules without the later ones.
        plan.map(|mut plan| {
            plan.truncate(wanted.least.max(1));
            plan
        })
    }

    /// Returns all ready nodes, most free first.
    fn most_free_first(&self) -> Vec<Place> {
        let mut places: Vec<(Reverse<u64>, usize, Slot)> = Vec::new();
        for (shard, copy) in self.copies.iter().enumerate() {
            places.extend(copy.shard().free_shares().map(|(slot, share)| (Reverse(share), shard, slot)));
        }
        places.sort_unstable();
        places.into_iter().map(|(_, shard, slot)| (shard, slot)).collect()
    }

    /// Chooses the first `most` nodes that could hold each request on each value of the rule's label. Returns the
    /// nodes, and whether any suitable node was left out.
    fn choose(
        &mut self,
        places: &[Place],
        wanted: &Wanted,
        requests: &[Arc<PlacementRequest>],
        most: usize,
    ) -> (Vec<Place>, bool) {
        let mut counts: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
        let mut chosen = Vec::new();
        let mut left_out = false;
        for &(shard, slot) in places {
            let copy = &mut self.copies[shard];
            let value = wanted.topology.as_ref().and_then(|rule| copy.shard().label_of(slot, &rule.key));
            let counts = counts.entry(value.map(str::to_owned)).or_insert_with(|| vec![0; requests.len()]);
            let mut needed = false;
            // Requests with enough nodes are skipped, unless it is still unknown whether a node was left out.
            for (request, count) in requests.iter().zip(counts) {
                if left_out && *count >= most || !copy.could_hold(slot, request) {
                    continue;
                }
                if *count < most {
                    (*count, needed) = (*count + 1, true);
                } else {
                    left_out = true;
                }
            }
            chosen.extend(needed.then_some((shard, slot)));
        }
        (chosen, left_out)
    }
}

/// Returns the distinct requests.
fn distinct(items: &[Item]) -> Vec<Arc<PlacementRequest>> {
    let mut requests: Vec<Arc<PlacementRequest>> = Vec::new();
    for Item { request, .. } in items {
        if !requests.contains(request) {
            requests.push(Arc::clone(request));
        }
    }
    requests
}

/// Returns how many nodes to choose first per request: one if bundles may share it, else one per bundle.
fn first_choice(wanted: &Wanted) -> usize {
    let prefers = |rule: &TopologyRule| matches!(rule.spreading, Spreading::Pack { strict: false });
    match wanted.strategy {
        Strategy::Pack | Strategy::StrictPack if !wanted.topology.as_ref().is_some_and(prefers) => 1,
        _ => wanted.items.len() + wanted.standing.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::{Bed, cores, items_of, node_of, wanted_of};
    use super::*;
    use crate::ids::NodeId;
    use crate::ids::OwnerId;
    use crate::shard::{Command, Outcome, Reserve};
    use crate::time::Time;

    /// Places so many cores on a node.
    fn fill(bed: &mut Bed, shard: usize, node: NodeId, cpu: u32) -> AllocationId {
        let request = PlacementRequest { candidates: Some([node].into()), ..cores(cpu) };
        match bed.step(shard, Command::Place(request)) {
            Outcome::Place(Ok(placement)) => placement.allocation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_plan_that_ignores_others_names_nodes_where_the_copies_have_them_and_no_claims() {
        let mut bed = Bed::new(2);
        for shard in [0, 1] {
            // Too small: a node that is passed over has a slot before those that are chosen.
            bed.add(shard, node_of(1, &[]), false);
            for _ in 0..2 {
                bed.add(shard, node_of(8, &[]), false);
                bed.step(shard, Command::Place(cores(8)));
            }
        }
        bed.sync();
        let wanted = wanted_of(Strategy::StrictSpread, items_of([cores(4), cores(4), cores(4), cores(4)]));
        let planned =
            bed.replicas.plan_ignoring_others(&wanted, &BTreeSet::new(), 0, 1 << 20).expect("were they free");
        assert_eq!(planned.len(), 4);
        for taken in planned {
            assert_eq!(bed.replicas.locate(taken.node), Some((taken.shard, taken.slot)));
            // Keys of claims begin with 1: what is lost or granted later is no claim of others.
            assert_eq!(taken.key, 0);
        }
    }

    /// Chooses the first `most` nodes per request. Returns their numbers in order, and whether any was left
    /// out.
    fn chosen(bed: &mut Bed, wanted: &Wanted, most: usize) -> (Vec<u64>, bool) {
        let places = bed.replicas.most_free_first();
        let requests = distinct(&wanted.items);
        let (chosen, left_out) = bed.replicas.choose(&places, wanted, &requests, most);
        let id = |&(shard, slot): &Place| bed.replicas.copies[shard].shard().node_at(slot).expect("a node").0;
        (chosen.iter().map(id).collect(), left_out)
    }

    #[test]
    fn the_nodes_with_the_most_free_are_chosen_for_each_request_and_value() {
        let mut bed = Bed::new(2);
        // Nodes 1 to 5. What runs decides the order.
        for (number, (cpu, zone)) in
            [(8, "a"), (8, "a"), (8, "b"), (2, "b"), (8, "b")].into_iter().enumerate()
        {
            bed.add(number % 2, node_of(cpu, &[("zone", zone)]), false);
        }
        let on = |node: u64, cpu| PlacementRequest { candidates: Some([NodeId(node)].into()), ..cores(cpu) };
        for (node, cpu) in [(1, 3), (2, 2), (5, 1)] {
            bed.step((node as usize + 1) % 2, Command::Place(on(node, cpu)));
        }
        bed.sync();
        let wanted = wanted_of(Strategy::Pack, items_of([cores(4), cores(4)]));
        assert_eq!(chosen(&mut bed, &wanted, 1), (vec![3], true));
        assert_eq!(chosen(&mut bed, &wanted, 2), (vec![3, 5], true));
        assert_eq!(chosen(&mut bed, &wanted, 3), (vec![3, 5, 2], true));
        assert_eq!(chosen(&mut bed, &wanted, 4), (vec![3, 5, 2, 1], false), "the small node is none of them");
        // Each request has its own nodes. The small one takes the first node too.
        let both = wanted_of(Strategy::Pack, items_of([cores(4), on(4, 1)]));
        assert_eq!(chosen(&mut bed, &both, 1), (vec![3, 4], true));
        let spreading = Spreading::Spread { max_skew: 1 };
        let topology = Some(TopologyRule { key: "zone".into(), spreading });
        let ruled = Wanted { topology, ..wanted };
        assert_eq!(chosen(&mut bed, &ruled, 1), (vec![3, 2], true));
    }

    #[test]
    fn as_many_nodes_are_chosen_first_as_the_bundles_may_need() {
        let standing = vec![(0, 1), (0, 2)];
        let items = || items_of([cores(1), cores(1), cores(2)]);
        let of = |strategy, spreading: Option<Spreading>| {
            let topology = spreading.map(|spreading| TopologyRule { key: "zone".into(), spreading });
            first_choice(&Wanted { topology, standing: standing.clone(), ..wanted_of(strategy, items()) })
        };
        let soft = Some(Spreading::Pack { strict: false });
        let strict = Some(Spreading::Pack { strict: true });
        assert_eq!([of(Strategy::Pack, None), of(Strategy::StrictPack, None)], [1, 1]);
        assert_eq!([of(Strategy::Pack, strict), of(Strategy::Pack, soft)], [1, 5]);
        assert_eq!([of(Strategy::Spread, None), of(Strategy::StrictSpread, strict)], [5, 5]);
        assert_eq!(
            distinct(&items()).iter().map(|request| (**request).clone()).collect::<Vec<_>>(),
            [cores(1), cores(2)]
        );
    }

    /// A later ticket need not choose the same node again: it may be in use for good. It may choose any.
    #[test]
    fn a_group_whose_ticket_failed_chooses_any_node() {
        for count in [2, 8] {
            let mut bed = Bed::new(2);
            for number in 0..count {
                let node = bed.add(number % 2, node_of(8, &[]), false);
                fill(&mut bed, number % 2, node, 8);
            }
            bed.sync();
            let wanted = wanted_of(Strategy::Pack, items_of([cores(8)]));
            let mut node = |turn| {
                let planned = bed.replicas.plan_ignoring_others(&wanted, &BTreeSet::new(), turn, 1 << 20);
                planned.expect("were they free")[0].node
            };
            assert_eq!([node(0), node(0)], [node(0); 2], "first, the one that comes first");
            let any: BTreeSet<NodeId> = (1..=16 * count as u32).map(&mut node).collect();
            assert_eq!(any.len(), count);
        }
    }

    #[test]
    fn only_the_minimum_is_planned_and_nothing_where_the_own_bundles_leave_no_room() {
        let mut bed = Bed::new(1);
        let nodes = [0, 1].map(|_| bed.add(0, node_of(8, &[]), false));
        bed.sync();
        let own = nodes.map(|node| fill(&mut bed, 0, node, 5));
        bed.sync();
        let items = items_of([cores(4), cores(4), cores(4)]);
        let wanted = Wanted { least: 2, ..wanted_of(Strategy::Pack, items) };
        let mut plan = |own: &[AllocationId], units| {
            let own = own.iter().copied().collect();
            let planned = bed.replicas.plan_ignoring_others(&wanted, &own, 0, units)?;
            Some(planned.iter().map(|taken| taken.node).collect::<Vec<_>>())
        };
        assert_eq!(plan(&[], 1 << 20).map(|planned| planned.len()), Some(2));
        assert_eq!(plan(&own[..1], 1 << 20), Some(vec![nodes[1]; 2]));
        assert_eq!(plan(&own, 1 << 20), None);
        // Afterwards, the nodes are as their view says.
        for node in nodes {
            let (shard, slot) = bed.replicas.locate(node).expect("it is there");
            let copy = bed.replicas.copies[shard].shard();
            assert_eq!(copy.free_on(slot)[0], cores(3).demand.cpu.units());
        }
    }

    #[test]
    fn nodes_that_are_reserved_are_for_their_owner_and_tickets_keep_none_from_a_plan() {
        let mut bed = Bed::new(1);
        let nodes = [0, 1].map(|_| bed.add(0, node_of(8, &[]), false));
        let owner = OwnerId::new(7).expect("an owner of callers");
        let reserve = |bed: &mut Bed, node, owner, until| {
            let reserve = Reserve { node, owner, demand: cores(8).demand, until };
            let outcome = bed.step(0, Command::Reserve(Box::new(reserve)));
            assert!(matches!(outcome, Outcome::Reserve(Ok(_))), "{outcome:?}");
        };
        reserve(&mut bed, nodes[0], owner, None);
        reserve(&mut bed, nodes[1], OwnerId::ticket(3), Some(Time(9)));
        bed.sync();
        let slots = nodes.map(|node| bed.replicas.copies[0].shard().slot_of(node).expect("it is there"));
        let copy = &mut bed.replicas.copies[0];
        assert_eq!(slots.map(|slot| copy.reserved_for(slot)), [Some(owner), None]);
        let of_owner = |owner| PlacementRequest { owner, ..cores(4) };
        let other = OwnerId::new(8);
        let can = [None, Some(owner), other].map(|owner| copy.could_hold(slots[0], &of_owner(owner)));
        assert_eq!(can, [false, true, false]);
        assert!(copy.could_hold(slots[1], &cores(8)) && !copy.could_hold(slots[1], &cores(9)));
        let mut plan = |requests: Vec<PlacementRequest>| {
            let wanted = wanted_of(Strategy::StrictSpread, items_of(requests));
            let planned = bed.replicas.plan_ignoring_others(&wanted, &BTreeSet::new(), 0, 1 << 20)?;
            Some(planned.iter().map(|taken| taken.node).collect::<BTreeSet<_>>())
        };
        assert_eq!(plan(vec![cores(8)]), Some([nodes[1]].into()));
        assert_eq!(plan(vec![cores(8), cores(8)]), None);
        assert_eq!(plan(vec![of_owner(Some(owner)), cores(8)]), Some(nodes.into()));
    }
}
