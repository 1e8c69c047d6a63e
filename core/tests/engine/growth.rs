//! Groups that grow, and wait for the additional bundles until there is capacity, the deadline passes, or the
//! caller cancels. The bundles that a group already had take precedence.

use crate::by_hand::{add_node, ask, check_all, cores, node_spec, settle};
use crate::group_bed::{
    self, add_agent_node, create, engine, group_of, hostile_round, life, nodes_of, places, plan, same,
    status, with_nodes,
};
use wharf_core::engine::Engine;
use wharf_core::group::{GroupState, GroupView, NoGroup, PlanJob, PlanRejection, PlanReply, Strategy};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::node::LifeEvent;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::time::Time;

const TAG: u64 = 9;

/// Requests more bundles, with this deadline.
fn begin(engine: &mut Engine, group: GroupId, cpu: u32, until: Time) -> Vec<(u64, PortReply)> {
    let job = PlanJob::GrowGroup(group, same(cores(cpu), 1), Some(until));
    engine.ports[0].submit(TAG, PortRequest::Plan(job), engine.now).expect("room");
    engine.ports[0].flush();
    settle(engine)
}

/// Returns the only answer to the growth.
#[track_caller]
fn answer(replies: Vec<(u64, PortReply)>) -> PlanReply {
    let mut replies = replies.into_iter().filter(|(tag, _)| *tag == TAG);
    match (replies.next(), replies.next()) {
        (Some((_, PortReply::Plan(reply))), None) => *reply,
        other => panic!("one answer: {other:?}"),
    }
}

#[track_caller]
fn grown(reply: PlanReply) -> GroupView {
    let PlanReply::Group(Ok(view)) = reply else { panic!("it fits: {reply:?}") };
    *view
}

fn place(engine: &mut Engine, cpu: u32) -> AllocationId {
    match ask(engine, PortRequest::Place(cores(cpu))) {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("it fits: {other:?}"),
    }
}

/// Creates a group of two bundles on a node each, and a third node that is full.
fn bed(shards: u16) -> (Engine, GroupView, AllocationId) {
    let mut engine = engine(shards, 1);
    with_nodes(&mut engine, 3, 16, 0);
    let group = create(&mut engine, group_of(cores(16), 2, Strategy::StrictSpread)).expect("it fits");
    let held = place(&mut engine, 16);
    (engine, group, held)
}

#[test]
fn what_a_group_grows_by_waits_until_there_is_room() {
    for shards in [1, 2] {
        let (mut engine, group, held) = bed(shards);
        assert!(begin(&mut engine, group.id, 16, Time(u64::MAX)).is_empty(), "all is full");
        let waiting = status(&mut engine, group.id);
        assert_eq!(
            (waiting.state, waiting.bundles.len(), places(&waiting).len()),
            (GroupState::Placed, 3, 2)
        );
        let busy = plan(&mut engine, PlanJob::GrowGroup(group.id, same(cores(1), 1), None));
        assert!(matches!(busy, PlanReply::Group(Err(NoGroup::Rejected(PlanRejection::Busy(_))))), "{busy:?}");
        // Bundles that are not placed yet are not stored. The caller is told.
        let kept = engine.planners[0].planner().export();
        assert_eq!((kept[0].bundles.len(), kept[0].next_index), (2, 2));
        let after = grown(answer(group_bed::ask_meanwhile(&mut engine, PortRequest::Release(held))));
        assert_eq!((nodes_of(&after).len(), after.bundles.len()), (3, 3));
        check_all(&engine);
    }
}

#[test]
fn it_ends_at_its_deadline_by_cancellation_and_with_its_group() {
    let (mut engine, group, held) = bed(2);
    let until = Time(engine.now.0 + 1_000_000);
    assert!(begin(&mut engine, group.id, 16, until).is_empty());
    assert_eq!(engine.planners[0].planner().next_deadline(), Some(until));
    engine.now = until;
    let reply = answer(settle(&mut engine));
    assert!(
        matches!(&reply, PlanReply::Group(Err(NoGroup::Refused(refusal))) if !refusal.infeasible),
        "{reply:?}"
    );
    assert_eq!(places(&status(&mut engine, group.id)), places(&group));
    assert_eq!(status(&mut engine, group.id).bundles.len(), 2);

    // An infeasible growth does not wait.
    let reply = answer(begin(&mut engine, group.id, 17, Time(u64::MAX)));
    assert!(
        matches!(&reply, PlanReply::Group(Err(NoGroup::Refused(refusal))) if refusal.infeasible),
        "{reply:?}"
    );

    assert!(begin(&mut engine, group.id, 16, Time(u64::MAX)).is_empty());
    engine.ports[0].cancel_plan(TAG);
    engine.ports[0].flush();
    let reply = answer(settle(&mut engine));
    assert!(matches!(reply, PlanReply::Group(Err(NoGroup::Cancelled))), "{reply:?}");
    assert_eq!(status(&mut engine, group.id).bundles.len(), 2);

    // The bundle's index in the group is assigned again.
    assert!(begin(&mut engine, group.id, 16, Time(u64::MAX)).is_empty());
    let after = grown(answer(group_bed::ask_meanwhile(&mut engine, PortRequest::Release(held))));
    assert_eq!(places(&after).iter().map(|place| place.0).collect::<Vec<_>>(), [0, 1, 2]);

    add_node(&mut engine, node_spec("late", 16, 0));
    place(&mut engine, 16);
    assert!(begin(&mut engine, group.id, 16, Time(u64::MAX)).is_empty());
    let replies = group_bed::ask_meanwhile(&mut engine, PortRequest::Plan(PlanJob::RemoveGroup(group.id)));
    let removed = replies.iter().find(|(tag, _)| *tag != TAG).map(|(_, reply)| reply);
    assert!(
        matches!(removed, Some(PortReply::Plan(reply)) if matches!(**reply, PlanReply::Removed(Ok((_, 3))))),
        "{replies:?}"
    );
    assert!(matches!(answer(replies), PlanReply::Group(Err(NoGroup::Removed))));
    check_all(&engine);
}

