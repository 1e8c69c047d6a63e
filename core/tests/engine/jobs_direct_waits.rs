//! Direct placements that wait in their queues: turns, caps, deadlines, claims, cancels and crashes.

use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::fairness::Dim;
use wharf_core::group::{PlanJob, PlanReply, WaitExplanation, WaitsFor};
use wharf_core::ids::{AllocationId, NodeId, TenantId};
use wharf_core::jobs::{
    DirectPlacement, DirectWait, JobId, JobsRejection, JobsReply, JobsRequest, NotCharged, QueueSpec,
    TaskState,
};
use wharf_core::node::{NodeRegistration, Operator, Selector, Term};
use wharf_core::request::{LeaseTerms, Placement, PlacementRequest, Preferences, RankRules};
use wharf_core::resource::GpuRequest;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::{Deed, Origin};
use wharf_core::time::Time;

use crate::by_hand::{ManualClock, add_node, ask, cores, node_spec, remove_node, settle};
use crate::group_bed::{ask_meanwhile, labelled, live_allocations, plan, with_nodes};
use crate::jobs_bed::{
    INTERVAL_NS, Journaled, ORIGIN, after_a_crash, ask_jobs, bag, cancel, check_jobs, counts, cpu,
    export_all, gang, job_status, jobs_config, jobs_engine, jobs_of, named, open_with, place_in, set_queue,
    submit_job, wait, wait_ns,
};

/// The reply to a placement that waited, by its tag.
type Replies = Vec<(u64, Result<Placement, NotCharged>)>;

fn waits(tag: u64, request: PlacementRequest, queue: &str, until: Time) -> PlanJob {
    let wait = DirectWait { id: (ORIGIN.session, tag), priority: 0, until };
    PlanJob::Place(Box::new(DirectPlacement { request, queue: queue.into(), bound: None, wait: Some(wait) }))
}

fn send(engine: &mut Engine, tag: u64, job: PlanJob) {
    let answered = engine.ports[0].submit(tag, PortRequest::Plan(job), engine.now).expect("room");
    assert!(answered.is_none(), "{answered:?}");
}

/// Asks for a placement that waits, and lets everything settle.
fn ask_to_wait(engine: &mut Engine, tag: u64, request: PlacementRequest, queue: &str) -> Replies {
    send(engine, tag, waits(tag, request, queue, Time::NEVER));
    replies(settle(engine))
}

fn replies(all: Vec<(u64, PortReply)>) -> Replies {
    let reply = |(tag, reply)| match reply {
        PortReply::Plan(reply) => match *reply {
            PlanReply::Placed(placed) => (tag, placed.map(|placement| *placement)),
            other => panic!("a placement: {other:?}"),
        },
        other => panic!("the keeper of jobs answers: {other:?}"),
    };
    all.into_iter().map(reply).collect()
}

/// Lets enough time pass for a cycle. Returns the replies.
fn next_cycle(engine: &mut Engine) -> Replies {
    engine.now = engine.now.plus_nanos(INTERVAL_NS);
    replies(settle(engine))
}

/// Releases an allocation, and lets enough time pass for a cycle. Returns the replies.
fn release(engine: &mut Engine, allocation: AllocationId) -> Replies {
    ask(engine, PortRequest::Release(allocation));
    next_cycle(engine)
}

fn placed(engine: &mut Engine, request: PlacementRequest) -> Placement {
    place_in(engine, "all", request).expect("it fits")
}

/// Returns the nodes of placements, by tag.
fn nodes(replies: &Replies) -> Vec<(u64, NodeId)> {
    replies.iter().map(|(tag, placed)| (*tag, placed.as_ref().expect("it is placed").node)).collect()
}

