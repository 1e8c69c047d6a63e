//! An engine that keeps jobs, run by hand, and what its tests ask of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::fairness::{Caps, Dim};
use wharf_core::group::{PlanJob, PlanReply};
use wharf_core::ids::{AllocationId, Incarnation, SessionId};
use wharf_core::jobs::{
    DirectPlacement, JobId, JobSpec, JobView, Jobs, JobsDone, JobsRejection, JobsReply, JobsRequest,
    NotCharged, QueueSpec, TaskGroup, TaskId, TaskReport, TaskState,
};
use wharf_core::journal::{JournalFeed, Unit};
use wharf_core::planner::JobsConfig;
use wharf_core::recovery::Rebuild;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::state::{Origin, StoreState};

use crate::by_hand::{check_all, config, cores, export, settle};
use crate::group_bed::plan;

/// Longer than the time between two cycles.
pub(crate) const INTERVAL_NS: u64 = 200_000_000;

pub(crate) fn jobs_config(shards: u16, cycle: CycleConfig) -> EngineConfig {
    let jobs = Some(JobsConfig { cycle, ..JobsConfig::default() });
    EngineConfig { jobs, ..config(shards) }
}

pub(crate) fn open_with(state: StoreState, config: &EngineConfig) -> Engine {
    Engine::open(state, config, vec![Waker::noop().clone()]).expect("numbers in range")
}

/// An engine that keeps jobs, with a queue `all`, and all units that it put into the journal.
pub(crate) struct Journaled {
    pub(crate) engine: Engine,
    feed: JournalFeed,
    pub(crate) units: Vec<Unit>,
}

impl Journaled {
    pub(crate) fn new(shards: u16, cycle: CycleConfig) -> Self {
        Self::with(&EngineConfig { journal: true, ..jobs_config(shards, cycle) })
    }

    /// As [`new`](Self::new), with these settings.
    pub(crate) fn with(config: &EngineConfig) -> Self {
        let mut engine = open_with(StoreState::create(8), config);
        let feed = engine.journal.take().expect("the engine has a journal");
        set_queue(&mut engine, QueueSpec::new("all"));
        Self { engine, feed, units: Vec::new() }
    }

    /// Returns the number of units so far.
    pub(crate) fn collect(&mut self) -> usize {
        let mut more = Vec::new();
        self.feed.take(&mut more);
        self.feed.set_durable(self.feed.position());
        self.units.append(&mut more);
        self.units.len()
    }
}

/// Returns the state that units lead to, after a crash at their end.
pub(crate) fn after_a_crash(units: &[Unit]) -> StoreState {
    let mut rebuild = Rebuild::new(StoreState::create(8)).expect("it is empty");
    units.iter().for_each(|unit| rebuild.apply(unit.clone()).expect("nothing is missing"));
    rebuild.take_back();
    let state = rebuild.finish().expect("nothing is missing");
    state.check().expect("the records refer to each other");
    state
}

/// The request of a client, for the journal.
pub(crate) const ORIGIN: Origin = Origin {
    session: SessionId { incarnation: Incarnation(1), number: 5 },
    sequence: 1,
    mark: 1,
    fingerprint: 7,
    part: 0,
    is_wait: false,
    alternative: None,
};

/// An engine without nodes and with a queue `all`.
pub(crate) fn jobs_engine(shards: u16, cycle: CycleConfig) -> Engine {
    let mut engine = open_with(StoreState::create(8), &jobs_config(shards, cycle));
    set_queue(&mut engine, QueueSpec::new("all"));
    engine
}

pub(crate) fn ask_jobs(engine: &mut Engine, request: JobsRequest) -> Result<JobsReply, JobsRejection> {
    match plan(engine, PlanJob::Jobs(Box::new(request))) {
        PlanReply::Jobs(reply) => reply,
        other => panic!("the keeper of jobs answers: {other:?}"),
    }
}

/// Makes a placement that names a queue.
pub(crate) fn place_in(
    engine: &mut Engine,
    queue: &str,
    request: PlacementRequest,
) -> Result<Placement, NotCharged> {
    let placement = DirectPlacement { request, queue: queue.into(), bound: None, wait: None };
    match plan(engine, PlanJob::Place(Box::new(placement))) {
        PlanReply::Placed(placed) => placed.map(|placement| *placement),
        other => panic!("the keeper of jobs answers: {other:?}"),
    }
}

pub(crate) fn set_queue(engine: &mut Engine, spec: QueueSpec) {
    let set = ask_jobs(engine, JobsRequest::SetQueue { spec: Box::new(spec), parent: None });
    assert!(matches!(set, Ok(JobsReply::Done(JobsDone::QueueSet))), "{set:?}");
}

/// A job of equal tasks, all of which it needs.
pub(crate) fn gang(name: &str, count: u32, request: PlacementRequest) -> JobSpec {
    JobSpec { min_member: count, ..JobSpec::new(name, vec![TaskGroup::new(request, count)]) }
}

/// A job of tasks with a core each, which are placed one by one.
pub(crate) fn bag(name: &str, count: u32) -> JobSpec {
    JobSpec { min_member: 1, ..gang(name, count, cores(1)) }
}

pub(crate) fn try_submit(engine: &mut Engine, spec: JobSpec, queue: &str) -> Result<JobId, JobsRejection> {
    let submit =
        JobsRequest::Submit { spec: Box::new(spec), queue: queue.into(), bound: None, priorities: None };
    match ask_jobs(engine, submit)? {
        JobsReply::Done(JobsDone::Submitted(id)) => Ok(id),
        other => panic!("a job: {other:?}"),
    }
}

