//! Bundles whose allocations end while their group exists, by a release of the caller or an eviction by
//! others.

use std::sync::Arc;
use std::task::Waker;

use crate::by_hand::{ManualClock, ask, check_all, config, cores, export, node_spec, settle};
use crate::group_bed::{
    add_agent_node, ask_meanwhile, create, engine, group_of, life, live_allocations, nodes_of, places, plan,
    same, status, submit, with_nodes,
};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, GroupState, GroupView, PlanJob, PlanReply, Strategy, keeper_of};
use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::limits::BUNDLES_ENDED_KEPT;
use wharf_core::link::Clock;
use wharf_core::node::LifeEvent;
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{BundleRejection, Command, Outcome, Released, UnknownAllocation};
use wharf_core::statement::{CommitMode, ConflictDetection, Evict, Granted, Operation};
use wharf_core::time::Time;

fn release(engine: &mut Engine, allocation: AllocationId) {
    let reply = ask(engine, PortRequest::Release(allocation));
    assert!(
        matches!(reply, PortReply::One(Outcome::Release(Ok(Released { inside: Some(_), .. })))),
        "{reply:?}"
    );
}

fn evict(engine: &mut Engine, allocation: AllocationId, grace_ns: u64) -> Granted {
    let operation = Operation::Evict(Evict { allocation, expected: None, grace_ns });
    match submit(engine, vec![operation], ConflictDetection::Fine, CommitMode::AllOrNothing) {
        PlanReply::Statement(Ok(report)) => report.applied[0].granted[0].1.clone(),
        other => panic!("a statement: {other:?}"),
    }
}

/// Ends a bundle. In the same batch, another placement takes the freed capacity.
fn release_to_others(engine: &mut Engine, allocation: AllocationId, cpu: u32) -> AllocationId {
    engine.ports[0].submit(1, PortRequest::Release(allocation), engine.now).expect("room");
    engine.ports[0].submit(2, PortRequest::Place(cores(cpu)), engine.now).expect("room");
    engine.ports[0].flush();
    let replies = settle(engine);
    let placed = replies.iter().find_map(|(_, reply)| match reply {
        PortReply::Place(Ok(placement)) => Some(placement.allocation),
        _ => None,
    });
    placed.expect("it fits where the bundle was")
}

fn place_into(engine: &mut Engine, bundle: AllocationId) -> PortReply {
    let demand = Box::new(Demand { cpu: Amount::whole(1), ..Demand::default() });
    ask(
        engine,
        PortRequest::Partition(bundle.partition, Command::PlaceInto { bundles: Box::new([bundle]), demand }),
    )
}

fn allocation_of(group: &GroupView, index: u32) -> Option<AllocationId> {
    places(group).iter().find(|place| place.0 == index).map(|place| place.2)
}

/// Asserts that the bundle at `index` was placed again, and that all others are unchanged.
fn assert_placed_again(before: &GroupView, after: &GroupView, index: u32) {
    assert_eq!(after.state, GroupState::Placed, "{after:?}");
    assert_eq!(places(before).len(), places(after).len());
    for (old, new) in places(before).iter().zip(places(after)) {
        assert_eq!(old.0, new.0);
        if old.0 == index {
            assert_ne!(old.2, new.2, "{after:?}");
        } else {
            assert_eq!(*old, new);
        }
    }
}

