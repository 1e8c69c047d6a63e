//! Invariants 1, 8 and 13. Granted capacity was available and permitted, and refused capacity was not.
//! Rejections change nothing. Reserved capacity goes only to its owner.

use std::collections::BTreeMap;

use wharf_core::ids::{AllocationId, OwnerId};
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::resource::{Demand, ResourceKind};
use wharf_core::shard::{Command, NodeChange, Outcome, Released};
use wharf_core::state::AllocationRecord;
use wharf_core::statement::Operation;

use super::inside::claims;
use super::leases::expired;
use super::statements::granted_and_ended;
use super::{Verdict, ensure};
use crate::sim::facts::{Facts, Step, available, gpu_not_allocated, gpus_available};

/// Returns the placement that a step granted, and the request if the command contains it. A retry does not.
fn granted<'a>(step: &Step<'a>) -> Option<(&'a Placement, Option<&'a PlacementRequest>)> {
    match (step.command, step.outcome) {
        (Command::Place(request), Outcome::Place(Ok(placement))) => Some((placement, Some(request))),
        (Command::Park(park), Outcome::Place(Ok(placement))) => Some((placement, Some(&park.request))),
        (_, Outcome::Place(Ok(placement))) => Some((placement, None)),
        _ => None,
    }
}

fn record(facts: &Facts, id: AllocationId) -> Option<&AllocationRecord> {
    facts.allocations().find(|allocation| allocation.id == id)
}

/// Returns the owner of the reservation on the node.
fn reserved_for(facts: &Facts, placement: &Placement) -> Option<OwnerId> {
    facts.books_of(placement.node)?.reservation.as_ref().map(|reservation| reservation.owner)
}

/// Invariant 1: checks that a grant takes no more of each resource and GPU instance than was available. On a
/// reserved node, reserved capacity also counts.
///
/// # Errors
/// Returns the amount that exceeds.
pub fn grants_fit_what_was_available(step: &Step<'_>) -> Verdict {
    let Some((placement, _)) = granted(step) else { return Ok(()) };
    let id = placement.allocation;
    let record = record(step.after, id).ok_or_else(|| format!("{id} was granted and is not there"))?;
    let books = step.before.books_of(placement.node);
    let books = books.ok_or_else(|| format!("{id} was granted on {}, which is unknown", placement.node))?;
    let Demand { cpu, memory, .. } = record.demand;
    for (kind, asked) in [(ResourceKind::Cpu, cpu.units()), (ResourceKind::Memory, memory.units())] {
        let book = books.resources.iter().find(|(known, _)| *known == kind).map(|(_, book)| *book);
        let free = book.map_or(0, |book| book.available + book.reserved);
        ensure(asked <= free, || format!("{id} takes {asked} of {kind} on {}: {book:?}", placement.node))?;
    }
    for instance in record.gpus.instances() {
        let free = gpu_not_allocated(books, instance);
        ensure(u32::from(record.gpus.part) <= free, || {
            format!("{id} takes {} of instance {instance} on {}: {free}", record.gpus.part, placement.node)
        })?;
    }
    ensure(record.gpus.units() == record.demand.gpu.units(), || {
        format!("{id} asks {:?} and has {:?}", record.demand.gpu, record.gpus)
    })
}

/// Checks that a grant goes to a node that takes work and that the request admits.
///
/// # Errors
/// Returns what forbids it.
pub fn grants_go_where_they_may(step: &Step<'_>) -> Verdict {
    let Some((placement, request)) = granted(step) else { return Ok(()) };
    let node = step.before.node(placement.node);
    let node = node.ok_or_else(|| format!("placed on {}, which is unknown", placement.node))?;
    ensure(node.state == wharf_core::node::NodeState::Ready, || {
        format!("placed on {}, which is {}", placement.node, node.state)
    })?;
    let Some(request) = request else { return Ok(()) };
    let held = request.selector.as_ref().is_none_or(|s| s.holds(&node.registration.spec.labels));
    let named = request.candidates.as_ref().is_none_or(|ids| ids.contains(&placement.node));
    ensure(held && named, || format!("placed on {}, which {request:?} does not admit", placement.node))
}

