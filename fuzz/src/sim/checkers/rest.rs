//! What must be so once nothing moves any more: everything is answered, and nothing is under way.

use std::collections::BTreeMap;

use wharf_core::ids::{AllocationId, StatementId};
use wharf_core::link::Decision;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// Every request has a reply, but waits.
///
/// # Errors
/// How many have none.
pub fn everything_is_answered(open: usize, what: &str) -> Verdict {
    ensure(open == 0, || format!("{open} {what}"))
}

/// What may be under way when a service has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// A planner has a statement under way.
    pub planning: bool,
    /// The registrar has a job or a question.
    pub registrar: bool,
    /// Requests in the engine.
    pub requests: usize,
    /// Requests that wait at ports.
    pub waiting: usize,
}

/// A service that has stopped has nothing under way.
///
/// # Errors
/// What is.
pub fn stops_empty(left: UnderWay) -> Verdict {
    ensure(left == UnderWay::default(), || format!("something is under way after a stop: {left:?}"))
}

/// Within so many rounds all threads together come to rest.
///
/// # Errors
/// That they do not.
pub fn comes_to_rest(moved: usize, rounds: usize) -> Verdict {
    ensure(moved == 0, || format!("after {rounds} rounds {moved} things move still"))
}

/// Once all is quiet: a planner wants to be woken later, not at a time that is over; else its thread never
/// sleeps.
///
/// # Errors
/// The time.
pub fn planners_sleep(now: Time, deadline: Option<Time>) -> Verdict {
    ensure(deadline.is_none_or(|due| due > now), || {
        format!("a planner that has nothing to do at {now:?} wants to be woken at {deadline:?}")
    })
}

/// A thread that looked a last time and fell asleep is woken before anything is there for it.
///
/// # Errors
/// Which one is not.
pub fn nobody_oversleeps(what: &str, number: usize, oversleeps: bool) -> Verdict {
    ensure(!oversleeps, || format!("{what} {number} sleeps although something is there for it"))
}

/// What was placed into a bundle is there, in that bundle, for as long as the bundle is, unless it was released.
///
/// # Errors
/// What is not there.
pub fn inside_stands(inside: &BTreeMap<AllocationId, AllocationId>, facts: &[Facts]) -> Verdict {
    let records = || facts.iter().flat_map(|facts| &facts.partitions).flat_map(|partition| &partition.inside);
    for (&id, &bundle) in inside {
        let stands = facts.iter().flat_map(Facts::allocations).any(|allocation| allocation.id == bundle);
        let there = records().any(|record| (record.id, record.bundle) == (id, bundle));
        ensure(!stands || there, || format!("{id} was placed into {bundle}, and is not there"))?;
    }
    Ok(())
}

/// A shard that does not know a statement any more was not to do it: one that was committed is kept until its
/// coordinator has heard.
///
/// # Errors
/// That it was to.
pub fn what_is_committed_is_done(id: StatementId, decision: Option<Decision>) -> Verdict {
    ensure(decision != Some(Decision::Committed), || format!("{id} was committed, and forgotten"))
}