#[test]
fn a_bundle_that_its_caller_releases_is_placed_again_and_placed_into() {
    for (shards, planners) in [(1, 1), (3, 1), (2, 3)] {
        let mut engine = engine(shards, planners);
        with_nodes(&mut engine, 5, 16, 0);
        let before = create(&mut engine, group_of(cores(4), 4, Strategy::StrictSpread)).expect("it fits");
        let gone = allocation_of(&before, 2).expect("placed");
        let inside = place_into(&mut engine, gone);
        assert!(matches!(inside, PortReply::One(Outcome::PlaceInto(Ok(_)))), "{inside:?}");
        release(&mut engine, gone);
        let after = status(&mut engine, before.id);
        assert_placed_again(&before, &after, 2);
        assert_eq!((nodes_of(&after).len(), live_allocations(&mut engine)), (4, 4));
        let late = place_into(&mut engine, gone);
        assert!(
            matches!(&late, PortReply::One(Outcome::PlaceInto(Err(BundleRejection::Unknown(UnknownAllocation(id))))) if *id == gone),
            "{late:?}"
        );
        let inside = place_into(&mut engine, allocation_of(&after, 2).expect("placed again"));
        assert!(matches!(inside, PortReply::One(Outcome::PlaceInto(Ok(_)))), "{inside:?}");
        let reply = plan(&mut engine, PlanJob::RemoveGroup(before.id));
        assert!(matches!(reply, PlanReply::Removed(Ok((_, 4)))), "{reply:?}");
        assert_eq!(live_allocations(&mut engine), 0);
        check_all(&engine);
    }
}

#[test]
fn a_bundle_that_a_statement_of_others_evicts_is_placed_again() {
    for (shards, planners) in [(1, 1), (3, 1), (2, 3)] {
        let mut engine = engine(shards, planners);
        with_nodes(&mut engine, 5, 16, 0);
        let groups: Vec<GroupView> = (0..3)
            .map(|_| create(&mut engine, group_of(cores(4), 4, Strategy::Pack)).expect("it fits"))
            .collect();
        for (at, before) in groups.iter().enumerate() {
            let index = at as u32;
            let gone = allocation_of(before, index).expect("placed");
            assert_eq!(evict(&mut engine, gone, 0), Granted::Ended(gone));
            settle(&mut engine);
            assert_placed_again(before, &status(&mut engine, before.id), index);
        }
        assert_eq!(live_allocations(&mut engine), 12);
        check_all(&engine);
    }
}

#[test]
fn a_bundle_that_is_evicted_with_grace_is_placed_until_that_ends() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 3, 16, 0);
    let before = create(&mut engine, group_of(cores(4), 3, Strategy::StrictSpread)).expect("it fits");
    let gone = allocation_of(&before, 1).expect("placed");
    let Granted::Releasing { until, .. } = evict(&mut engine, gone, 1_000_000) else {
        panic!("it has grace")
    };
    settle(&mut engine);
    assert_eq!(places(&status(&mut engine, before.id)), places(&before));
    engine.now = until;
    settle(&mut engine);
    assert_placed_again(&before, &status(&mut engine, before.id), 1);
    assert_eq!(live_allocations(&mut engine), 3);
    check_all(&engine);
}

#[test]
fn a_group_below_its_minimum_is_degraded_until_room_comes() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 16, 0);
    let before = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let mut others = Vec::new();
    for index in 0..2 {
        let gone = allocation_of(&before, index).expect("placed");
        others.push(release_to_others(&mut engine, gone, 16));
        let now = status(&mut engine, before.id);
        assert_eq!(now.state, GroupState::Degraded);
        assert_eq!(now.bundles[index as usize], (index, None));
    }
    for other in others {
        ask(&mut engine, PortRequest::Release(other));
    }
    let after = status(&mut engine, before.id);
    assert_eq!((after.state, places(&after).len()), (GroupState::Placed, 2));
    check_all(&engine);
}

#[test]
fn bundles_beyond_the_minimum_end_and_come_back_while_the_group_is_placed() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 3, 16, 0);
    let spec = GroupSpec { min_members: 2, ..group_of(cores(16), 3, Strategy::Spread) };
    let before = create(&mut engine, spec).expect("it fits");
    let gone = allocation_of(&before, 0).expect("placed");
    let other = release_to_others(&mut engine, gone, 16);
    let now = status(&mut engine, before.id);
    assert_eq!((now.state, places(&now).len()), (GroupState::Placed, 2));
    ask(&mut engine, PortRequest::Release(other));
    assert_placed_again(&before, &status(&mut engine, before.id), 0);
}

