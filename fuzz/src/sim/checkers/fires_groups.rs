//! Tests that the checkers of groups and of their statements fire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::{
    BundlePlace, GroupRefusal, GroupRefusalReason, GroupSpec, GroupState, GroupView, Spreading,
    StatementReport, Strategy, TopologyRule,
};
use wharf_core::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, StatementId, TenantId};
use wharf_core::link::Decision;
use wharf_core::node::{Labels, NodeState};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::{GroupBundleRecord, GroupRecord};
use wharf_core::statement::{
    Allocate, Applied, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation,
    Part, Pipeline,
};
use wharf_core::time::Time;

use super::fires::{Bed, NODE, Was, asks};
use super::groups::{
    Excused, a_start_keeps_the_groups, bundles_are_of_groups, every_group_is_settled, groups_are_as_asked,
    groups_are_in_the_books, groups_go_whole, no_bundle_waits_that_would_fit,
    planners_keep_what_callers_know, who_may_wait_is_not_refused,
};
use super::refused::{infeasible_is_infeasible, is_whole, no_fit_is_no_fit};
use super::rest::inside_is_placed;
use super::rules::{Placed, Placing, Requests, Round, Rules, groups_keep_their_rules};
use super::submitted::statements_are_answered_fairly;
use crate::sim::facts::Facts;

const GROUP: GroupId = GroupId { incarnation: Incarnation(1), number: 0, tenant: TenantId::OPERATOR };
const STATEMENT: StatementId = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };

fn part(operations: Vec<Operation>, conflict_detection: ConflictDetection) -> Command {
    let operations = (0..).zip(operations).collect();
    let mode = CommitMode::AllOrNothing;
    Command::Apply(Box::new(Part { statement: STATEMENT, operations, conflict_detection, mode }))
}

fn allocate(index: Option<u32>, expected: Option<u64>) -> Operation {
    let bundle = index.map(|index| BundleId { group: GROUP, index });
    let demand = asks(2, 1).demand;
    Operation::Allocate(Allocate {
        node: NODE,
        expected,
        demand,
        gpus: None,
        owner: None,
        bundle,
        tenant: TenantId::OPERATOR,
        lease: None,
    })
}

/// Places a bundle of two cores and a GPU on node 1. Returns the step and the allocation.
fn bundle(bed: &mut Bed) -> (Was, AllocationId) {
    let was = bed.step(part(vec![allocate(Some(0), None)], ConflictDetection::Fine));
    let Outcome::Applied(Ok(applied)) = &was.outcome else { panic!("applied") };
    let [(0, Granted::Allocated(placement))] = &applied.granted[..] else { panic!("granted") };
    let id = placement.allocation;
    (was, id)
}

fn spec(count: usize, strategy: Strategy) -> GroupSpec {
    let request = Arc::new(asks(2, 1));
    GroupSpec::new(std::iter::repeat_n(request, count).collect(), strategy)
}

fn requests(spec: &GroupSpec) -> Requests {
    (0..).zip(spec.bundles.iter().cloned()).collect()
}

/// Returns a view of a group with bundles on these nodes. `None` means that the bundle is not placed.
fn view(spec: &GroupSpec, nodes: &[Option<u64>], first: AllocationId) -> GroupView {
    let bundle = |(index, node): (u32, &Option<u64>)| {
        let allocation = AllocationId { sequence: first.sequence + u64::from(index), ..first };
        let gpus = wharf_core::resource::GpuAssignment { mask: 1, part: 10_000 };
        let placed = |node| BundlePlace { node: NodeId(node), allocation, gpus };
        (index, node.map(placed))
    };
    GroupView {
        id: GROUP,
        state: GroupState::Placed,
        spec: Arc::new(spec.clone()),
        bundles: (0..).zip(nodes).map(bundle).collect(),
        requests: spec.bundles.clone(),
        attempts: 1,
        releasing: Vec::new(),
    }
}

