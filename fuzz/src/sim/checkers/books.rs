//! Invariant 2: per node, resource and instance, the available, allocated, held, withheld and unhealthy amounts
//! add up exactly to the total and the shortfall.

use std::collections::BTreeMap;

use wharf_core::ids::NodeId;
use wharf_core::resource::{GPU_UNIT, ResourceKind};
use wharf_core::shard::{Book, NodeBooks};

use super::{Verdict, ensure};
use crate::sim::facts::Step;

/// Checks that every book balances, that no amount is negative, and that a shortfall leaves nothing available.
///
/// # Errors
/// Returns the first violation.
pub fn books_balance(step: &Step<'_>) -> Verdict {
    for books in &step.after.books {
        for (kind, book) in &books.resources {
            check_book(*book).map_err(|found| format!("node {}, {kind}: {found}: {book:?}", books.node))?;
        }
        for (kind, instances) in &books.instances {
            for instance in instances {
                let whole = instances_whole(step, books, *kind, instance.instance);
                let left = instance.available + instance.allocated + instance.unhealthy;
                let right = whole + instance.shortfall;
                // The withheld capacity of an instance is shown only in the book of the whole kind.
                ensure(left <= right, || format!("node {}, {kind}: {instance:?} of {whole}", books.node))?;
                ensure(instance.shortfall == 0 || instance.available == 0, || {
                    format!("node {}, {kind}: short and available: {instance:?}", books.node)
                })?;
            }
        }
    }
    Ok(())
}

fn instances_whole(step: &Step<'_>, books: &NodeBooks, kind: ResourceKind, instance: u8) -> u32 {
    let count = match kind {
        ResourceKind::Gpu => step.after.node(books.node).map_or(0, |node| node.registration.spec.gpus),
        _ => u8::MAX,
    };
    if instance < count { u32::from(GPU_UNIT) } else { 0 }
}

fn check_book(book: Book) -> Verdict {
    let Book {
        total, available, allocated, held, releasing, pipelined, reserved, unhealthy, shortfall, ..
    } = book;
    let all = [total, available, allocated, held, releasing, pipelined, reserved, unhealthy, shortfall];
    ensure(all.iter().all(|&amount| amount >= 0), || "less than nothing".to_owned())?;
    ensure(book.balances(), || "does not balance".to_owned())
}

/// The sum of a node's allocations: cores, memory and GPUs, the parts of each GPU instance, and their number.
type Sum = ([i64; 3], BTreeMap<u8, u32>, u32);

/// Checks that the allocated amount is the sum of the allocations, per resource and GPU instance. An instance
/// must show at least what its allocations take.
///
/// # Errors
/// Returns the first node whose books differ.
pub fn books_are_the_sum_of_allocations(step: &Step<'_>) -> Verdict {
    let mut sums: BTreeMap<NodeId, Sum> = BTreeMap::new();
    for allocation in step.after.allocations() {
        let (sum, gpus, count) = sums.entry(allocation.node).or_default();
        let demand = &allocation.demand;
        for (sum, units) in
            sum.iter_mut().zip([demand.cpu.units(), demand.memory.units(), allocation.gpus.units()])
        {
            *sum += units;
        }
        for instance in allocation.gpus.instances() {
            *gpus.entry(instance).or_default() += u32::from(allocation.gpus.part);
        }
        *count += 1;
    }
    let nothing = Default::default();
    for books in &step.after.books {
        let (sum, gpus, count) = sums.get(&books.node).unwrap_or(&nothing);
        ensure(books.allocations == *count, || {
            format!("node {} counts {} allocations, has {count}", books.node, books.allocations)
        })?;
        for (kind, sum) in [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu].into_iter().zip(sum) {
            let book = books.resources.iter().find(|(known, _)| *known == kind);
            let live = book.map(|(_, book)| book.allocated + book.releasing);
            ensure(live == Some(*sum), || {
                format!("node {}, {kind}: {live:?} allocated or releasing, {sum} by allocations", books.node)
            })?;
        }
        let held = books.resources.iter().find(|(kind, _)| *kind == ResourceKind::Gpu);
        let held = held.map_or(0, |(_, book)| book.held);
        let mut held_by_instance = 0;
        let instances = books.instances.iter().filter(|(kind, _)| *kind == ResourceKind::Gpu);
        for instance in instances.flat_map(|(_, instances)| instances) {
            let sum = gpus.get(&instance.instance).copied().unwrap_or(0);
            held_by_instance += i64::from(instance.allocated) - i64::from(sum);
            ensure(instance.allocated >= sum, || {
                format!("node {}: {instance:?}, {sum} by its allocations", books.node)
            })?;
        }
        ensure(held_by_instance == held, || {
            format!("node {}: {held} of its GPUs is held, by instance {held_by_instance}", books.node)
        })?;
    }
    Ok(())
}

/// Checks that unhealthy GPU instances offer nothing.
///
/// # Errors
/// Returns the first instance that does.
pub fn unhealthy_offers_nothing(step: &Step<'_>) -> Verdict {
    for node in step.after.nodes() {
        let id = node.registration.id;
        let Some(books) = step.after.books_of(id) else { return Err(format!("node {id} has no books")) };
        for (instance, free) in crate::sim::facts::gpus_available(books) {
            let unhealthy = node.unhealthy.iter().any(|&(known, _)| known == instance);
            ensure(!unhealthy || free == 0, || {
                format!("node {id}: unhealthy instance {instance} offers {free}")
            })?;
        }
    }
    Ok(())
}
