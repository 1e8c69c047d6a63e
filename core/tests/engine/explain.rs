//! Explanations of pending jobs by an engine: what is told, to whom, and how much work it is.

use wharf_core::cycle::{Action, CycleConfig, PluginConfig, PluginKind};
use wharf_core::engine::Engine;
use wharf_core::fairness::{Caps, Dim};
use wharf_core::ids::TenantId;
use wharf_core::jobs::{
    Capped, JobExplanation, JobId, JobSpec, JobsRejection, JobsReply, JobsRequest, PendingReason, QueueSpec,
    Remedy, TaskId, TaskState,
};
use wharf_core::limits::EXPLAIN_NODES_MAX;
use wharf_core::request::{Check, PlacementRequest};
use wharf_core::resource::Amount;

use crate::by_hand::{add_node, cores, node_spec};
use crate::group_bed::with_nodes;
use crate::jobs_bed::{ask_jobs, bag, check_jobs, gang, jobs_engine, set_queue, states, submit_job, wait};
use crate::jobs_groups::{ask_to_wait, created, in_queue};

const CORE: i64 = Amount::SCALE;

fn explain_as(
    engine: &mut Engine,
    job: JobId,
    task: Option<u32>,
    tenant: Option<TenantId>,
) -> Result<JobExplanation, JobsRejection> {
    match ask_jobs(engine, JobsRequest::Explain { job, task, tenant })? {
        JobsReply::Explained(told) => Ok(*told),
        other => panic!("an explanation: {other:?}"),
    }
}

fn explain(engine: &mut Engine, job: JobId) -> JobExplanation {
    explain_as(engine, job, None, None).expect("the job is there")
}

fn capped(name: &str, cpu: i64) -> QueueSpec {
    let mut capability = Caps::none();
    capability.set(Dim::CPU, cpu * CORE);
    QueueSpec { capability, ..QueueSpec::new(name) }
}

/// A cycle that gives queues all that they ask for, so that nodes and caps decide.
fn plain() -> CycleConfig {
    CycleConfig {
        actions: vec![Action::Enqueue, Action::Allocate, Action::Backfill],
        tiers: vec![vec![PluginConfig::new(PluginKind::Priority), PluginConfig::new(PluginKind::Gang)]],
        ..CycleConfig::default()
    }
}

#[test]
fn a_job_that_no_node_holds_is_explained_over_all_shards() {
    let mut engine = jobs_engine(3, plain());
    with_nodes(&mut engine, 6, 16, 0);
    let small = submit_job(&mut engine, bag("small", 12), "all");
    let large = submit_job(&mut engine, gang("large", 2, cores(17)), "all");
    let told = explain(&mut engine, large);
    assert_eq!((told.reason, told.tried), (PendingReason::NotTried, None));
    wait(&mut engine);
    let told = explain(&mut engine, large);
    assert_eq!(
        (told.reason, told.task, told.state),
        (PendingReason::NoNode, Some(0), Some(TaskState::Pending))
    );
    assert_eq!((told.fit, told.needed, told.place.before, told.place.waiting), (0, 2, 0, 1));
    let counts = told.nodes.expect("it waits for nodes");
    assert_eq!((counts.refusal.nodes, counts.refusal.examined), (6, 6));
    assert_eq!(counts.refusal.checks[&Check::Cpu].nodes, 6);
    assert_eq!(counts.room.fits, 0);
    let [change] = &told.changes[..] else { panic!("one way: {:?}", told.changes) };
    assert!(
        matches!(&change.remedy, Remedy::LargerNodes { count: 2, amounts } if amounts.get(Dim::CPU) == 17 * CORE)
    );
    let scarce = told.scarce.expect("cores are scarce");
    assert_eq!((&*scarce.holders[0].name, scarce.holders[0].amount), ("all", 12 * CORE));
    assert_eq!(explain(&mut engine, small).reason, PendingReason::None);
    for name in ["more-0", "more-1"] {
        add_node(&mut engine, node_spec(name, 17, 0));
    }
    wait(&mut engine);
    assert_eq!(states(&mut engine, large), [TaskState::Bound; 2]);
    check_jobs(&mut engine);
}

