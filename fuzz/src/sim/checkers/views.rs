//! Invariant 6: a view is a state that the shard was in, versions only grow, and a kept view does not change.

use std::collections::BTreeMap;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, StatementId};
use wharf_core::node::NodeState;
use wharf_core::resource::{Demand, GpuAssignment, ResourceKind};
use wharf_core::shard::Outcome;
use wharf_core::time::Time;
use wharf_core::view::{View, ViewVersion};

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, available, gpus_available};

/// A node as a view or the shard's facts show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    state: NodeState,
    version: u64,
    cpu: i64,
    memory: i64,
    gpus: Vec<u16>,
    allocations: BTreeMap<AllocationId, (Demand, GpuAssignment)>,
    /// The releasing allocations and the end of their grace periods.
    releasing: BTreeMap<AllocationId, Time>,
    /// Claims, in the order in which they are granted.
    claims: Vec<AllocationId>,
}

/// Returns the content of a view.
#[must_use]
pub fn shown(view: &View) -> BTreeMap<NodeId, Shown> {
    let mut nodes = BTreeMap::new();
    view.nodes(|slot, hot, cold| {
        let gpus = (0..cold.registration.spec.gpus).map(|gpu| hot.gpus.free(gpu)).collect();
        let allocations = view.allocations(slot).map(|a| (a.id, (a.demand, a.gpus))).collect();
        let pending = cold.pending.as_deref();
        let releasing = pending.into_iter().flat_map(|pending| pending.releasing.iter().copied());
        let claims = pending.into_iter().flat_map(|pending| pending.claims.iter().map(|claim| claim.id));
        let node = Shown {
            state: hot.state.unwrap_or(NodeState::Joining),
            version: hot.version,
            cpu: hot.cpu.units(),
            memory: hot.memory.units(),
            gpus,
            allocations,
            releasing: releasing.collect(),
            claims: claims.collect(),
        };
        nodes.insert(hot.id, node);
    });
    nodes
}

/// Checks that the view of a batch is published, or known to be due, before its outcomes are handed out, and that none
/// follows. Both are sequences of the view that is due.
///
/// # Errors
/// Returns the views.
pub fn views_come_before_answers(before: Option<u64>, after: u64) -> Verdict {
    ensure(before == Some(after), || {
        format!("view {before:?} was due when answers were handed out, view {after} after it")
    })
}

/// The first view that shows each statement, as a shard named it.
#[derive(Clone, Debug, Default)]
pub struct GrantsNameTheirView(BTreeMap<StatementId, u64>);

impl GrantsNameTheirView {
    /// Checks that an outcome of a batch that `visible_from` shows names this view, or if it is repeated the same view
    /// as before.
    ///
    /// # Errors
    /// Returns the outcome and the view.
    pub fn check(&mut self, outcome: &Outcome, visible_from: u64) -> Verdict {
        let Outcome::Applied(Ok(applied)) = outcome else { return Ok(()) };
        let first = *self.0.entry(applied.statement).or_insert(visible_from);
        ensure(applied.visible_from == first, || format!("{applied:?} is shown by view {first}"))
    }
}

/// Returns the nodes as the shard's facts show them.
#[must_use]
pub fn stated(facts: &Facts) -> BTreeMap<NodeId, Shown> {
    let nodes = facts.nodes().filter_map(|node| {
        let id = node.registration.id;
        let books = facts.books_of(id)?;
        let mut gpus = vec![0; usize::from(node.registration.spec.gpus)];
        for (instance, free) in gpus_available(books) {
            if let Some(gpu) = gpus.get_mut(usize::from(instance)) {
                *gpu = free as u16;
            }
        }
        let own = || facts.allocations().filter(|allocation| allocation.node == id);
        let partitions = || facts.partitions.iter();
        let releasing = partitions().flat_map(|partition| &partition.releasing);
        let releasing = releasing.filter(|record| own().any(|known| known.id == record.allocation));
        let claims = partitions().flat_map(|partition| &partition.claims).filter(|claim| claim.node == id);
        let shown = Shown {
            state: node.state,
            version: node.version,
            cpu: available(books, ResourceKind::Cpu),
            memory: available(books, ResourceKind::Memory),
            gpus,
            releasing: releasing.map(|record| (record.allocation, record.until)).collect(),
            claims: claims.map(|claim| claim.id).collect(),
            allocations: own().map(|a| (a.id, (a.demand.clone(), a.gpus))).collect(),
        };
        Some((id, shown))
    });
    nodes.collect()
}

/// Checks that a view shows a state of the shard.
///
/// # Errors
/// Returns the first node that differs.
pub fn views_are_true(shown: &BTreeMap<NodeId, Shown>, facts: &Facts) -> Verdict {
    let stated = stated(facts);
    let differs = |node: &&NodeId| shown.get(node) != stated.get(node);
    match shown.keys().chain(stated.keys()).find(differs) {
        None => Ok(()),
        Some(node) => Err(format!("{node} is shown as {:?} and is {:?}", shown.get(node), stated.get(node))),
    }
}

/// The versions of one shard's views.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionsOnlyGrow(Option<ViewVersion>);

impl VersionsOnlyGrow {
    /// Checks the newest version. `changed` means that something that views show changed since the last check.
    ///
    /// # Errors
    /// Returns a version that went back, or that did not grow although the shard changed.
    pub fn check(&mut self, incarnation: Incarnation, version: ViewVersion, changed: bool) -> Verdict {
        let grew = self.0.is_none_or(|last| if changed { version > last } else { version >= last });
        ensure(grew && version.incarnation == incarnation, || {
            format!("{version:?} follows {:?} in {incarnation:?}, changed: {changed}", self.0)
        })?;
        self.0 = Some(version);
        Ok(())
    }
}

/// Checks that a kept view still shows its original content.
///
/// # Errors
/// Returns an error if it does not.
pub fn kept_views_stay(then: &BTreeMap<NodeId, Shown>, now: &BTreeMap<NodeId, Shown>) -> Verdict {
    ensure(then == now, || "a view that is kept has changed".to_owned())
}