#[test]
fn bundles_that_are_lost_come_before_those_that_are_new() {
    let mut engine = engine(2, 1);
    let nodes: Vec<_> =
        (0..3).map(|number| add_agent_node(&mut engine, node_spec(&format!("n{number}"), 16, 0))).collect();
    let group = create(&mut engine, group_of(cores(12), 2, Strategy::StrictSpread)).expect("it fits");
    let held = place(&mut engine, 16);
    assert!(begin(&mut engine, group.id, 12, Time(u64::MAX)).is_empty());
    let lost = places(&group)[0].1;
    assert!(nodes.contains(&lost));
    // The caller of the growth is refused, and the lost bundle is the first to get freed capacity.
    let partition = engine.catalog.load().node_partition(lost).expect("registered");
    let command = Command::Life(lost, LifeEvent::Lose);
    let replies = group_bed::ask_meanwhile(&mut engine, PortRequest::Partition(partition, command));
    let reply = answer(replies);
    assert!(
        matches!(&reply, PlanReply::Group(Err(NoGroup::Refused(refusal))) if !refusal.infeasible),
        "{reply:?}"
    );
    ask(&mut engine, PortRequest::Release(held));
    let after = status(&mut engine, group.id);
    assert_eq!((after.state, after.bundles.len(), nodes_of(&after).len()), (GroupState::Placed, 2, 2));
    assert!(!nodes_of(&after).contains_key(&lost));
    // While a bundle is not placed, a growth does not wait.
    let other = places(&after)[0].1;
    life(&mut engine, other, LifeEvent::Lose);
    let reply = answer(begin(&mut engine, group.id, 12, Time(u64::MAX)));
    assert!(matches!(reply, PlanReply::Group(Err(NoGroup::Refused(_)))), "{reply:?}");
    check_all(&engine);
}

/// Like a waiting group, it eventually takes a ticket, so direct traffic does not starve it.
#[test]
fn it_comes_to_its_end_among_hostile_traffic() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 8, 0);
    let group = create(&mut engine, group_of(cores(8), 1, Strategy::Pack)).expect("it fits");
    for number in 1..4 {
        add_node(&mut engine, node_spec(&format!("late{number}"), 16, 0));
    }
    let mut live = Vec::new();
    while let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(1))) {
        live.push(placement.allocation);
    }
    assert!(begin(&mut engine, group.id, 16, Time(u64::MAX)).is_empty());
    let mut made = None;
    for _ in 0..400 {
        let (replies, _) = hostile_round(&mut engine, &mut live);
        made = replies.into_iter().find(|(tag, _)| *tag == TAG);
        if made.is_some() || live.is_empty() {
            break;
        }
    }
    let after = grown(answer(made.into_iter().collect()));
    assert_eq!(nodes_of(&after).len(), 2);
    check_all(&engine);
}

/// The ticket of a cancelled growth ends, even if the same group wants something else in the meantime.
#[test]
fn what_is_taken_back_while_its_ticket_is_served_leaves_nothing() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 8, 0);
    let group = create(&mut engine, group_of(cores(8), 1, Strategy::Pack)).expect("it fits");
    for number in 1..3 {
        add_node(&mut engine, node_spec(&format!("late{number}"), 16, 0));
    }
    let mut live = Vec::new();
    while let PortReply::Place(Ok(placement)) = ask(&mut engine, PortRequest::Place(cores(1))) {
        live.push(placement.allocation);
    }
    let reserved = |engine: &mut Engine| match ask(engine, PortRequest::Every(Command::Audit { number: 0 })) {
        PortReply::Every(outcomes) => match &outcomes[..] {
            [Outcome::Status(status)] => status.nodes_reserved,
            other => panic!("a status: {other:?}"),
        },
        other => panic!("every shard answers: {other:?}"),
    };
    for count in [2, 1] {
        let job = PlanJob::GrowGroup(group.id, same(cores(16), count), Some(Time(u64::MAX)));
        engine.ports[0].submit(TAG, PortRequest::Plan(job), engine.now).expect("room");
        engine.ports[0].flush();
        assert!(settle(&mut engine).is_empty(), "all is full");
        let served = (0..100).find(|_| {
            assert!(hostile_round(&mut engine, &mut live).0.iter().all(|(tag, _)| *tag != TAG));
            reserved(&mut engine) > 0
        });
        assert!(served.is_some(), "its ticket is served after some losses");
        engine.ports[0].cancel_plan(TAG);
        engine.ports[0].flush();
        assert!(matches!(answer(settle(&mut engine)), PlanReply::Group(Err(NoGroup::Cancelled))));
        assert_eq!((reserved(&mut engine), status(&mut engine, group.id).bundles.len()), (0, 1));
    }
    check_all(&engine);
}
