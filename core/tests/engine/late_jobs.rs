//! Jobs that have not begun by their deadline when a planner takes them out of a queue: they are answered as late, and
//! nothing is done.

use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::demand::NodesRequest;
use wharf_core::engine::Engine;
use wharf_core::group::{
    ClientKey, ExplainWait, GroupSpec, PlanJob, PlanReply, Strategy, Submit, WaitSubject,
};
use wharf_core::ids::{GroupId, Incarnation, SessionId};
use wharf_core::jobs::{DirectPlacement, DirectWait, JobsRequest, QueueSpec};
use wharf_core::link::Clock;
use wharf_core::reply::reply_of;
use wharf_core::router::{PortReply, PortRequest, Tag};
use wharf_core::statement::{CommitMode, ConflictDetection, Evict, Operation};
use wharf_core::time::Time;

use crate::by_hand::{ManualClock, check_all, cores, settle};
use crate::group_bed::{create, engine, group_of, live_allocations, places, same, status, with_nodes};
use crate::jobs_bed::{bag, check_jobs, jobs_engine, jobs_of, named, submit_job, wait};

/// Longer than anything takes here.
const WITHIN_NS: u64 = 1_000_000;

/// Sends a job that must begin within [`WITHIN_NS`].
fn send(engine: &mut Engine, tag: Tag, job: PlanJob) {
    let due = engine.now.plus_nanos(WITHIN_NS);
    engine.ports[0]
        .submit(tag, PortRequest::PlanFor(ClientKey::of_operator(1), job, due), engine.now)
        .expect("room");
    engine.ports[0].flush();
}

fn pass(engine: &mut Engine) {
    engine.now = engine.now.plus_nanos(WITHIN_NS);
}

/// Lets everybody run. Returns the only reply.
fn answer(engine: &mut Engine) -> PlanReply {
    let mut replies: Vec<PortReply> = settle(engine).into_iter().map(|(_, reply)| reply).collect();
    assert_eq!(replies.len(), 1, "{replies:?}");
    *reply_of::<Box<PlanReply>, _>(replies.remove(0))
}

/// Sends a job that planners see when its time is over.
fn ask_late(engine: &mut Engine, job: PlanJob) -> PlanReply {
    send(engine, 7, job);
    pass(engine);
    answer(engine)
}

fn ask_in_time(engine: &mut Engine, job: PlanJob) -> PlanReply {
    send(engine, 7, job);
    answer(engine)
}

#[test]
fn no_job_of_a_planner_begins_after_its_deadline() {
    // Two planners, so that a list is asked for at both.
    let mut engine = engine(2, 2);
    with_nodes(&mut engine, 4, 16, 0);
    let spec = GroupSpec { min_members: 1, ..group_of(cores(1), 3, Strategy::Pack) };
    let group = create(&mut engine, spec.clone()).expect("it fits");
    let id = group.id;
    let before = status(&mut engine, id);
    let allocation = places(&before)[2].2;
    let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 });
    let submit = Submit {
        operations: vec![evict],
        conflict_detection: ConflictDetection::Fine,
        mode: CommitMode::AllOrNothing,
    };
    let explain = ExplainWait { tenant: None, of: WaitSubject::Group { id, bundle: None } };
    let jobs = [
        PlanJob::CreateGroup(Arc::new(spec)),
        PlanJob::GrowGroup(id, same(cores(1), 1), None),
        PlanJob::GroupStatus(id),
        PlanJob::ListGroups(None, None, 10),
        PlanJob::Explain(Box::new(explain)),
        PlanJob::ShrinkGroup(id, vec![0]),
        PlanJob::Submit(Box::new(submit)),
        PlanJob::RemoveGroup(id),
    ];
    let live = live_allocations(&mut engine);
    for job in &jobs {
        let reply = ask_late(&mut engine, job.clone());
        assert!(matches!(reply, PlanReply::Late), "{job:?}: {reply:?}");
    }
    assert_eq!(status(&mut engine, id), before);
    assert_eq!(live_allocations(&mut engine), live);
    assert_eq!(engine.ports[0].pending(), 0);
    check_all(&engine);
    for job in jobs {
        let reply = ask_in_time(&mut engine, job.clone());
        assert!(!matches!(reply, PlanReply::Late), "{job:?}");
    }
}

/// A removal of a group that is being created waits for no turn.
#[test]
fn a_late_removal_of_a_group_that_waits_is_not_done() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 4, 0);
    let first = create(&mut engine, group_of(cores(4), 1, Strategy::Pack)).expect("it fits").id;
    let spec = GroupSpec { wait_until: Some(Time::NEVER), ..group_of(cores(4), 1, Strategy::Pack) };
    let asked = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(spec)));
    engine.ports[0].submit(1, asked, engine.now).expect("room");
    assert!(settle(&mut engine).is_empty(), "it waits");
    let waiting = GroupId { number: first.number + 1, ..first };
    assert!(matches!(ask_late(&mut engine, PlanJob::RemoveGroup(waiting)), PlanReply::Late));
    send(&mut engine, 2, PlanJob::RemoveGroup(waiting));
    let mut tags: Vec<Tag> = settle(&mut engine).into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1, 2], "it waited until now");
}

