//! Tickets whose plan names a node that has been removed.

use crate::by_hand::{ManualClock, add_node, check_all, cores, node_spec, settle};
use crate::group_bed::{create, engine, group_of, hostile_round, places, status};
use crate::tickets::{assert_nothing_reserved, release_to_ones};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupState, PlanJob, PlanReply, Strategy};
use wharf_core::ids::GroupId;
use wharf_core::limits::TICKET_NS_DEFAULT;
use wharf_core::link::Clock;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};

/// The tag of the request that removes the first node.
const REMOVAL: u64 = 99;

/// Creates an engine whose planner has a ticket over both nodes and has sent its statement to the shard,
/// which has removed the first node. Returns the group and the clock of that round too.
fn ticket_with_a_node_removed() -> (Engine, GroupId, ManualClock) {
    let mut engine = engine(1, 1);
    let nodes = [0, 1].map(|number| add_node(&mut engine, node_spec(&format!("n{number}"), 16, 0)));
    let group = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let mut live = Vec::new();
    for (_, _, bundle) in places(&group) {
        release_to_ones(&mut engine, &mut live, bundle, 16);
    }
    let reserves = (0..50).any(|_| {
        hostile_round(&mut engine, &mut live);
        !engine.runners[0].shard().reservation_owners().is_empty()
    });
    assert!(reserves, "the ticket is served");
    for (tag, id) in (100..).zip(live) {
        engine.ports[0].submit(tag, PortRequest::Release(id), engine.now).expect("room");
    }
    let remove = Command::RemoveNode { node: nodes[0].id, force: true };
    let removal = PortRequest::Partition(nodes[0].partition, remove);
    engine.ports[0].submit(REMOVAL, removal, engine.now).expect("room");
    engine.ports[0].flush();
    let clock = ManualClock::new(engine.now);
    engine.runners[0].run_batch(&clock, &mut Unobserved);
    engine.planners[0].run_round(&clock);
    assert!(engine.planners[0].planner().is_committing(), "it is tried when something grows");
    (engine, group.id, clock)
}

/// Continues until nothing moves. Returns the answers.
fn go_on(engine: &mut Engine, clock: &ManualClock) -> Vec<(u64, PortReply)> {
    engine.now = clock.now();
    let replies = settle(engine);
    for (tag, reply) in &replies {
        if let (REMOVAL, PortReply::One(Outcome::Node(Ok(NodeChange::Removed { node, version, .. })))) =
            (*tag, reply)
        {
            engine.registrar.forget(*node, *version);
        }
    }
    replies
}

#[test]
fn a_ticket_whose_node_was_removed_makes_way_for_another_plan() {
    let (mut engine, group, clock) = ticket_with_a_node_removed();
    go_on(&mut engine, &clock);
    assert!(engine.now.0 < TICKET_NS_DEFAULT, "not only when its time is up");
    assert_nothing_reserved(&mut engine, 0);
    add_node(&mut engine, node_spec("late", 16, 0));
    assert_eq!(status(&mut engine, group).state, GroupState::Placed);
    check_all(&engine);
}

#[test]
fn a_group_is_removed_once_when_its_ticket_fails_meanwhile() {
    let (mut engine, group, clock) = ticket_with_a_node_removed();
    let job = PortRequest::Plan(PlanJob::RemoveGroup(group));
    engine.ports[0].submit(9, job, engine.now).expect("room");
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    let replies = go_on(&mut engine, &clock);
    let removed: Vec<_> = replies.iter().filter(|(tag, _)| *tag == 9).collect();
    let [(_, PortReply::Plan(reply))] = &removed[..] else { panic!("one reply: {removed:?}") };
    assert!(matches!(**reply, PlanReply::Removed(Ok((of, _))) if of == group), "{reply:?}");
    assert_nothing_reserved(&mut engine, 0);
    check_all(&engine);
}
