//! Placement groups: planners, shards and ports run by hand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{ManualClock, add_node, ask, check_all, config, cores, export, node_spec, settle};
use crate::group_bed::{
    add_agent_node, ask_meanwhile, create, engine, group_of, labelled, life, live_allocations, nodes_of,
    places, plan, same, status, submit, with_nodes,
};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::group::{
    GroupRefusalReason, GroupSpec, GroupSpecError, GroupState, GroupView, NoGroup, PlanJob, PlanRejection,
    PlanReply, Spreading, Strategy, TopologyRule,
};
use wharf_core::ids::{AllocationId, NodeId, StatementId, TenantId};
use wharf_core::link::{Clock, Decision, DecisionCell};
use wharf_core::node::LifeEvent;
use wharf_core::planner::PlannerMetrics;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Released};
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, ConflictReason, Evict, Granted, Operation, Part, Prepare,
};
use wharf_core::time::Time;

#[test]
fn strategies_hold_over_any_number_of_shards() {
    for shards in [1, 3] {
        let mut engine = engine(shards, 1);
        with_nodes(&mut engine, 8, 16, 0);
        let packed = create(&mut engine, group_of(cores(4), 8, Strategy::Pack)).expect("it fits");
        assert_eq!(nodes_of(&packed).len(), 2, "{packed:?}");
        let strict = create(&mut engine, group_of(cores(4), 3, Strategy::StrictPack)).expect("it fits");
        assert_eq!(nodes_of(&strict).len(), 1);
        let spread = create(&mut engine, group_of(cores(1), 5, Strategy::Spread)).expect("it fits");
        assert_eq!(nodes_of(&spread).len(), 5);
        let apart = create(&mut engine, group_of(cores(2), 6, Strategy::StrictSpread)).expect("it fits");
        assert_eq!(nodes_of(&apart).len(), 6);
        assert_eq!(live_allocations(&mut engine), 8 + 3 + 5 + 6);
        assert_eq!(engine.planners[0].planner().group_count(), 4);
        check_all(&engine);
        for group in [packed, strict, spread, apart] {
            let count = u32::try_from(group.bundles.len()).expect("few");
            let reply = plan(&mut engine, PlanJob::RemoveGroup(group.id));
            assert!(matches!(reply, PlanReply::Removed(Ok((id, ended))) if id == group.id && ended == count));
            let reply = plan(&mut engine, PlanJob::GroupStatus(group.id));
            assert!(matches!(reply, PlanReply::Status(Err(PlanRejection::UnknownGroup(_)))), "{reply:?}");
        }
        assert_eq!(live_allocations(&mut engine), 0);
        assert_eq!(engine.planners[0].planner().group_count(), 0);
    }
}

#[test]
fn spread_uses_nodes_again_where_there_are_no_others() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 3, 16, 0);
    let spread = create(&mut engine, group_of(cores(2), 7, Strategy::Spread)).expect("it fits");
    let counts: Vec<usize> = nodes_of(&spread).into_values().collect();
    assert_eq!(counts.iter().sum::<usize>(), 7);
    assert!(counts.iter().all(|&count| (2..=3).contains(&count)), "{counts:?}");
}

#[test]
fn what_never_fits_is_infeasible_with_the_reason_and_moves_nothing() {
    let mut engine = engine(3, 1);
    with_nodes(&mut engine, 4, 16, 1);
    let refused = |engine: &mut Engine, spec| create(engine, spec).expect_err("it cannot fit");
    let waiting = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(17), 1, Strategy::Pack) };
    let larger = refused(&mut engine, waiting);
    assert!(larger.infeasible && matches!(larger.reason, GroupRefusalReason::Bundle { bundle: 0, .. }));
    let one_node = refused(&mut engine, group_of(cores(9), 2, Strategy::StrictPack));
    assert_eq!((one_node.infeasible, one_node.reason), (true, GroupRefusalReason::OneNode { bundles: 2 }));
    let few = refused(&mut engine, group_of(cores(1), 5, Strategy::StrictSpread));
    assert_eq!(
        (few.infeasible, few.reason),
        (true, GroupRefusalReason::TooFewNodes { bundles: 5, nodes: 4 })
    );
    let all = refused(&mut engine, group_of(cores(13), 5, Strategy::Spread));
    assert!(all.infeasible && matches!(all.reason, GroupRefusalReason::Cluster(_)), "{all:?}");
    assert_eq!(live_allocations(&mut engine), 0);
    check_all(&engine);
}