#[test]
fn a_cap_names_the_jobs_that_use_most_of_it() {
    let mut engine = jobs_engine(2, plain());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, capped("small", 10));
    let first = submit_job(&mut engine, bag("first", 3), "small");
    let second = submit_job(&mut engine, bag("second", 6), "small");
    wait(&mut engine);
    let third = submit_job(&mut engine, gang("third", 2, cores(1)), "small");
    wait(&mut engine);
    let told = explain(&mut engine, third);
    assert_eq!((told.reason, told.cause, told.fit), (PendingReason::Gang, PendingReason::Cap, 1));
    let [bound] = &told.bounds[..] else { panic!("one bound: {:?}", told.bounds) };
    let of = Capped::Resource(Dim::CPU);
    assert_eq!((bound.queue.as_deref(), bound.of, bound.bound), (Some("small"), of, 10 * CORE));
    assert_eq!((bound.used, bound.asked), (9 * CORE, 2 * CORE));
    let holders: Vec<_> = bound.holders.iter().map(|of| (of.job, of.amount)).collect();
    assert_eq!(holders, [(Some(second), 6 * CORE), (Some(first), 3 * CORE)]);
    assert!(matches!(&told.changes[0].remedy, Remedy::RaiseCap { by, .. } if *by == CORE));
    set_queue(&mut engine, capped("small", 11));
    wait(&mut engine);
    assert_eq!(states(&mut engine, third), [TaskState::Bound; 2]);
    check_jobs(&mut engine);
}

#[test]
fn labels_are_counted_and_one_task_is_told_apart_from_its_job() {
    let mut engine = jobs_engine(1, plain());
    with_nodes(&mut engine, 3, 16, 0);
    let lost = PlacementRequest { candidates: Some([wharf_core::ids::NodeId(999)].into()), ..cores(1) };
    let mut spec = gang("two", 2, cores(1));
    spec.tasks[0].count = 1;
    spec.tasks.push(wharf_core::jobs::TaskGroup { request: lost, ..spec.tasks[0].clone() });
    let job = submit_job(&mut engine, spec, "all");
    wait(&mut engine);
    let told = explain(&mut engine, job);
    assert_eq!((told.reason, told.cause, told.task), (PendingReason::Gang, PendingReason::NoNode, Some(1)));
    assert_eq!(told.nodes.expect("counted").refusal.checks[&Check::Candidates].nodes, 3);
    let first = explain_as(&mut engine, job, Some(0), None).expect("it is there");
    assert_eq!((first.reason, first.nodes.expect("counted").room.fits), (PendingReason::Gang, 3));
    let second = explain_as(&mut engine, job, Some(1), None).expect("it is there");
    assert_eq!(second.reason, PendingReason::NoNode);
}

#[test]
fn a_tenant_is_told_nothing_of_others() {
    let mut engine = jobs_engine(1, plain());
    with_nodes(&mut engine, 1, 16, 0);
    set_queue(&mut engine, capped("small", 10));
    let of = |tenant: u16, spec: JobSpec| {
        let tasks = spec.tasks.into_iter();
        let owned = |mut group: wharf_core::jobs::TaskGroup| {
            group.request.tenant = TenantId(tenant);
            group
        };
        JobSpec { tenant: TenantId(tenant), tasks: tasks.map(owned).collect(), ..spec }
    };
    submit_job(&mut engine, of(1, bag("theirs", 10)), "small");
    wait(&mut engine);
    let own = submit_job(&mut engine, of(2, bag("own", 1)), "small");
    wait(&mut engine);
    let hidden = explain_as(&mut engine, own, None, Some(TenantId(1)));
    assert_eq!(hidden.unwrap_err(), JobsRejection::UnknownJob(own));
    let told = explain_as(&mut engine, own, None, Some(TenantId(2))).expect("it is its own");
    assert_eq!((told.reason, told.bounds.len()), (PendingReason::Cap, 1));
    assert_eq!(told.bounds[0].holders, [], "others' jobs are not named");
    let all = explain(&mut engine, own);
    assert_eq!(all.bounds[0].holders.len(), 1);
    let large = submit_job(&mut engine, of(2, gang("large", 1, cores(9))), "all");
    wait(&mut engine);
    let told = explain_as(&mut engine, large, None, Some(TenantId(2))).expect("it is its own");
    assert!(!told.changes.is_empty());
    for change in &told.changes {
        let is_hidden = matches!(
            &change.remedy,
            Remedy::FreeOnNode { node: None, .. } | Remedy::MoreNodes { like: None, .. }
        );
        assert!(is_hidden, "{change:?}");
    }
}

#[test]
fn unknown_jobs_and_tasks_are_refused() {
    let mut engine = jobs_engine(1, plain());
    let job = submit_job(&mut engine, bag("one", 1), "all");
    let refused = explain_as(&mut engine, JobId(77), None, None).unwrap_err();
    assert_eq!(refused, JobsRejection::UnknownJob(JobId(77)));
    let refused = explain_as(&mut engine, job, Some(1), None).unwrap_err();
    assert_eq!(refused, JobsRejection::UnknownTask(TaskId { job, index: 1 }));
}