#[test]
fn a_removal_counts_the_bundles_that_it_ended() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 4, 16, 0);
    let group = create(&mut engine, group_of(cores(16), 4, Strategy::StrictSpread)).expect("it fits");
    release_to_others(&mut engine, allocation_of(&group, 1).expect("placed"), 16);
    evict(&mut engine, allocation_of(&group, 3).expect("placed"), 1_000_000);
    let reply = plan(&mut engine, PlanJob::RemoveGroup(group.id));
    assert!(matches!(reply, PlanReply::Removed(Ok((_, 2)))), "{reply:?}");
    // The placement that took the capacity, and the bundle that is in its grace period.
    assert_eq!(live_allocations(&mut engine), 2);
    check_all(&engine);
}

#[test]
fn bundles_end_while_their_group_is_removed() {
    let mut first = 0;
    for shards in [1, 3] {
        let mut engine = engine(shards, 1);
        with_nodes(&mut engine, 4, 16, 0);
        let group = create(&mut engine, group_of(cores(16), 4, Strategy::StrictSpread)).expect("it fits");
        let clock = ManualClock::new(engine.now);
        // The planner has already sent the releases when the caller ends one of the bundles.
        engine.ports[0]
            .submit(1, PortRequest::Plan(PlanJob::RemoveGroup(group.id)), engine.now)
            .expect("room");
        let gone = allocation_of(&group, 2).expect("placed");
        engine.ports[0].submit(2, PortRequest::Release(gone), engine.now).expect("room");
        engine.ports[0].flush();
        engine.planners[0].run_round(&clock);
        let replies = settle(&mut engine);
        let removed = replies.iter().find_map(|(tag, reply)| match reply {
            PortReply::Plan(reply) if *tag == 1 => Some((**reply).clone()),
            _ => None,
        });
        let released = replies.iter().any(|(_, r)| {
            matches!(r, PortReply::One(Outcome::Release(Ok(Released { inside: Some(_), .. }))))
        });
        first += u32::from(released);
        let expected = 4 - u32::from(released);
        assert!(
            matches!(removed, Some(PlanReply::Removed(Ok((_, count)))) if count == expected),
            "{replies:?}"
        );
        assert_eq!(live_allocations(&mut engine), 0);
        check_all(&engine);
    }
    assert!(first > 0, "the caller was never first");
}

#[test]
fn bundles_end_while_their_group_shrinks() {
    for shards in [1, 3] {
        let mut engine = engine(shards, 1);
        with_nodes(&mut engine, 4, 16, 0);
        let spec = GroupSpec { min_members: 1, ..group_of(cores(16), 4, Strategy::StrictSpread) };
        let group = create(&mut engine, spec).expect("it fits");
        let clock = ManualClock::new(engine.now);
        let job = PlanJob::ShrinkGroup(group.id, vec![1]);
        engine.ports[0].submit(1, PortRequest::Plan(job), engine.now).expect("room");
        for (tag, index) in [(2, 0), (3, 1)] {
            let gone = allocation_of(&group, index).expect("placed");
            engine.ports[0].submit(tag, PortRequest::Release(gone), engine.now).expect("room");
        }
        engine.ports[0].flush();
        engine.planners[0].run_round(&clock);
        assert_eq!(settle(&mut engine).len(), 3);
        let after = status(&mut engine, group.id);
        assert_eq!(after.bundles.iter().map(|bundle| bundle.0).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!((after.state, places(&after).len()), (GroupState::Placed, 3));
        assert_ne!(allocation_of(&after, 0), allocation_of(&group, 0));
        assert_eq!(live_allocations(&mut engine), 3);
        check_all(&engine);
    }
}

/// Runs one planner round, then a batch of each of these shards.
fn round(engine: &mut Engine, shards: &[usize]) {
    let clock = ManualClock::new(engine.now);
    engine.planners[0].run_round(&clock);
    for &shard in shards {
        engine.runners[shard].run_batch(&clock, &mut Unobserved);
    }
    engine.now = clock.now();
}

fn live_at(engine: &Engine, shard: usize) -> Vec<AllocationId> {
    let view = engine.views[shard].latest();
    let mut live = Vec::new();
    view.nodes(|slot, _, _| live.extend(view.allocations(slot).map(|allocation| allocation.id)));
    live
}

fn send(engine: &mut Engine, tag: u64, request: PortRequest) {
    engine.ports[0].submit(tag, request, engine.now).expect("room");
    engine.ports[0].flush();
}

/// A bundle that a view showed ends while its group grows on another shard. Once the growth is decided, the
/// bundle is tried again, although no capacity was freed since.
#[test]
fn a_bundle_that_was_seen_to_end_while_its_group_grew_is_placed_again() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 16, 16, 0);
    let group = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let gone = allocation_of(&group, 1).expect("placed");
    let here = (0..2).find(|&shard| live_at(&engine, shard).contains(&gone)).expect("it is live");
    send(&mut engine, 1, PortRequest::Plan(PlanJob::GrowGroup(group.id, same(cores(16), 14), None)));
    round(&mut engine, &[0, 1]);
    // Both shards hold their parts.
    round(&mut engine, &[]);
    send(&mut engine, 2, PortRequest::Release(gone));
    round(&mut engine, &[here]);
    round(&mut engine, &[]);
    let metrics = engine.planners[0].planner().metrics();
    assert_eq!((metrics.statements, metrics.committed), (2, 1), "the other shard has not done it");
    assert_eq!(settle(&mut engine).len(), 2);
    let after = status(&mut engine, group.id);
    assert_eq!((after.state, nodes_of(&after).len()), (GroupState::Placed, 16), "{after:?}");
    assert_eq!(live_allocations(&mut engine), 16);
    check_all(&engine);
}