#[test]
fn what_does_not_fit_now_is_refused_whole_or_waits_for_room() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 4, 16, 0);
    let place = |engine: &mut Engine| match ask(engine, PortRequest::Place(cores(10))) {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("a node is free: {other:?}"),
    };
    let live: Vec<AllocationId> = (0..4).map(|_| place(&mut engine)).collect();
    let refusal = create(&mut engine, group_of(cores(8), 2, Strategy::Spread)).expect_err("no room");
    assert!(!refusal.infeasible, "{refusal:?}");
    assert_eq!(live_allocations(&mut engine), 4);
    let spec =
        GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(8), 2, Strategy::StrictSpread) };
    engine.ports[0]
        .submit(9, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))), engine.now)
        .expect("room");
    engine.ports[0].flush();
    assert!(settle(&mut engine).is_empty(), "it waits");
    for (at, &allocation) in live.iter().take(2).enumerate() {
        let reply = ask_meanwhile(&mut engine, PortRequest::Release(allocation));
        assert_eq!(reply.iter().any(|(tag, _)| *tag == 9), at == 1, "{reply:?}");
    }
    assert_eq!(live_allocations(&mut engine), 4);
    check_all(&engine);
}

#[test]
fn waiting_ends_with_a_refusal_at_its_deadline() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 2, 16, 0);
    create(&mut engine, group_of(cores(10), 2, Strategy::Spread)).expect("it fits");
    let until = Time(engine.now.0 + 10_000);
    let spec = GroupSpec { wait_until: Some(until), ..group_of(cores(8), 2, Strategy::StrictSpread) };
    engine.ports[0]
        .submit(9, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))), engine.now)
        .expect("room");
    assert!(settle(&mut engine).is_empty(), "it waits");
    assert_eq!(engine.planners[0].planner().next_deadline(), Some(until));
    engine.now = until;
    let replies = settle(&mut engine);
    let [(9, PortReply::Plan(reply))] = &replies[..] else { panic!("{replies:?}") };
    assert!(
        matches!(&**reply, PlanReply::Group(Err(NoGroup::Refused(refusal))) if !refusal.infeasible),
        "{reply:?}"
    );
}

#[test]
fn a_gang_is_placed_with_its_minimum_and_completed_when_room_comes() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 3, 16, 0);
    let spec = GroupSpec { min_members: 3, ..group_of(cores(10), 5, Strategy::Spread) };
    let gang = create(&mut engine, spec).expect("three fit");
    assert_eq!((places(&gang).len(), gang.state), (3, GroupState::Placed));
    add_node(&mut engine, node_spec("late", 16, 0));
    let PlanReply::Status(Ok(gang)) = plan(&mut engine, PlanJob::GroupStatus(gang.id)) else {
        panic!("it is placed")
    };
    assert_eq!(places(&gang).len(), 4);
    let spec = GroupSpec { min_members: 2, ..group_of(cores(10), 2, Strategy::Spread) };
    create(&mut engine, spec).expect_err("not even its minimum");
    check_all(&engine);
}

