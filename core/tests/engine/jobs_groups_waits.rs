//! Groups that wait in queues: turns among jobs and placements, shares, tickets, and what is left of a group.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::fairness::Dim;
use wharf_core::group::{GroupSpec, GroupState, NoGroup, PlanJob, PlanReply, Strategy, WaitsFor};
use wharf_core::ids::{AllocationId, GroupId, OwnerId};
use wharf_core::jobs::{QueueSpec, TaskState};
use wharf_core::node::LifeEvent;
use wharf_core::planner::PlannerBudget;
use wharf_core::request::PlacementRequest;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Reserve};
use wharf_core::time::Time;

use crate::by_hand::{add_node, ask, cores, node_spec, settle};
use crate::group_bed::{add_agent_node, life, nodes_of, places, status, with_nodes};
use crate::jobs_bed::{
    INTERVAL_NS, bag, cancel, check_jobs, counts, cpu, gang, jobs_engine, jobs_of, place_in, set_queue,
    submit_job, wait,
};
use crate::jobs_groups::{
    ask_and_wait, ask_to_wait, created, explained, group_of_reply, in_queue, list, used,
};

/// Asks for a group that waits for ever, by a tag, and lets everything settle. Returns the replies.
fn ask_as(engine: &mut Engine, tag: u64, spec: GroupSpec) -> Vec<(u64, PortReply)> {
    let spec = GroupSpec { wait_until: Some(Time::NEVER), ..spec };
    let create = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    let answered = engine.ports[0].submit(tag, create, engine.now).expect("room");
    assert!(answered.is_none(), "{answered:?}");
    settle(engine)
}

/// Asks for a group that has to wait, and lets a cycle look at it.
fn waits(engine: &mut Engine, tag: u64, spec: GroupSpec) {
    let replies = ask_as(engine, tag, spec);
    assert!(replies.is_empty(), "group {tag} waits: {replies:?}");
    let replies = next_cycle(engine);
    assert!(replies.is_empty(), "group {tag} waits: {replies:?}");
}

fn next_cycle(engine: &mut Engine) -> Vec<(u64, PortReply)> {
    engine.now = engine.now.plus_nanos(INTERVAL_NS);
    settle(engine)
}

/// Returns which groups are placed, by their tags.
fn placed(replies: &[(u64, PortReply)]) -> Vec<u64> {
    let is_placed = |reply: &PortReply| match reply {
        PortReply::Plan(reply) => matches!(**reply, PlanReply::Group(Ok(_))),
        _ => false,
    };
    replies.iter().filter(|(_, reply)| is_placed(reply)).map(|&(tag, _)| tag).collect()
}

fn remove(engine: &mut Engine, id: GroupId) -> Vec<(u64, PortReply)> {
    ask_and_wait(engine, PortRequest::Plan(PlanJob::RemoveGroup(id)))
}

fn pending_cores(engine: &Engine, queue: &str) -> i64 {
    let jobs = jobs_of(engine);
    let usage = jobs.queue(jobs.queue_named(queue).expect("it is there")).usage();
    usage.pending.get(Dim::CPU) / 10_000
}

#[test]
fn jobs_and_groups_wait_in_one_order() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let held = created(&mut engine, in_queue("all", 4, 1));
    waits(&mut engine, 1, in_queue("all", 2, 2));
    let job = submit_job(&mut engine, gang("job", 1, cores(4)), "all");
    wait(&mut engine);
    waits(&mut engine, 2, in_queue("all", 2, 2));
    waits(&mut engine, 3, GroupSpec { priority: 7, ..in_queue("all", 2, 2) });
    assert_eq!((used(&engine, "all"), pending_cores(&engine, "all")), ((4, 1), 16));
    check_jobs(&mut engine);
    let mut at = held.id;
    for tag in [3, 1] {
        let replies = remove(&mut engine, at);
        assert_eq!(placed(&replies), [tag], "{replies:?}");
        let group = replies.iter().find(|&&(of, _)| of == tag).expect("just seen").clone();
        at = group_of_reply(&[group]).expect("it is placed").id;
        check_jobs(&mut engine);
    }
    // Then it is the turn of the job, which came before the second group.
    assert_eq!(placed(&remove(&mut engine, at)), []);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 1);
    cancel(&mut engine, job, 0);
    assert_eq!(placed(&next_cycle(&mut engine)), [2]);
    assert_eq!((used(&engine, "all"), pending_cores(&engine, "all")), ((4, 2), 0));
    check_jobs(&mut engine);
}