/// More nodes than one round looks at are counted in several, and all of them once.
#[test]
fn all_nodes_are_counted_over_several_rounds() {
    let mut engine = jobs_engine(2, plain());
    let nodes = 3 * EXPLAIN_NODES_MAX + 7;
    with_nodes(&mut engine, nodes, 2, 0);
    let job = submit_job(&mut engine, gang("large", 1, cores(3)), "all");
    wait(&mut engine);
    for _ in 0..2 {
        let told = explain(&mut engine, job);
        let counts = told.nodes.expect("counted");
        let all = u64::from(nodes);
        assert_eq!((counts.refusal.nodes, counts.refusal.examined), (all, all));
        assert_eq!(counts.refusal.checks[&Check::Cpu].nodes, all);
        assert_eq!(
            counts.room.free,
            [(wharf_core::resource::ResourceKind::Cpu, i64::from(nodes) * 2 * CORE)]
        );
    }
}

/// Of a group, all that it holds is told together. A group that waits holds nothing.
#[test]
fn a_cap_names_the_groups_that_use_most_of_it() {
    let mut engine = jobs_engine(2, plain());
    with_nodes(&mut engine, 4, 16, 0);
    set_queue(&mut engine, capped("small", 10));
    let first = submit_job(&mut engine, bag("first", 3), "small");
    wait(&mut engine);
    let group = created(&mut engine, in_queue("small", 2, 3));
    ask_to_wait(&mut engine, in_queue("small", 1, 2), 1_000_000_000_000);
    let second = submit_job(&mut engine, gang("second", 2, cores(1)), "small");
    wait(&mut engine);
    let told = explain(&mut engine, second);
    let [bound] = &told.bounds[..] else { panic!("one bound: {:?}", told.bounds) };
    let holders: Vec<_> =
        bound.holders.iter().map(|of| (&*of.name, of.job, of.is_group, of.amount)).collect();
    let name = group.id.to_string();
    assert_eq!(holders, [(&*name, None, true, 6 * CORE), ("first", Some(first), false, 3 * CORE)]);
}

/// A cap on allocations is told with its queue. What the job has itself is neither what it lacks nor what could help.
#[test]
fn a_cap_on_allocations_is_told_without_the_tasks_of_the_job_itself() {
    let mut engine = jobs_engine(2, plain());
    with_nodes(&mut engine, 4, 16, 0);
    for (name, most) in [("few", 3), ("alone", 2)] {
        set_queue(&mut engine, QueueSpec { allocations_max: Some(most), ..QueueSpec::new(name) });
    }
    let first = submit_job(&mut engine, bag("first", 2), "few");
    wait(&mut engine);
    let second = submit_job(&mut engine, bag("second", 3), "few");
    let alone = submit_job(&mut engine, bag("alone", 5), "alone");
    wait(&mut engine);
    let told = explain(&mut engine, second);
    assert_eq!(told.reason, PendingReason::Cap);
    let [bound] = &told.bounds[..] else { panic!("one bound: {:?}", told.bounds) };
    assert_eq!((bound.queue.as_deref(), bound.of), (Some("few"), Capped::Allocations));
    assert_eq!((bound.bound, bound.used, bound.asked), (3, 3, 1));
    let holders: Vec<_> = bound.holders.iter().map(|of| (of.job, of.amount)).collect();
    assert_eq!(holders, [(Some(first), 2)]);
    let remedies: Vec<_> = told.changes.iter().map(|change| &change.remedy).collect();
    assert!(matches!(
        remedies[..],
        [Remedy::RaiseAllocations { by: 1, .. }, Remedy::EndAllocations { count: 1, .. }]
    ));
    let told = explain(&mut engine, alone);
    let holders: Vec<_> = told.bounds.iter().map(|bound| (bound.used, bound.holders.len())).collect();
    assert_eq!((told.reason, holders), (PendingReason::Cap, vec![(2, 0)]));
    let remedies: Vec<_> = told.changes.iter().map(|change| &change.remedy).collect();
    assert!(matches!(remedies[..], [Remedy::RaiseAllocations { by: 1, .. }]), "{remedies:?}");
    set_queue(&mut engine, QueueSpec { allocations_max: Some(3), ..QueueSpec::new("alone") });
    wait(&mut engine);
    assert_eq!(states(&mut engine, alone).iter().filter(|&&state| state == TaskState::Bound).count(), 3);
    check_jobs(&mut engine);
}
