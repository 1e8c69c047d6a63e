//! Direct placements that name queues: charges, caps, ends, and crashes.

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::fairness::{Caps, Dim};
use wharf_core::group::{PlanJob, PlanReply};
use wharf_core::ids::{AllocationId, Incarnation, SessionId, TenantId};
use wharf_core::jobs::{
    Capped, DirectPlacement, JobSpec, JobsRejection, JobsReply, JobsRequest, NotCharged, QueueContents,
    QueueError, QueueSpec, QueueView, TaskState,
};
use wharf_core::journal::Event;
use wharf_core::node::LifeEvent;
use wharf_core::recovery::Rebuild;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::router::PortRequest;
use wharf_core::state::{Deed, Origin, StoreState};

use crate::by_hand::{ask, cores, node_spec, remove_node, settle};
use crate::group_bed::{add_agent_node, life, live_allocations, plan, with_nodes};
use crate::jobs_bed::{
    ask_jobs, bag, cancel, check_jobs, counts, export_all, gang, job_status, jobs_config, jobs_engine,
    jobs_of, named, open_with, place_in, set_queue, submit_job, wait, wait_ns,
};

const ORIGIN: Origin = Origin {
    session: SessionId { incarnation: Incarnation(1), number: 5 },
    sequence: 1,
    mark: 1,
    fingerprint: 7,
    part: 0,
    is_wait: false,
    alternative: None,
};

fn cpu(cap: i64) -> Caps {
    [(Dim::CPU, cap * 10_000)].into_iter().collect()
}

fn placed(engine: &mut Engine, queue: &str, request: PlacementRequest) -> Placement {
    place_in(engine, queue, request).expect("it fits")
}

/// Returns the queue as a list shows it.
fn shown(engine: &mut Engine, queue: &str) -> QueueView {
    match ask_jobs(engine, JobsRequest::ListQueues { tenant: None, after: None, limit: 100 }) {
        Ok(JobsReply::Queues(queues)) => {
            queues.into_iter().find(|view| &*view.spec.name == queue).expect("it is there")
        }
        other => panic!("a list: {other:?}"),
    }
}

fn held(engine: &mut Engine, queue: &str) -> i64 {
    shown(engine, queue).usage.held.get(Dim::CPU) / 10_000
}

#[test]
fn a_placement_is_charged_to_its_queue_until_it_is_released() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    let parent =
        JobsRequest::SetQueue { spec: Box::new(QueueSpec::new("inner")), parent: Some(named("all")) };
    ask_jobs(&mut engine, parent).expect("a new queue");
    let one = placed(&mut engine, "inner", cores(3));
    let two = placed(&mut engine, "inner", cores(4));
    assert_eq!((held(&mut engine, "inner"), held(&mut engine, "all")), (7, 7));
    let view = shown(&mut engine, "inner");
    assert_eq!((view.direct, view.jobs, view.usage.allocations()), (2, 0, 2));
    check_jobs(&mut engine);
    // Nobody sees them as jobs.
    let list = JobsRequest::List { tenant: None, queue: None, after: None, limit: 9 };
    assert!(matches!(ask_jobs(&mut engine, list), Ok(JobsReply::Jobs(jobs)) if jobs.is_empty()));
    let (id, _) = jobs_of(&engine).jobs().next().expect("the keeper has it");
    let stop = JobsRequest::Cancel { job: id, tenant: None, grace_ns: 0 };
    assert_eq!(ask_jobs(&mut engine, stop).map(drop), Err(JobsRejection::UnknownJob(id)));
    let gone = ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("inner")));
    let in_use = gone.expect_err("it has direct placements");
    let has = QueueContents { jobs: 0, direct: 2 };
    assert_eq!(in_use, JobsRejection::Queue(QueueError::InUse { queue: named("inner"), has }));
    assert!(in_use.to_string().contains("`inner` has 2 direct placements:"), "{in_use}");
    for (allocation, left) in [(one.allocation, 4), (two.allocation, 0)] {
        ask(&mut engine, PortRequest::Release(allocation));
        settle(&mut engine);
        assert_eq!(held(&mut engine, "inner"), left);
        check_jobs(&mut engine);
    }
    assert_eq!(jobs_of(&engine).jobs().len(), 0);
    ask_jobs(&mut engine, JobsRequest::RemoveQueue(named("inner"))).expect("nothing is in it");
}

