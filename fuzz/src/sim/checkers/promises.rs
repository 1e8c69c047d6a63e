//! Invariant 5, on the caller's side: one effect per request, and what was answered stands until it is
//! released or its node goes.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, GroupId, NodeId, SessionId, StatementId};
use wharf_core::state::AllocationRecord;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// A request of a client session.
pub type Request = (SessionId, u64);

/// What an answered placement promises: this allocation is there until it is released or its node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Where.
    pub node: NodeId,
    /// On which GPU instances.
    pub gpus: u16,
}

/// What was granted over a whole run, and what ended without its caller: with its node, or evicted.
#[derive(Debug, Default)]
pub struct Grants {
    by_request: BTreeMap<Request, AllocationId>,
    by_id: BTreeMap<AllocationId, Request>,
    adopted: BTreeSet<AllocationId>,
    by_statement: BTreeMap<AllocationId, (StatementId, Option<GroupId>)>,
    gone: BTreeSet<AllocationId>,
}

impl Grants {
    /// A request was granted.
    ///
    /// # Errors
    /// When it had been granted something before, or the allocation had been granted to another.
    pub fn one_effect_per_request(&mut self, request: Request, id: AllocationId) -> Verdict {
        let twice = self.by_request.insert(request, id);
        let other = self.by_id.insert(id, request);
        ensure(twice.is_none() && other.is_none(), || {
            format!("{request:?} was granted {id}, before {twice:?}; {id} was that of {other:?}")
        })
    }

    /// An allocation was recorded that somebody else made.
    pub fn adopted(&mut self, id: AllocationId) {
        self.adopted.insert(id);
    }

    /// A statement made an allocation, as a bundle of that group.
    pub fn made(&mut self, id: AllocationId, statement: StatementId, group: Option<GroupId>) {
        self.by_statement.insert(id, (statement, group));
    }

    /// Which statement made it, if one did, and for which group.
    #[must_use]
    pub fn statement_of(&self, id: AllocationId) -> Option<(StatementId, Option<GroupId>)> {
        self.by_statement.get(&id).copied()
    }

    /// A node goes, and with it what stood there.
    pub fn node_removed(&mut self, node: NodeId, before: &Facts) {
        let there = before.allocations().filter(|allocation| allocation.node == node);
        self.gone.extend(there.map(|allocation| allocation.id));
    }

    /// A statement evicted it.
    pub fn evicted(&mut self, id: AllocationId) {
        self.gone.insert(id);
    }

    /// Whether it ended with its node, or a statement evicted it.
    #[must_use]
    pub fn is_gone(&self, id: AllocationId) -> bool {
        self.gone.contains(&id)
    }

    /// How many placements were granted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// Once all is quiet: every allocation is some request's, and its client knows it or cannot know.
    ///
    /// # Errors
    /// One that is nobody's.
    pub fn everything_is_somebodys(
        &self,
        shards: &[Facts],
        knows: impl Fn(AllocationId, Option<Request>) -> bool,
    ) -> Verdict {
        for allocation in shards.iter().flat_map(Facts::allocations) {
            let id = allocation.id;
            let request = self.by_id.get(&id).copied();
            ensure(knows(id, request) || self.adopted.contains(&id), || {
                format!("{id} is nobody's, granted to {request:?}")
            })?;
        }
        Ok(())
    }
}

/// What is live, by id.
pub type Live<'a> = BTreeMap<AllocationId, &'a AllocationRecord>;

/// All that is live in `shards`.
#[must_use]
pub fn live(shards: &[Facts]) -> Live<'_> {
    shards.iter().flat_map(Facts::allocations).map(|allocation| (allocation.id, allocation)).collect()
}

/// What one client was promised is there as it was promised, unless it went with its node; and what it
/// was told has ended is not there.
///
/// # Errors
/// The first that is not so.
pub fn promises_are_kept(
    promised: &BTreeMap<AllocationId, Promise>,
    ended: &BTreeSet<AllocationId>,
    live: &Live<'_>,
    grants: &Grants,
) -> Verdict {
    for (id, promise) in promised {
        let found = live.get(id).map(|record| Promise { node: record.node, gpus: record.gpus.mask });
        let kept = found.map_or_else(|| grants.is_gone(*id), |found| found == *promise);
        ensure(kept, || format!("{id} was promised as {promise:?} and is {found:?}"))?;
    }
    match ended.iter().find(|id| live.contains_key(id)) {
        None => Ok(()),
        Some(id) => Err(format!("{id} has ended and is there")),
    }
}

/// A start over the state of a stop, with any number of shards, has the same books.
///
/// # Errors
/// That it has others.
pub fn a_start_keeps_the_books(before: &[Facts], after: &[Facts]) -> Verdict {
    let before = in_order(before);
    let after = in_order(after);
    if let Some((before, after)) = before.partitions.iter().zip(&after.partitions).find(|(b, a)| b != a) {
        return Err(format!("{before:?} is {after:?} after a start"));
    }
    if let Some((before, after)) = before.books.iter().zip(&after.books).find(|(b, a)| b != a) {
        return Err(format!("{before:?} is {after:?} after a start"));
    }
    let counts = |facts: &Facts| (facts.partitions.len(), facts.books.len());
    ensure(counts(&before) == counts(&after), || format!("{:?}, then {:?}", counts(&before), counts(&after)))
}

/// The books of all shards in one order, whatever their number.
fn in_order(shards: &[Facts]) -> Facts {
    let mut all = Facts::default();
    for facts in shards {
        all.partitions.extend(facts.partitions.iter().cloned());
        all.books.extend(facts.books.iter().cloned());
    }
    all.partitions.sort_by_key(|partition| partition.id);
    all.books.sort_by_key(|books| books.node);
    all
}

/// No two nodes, of any state and on any shards, have one name.
///
/// # Errors
/// Which do.
pub fn one_node_per_name(facts: &[Facts]) -> Verdict {
    let mut names = BTreeMap::new();
    for node in facts.iter().flat_map(Facts::nodes) {
        let id = node.registration.id;
        let name = &node.registration.spec.name;
        if let Some(other) = names.insert(name, id) {
            return Err(format!("nodes {other} and {id} are both called `{name}`"));
        }
    }
    Ok(())
}