fn some_id() -> AllocationId {
    bundle(&mut Bed::new(1)).1
}

#[test]
pub(super) fn a_group_that_is_shown_otherwise_than_asked() {
    let packed = spec(2, Strategy::StrictPack);
    let apart = spec(2, Strategy::StrictSpread);
    let check = |view: GroupView, spec: &GroupSpec| groups_are_as_asked(&view, spec, &requests(spec));
    assert_eq!(check(view(&packed, &[Some(1), Some(1)], some_id()), &packed), Ok(()));
    assert!(check(view(&packed, &[Some(1), Some(2)], some_id()), &packed).is_err(), "on two nodes");
    assert_eq!(check(view(&apart, &[Some(1), Some(2)], some_id()), &apart), Ok(()));
    assert!(check(view(&apart, &[Some(1), Some(1)], some_id()), &apart).is_err(), "on one node");
    let short = view(&apart, &[Some(1), None], some_id());
    assert!(check(short.clone(), &apart).is_err(), "called placed below its minimum");
    assert_eq!(check(GroupView { state: GroupState::Degraded, ..short }, &apart), Ok(()));
    let mut other = view(&apart, &[Some(1), Some(2)], some_id());
    other.requests[1] = Arc::new(asks(1, 1));
    assert!(check(other, &apart).is_err(), "another bundle than was asked");
    assert!(check(view(&apart, &[Some(1), Some(2)], some_id()), &packed).is_err(), "another spec");
}

#[test]
pub(super) fn a_bundle_that_is_not_in_the_books() {
    let (was, id) = bundle(&mut Bed::new(2));
    let facts = [was.after];
    let spec = spec(1, Strategy::Pack);
    let nobody = Excused { ended: &|_| false };
    let check = |view: &GroupView, excused: &Excused<'_>| groups_are_in_the_books(view, &facts, excused);
    assert_eq!(check(&view(&spec, &[Some(1)], id), &nobody), Ok(()));
    assert!(check(&view(&spec, &[Some(2)], id), &nobody).is_err(), "on another node");
    let other = AllocationId { sequence: id.sequence + 9, ..id };
    assert!(check(&view(&spec, &[Some(1)], other), &nobody).is_err(), "no such allocation");
    assert_eq!(check(&view(&spec, &[Some(1)], other), &Excused { ended: &|_| true }), Ok(()));
    let mut wrong = view(&spec, &[Some(1)], id);
    wrong.bundles[0].0 = 3;
    assert!(check(&wrong, &nobody).is_err(), "another bundle");
}

#[test]
pub(super) fn a_bundle_of_no_group() {
    let (was, id) = bundle(&mut Bed::new(2));
    let facts = [was.after];
    let spec = spec(1, Strategy::Pack);
    let placed = view(&spec, &[Some(1)], id);
    let waits = view(&spec, &[None], id);
    assert_eq!(bundles_are_of_groups(&facts, |_| Some(&placed), |_| false), Ok(()));
    assert!(bundles_are_of_groups(&facts, |_| None, |_| true).is_err());
    assert!(bundles_are_of_groups(&facts, |_| Some(&waits), |_| false).is_err());
    assert_eq!(bundles_are_of_groups(&facts, |_| Some(&waits), |_| true), Ok(()));
}

#[test]
pub(super) fn a_bundle_that_outlives_its_group() {
    let ended = BTreeSet::from([some_id()]);
    assert!(groups_go_whole(&ended, |_| true, |_| false).is_err());
    assert_eq!(groups_go_whole(&ended, |_| true, |_| true), Ok(()));
    assert_eq!(groups_go_whole(&ended, |_| false, |_| false), Ok(()));
}