#[test]
fn of_bundles_beyond_the_minimum_what_does_not_conflict_is_kept_and_the_rest_planned_again() {
    let mut engine = engine(1, 1);
    let nodes = with_nodes(&mut engine, 5, 1, 0);
    let held: Vec<AllocationId> = (0..4)
        .map(|_| match ask(&mut engine, PortRequest::Place(cores(1))) {
            PortReply::Place(Ok(placement)) => placement.allocation,
            other => panic!("it fits: {other:?}"),
        })
        .collect();
    let spec = GroupSpec { min_members: 1, ..group_of(cores(1), 4, Strategy::Spread) };
    let gang = create(&mut engine, spec).expect("one fits");
    assert_eq!(places(&gang).len(), 1);
    // Two cores are freed. The planner plans on both, and a placement takes one before its statement arrives.
    let clock = ManualClock::new(engine.now);
    for &allocation in &held[..2] {
        engine.ports[0].submit(1, PortRequest::Release(allocation), engine.now).expect("room");
    }
    engine.ports[0].flush();
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    // Rings come first in rotation. After this look, the next batch begins with the ring of the port.
    assert_eq!(engine.runners[0].run_batch(&clock, &mut Unobserved), 0);
    let before = *engine.planners[0].planner().metrics();
    engine.planners[0].run_round(&clock);
    engine.ports[0].submit(2, PortRequest::Place(cores(1)), engine.now).expect("room");
    engine.ports[0].flush();
    let replies = settle(&mut engine);
    assert!(
        replies.iter().any(|(tag, reply)| *tag == 2 && matches!(reply, PortReply::Place(Ok(_)))),
        "{replies:?}"
    );
    let gang = status(&mut engine, gang.id);
    assert_eq!((places(&gang).len(), nodes_of(&gang).len(), gang.state), (2, 2, GroupState::Placed));
    let after = *engine.planners[0].planner().metrics();
    let since = |count: fn(&PlannerMetrics) -> u64| count(&after) - count(&before);
    assert_eq!(
        (since(|m| m.attempts), since(|m| m.placings), since(|m| m.operations), since(|m| m.granted)),
        (1, 1, 2, 1),
        "one statement, of which one operation conflicted"
    );
    // The operation that conflicted waits for capacity, and gets it.
    let released = ask(&mut engine, PortRequest::Release(held[2]));
    assert!(
        matches!(released, PortReply::One(Outcome::Release(Ok(Released { inside: None, .. })))),
        "{released:?}"
    );
    assert_eq!(places(&status(&mut engine, gang.id)).len(), 3);
    assert_eq!(nodes.len(), 5);
    check_all(&engine);
}

#[test]
fn bundles_of_a_lost_node_and_only_those_are_placed_again() {
    for shards in [1, 3] {
        let mut engine = engine(shards, 1);
        for number in 0..5 {
            let mut spec = node_spec(&format!("n{number}"), 16, 0);
            spec.identity = Some(format!("m{number}").into());
            add_agent_node(&mut engine, spec);
        }
        let before = create(&mut engine, group_of(cores(4), 4, Strategy::StrictSpread)).expect("it fits");
        let (index, lost, allocation) = places(&before)[2];
        life(&mut engine, lost, LifeEvent::Lose);
        settle(&mut engine);
        let after = status(&mut engine, before.id);
        assert_eq!(after.state, GroupState::Placed, "{after:?}");
        for (old, new) in places(&before).iter().zip(places(&after)) {
            if old.0 == index {
                assert!(new.1 != lost && new.2 != allocation, "{after:?}");
            } else {
                assert_eq!(*old, new);
            }
        }
        assert_eq!(nodes_of(&after).len(), 4);
        // The old allocation ended with the step that placed the bundle again.
        assert_eq!(live_allocations(&mut engine), 4);
        check_all(&engine);
    }
}

/// A bundle planned on the replica of a removed node is not placed.
#[test]
fn a_node_that_goes_while_it_is_planned_on_is_no_place() {
    let mut engine = engine(1, 1);
    let nodes = with_nodes(&mut engine, 1, 4, 0);
    let clock = ManualClock::new(engine.now);
    let now = engine.now;
    let gone = Command::RemoveNode { node: nodes[0], force: true };
    engine.ports[0].submit(2, PortRequest::Every(gone), now).expect("room for one");
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    // The planner's replica is stale: it plans on the node, and then sees that it is gone.
    let job = PlanJob::CreateGroup(Arc::new(group_of(cores(1), 1, Strategy::Pack)));
    engine.ports[0].submit(1, PortRequest::Plan(job), now).expect("room for one");
    engine.planners[0].run_round(&clock);
    engine.now = Time(now.0 + 100);
    let replies = settle(&mut engine);
    let refused = |(tag, reply): &(u64, PortReply)| {
        *tag == 1
            && matches!(reply, PortReply::Plan(reply) if matches!(**reply, PlanReply::Group(Err(NoGroup::Refused(_)))))
    };
    assert!(replies.iter().any(refused), "{replies:?}");
    assert_eq!(live_allocations(&mut engine), 0);
}

