//! Groups as their callers see them: as requested, with at least their minimum, and matching the shards' books.
//! At rest, nothing that fits waits.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::group::{BundlePlace, GroupRefusal, GroupSpec, GroupState, GroupView, Strategy};
use wharf_core::ids::{AllocationId, BundleId, GroupId, NodeId};
use wharf_core::resource::GpuAssignment;
use wharf_core::state::AllocationRecord;

use super::rules::{Requests, Round, bundles};
use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// Returns the placed bundles: index, node, allocation and GPU instances.
pub fn placed(group: &GroupView) -> impl Iterator<Item = (u32, NodeId, AllocationId, GpuAssignment)> {
    group.bundles.iter().filter_map(|&(index, bundle)| {
        bundle.map(|BundlePlace { node, allocation, gpus }| (index, node, allocation, gpus))
    })
}

/// Checks that a group is shown as requested, and has its minimum if its state is placed.
///
/// # Errors
/// Returns the difference.
pub fn groups_are_as_asked(view: &GroupView, spec: &GroupSpec, requests: &Requests) -> Verdict {
    let nodes: BTreeSet<NodeId> = placed(view).map(|(_, node, ..)| node).collect();
    let count = placed(view).count();
    let strategy = match spec.strategy {
        Strategy::StrictPack => nodes.len() <= 1,
        Strategy::StrictSpread => nodes.len() == count,
        Strategy::Pack | Strategy::Spread => true,
    };
    ensure(strategy, || format!("{view:?} is not {:?}", spec.strategy))?;
    let enough = view.state != GroupState::Placed || count >= spec.min_members as usize;
    ensure(enough, || format!("{view:?} is called placed"))?;
    ensure(*view.spec == *spec, || format!("{spec:?} was asked, shown is {view:?}"))?;
    let mut shown = view.bundles.iter().map(|(index, _)| index).zip(&view.requests);
    let other = shown.find(|(index, shown)| requests.get(index).is_some_and(|asked| asked != *shown));
    ensure(other.is_none(), || format!("bundle {other:?} was asked otherwise: {requests:?}"))
}

/// Differences that are allowed because someone else caused them and the planner may not know yet.
pub struct Excused<'a> {
    /// Returns whether someone else ended this allocation.
    pub ended: &'a dyn Fn(AllocationId) -> bool,
}

/// Checks that each placed bundle is an allocation in a shard's ledger, as that bundle, with the same node and
/// instances. Bundles that someone else ended are excused.
///
/// # Errors
/// Returns a bundle that is not.
pub fn groups_are_in_the_books(view: &GroupView, facts: &[Facts], excused: &Excused<'_>) -> Verdict {
    let bundles: BTreeMap<AllocationId, BundleId> = bundles(facts).collect();
    for (index, node, allocation, gpus) in placed(view) {
        let there = facts.iter().flat_map(Facts::allocations).find(|record| record.id == allocation);
        let of = bundles.get(&allocation);
        let same = |there: &AllocationRecord| {
            (there.node, there.gpus) == (node, gpus) && of == Some(&BundleId { group: view.id, index })
        };
        ensure(there.map_or_else(|| (excused.ended)(allocation), same), || {
            format!(
                "bundle {index} of {} is called placed on {node} as {allocation}: {there:?}, {of:?}",
                view.id
            )
        })?;
    }
    Ok(())
}

/// Checks, at rest, that each bundle in a shard is one that its group's planner shows as placed. A bundle on a
/// lost node (`lost`) may instead be waiting to be placed again.
///
/// # Errors
/// Returns a bundle that belongs to no group.
pub fn bundles_are_of_groups<'a>(
    facts: &[Facts],
    group: impl Fn(GroupId) -> Option<&'a GroupView>,
    lost: impl Fn(AllocationId) -> bool,
) -> Verdict {
    for (allocation, bundle) in bundles(facts) {
        let view = group(bundle.group);
        let known = view.is_some_and(|view| {
            placed(view).any(|(index, _, id, _)| (index, id) == (bundle.index, allocation))
                || lost(allocation) && view.bundles.contains(&(bundle.index, None))
        });
        ensure(known, || format!("{allocation} is bundle {bundle}, and its group is {view:?}"))?;
    }
    Ok(())
}