/// What may wait does not pass others by being asked for at the right moment.
#[test]
fn a_group_that_would_fit_waits_for_its_turn_if_others_wait() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 4, 0);
    assert_eq!(placed(&ask_as(&mut engine, 1, in_queue("all", 1, 2))), [1], "nothing waits");
    let job = submit_job(&mut engine, gang("job", 3, cores(3)), "all");
    let replies = ask_as(&mut engine, 2, in_queue("all", 3, 1));
    assert!(replies.is_empty(), "{replies:?}");
    let id = list(&mut engine)[1];
    let told = explained(&mut engine, id);
    assert_eq!(told.waits_for, WaitsFor::Turn, "{told:?}");
    // What is not to wait is placed or refused now.
    created(&mut engine, in_queue("all", 1, 1));
    assert_eq!(placed(&next_cycle(&mut engine)), [2], "the job does not fit");
    assert_eq!(counts(&mut engine, job, TaskState::Pending), 3);
    check_jobs(&mut engine);
    // One that fits nowhere is refused, although it may wait, and others do.
    let refused = group_of_reply(&ask_to_wait(&mut engine, in_queue("all", 5, 1), 1_000_000_000_000));
    assert!(matches!(&refused, Err(NoGroup::Refused(of)) if of.infeasible), "{refused:?}");
    check_jobs(&mut engine);
}

#[test]
fn a_group_gets_no_more_than_the_share_of_its_queue_while_others_wait() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 2, 8, 0);
    for queue in ["rich", "poor"] {
        set_queue(&mut engine, QueueSpec::new(queue));
    }
    for _ in 0..3 {
        place_in(&mut engine, "rich", cores(4)).expect("it fits");
    }
    let job = submit_job(&mut engine, gang("job", 1, cores(8)), "poor");
    wait(&mut engine);
    waits(&mut engine, 1, in_queue("rich", 2, 2));
    let id = list(&mut engine)[0];
    let told = explained(&mut engine, id);
    assert_eq!(told.waits_for, WaitsFor::Queue);
    assert!(told.found.as_ref().is_some_and(|found| found.contains("queue `rich` has all")), "{told:?}");
    check_jobs(&mut engine);
    cancel(&mut engine, job, 0);
    assert_eq!(placed(&next_cycle(&mut engine)), [1]);
    assert_eq!(used(&engine, "rich"), (16, 5));
    check_jobs(&mut engine);
}

/// The rest of a group has its turns after the group has its minimum.
#[test]
fn what_is_left_of_a_group_waits_in_its_queue() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 4, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(6), ..QueueSpec::new("small") });
    let spec = GroupSpec { min_members: 1, ..in_queue("small", 2, 4) };
    let group = created(&mut engine, spec);
    assert_eq!((places(&group).len(), used(&engine, "small")), (3, (6, 3)));
    assert_eq!(pending_cores(&engine, "small"), 2);
    set_queue(&mut engine, QueueSpec { capability: cpu(7), ..QueueSpec::new("small") });
    wait(&mut engine);
    assert_eq!(used(&engine, "small"), (6, 3));
    set_queue(&mut engine, QueueSpec { capability: cpu(8), ..QueueSpec::new("small") });
    wait(&mut engine);
    assert_eq!((places(&status(&mut engine, group.id)).len(), used(&engine, "small")), (4, (8, 4)));
    assert_eq!(pending_cores(&engine, "small"), 0);
    check_jobs(&mut engine);
    // A growth of which one bundle has no room is placed as a whole later.
    set_queue(&mut engine, QueueSpec::new("small"));
    for name in ["more", "most"] {
        add_node(&mut engine, node_spec(name, 3, 0));
    }
    let PortReply::Place(Ok(held)) = ask(&mut engine, PortRequest::Place(cores(3))) else {
        panic!("it fits");
    };
    let more = vec![Arc::new(cores(2)), Arc::new(cores(2))];
    let grow = PlanJob::GrowGroup(group.id, more, Some(Time::NEVER));
    let replies = ask_and_wait(&mut engine, PortRequest::Plan(grow));
    assert!(replies.is_empty(), "{replies:?}");
    assert_eq!((used(&engine, "small"), pending_cores(&engine, "small")), ((8, 4), 4));
    assert_eq!(placed(&ask_and_wait(&mut engine, PortRequest::Release(held.allocation))), [7]);
    assert_eq!((used(&engine, "small"), pending_cores(&engine, "small")), ((12, 6), 0));
    check_jobs(&mut engine);
}

