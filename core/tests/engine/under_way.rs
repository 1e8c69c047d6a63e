//! Events that reach a planner while operations of its groups are in flight. The planner must not sleep
//! through them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::by_hand::{ManualClock, add_node, ask, check_all, cores, node_spec, settle};
use crate::group_bed::{
    add_agent_node, create, engine, group_of, hostile_round, life, nodes_of, plan, same, status, with_nodes,
};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, GroupState, PlanJob, PlanReply, Strategy};
use wharf_core::ids::{AllocationId, NodeId, OwnerId, ShardId};
use wharf_core::limits::GROUP_RETRIES_PER_ROUND;
use wharf_core::link::Clock;
use wharf_core::node::LifeEvent;
use wharf_core::registrar::{Registrar, TOPOLOGY_LABEL_DEFAULT};
use wharf_core::router::{PortReply, PortRequest, Tag};
use wharf_core::shard::Command;
use wharf_core::time::Time;

/// Returns a name whose node belongs to this shard.
fn name_in(engine: &Engine, shard: u16) -> String {
    let mut names = Registrar::new(8, TOPOLOGY_LABEL_DEFAULT);
    let table = engine.table.load();
    let name = |number| {
        let name = format!("n{number}");
        let node = names.register(node_spec(&name, 1, 0)).expect("a new name");
        (table.shard(node.partition) == Some(ShardId(shard))).then_some(name)
    };
    (0..).find_map(name).expect("every shard has partitions")
}

fn waiting(spec: GroupSpec) -> PortRequest {
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec };
    PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)))
}

fn submit(engine: &mut Engine, tag: Tag, request: PortRequest) {
    assert!(matches!(engine.ports[0].submit(tag, request, engine.now), Ok(None)));
    engine.ports[0].flush();
}

/// Runs everything as threads would: a sleeper is not run until its bell is rung.
fn run_until_asleep(engine: &mut Engine) -> Vec<(Tag, PortReply)> {
    let clock = ManualClock::new(engine.now);
    let mut replies = Vec::new();
    loop {
        let mut awake = false;
        for runner in &mut engine.runners {
            if !runner.is_asleep() && (runner.run_batch(&clock, &mut Unobserved) > 0 || !runner.fall_asleep())
            {
                awake = true;
            }
        }
        for planner in &mut engine.planners {
            if !planner.is_asleep() && (planner.run_round(&clock) > 0 || !planner.fall_asleep()) {
                awake = true;
            }
        }
        for port in &mut engine.ports {
            let bell = Arc::clone(port.bell());
            let taken = port.poll(engine.now, |tag, reply| replies.push((tag, reply)));
            port.flush();
            awake |= taken > 0 || !bell.sleep_if(|| port.is_idle());
        }
        engine.now = clock.now();
        if !awake {
            return replies;
        }
    }
}

/// The planner sees that the node is lost while it waits for another shard, and still commits.
#[test]
fn a_bundle_on_its_way_to_a_node_that_is_lost_meanwhile_is_placed_again() {
    let mut engine = engine(2, 1);
    let [here, there] = [0, 1].map(|shard| {
        let name = name_in(&engine, shard);
        add_agent_node(&mut engine, node_spec(&name, 16, 0))
    });
    submit(&mut engine, 9, waiting(group_of(cores(16), 2, Strategy::StrictSpread)));
    let clock = ManualClock::new(engine.now);
    engine.planners[0].run_round(&clock);
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    let partition = engine.catalog.load().node_partition(here).expect("a registered node");
    submit(&mut engine, 1, PortRequest::Partition(partition, Command::Life(here, LifeEvent::Lose)));
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    // One shard holds, and its node is lost. The other shard has not answered.
    assert!(engine.planners[0].planner().is_committing());
    engine.planners[0].run_round(&clock);
    engine.runners[1].run_batch(&clock, &mut Unobserved);
    engine.now = clock.now();
    let replies = settle(&mut engine);
    let made = replies.iter().find(|(tag, _)| *tag == 9).expect("it was granted");
    let PortReply::Plan(reply) = &made.1 else { panic!("a planner answers: {made:?}") };
    let PlanReply::Group(Ok(group)) = &**reply else { panic!("made: {reply:?}") };
    assert_eq!(status(&mut engine, group.id).state, GroupState::Degraded);
    let late = add_node(&mut engine, node_spec("late", 16, 0)).id;
    let after = status(&mut engine, group.id);
    assert_eq!(after.state, GroupState::Placed);
    assert_eq!(nodes_of(&after).into_keys().collect::<BTreeSet<_>>(), BTreeSet::from([there, late]));
    check_all(&engine);
}