/// Checks that allocations of removed groups and of bundles that were taken out have ended. An allocation that
/// someone else evicted keeps its grace period.
///
/// # Errors
/// Returns an allocation that is still live.
pub fn groups_go_whole(
    ended: &BTreeSet<AllocationId>,
    is_live: impl Fn(AllocationId) -> bool,
    is_releasing: impl Fn(AllocationId) -> bool,
) -> Verdict {
    let mut stays = ended.iter().filter(|&&id| is_live(id) && !is_releasing(id));
    match stays.next() {
        None => Ok(()),
        Some(id) => Err(format!("{id} was in a group that is gone, and is there")),
    }
}

/// Checks, at rest, that no bundle waits that a node could hold. This covers only groups where one bundle
/// decides: those without a strict strategy and without a rule over a label.
///
/// # Errors
/// Returns the bundle and its group.
pub fn no_bundle_waits_that_would_fit(view: &GroupView, facts: &[Facts]) -> Verdict {
    let free =
        matches!(view.spec.strategy, Strategy::Pack | Strategy::Spread) && view.spec.topology.is_none();
    let open: Vec<_> = view.bundles.iter().zip(&view.requests).collect();
    let open: Vec<_> = open.into_iter().filter(|((_, at), _)| at.is_none()).collect();
    let missing = (view.spec.min_members as usize).saturating_sub(placed(view).count());
    // If several bundles must be placed together, one that fits alone proves nothing.
    if !free || missing > 1 {
        return Ok(());
    }
    for ((index, _), request) in open {
        let offers = |facts: &&Facts| facts.nodes().any(|node| facts.offers(node.registration.id, request));
        let found = facts.iter().find(offers).is_none();
        ensure(found, || format!("bundle {index} of {view:?} waits, and fits"))?;
    }
    Ok(())
}

/// Checks, at rest and after every deadline, that every job is answered and no group is committing.
///
/// # Errors
/// Returns the number of unanswered jobs, or the group.
pub fn every_group_is_settled<'a>(
    mut views: impl Iterator<Item = &'a GroupView>,
    unanswered: usize,
) -> Verdict {
    ensure(unanswered == 0, || format!("{unanswered} jobs of planners are without an answer"))?;
    let open = views.find(|view| view.state == GroupState::Committing);
    ensure(open.is_none(), || format!("{open:?} goes on for ever"))
}

/// Checks that planners keep exactly the groups that their callers know.
///
/// # Errors
/// Returns the groups of both sides.
pub fn planners_keep_what_callers_know(
    kept: &BTreeSet<GroupId>,
    known: impl Iterator<Item = GroupId>,
) -> Verdict {
    let known: BTreeSet<GroupId> = known.collect();
    ensure(*kept == known, || format!("planners keep {kept:?}, and their callers know {known:?}"))
}

/// Checks that a group that may wait is not refused before its deadline, unless it is infeasible.
///
/// # Errors
/// Returns the early refusal.
pub fn who_may_wait_is_not_refused(spec: &GroupSpec, refusal: &GroupRefusal, round: &Round) -> Verdict {
    let waits = !refusal.infeasible && spec.wait_until.is_some_and(|until| until > round.now);
    ensure(!waits, || format!("{spec:?} is refused at {:?}: {refusal:?}", round.now))
}

/// Checks that a start keeps the groups of the stop.
///
/// # Errors
/// Returns the first difference.
pub fn a_start_keeps_the_groups(
    before: &[wharf_core::state::GroupRecord],
    after: &[wharf_core::state::GroupRecord],
) -> Verdict {
    let differs = before.iter().zip(after).find(|(before, after)| before != after);
    ensure(differs.is_none(), || format!("a group is another after a start: {differs:?}"))?;
    ensure(before.len() == after.len(), || format!("{} groups, then {}", before.len(), after.len()))
}