#[test]
fn groups_follow_the_values_of_a_label() {
    let mut engine = engine(3, 1);
    for number in 0..9 {
        add_node(&mut engine, labelled(&format!("n{number}"), 8, ["a", "b", "c"][number % 3]));
    }
    let rule = |spreading| Some(TopologyRule { key: "zone".into(), spreading });
    let pack = GroupSpec {
        topology: rule(Spreading::Pack { strict: true }),
        ..group_of(cores(8), 3, Strategy::Pack)
    };
    let packed = create(&mut engine, pack.clone()).expect("a zone has three nodes");
    let zones = |engine: &Engine, view: &GroupView| -> Vec<u64> {
        // Node `i` in order of registration has zone `i modulo 3`, and ids count from 1.
        let _ = engine;
        places(view).iter().map(|&(_, node, _)| (node.0 - 1) % 3).collect()
    };
    assert_eq!(BTreeSet::from_iter(zones(&engine, &packed)).len(), 1);
    plan(&mut engine, PlanJob::RemoveGroup(packed.id));
    let four = GroupSpec { bundles: same(cores(8), 4), min_members: 4, ..pack };
    create(&mut engine, four).expect_err("no zone has four nodes");
    let spread = GroupSpec {
        topology: rule(Spreading::Spread { max_skew: 1 }),
        ..group_of(cores(2), 7, Strategy::Pack)
    };
    let spread = create(&mut engine, spread).expect("it fits");
    let mut counts = [0; 3];
    zones(&engine, &spread).into_iter().for_each(|zone| counts[zone as usize] += 1);
    counts.sort_unstable();
    assert_eq!(counts, [2, 2, 3]);
    check_all(&engine);
}

#[test]
fn devices_of_bundles_on_one_node_add_up_exactly() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 64, 4);
    let gpu = |gpu| {
        PlacementRequest::new(Demand { cpu: Amount::whole(1), gpu, ..Demand::default() }, Policy::LeastFit)
    };
    // Five parts of 0.6 need five devices. No node has that many.
    let parts = group_of(gpu(GpuRequest::Fraction(6000)), 5, Strategy::StrictPack);
    create(&mut engine, parts).expect_err("four devices hold four such parts");
    let mut mixed = same(gpu(GpuRequest::Whole(2)), 1);
    mixed.extend(same(gpu(GpuRequest::Fraction(5000)), 4));
    let mixed = create(&mut engine, GroupSpec::new(mixed, Strategy::StrictPack)).expect("2 and 4 halves");
    assert_eq!(nodes_of(&mixed).len(), 1);
    check_all(&engine);
}

#[test]
fn a_group_grows_and_shrinks() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 4, 16, 0);
    let spec = GroupSpec { min_members: 1, ..group_of(cores(4), 2, Strategy::StrictSpread) };
    let group = create(&mut engine, spec).expect("it fits");
    let PlanReply::Group(Ok(grown)) =
        plan(&mut engine, PlanJob::GrowGroup(group.id, same(cores(4), 2), None))
    else {
        panic!("two more nodes are free")
    };
    assert_eq!(nodes_of(&grown).len(), 4);
    let refused = plan(&mut engine, PlanJob::GrowGroup(group.id, vec![Arc::new(cores(4))], None));
    assert!(matches!(refused, PlanReply::Group(Err(NoGroup::Refused(_)))), "no fifth node: {refused:?}");
    assert_eq!(live_allocations(&mut engine), 4);
    let PlanReply::Status(Ok(shrunk)) = plan(&mut engine, PlanJob::ShrinkGroup(group.id, vec![0, 3])) else {
        panic!("two stay")
    };
    assert_eq!(shrunk.bundles.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(live_allocations(&mut engine), 2);
    let below = plan(&mut engine, PlanJob::ShrinkGroup(group.id, vec![1, 2]));
    assert!(matches!(below, PlanReply::Status(Err(PlanRejection::BelowMinimum(_)))), "{below:?}");
    let unknown = plan(&mut engine, PlanJob::ShrinkGroup(group.id, vec![0]));
    assert!(matches!(unknown, PlanReply::Status(Err(PlanRejection::UnknownBundle(_, 0)))), "{unknown:?}");
    check_all(&engine);
}

