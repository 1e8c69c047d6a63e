//! What a crash leaves: everything that callers were told, and no half effect.
//!
//! The journal is a sequence of units. The engine's books are kept after each of them. A start after a crash must come to
//! the books after some number of units, at least those that were called durable. So it has no part of a unit, and nothing
//! out of order. What several units share may be taken back ([`Rebuild::take_back`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::GroupSpec;
use wharf_core::ids::{GroupId, NodeId};
use wharf_core::jobs::JobsRecord;
use wharf_core::node::NodeRegistration;
use wharf_core::recovery::Rebuild;
use wharf_core::state::{GroupRecord, NodeRecord, RegistrarState, RemovedNode, StoreState};

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// Returns groups as the store has them. The times at which they would have stopped waiting are not stored.
#[must_use]
pub fn as_stored(groups: &[GroupRecord]) -> Vec<GroupRecord> {
    let mut groups = groups.to_vec();
    for group in &mut groups {
        Arc::make_mut(&mut group.spec).wait_until = None;
    }
    groups
}

/// Returns the books as a start after a crash has them. What is half there is taken back.
///
/// # Panics
/// If the books are not those of an engine.
#[must_use]
pub fn as_recovered(books: &StoreState) -> StoreState {
    let mut rebuild = Rebuild::new(books.clone()).expect("they are the books of an engine");
    rebuild.take_back();
    let mut books = StoreState { policies: books.policies.clone(), ..rebuild.finish().expect("as above") };
    books.groups = as_stored(&books.groups);
    books
}

/// Returns books without jobs and what their tasks have. The journal learns of a task and of its allocation in two units,
/// so a start may have taken any of them back. Nodes may then have been changed more often. What clients were told of jobs
/// is compared with [`jobs_are_as_told`](super::jobs::jobs_are_as_told).
fn without_jobs(books: &StoreState) -> StoreState {
    let mut books = as_recovered(&StoreState { jobs: JobsRecord::default(), ..books.clone() });
    let nodes = books.partitions.iter_mut().flat_map(|partition| &mut partition.nodes);
    nodes.for_each(|node| node.version = 0);
    books.registrar.removed.iter_mut().for_each(|removed| removed.version = 0);
    books
}

/// Returns the books that a start reads if `position` units of the start before it are durable. With none, that start is
/// unknown, so the next one reads what it read: a clean stop may have come between the end of a bundle and its planner.
#[must_use]
pub fn after_units((position, books): (u64, &StoreState)) -> StoreState {
    if position > 0 {
        return as_recovered(books);
    }
    StoreState { groups: as_stored(&books.groups), ..books.clone() }
}

/// Says which machines were removed when the books went from `before` to `now`. The registrar learns of it later than the
/// journal, so its own records are of no use here. Their versions are those that were last seen.
pub fn follow_removed(before: &StoreState, now: &mut StoreState) {
    let nodes = |state: &StoreState| -> BTreeMap<NodeId, NodeRecord> {
        let nodes = state.partitions.iter().flat_map(|partition| &partition.nodes);
        nodes.map(|node| (node.registration.id, node.clone())).collect()
    };
    let there = nodes(now);
    let mut removed = before.registrar.removed.clone();
    for (id, NodeRecord { registration, version, .. }) in nodes(before) {
        let NodeRegistration { spec, ordinal, .. } = registration;
        if let (false, Some(identity)) = (there.contains_key(&id), spec.identity) {
            removed.retain(|known| (&known.name, &known.identity) != (&spec.name, &identity));
            removed.push(RemovedNode { name: spec.name, identity, id, ordinal, version });
        }
    }
    let is_back = |known: &RemovedNode| {
        let mut specs = there.values().map(|node| &node.registration.spec);
        specs.any(|spec| spec.name == known.name && spec.identity.as_ref() == Some(&known.identity))
    };
    removed.retain(|known| !is_back(known));
    now.registrar.removed = removed;
}

/// Checks that a start after a crash came to books that are `allowed`.
///
/// # Errors
/// Returns the first difference from each of the allowed books.
pub fn a_crash_leaves_no_half(recovered: &StoreState, allowed: &[StoreState]) -> Verdict {
    let next = recovered.registrar.next_node;
    let nodes = recovered.partitions.iter().flat_map(|partition| &partition.nodes);
    let last = nodes.map(|node| node.registration.id.0).max().unwrap_or(0);
    ensure(next > last, || format!("node {last} is there, and the next one gets number {next}"))?;
    // As it was read: what the start should have taken back must be gone already.
    let recovered = StoreState { groups: as_stored(&recovered.groups), ..recovered.clone() };
    let has_jobs = recovered.jobs != JobsRecord::default();
    let recovered = if has_jobs {
        let half = difference(&as_recovered(&recovered), &recovered);
        // What a clean stop left half there is read as it is, if nothing after it is durable.
        let was_half = |books: &StoreState| difference(&as_recovered(books), books).is_some();
        ensure(half.is_none() || allowed.iter().any(was_half), || {
            format!("what is half there was not taken back: {half:?}")
        })?;
        without_jobs(&recovered)
    } else {
        recovered
    };
    let differences: Vec<String> = allowed
        .iter()
        .filter_map(|allowed| match has_jobs {
            true => difference(&recovered, &without_jobs(allowed)),
            false => difference(&recovered, allowed),
        })
        .collect();
    if differences.len() < allowed.len() {
        return Ok(());
    }
    Err(format!("it has none of {} allowed books: {differences:#?}", allowed.len()))
}