/// A bundle ends on one shard before another shard has confirmed the creation of its group. A view showed its
/// beginning and end before the planner knew of it.
#[test]
fn a_bundle_that_ends_before_its_group_is_known_to_be_made_is_placed_again() {
    let mut engine = engine(2, 1);
    with_nodes(&mut engine, 8, 16, 0);
    let spec = group_of(cores(16), 7, Strategy::StrictSpread);
    send(&mut engine, 1, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))));
    round(&mut engine, &[0, 1]);
    round(&mut engine, &[0]);
    let gone = live_at(&engine, 0)[0];
    send(&mut engine, 2, PortRequest::Release(gone));
    round(&mut engine, &[0]);
    round(&mut engine, &[]);
    let replies = settle(&mut engine);
    let made = replies.iter().find_map(|(_, reply)| match reply {
        PortReply::Plan(reply) => Some((**reply).clone()),
        _ => None,
    });
    let Some(PlanReply::Group(Ok(made))) = made else { panic!("it is made: {replies:?}") };
    let after = status(&mut engine, made.id);
    assert_eq!((after.state, nodes_of(&after).len()), (GroupState::Placed, 7), "{after:?}");
    assert!(places(&after).iter().all(|place| place.2 != gone), "{after:?}");
    assert_eq!(live_allocations(&mut engine), 7);
    check_all(&engine);
}

/// The allocation on a lost node ends with the step that places its bundle again, but it may end before.
#[test]
fn an_allocation_on_a_lost_node_may_end_before_its_bundle_is_placed_again() {
    let mut engine = engine(2, 1);
    let nodes: Vec<NodeId> = (0..2)
        .map(|number| {
            let mut spec = node_spec(&format!("n{number}"), 16, 0);
            spec.identity = Some(format!("m{number}").into());
            add_agent_node(&mut engine, spec)
        })
        .collect();
    let group = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let (index, lost, allocation) = places(&group)[0];
    life(&mut engine, lost, LifeEvent::Lose);
    release(&mut engine, allocation);
    assert_eq!(status(&mut engine, group.id).state, GroupState::Degraded);
    let mut spec = node_spec("late", 16, 0);
    spec.identity = Some("late".into());
    add_agent_node(&mut engine, spec);
    let after = status(&mut engine, group.id);
    assert_placed_again(&group, &after, index);
    assert!(nodes.contains(&lost) && !nodes_of(&after).contains_key(&lost));
    assert_eq!(live_allocations(&mut engine), 2);
    check_all(&engine);
}