#[test]
pub(super) fn a_bundle_that_waits_and_would_fit() {
    let (was, id) = bundle(&mut Bed::new(2));
    let facts = [was.after];
    let spread = spec(2, Strategy::Spread);
    assert!(no_bundle_waits_that_would_fit(&view(&spread, &[Some(1), None], id), &facts).is_err());
    assert_eq!(no_bundle_waits_that_would_fit(&view(&spread, &[Some(1), Some(2)], id), &facts), Ok(()));
    let large = GroupSpec::new(vec![Arc::new(asks(9, 0))], Strategy::Spread);
    assert_eq!(no_bundle_waits_that_would_fit(&view(&large, &[None], id), &facts), Ok(()));
}

#[test]
pub(super) fn a_group_that_goes_on_for_ever() {
    let spec = spec(1, Strategy::Pack);
    let mut group = view(&spec, &[Some(1)], some_id());
    assert_eq!(every_group_is_settled([&group].into_iter(), 0), Ok(()));
    assert!(every_group_is_settled([&group].into_iter(), 1).is_err());
    group.state = GroupState::Committing;
    assert!(every_group_is_settled([&group].into_iter(), 0).is_err());
}

#[test]
pub(super) fn a_group_that_only_one_side_knows() {
    let kept = BTreeSet::from([GROUP]);
    assert_eq!(planners_keep_what_callers_know(&kept, [GROUP].into_iter()), Ok(()));
    assert!(planners_keep_what_callers_know(&kept, std::iter::empty()).is_err());
    assert!(planners_keep_what_callers_know(&BTreeSet::new(), [GROUP].into_iter()).is_err());
}

fn round(facts: Facts) -> Round {
    Round { planner: 0, now: Time(5), facts: vec![facts], is_quiet: true }
}

#[test]
pub(super) fn a_group_that_is_refused_before_its_time() {
    let refusal = |infeasible| {
        let reason = GroupRefusalReason::OneNode { bundles: 1 };
        GroupRefusal { infeasible, reason, attempts: 1 }
    };
    let waits = |until| GroupSpec { wait_until: Some(Time(until)), ..spec(1, Strategy::Pack) };
    let round = round(Facts::default());
    assert!(who_may_wait_is_not_refused(&waits(6), &refusal(false), &round).is_err());
    assert_eq!(who_may_wait_is_not_refused(&waits(5), &refusal(false), &round), Ok(()));
    assert_eq!(who_may_wait_is_not_refused(&waits(6), &refusal(true), &round), Ok(()));
}

#[test]
pub(super) fn a_group_that_is_another_after_a_start() {
    let spec = Arc::new(spec(1, Strategy::Pack));
    let request = Arc::clone(&spec.bundles[0]);
    let bundle = GroupBundleRecord { index: 0, request, place: None, lost: None };
    let record = GroupRecord { id: GROUP, spec, bundles: vec![bundle], next_index: 1 };
    let other = GroupRecord { next_index: 2, ..record.clone() };
    assert_eq!(
        a_start_keeps_the_groups(std::slice::from_ref(&record), std::slice::from_ref(&record)),
        Ok(())
    );
    assert!(a_start_keeps_the_groups(std::slice::from_ref(&record), &[other]).is_err());
    assert!(a_start_keeps_the_groups(&[record], &[]).is_err());
}

#[test]
pub(super) fn a_group_that_is_called_infeasible_and_is_not() {
    let (full, _) = bundle(&mut Bed::new(2));
    // Two nodes of 8 cores and 2 GPUs each. Existing allocations do not count.
    let round = round(full.after);
    let wrongly = |spec: &GroupSpec| infeasible_is_infeasible(spec, &round).is_err();
    assert!(wrongly(&spec(2, Strategy::StrictPack)));
    assert!(!wrongly(&spec(3, Strategy::StrictPack)), "three GPUs on one node");
    assert!(wrongly(&spec(2, Strategy::StrictSpread)));
    assert!(!wrongly(&spec(3, Strategy::StrictSpread)));
    assert!(wrongly(&GroupSpec { min_members: 2, ..spec(3, Strategy::StrictSpread) }));
    assert!(wrongly(&spec(4, Strategy::Pack)));
    assert!(!wrongly(&spec(5, Strategy::Pack)));
}

