//! Invariant 5 on the caller's side: a request has one effect, and an answered placement remains until it is
//! released or its node is removed.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, GroupId, NodeId, SessionId, StatementId};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::Demand;
use wharf_core::state::AllocationRecord;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// A request of a client session.
pub type Request = (SessionId, u64);

/// The promise of an answered placement: the allocation exists until it is released or its node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The node of the allocation.
    pub node: NodeId,
    /// The mask of its GPU instances.
    pub gpus: u16,
}

/// All grants of a run, and the allocations that ended without their caller: with their node, by eviction, or with their
/// lease.
#[derive(Debug, Default)]
pub struct Grants {
    by_request: BTreeMap<Request, AllocationId>,
    by_id: BTreeMap<AllocationId, Request>,
    adopted: BTreeSet<AllocationId>,
    by_statement: BTreeMap<AllocationId, (StatementId, Option<GroupId>)>,
    /// Allocations whose requests had sent no outcome when their sessions ended with a stop.
    unheard: BTreeSet<AllocationId>,
    gone: BTreeSet<AllocationId>,
}

impl Grants {
    /// Records that a request was granted.
    ///
    /// # Errors
    /// Returns an error if the request was granted something before, or the allocation was granted to another
    /// request.
    pub fn one_effect_per_request(&mut self, request: Request, id: AllocationId) -> Verdict {
        let twice = self.by_request.insert(request, id);
        let other = self.by_id.insert(id, request);
        ensure(twice.is_none() && other.is_none(), || {
            format!("{request:?} was granted {id}, before {twice:?}; {id} was that of {other:?}")
        })
    }

    /// Records an adoption.
    pub fn adopted(&mut self, id: AllocationId) {
        self.adopted.insert(id);
    }

    /// Records an allocation that a statement made, with its group if it is a bundle.
    pub fn made(&mut self, id: AllocationId, statement: StatementId, group: Option<GroupId>) {
        self.by_statement.insert(id, (statement, group));
    }

    /// Returns the statement that made an allocation, and its group, if there is one.
    #[must_use]
    pub fn statement_of(&self, id: AllocationId) -> Option<(StatementId, Option<GroupId>)> {
        self.by_statement.get(&id).copied()
    }

    /// Records that a node was removed with all its allocations.
    pub fn node_removed(&mut self, node: NodeId, before: &Facts) {
        let there = before.allocations().filter(|allocation| allocation.node == node);
        self.gone.extend(there.map(|allocation| allocation.id));
    }

    /// Records that a statement evicted an allocation, or that its lease ran out.
    pub fn evicted(&mut self, id: AllocationId) {
        self.gone.insert(id);
    }

    /// Returns whether an allocation ended with its node or was evicted by a statement.
    #[must_use]
    pub fn is_gone(&self, id: AllocationId) -> bool {
        self.gone.contains(&id)
    }

    /// Handles a stop, which ends all sessions. The outcome of an `unanswered` placement may never have been sent,
    /// because its peer took no replies.
    ///
    /// # Errors
    /// Returns an allocation that none of the `unanswered` placements asked for.
    pub fn stopped<'a>(
        &mut self,
        shards: &[Facts],
        unanswered: impl Iterator<Item = &'a PlacementRequest>,
    ) -> Verdict {
        let mut unanswered: Vec<&Demand> = unanswered.map(|request| &request.demand).collect();
        for AllocationRecord { id, demand, .. } in shards.iter().flat_map(Facts::allocations) {
            if self.is_known(*id) || self.by_id.contains_key(id) || self.by_statement.contains_key(id) {
                continue;
            }
            let asked = unanswered.iter().position(|asked| *asked == demand);
            let asked = asked.ok_or_else(|| format!("nobody asked for {id}: {demand:?}"))?;
            unanswered.swap_remove(asked);
            self.unheard.insert(*id);
        }
        Ok(())
    }

    /// Returns whether an allocation was adopted, or was granted to a request that sent no outcome.
    fn is_known(&self, id: AllocationId) -> bool {
        self.adopted.contains(&id) || self.unheard.contains(&id)
    }

    /// Returns the number of placements that were granted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// Checks, at rest, that every allocation belongs to a request, and that its client knows it or cannot know
    /// it.
    ///
    /// # Errors
    /// Returns an allocation that belongs to nobody.
    pub fn everything_is_somebodys(
        &self,
        shards: &[Facts],
        knows: impl Fn(AllocationId, Option<Request>) -> bool,
    ) -> Verdict {
        for allocation in shards.iter().flat_map(Facts::allocations) {
            let id = allocation.id;
            let request = self.by_id.get(&id).copied();
            ensure(knows(id, request) || self.is_known(id), || {
                format!("{id} is nobody's, granted to {request:?}")
            })?;
        }
        Ok(())
    }
}

/// The live allocations, by id.
pub type Live<'a> = BTreeMap<AllocationId, &'a AllocationRecord>;

/// Returns all live allocations of `shards`.
#[must_use]
pub fn live(shards: &[Facts]) -> Live<'_> {
    shards.iter().flat_map(Facts::allocations).map(|allocation| (allocation.id, allocation)).collect()
}

/// Checks that promised allocations exist as promised, unless they ended with their node, and that ended
/// allocations do not exist.
///
/// # Errors
/// Returns the first violation.
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

/// Checks that a start from the state of a stop has the same books, with any number of shards.
///
/// # Errors
/// Returns the first difference.
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

/// Returns the books of all shards in one order that does not depend on the number of shards.
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

/// Checks that no two nodes have the same name, on any shards and in any state.
///
/// # Errors
/// Returns two such nodes.
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
