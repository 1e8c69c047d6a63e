//! Checks on the contents of a store before an engine is opened over it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::EngineError;
use crate::ids::{AllocationId, NodeId, ResourceId};
use crate::jobs::JobRecord;
use crate::limits::ALLOCATIONS_PER_NODE_MAX;
use crate::map::FixedMap;
use crate::state::{PartitionState, StoreState};

/// Fails if a node of the partition has more allocations than can be counted.
pub(super) fn check_allocations(partition: &PartitionState) -> Result<(), EngineError> {
    let allocations = &partition.allocations;
    let node_of = |bundle: AllocationId| {
        let place = allocations.binary_search_by_key(&bundle, |one| one.id).ok()?;
        Some(allocations[place].node)
    };
    let placed = allocations.iter().map(|one| one.node);
    let inside = partition.inside.iter().filter_map(|one| node_of(one.bundle));
    let claimed = partition.claims.iter().map(|claim| claim.node);
    let mut counts: FixedMap<NodeId, usize> = FixedMap::default();
    for node in placed.chain(inside).chain(claimed) {
        *counts.entry(node).or_default() += 1;
    }
    let crowded = counts
        .into_iter()
        .filter(|&(_, count)| count > usize::from(ALLOCATIONS_PER_NODE_MAX))
        .min_by_key(|&(id, _)| id);
    let Some((id, allocations)) = crowded else { return Ok(()) };
    let registration = partition.nodes.iter().map(|node| &node.registration).find(|one| one.id == id);
    let node = registration.map_or_else(|| id.to_string().into(), |one| one.spec.name.clone());
    Err(EngineError::Allocations { node, allocations })
}

/// Returns the custom kinds that nodes, allocations, reservations and claims use.
pub(super) fn kinds_in_use(partitions: &[PartitionState]) -> BTreeSet<ResourceId> {
    let of_nodes = partitions.iter().flat_map(|p| &p.nodes);
    let of_nodes = of_nodes.flat_map(|n| n.registration.spec.custom.as_deref().unwrap_or(&[]));
    let of_allocations = partitions.iter().flat_map(|p| &p.allocations).flat_map(|a| a.demand.custom());
    let of_reservations = partitions.iter().flat_map(|p| &p.reservations).flat_map(|r| &r.left.custom);
    let of_claims = partitions.iter().flat_map(|p| &p.claims).flat_map(|claim| claim.demand.custom());
    of_nodes.chain(of_allocations).chain(of_reservations).chain(of_claims).map(|&(id, _)| id).collect()
}

/// Returns what queues are charged for the bundles of groups, also for those on lost nodes.
pub(super) fn charges_of(state: &StoreState) -> Vec<JobRecord> {
    let node_of = |id: AllocationId| {
        let allocations = &state.partitions.get(usize::from(id.partition.0))?.allocations;
        let place = allocations.binary_search_by_key(&id, |one| one.id).ok()?;
        Some(allocations[place].node)
    };
    let mut charges = Vec::new();
    for group in &state.groups {
        let Some(queue) = &group.spec.queue else { continue };
        let name: Arc<str> = group.id.to_string().into();
        for bundle in &group.bundles {
            let allocation = bundle.place.map(|place| place.allocation).or(bundle.lost);
            let held = allocation.and_then(|allocation| Some((node_of(allocation)?, allocation)));
            let Some(held) = held else { continue };
            let number = charges.len() as u64;
            charges.push(JobRecord::charge(
                number,
                (queue.clone(), name.clone()),
                &bundle.request,
                held,
                state.now,
            ));
        }
    }
    charges
}