#[test]
fn a_partly_placed_group_grows_by_what_fits() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 4, 0);
    let spec = GroupSpec { min_members: 2, ..group_of(cores(3), 3, Strategy::Pack) };
    let gang = create(&mut engine, spec).expect("its minimum fits");
    assert_eq!(places(&gang).len(), 2);
    let grow =
        |engine: &mut Engine, cpu| plan(engine, PlanJob::GrowGroup(gang.id, same(cores(cpu), 1), None));
    assert!(matches!(grow(&mut engine, 2), PlanReply::Group(Err(NoGroup::Refused(_)))));
    let PlanReply::Group(Ok(grown)) = grow(&mut engine, 1) else { panic!("a core is left on each") };
    assert_eq!(places(&grown).iter().map(|&(index, ..)| index).collect::<Vec<_>>(), [0, 1, 3]);
    // The unplaced bundle waits until there is capacity.
    add_node(&mut engine, node_spec("late", 4, 0));
    assert_eq!(places(&status(&mut engine, gang.id)).len(), 4);
    check_all(&engine);
}

#[test]
fn planners_over_the_same_nodes_never_exceed_them() {
    let mut engine = engine(3, 3);
    with_nodes(&mut engine, 6, 16, 0);
    let spec = Arc::new(group_of(cores(5), 4, Strategy::Spread));
    for tag in 0..12 {
        let job = PlanJob::CreateGroup(Arc::clone(&spec));
        engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
    }
    engine.ports[0].flush();
    let replies = settle(&mut engine);
    let placed = replies.iter().filter(|(_, reply)| match reply {
        PortReply::Plan(reply) => matches!(**reply, PlanReply::Group(Ok(_))),
        other => panic!("a planner answers: {other:?}"),
    });
    // 18 bundles of 5 cores fit on six nodes of 16, so four groups of four fit.
    assert_eq!((replies.len(), placed.count()), (12, 4));
    assert_eq!(live_allocations(&mut engine), 16);
    check_all(&engine);
}

fn allocate(node: NodeId, cpu: u32, expected: Option<u64>) -> Operation {
    let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
    Operation::Allocate(Allocate {
        node,
        expected,
        demand,
        gpus: None,
        owner: None,
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    })
}

