//! Plans of nodes: each step by itself, and random demand against what a fresh shard accepts.

mod random;
mod random_waiting;
mod topology;
mod waiting;

use std::sync::Arc;

use super::pack::{Added, Packer};
use super::plan::Planning;
use super::*;
use crate::cycle::{CycleConfig, LocalCluster};
use crate::fairness::{Caps, Dim};
use crate::group::WaitingWork;
use crate::ids::NodeId;
use crate::jobs::{Capped, JobId, JobPhase, JobSpec, QueueId, QueueSpec, TaskGroup, TaskId, TaskState};
use crate::limits::PLAN_EVENTS_MAX;
use crate::node::{Labels, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term};
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand, GpuRequest};
use crate::time::Time;

const SECOND: u64 = 1_000_000_000;

/// What a plan has placed, and the nodes that it has added.
#[derive(Default)]
pub(super) struct Seen {
    added: Vec<Added>,
    contents: Vec<(NodeId, Vec<Arc<PlacementRequest>>)>,
    /// For each request the node where it is and who asks for it.
    owners: Vec<(NodeId, Asker)>,
}

impl Seen {
    pub(super) fn look(&mut self, packer: &Packer<'_>) {
        self.added.clone_from(&packer.added);
        let node = |slot| packer.copy.shard().node_at(slot).expect("something is placed there");
        self.contents = packer.contents().map(|(slot, requests)| (node(slot), requests)).collect();
        self.owners = packer.owners().map(|(slot, asker)| (node(slot), asker)).collect();
    }
}

fn spec(name: &str, cpu: u32, gpus: u8, labels: &[(&str, &str)]) -> NodeSpec {
    let pairs = labels.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    NodeSpec {
        name: name.into(),
        identity: None,
        cpu: Amount::whole(cpu),
        memory: Amount::ZERO,
        gpus,
        custom: None,
        labels: Labels::new(pairs).unwrap(),
        taints: Taints::default(),
    }
}

fn kind(name: &str, cpu: u32, gpus: u8, max: u32) -> NodeType {
    let spec = spec(name, cpu, gpus, &[]);
    NodeType { name: name.into(), spec, min: 0, max, launching: 0, launch_ns: 0, idle_ns: None }
}

fn asks(cpu: u32, gpus: u8) -> PlacementRequest {
    let gpu = if gpus > 0 { GpuRequest::Whole(gpus) } else { GpuRequest::None };
    PlacementRequest::new(Demand { cpu: Amount::whole(cpu), gpu, ..Demand::default() }, Policy::LeastFit)
}

fn labelled(request: PlacementRequest, key: &str, value: &str) -> PlacementRequest {
    let term = Term { key: key.into(), operator: Operator::In, values: vec![value.into()] };
    PlacementRequest { selector: Some(Arc::new(Selector::new(vec![term]))), ..request }
}

/// A cluster with one queue.
struct Bed {
    cluster: LocalCluster,
    queue: QueueId,
    jobs: u32,
}

impl Bed {
    fn new() -> Self {
        Self::capped(Caps::none())
    }

    fn capped(capability: Caps) -> Self {
        Self::with(CycleConfig::default(), capability)
    }

    fn with(config: CycleConfig, capability: Caps) -> Self {
        let mut cluster = LocalCluster::new(config, 1).unwrap();
        let queue = QueueSpec { capability, ..QueueSpec::new("q") };
        let queue = cluster.scheduler_mut().jobs_mut().add_queue(queue).unwrap();
        Self { cluster, queue, jobs: 0 }
    }

    /// Adds a node of a type.
    fn node(&mut self, of_type: &str, cpu: u32, gpus: u8) -> NodeId {
        self.cluster.add_node(spec("n", cpu, gpus, &[("node-type", of_type)])).unwrap()
    }

    /// Submits a job of equal tasks that needs `least` of them at once.
    fn job(&mut self, request: PlacementRequest, count: u32, least: u32) -> JobId {
        self.timed(request, count, least, None)
    }