/// Puts two nodes into two zones.
fn zoned(mut facts: Facts) -> Facts {
    for (node, zone) in facts.partitions[0].nodes.iter_mut().zip(["a", "b"]) {
        let labels = Labels::new(vec![("zone".into(), zone.into())]);
        node.registration.spec.labels = labels.expect("one key");
    }
    facts
}

fn by_zone(spec: GroupSpec, spreading: Spreading) -> GroupSpec {
    GroupSpec { topology: Some(TopologyRule { key: "zone".into(), spreading }), ..spec }
}

#[test]
pub(super) fn a_group_that_is_refused_and_fits() {
    let (was, _) = bundle(&mut Bed::new(2));
    // One GPU is left on the first node, two on the second.
    let round = round(zoned(was.after));
    let wrongly =
        |spec: &GroupSpec| no_fit_is_no_fit(spec, &spec.bundles, spec.min_members as usize, &round).is_err();
    assert!(wrongly(&spec(3, Strategy::Pack)));
    assert!(!wrongly(&spec(4, Strategy::Pack)));
    assert!(wrongly(&spec(2, Strategy::StrictPack)));
    assert!(!wrongly(&spec(3, Strategy::StrictPack)));
    assert!(wrongly(&spec(2, Strategy::StrictSpread)));
    assert!(!wrongly(&spec(3, Strategy::StrictSpread)));
    let strict = Spreading::Pack { strict: true };
    assert!(wrongly(&by_zone(spec(2, Strategy::Spread), strict)));
    assert!(!wrongly(&by_zone(spec(3, Strategy::Spread), strict)));
    let busy = Round { is_quiet: false, ..round.clone() };
    assert_eq!(
        no_fit_is_no_fit(&spec(3, Strategy::Pack), &spec(3, Strategy::Pack).bundles, 3, &busy),
        Ok(())
    );
}

/// What is refused of a group that is not whole is not judged.
#[test]
fn a_group_is_whole_while_all_its_bundles_are_placed() {
    let (was, id) = bundle(&mut Bed::new(2));
    let before = round(was.before);
    let placed = round(was.after);
    let one = view(&spec(1, Strategy::Pack), &[Some(1)], id);
    assert!(is_whole(&one, &placed));
    assert!(!is_whole(&one, &before), "its bundle is in no shard");
    let two = spec(2, Strategy::Pack);
    assert!(!is_whole(&view(&two, &[Some(1), None], id), &placed), "a bundle waits");
    assert!(!is_whole(&view(&two, &[Some(1), Some(2)], id), &placed), "the second one has ended");
}

/// Half of a statement would be judged as if it were all of it.
#[test]
fn what_a_statement_places_is_judged_when_it_is_done() {
    let mut rules = Rules::default();
    let placed = Placed { index: 0, node: NODE, demand: asks(2, 1).demand };
    rules.granted(STATEMENT, GROUP, placed, false);
    assert!(rules.take(GROUP, |_| false).is_empty());
    assert_eq!(rules.take(GROUP, |statement| statement == STATEMENT).len(), 1);
    assert!(rules.take(GROUP, |_| true).is_empty(), "once");
}