/// Returns what differs first. The incarnation may be a later one, because a start is known before its first unit.
fn difference(recovered: &StoreState, allowed: &StoreState) -> Option<String> {
    if recovered.incarnation < allowed.incarnation {
        return Some(format!("{:?}, allowed from {:?} on", recovered.incarnation, allowed.incarnation));
    }
    if !are_removed(recovered, &allowed.registrar.removed) {
        let both = (&recovered.registrar.removed, &allowed.registrar.removed);
        return Some(format!("removed are {:?}, allowed {:?}", both.0, both.1));
    }
    for (found, allowed) in recovered.partitions.iter().zip(&allowed.partitions) {
        if found != allowed {
            return Some(format!("{found:?}, allowed {allowed:?}"));
        }
    }
    if recovered.groups != allowed.groups {
        return Some(format!("{:?}, allowed {:?}", recovered.groups, allowed.groups));
    }
    if recovered.policies.len() == allowed.policies.len() && recovered.policies != allowed.policies {
        return Some(format!("{:?}, allowed {:?}", recovered.policies, allowed.policies));
    }
    let kinds = |state: &StoreState| {
        let RegistrarState { resources, unit_instances, .. } = &state.registrar;
        (resources.clone(), unit_instances.clone())
    };
    (kinds(recovered) != kinds(allowed)).then(|| format!("resource kinds {:?}", kinds(recovered)))
}

/// Returns whether the machines that were removed are those that are allowed, with versions that they may have had last. There
/// may be more of them: a node that is added and removed in one unit is in no books.
fn are_removed(recovered: &StoreState, allowed: &[RemovedNode]) -> bool {
    let removed = &recovered.registrar.removed;
    let is_found = |allowed: &RemovedNode| {
        removed.iter().any(|found| {
            let version = allowed.version;
            found.version >= version && RemovedNode { version, ..found.clone() } == *allowed
        })
    };
    let nodes = recovered.partitions.iter().flat_map(|partition| &partition.nodes);
    let mut specs = nodes.map(|node| &node.registration.spec);
    let is_there = |found: &RemovedNode| {
        specs.any(|spec| spec.name == found.name && spec.identity.as_ref() == Some(&found.identity))
    };
    allowed.iter().all(is_found) && !removed.iter().any(is_there)
}

/// Requests about groups that were not answered when the service crashed. Each was done or not.
#[derive(Clone, Debug, Default)]
pub struct UndecidedGroups {
    /// Groups that were asked for.
    pub created: Vec<Arc<GroupSpec>>,
    /// Groups that were to be removed.
    pub removed: BTreeSet<GroupId>,
    /// Groups that were to lose bundles.
    pub shrunk: BTreeSet<GroupId>,
}

impl UndecidedGroups {
    /// Returns whether somebody asked for a group like this one.
    #[must_use]
    pub fn has_asked_for(&self, spec: &GroupSpec) -> bool {
        let waits_no_more = |spec: &GroupSpec| GroupSpec { wait_until: None, ..spec.clone() };
        self.created.iter().any(|asked| waits_no_more(asked) == waits_no_more(spec))
    }
}

/// Checks that the groups that callers were told of are there, with their bundles, and no other ones. `known` has the
/// bundles of each.
///
/// # Errors
/// Returns the first group that is missing, or that nobody asked for.
pub fn a_crash_keeps_the_groups(
    groups: &[GroupRecord],
    known: &BTreeMap<GroupId, BTreeSet<u32>>,
    undecided: &UndecidedGroups,
) -> Verdict {
    for (id, bundles) in known {
        let Some(group) = groups.iter().find(|group| group.id == *id) else {
            ensure(undecided.removed.contains(id), || format!("group {id} was created, and is gone"))?;
            continue;
        };
        let indexes: BTreeSet<u32> = group.bundles.iter().map(|bundle| bundle.index).collect();
        ensure(bundles.is_subset(&indexes) || undecided.shrunk.contains(id), || {
            format!("group {id} has bundles {bundles:?}, and after a crash {indexes:?}")
        })?;
    }
    for group in groups.iter().filter(|group| !known.contains_key(&group.id)) {
        ensure(undecided.has_asked_for(&group.spec), || format!("nobody asked for {group:?}"))?;
    }
    Ok(())
}