    fn timed(
        &mut self,
        request: PlacementRequest,
        count: u32,
        least: u32,
        run_time_ns: Option<u64>,
    ) -> JobId {
        self.jobs += 1;
        let of = TaskGroup { run_time_ns, ..TaskGroup::new(request, count) };
        let spec = JobSpec {
            queue: self.queue,
            min_member: least,
            created: self.cluster.now(),
            phase: JobPhase::Inqueue,
            ..JobSpec::new(&format!("j{}", self.jobs), vec![of])
        };
        self.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
    }

    /// Has the first task of a new job run on a node.
    fn run(&mut self, request: PlacementRequest, node: NodeId) -> TaskId {
        let job = self.job(request, 1, 1);
        let task = TaskId { job, index: 0 };
        self.cluster.run_on(task, node, TaskState::Running).unwrap();
        task
    }

    fn plan(&self, request: &NodesRequest) -> NodesPlan {
        self.plan_with(request, &WaitingWork::default())
    }

    fn plan_with(&self, request: &NodesRequest, waiting: &WaitingWork) -> NodesPlan {
        plan_nodes(request, waiting, self.cluster.copy(), &IdleClock::default()).unwrap()
    }

    /// Returns the needed nodes of each type.
    fn needed(&self, request: &NodesRequest) -> Vec<u32> {
        self.plan(request).types.iter().map(|of| of.needed).collect()
    }
}

#[test]
fn present_nodes_and_those_that_are_being_launched_are_used_first() {
    let mut bed = Bed::new();
    let node = bed.node("small", 4, 0);
    bed.run(asks(3, 0), node);
    bed.job(asks(1, 0), 10, 1);
    let mut request = NodesRequest::new(vec![kind("small", 4, 0, 9)]);
    let plan = bed.plan(&request);
    assert_eq!((plan.types[0].present, plan.types[0].needed), (1, 3), "one task fits, nine need three nodes");
    assert_eq!((plan.fit_present, plan.fit_needed, plan.is_partial), (1, 9, false));
    request.types[0].launching = 2;
    let plan = bed.plan(&request);
    assert_eq!((plan.types[0].launching, plan.types[0].needed), (2, 1));
    assert_eq!((plan.fit_present, plan.fit_needed), (9, 1));
    request.types[0].max = 3;
    let plan = bed.plan(&request);
    assert_eq!(plan.types[0].needed, 0);
    let [left] = &plan.unplaced[..] else { panic!("{plan:?}") };
    assert_eq!((left.count, &left.reason), (1, &Unfit::TypeLimit));
}

#[test]
fn a_gang_is_launched_for_as_a_whole_or_not_at_all() {
    let mut bed = Bed::new();
    let large = bed.job(asks(2, 0), 4, 4);
    let small = bed.job(asks(2, 0), 2, 2);
    let mut request = NodesRequest::new(vec![kind("a", 2, 0, 3)]);
    let plan = bed.plan(&request);
    assert_eq!(plan.types[0].needed, 2, "for the small one alone");
    let [left] = &plan.unplaced[..] else { panic!("{plan:?}") };
    assert_eq!((left.asker, left.count, &left.reason), (Asker::Job(large), 4, &Unfit::TypeLimit));
    assert_eq!(plan.starts, [Start { after_ns: 0, job: small, tasks: 2 }]);
    assert_eq!(plan.waiting, [large]);
    request.types[0].max = 9;
    request.nodes_max = Some(5);
    let plan = bed.plan(&request);
    assert_eq!(plan.types[0].needed, 4, "the larger one comes first");
    assert_eq!(plan.unplaced[0].reason, Unfit::AllLimit);
    request.nodes_max = None;
    assert_eq!(bed.needed(&request), [6]);
}

#[test]
fn what_a_cap_forbids_asks_for_no_node() {
    let mut bed = Bed::capped([(Dim::CPU, 40_000)].into_iter().collect());
    let node = bed.node("a", 1, 0);
    bed.run(asks(1, 0), node);
    let singles = bed.job(asks(1, 0), 9, 1);
    let gang = bed.job(asks(2, 0), 2, 2);
    let plan = bed.plan(&NodesRequest::new(vec![kind("a", 2, 0, 9)]));
    assert_eq!(plan.types[0].needed, 2, "three cores are left for single tasks");
    let cap = Unfit::Cap { queue: "q".into(), of: Capped::Resource(Dim::CPU) };
    let left: Vec<_> = plan.unplaced.iter().map(|left| (left.asker, left.count)).collect();
    assert_eq!(left, [(Asker::Job(gang), 2), (Asker::Job(singles), 6)]);
    assert!(plan.unplaced.iter().all(|left| left.reason == cap));
}