#[test]
fn a_cap_refuses_with_what_is_in_use_and_allows_again_what_was_released() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(10), ..QueueSpec::new("small") });
    let job = submit_job(&mut engine, bag("job", 4), "small");
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 4);
    let first = placed(&mut engine, "small", cores(5));
    match place_in(&mut engine, "small", cores(2)) {
        Err(NotCharged::Cap { queue, over, waiting }) => {
            assert_eq!((&*queue, over.of, waiting), ("small", Capped::Resource(Dim::CPU), 0));
            assert_eq!((over.cap, over.used, over.asked), (100_000, 90_000, 20_000));
        }
        other => panic!("the cap is 10, and 9 are in use: {other:?}"),
    }
    placed(&mut engine, "small", cores(1));
    // The caps of jobs count it, too.
    let more = submit_job(&mut engine, bag("more", 3), "small");
    wait(&mut engine);
    assert_eq!(counts(&mut engine, more, TaskState::Pending), 3);
    check_jobs(&mut engine);
    ask(&mut engine, PortRequest::Release(first.allocation));
    wait(&mut engine);
    assert_eq!(counts(&mut engine, more, TaskState::Bound), 3);
    placed(&mut engine, "small", cores(2));
    assert!(matches!(place_in(&mut engine, "small", cores(1)), Err(NotCharged::Cap { .. })));
    check_jobs(&mut engine);
}

#[test]
fn a_cap_on_allocations_holds_for_tasks_and_placements() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, QueueSpec { allocations_max: Some(3), ..QueueSpec::new("few") });
    let first = placed(&mut engine, "few", cores(1));
    let job = submit_job(&mut engine, bag("job", 5), "few");
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 2);
    let refused = place_in(&mut engine, "few", cores(1)).expect_err("3 are there");
    assert!(refused.is_cap_on_allocations(), "{refused:?}");
    ask(&mut engine, PortRequest::Release(first.allocation));
    wait(&mut engine);
    assert_eq!(counts(&mut engine, job, TaskState::Bound), 3);
    check_jobs(&mut engine);
    cancel(&mut engine, job, 0);
    for _ in 0..3 {
        placed(&mut engine, "few", cores(1));
    }
    check_jobs(&mut engine);
    assert!(place_in(&mut engine, "few", cores(1)).is_err());
}

#[test]
fn what_is_wrong_is_refused_and_charges_nothing() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    let [one, two] = [TenantId(1), TenantId(2)];
    set_queue(&mut engine, QueueSpec { open: false, ..QueueSpec::new("closed") });
    set_queue(&mut engine, QueueSpec { tenant: Some(one), ..QueueSpec::new("of-one") });
    let of = |tenant| PlacementRequest { tenant, ..cores(1) };
    let before = jobs_of(&engine).record();
    for (queue, refused) in [
        ("missing", NotCharged::UnknownQueue(named("missing"))),
        ("closed", NotCharged::ClosedQueue(named("closed"))),
        ("of-one", NotCharged::ForeignQueue(named("of-one"))),
    ] {
        assert_eq!(place_in(&mut engine, queue, of(two)), Err(refused));
    }
    let Err(NotCharged::NoNode(refusal)) = place_in(&mut engine, "all", cores(17)) else {
        panic!("too large")
    };
    assert_eq!((refusal.nodes, refusal.feasible), (2, false));
    assert_eq!(jobs_of(&engine).record().jobs, before.jobs);
    assert_eq!(live_allocations(&mut engine), 0);
    placed(&mut engine, "of-one", of(one));
    placed(&mut engine, "all", of(two));
    let Err(NotCharged::NoNode(refusal)) = place_in(&mut engine, "all", cores(16)) else { panic!("no room") };
    assert!(refusal.feasible, "{refusal:?}");
    check_jobs(&mut engine);
}