/// Checks that the nodes that agents were told they are registered as are there, unless they were removed.
///
/// # Errors
/// Returns the first node that is missing.
pub fn a_crash_keeps_the_nodes(
    told: impl Iterator<Item = u64>,
    facts: &[Facts],
    removed: &BTreeSet<NodeId>,
) -> Verdict {
    for node in told.map(NodeId) {
        let is_there = facts.iter().any(|facts| facts.node(node).is_some());
        ensure(is_there || removed.contains(&node), || format!("node {node} was registered, and is gone"))?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::sim::checkers::fires;
    use wharf_core::group::Strategy;
    use wharf_core::ids::Incarnation;
    use wharf_core::ids::TenantId;
    use wharf_core::shard::Command;
    use wharf_core::state::{GroupBundleRecord, PartitionState};

    /// Returns the books before and after a placement.
    fn books() -> [StoreState; 2] {
        let mut bed = fires::Bed::new(1);
        let step = bed.step(Command::Place(fires::asks(1, 0)));
        [&step.before, &step.after].map(|facts| {
            let partitions: Vec<PartitionState> = facts.partitions.clone();
            let mut state = StoreState { partitions, ..StoreState::create(1) };
            let nodes = state.partitions.iter().flat_map(|partition| &partition.nodes);
            state.registrar.next_node = nodes.map(|node| node.registration.id.0).max().unwrap_or(0) + 1;
            state
        })
    }

    #[test]
    pub fn a_start_with_half_of_a_unit() {
        let [before, after] = books();
        let allowed = [as_recovered(&before), as_recovered(&after)];
        assert_eq!(a_crash_leaves_no_half(&before, &allowed), Ok(()));
        assert_eq!(a_crash_leaves_no_half(&after, &allowed), Ok(()));
        assert!(a_crash_leaves_no_half(&before, &allowed[1..]).is_err(), "what was durable is gone");
        // The allocation is there, and its node is as it was before.
        let mut half = after.clone();
        half.partitions[0].nodes.clone_from(&before.partitions[0].nodes);
        assert!(a_crash_leaves_no_half(&half, &allowed).is_err(), "a half unit");
        let mut again = after;
        again.registrar.next_node = 1;
        assert!(a_crash_leaves_no_half(&again, &allowed).is_err(), "an id is issued again");
    }

    #[test]
    pub fn a_group_that_a_crash_loses() {
        let id = GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR };
        let request = Arc::new(fires::asks(1, 0));
        let spec = Arc::new(GroupSpec::new(vec![Arc::clone(&request)], Strategy::Pack));
        let bundle =
            |index| GroupBundleRecord { index, request: Arc::clone(&request), place: None, lost: None };
        let group = GroupRecord { id, spec: Arc::clone(&spec), bundles: vec![bundle(0)], next_index: 1 };
        let known = BTreeMap::from([(id, BTreeSet::from([0]))]);
        let nothing = UndecidedGroups::default();
        let groups = [group];
        assert_eq!(a_crash_keeps_the_groups(&groups, &known, &nothing), Ok(()));
        assert!(a_crash_keeps_the_groups(&[], &known, &nothing).is_err(), "it was created");
        let removed = UndecidedGroups { removed: BTreeSet::from([id]), ..UndecidedGroups::default() };
        assert_eq!(a_crash_keeps_the_groups(&[], &known, &removed), Ok(()));
        let grown = BTreeMap::from([(id, BTreeSet::from([0, 1]))]);
        assert!(a_crash_keeps_the_groups(&groups, &grown, &nothing).is_err(), "it had grown");
        let shrunk = UndecidedGroups { shrunk: BTreeSet::from([id]), ..UndecidedGroups::default() };
        assert_eq!(a_crash_keeps_the_groups(&groups, &grown, &shrunk), Ok(()));
        let nobody = BTreeMap::new();
        assert!(a_crash_keeps_the_groups(&groups, &nobody, &nothing).is_err(), "nobody asked");
        let created = UndecidedGroups { created: vec![spec], ..UndecidedGroups::default() };
        assert_eq!(a_crash_keeps_the_groups(&groups, &nobody, &created), Ok(()));
    }

    #[test]
    pub fn a_node_that_a_crash_loses() {
        let mut bed = fires::Bed::new(1);
        let step = bed.step(Command::Place(fires::asks(1, 0)));
        let facts = std::slice::from_ref(&step.after);
        let there = step.after.nodes().next().expect("one node").registration.id;
        let none = BTreeSet::new();
        assert_eq!(a_crash_keeps_the_nodes([there.0].into_iter(), facts, &none), Ok(()));
        assert!(a_crash_keeps_the_nodes([99].into_iter(), facts, &none).is_err());
        let removed = BTreeSet::from([NodeId(99)]);
        assert_eq!(a_crash_keeps_the_nodes([99].into_iter(), facts, &removed), Ok(()));
    }
}