/// Checks that a granted or adopted allocation is recorded, and expects it. Only an adoption may repeat an earlier one.
fn record_grant(
    expected: &mut BTreeMap<AllocationId, AllocationRecord>,
    after: &BTreeMap<AllocationId, AllocationRecord>,
    placement: &Placement,
    adopted: bool,
) -> Verdict {
    let id = placement.allocation;
    let new = after.get(&id).ok_or_else(|| format!("{id} was granted and is not there"))?;
    let same = new.node == placement.node && new.gpus == placement.gpus;
    ensure(same, || format!("{placement:?} was granted, {new:?} recorded"))?;
    let before = expected.insert(id, new.clone());
    ensure(before.as_ref().is_none_or(|before| adopted && before == new), || {
        format!("{id} was granted twice")
    })
}

/// Checks that the allocations after a step are those before it, plus what it granted and minus what it ended.
///
/// # Errors
/// Returns the first other change.
pub fn allocations_are_what_was_granted(step: &Step<'_>) -> Verdict {
    let by_id = |facts: &'_ Facts| -> BTreeMap<AllocationId, AllocationRecord> {
        facts.allocations().map(|allocation| (allocation.id, allocation.clone())).collect()
    };
    let mut expected = by_id(step.before);
    let after = by_id(step.after);
    match (step.command, step.outcome) {
        (_, Outcome::Release(Ok(Released { allocation: id, .. }))) => {
            let there = expected.remove(id).is_some() || is_no_allocation(step.before, *id);
            ensure(there, || format!("{id} was released and was not there"))?;
        }
        (_, Outcome::Node(Ok(NodeChange::Removed { node, allocations_ended, .. }))) => {
            let there = |id| expected.get(&id).is_some_and(|bundle: &AllocationRecord| bundle.node == *node);
            let inside = step.before.partitions.iter().flat_map(|partition| &partition.inside);
            let before = expected.len() + inside.filter(|record| there(record.bundle)).count();
            expected.retain(|_, allocation| allocation.node != *node);
            ensure(before - expected.len() == *allocations_ended as usize, || {
                format!("{node} is gone with {allocations_ended} allocations, and had others")
            })?;
        }
        (_, Outcome::Place(Ok(placement))) => record_grant(&mut expected, &after, placement, false)?,
        (Command::GoOn, _) => {
            let expired = expired(step);
            expected.retain(|id, _| !expired.contains(id));
        }
        (_, Outcome::Adopt(Ok(placement))) => record_grant(&mut expected, &after, placement, true)?,
        (_, Outcome::Applied(Ok(applied))) => {
            let (granted, ended) = granted_and_ended(applied);
            for id in ended {
                expected.remove(&id);
            }
            for placement in granted {
                let id = placement.allocation;
                // A result that is kept for a late coordinator is reported again, and changes nothing. The allocation
                // may have ended since.
                let version = |facts: &Facts| facts.node(placement.node).map(|node| node.version);
                let again = version(step.before) == version(step.after);
                if again && !after.contains_key(&id) {
                    let was_there = expected.contains_key(&id);
                    ensure(!was_there, || format!("{id} ended as it was said again that it is granted"))?;
                    continue;
                }
                let new =
                    after.get(&id).filter(|new| new.node == placement.node && new.gpus == placement.gpus);
                let new =
                    new.ok_or_else(|| format!("{placement:?} was granted, and is {:?}", after.get(&id)))?;
                let before = expected.insert(id, new.clone());
                ensure(before.as_ref().is_none_or(|before| before == new), || {
                    format!("{id} was granted twice")
                })?;
            }
        }
        _ => {}
    }
    // Claims become allocations when the claimed capacity is free.
    for id in claims(step.before).into_keys() {
        if let Some(new) = after.get(&id) {
            expected.entry(id).or_insert_with(|| new.clone());
        }
    }
    let differs = |id: &&AllocationId| expected.get(id) != after.get(id);
    match expected.keys().chain(after.keys()).find(differs) {
        None => Ok(()),
        Some(id) => Err(format!("{id}: expected {:?}, is {:?}", expected.get(id), after.get(id))),
    }
}

/// Returns whether the id belongs to a claim or to an allocation inside a bundle.
fn is_no_allocation(facts: &Facts, id: AllocationId) -> bool {
    let inside = facts.partitions.iter().flat_map(|partition| &partition.inside);
    claims(facts).contains_key(&id) || inside.into_iter().any(|record| record.id == id)
}