#[test]
fn lost_and_removed_nodes_end_the_charge() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    let lost = add_agent_node(&mut engine, node_spec("lost", 16, 0));
    assert_eq!(placed(&mut engine, "all", cores(16)).node, lost);
    let removed = crate::by_hand::add_node(&mut engine, node_spec("removed", 16, 0));
    assert_eq!(placed(&mut engine, "all", cores(16)).node, removed.id);
    assert_eq!(held(&mut engine, "all"), 32);
    life(&mut engine, lost, LifeEvent::Lose);
    remove_node(&mut engine, &removed);
    wait(&mut engine);
    assert_eq!(held(&mut engine, "all"), 0);
    assert_eq!(jobs_of(&engine).jobs().len(), 0);
    check_jobs(&mut engine);
}

/// A job of the highest priority takes the place of other jobs, and not of direct placements.
#[test]
fn nobody_evicts_a_direct_placement() {
    let mut engine = jobs_engine(1, CycleConfig::default());
    with_nodes(&mut engine, 1, 16, 0);
    placed(&mut engine, "all", cores(4));
    let low = submit_job(&mut engine, bag("low", 12), "all");
    wait(&mut engine);
    // The other job keeps the one task that it needs.
    let high = JobSpec { priority: 10, ..gang("high", 11, cores(1)) };
    let high = submit_job(&mut engine, high, "all");
    // This one would need the place of the direct placement.
    let whole = JobSpec { priority: 20, ..gang("whole", 16, cores(1)) };
    let whole = submit_job(&mut engine, whole, "all");
    for _ in 0..4 {
        wait(&mut engine);
        check_jobs(&mut engine);
    }
    assert_eq!(counts(&mut engine, high, TaskState::Bound), 11);
    assert_eq!(counts(&mut engine, whole, TaskState::Pending), 16);
    assert_eq!(counts(&mut engine, low, TaskState::Pending), 11);
    assert_eq!(shown(&mut engine, "all").direct, 1);
}

#[test]
fn placements_survive_a_start_with_another_number_of_shards() {
    let mut engine = jobs_engine(3, CycleConfig::default());
    with_nodes(&mut engine, 3, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(9), ..QueueSpec::new("small") });
    let first = placed(&mut engine, "small", cores(4));
    placed(&mut engine, "small", cores(4));
    let state = export_all(&mut engine);
    let mut engine = open_with(state, &jobs_config(2, CycleConfig::default()));
    wait(&mut engine);
    check_jobs(&mut engine);
    assert_eq!(held(&mut engine, "small"), 8);
    assert!(matches!(place_in(&mut engine, "small", cores(2)), Err(NotCharged::Cap { .. })));
    ask(&mut engine, PortRequest::Release(first.allocation));
    wait(&mut engine);
    placed(&mut engine, "small", cores(5));
    check_jobs(&mut engine);
}

/// Many at once, in one round and with cycles between them: as many are placed as the cap allows.
#[test]
fn a_crowd_gets_exactly_what_the_cap_allows() {
    let mut engine = jobs_engine(4, CycleConfig::default());
    with_nodes(&mut engine, 8, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(50), ..QueueSpec::new("small") });
    submit_job(&mut engine, bag("job", 10), "small");
    wait(&mut engine);
    for tag in 0..200 {
        let placement = DirectPlacement { request: cores(1), queue: named("small"), bound: None, wait: None };
        let request = PortRequest::Plan(PlanJob::Place(Box::new(placement)));
        engine.ports[0].submit(tag, request, engine.now).expect("room");
    }
    engine.ports[0].flush();
    let answers = settle(&mut engine).len();
    assert_eq!(answers, 200);
    let view = shown(&mut engine, "small");
    assert_eq!((view.direct, view.usage.held.get(Dim::CPU)), (40, 500_000));
    check_jobs(&mut engine);
}