/// The first view of the next start shows which bundles ended after the groups were stored.
#[test]
fn bundles_that_are_gone_at_a_start_are_placed_again() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 2, 16, 0);
    let before = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let groups = engine.planners[0].planner().export();
    let other = release_to_others(&mut engine, allocation_of(&before, 0).expect("placed"), 16);
    let mut state = export(&mut engine);
    state.groups = groups;
    let config = EngineConfig { planners: 2, ..config(3) };
    let mut engine = Engine::open(state, &config, vec![Waker::noop().clone()]).expect("numbers in range");
    settle(&mut engine);
    let now = status(&mut engine, before.id);
    assert_eq!((now.state, allocation_of(&now, 0)), (GroupState::Degraded, None), "{now:?}");
    ask(&mut engine, PortRequest::Release(other));
    assert_placed_again(&before, &status(&mut engine, before.id), 0);
    check_all(&engine);
}

/// A group that waits for capacity is not treated as a group whose bundles ended.
#[test]
fn a_group_that_waits_is_not_degraded() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 16, 0);
    ask(&mut engine, PortRequest::Place(cores(16)));
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(8), 1, Strategy::Pack) };
    let waits = ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec))));
    assert!(waits.is_empty(), "{waits:?}");
    let PlanReply::Groups(groups) = plan(&mut engine, PlanJob::ListGroups(None, None, 8)) else {
        panic!("a list")
    };
    assert_eq!(groups.iter().map(|group| group.state).collect::<Vec<_>>(), [GroupState::Waiting]);
}

/// While a planner does not run, its bundles end, and then so many others that the views no longer tell of its own.
#[test]
fn a_planner_that_missed_too_many_ends_compares_its_bundles() {
    let mut engine = engine(1, 2);
    let spec = |number: u32| node_spec(&format!("n{number}"), if number < 5 { 16 } else { 4096 }, 0);
    let nodes: Vec<NodeId> = (0..6).map(|number| add_agent_node(&mut engine, spec(number))).collect();
    let before = create(&mut engine, group_of(cores(10), 3, Strategy::StrictSpread)).expect("it fits");
    let other = create(&mut engine, group_of(cores(1), 1, Strategy::Pack)).expect("it fits");
    let keeper = usize::from(keeper_of(before.id, 2));
    assert_ne!(keeper, usize::from(keeper_of(other.id, 2)), "the planners take turns");
    let stopped = engine.planners.remove(keeper);
    let lost = places(&before)[0].1;
    life(&mut engine, lost, LifeEvent::Lose);
    release_to_others(&mut engine, allocation_of(&before, 1).expect("placed"), 16);
    let mut ended = 0;
    while ended <= BUNDLES_ENDED_KEPT {
        let first = 1 + ended as u32;
        let grow = PlanJob::GrowGroup(other.id, same(cores(1), 1000), None);
        assert!(matches!(plan(&mut engine, grow), PlanReply::Group(Ok(_))));
        let shrink = PlanJob::ShrinkGroup(other.id, (first..first + 1000).collect());
        assert!(matches!(plan(&mut engine, shrink), PlanReply::Status(Ok(_))));
        ended += 1000;
    }
    engine.planners.insert(keeper, stopped);
    settle(&mut engine);
    let after = status(&mut engine, before.id);
    assert_eq!((after.state, nodes_of(&after).len()), (GroupState::Placed, 3), "{after:?}");
    assert!(nodes.contains(&lost) && !nodes_of(&after).contains_key(&lost), "{after:?}");
    assert_eq!(allocation_of(&after, 2), allocation_of(&before, 2));
    // The group, the other group, and the placement that took the capacity of a bundle.
    assert_eq!(live_allocations(&mut engine), 3 + 1 + 1);
    check_all(&engine);
}
