//! Conditions at rest: everything is answered, and nothing is in flight.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, StatementId};
use wharf_core::link::Decision;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// Checks that every request has a reply, except waiting ones.
///
/// # Errors
/// Returns the number of requests without a reply.
pub fn everything_is_answered(open: usize, what: &str) -> Verdict {
    ensure(open == 0, || format!("{open} {what}"))
}

/// Work that may be left when a service has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// A planner has a statement in progress.
    pub planning: bool,
    /// The registrar has a job or a question.
    pub registrar: bool,
    /// Requests in the engine.
    pub requests: usize,
    /// Requests that wait at ports.
    pub waiting: usize,
    /// Connections that have not ended.
    pub connections: usize,
}

/// Checks that a stopped service has no work left.
///
/// # Errors
/// Returns the work that is left.
pub fn stops_empty(left: UnderWay) -> Verdict {
    ensure(left == UnderWay::default(), || format!("something is under way after a stop: {left:?}"))
}

/// Checks that all threads come to rest within `rounds` rounds.
///
/// # Errors
/// Returns an error if something still moves.
pub fn comes_to_rest(moved: usize, rounds: usize) -> Verdict {
    ensure(moved == 0, || format!("after {rounds} rounds {moved} things move still"))
}

/// Checks, at rest, that a planner does not want to be woken at a time in the past. Its thread would never
/// sleep.
///
/// # Errors
/// Returns the time.
pub fn planners_sleep(now: Time, deadline: Option<Time>) -> Verdict {
    ensure(deadline.is_none_or(|due| due > now), || {
        format!("a planner that has nothing to do at {now:?} wants to be woken at {deadline:?}")
    })
}

/// Checks that a sleeping thread is woken before there is work for it.
///
/// # Errors
/// Returns the thread that sleeps.
pub fn nobody_oversleeps(what: &str, number: usize, oversleeps: bool) -> Verdict {
    ensure(!oversleeps, || format!("{what} {number} sleeps although something is there for it"))
}

/// Checks that an allocation inside a bundle exists as long as the bundle does, unless it was released.
///
/// # Errors
/// Returns the missing allocation.
pub fn inside_is_placed(inside: &BTreeMap<AllocationId, AllocationId>, facts: &[Facts]) -> Verdict {
    let records = || facts.iter().flat_map(|facts| &facts.partitions).flat_map(|partition| &partition.inside);
    let live: BTreeSet<AllocationId> =
        facts.iter().flat_map(Facts::allocations).map(|allocation| allocation.id).collect();
    for (&id, bundle) in inside {
        let there = records().any(|record| record.id == id && record.bundle == *bundle);
        ensure(!live.contains(bundle) || there, || {
            format!("{id} was placed into {bundle}, and is not there")
        })?;
    }
    Ok(())
}

/// Checks that a shard does not forget a committed statement. The shard keeps it until its coordinator has
/// heard the result.
///
/// # Errors
/// Returns an error if the statement was committed.
pub fn what_is_committed_is_done(id: StatementId, decision: Option<Decision>) -> Verdict {
    ensure(decision != Some(Decision::Committed), || format!("{id} was committed, and forgotten"))
}