fn batch(parts: &[(u16, u32)]) -> PlanJob {
    let placement = |&(part, cpu)| {
        let placement =
            DirectPlacement { request: cores(cpu), queue: named("small"), bound: None, wait: None };
        (part, placement)
    };
    PlanJob::PlaceBatch(parts.iter().map(placement).collect())
}

/// Each is decided by itself, in the order of the batch, and all are answered together.
#[test]
fn a_batch_gets_what_the_cap_allows_part_by_part() {
    let mut engine = jobs_engine(2, CycleConfig::default());
    with_nodes(&mut engine, 2, 16, 0);
    set_queue(&mut engine, QueueSpec { capability: cpu(6), ..QueueSpec::new("small") });
    let reply = plan(&mut engine, batch(&[(4, 4), (0, 3), (7, 2), (9, 1)]));
    let PlanReply::PlacedBatch(mut parts) = reply else { panic!("{reply:?}") };
    parts.sort_by_key(|&(part, _)| part);
    let told: Vec<(u16, bool)> = parts.iter().map(|(part, placed)| (*part, placed.is_ok())).collect();
    assert_eq!(told, [(0, false), (4, true), (7, true), (9, false)]);
    assert!(matches!(&parts[0].1, Err(NotCharged::Cap { over, .. }) if over.used == 40_000), "{parts:?}");
    assert_eq!(held(&mut engine, "small"), 6);
    check_jobs(&mut engine);
}

/// A crash after any unit: of a batch, those parts are there whose outcomes are.
#[test]
fn no_crash_leaves_a_part_of_a_batch_without_its_outcome_or_the_other_way_round() {
    let config = EngineConfig { journal: true, ..jobs_config(2, CycleConfig::default()) };
    let mut engine = open_with(StoreState::create(8), &config);
    let feed = engine.journal.take().expect("the engine has a journal");
    set_queue(&mut engine, QueueSpec::new("small"));
    with_nodes(&mut engine, 2, 16, 0);
    // Others take what it is about to be given, so that not all parts are placed in the first round.
    let origin = Origin { part: 0, ..ORIGIN };
    let request = PortRequest::Plan(batch(&[(3, 9), (1, 9), (2, 5)]));
    engine.ports[0].submit_for(Some(origin), 3, request, engine.now).expect("room");
    engine.ports[0].submit(4, PortRequest::Place(cores(9)), engine.now).expect("room");
    assert_eq!(settle(&mut engine).len(), 2);
    let mut units = Vec::new();
    feed.take(&mut units);
    let mut most = 0;
    for crash in 0..=units.len() {
        let mut rebuild = Rebuild::new(StoreState::create(8)).expect("it is empty");
        units[..crash].iter().for_each(|unit| rebuild.apply(unit.clone()).expect("nothing is missing"));
        rebuild.take_back();
        let state = rebuild.finish().expect("nothing is missing");
        state.check().expect("the records refer to each other");
        let done = units[..crash].iter().flat_map(|unit| &unit.done);
        let mut parts: Vec<(u16, AllocationId)> = done
            .filter(|done| done.origin.session == origin.session)
            .map(|done| match &done.deed {
                Deed::Placed(placed, None) => (done.origin.part, placed.allocation),
                other => panic!("a placement: {other:?}"),
            })
            .collect();
        let mut engine = open_with(state, &jobs_config(1, CycleConfig::default()));
        check_jobs(&mut engine);
        let mut charged: Vec<AllocationId> = jobs_of(&engine)
            .jobs()
            .flat_map(|(_, job)| job.tasks())
            .filter_map(|task| task.allocation)
            .collect();
        charged.sort_unstable();
        parts.sort_unstable_by_key(|&(_, id)| id);
        assert!(charged.iter().eq(parts.iter().map(|(_, id)| id)), "unit {crash}: {charged:?}, {parts:?}");
        most = most.max(parts.len());
    }
    assert_eq!(most, 2, "the third finds no room");
}