#[test]
pub(super) fn a_group_that_is_placed_against_its_rules() {
    let (was, _) = bundle(&mut Bed::new(2));
    let round = Arc::new(round(zoned(was.before)));
    let demand = asks(2, 1).demand;
    let placing = |nodes: &[u64], existing: Option<&[u64]>| Placing {
        round: Some(Arc::clone(&round)),
        placed: (0..)
            .zip(nodes)
            .map(|(index, &n)| Placed { index, node: NodeId(n), demand: demand.clone() })
            .collect(),
        existing: existing.map(|nodes| nodes.iter().map(|&node| NodeId(node)).collect()),
    };
    let kept = |spec: &GroupSpec, nodes: &[u64], existing: Option<&[u64]>| {
        groups_keep_their_rules(spec, &requests(spec), &placing(nodes, existing)).is_ok()
    };
    let packed = spec(2, Strategy::StrictPack);
    let apart = spec(2, Strategy::StrictSpread);
    assert!(kept(&packed, &[1, 1], Some(&[])) && !kept(&packed, &[1, 2], Some(&[])));
    assert!(!kept(&packed, &[1], Some(&[2])) && kept(&packed, &[1], None));
    assert!(kept(&apart, &[1, 2], Some(&[])) && !kept(&apart, &[1, 1], Some(&[])));
    assert!(!kept(&apart, &[1], Some(&[1])) && !kept(&apart, &[1], Some(&[])), "below its minimum");
    let strict = by_zone(spec(2, Strategy::Spread), Spreading::Pack { strict: true });
    assert!(kept(&strict, &[2, 2], Some(&[])) && !kept(&strict, &[1, 2], Some(&[])));
    assert!(!kept(&strict, &[1], Some(&[2])));
    let skewed = by_zone(spec(3, Strategy::Pack), Spreading::Spread { max_skew: 1 });
    assert!(kept(&skewed, &[1, 2, 1], Some(&[])) && !kept(&skewed, &[1, 1, 1], Some(&[])));
    assert!(!kept(&skewed, &[1], Some(&[1, 1])), "two more in one zone than in the other");
    let mut other = placing(&[1, 1], Some(&[]));
    other.placed[1].demand = asks(1, 1).demand;
    assert!(groups_keep_their_rules(&packed, &requests(&packed), &other).is_err(), "another demand");
    let mut lost = (*round).clone();
    lost.facts[0].partitions[0].nodes[0].state = NodeState::Draining;
    let on_it = Placing { round: Some(Arc::new(lost)), ..placing(&[1, 1], Some(&[])) };
    assert!(groups_keep_their_rules(&packed, &requests(&packed), &on_it).is_err(), "it takes no work");
}

#[test]
pub(super) fn a_statement_of_others_that_is_answered_unfairly() {
    let operations = [allocate(None, Some(1)), allocate(None, Some(1))];
    let bed = bundle(&mut Bed::new(1)).0;
    let Outcome::Applied(Ok(applied)) = bed.outcome else { panic!("applied") };
    let granted = applied.granted[0].1.clone();
    let report = |places: &[u16], conflicts: &[u16]| {
        let granted = places.iter().map(|&place| (place, granted.clone())).collect();
        let decision = Decision::Committed;
        let none = Vec::new();
        let applied = Applied { statement: STATEMENT, decision, granted, conflicts: none, visible_from: 1 };
        let reason = ConflictReason::VersionChanged { expected: 1, found: 2 };
        let conflict = |&operation: &u16| Conflict { operation, node: Some(NODE), version: Some(2), reason };
        let conflicts = conflicts.iter().map(conflict).collect();
        let applied = if places.is_empty() { Vec::new() } else { vec![applied] };
        StatementReport { statement: STATEMENT, applied, conflicts, expired: false }
    };
    let whole = CommitMode::AllOrNothing;
    let some = CommitMode::Incremental;
    let fair =
        |mode, report: StatementReport| statements_are_answered_fairly(&operations, mode, &report).is_ok();
    assert!(fair(whole, report(&[0, 1], &[])) && fair(whole, report(&[], &[1])));
    assert!(!fair(whole, report(&[0], &[1])) && !fair(whole, report(&[], &[])));
    assert!(fair(some, report(&[0], &[1])) && !fair(some, report(&[0], &[])));
    assert!(!fair(some, report(&[0, 0], &[1])), "granted twice");
    let mut lies = report(&[], &[0]);
    lies.conflicts[0].reason = ConflictReason::VersionChanged { expected: 7, found: 2 };
    assert!(!fair(whole, lies), "nobody expected that version");
}

