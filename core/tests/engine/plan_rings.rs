//! The rings between a port and a planner never overflow, with any mix of jobs and cancels.

use std::sync::Arc;

use crate::by_hand::{ManualClock, ask, check_all, cores, settle};
use crate::group_bed::{engine, group_of, with_nodes};
use wharf_core::engine::Engine;
use wharf_core::group::{
    GroupRefusalReason, GroupSpec, NoGroup, PlanJob, PlanRejection, PlanReply, Strategy,
};
use wharf_core::ids::{GroupId, Incarnation, TenantId};
use wharf_core::limits::{PLANS_IN_FLIGHT_MAX, PORT_GROUPS_WAITING_MAX};
use wharf_core::router::{PortReply, PortRequest, Tag};
use wharf_core::time::Time;

/// The number of groups that wait at once.
const GROUPS: u64 = PORT_GROUPS_WAITING_MAX as u64;
/// The first tag of jobs that do not wait.
const LOOKS: Tag = 1 << 32;

/// Creates an engine whose only node is full, so that every group waits.
fn bed() -> Engine {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 4, 0);
    assert!(matches!(ask(&mut engine, PortRequest::Place(cores(4))), PortReply::Place(Ok(_))));
    engine
}

fn begin_waits(engine: &mut Engine, until: Time) {
    let spec = GroupSpec { wait_until: Some(until), ..group_of(cores(4), 1, Strategy::Pack) };
    let spec = Arc::new(spec);
    for tag in 0..GROUPS {
        let job = PortRequest::Plan(PlanJob::CreateGroup(Arc::clone(&spec)));
        engine.ports[0].submit(tag, job, engine.now).expect("room");
    }
    engine.ports[0].flush();
    let replies = settle(engine);
    assert!(replies.is_empty(), "{} groups do not wait", replies.len());
}

/// Cancels every group, twice. The second cancel has no effect.
fn take_back(engine: &mut Engine) {
    for tag in (0..GROUPS).chain(0..GROUPS) {
        engine.ports[0].cancel_plan(tag);
    }
    engine.ports[0].flush();
}

/// Asks for a group that does not exist until the port accepts no more. Returns the number of requests.
fn fill(engine: &mut Engine) -> u64 {
    let unknown = GroupId { incarnation: Incarnation(9), number: 1, tenant: TenantId::OPERATOR };
    let look = || PortRequest::Plan(PlanJob::GroupStatus(unknown));
    let port = &mut engine.ports[0];
    let mut count = 0;
    while port.has_room(&look()) {
        port.submit(LOOKS + count, look(), engine.now).expect("the port said that it has room");
        count += 1;
    }
    port.flush();
    count
}

/// Counts the replies to [`fill`], and returns the others.
fn take_looks(replies: Vec<(Tag, PortReply)>) -> (u64, Vec<(Tag, PlanReply)>) {
    let mut looks = 0;
    let mut others = Vec::new();
    for (tag, reply) in replies {
        let PortReply::Plan(reply) = reply else { panic!("no planner's: {reply:?}") };
        if tag >= LOOKS {
            assert!(matches!(*reply, PlanReply::Status(Err(PlanRejection::UnknownGroup(_)))), "{reply:?}");
            looks += 1;
        } else {
            others.push((tag, *reply));
        }
    }
    (looks, others)
}

/// Asserts that every waiting group was answered once.
#[track_caller]
fn assert_all(mut replies: Vec<(Tag, PlanReply)>) -> Vec<PlanReply> {
    replies.sort_unstable_by_key(|&(tag, _)| tag);
    assert!(replies.iter().map(|&(tag, _)| tag).eq(0..GROUPS), "{} replies", replies.len());
    replies.into_iter().map(|(_, reply)| reply).collect()
}

/// The planner answers all groups at their deadline, before it takes the cancels. The jobs count until it has
/// taken these.
#[test]
fn groups_that_end_while_their_cancels_are_under_way_leave_room_for_jobs() {
    let mut engine = bed();
    for _ in 0..3 {
        let until = Time(engine.now.0 + 10_000_000);
        begin_waits(&mut engine, until);
        engine.now = until;
        engine.planners[0].run_round(&ManualClock::new(engine.now));
        take_back(&mut engine);
        engine.ports[0].poll(engine.now, |tag, reply| panic!("{tag} has a cancel under way: {reply:?}"));
        let asked = fill(&mut engine);
        assert_eq!(asked, PLANS_IN_FLIGHT_MAX as u64 - GROUPS);
        let (looks, ended) = take_looks(settle(&mut engine));
        assert_eq!(looks, asked);
        let ended = assert_all(ended);
        assert!(
            ended.iter().all(|reply| matches!(reply, PlanReply::Group(Err(NoGroup::Refused(_))))),
            "the deadline came first"
        );
        assert_eq!(engine.ports[0].pending(), 0);
        let asked = fill(&mut engine);
        assert_eq!(asked, PLANS_IN_FLIGHT_MAX as u64);
        let (looks, others) = take_looks(settle(&mut engine));
        assert_eq!((looks, others.len()), (asked, 0));
    }
    check_all(&engine);
}