/// Checks that rejections, refusals and queries do not change the state.
///
/// # Errors
/// Returns the command that did.
pub fn rejections_move_nothing(step: &Step<'_>) -> Verdict {
    let looks = matches!(
        step.command,
        Command::ListNodes { .. }
            | Command::ListWaiting { .. }
            | Command::CountTurns(_)
            | Command::Status
            | Command::Audit { .. }
            | Command::Explain(_)
            | Command::NodeBooks(_)
            | Command::Export
    );
    let still = match step.outcome {
        Outcome::Place(Err(_)) | Outcome::Unparked | Outcome::NotParked => true,
        Outcome::Release(Err(_)) | Outcome::Node(Err(_)) | Outcome::Adopt(Err(_)) => true,
        Outcome::Books(Err(_)) | Outcome::Reserve(Err(_)) | Outcome::RenewedLease(Err(_)) => true,
        Outcome::Applied(Err(_)) | Outcome::PlaceInto(Err(_)) => true,
        // Nothing is held if a part conflicts as a whole.
        Outcome::Prepared(prepared) => prepared.held.is_empty(),
        Outcome::Applied(Ok(applied)) => {
            matches!(step.command, Command::Apply(_)) && applied.granted.is_empty()
        }
        _ => false,
    };
    ensure(!(looks || still) || step.before == step.after, || {
        format!("{:?} came to {:?} and changed the state", step.command, step.outcome)
    })
}

/// Invariant 8 in one shard: checks that no node offered what a refused request asks.
///
/// # Errors
/// Returns the node that did.
pub fn refusals_are_true(step: &Step<'_>) -> Verdict {
    let request = match (step.command, step.outcome) {
        (Command::Place(request), Outcome::Place(Err(_))) => request,
        (Command::Park(park), Outcome::Place(Err(_))) => &park.request,
        _ => return Ok(()),
    };
    let mut nodes = step.before.nodes().map(|node| node.registration.id);
    match nodes.find(|&node| step.before.offers(node, request)) {
        None => Ok(()),
        Some(node) => Err(format!("{request:?} was refused, and {node} offers it")),
    }
}

/// Invariant 13: checks that only the owner takes cores and memory that are reserved. Devices are checked
/// against the available part of each instance.
///
/// # Errors
/// Returns what was taken.
pub fn nobody_takes_what_is_reserved(step: &Step<'_>) -> Verdict {
    let Some((placement, Some(request))) = granted(step) else { return Ok(()) };
    let owner = reserved_for(step.before, placement);
    if owner.is_none() || owner == request.owner {
        return Ok(());
    }
    let Some(books) = step.before.books_of(placement.node) else { return Ok(()) };
    let asked = [
        (ResourceKind::Cpu, request.demand.cpu.units()),
        (ResourceKind::Memory, request.demand.memory.units()),
    ];
    for (kind, asked) in asked {
        let free = available(books, kind);
        ensure(asked <= free, || {
            format!("{asked} of {kind} on {}, where {free} is not reserved for {owner:?}", placement.node)
        })?;
    }
    for instance in placement.gpus.instances() {
        let free = gpus_available(books).find(|&(known, _)| known == instance).map_or(0, |(_, free)| free);
        ensure(u32::from(placement.gpus.part) <= free, || {
            format!("instance {instance} of {}, reserved for {owner:?}", placement.node)
        })?;
    }
    Ok(())
}

/// Checks that a statement takes and holds only available capacity. It causes no shortfall. It also leaves
/// reserved capacity alone, unless one of its operations belongs to the owner.
///
/// # Errors
/// Returns the node on which it took more.
pub fn statements_take_only_what_is_there(step: &Step<'_>) -> Verdict {
    let part = match step.command {
        Command::Prepare(prepare) => &prepare.part,
        Command::Apply(part) => part,
        _ => return Ok(()),
    };
    for after in &step.after.books {
        let Some(before) = step.before.books_of(after.node) else { continue };
        let owner = before.reservation.as_ref().map(|reservation| reservation.owner);
        let by_owner = part.operations.iter().any(|(_, operation)| match operation {
            Operation::Allocate(allocate) => {
                allocate.node == after.node && allocate.owner.is_some() && allocate.owner == owner
            }
            Operation::Pipeline(_) | Operation::Evict(_) => false,
        });
        for ((kind, before), (_, after_book)) in before.resources.iter().zip(&after.resources) {
            let short = after_book.shortfall > before.shortfall;
            // Capacity that was withheld for a claim is no longer withheld once the claim is granted.
            let granted = (before.pipelined - after_book.pipelined).max(0);
            let reserved = after_book.reserved + granted;
            let taken = !by_owner && *kind != ResourceKind::Gpu && reserved < before.reserved;
            ensure(!short && !taken, || {
                format!("node {}, {kind}: {before:?}, then {after_book:?}, by {part:?}", after.node)
            })?;
        }
    }
    Ok(())
}