#[test]
pub(super) fn a_coarse_operation_on_another_version() {
    let mut bed = Bed::new(1);
    let (was, _) = bundle(&mut bed);
    let version = was.after.partitions[0].nodes[0].version;
    let was = bed.step(part(vec![allocate(None, Some(version))], ConflictDetection::Coarse));
    assert!(matches!(&was.outcome, Outcome::Applied(Ok(applied)) if !applied.granted.is_empty()));
    was.fires("coarse_goes_by_versions", |was| was.before.partitions[0].nodes[0].version += 1);
}

#[test]
pub(super) fn what_is_inside_a_bundle_and_does_not_belong_there() {
    let into = || {
        let mut bed = Bed::new(1);
        let (_, bundle) = bundle(&mut bed);
        let was =
            bed.step(Command::PlaceInto { bundles: Box::new([bundle]), demand: Box::new(asks(1, 1).demand) });
        assert!(matches!(was.outcome, Outcome::PlaceInto(Ok(_))));
        (was, bundle)
    };
    into().0.fires("inside_is_of_its_bundle", |was| was.after.partitions[0].inside[0].gpus.mask = 2);
    into().0.fires("inside_is_of_its_bundle", |was| was.after.partitions[0].allocations.clear());
    into()
        .0
        .fires("inside_is_of_its_bundle", |was| was.after.partitions[0].inside[0].demand = asks(3, 1).demand);
    into().0.fires("inside_is_of_its_bundle", |was| was.command = Command::Place(asks(1, 1)));
    into().0.fires("inside_is_of_its_bundle", |was| std::mem::swap(&mut was.before, &mut was.after));
    let (was, bundle) = into();
    let id = was.after.partitions[0].inside[0].id;
    let inside = BTreeMap::from([(id, bundle)]);
    assert_eq!(inside_is_placed(&inside, std::slice::from_ref(&was.after)), Ok(()));
    assert!(inside_is_placed(&inside, std::slice::from_ref(&was.before)).is_err());
    assert_eq!(inside_is_placed(&inside, &[Facts::default()]), Ok(()), "it goes with its bundle");
    let ended = BTreeMap::from([(id, was.after.partitions[0].inside[0].id)]);
    assert_eq!(inside_is_placed(&ended, std::slice::from_ref(&was.after)), Ok(()), "that bundle ended");
    let mut moved = was.after;
    moved.partitions[0].inside[0].bundle = id;
    assert!(inside_is_placed(&inside, &[moved]).is_err(), "it is in another bundle");
}

#[test]
pub(super) fn a_claim_that_comes_or_goes_by_itself() {
    // The whole node is releasing, and claimed.
    let claimed = || {
        let mut bed = Bed::new(1);
        let (_, first) = bundle(&mut bed);
        let evict = Evict { allocation: first, expected: None, grace_ns: 50 };
        bed.step(part(vec![Operation::Evict(evict)], ConflictDetection::Fine));
        let node = NODE;
        let demand = asks(8, 2).demand;
        let pipeline = Pipeline { node, expected: None, demand, bundle: None, tenant: TenantId::OPERATOR };
        let was = bed.step(part(vec![Operation::Pipeline(pipeline)], ConflictDetection::Fine));
        assert_eq!(was.after.partitions[0].claims.len(), 1, "{:?}", was.outcome);
        (bed, first)
    };
    let name = "claims_become_what_they_claim";
    let refused = || claimed().0.step(Command::Place(asks(9, 0)));
    refused().fires(name, |was| was.before.partitions[0].claims.clear());
    refused().fires(name, |was| was.after.partitions[0].claims.clear());
    let released = || {
        let (mut bed, first) = claimed();
        let was = bed.step(Command::Release(first));
        assert!(was.after.partitions[0].claims.is_empty(), "it is an allocation now");
        was
    };
    released().fires(name, |was| was.after.partitions[0].allocations.clear());
    released().fires(name, |was| was.after.partitions[0].allocations[0].demand = asks(1, 0).demand);
    released().fires(name, |was| was.after.partitions[0].claims = was.before.partitions[0].claims.clone());
}