#[test]
fn a_placement_waits_until_a_node_has_room_and_is_charged_to_its_queue() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let nodes_of_all = with_nodes(&mut engine, 2, 4, 0);
    // If nothing waits and there is room, it is placed at once.
    let first = ask_to_wait(&mut engine, 1, cores(4), "all");
    let second = placed(&mut engine, cores(4));
    assert_eq!(nodes(&first), [(1, nodes_of_all.iter().copied().find(|&node| node != second.node).unwrap())]);
    assert_eq!(ask_to_wait(&mut engine, 2, cores(3), "all"), []);
    assert_eq!(next_cycle(&mut engine), []);
    let usage = jobs_of(&engine).queue(jobs_of(&engine).queue_named("all").unwrap()).usage().clone();
    assert_eq!((usage.held.get(Dim::CPU), usage.pending.get(Dim::CPU)), (80_000, 30_000));
    check_jobs(&mut engine);
    assert_eq!(nodes(&release(&mut engine, second.allocation)), [(2, second.node)]);
    check_jobs(&mut engine);
    assert_eq!(live_allocations(&mut engine), 2);
    let usage = jobs_of(&engine).queue(jobs_of(&engine).queue_named("all").unwrap()).usage().clone();
    assert_eq!((usage.held.get(Dim::CPU), usage.pending.get(Dim::CPU)), (70_000, 0));
}

#[test]
fn a_placement_waits_for_the_cap_of_its_queue() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(6), ..QueueSpec::new("small") });
    let held = place_in(&mut engine, "small", cores(5)).expect("the cap is 6");
    assert_eq!(ask_to_wait(&mut engine, 1, cores(3), "small"), []);
    assert_eq!(next_cycle(&mut engine), []);
    // What does not wait may be placed before it.
    let one = place_in(&mut engine, "small", cores(1)).expect("the cap is 6");
    check_jobs(&mut engine);
    assert_eq!(release(&mut engine, one.allocation), []);
    assert_eq!(release(&mut engine, held.allocation).len(), 1);
    check_jobs(&mut engine);
}

#[test]
fn jobs_and_placements_wait_in_one_order() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let held = placed(&mut engine, cores(4));
    let ask_with = |engine: &mut Engine, tag, priority| {
        let wait = DirectWait { id: (ORIGIN.session, tag), priority, until: Time::NEVER };
        let request = cores(4);
        let placement = DirectPlacement { request, queue: named("all"), bound: None, wait: Some(wait) };
        send(engine, tag, PlanJob::Place(Box::new(placement)));
        assert_eq!(replies(settle(engine)), []);
    };
    ask_with(&mut engine, 1, 0);
    engine.now = engine.now.plus_nanos(1_000);
    let job = submit_job(&mut engine, gang("job", 1, cores(4)), "all");
    engine.now = engine.now.plus_nanos(1_000);
    ask_with(&mut engine, 2, 0);
    ask_with(&mut engine, 3, 7);
    let mut at = held.allocation;
    for tag in [3, 1] {
        let replies = release(&mut engine, at);
        assert_eq!(nodes(&replies), [(tag, held.node)]);
        at = replies[0].1.as_ref().unwrap().allocation;
    }
    assert_eq!(release(&mut engine, at), [], "the job is next");
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 1);
    check_jobs(&mut engine);
}

/// What may wait does not pass others by being asked for at the right moment.
#[test]
fn what_may_wait_has_its_turn_in_a_cycle_if_others_wait() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    submit_job(&mut engine, gang("large", 1, cores(5)), "all");
    wait(&mut engine);
    assert_eq!(ask_to_wait(&mut engine, 1, cores(1), "all"), []);
    assert_eq!(next_cycle(&mut engine).len(), 1);
    // What does not wait is answered at once.
    placed(&mut engine, cores(1));
}