#[test]
fn what_no_type_could_hold_is_named_with_the_check_that_it_fails() {
    let mut bed = Bed::new();
    let large = bed.node("other", 64, 0);
    bed.run(asks(60, 0), large);
    let [cpu, zone, busy] = [asks(99, 0), labelled(asks(1, 0), "zone", "b"), asks(50, 0)];
    let [cpu, zone, busy] = [cpu, zone, busy].map(|request| bed.job(request, 1, 1));
    let mut tainted = kind("a", 4, 0, 9);
    tainted.spec.labels = Labels::new(vec![("zone".into(), "b".into())]).unwrap();
    let taint = Taint { key: "k".into(), value: "v".into(), effect: TaintEffect::NoSchedule };
    tainted.spec.taints = Taints::new(vec![taint]).unwrap();
    let plan = bed.plan(&NodesRequest::new(vec![tainted, kind("b", 8, 0, 9)]));
    assert_eq!(plan.types.iter().map(|of| of.needed).sum::<u32>(), 0);
    let reason =
        |job| &plan.unplaced.iter().find(|left| left.asker == Asker::Job(job)).expect("it waits").reason;
    use crate::request::Check;
    let checks = |job| match reason(job) {
        Unfit::Never(refusal) => refusal.checks.keys().copied().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(checks(cpu), [Check::Taint, Check::Cpu]);
    assert_eq!(checks(zone), [Check::Selector, Check::Taint]);
    assert_eq!(reason(busy), &Unfit::OnlyPresent);
}

#[test]
fn floors_count_what_nodes_have_whatever_runs_there() {
    let mut bed = Bed::new();
    let node = bed.node("a", 4, 0);
    bed.run(asks(4, 0), node);
    let floor = |cpu, count| Bundles { request: asks(cpu, 0), count };
    let mut request = NodesRequest::new(vec![kind("a", 4, 0, 3)]);
    request.floors = vec![floor(4, 1)];
    assert_eq!(bed.needed(&request), [0]);
    request.floors = vec![floor(1, 5)];
    assert_eq!(bed.needed(&request), [1]);
    // What the floor needs holds what waits, too.
    bed.job(asks(4, 0), 1, 1);
    assert_eq!(bed.needed(&request), [1]);
    request.floors = vec![floor(4, 2), floor(2, 3)];
    let plan = bed.plan(&request);
    assert_eq!(plan.types[0].needed, 1, "floors are all or nothing; the task needs a node");
    assert_eq!((plan.unplaced[0].asker, &plan.unplaced[0].reason), (Asker::Floor(1), &Unfit::TypeLimit));
}

#[test]
fn launches_are_limited_by_speed_and_by_those_under_way() {
    let mut bed = Bed::new();
    for _ in 0..4 {
        bed.node("a", 1, 0);
    }
    bed.job(asks(1, 0), 40, 1);
    let mut request = NodesRequest::new(vec![kind("a", 1, 0, 99), kind("b", 2, 1, 99)]);
    let launches = |request: &NodesRequest| {
        let plan = bed.plan(request);
        plan.types.iter().map(|of| (of.needed, of.launch)).collect::<Vec<_>>()
    };
    assert_eq!(launches(&request), [(36, 4), (0, 0)]);
    request.upscaling_speed = 15_000;
    assert_eq!(launches(&request), [(36, 6), (0, 0)]);
    request.upscaling_speed = 0;
    assert_eq!(launches(&request), [(36, 1), (0, 0)]);
    request.upscaling_speed = 100_000;
    assert_eq!(launches(&request), [(36, 10), (0, 0)]);
    request.types[1].launching = 8;
    assert_eq!(launches(&request), [(20, 2), (0, 0)]);
}

#[test]
fn bundles_go_apart_together_or_to_one_domain() {
    let mut bed = Bed::new();
    let zoned = |name: &str, zone: &str, max| {
        let labels = Labels::new(vec![("zone".into(), zone.into())]).unwrap();
        let of = kind(name, 4, 0, max);
        NodeType { spec: NodeSpec { labels, ..of.spec }, ..of }
    };
    let mut request = NodesRequest::new(vec![zoned("a", "x", 2), zoned("b", "y", 3)]);
    let group = |count, spread, domain: Option<&str>| PendingGroup {
        name: "g".into(),
        bundles: vec![Bundles { request: asks(1, 0), count }],
        spread,
        domain: domain.map(Into::into),
        priority: 0,
    };
    let mut needed = |bed: &Bed, of: PendingGroup| {
        request.groups = vec![of];
        let plan = bed.plan(&request);
        let reason = plan.unplaced.first().map(|left| left.reason.clone());
        (plan.types.iter().map(|of| of.needed).collect::<Vec<_>>(), reason)
    };
    assert_eq!(needed(&bed, group(3, Spread::Any, None)), (vec![1, 0], None));
    assert_eq!(needed(&bed, group(3, Spread::Apart, None)), (vec![2, 1], None));
    assert_eq!(needed(&bed, group(3, Spread::Apart, Some("zone"))), (vec![0, 3], None));
    assert_eq!(needed(&bed, group(6, Spread::Apart, None)), (vec![0, 0], Some(Unfit::TypeLimit)));
    assert_eq!(needed(&bed, group(4, Spread::Together, None)), (vec![1, 0], None));
    assert_eq!(needed(&bed, group(5, Spread::Together, None)), (vec![0, 0], Some(Unfit::Gang)));
    assert_eq!(needed(&bed, group(9, Spread::Any, Some("zone"))), (vec![0, 3], None));
    assert!(needed(&bed, group(1, Spread::Any, Some("rack"))).1.is_some(), "no node has the label");
    let node = bed.node("a", 4, 0);
    bed.run(asks(3, 0), node);
    assert_eq!(needed(&bed, group(2, Spread::Together, None)), (vec![1, 0], None), "one core is left there");
    assert_eq!(needed(&bed, group(2, Spread::Apart, None)), (vec![1, 0], None), "one bundle fits there");
}

#[test]
fn nodes_are_idle_while_nothing_changes_and_named_the_longest_first() {
    let mut bed = Bed::new();
    let nodes = [0; 4].map(|_| bed.node("a", 4, 0));
    bed.node("other", 4, 0);
    let mut clock = IdleClock::default();
    let look = |bed: &mut Bed, clock: &mut IdleClock| {
        let view = bed.cluster.view();
        clock.look([&*view].into_iter(), bed.cluster.now());
    };
    look(&mut bed, &mut clock);
    bed.cluster.advance(10 * SECOND);
    // It was busy between two looks.
    let task = bed.run(asks(1, 0), nodes[0]);
    bed.cluster.finish_task(task);
    bed.run(asks(1, 0), nodes[1]);
    look(&mut bed, &mut clock);
    bed.cluster.advance(10 * SECOND);
    let mut request = NodesRequest::new(vec![kind("a", 4, 0, 9)]);
    let removals = |bed: &Bed, request: &NodesRequest| {
        let plan = plan_nodes(request, &WaitingWork::default(), bed.cluster.copy(), &clock).unwrap();
        plan.removals.iter().map(|one| (one.node, one.idle_ns / SECOND)).collect::<Vec<_>>()
    };
    assert_eq!(removals(&bed, &request), [], "nothing is idle for ever");
    request.idle_ns = Some(10 * SECOND);
    assert_eq!(removals(&bed, &request), [(nodes[2], 20), (nodes[3], 20), (nodes[0], 10)]);
    request.types[0].idle_ns = Some(20 * SECOND);
    assert_eq!(removals(&bed, &request), [(nodes[2], 20), (nodes[3], 20)]);
    request.types[0].min = 3;
    assert_eq!(removals(&bed, &request), [(nodes[2], 20)], "three of four stay");
    request.types[0].min = 0;
    request.floors = vec![Bundles { request: asks(4, 0), count: 5 }];
    assert_eq!(removals(&bed, &request), [], "the floor needs all five");
    request.floors.clear();
    bed.job(asks(4, 0), 3, 1);
    assert_eq!(removals(&bed, &request).len(), 0, "three tasks need three nodes, and one of another type");
}

#[test]
fn beyond_a_limit_launches_are_cancelled_and_then_the_nodes_go_that_are_used_least() {
    let mut bed = Bed::new();
    let nodes = [3, 1, 2].map(|cpu| {
        let node = bed.node("a", 4, 0);
        bed.run(asks(cpu, 0), node);
        node
    });
    let mut request = NodesRequest::new(vec![NodeType { launching: 2, ..kind("a", 4, 0, 4) }]);
    let plan = bed.plan(&request);
    assert_eq!((plan.types[0].launching, plan.types[0].cancel, plan.removals.len()), (1, 1, 0));
    request.types[0].max = 1;
    let plan = bed.plan(&request);
    assert_eq!((plan.types[0].launching, plan.types[0].cancel), (0, 2));
    let causes: Vec<_> = plan.removals.iter().map(|one| (one.node, one.cause)).collect();
    assert_eq!(causes, [(nodes[1], RemovalCause::TypeLimit), (nodes[2], RemovalCause::TypeLimit)]);
    request.types[0].max = 9;
    request.types[0].min = 2;
    request.nodes_max = Some(2);
    let plan = bed.plan(&request);
    assert_eq!(plan.types[0].cancel, 2);
    assert_eq!(
        plan.removals.iter().map(|one| (one.node, one.cause)).collect::<Vec<_>>(),
        [(nodes[1], RemovalCause::AllLimit)]
    );
    bed.job(asks(2, 0), 1, 1);
    let plan = bed.plan(&request);
    assert_eq!(plan.fit_present, 1, "not on the node that goes");
}

/// A plan looks at a bounded number of times. Ends that are only expected must not use up all of them.
#[test]
fn many_short_tasks_do_not_hide_what_comes_later() {
    let mut bed = Bed::new();
    bed.node("a", 1, 0);
    let run = bed.timed(asks(1, 0), 1, 1, None);
    bed.cluster.cycle();
    bed.cluster.advance(SECOND / 100);
    bed.cluster.finish_task(TaskId { job: run, index: 0 });
    let late = bed.timed(asks(2, 0), 1, 1, None);
    let count = PLAN_EVENTS_MAX as u32 + 200;
    bed.timed(asks(1, 0), count, 1, None);
    let mut request = NodesRequest::new(vec![NodeType { launch_ns: 120 * SECOND, ..kind("b", 2, 0, 1) }]);
    request.horizon_ns = 600 * SECOND;
    let plan = bed.plan(&request);
    let start = Start { after_ns: 120 * SECOND, job: late, tasks: 1 };
    assert!(plan.starts.contains(&start), "{:?}", plan.starts.last());
    assert!(plan.measured_ends > PLAN_EVENTS_MAX as u64 / 2, "{}", plan.measured_ends);
    // Without a horizon, nothing ends.
    request.horizon_ns = 0;
    assert_eq!(bed.plan(&request).measured_ends, 0);
}

/// The copy that a plan works on has what shards show, and the jobs that the keeper has: these may not know yet.
#[test]
fn a_job_may_end_of_which_somebody_else_has_evicted_a_task() {
    let config = CycleConfig { grace_ns: 30 * SECOND, ..CycleConfig::default() };
    let mut bed = Bed::with(config, Caps::none());
    let node = bed.node("a", 2, 0);
    let group = |run_time_ns| TaskGroup { run_time_ns, ..TaskGroup::new(asks(1, 0), 1) };
    let spec = JobSpec {
        queue: bed.queue,
        min_success: Some(1),
        phase: JobPhase::Inqueue,
        ..JobSpec::new("two", vec![group(Some(10 * SECOND)), group(None)])
    };
    let job = bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
    bed.cluster.cycle();
    let evicted = TaskId { job, index: 1 };
    bed.cluster.evict(evicted, 60 * SECOND);
    bed.cluster.scheduler_mut().jobs_mut().set(evicted, TaskState::Running, Some(node), Time(0));
    let next = bed.timed(asks(2, 0), 1, 1, None);
    let mut request = NodesRequest::new(vec![kind("a", 2, 0, 1)]);
    request.horizon_ns = 100 * SECOND;
    assert_eq!(bed.plan(&request).starts, [Start { after_ns: 60 * SECOND, job: next, tasks: 1 }]);
}

#[test]
fn tasks_that_state_no_run_time_end_as_those_before_them_did() {
    let mut bed = Bed::new();
    bed.node("a", 2, 0);
    let run = |bed: &mut Bed, seconds| {
        let job = bed.timed(asks(2, 0), 1, 1, None);
        bed.cluster.cycle();
        bed.cluster.advance(seconds * SECOND);
        bed.cluster.finish_task(TaskId { job, index: 0 });
    };
    run(&mut bed, 40);
    run(&mut bed, 60);
    let runs = bed.timed(asks(2, 0), 1, 1, None);
    bed.cluster.cycle();
    bed.cluster.advance(10 * SECOND);
    let [second, third] = [0; 2].map(|_| bed.timed(asks(2, 0), 1, 1, None));
    let mut request = NodesRequest::new(vec![kind("a", 2, 0, 1)]);
    request.horizon_ns = 100 * SECOND;
    let start = |seconds, job| Start { after_ns: seconds * SECOND, job, tasks: 1 };
    let plan = bed.plan(&request);
    // Each runs for 50 s, also those that start in the plan: what ends there is not measured.
    assert_eq!((&*plan.starts, plan.measured_ends), (&[start(40, second), start(90, third)][..], 2));
    assert_eq!(bed.plan(&request), plan, "a plan measures nothing");
    // It runs for longer than expected, and so it is expected to run twice as long.
    bed.cluster.advance(50 * SECOND);
    assert_eq!(bed.plan(&request).starts, [start(40, second), start(90, third)]);
    // The two that were measured last count.
    bed.cluster.finish_task(TaskId { job: runs, index: 0 });
    let plan = bed.plan(&request);
    assert_eq!((&*plan.starts, plan.measured_ends), (&[start(0, second), start(60, third)][..], 1));
}

#[test]
fn starts_are_those_of_the_cycle_that_serves_at_the_times_that_jobs_state() {
    let mut bed = Bed::new();
    bed.node("a", 2, 0);
    let minute = Some(60 * SECOND);
    let first = bed.timed(asks(2, 0), 1, 1, minute);
    let second = bed.timed(asks(2, 0), 2, 2, minute);
    let third = bed.timed(asks(2, 0), 1, 1, None);
    let before = bed.cluster.scheduler().jobs().record();
    let mut request = NodesRequest::new(vec![NodeType { launch_ns: 20 * SECOND, ..kind("a", 2, 0, 2) }]);
    request.horizon_ns = 600 * SECOND;
    let plan = bed.plan(&request);
    let start = |seconds, job, tasks| Start { after_ns: seconds * SECOND, job, tasks };
    assert_eq!(plan.types[0].needed, 1);
    assert_eq!(plan.starts, [start(0, first, 1), start(20, third, 1)], "the gang needs both nodes at once");
    assert_eq!(plan.waiting, [second]);
    let jobs = bed.cluster.scheduler_mut().jobs_mut();
    jobs.set(TaskId { job: third, index: 0 }, TaskState::Failed, None, Time(0));
    let plan = bed.plan(&request);
    assert_eq!(plan.starts, [start(0, first, 1), start(60, second, 2)]);
    request.horizon_ns = 59 * SECOND;
    assert_eq!(bed.plan(&request).starts, [start(0, first, 1)]);
    assert_eq!(before.queues, bed.cluster.scheduler().jobs().record().queues, "a plan touches no books");
    bed.cluster.scheduler().jobs().check().unwrap();
}

#[test]
fn ten_thousand_equal_tasks_are_decided_together() {
    let mut bed = Bed::new();
    for _ in 0..100 {
        bed.job(asks(1, 0), 100, 1);
    }
    let request = NodesRequest::new(vec![kind("a", 16, 0, 9_999), kind("gpu", 16, 4, 9_999)]);
    let nothing = WaitingWork::default();
    let mut planning = Planning::new((&request, &nothing), &bed.cluster);
    let mut copy = bed.cluster.copy();
    planning.pack(&mut copy, &IdleClock::default());
    let needed: Vec<u32> = planning.plan.types.iter().map(|of| of.needed).collect();
    assert_eq!(needed, [625, 0]);
    assert!(planning.meter.looks < 20_000, "{} looks", planning.meter.looks);
}

#[test]
fn broken_requests_are_refused() {
    let of = |name: &str, min, max| NodeType { min, ..kind(name, 1, 0, max) };
    let check = |request: NodesRequest| request.check().unwrap_err();
    assert_eq!(check(NodesRequest::new(vec![])), NodesRequestError::NoTypes);
    let many = (0..65).map(|number| of(&format!("t{number}"), 0, 1)).collect();
    assert_eq!(check(NodesRequest::new(many)), NodesRequestError::TooManyTypes(65));
    let twice = NodesRequest::new(vec![of("a", 0, 1), of("a", 0, 1)]);
    assert_eq!(check(twice), NodesRequestError::TypeTwice("a".into()));
    let below = NodesRequest::new(vec![of("a", 2, 1)]);
    assert_eq!(check(below), NodesRequestError::MinAboveMax { name: "a".into(), min: 2, max: 1 });
    let mut all = NodesRequest::new(vec![of("a", 2, 2), of("b", 2, 2)]);
    all.nodes_max = Some(3);
    assert_eq!(check(all), NodesRequestError::MinsAboveAll { mins: 4, max: 3 });
    let fixed = NodesRequest::new(vec![of("a", 10_001, 10_001)]);
    assert_eq!(check(fixed), NodesRequestError::TooManyNodes(10_001));
    let mut other = of("a", 0, 1);
    other.spec = spec("a", 1, 0, &[("node-type", "b")]);
    let wrong = check(NodesRequest::new(vec![other]));
    assert_eq!(wrong, NodesRequestError::TypeLabel { name: "a".into(), label: "node-type".into() });
    let mut floors = NodesRequest::new(vec![of("a", 0, 1)]);
    floors.floors = vec![Bundles { request: asks(1, 0), count: 1_000_001 }];
    assert_eq!(check(floors.clone()), NodesRequestError::TooManyBundles(1_000_001));
    floors.floors = vec![Bundles { request: asks(1, 0), count: 1 }; 257];
    assert_eq!(check(floors.clone()), NodesRequestError::TooManyFloors(257));
    let group =
        |bundles| PendingGroup { name: "g".into(), bundles, spread: Spread::Any, domain: None, priority: 0 };
    floors.floors.clear();
    floors.groups = vec![group(vec![])];
    assert_eq!(check(floors), NodesRequestError::NoBundles("g".into()));
}

/// A copy made of views is the cluster itself, and cycles on both do the same.
#[test]
fn a_copy_made_of_views_leads_to_the_same() {
    let mut bed = Bed::new();
    let nodes = [4, 8].map(|cpu| bed.node("a", cpu, 2));
    bed.run(asks(3, 1), nodes[0]);
    let victim = bed.run(asks(8, 1), nodes[1]);
    bed.cluster.evict(victim, 30 * SECOND);
    bed.job(asks(1, 1), 3, 2);
    bed.job(asks(4, 0), 1, 1);
    let shard = |cluster: &LocalCluster| cluster.shard().export().partitions;
    let mut copy = bed.cluster.copy();
    assert_eq!(shard(&copy), shard(&bed.cluster));
    let views = [bed.cluster.view()];
    let record = bed.cluster.scheduler().jobs().record();
    let settings = bed.cluster.scheduler().config().clone();
    let config = bed.cluster.settings().clone();
    let mut of_views = cluster_of_views(&views, record, settings, config, bed.cluster.now()).unwrap();
    assert_eq!(shard(&of_views), shard(&bed.cluster));
    let steps = |cluster: &mut LocalCluster| {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(cluster.cycle().1);
            all.push(cluster.advance(20 * SECOND));
        }
        cluster.shard().check_invariants().unwrap();
        all
    };
    let expected = steps(&mut bed.cluster);
    assert!(expected.iter().map(|changes| changes.bound.len()).sum::<usize>() >= 3, "{expected:?}");
    assert_eq!(steps(&mut copy), expected);
    assert_eq!(steps(&mut of_views), expected);
}