/// Its strategy decides where a cycle places a group.
#[test]
fn a_cycle_places_groups_by_their_strategies() {
    // For each strategy: whether nodes with room for one bundle suffice, and the most bundles on a node.
    for (strategy, fits_apart, most) in
        [(Strategy::StrictPack, false, 3), (Strategy::StrictSpread, true, 1), (Strategy::Spread, true, 1)]
    {
        let mut engine = jobs_engine(2, CycleConfig::default());
        with_nodes(&mut engine, 3, 6, 0);
        for _ in 0..3 {
            ask(&mut engine, PortRequest::Place(cores(5)));
        }
        waits(&mut engine, 1, GroupSpec { strategy, ..in_queue("all", 2, 3) });
        let id = list(&mut engine)[0];
        for number in 0..3 {
            add_node(&mut engine, node_spec(&format!("small{number}"), 2, 0));
        }
        let replies = next_cycle(&mut engine);
        assert_eq!(placed(&replies).len(), usize::from(fits_apart), "{strategy:?}: {replies:?}");
        add_node(&mut engine, node_spec("large", 6, 0));
        next_cycle(&mut engine);
        let group = status(&mut engine, id);
        let found = nodes_of(&group).into_values().max();
        assert_eq!((group.state, found), (GroupState::Placed, Some(most)), "{strategy:?}");
        check_jobs(&mut engine);
    }
}

/// Small placements use all that comes free, so that a node never holds a bundle. Then the group takes a ticket.
#[test]
fn a_group_that_finds_no_room_again_and_again_takes_a_ticket() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let place = |engine: &mut Engine| match ask(engine, PortRequest::Place(cores(1))) {
        PortReply::Place(placed) => placed.map(|placement| placement.allocation),
        other => panic!("a placement: {other:?}"),
    };
    let mut held: Vec<AllocationId> = (0..4).map(|_| place(&mut engine).expect("room")).collect();
    waits(&mut engine, 1, in_queue("all", 4, 1));
    let mut refused = 0;
    let mut replies = Vec::new();
    for _ in 0..12 {
        replies.extend(ask_and_wait(&mut engine, PortRequest::Release(held.remove(0))));
        match place(&mut engine) {
            Ok(allocation) => held.push(allocation),
            Err(_) => refused += 1,
        }
        if held.is_empty() {
            break;
        }
    }
    replies.extend(next_cycle(&mut engine));
    assert_eq!((placed(&replies), refused), (vec![1], 4), "its node is kept for it");
    assert_eq!(used(&engine, "all"), (4, 1));
    check_jobs(&mut engine);
}

/// A bundle on a lost node is charged already, so it waits for nobody.
#[test]
fn lost_bundles_do_not_wait_for_a_turn() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let node = add_agent_node(&mut engine, node_spec("n", 4, 0));
    let group = created(&mut engine, in_queue("all", 4, 1));
    let job = submit_job(&mut engine, bag("job", 4), "all");
    wait(&mut engine);
    life(&mut engine, node, LifeEvent::Lose);
    settle(&mut engine);
    assert_eq!(status(&mut engine, group.id).state, GroupState::Degraded);
    assert_eq!(pending_cores(&engine, "all"), 4, "its bundle is charged, and not asked for again");
    // Both could use the node. No cycle has begun since.
    add_node(&mut engine, node_spec("more", 4, 0));
    settle(&mut engine);
    assert_eq!(status(&mut engine, group.id).state, GroupState::Placed);
    assert_eq!(counts(&mut engine, job, TaskState::Pending), 4);
    check_jobs(&mut engine);
}