#[test]
fn at_its_deadline_it_is_told_what_is_in_the_way() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 4, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(2), ..QueueSpec::new("small") });
    let until = engine.now.plus_nanos(3 * INTERVAL_NS);
    send(&mut engine, 1, waits(1, cores(5), "all", until));
    send(&mut engine, 2, waits(2, cores(3), "small", until));
    assert_eq!(next_cycle(&mut engine), []);
    engine.now = until;
    let told = replies(settle(&mut engine));
    assert_eq!(told.len(), 2);
    for (tag, told) in told {
        match (tag, told) {
            (1, Err(NotCharged::NoNode(refusal))) => {
                assert_eq!((refusal.examined, refusal.feasible), (2, false))
            }
            (2, Err(NotCharged::Cap { over, .. })) => assert_eq!((over.cap, over.asked), (20_000, 30_000)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(jobs_of(&engine).jobs().len(), 0);
    check_jobs(&mut engine);
    // At the deadline, it is tried once more: a cycle would have come later.
    let held = placed(&mut engine, cores(4));
    placed(&mut engine, cores(4));
    let until = engine.now.plus_nanos(20 * INTERVAL_NS);
    send(&mut engine, 3, waits(3, cores(2), "all", until));
    assert_eq!(next_cycle(&mut engine), []);
    ask(&mut engine, PortRequest::Release(held.allocation));
    engine.now = until;
    assert_eq!(nodes(&replies(settle(&mut engine))), [(3, held.node)]);
    check_jobs(&mut engine);
}

#[test]
fn what_is_wrong_is_refused_and_does_not_wait() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    set_queue(&mut engine, QueueSpec { open: false, ..QueueSpec::new("closed") });
    assert_eq!(
        ask_to_wait(&mut engine, 1, cores(1), "nowhere"),
        [(1, Err(NotCharged::UnknownQueue(named("nowhere"))))]
    );
    assert_eq!(
        ask_to_wait(&mut engine, 2, cores(1), "closed"),
        [(2, Err(NotCharged::ClosedQueue(named("closed"))))]
    );
    assert_eq!(jobs_of(&engine).jobs().len(), 0);
}

/// Returns the states of the tasks of direct placements.
fn states(engine: &Engine) -> Vec<TaskState> {
    let direct = jobs_of(engine).jobs().filter(|(_, job)| job.spec().is_direct);
    direct.flat_map(|(_, job)| job.tasks()).map(|task| task.state).collect()
}

/// An engine with one node of two GPUs, of which one is held and one is released by a task within its grace period, and a
/// placement with tag 1 that has claimed the latter. Returns the engine, the node and the allocation of the task.
fn claimed() -> (Engine, NodeRegistration, AllocationId) {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let node = add_node(&mut engine, node_spec("one", 4, 2));
    let mut request = cores(2);
    request.demand.gpu = GpuRequest::Whole(1);
    assert!(matches!(ask(&mut engine, PortRequest::Place(request.clone())), PortReply::Place(Ok(_))));
    let job = submit_job(&mut engine, gang("victim", 1, request.clone()), "all");
    wait(&mut engine);
    let allocation = job_status(&mut engine, job).tasks[0].allocation.expect("it is placed");
    cancel(&mut engine, job, 5_000_000_000);
    assert_eq!(ask_to_wait(&mut engine, 1, request, "all"), []);
    assert_eq!(next_cycle(&mut engine), []);
    assert_eq!(states(&engine), [TaskState::Pipelined]);
    check_jobs(&mut engine);
    (engine, node, allocation)
}

#[test]
fn a_claim_on_what_is_being_released_is_answered_when_it_is_granted() {
    let (mut engine, node, releasing) = claimed();
    let all = ask_meanwhile(&mut engine, PortRequest::Release(releasing));
    let told = replies(all.into_iter().filter(|&(tag, _)| tag == 1).collect());
    let [(1, Ok(placement))] = &told[..] else { panic!("{told:?}") };
    assert_eq!((placement.node, placement.gpus.instances().count()), (node.id, 1));
    assert_eq!(states(&engine), [TaskState::Bound]);
    check_jobs(&mut engine);
    ask(&mut engine, PortRequest::Release(placement.allocation));
    settle(&mut engine);
    assert_eq!(states(&engine), []);
}

#[test]
fn a_cancel_gives_back_what_was_claimed() {
    let (mut engine, ..) = claimed();
    engine.ports[0].cancel_plan(1);
    assert_eq!(next_cycle(&mut engine), [(1, Err(NotCharged::Cancelled))]);
    assert_eq!(states(&engine), []);
    check_jobs(&mut engine);
}

#[test]
fn a_claim_that_is_lost_waits_on() {
    let (mut engine, node, _) = claimed();
    remove_node(&mut engine, &node);
    assert_eq!(next_cycle(&mut engine), []);
    assert_eq!(states(&engine), [TaskState::Pending]);
    check_jobs(&mut engine);
    let node = add_node(&mut engine, node_spec("new", 4, 1));
    assert_eq!(nodes(&next_cycle(&mut engine)), [(1, node.id)]);
    check_jobs(&mut engine);
}

/// Wherever a placement is when it is cancelled, it is answered once, and nothing is left of it unless it was placed.
#[test]
fn a_cancel_is_answered_once_wherever_the_placement_is() {
    let mut placed_instead = 0;
    for rounds in 0..12 {
        let mut engine = jobs_engine(1, CycleConfig::default());
        with_nodes(&mut engine, 1, 4, 0);
        submit_job(&mut engine, gang("large", 1, cores(5)), "all");
        wait(&mut engine);
        send(&mut engine, 1, waits(1, cores(1), "all", Time::NEVER));
        engine.ports[0].flush();
        let mut all = Vec::new();
        for _ in 0..rounds {
            engine.now = engine.now.plus_nanos(INTERVAL_NS / 3);
            let clock = ManualClock::new(engine.now);
            engine.planners[0].run_round(&clock);
            engine.runners[0].run_batch(&clock, &mut Unobserved);
        }
        engine.ports[0].cancel_plan(1);
        all.extend(replies(settle(&mut engine)));
        engine.ports[0].cancel_plan(1);
        all.extend(next_cycle(&mut engine));
        let [(1, told)] = &all[..] else { panic!("{all:?}") };
        match told {
            Ok(_) => placed_instead += 1,
            Err(error) => assert_eq!(*error, NotCharged::Cancelled),
        }
        check_jobs(&mut engine);
        let direct = jobs_of(&engine).jobs().filter(|(_, job)| job.spec().is_direct).count();
        assert_eq!(direct, usize::from(told.is_ok()), "after {rounds} rounds");
    }
    assert!((1..12).contains(&placed_instead), "{placed_instead} of 12");
}

#[test]
fn a_node_that_matches_a_fallback_is_told_with_its_number() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    let zone = |value: &str| {
        let term = Term { key: "zone".into(), operator: Operator::In, values: vec![value.to_owned()] };
        Arc::new(Selector::new(vec![term]))
    };
    add_node(&mut engine, labelled("a", 4, "a"));
    let held = placed(&mut engine, cores(4));
    let rules = RankRules::new(vec![zone("b"), zone("a")], Vec::new(), Vec::new()).expect("two fallbacks");
    let preferences = Preferences { rules: Some(Arc::new(rules)), ..Preferences::default() };
    let request =
        PlacementRequest { selector: Some(zone("c")), preferences: Some(Arc::new(preferences)), ..cores(2) };
    assert_eq!(ask_to_wait(&mut engine, 1, request, "all"), []);
    let told = release(&mut engine, held.allocation);
    let [(1, Ok(placement))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(placement.alternative, 2);
}

fn explained(engine: &mut Engine, tag: u64) -> WaitExplanation {
    let wait = DirectWait { id: (ORIGIN.session, tag), priority: 0, until: Time::NEVER };
    match plan(engine, PlanJob::ExplainInQueue(wait, Time(3))) {
        PlanReply::Explained(Ok(explained)) => *explained,
        other => panic!("an explanation: {other:?}"),
    }
}

#[test]
fn an_explanation_names_its_job_which_its_tenant_may_have_explained() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let tenant = TenantId(4);
    let request = PlacementRequest { tenant, ..cores(5) };
    assert_eq!(ask_to_wait(&mut engine, 9, request, "all"), []);
    wait(&mut engine);
    let told = explained(&mut engine, 9);
    let Some(job) = told.job else { panic!("{told:?}") };
    assert_eq!((told.waits_for, told.since, told.until), (WaitsFor::Queue, Time(3), None));
    let ask_job =
        |engine: &mut Engine, tenant| ask_jobs(engine, JobsRequest::Explain { job, task: None, tenant });
    let of_job = |reply: Result<JobsReply, JobsRejection>| match reply {
        Ok(JobsReply::Explained(explained)) => explained,
        other => panic!("an explanation: {other:?}"),
    };
    for tenant in [None, Some(tenant)] {
        let explained = of_job(ask_job(&mut engine, tenant));
        let counts = explained.nodes.as_ref().expect("it waits for a node");
        assert_eq!(counts.refusal.examined, 1);
    }
    let foreign = ask_job(&mut engine, Some(TenantId(5)));
    assert_eq!(foreign.map(drop), Err(JobsRejection::UnknownJob(job)));
    assert_eq!(explained(&mut engine, 8).job, None, "nothing waits at that sequence");
    // Once it is placed, nobody sees its job.
    add_node(&mut engine, node_spec("large", 8, 0));
    assert_eq!(next_cycle(&mut engine).len(), 1);
    assert_eq!(explained(&mut engine, 9).job, None);
    assert_eq!(ask_job(&mut engine, None).map(drop), Err(JobsRejection::UnknownJob(job)));
}