/// A crash after any unit: the placement is there with its charge and the outcome of its request, or nothing of it is.
#[test]
fn no_crash_leaves_a_charge_without_an_allocation_or_the_other_way_round() {
    let config = EngineConfig { journal: true, ..jobs_config(2, CycleConfig::default()) };
    let mut engine = open_with(StoreState::create(8), &config);
    let feed = engine.journal.take().expect("the engine has a journal");
    let mut units = Vec::new();
    let collect = |units: &mut Vec<_>| {
        let mut more = Vec::new();
        feed.take(&mut more);
        feed.set_durable(feed.position());
        units.append(&mut more);
    };
    set_queue(&mut engine, QueueSpec::new("all"));
    with_nodes(&mut engine, 2, 16, 0);
    collect(&mut units);
    let start = units.len();
    let origin = ORIGIN;
    let placement = DirectPlacement { request: cores(2), queue: named("all"), bound: None, wait: None };
    let request = PortRequest::Plan(PlanJob::Place(Box::new(placement)));
    let answered = engine.ports[0].submit_for(Some(origin), 3, request, engine.now).expect("room");
    assert!(answered.is_none(), "{answered:?}");
    engine.ports[0].flush();
    assert_eq!(settle(&mut engine).len(), 1);
    collect(&mut units);
    let end = units.len();
    let (_, job) = jobs_of(&engine).jobs().next().expect("it is charged");
    let allocation = job.tasks()[0].allocation.expect("it is placed");
    ask(&mut engine, PortRequest::Release(allocation));
    wait_ns(&mut engine, 1_000_000_000);
    collect(&mut units);
    let is_job_event = |event: Event<'_>| matches!(event, Event::Jobs(_));
    let told = units[start..].iter().flat_map(|unit| unit.events()).filter(|&event| is_job_event(event));
    assert_eq!(told.count(), 0, "the events of its allocation tell all");
    let mut found = [0, 0];
    for crash in start..=units.len() {
        let mut rebuild = Rebuild::new(StoreState::create(8)).expect("it is empty");
        units[..crash].iter().for_each(|unit| rebuild.apply(unit.clone()).expect("nothing is missing"));
        rebuild.take_back();
        let state = rebuild.finish().expect("nothing is missing");
        state.check().expect("the records refer to each other");
        let done = units[..crash].iter().flat_map(|unit| &unit.done);
        let done: Vec<_> = done.filter(|done| done.origin == origin).collect();
        let is_done = !done.is_empty();
        for done in &done {
            assert!(matches!(&done.deed, Deed::Placed(of, None) if of.allocation == allocation), "{done:?}");
        }
        let mut engine = open_with(state, &jobs_config(1, CycleConfig::default()));
        let live = live_allocations(&mut engine);
        check_jobs(&mut engine);
        assert_eq!(held(&mut engine, "all"), 2 * live as i64, "unit {crash}");
        if crash <= end {
            assert_eq!(live, u64::from(is_done), "unit {crash}");
        }
        found[usize::from(is_done)] += 1;
        wait(&mut engine);
        assert_eq!(live_allocations(&mut engine), live);
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
    assert!(job_status_is_unknown(&mut engine));
}

/// The number of a placement is no job to anybody.
fn job_status_is_unknown(engine: &mut Engine) -> bool {
    placed(engine, "all", cores(1));
    let id = jobs_of(engine).jobs().map(|(id, _)| id).last().expect("it is charged");
    let status = JobsRequest::Status { job: id, tenant: None, from: 0, limit: 1 };
    let other = submit_job(engine, bag("other", 1), "all");
    assert_eq!(job_status(engine, other).job.id, other);
    ask_jobs(engine, status).map(drop) == Err(JobsRejection::UnknownJob(id))
}