/// The shard reports the loss between the planner's last round and its last look.
#[test]
fn a_planner_that_is_about_to_sleep_sees_a_node_that_was_just_lost() {
    let mut engine = engine(1, 1);
    let node = add_agent_node(&mut engine, node_spec("n1", 16, 0));
    create(&mut engine, group_of(cores(4), 1, Strategy::Pack)).expect("it fits");
    let clock = ManualClock::new(engine.now);
    assert!(engine.planners[0].is_asleep());
    let partition = engine.catalog.load().node_partition(node).expect("a registered node");
    submit(&mut engine, 1, PortRequest::Partition(partition, Command::Life(node, LifeEvent::Lose)));
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    assert!(!engine.planners[0].fall_asleep(), "its bundle is to be placed again");
    engine.now = clock.now();
    settle(&mut engine);
    check_all(&engine);
}

#[test]
fn a_node_that_was_hidden_from_a_search_and_takes_no_work_is_not_planned_on() {
    let mut engine = engine(1, 1);
    let nodes = with_nodes(&mut engine, 2, 16, 0);
    let group = create(&mut engine, group_of(cores(4), 1, Strategy::Spread)).expect("it fits");
    let drained = *nodes_of(&group).keys().next().expect("one bundle");
    life(&mut engine, drained, LifeEvent::Drain);
    // The new bundle is spread, so the node of the first bundle is hidden from the search.
    let PlanReply::Group(Ok(grown)) =
        plan(&mut engine, PlanJob::GrowGroup(group.id, same(cores(4), 1), None))
    else {
        panic!("the other node is free")
    };
    let other = *nodes.iter().find(|&&node| node != drained).expect("two nodes");
    assert_eq!(nodes_of(&grown), [(drained, 1), (other, 1)].into());
    let filled = ask(&mut engine, PortRequest::Place(cores(12)));
    assert!(matches!(filled, PortReply::Place(Ok(placement)) if placement.node == other));
    let refused = create(&mut engine, group_of(cores(12), 1, Strategy::Pack)).expect_err("nothing is left");
    assert_eq!((refused.infeasible, refused.attempts), (false, 1), "{refused:?}");
    check_all(&engine);
}

#[test]
fn groups_beyond_those_of_one_round_are_tried_before_the_planner_sleeps() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 16, 0);
    let first = [12, 4].map(|cpu| match ask(&mut engine, PortRequest::Place(cores(cpu))) {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("placed: {other:?}"),
    });
    let large = GroupSpec { priority: 1, ..group_of(cores(16), 1, Strategy::Pack) };
    let count = GROUP_RETRIES_PER_ROUND as u64 + 3;
    (0..count).for_each(|tag| submit(&mut engine, 100 + tag, waiting(large.clone())));
    submit(&mut engine, 9, waiting(group_of(cores(4), 1, Strategy::Pack)));
    assert!(run_until_asleep(&mut engine).is_empty(), "all wait");
    submit(&mut engine, 1, PortRequest::Release(first[1]));
    let replies = run_until_asleep(&mut engine);
    let placed = replies.iter().any(|(tag, reply)| {
        *tag == 9 && matches!(reply, PortReply::Plan(plan) if matches!(**plan, PlanReply::Group(Ok(_))))
    });
    assert!(placed, "the small one fits, and those before it do not: {replies:?}");
    assert!(engine.planners[0].is_asleep());
    check_all(&engine);
}

/// Fills the free capacity with placements of one core.
fn fill(engine: &mut Engine) -> Vec<AllocationId> {
    let mut live = Vec::new();
    while let PortReply::Place(Ok(placement)) = ask(engine, PortRequest::Place(cores(1))) {
        live.push(placement.allocation);
    }
    live
}

/// `settle` fails if a planner sleeps although its number is served.
#[test]
fn a_planner_whose_turn_it_is_is_woken_by_the_one_before() {
    let mut engine = engine(1, 2);
    let nodes: Vec<NodeId> = with_nodes(&mut engine, 2, 16, 0);
    let mut live = fill(&mut engine);
    assert_eq!(live.len(), 16 * nodes.len());
    for tag in [11, 12] {
        submit(&mut engine, tag, waiting(group_of(cores(16), 2, Strategy::StrictSpread)));
    }
    assert!(settle(&mut engine).is_empty(), "all is full");
    for _ in 0..12 {
        hostile_round(&mut engine, &mut live);
    }
    // Nothing is freed any more. Each ticket ends at its deadline, and then the other planner's is next.
    let mut served: Vec<OwnerId> = Vec::new();
    for _ in 0..64 {
        let owners = engine.runners[0].shard().reservation_owners();
        assert!(owners.len() <= 1, "one ticket at a time: {owners:?}");
        let last = served.last().copied();
        served.extend(owners.into_iter().filter(|&owner| last != Some(owner)));
        let of_planners = engine.planners.iter().filter_map(|planner| planner.planner().next_deadline());
        let due = of_planners.chain(engine.runners[0].shard().next_deadline()).min();
        let Some(due) = due.filter(|due| due.0 < u64::MAX) else { break };
        engine.now = Time(engine.now.0.max(due.0));
        settle(&mut engine);
    }
    assert!(served.len() >= 2, "tickets take turns: {served:?}");
    check_all(&engine);
}