/// A wait that goes on at another port, or in another start, keeps its place.
#[test]
fn what_waited_before_keeps_its_place() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let held = placed(&mut engine, cores(4));
    engine.now = engine.now.plus_nanos(1_000_000);
    assert_eq!(ask_to_wait(&mut engine, 1, cores(4), "all"), []);
    send(&mut engine, 2, PlanJob::Resume(Time(1), Box::new(waits(2, cores(4), "all", Time::NEVER))));
    assert_eq!(replies(settle(&mut engine)), []);
    assert_eq!(nodes(&release(&mut engine, held.allocation)), [(2, held.node)]);
}

/// A crash after any unit: the placement is there with the outcome of its request, or nothing is left of it, and its session
/// asks for it again.
#[test]
fn no_crash_leaves_a_job_of_a_placement_that_nobody_waits_for() {
    let mut work = Journaled::new(2, CycleConfig::default());
    let node = add_node(&mut work.engine, node_spec("one", 4, 0));
    let held = placed(&mut work.engine, cores(4));
    let start = work.collect();
    let origin = Origin { is_wait: true, ..ORIGIN };
    let request = PortRequest::Plan(waits(1, cores(2), "all", Time::NEVER));
    work.engine.ports[0].submit_for(Some(origin), 1, request, work.engine.now).expect("room");
    assert_eq!(replies(settle(&mut work.engine)), []);
    assert!(work.collect() > start, "that it waits is recorded with all jobs");
    let told = release(&mut work.engine, held.allocation);
    assert_eq!(nodes(&told), [(1, node.id)]);
    let allocation = told[0].1.as_ref().unwrap().allocation;
    wait_ns(&mut work.engine, 1_000_000_000);
    let mut found = [0, 0];
    for crash in start..=work.collect() {
        let units = &work.units[..crash];
        let state = after_a_crash(units);
        let done = units.iter().flat_map(|unit| &unit.done).find(|done| done.origin == origin);
        if let Some(done) = done {
            assert!(matches!(&done.deed, Deed::Placed(of, None) if of.allocation == allocation), "{done:?}");
        }
        let is_done = done.is_some();
        let records = || state.partitions.iter().flat_map(|partition| &partition.allocations);
        let is_there = records().any(|record| record.id == allocation);
        assert_eq!(is_there, is_done, "unit {crash}");
        let mut engine = open_with(state, &jobs_config(1, CycleConfig::default()));
        check_jobs(&mut engine);
        let pending = states(&engine).into_iter().filter(|state| *state == TaskState::Pending).count();
        assert_eq!(pending, 0, "unit {crash}");
        wait(&mut engine);
        check_jobs(&mut engine);
        found[usize::from(is_done)] += 1;
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

/// A queue in which something waits is not removed, and tasks of jobs may wait with it.
#[test]
fn a_queue_with_a_placement_that_waits_is_in_use() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    set_queue(&mut engine, QueueSpec::new("other"));
    assert_eq!(ask_to_wait(&mut engine, 1, cores(1), "other"), []);
    let removed = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("other")));
    assert!(matches!(removed, Err(JobsRejection::Queue(_))), "{removed:?}");
    let bag = submit_job(&mut engine, bag("bag", 2), "other");
    with_nodes(&mut engine, 1, 4, 0);
    assert_eq!(next_cycle(&mut engine).len(), 1);
    let jobs: Vec<JobId> = jobs_of(&engine).jobs().map(|(id, _)| id).collect();
    assert_eq!((jobs.len(), states(&engine)), (2, vec![TaskState::Bound]));
    assert_eq!(counts(&mut engine, bag, TaskState::Bound), 2);
    check_jobs(&mut engine);
}

