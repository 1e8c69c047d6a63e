//! Allocations inside bundles, and claims on capacity that is being released, checked step by step.

use std::collections::BTreeMap;

use wharf_core::ids::AllocationId;
use wharf_core::resource::GpuAssignment;
use wharf_core::shard::{Command, NodeChange, Outcome, Released};
use wharf_core::state::{AllocationRecord, ClaimRecord, InsideRecord};
use wharf_core::statement::Granted;

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, Step};

fn inside(facts: &Facts) -> BTreeMap<AllocationId, &InsideRecord> {
    facts
        .partitions
        .iter()
        .flat_map(|partition| &partition.inside)
        .map(|record| (record.id, record))
        .collect()
}

/// Returns the claims of a shard, by the id that each will have as an allocation.
#[must_use]
pub fn claims(facts: &Facts) -> BTreeMap<AllocationId, &ClaimRecord> {
    facts
        .partitions
        .iter()
        .flat_map(|partition| &partition.claims)
        .map(|record| (record.id, record))
        .collect()
}

fn within(inner: &GpuAssignment, outer: &GpuAssignment) -> bool {
    inner.mask & !outer.mask == 0
}

/// Checks that the contents of a bundle fit its demand and instances. An allocation inside appears only by a
/// placement into the bundle. It ends only by a release or with its bundle.
///
/// # Errors
/// Returns the first violation.
pub fn inside_is_of_its_bundle(step: &Step<'_>) -> Verdict {
    let live: BTreeMap<AllocationId, &AllocationRecord> =
        step.after.allocations().map(|allocation| (allocation.id, allocation)).collect();
    let before = inside(step.before);
    let after = inside(step.after);
    let mut taken: BTreeMap<AllocationId, ([i64; 3], BTreeMap<u8, u32>)> = BTreeMap::new();
    for record in after.values() {
        let bundle = live.get(&record.bundle).ok_or_else(|| format!("{record:?} is in nothing"))?;
        ensure(within(&record.gpus, &bundle.gpus), || format!("{record:?} is not within {bundle:?}"))?;
        let (sum, gpus) = taken.entry(record.bundle).or_default();
        let demand = &record.demand;
        for (sum, part) in
            sum.iter_mut().zip([demand.cpu.units(), demand.memory.units(), record.gpus.units()])
        {
            *sum += part;
        }
        for instance in record.gpus.instances() {
            *gpus.entry(instance).or_default() += u32::from(record.gpus.part);
        }
    }
    for (id, (sum, gpus)) in &taken {
        let bundle = live[id];
        let all = [bundle.demand.cpu.units(), bundle.demand.memory.units(), bundle.gpus.units()];
        let fits = sum.iter().zip(all).all(|(sum, all)| *sum <= all)
            && gpus.values().all(|&parts| parts <= u32::from(bundle.gpus.part));
        ensure(fits, || format!("{sum:?} and {gpus:?} are in {bundle:?}"))?;
    }
    for (id, record) in &before {
        let released = matches!(step.outcome, Outcome::Release(Ok(Released { allocation: released, .. })) if released == id);
        let stays = after.get(id) == Some(record);
        ensure(stays || released || !live.contains_key(&record.bundle), || format!("{record:?} is gone"))?;
        ensure(!released || !after.contains_key(id), || format!("{record:?} was released, and is there"))?;
    }
    for (id, record) in after.iter().filter(|(id, _)| !before.contains_key(id)) {
        let placed = match (step.command, step.outcome) {
            (Command::PlaceInto { bundles, demand }, Outcome::PlaceInto(Ok(placement))) => {
                placement.allocation == *id && bundles.contains(&record.bundle) && **demand == record.demand
            }
            _ => false,
        };
        ensure(placed, || format!("{record:?} came by {:?}", step.command))?;
    }
    Ok(())
}

/// Checks that a claim appears only by a commit. It becomes the allocation that it claims, under the promised
/// id, or it ends because it is released or its node can no longer hold it.
///
/// # Errors
/// Returns the first violation.
pub fn claims_become_what_they_claim(step: &Step<'_>) -> Verdict {
    let before = claims(step.before);
    let after = claims(step.after);
    let committed = |id: &AllocationId| match step.outcome {
        Outcome::Applied(Ok(applied)) => applied.granted.iter().any(|(_, granted)| {
            matches!(granted, Granted::Pipelined { allocation, .. } if allocation == id)
                || matches!(granted, Granted::Allocated(placement) if placement.allocation == *id)
        }),
        _ => false,
    };
    let new = after.keys().find(|id| !before.contains_key(id) && !committed(id));
    ensure(new.is_none(), || format!("claim {new:?} came by {:?}", step.command))?;
    for allocation in step.after.allocations() {
        if let Some(claim) = before.get(&allocation.id) {
            // A claim that was planned again may have other instances.
            let same = claim.node == allocation.node && claim.demand == allocation.demand;
            ensure(same && !after.contains_key(&allocation.id), || format!("{claim:?} is {allocation:?}"))?;
        }
    }
    let lost = before.iter().find(|(id, claim)| {
        let is_now = step.after.allocations().any(|allocation| allocation.id == **id);
        !after.contains_key(id) && !is_now && !may_end(step, claim)
    });
    ensure(lost.is_none(), || format!("claim {lost:?} ended by {:?}", step.command))
}

/// Returns whether a step may end a claim.
fn may_end(step: &Step<'_>, claim: &ClaimRecord) -> bool {
    let node = claim.node;
    match (step.command, step.outcome) {
        (_, Outcome::Release(Ok(Released { allocation: id, inside: None }))) => *id == claim.id,
        // Evicted or ended at once before it was granted.
        (_, Outcome::Applied(Ok(applied))) => applied
            .granted
            .iter()
            .any(|(_, granted)| matches!(granted, Granted::Ended(id) if *id == claim.id)),
        (_, Outcome::Node(Ok(NodeChange::Removed { node: gone, .. }))) => *gone == node,
        // An adoption may overcommit the node, so claims there may end.
        (Command::Adopt(adoption), _) => adoption.node == node,
        (Command::UpdateNode(of, _) | Command::Report(of, _) | Command::SetHealth(of, _), _)
        | (Command::SetResources(of, _) | Command::Life(of, _), _) => *of == node,
        _ => false,
    }
}
