//! Checks what was read from disk before the engine gets it.
//!
//! The engine asserts that its state is consistent, and treats a contradiction as a bug. In a file, a
//! contradiction is damage and must end in a message that names the row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, ResourceId};
use wharf_core::limits::{
    AMOUNT_MAX, GPU_INSTANCES_MAX, NODES_MAX, REMOVED_NODES_KEPT_MAX, RESOURCE_KINDS_MAX,
};
use wharf_core::node::NodeSpec;
use wharf_core::resource::{Amount, GPU_UNIT, check_unit_total};
use wharf_core::state::{
    AllocationRecord, NodeRecord, PartitionState, RegistrarState, ReservationRecord, StoreState,
};

use super::statement_consistency::check_statements;

/// The sums held by the allocations of a node, in 1/10,000 units. The engine never exceeds these bounds, even if a
/// node's capacity is reduced below what is in use.
#[derive(Default)]
struct Held {
    cpu: i64,
    memory: i64,
    gpus: [i64; GPU_INSTANCES_MAX],
    custom: BTreeMap<ResourceId, i64>,
    names: BTreeSet<Arc<str>>,
}

/// Returns the least value that occurs more than once.
fn twice<T: Ord>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut sorted: Vec<T> = values.into_iter().collect();
    sorted.sort_unstable();
    let at = sorted.windows(2).position(|pair| pair[0] == pair[1])?;
    Some(sorted.swap_remove(at))
}

/// Checks that the engine can be opened over `state`. The error describes the first contradiction.
pub(super) fn check_state(state: &StoreState) -> Result<(), String> {
    let registrar = &state.registrar;
    if registrar.resources.len() > RESOURCE_KINDS_MAX || twice(&registrar.resources).is_some() {
        return Err("its resource kinds are too many, or one occurs twice".to_owned());
    }
    let nodes = || state.partitions.iter().flat_map(|partition| &partition.nodes);
    if nodes().count() > NODES_MAX {
        return Err(format!("it holds more than {NODES_MAX} nodes"));
    }
    if let Some(name) = twice(nodes().map(|node| &node.registration.spec.name)) {
        return Err(format!("two nodes are called `{name}`"));
    }
    if let Some(ordinal) = twice(nodes().map(|node| node.registration.ordinal)) {
        return Err(format!("two nodes have place {} in the order of registration", ordinal.0));
    }
    let removed = registrar.removed.iter().map(|node| node.id);
    if twice(nodes().map(|node| node.registration.id).chain(removed)).is_some() {
        return Err("a removed node has the id of another".to_owned());
    }
    if let Some(never) = registrar.removed.iter().find(|n| n.id.0.max(n.ordinal.0) >= registrar.next_node) {
        return Err(format!("removed node {} was never registered", never.id));
    }
    if let Some(last) = registrar.removed.iter().find(|node| node.version == u64::MAX) {
        return Err(format!("removed node {} has a version that none follows", last.id));
    }
    if registrar.removed.len() > REMOVED_NODES_KEPT_MAX {
        return Err(format!("it keeps more than {REMOVED_NODES_KEPT_MAX} removed nodes"));
    }
    let mut bundles = BTreeSet::new();
    state.partitions.iter().try_for_each(|partition| {
        check_partition(partition, registrar, state.incarnation)?;
        check_statements(partition, registrar, state.incarnation, &mut bundles)
    })
}

fn check_partition(
    partition: &PartitionState,
    registrar: &RegistrarState,
    incarnation: Incarnation,
) -> Result<(), String> {
    let mut held: BTreeMap<NodeId, Held> = BTreeMap::new();
    for node in &partition.nodes {
        check_node(node, registrar)?;
        held.insert(node.registration.id, Held::default());
    }
    for allocation in &partition.allocations {
        let AllocationRecord { id, node, .. } = allocation;
        if id.incarnation > incarnation {
            return Err(format!("allocation {id} is of a start that never was"));
        }
        let held = held
            .get_mut(node)
            .ok_or_else(|| format!("allocation {id} is on node {node}, which is not there"))?;
        take(held, allocation, registrar)?;
    }
    // Reservations are keyed by node, so each node has at most one. That the nodes exist was checked before.
    for ReservationRecord { node, left, .. } in &partition.reservations {
        if left.gpu > Amount::whole(GPU_INSTANCES_MAX as u32) {
            return Err(format!("the reservation of node {node} is of too many GPUs"));
        }
        check_kinds(&left.custom, registrar)
            .map_err(|message| format!("the reservation of node {node}: {message}"))?;
    }
    Ok(())
}

