//! Leases: none ends too early or lasts too long, and a renewal that was answered holds.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::AllocationId;
use wharf_core::shard::{Command, Outcome, RenewedLease};
use wharf_core::state::LeaseRecord;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, Step};

/// How many leases one command ends at most in these runs.
pub const LEASES_ENDED: u32 = 2;

/// The leases of a shard, by allocation.
fn leases(facts: &Facts) -> BTreeMap<AllocationId, LeaseRecord> {
    let leases = facts.partitions.iter().flat_map(|partition| &partition.leases);
    leases.map(|lease| (lease.allocation, *lease)).collect()
}

/// Returns the allocations that a step ended because their leases were over.
#[must_use]
pub fn expired(step: &Step<'_>) -> BTreeSet<AllocationId> {
    if !matches!(step.command, Command::GoOn) {
        return BTreeSet::new();
    }
    let live: BTreeSet<AllocationId> = step.after.allocations().map(|record| record.id).collect();
    leases(step.before).into_keys().filter(|id| !live.contains(id)).collect()
}

/// Checks that a lease ends its allocation when it is over and not before, that no deadline moves back, and that each
/// lease belongs to a live allocation.
///
/// # Errors
/// Returns the lease.
pub fn leases_last_as_long_as_they_say(step: &Step<'_>) -> Verdict {
    let before = leases(step.before);
    let after = leases(step.after);
    let live: BTreeSet<AllocationId> = step.after.allocations().map(|record| record.id).collect();
    for (id, lease) in &after {
        ensure(live.contains(id), || format!("{id} has ended and has {lease:?}"))?;
        let was = before.get(id);
        let kept = was.is_none_or(|was| was.session == lease.session && was.until <= lease.until);
        ensure(kept, || format!("{was:?} became {lease:?}"))?;
    }
    let lost = before.keys().find(|id| live.contains(id) && !after.contains_key(id));
    ensure(lost.is_none(), || format!("{lost:?} lives on without its lease"))?;
    if !matches!(step.command, Command::GoOn) {
        return Ok(());
    }
    let ended = expired(step);
    let early = ended.iter().map(|id| before[id]).find(|lease| lease.until > step.now);
    ensure(early.is_none(), || format!("{early:?} ended at {:?}", step.now))?;
    let over = after.values().find(|lease| lease.until <= step.now);
    ensure(over.is_none() || ended.len() >= LEASES_ENDED as usize, || {
        format!("{over:?} is over at {:?}, and only {ended:?} ended", step.now)
    })
}

/// Checks that a lease lasts as long as the answer to its renewal says, and at least as long as was asked.
///
/// # Errors
/// Returns the lease.
pub fn renewals_hold(step: &Step<'_>) -> Verdict {
    let after = leases(step.after);
    let wanted = |lasts_ns: u64| Time(step.now.0 + lasts_ns);
    match (step.command, step.outcome) {
        (&Command::RenewLease { lasts_ns, .. }, &Outcome::RenewedLease(Ok(renewed))) => {
            let RenewedLease { allocation, until } = renewed;
            let lease = after.get(&allocation);
            ensure(until >= wanted(lasts_ns) && lease.is_some_and(|lease| lease.until == until), || {
                format!("{renewed:?} was answered, and there is {lease:?}")
            })
        }
        (&Command::RenewSession { session, lasts_ns }, &Outcome::RenewedSession(renewed)) => {
            let own = || after.values().filter(|lease| lease.session == Some(session));
            let first = own().map(|lease| lease.until).min();
            let enough = first.is_none_or(|first| first >= wanted(lasts_ns));
            ensure(enough && first == renewed.until && own().count() as u64 == renewed.allocations, || {
                format!("{renewed:?} was answered, and there is {:?}", own().collect::<Vec<_>>())
            })
        }
        _ => Ok(()),
    }
}

/// Checks, when no shard has anything to do, that no lease is over for longer than `patience`.
///
/// # Errors
/// Returns the lease.
pub fn leases_end_in_time(shards: &[Facts], now: Time, patience: u64) -> Verdict {
    let all = shards.iter().flat_map(leases);
    match all.map(|(_, lease)| lease).find(|lease| lease.until.0 + patience <= now.0) {
        None => Ok(()),
        Some(lease) => Err(format!("{lease:?} is there at {now:?}")),
    }
}