#[test]
fn operations_of_others_happen_everywhere_or_nowhere() {
    let mut engine = engine(4, 1);
    let nodes = with_nodes(&mut engine, 8, 16, 0);
    let all: Vec<Operation> = nodes.iter().map(|&node| allocate(node, 10, None)).collect();
    let PlanReply::Statement(Ok(done)) =
        submit(&mut engine, all, ConflictDetection::Fine, CommitMode::AllOrNothing)
    else {
        panic!("a statement")
    };
    let granted: Vec<_> = done.applied.iter().flat_map(|applied| &applied.granted).collect();
    assert_eq!((granted.len(), done.conflicts.len()), (8, 0));
    let first = granted.iter().find_map(|(at, granted)| match granted {
        Granted::Allocated(placement) if *at == 0 => Some(placement.allocation),
        _ => None,
    });
    let first = first.expect("the first operation was granted");
    // Seven fit and one does not. The result is nothing, or all but that one.
    let mut some: Vec<Operation> = nodes[1..].iter().map(|&node| allocate(node, 6, None)).collect();
    some.push(allocate(nodes[0], 7, None));
    let PlanReply::Statement(Ok(aborted)) =
        submit(&mut engine, some.clone(), ConflictDetection::Fine, CommitMode::AllOrNothing)
    else {
        panic!("a statement")
    };
    assert!(aborted.applied.is_empty());
    assert_eq!(aborted.conflicts.len(), 1);
    assert!(matches!(aborted.conflicts[0].reason, ConflictReason::Short { .. }), "{aborted:?}");
    assert_eq!((aborted.conflicts[0].operation, aborted.conflicts[0].node), (7, Some(nodes[0])));
    assert_eq!(live_allocations(&mut engine), 8);
    let PlanReply::Statement(Ok(rest)) =
        submit(&mut engine, some, ConflictDetection::Fine, CommitMode::Incremental)
    else {
        panic!("a statement")
    };
    assert_eq!(rest.applied.iter().map(|applied| applied.granted.len()).sum::<usize>(), 7);
    assert_eq!(live_allocations(&mut engine), 15);
    let stale = allocate(nodes[3], 0, Some(0));
    let PlanReply::Statement(Ok(stale)) =
        submit(&mut engine, vec![stale], ConflictDetection::Coarse, CommitMode::AllOrNothing)
    else {
        panic!("a statement")
    };
    assert!(
        matches!(stale.conflicts[0].reason, ConflictReason::VersionChanged { expected: 0, .. }),
        "{stale:?}"
    );
    let evict = Operation::Evict(Evict { allocation: first, expected: None, grace_ns: 0 });
    let PlanReply::Statement(Ok(evicted)) =
        submit(&mut engine, vec![evict.clone()], ConflictDetection::Fine, CommitMode::AllOrNothing)
    else {
        panic!("a statement")
    };
    assert_eq!(evicted.applied[0].granted, [(0, Granted::Ended(first))]);
    let again = submit(&mut engine, vec![evict], ConflictDetection::Fine, CommitMode::AllOrNothing);
    let PlanReply::Statement(Ok(again)) = again else { panic!("a statement") };
    assert_eq!(again.conflicts[0].reason, ConflictReason::UnknownAllocation(first));
    let unknown = allocate(NodeId(999), 1, None);
    let unknown = submit(&mut engine, vec![unknown], ConflictDetection::Fine, CommitMode::AllOrNothing);
    assert!(
        matches!(
            unknown,
            PlanReply::Statement(Err(PlanRejection::UnknownNode { operation: 0, node: NodeId(999) }))
        ),
        "{unknown:?}"
    );
    check_all(&engine);
}

#[test]
fn what_contradicts_itself_is_no_group() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 16, 0);
    let spreading = Spreading::Spread { max_skew: 1 };
    let topology = Some(TopologyRule { key: "zone".into(), spreading });
    let spec = GroupSpec { topology, ..group_of(cores(1), 2, Strategy::StrictPack) };
    let reply = plan(&mut engine, PlanJob::CreateGroup(Arc::new(spec)));
    let expected = PlanRejection::Spec(GroupSpecError::StrictPackSpread);
    assert!(
        matches!(&reply, PlanReply::Group(Err(NoGroup::Rejected(rejection))) if *rejection == expected),
        "{reply:?}"
    );
}

#[test]
fn groups_survive_a_start_with_other_numbers_of_shards_and_planners() {
    let mut engine = engine(3, 2);
    with_nodes(&mut engine, 6, 16, 0);
    let spec = GroupSpec { min_members: 1, ..group_of(cores(4), 4, Strategy::StrictSpread) };
    let groups: Vec<GroupView> =
        (0..3).map(|_| create(&mut engine, spec.clone()).expect("it fits")).collect();
    let mut state = export(&mut engine);
    state.groups = engine.planners.iter().flat_map(|runner| runner.planner().export()).collect();
    assert_eq!(state.groups.len(), 3);
    let config = EngineConfig { planners: 3, ..config(2) };
    let mut engine = Engine::open(state, &config, vec![Waker::noop().clone()]).expect("numbers in range");
    settle(&mut engine);
    for group in &groups {
        assert_eq!(places(&status(&mut engine, group.id)), places(group));
    }
    let PlanReply::Group(Ok(grown)) =
        plan(&mut engine, PlanJob::GrowGroup(groups[1].id, same(cores(4), 2), None))
    else {
        panic!("two nodes are without a bundle of it")
    };
    assert_eq!(nodes_of(&grown).len(), 6);
    let reply = plan(&mut engine, PlanJob::RemoveGroup(groups[0].id));
    assert!(matches!(reply, PlanReply::Removed(Ok((_, 4)))), "{reply:?}");
    assert_eq!(live_allocations(&mut engine), 4 + 6);
    check_all(&engine);
}

