//! Direct placements that name queues: charges, caps, ends, and crashes.

use std::collections::BTreeSet;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::Engine;
use wharf_core::fairness::Dim;
use wharf_core::group::{PlanJob, PlanReply};
use wharf_core::ids::{AllocationId, TenantId};
use wharf_core::jobs::{
    Capped, DirectPlacement, JobSpec, JobsRejection, JobsReply, JobsRequest, NotCharged, QueueContents,
    QueueError, QueueSpec, QueueView, TaskState,
};
use wharf_core::journal::{Event, Unit};
use wharf_core::node::LifeEvent;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::router::PortRequest;
use wharf_core::state::{Deed, Origin};

use crate::by_hand::{ask, cores, node_spec, remove_node, settle};
use crate::group_bed::{add_agent_node, life, live_allocations, plan, with_nodes};
use crate::jobs_bed::{
    Journaled, ORIGIN, after_a_crash, ask_jobs, bag, cancel, check_jobs, counts, cpu, export_all, gang,
    job_status, jobs_config, jobs_engine, jobs_of, named, open_with, place_in, set_queue, submit_job, wait,
    wait_ns,
};

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
    let has = QueueContents { jobs: 0, direct: 2, groups: 0 };
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

/// Returns the placements that a request has made, by the parts of the request, as the units tell.
fn done(units: &[Unit], origin: Origin) -> Vec<(u16, AllocationId)> {
    let done = units.iter().flat_map(|unit| &unit.done);
    let of_request =
        done.filter(|done| (done.origin.session, done.origin.sequence) == (origin.session, origin.sequence));
    of_request
        .map(|done| match &done.deed {
            Deed::Placed(placed, None) => (done.origin.part, placed.allocation),
            other => panic!("a placement: {other:?}"),
        })
        .collect()
}

/// A crash after any unit: of a batch, those parts are there whose outcomes are.
#[test]
fn no_crash_leaves_a_part_of_a_batch_without_its_outcome_or_the_other_way_round() {
    let mut work = Journaled::new(2, CycleConfig::default());
    set_queue(&mut work.engine, QueueSpec::new("small"));
    with_nodes(&mut work.engine, 2, 16, 0);
    // A shard places this one first, so that the batch conflicts there, and takes two rounds.
    work.engine.ports[0].submit(4, PortRequest::Place(cores(9)), work.engine.now).expect("room");
    let request = PortRequest::Plan(batch(&[(3, 9), (1, 9), (2, 5)]));
    work.engine.ports[0].submit_for(Some(ORIGIN), 3, request, work.engine.now).expect("room");
    assert_eq!(settle(&mut work.engine).len(), 2);
    let mut found = BTreeSet::new();
    for crash in 0..=work.collect() {
        let units = &work.units[..crash];
        let mut engine = open_with(after_a_crash(units), &jobs_config(1, CycleConfig::default()));
        check_jobs(&mut engine);
        let tasks = jobs_of(&engine).jobs().flat_map(|(_, job)| job.tasks());
        let charged: BTreeSet<AllocationId> = tasks.filter_map(|task| task.allocation).collect();
        let parts: BTreeSet<AllocationId> = done(units, ORIGIN).into_iter().map(|(_, id)| id).collect();
        assert_eq!(charged, parts, "unit {crash}");
        found.insert(parts.len());
    }
    assert!(found.contains(&0) && found.contains(&2), "{found:?}");
}

/// A crash after any unit: the placement is there with its charge and the outcome of its request, or nothing of it is.
#[test]
fn no_crash_leaves_a_charge_without_an_allocation_or_the_other_way_round() {
    let mut work = Journaled::new(2, CycleConfig::default());
    with_nodes(&mut work.engine, 2, 16, 0);
    let start = work.collect();
    let placement = DirectPlacement { request: cores(2), queue: named("all"), bound: None, wait: None };
    let request = PortRequest::Plan(PlanJob::Place(Box::new(placement)));
    let answered = work.engine.ports[0].submit_for(Some(ORIGIN), 3, request, work.engine.now).expect("room");
    assert!(answered.is_none(), "{answered:?}");
    work.engine.ports[0].flush();
    assert_eq!(settle(&mut work.engine).len(), 1);
    let end = work.collect();
    let (_, job) = jobs_of(&work.engine).jobs().next().expect("it is charged");
    let allocation = job.tasks()[0].allocation.expect("it is placed");
    ask(&mut work.engine, PortRequest::Release(allocation));
    wait_ns(&mut work.engine, 1_000_000_000);
    work.collect();
    let is_job_event = |event: Event<'_>| matches!(event, Event::Jobs(_));
    let told = work.units[start..].iter().flat_map(|unit| unit.events()).filter(|&event| is_job_event(event));
    assert_eq!(told.count(), 0, "the events of its allocation tell all");
    let mut found = [0, 0];
    for crash in start..=work.units.len() {
        let units = &work.units[..crash];
        let done = done(units, ORIGIN);
        let is_done = !done.is_empty();
        assert!(done.iter().all(|&of| of == (0, allocation)), "{done:?}");
        let mut engine = open_with(after_a_crash(units), &jobs_config(1, CycleConfig::default()));
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
    assert!(job_status_is_unknown(&mut work.engine));
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