fn check_node(node: &NodeRecord, registrar: &RegistrarState) -> Result<(), String> {
    let id = node.registration.id;
    let ordinal = node.registration.ordinal;
    let NodeSpec { gpus, custom, .. } = &node.registration.spec;
    if id.0 >= registrar.next_node || ordinal.0 >= registrar.next_node {
        return Err(format!("node {id} was never registered"));
    }
    if usize::from(*gpus) > GPU_INSTANCES_MAX {
        return Err(format!("node {id} has {gpus} GPUs, and a node has at most {GPU_INSTANCES_MAX}"));
    }
    for &(kind, total) in custom.as_deref().unwrap_or(&[]) {
        if kind.is_unit_instance() {
            check_unit_total(total).map_err(|message| format!("node {id}: {message}"))?;
        }
    }
    check_kinds(custom.as_deref().unwrap_or(&[]), registrar)
        .map_err(|message| format!("node {id}: {message}"))
}

fn check_kinds(custom: &[(ResourceId, Amount)], registrar: &RegistrarState) -> Result<(), String> {
    for &(kind, _) in custom {
        if kind.index() >= registrar.resources.len() {
            return Err(format!("resource {} has no name", kind.index()));
        }
        let unit_instance = registrar.unit_instances.binary_search(&(kind.index() as u16)).is_ok();
        if unit_instance != kind.is_unit_instance() {
            return Err(format!("resource {} is said to be of two natures", kind.index()));
        }
    }
    Ok(())
}

/// Adds what `allocation` holds to `held`.
fn take(held: &mut Held, allocation: &AllocationRecord, registrar: &RegistrarState) -> Result<(), String> {
    let AllocationRecord { id, demand, gpus, .. } = allocation;
    check_allocation(allocation, registrar)?;
    add(&mut held.cpu, demand.cpu, id)?;
    add(&mut held.memory, demand.memory, id)?;
    for &(kind, amount) in demand.custom() {
        add(held.custom.entry(kind).or_default(), amount, id)?;
    }
    for instance in gpus.instances() {
        let sum = &mut held.gpus[usize::from(instance)];
        // Adopted allocations may hold more of a device than it has.
        *sum += i64::from(gpus.part);
        if *sum > i64::from(u32::MAX) {
            return Err(format!(
                "allocation {id} is on a node that holds more of GPU {instance} than can be"
            ));
        }
    }
    match &allocation.external_id {
        Some(name) if !held.names.insert(Arc::clone(name)) => {
            Err(format!("allocation {id} has the external id of another on its node"))
        }
        _ => Ok(()),
    }
}

/// Checks that an allocation holds the instances that it asked for, and that its resource kinds are known.
pub(super) fn check_allocation(
    allocation: &AllocationRecord,
    registrar: &RegistrarState,
) -> Result<(), String> {
    let AllocationRecord { id, demand, gpus, .. } = allocation;
    check_kinds(demand.custom(), registrar).map_err(|message| format!("allocation {id}: {message}"))?;
    if gpus.part > GPU_UNIT || gpus.units() != demand.gpu.amount().units() {
        return Err(format!("allocation {id} holds other GPUs than it asked for"));
    }
    check_units(allocation)
}

/// Checks that an allocation holds the units that it asked for.
fn check_units(allocation: &AllocationRecord) -> Result<(), String> {
    let units = allocation.units.as_ref().map_or(&[][..], |units| units.as_slice());
    let asked = allocation.demand.custom().iter().filter(|(kind, _)| kind.is_unit_instance());
    let held = units.iter().map(|&(kind, units)| (kind, units.units(), units.part <= GPU_UNIT));
    if asked.map(|&(kind, amount)| (kind, amount.units(), true)).eq(held) {
        Ok(())
    } else {
        Err(format!("allocation {} holds other units than it asked for", allocation.id))
    }
}

fn add(sum: &mut i64, amount: Amount, id: &AllocationId) -> Result<(), String> {
    // Does not overflow: neither side is above `AMOUNT_MAX`.
    *sum += amount.units();
    if *sum > AMOUNT_MAX {
        Err(format!("allocation {id} is on a node that holds more than can be"))
    } else {
        Ok(())
    }
}