/// Another statement is about to evict a bundle. The group is removed once that is decided. The planner
/// retries after pauses, and not forever.
#[test]
fn a_removal_waits_for_a_statement_that_holds_a_bundle() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 16, 0);
    let group = create(&mut engine, group_of(cores(4), 1, Strategy::Pack)).expect("it fits");
    let (_, _, allocation) = places(&group)[0];
    let statement = StatementId { incarnation: engine.incarnation, planner: 9, number: 1 };
    let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 });
    let conflict_detection = ConflictDetection::Fine;
    let mode = CommitMode::AllOrNothing;
    let part = Part { statement, operations: vec![(0, evict)], conflict_detection, mode };
    let deadline = Time(u64::MAX);
    let cell = Arc::new(DecisionCell::default());
    let prepare = Command::Prepare(Box::new(Prepare { part, deadline, cell }));
    let held = ask(&mut engine, PortRequest::Partition(allocation.partition, prepare));
    assert!(matches!(held, PortReply::One(Outcome::Prepared(_))), "{held:?}");
    let asked = ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::RemoveGroup(group.id)));
    assert!(asked.is_empty(), "it is held: {asked:?}");
    let sent = |engine: &Engine| engine.planners[0].planner().metrics().statements;
    let before = sent(&engine);
    for pauses in 1..=3 {
        assert!(engine.planners[0].planner().is_committing(), "a stop waits for it");
        engine.now = engine.planners[0].planner().next_deadline().expect("it is asked again");
        assert!(settle(&mut engine).is_empty());
        assert_eq!(sent(&engine), before + pauses);
    }
    let finish = Command::Finish { statement, decision: Decision::Aborted };
    ask(&mut engine, PortRequest::Partition(allocation.partition, finish));
    engine.now = engine.planners[0].planner().next_deadline().expect("it is asked again");
    let replies = settle(&mut engine);
    let [(7, PortReply::Plan(reply))] = &replies[..] else { panic!("{replies:?}") };
    assert!(matches!(&**reply, PlanReply::Removed(Ok((id, 1))) if *id == group.id), "{reply:?}");
    assert_eq!(live_allocations(&mut engine), 0);
}

/// A view of one shard shows what a statement holds there, while the statement is still on the way to the
/// other shard.
#[test]
fn what_a_statement_holds_is_not_counted_twice_against_the_next_group() {
    let mut engine = engine(2, 1);
    let large = add_node(&mut engine, node_spec("large", 8, 0));
    let shard = |engine: &Engine, node: NodeId| {
        let has = |runner: &ShardRunner| runner.shard().books().iter().any(|books| books.node == node);
        engine.runners.iter().position(has).expect("a registered node")
    };
    let holder = shard(&engine, large.id);
    let mut small = add_node(&mut engine, node_spec("small", 3, 0));
    // Try names until one belongs to the other shard.
    while shard(&engine, small.id) == holder {
        let remove = Command::RemoveNode { node: small.id, force: false };
        ask(&mut engine, PortRequest::Partition(small.partition, remove));
        small = add_node(&mut engine, node_spec(&format!("small-{}", small.id.0), 3, 0));
    }
    let clock = ManualClock::new(engine.now);
    let job = |spec| PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    let over_both = group_of(cores(3), 2, Strategy::StrictSpread);
    engine.ports[0].submit(1, job(over_both), engine.now).expect("room");
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    engine.runners[holder].run_batch(&clock, &mut Unobserved);
    engine.ports[0].submit(2, job(group_of(cores(5), 1, Strategy::Pack)), engine.now).expect("room");
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    engine.now = clock.now();
    let replies = settle(&mut engine);
    for tag in [1, 2] {
        let reply = replies.iter().find(|(of, _)| *of == tag).map(|(_, reply)| reply);
        let placed =
            matches!(reply, Some(PortReply::Plan(reply)) if matches!(**reply, PlanReply::Group(Ok(_))));
        assert!(placed, "{tag}: {reply:?}");
    }
    check_all(&engine);
}