/// There are as many jobs as a port may have, and each that waits is cancelled. Every cancel reaches its planner.
#[test]
fn every_cancel_reaches_its_planner() {
    let mut engine = bed();
    begin_waits(&mut engine, Time(u64::MAX));
    let asked = fill(&mut engine);
    assert_eq!(asked, PLANS_IN_FLIGHT_MAX as u64 - GROUPS);
    take_back(&mut engine);
    let (looks, others) = take_looks(settle(&mut engine));
    assert_eq!(looks, asked);
    assert!(
        assert_all(others).iter().all(|reply| matches!(reply, PlanReply::Group(Err(NoGroup::Cancelled))))
    );
    assert_eq!(engine.ports[0].pending(), 0);
    check_all(&engine);
}

/// A cancel affects only its own job, even if another job soon takes its slot in the port.
#[test]
fn a_cancel_of_a_group_that_ended_takes_back_no_other() {
    let mut engine = bed();
    let until = Time(engine.now.0 + 10_000_000);
    begin_waits(&mut engine, until);
    engine.now = until;
    engine.planners[0].run_round(&ManualClock::new(engine.now));
    take_back(&mut engine);
    engine.planners[0].run_round(&ManualClock::new(engine.now));
    let mut ended = 0;
    engine.ports[0].poll(engine.now, |_, _| ended += 1);
    assert_eq!(ended, GROUPS);
    // These groups have the slots of the former ones, and all of them wait.
    begin_waits(&mut engine, Time(u64::MAX));
    take_back(&mut engine);
    let (_, others) = take_looks(settle(&mut engine));
    assert!(
        assert_all(others).iter().all(|reply| matches!(reply, PlanReply::Group(Err(NoGroup::Cancelled))))
    );
}

/// More groups waited than may at one port: it had more I/O threads before. Would catch a ring that overflows, a group that
/// is never asked for, a cancel that finds nothing, and new jobs that have no room.
#[test]
fn groups_that_waited_before_have_room_in_any_case() {
    const MORE: u64 = 30;
    let mut engine = bed();
    let spec = GroupSpec { wait_until: Some(Time(u64::MAX)), ..group_of(cores(4), 1, Strategy::Pack) };
    let spec = Arc::new(spec);
    let until = Time(engine.now.0 + 10_000);
    let early = Arc::new(GroupSpec { wait_until: Some(until), ..GroupSpec::clone(&spec) });
    for tag in 0..GROUPS + MORE {
        // The last one has a deadline.
        let spec = if tag == GROUPS + MORE - 1 { &early } else { &spec };
        let job = PlanJob::CreateGroup(Arc::clone(spec));
        let job = PortRequest::Plan(PlanJob::Resume(Time(tag), Box::new(job)));
        assert!(engine.ports[0].has_room(&job));
        engine.ports[0].submit(tag, job, engine.now).expect("room");
    }
    engine.ports[0].flush();
    assert!(settle(&mut engine).is_empty(), "all of them wait");
    assert_eq!(engine.ports[0].pending() as u64, GROUPS + MORE);
    assert_eq!(engine.planners[0].planner().group_count() as u64, GROUPS);
    let asked = fill(&mut engine);
    assert_eq!(asked, PLANS_IN_FLIGHT_MAX as u64 - GROUPS);
    let (looks, others) = take_looks(settle(&mut engine));
    assert_eq!((looks, others.len()), (asked, 0));
    assert_eq!(engine.ports[0].next_deadline(), Some(until));
    engine.now = until;
    let mut ended = Vec::new();
    engine.ports[0].end_waits(until, |tag, reply| ended.push((tag, reply)));
    let [(last, PortReply::Plan(reply))] = &ended[..] else { panic!("{ended:?}") };
    let PlanReply::Group(Err(NoGroup::Refused(refusal))) = &**reply else { panic!("{reply:?}") };
    assert_eq!((*last, &refusal.reason), (GROUPS + MORE - 1, &GroupRefusalReason::NoTurn));
    assert_eq!(engine.ports[0].next_deadline(), Some(Time(u64::MAX)));
    // The last ones are not with the planner yet. When the first ones end, others come to it.
    let cancelled: Vec<Tag> = (0..10).chain(GROUPS + MORE - 10..GROUPS + MORE - 1).collect();
    cancelled.iter().for_each(|&tag| engine.ports[0].cancel_plan(tag));
    assert!(!engine.ports[0].is_idle(), "there are replies");
    engine.ports[0].flush();
    let (_, mut others) = take_looks(settle(&mut engine));
    others.sort_unstable_by_key(|&(tag, _)| tag);
    assert!(others.iter().map(|&(tag, _)| tag).eq(cancelled), "{others:?}");
    assert!(others.iter().all(|(_, reply)| matches!(reply, PlanReply::Group(Err(NoGroup::Cancelled)))));
    assert_eq!(engine.planners[0].planner().group_count() as u64, GROUPS);
    check_all(&engine);
}