/// What has begun is finished, however late it is then.
#[test]
fn a_group_whose_statement_is_on_its_way_is_placed_after_its_deadline() {
    let mut engine = engine(1, 1);
    with_nodes(&mut engine, 1, 4, 0);
    send(&mut engine, 7, PlanJob::CreateGroup(Arc::new(group_of(cores(4), 1, Strategy::Pack))));
    let clock = ManualClock::new(engine.now);
    engine.planners[0].run_round(&clock);
    assert_eq!(engine.planners[0].planner().metrics().statements, 1);
    engine.now = clock.now();
    pass(&mut engine);
    let reply = answer(&mut engine);
    assert!(matches!(reply, PlanReply::Group(Ok(_))), "{reply:?}");
}

fn placement() -> DirectPlacement {
    DirectPlacement { request: cores(1), queue: named("all"), bound: None, wait: None }
}

fn direct() -> PlanJob {
    PlanJob::Place(Box::new(placement()))
}

fn batch() -> PlanJob {
    PlanJob::PlaceBatch(vec![(0, placement()), (1, placement())])
}

#[test]
fn no_request_about_jobs_begins_after_its_deadline() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    let job = submit_job(&mut engine, bag("job", 2), "all");
    wait(&mut engine);
    let tenant = None;
    let spec = Box::new(QueueSpec::new("other"));
    let requests = [
        JobsRequest::SetQueue { spec, parent: None },
        JobsRequest::RemoveQueue(named("other")),
        JobsRequest::ListQueues { tenant, after: None, limit: 9 },
        JobsRequest::Submit {
            spec: Box::new(bag("late", 1)),
            queue: named("all"),
            bound: None,
            priorities: None,
        },
        JobsRequest::Status { job, tenant, from: 0, limit: 9 },
        JobsRequest::Explain { job, task: None, tenant },
        JobsRequest::List { tenant, queue: None, after: None, limit: 9 },
        JobsRequest::Report { tenant, tasks: Vec::new() },
        JobsRequest::PlanNodes { tenant, request: Box::new(NodesRequest::new(Vec::new())), idle: Vec::new() },
        JobsRequest::Cancel { job, tenant, grace_ns: 0 },
    ];
    let session = SessionId { incarnation: Incarnation(1), number: 1 };
    let wait = DirectWait { id: (session, 1), priority: 0, until: Time::NEVER };
    let others = || [direct(), batch(), PlanJob::ExplainInQueue(wait, Time(1))];
    let jobs = || requests.iter().map(|request| PlanJob::Jobs(Box::new(request.clone()))).chain(others());
    let before = jobs_of(&engine).record();
    for job in jobs() {
        let reply = ask_late(&mut engine, job.clone());
        assert!(matches!(reply, PlanReply::Late), "{job:?}: {reply:?}");
    }
    assert_eq!(jobs_of(&engine).record(), before);
    check_jobs(&mut engine);
    for job in jobs() {
        let reply = ask_in_time(&mut engine, job.clone());
        assert!(!matches!(reply, PlanReply::Late), "{job:?}");
    }
    check_jobs(&mut engine);
}

/// The keeper of jobs has a second queue: placements wait there for replicas that are as new as they are.
#[test]
fn a_placement_that_the_keeper_has_taken_in_time_and_not_begun_is_late() {
    let cases = [(direct(), false), (direct(), true), (batch(), false), (batch(), true)];
    for (job, has_begun) in cases {
        let mut engine = jobs_engine(1, CycleConfig::default());
        with_nodes(&mut engine, 1, 16, 0);
        send(&mut engine, 7, job);
        let clock = ManualClock::new(engine.now);
        let statements = engine.planners[0].planner().metrics().statements;
        let mut has_statement = false;
        for _ in 0..=u8::from(has_begun) {
            engine.planners[0].run_round(&clock);
            has_statement = engine.planners[0].planner().metrics().statements > statements;
        }
        assert_eq!(has_statement, has_begun);
        engine.now = clock.now();
        pass(&mut engine);
        let reply = answer(&mut engine);
        let placed = match reply {
            PlanReply::Late => 0,
            PlanReply::Placed(placed) => u64::from(placed.is_ok()),
            PlanReply::PlacedBatch(parts) => parts.iter().filter(|(_, placed)| placed.is_ok()).count() as u64,
            other => panic!("{other:?}"),
        };
        assert_eq!(placed > 0, has_begun, "{placed} are placed");
        check_jobs(&mut engine);
        assert_eq!(live_allocations(&mut engine), placed);
    }
}