/// While the rest of a group waits in its turn, what the group loses does not.
#[test]
fn a_loss_of_a_group_of_which_a_part_waits_is_placed_again() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let node = add_agent_node(&mut engine, node_spec("n", 6, 0));
    let bundles = [2, 2, 2, 7, 8].map(|cpu| Arc::new(cores(cpu))).to_vec();
    add_node(&mut engine, node_spec("large", 16, 0));
    let held = ask(&mut engine, PortRequest::Place(cores(11)));
    let PortReply::Place(Ok(held)) = held else { panic!("it fits: {held:?}") };
    let spec = GroupSpec { bundles, min_members: 3, strategy: Strategy::Spread, ..in_queue("all", 1, 1) };
    let group = created(&mut engine, spec);
    assert_eq!((places(&group).len(), pending_cores(&engine, "all")), (3, 15));
    wait(&mut engine);
    life(&mut engine, node, LifeEvent::Lose);
    add_node(&mut engine, node_spec("more", 6, 0));
    settle(&mut engine);
    let group = status(&mut engine, group.id);
    assert_eq!((group.state, places(&group).len()), (GroupState::Placed, 3), "{group:?}");
    check_jobs(&mut engine);
    // The rest still has its turns.
    ask_and_wait(&mut engine, PortRequest::Release(held.allocation));
    assert_eq!(places(&status(&mut engine, group.id)).len(), 4);
    assert_eq!(pending_cores(&engine, "all"), 7, "the largest comes first");
    check_jobs(&mut engine);
}

/// Only a search finds what is reserved for the owner of a bundle.
#[test]
fn a_group_that_waits_uses_the_reservation_of_its_owner() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let node = add_node(&mut engine, node_spec("n", 8, 0)).id;
    let owner = OwnerId::new(7).expect("an owner of callers");
    let reserve = Reserve { node, owner, demand: cores(6).demand, until: None };
    let partition = engine.catalog.load().node_partition(node).expect("a registered node");
    let reply = ask(&mut engine, PortRequest::Partition(partition, Command::Reserve(Box::new(reserve))));
    assert!(matches!(reply, PortReply::One(Outcome::Reserve(Ok(_)))), "{reply:?}");
    let job = submit_job(&mut engine, gang("job", 1, cores(8)), "all");
    let bundles = vec![Arc::new(PlacementRequest { owner: Some(owner), ..cores(5) })];
    let replies = ask_as(&mut engine, 1, GroupSpec { bundles, ..in_queue("all", 1, 1) });
    assert!(replies.is_empty(), "a job waits: {replies:?}");
    assert_eq!(placed(&next_cycle(&mut engine)), [1]);
    assert_eq!(counts(&mut engine, job, TaskState::Pending), 1);
    check_jobs(&mut engine);
}

/// Searches of one cycle are bounded. What was left out has its turn in the next cycle, before those that had theirs.
#[test]
fn groups_for_which_a_cycle_has_no_time_have_their_turns_in_the_next_one() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 4, 8, 0);
    let mut held = Vec::new();
    for _ in 0..4 {
        let PortReply::Place(Ok(placed)) = ask(&mut engine, PortRequest::Place(cores(7))) else {
            panic!("it fits")
        };
        held.push(placed.allocation);
    }
    for tag in 1..=3 {
        waits(&mut engine, tag, in_queue("all", 8, 2));
    }
    waits(&mut engine, 4, in_queue("all", 4, 2));
    for planner in &mut engine.planners {
        planner.set_budget(PlannerBudget { round: 1, ..PlannerBudget::default() });
    }
    // Room for the last one, and a change in each cycle for the others.
    let mut found = placed(&ask_and_wait(&mut engine, PortRequest::Release(held[0])));
    for number in 0..4 {
        add_node(&mut engine, node_spec(&format!("small{number}"), 1, 0));
        found.extend(placed(&next_cycle(&mut engine)));
    }
    assert_eq!(found, [4]);
    check_jobs(&mut engine);
}

/// A group that waits is asked for again by its session, with its age.
#[test]
fn a_wait_is_resumed_with_its_age() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 1, 8, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(4), ..QueueSpec::new("small") });
    let held = place_in(&mut engine, "small", cores(4)).expect("the cap is 4");
    engine.now = engine.now.plus_nanos(10_000);
    let spec = |cpu| Arc::new(GroupSpec { wait_until: Some(Time::NEVER), ..in_queue("small", cpu, 1) });
    let create = PlanJob::CreateGroup(spec(3));
    engine.ports[0].submit(1, PortRequest::Plan(create), engine.now).expect("room");
    let resumed = PlanJob::Resume(Time(1), Box::new(PlanJob::CreateGroup(spec(4))));
    engine.ports[0].submit(2, PortRequest::Plan(resumed), engine.now).expect("room");
    assert!(settle(&mut engine).is_empty());
    let replies = ask_and_wait(&mut engine, PortRequest::Release(held.allocation));
    let tags: BTreeSet<u64> = replies.iter().map(|&(tag, _)| tag).collect();
    assert_eq!(tags, BTreeSet::from([2, 7]), "the older one comes first: {replies:?}");
    check_jobs(&mut engine);
}
