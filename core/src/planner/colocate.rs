//! Placing several bundles on one node.
//!
//! A search by the sum of the demands finds nodes that may hold the bundles. The sum is exact for amounts.
//! Devices are then taken bundle by bundle, largest first. A node where this fails is skipped.

use std::sync::Arc;

use super::draft::{Draft, Place, Replicas};
use crate::ids::{NodeId, ResourceId};
use crate::limits::TOGETHER_TRIES_MAX;
use crate::node::{NodeSpec, Selector};
use crate::request::PlacementRequest;
use crate::resource::{Amount, Demand, GpuRequest};

/// A bundle to place.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its index in the group.
    pub(super) bundle: u32,
    pub(super) request: Arc<PlacementRequest>,
}

/// Sorts largest first, by GPUs, custom kinds, memory, then cpu (Ray's order without the object store).
pub(super) fn largest_first(items: &mut [Item]) {
    let size = |item: &Item| {
        let demand = &item.request.demand;
        let custom: i128 = demand.custom().iter().map(|(_, amount)| i128::from(amount.units())).sum();
        (demand.gpu.units(), custom, demand.memory.units(), demand.cpu.units())
    };
    items.sort_by_cached_key(|item| (std::cmp::Reverse(size(item)), item.bundle));
}

/// Returns whether all items have the same request.
pub(super) fn alike(items: &[Item]) -> bool {
    let same =
        |pair: &[Item]| Arc::ptr_eq(&pair[0].request, &pair[1].request) || pair[0].request == pair[1].request;
    items.windows(2).all(same)
}

fn sum(items: &[Item]) -> Option<Demand> {
    let mut cpu = Amount::ZERO;
    let mut memory = Amount::ZERO;
    let mut whole = 0u32;
    let mut largest_part = 0u16;
    let mut custom: Vec<(ResourceId, Amount)> = Vec::new();
    for item in items {
        let demand = &item.request.demand;
        cpu = cpu.checked_plus(demand.cpu)?;
        memory = memory.checked_plus(demand.memory)?;
        match demand.gpu {
            GpuRequest::None => {}
            GpuRequest::Whole(count) => whole += u32::from(count),
            GpuRequest::Fraction(part) => {
                largest_part = largest_part.max(part);
            }
        }
        for &(id, amount) in demand.custom() {
            // Units of a unit-instance kind do not add up. The largest is a lower bound.
            match custom.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) if id.is_unit_instance() => *known = (*known).max(amount),
                Some((_, known)) => *known = known.checked_plus(amount)?,
                None => custom.push((id, amount)),
            }
        }
    }
    let gpu = match (whole, largest_part) {
        (0, 0) => GpuRequest::None,
        (0, part) => GpuRequest::Fraction(part),
        (count, _) => GpuRequest::Whole(u8::try_from(count).ok().filter(|&count| count <= 16)?),
    };
    let custom = Demand::canonical_custom(custom).expect("each kind was put in once");
    Some(Demand { cpu, memory, gpu, custom })
}

/// Returns a request that every node which holds all of `items` satisfies. `None` if no node can hold them.
pub(super) fn combined(items: &[Item]) -> Option<PlacementRequest> {
    let first = &items[0].request;
    let mut request = PlacementRequest { demand: sum(items)?, ..(**first).clone() };
    for item in &items[1..] {
        let other = &item.request;
        if Arc::ptr_eq(other, first) {
            continue;
        }
        if let Some(selector) = &other.selector
            && request.selector.as_ref() != Some(selector)
        {
            request.selector = Some(match &request.selector {
                None => Arc::clone(selector),
                Some(there) => Arc::new(Selector::new([there.terms(), selector.terms()].concat())),
            });
        }
        if let Some(candidates) = &other.candidates {
            request.candidates = Some(match &request.candidates {
                None => Arc::clone(candidates),
                Some(there) => both(there, candidates),
            });
        }
        if other.preferences != request.preferences {
            // Preferences differ, so each bundle's own are checked when it is taken.
            request.preferences = None;
        }
        if other.owner != request.owner {
            request.owner = None;
        }
    }
    Some(request)
}

/// Returns the demand to reserve on one node for all of `items`, which are planned on `devices` of its
/// devices. Shared devices and units of unit-instance kinds count as whole ones. `None` if no node has as
/// much.
pub(super) fn reserved_demand(items: &[Item], devices: u32, spec: &NodeSpec) -> Option<Demand> {
    let all = sum(items)?;
    if let [_] = items {
        return Some(all);
    }
    let gpu = match devices {
        0 => GpuRequest::None,
        count => GpuRequest::Whole(u8::try_from(count).ok()?),
    };
    let whole_units = |id: ResourceId| {
        let asked = items.iter().flat_map(|item| item.request.demand.custom());
        let asked = asked.filter(|(kind, _)| *kind == id).map(|(_, amount)| amount.units());
        let unit = Amount::whole(1).units();
        let units: i64 = asked.map(|units| (units + unit - 1) / unit).sum();
        Amount::whole(u32::try_from(units).unwrap_or(u32::MAX)).min(spec.custom_total(id))
    };
    let custom = all.custom().iter().map(|&(id, amount)| match id.is_unit_instance() {
        true => (id, whole_units(id)),
        false => (id, amount),
    });
    let custom = Demand::canonical_custom(custom.collect()).expect("each kind is there once");
    Some(Demand { gpu, custom, ..all })
}