/// A lease begins when the placement is made, and gives the room back when it is over.
#[test]
fn placements_in_queues_have_leases() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(4), ..QueueSpec::new("small") });
    let leased = |lasts_ns, session| {
        let lease = Some(Arc::new(LeaseTerms { lasts_ns, session }));
        PlacementRequest { lease, ..cores(3) }
    };
    let first = place_in(&mut engine, "small", leased(10 * INTERVAL_NS, None)).expect("it fits");
    assert_eq!(ask_to_wait(&mut engine, 1, leased(5 * INTERVAL_NS, Some(ORIGIN.session)), "small"), []);
    wait_ns(&mut engine, 9 * INTERVAL_NS);
    let renew = Command::RenewLease { allocation: first.allocation, lasts_ns: 6 * INTERVAL_NS };
    let renewed = ask(&mut engine, PortRequest::Partition(first.allocation.partition, renew));
    assert!(matches!(renewed, PortReply::One(Outcome::RenewedLease(Ok(_)))), "{renewed:?}");
    check_jobs(&mut engine);
    engine.now = engine.now.plus_nanos(6 * INTERVAL_NS);
    let mut all = replies(settle(&mut engine));
    all.extend(next_cycle(&mut engine));
    let [(1, Ok(second))] = &all[..] else { panic!("the first has ended: {all:?}") };
    assert_eq!(second.node, first.node);
    check_jobs(&mut engine);
    // A start keeps the lease of what waited.
    let state = export_all(&mut engine);
    let mut engine = open_with(state, &jobs_config(1, CycleConfig::default()));
    settle(&mut engine);
    assert_eq!(live_allocations(&mut engine), 1);
    check_jobs(&mut engine);
    wait_ns(&mut engine, 5 * INTERVAL_NS);
    wait(&mut engine);
    assert_eq!(live_allocations(&mut engine), 0);
    let jobs = jobs_of(&engine);
    let usage = jobs.queue(jobs.queue_named("small").unwrap()).usage();
    assert!(usage.held.is_zero() && usage.releasing.is_zero(), "{usage:?}");
    check_jobs(&mut engine);
}

/// A claim has no lease, so what asks for one waits until there is room.
#[test]
fn a_placement_with_a_lease_claims_nothing() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 4, 0);
    let job = submit_job(&mut engine, gang("job", 1, cores(4)), "all");
    wait(&mut engine);
    let lease = Some(Arc::new(LeaseTerms { lasts_ns: 100 * INTERVAL_NS, session: None }));
    assert_eq!(ask_to_wait(&mut engine, 1, PlacementRequest { lease, ..cores(4) }, "all"), []);
    cancel(&mut engine, job, 4 * INTERVAL_NS);
    assert_eq!(next_cycle(&mut engine), []);
    let jobs = jobs_of(&engine);
    let usage = jobs.queue(jobs.queue_named("all").unwrap()).usage();
    assert_eq!((usage.pipelined.get(Dim::CPU), usage.pending.get(Dim::CPU)), (0, 40_000));
    engine.now = engine.now.plus_nanos(4 * INTERVAL_NS);
    let mut all = replies(settle(&mut engine));
    all.extend(next_cycle(&mut engine));
    assert_eq!(nodes(&all).len(), 1);
    check_jobs(&mut engine);
}