pub(crate) fn submit_job(engine: &mut Engine, spec: JobSpec, queue: &str) -> JobId {
    try_submit(engine, spec, queue).expect("a job that is right")
}

pub(crate) fn cancel(engine: &mut Engine, job: JobId, grace_ns: u64) {
    let done = ask_jobs(engine, JobsRequest::Cancel { job, tenant: None, grace_ns });
    assert!(matches!(done, Ok(JobsReply::Done(JobsDone::Cancelled(id))) if id == job), "{done:?}");
}

pub(crate) fn job_status(engine: &mut Engine, job: JobId) -> JobView {
    match ask_jobs(engine, JobsRequest::Status { job, tenant: None, from: 0, limit: 1000 }) {
        Ok(JobsReply::Job(view)) => *view,
        other => panic!("a job: {other:?}"),
    }
}

/// Reports a state of the tasks of a job that have an allocation. Returns how many reports were out of date.
pub(crate) fn report(engine: &mut Engine, job: JobId, state: TaskState) -> usize {
    let view = job_status(engine, job);
    let allocated = view.tasks.iter().filter_map(|task| Some((task.index, task.allocation?)));
    let tasks: Vec<TaskReport> = allocated
        .map(|(index, allocation)| TaskReport {
            task: TaskId { job, index },
            allocation,
            state,
            exit_code: None,
        })
        .collect();
    match ask_jobs(engine, JobsRequest::Report { tenant: None, tasks }) {
        Ok(JobsReply::Done(JobsDone::Reported(outdated))) => outdated.len(),
        other => panic!("a report: {other:?}"),
    }
}

/// The states of the tasks of a job.
pub(crate) fn states(engine: &mut Engine, job: JobId) -> Vec<TaskState> {
    job_status(engine, job).tasks.iter().map(|task| task.state).collect()
}

/// Lets enough time pass for the next cycle.
pub(crate) fn wait(engine: &mut Engine) {
    wait_ns(engine, INTERVAL_NS);
}

pub(crate) fn wait_ns(engine: &mut Engine, nanos: u64) {
    engine.now = engine.now.plus_nanos(nanos);
    settle(engine);
}

pub(crate) fn jobs_of(engine: &Engine) -> &Jobs {
    engine.planners.iter().find_map(|planner| planner.planner().jobs()).expect("somebody keeps jobs")
}

/// Checks that tasks hold what the books say, and that no cap is exceeded.
pub(crate) fn check_jobs(engine: &mut Engine) {
    check_all(engine);
    let state = export(engine);
    let of_jobs = |group| JobId::of_group(group).is_some();
    let placed = state.partitions.iter().flat_map(|partition| {
        let placed = partition.bundles.iter().map(|record| (record.allocation, record.bundle));
        placed.chain(partition.claims.iter().filter_map(|claim| Some((claim.id, claim.bundle?))))
    });
    let placed: BTreeSet<(AllocationId, u64, u32)> = placed
        .filter(|(_, bundle)| of_jobs(bundle.group))
        .map(|(id, bundle)| (id, bundle.group.number, bundle.index))
        .collect();
    // What queues are charged for bundles of groups is what the books have of these, also of groups that are gone.
    let bundles = state.partitions.iter().flat_map(|partition| &partition.bundles);
    let in_queues = bundles.filter(|record| record.bundle.group.is_in_queue());
    let in_queues: BTreeSet<AllocationId> = in_queues.map(|record| record.allocation).collect();
    let jobs = jobs_of(engine);
    let charges = jobs.jobs().filter(|(id, _)| id.is_charge());
    let charged: Vec<Option<AllocationId>> = charges.map(|(_, job)| job.tasks()[0].allocation).collect();
    assert_eq!(charged.len(), in_queues.len(), "each bundle is charged once: {charged:?}");
    assert_eq!(charged.into_iter().flatten().collect::<BTreeSet<_>>(), in_queues, "charges and books differ");
    jobs.check().expect("the sums are those of the tasks");
    let mut known = BTreeSet::new();
    for (id, job) in jobs.jobs().filter(|(id, _)| !id.is_charge()) {
        for (index, task) in (0..).zip(job.tasks()) {
            known.extend(task.allocation.map(|allocation| (allocation, id.0, index)));
        }
    }
    assert_eq!(known, placed, "tasks and books differ");
    for (_, queue) in jobs.queues() {
        let usage = queue.usage();
        let used = usage.held.plus(&usage.releasing);
        for (dim, cap) in queue.spec().capability.iter() {
            assert!(used.get(dim) <= cap, "queue `{}` uses {used:?}", queue.spec().name);
        }
        let allocations = usage.allocations();
        let most = queue.spec().allocations_max.map(u64::from);
        assert!(most.is_none_or(|most| allocations <= most), "queue `{}`: {allocations}", queue.spec().name);
    }
}

/// The durable state with its jobs, as a stop would store it.
pub(crate) fn export_all(engine: &mut Engine) -> StoreState {
    let mut state = export(engine);
    let jobs = engine.planners.iter().find_map(|planner| planner.planner().export_jobs());
    state.jobs = jobs.expect("somebody keeps jobs");
    state.groups = engine.planners.iter().flat_map(|planner| planner.planner().export()).collect();
    state.groups.sort_by_key(|group| group.id);
    state
}

pub(crate) fn counts(engine: &mut Engine, job: JobId, state: TaskState) -> u32 {
    job_status(engine, job).job.counts[state.index()]
}

/// A cap of so many cores.
pub(crate) fn cpu(cap: i64) -> Caps {
    [(Dim::CPU, cap * 10_000)].into_iter().collect()
}

pub(crate) fn named(name: &str) -> Arc<str> {
    name.into()
}
