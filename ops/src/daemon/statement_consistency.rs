//! Checks the claims, bundles and releasing allocations of a checkpoint before the engine gets it.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, BundleId, Incarnation, NodeId};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::state::{AllocationRecord, InsideRecord, PartitionState, RegistrarState};

use super::consistency::check_allocation;
use super::statement_record::{claimed, held_inside};

/// Checks one partition. `bundles` collects the bundles of all partitions checked so far.
pub(super) fn check_statements(
    partition: &PartitionState,
    registrar: &RegistrarState,
    incarnation: Incarnation,
    bundles: &mut BTreeSet<BundleId>,
) -> Result<(), String> {
    let allocations: BTreeMap<AllocationId, &AllocationRecord> =
        partition.allocations.iter().map(|allocation| (allocation.id, allocation)).collect();
    let nodes: BTreeSet<NodeId> = partition.nodes.iter().map(|node| node.registration.id).collect();
    let mut ids: BTreeSet<AllocationId> = allocations.keys().copied().collect();
    let mut enter = |id: AllocationId| match ids.insert(id) && id.incarnation <= incarnation {
        true => Ok(()),
        false => Err(format!("allocation {id} occurs twice, or is of a start that never was")),
    };
    let mut place = |bundle: BundleId| match bundles.insert(bundle) {
        true => Ok(()),
        false => Err(format!("bundle {bundle} is placed twice")),
    };
    for claim in &partition.claims {
        enter(claim.id)?;
        claim.bundle.map_or(Ok(()), &mut place)?;
        if !nodes.contains(&claim.node) {
            return Err(format!("claim {} is on node {}, which is not there", claim.id, claim.node));
        }
        check_allocation(&claimed(claim), registrar)?;
    }
    if let Some(record) =
        partition.releasing.iter().find(|record| !allocations.contains_key(&record.allocation))
    {
        return Err(format!("allocation {} is being released, and is not there", record.allocation));
    }
    let mut inside: BTreeMap<AllocationId, Vec<&InsideRecord>> = BTreeMap::new();
    for record in &partition.bundles {
        place(record.bundle)?;
        if !allocations.contains_key(&record.allocation) {
            return Err(format!("bundle {} is no allocation: {}", record.bundle, record.allocation));
        }
        inside.insert(record.allocation, Vec::new());
    }
    for record in &partition.inside {
        enter(record.id)?;
        let there = inside.get_mut(&record.bundle);
        there
            .ok_or_else(|| format!("{} is inside {}, which is no bundle", record.id, record.bundle))?
            .push(record);
    }
    inside.iter().try_for_each(|(id, inside)| check_inside(allocations[id], inside, registrar))
}

/// Checks that the allocations inside a bundle do not exceed the bundle.
fn check_inside(
    bundle: &AllocationRecord,
    inside: &[&InsideRecord],
    registrar: &RegistrarState,
) -> Result<(), String> {
    let mut cpu = bundle.demand.cpu.units();
    let mut memory = bundle.demand.memory.units();
    let mut custom: BTreeMap<_, i64> =
        bundle.demand.custom().iter().map(|&(id, a)| (id, a.units())).collect();
    let part = |held: bool, part: u16| if held { i64::from(part) } else { 0 };
    let mut gpus: [i64; GPU_INSTANCES_MAX] =
        std::array::from_fn(|i| part(bundle.gpus.mask >> i & 1 == 1, bundle.gpus.part));
    let mut units: BTreeMap<_, i64> = BTreeMap::new();
    for &(kind, held) in bundle.units.iter().flat_map(|units| units.iter()) {
        units.extend(held.instances().map(|unit| ((kind, unit), i64::from(held.part))));
    }
    for record in inside {
        let own = held_inside(record, bundle.node);
        check_allocation(&own, registrar)?;
        cpu -= own.demand.cpu.units();
        memory -= own.demand.memory.units();
        for &(kind, amount) in own.demand.custom() {
            *custom.entry(kind).or_default() -= amount.units();
        }
        own.gpus.instances().for_each(|i| gpus[usize::from(i)] -= i64::from(own.gpus.part));
        for &(kind, held) in own.units.iter().flat_map(|units| units.iter()) {
            held.instances().for_each(|unit| *units.entry((kind, unit)).or_default() -= i64::from(held.part));
        }
    }
    let all = [cpu, memory].into_iter().chain(custom.into_values()).chain(gpus).chain(units.into_values());
    match all.min() {
        Some(least) if least < 0 => Err(format!("more is inside bundle {} than it has", bundle.id)),
        _ => Ok(()),
    }
}