/// Returns the intersection of two sorted lists.
fn both(a: &[NodeId], b: &[NodeId]) -> Arc<[NodeId]> {
    a.iter().copied().filter(|id| b.binary_search(id).is_ok()).collect()
}

impl Replicas {
    /// Takes all of `items` on one node, or none of them. The policy of the first item chooses the node.
    pub(super) fn place_colocated(&mut self, draft: &mut Draft, items: &[Item]) -> bool {
        if let [item] = items {
            return self.take(draft, item.bundle, &item.request);
        }
        let Some(request) = combined(items) else { return false };
        for shard in self.order(draft) {
            let hidden = self.copies[shard].hidden_count();
            let mut placed = false;
            for _ in 0..TOGETHER_TRIES_MAX {
                let found = self.search(shard, |copy| copy.shard_mut().find_tentatively(&request));
                let Some(slot) = found else { break };
                placed = self.take_all_on(draft, (shard, slot), items);
                if placed {
                    break;
                }
                self.copies[shard].hide(slot);
            }
            self.copies[shard].unhide_from(hidden);
            if placed {
                return true;
            }
        }
        false
    }

    /// Takes all of `items` on the given node, or none of them.
    pub(super) fn take_all_on(&mut self, draft: &mut Draft, place: Place, items: &[Item]) -> bool {
        let savepoint = draft.len();
        let all = items.iter().all(|item| self.take_on(draft, place, item.bundle, &item.request));
        if !all {
            self.roll_back(draft, savepoint);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::{Bed, cores, items_of, node_of};
    use super::*;
    use crate::ids::OwnerId;
    use crate::node::{Operator, Term};
    use crate::request::Policy;

    #[test]
    fn units_are_reserved_whole_where_bundles_share_a_node() {
        let nic = ResourceId::new(0, false);
        let npu = ResourceId::new(1, true);
        let custom_of = |milli: [u32; 2]| {
            let amounts = [nic, npu].into_iter().zip(milli.map(Amount::from_milli)).collect();
            Demand::canonical_custom(amounts).expect("different kinds")
        };
        let asking = |milli| {
            let mut request = cores(1);
            request.demand.custom = custom_of(milli);
            request
        };
        let items = items_of([asking([500, 600]), asking([700, 2000]), asking([0, 300])]);
        let of = |items, npus: u32| {
            let spec = NodeSpec { custom: custom_of([9000, 1000 * npus]), ..node_of(8, &[]) };
            reserved_demand(items, 0, &spec).expect("amounts of few bundles have a sum")
        };
        // A part of a unit may go on any of them, so each is reserved whole; nobody has more than there are.
        assert_eq!(of(&items, 5).custom, custom_of([1200, 4000]));
        assert_eq!(of(&items, 3).custom, custom_of([1200, 3000]));
        assert_eq!(of(&items, 5).cpu, Amount::whole(3));
        assert_eq!(of(&items[..1], 5), items[0].request.demand, "one alone is reserved for as it asks");
    }

    fn gpus(gpu: GpuRequest) -> PlacementRequest {
        PlacementRequest::new(Demand { gpu, ..Demand::default() }, Policy::BestFit)
    }

    fn summed(requests: &[PlacementRequest]) -> Option<Demand> {
        combined(&items_of(requests.iter().cloned())).map(|request| request.demand)
    }

    #[test]
    fn a_sum_has_all_amounts_and_of_parts_the_largest() {
        let memory = |amount| {
            let demand = Demand { memory: Amount::whole(amount), ..cores(2).demand };
            PlacementRequest::new(demand, Policy::BestFit)
        };
        let both = summed(&[cores(1), memory(3), memory(4)]).expect("few");
        assert_eq!((both.cpu, both.memory), (Amount::whole(5), Amount::whole(7)));
        let of = |requests: &[GpuRequest]| {
            let requests: Vec<_> = requests.iter().map(|&gpu| gpus(gpu)).collect();
            summed(&requests).map(|demand| demand.gpu)
        };
        use GpuRequest::{Fraction, None as Nothing, Whole};
        assert_eq!(of(&[Nothing, Nothing]), Some(Nothing));
        assert_eq!(of(&[Fraction(2000), Fraction(7000), Fraction(1)]), Some(Fraction(7000)));
        assert_eq!(of(&[Whole(2), Fraction(7000), Whole(3)]), Some(Whole(5)));
        assert_eq!(of(&[Whole(8), Whole(8)]), Some(Whole(16)));
        assert_eq!(of(&[Whole(8), Whole(9)]), None, "no node has as many");
        assert_eq!(of(&[Whole(16); 17]), None);
    }

    #[test]
    fn what_all_bundles_of_a_node_must_suit_is_asked_of_it() {
        let term = |key: &str| Term { key: key.to_owned(), operator: Operator::Exists, values: Vec::new() };
        let selecting = |key: &str| PlacementRequest {
            selector: Some(Arc::new(Selector::new(vec![term(key)]))),
            ..cores(1)
        };
        let selector = |requests: &[PlacementRequest]| {
            let request = combined(&items_of(requests.iter().cloned())).expect("few");
            let keys =
                |selector: &Selector| selector.terms().iter().map(|term| term.key.to_string()).collect();
            request.selector.map_or_else(Vec::new, |selector| -> Vec<String> { keys(&selector) })
        };
        assert_eq!(selector(&[cores(1), cores(2)]), [""; 0]);
        assert_eq!(selector(&[selecting("a"), cores(2), selecting("a")]), ["a"]);
        assert_eq!(selector(&[cores(2), selecting("a")]), ["a"]);
        assert_eq!(selector(&[selecting("a"), selecting("b")]), ["a", "b"]);
        let naming = |ids: &[u64]| PlacementRequest {
            candidates: Some(ids.iter().copied().map(NodeId).collect()),
            ..cores(1)
        };
        let named = |requests: &[PlacementRequest]| {
            let request = combined(&items_of(requests.iter().cloned())).expect("few");
            request.candidates.map(|ids| ids.iter().map(|id| id.0).collect::<Vec<_>>())
        };
        assert_eq!(named(&[cores(1), cores(1)]), None);
        assert_eq!(named(&[cores(1), naming(&[3, 5])]), Some(vec![3, 5]));
        assert_eq!(named(&[naming(&[1, 3, 5, 8]), cores(1), naming(&[3, 4, 8])]), Some(vec![3, 8]));
        let owned = |owner| PlacementRequest { owner, ..cores(1) };
        let owner =
            |requests: &[PlacementRequest]| combined(&items_of(requests.iter().cloned())).expect("few").owner;
        let [one, other] = [1, 2].map(OwnerId::new);
        assert_eq!(owner(&[owned(one), owned(one)]), one);
        assert_eq!([owner(&[owned(one), owned(other)]), owner(&[owned(one), owned(None)])], [None; 2]);
    }

    #[test]
    fn bundles_are_sorted_by_devices_then_kinds_then_memory_then_cores() {
        let kind = ResourceId::new(0, false);
        let custom = |milli| {
            let custom = Demand::canonical_custom(vec![(kind, Amount::from_milli(milli))]).expect("one kind");
            PlacementRequest::new(Demand { custom, ..Demand::default() }, Policy::BestFit)
        };
        let memory = Demand { memory: Amount::whole(1), ..Demand::default() };
        let memory = PlacementRequest::new(memory, Policy::BestFit);
        let sorted = [
            gpus(GpuRequest::Whole(1)),
            gpus(GpuRequest::Fraction(1)),
            custom(2),
            custom(1),
            memory,
            cores(9),
            cores(8),
            cores(8),
        ];
        let mut items = items_of(sorted.iter().cloned());
        let given: Vec<u32> = items.iter().map(|item| item.bundle).collect();
        items.reverse();
        largest_first(&mut items);
        // Equal ones keep the order of the group.
        assert_eq!(items.iter().map(|item| item.bundle).collect::<Vec<_>>(), given);
        assert!(alike(&items[6..]) && alike(&items[..1]) && !alike(&items[5..]) && !alike(&items[..2]));
    }

    /// The sum of the demands does not say whether the devices can be divided. Such a node is passed over, and
    /// what was tried on it is given back.
    #[test]
    fn a_node_where_the_devices_do_not_suffice_is_passed_over() {
        let mut bed = Bed::new(1);
        let with = |cpu, gpus| NodeSpec { gpus, ..node_of(cpu, &[]) };
        let small = bed.add(0, with(4, 1), false);
        let large = bed.add(0, with(16, 2), false);
        bed.sync();
        let part = |part| PlacementRequest {
            demand: Demand { gpu: GpuRequest::Fraction(part), ..cores(1).demand },
            ..cores(1)
        };
        let items = items_of([part(6000), part(6000)]);
        let mut draft = Draft::default();
        assert!(bed.replicas.place_colocated(&mut draft, &items));
        assert_eq!(
            draft.iter().map(|taken| (taken.bundle, taken.node)).collect::<Vec<_>>(),
            [(0, large), (1, large)]
        );
        assert!(!bed.replicas.place_colocated(&mut draft, &items), "no other node has two devices");
        assert_eq!(draft.len(), 2);
        let one = items_of([part(10_000 - 1)]);
        assert!(bed.replicas.place_colocated(&mut draft, &one), "nothing of those is left on the small node");
        assert_eq!(draft[2].node, small);
        assert!(!bed.replicas.place_colocated(&mut draft, &items_of([cores(9), cores(9)])), "no node has 18");
    }
}
