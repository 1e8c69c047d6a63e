//! Plans of nodes for groups that wait at planners: whole engines run by hand.

use std::sync::Arc;

use wharf_core::cycle::CycleConfig;
use wharf_core::demand::{Asker, NodeType, NodesPlan, NodesRequest, Unfit};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::fairness::Dim;
use wharf_core::group::{GroupSpec, PlanJob, PlanReply, Strategy};
use wharf_core::ids::TenantId;
use wharf_core::jobs::{JobsReply, JobsRequest};
use wharf_core::limits::{GROUP_BUNDLES_MAX, WAITING_BUNDLES_PLANNED_MAX, WAITING_SHAPES_PER_PAGE};
use wharf_core::node::{Labels, NodeSpec};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{PortReply, PortRequest, Tag, WaitRequest};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use crate::by_hand::{add_node, ask, check_all, cores, node_spec, settle};
use crate::group_bed::{group_of, plan};
use crate::jobs_bed::{
    INTERVAL_NS, cpu, gang, jobs_config, jobs_of, open_with, report, set_queue, submit_job, wait, wait_ns,
};
use crate::jobs_groups::in_queue;
use wharf_core::jobs::{Capped, JobId, QueueSpec, TaskId, TaskState};

const PLAN: Tag = 99;

fn engine(shards: u16, planners: u16) -> Engine {
    let config = EngineConfig { planners, ..jobs_config(shards, CycleConfig::default()) };
    let mut engine = open_with(StoreState::create(8), &config);
    set_queue(&mut engine, QueueSpec::new("all"));
    engine
}

fn of_type(name: &str, cpu: u32, max: u32) -> NodeType {
    let spec = node_spec(name, cpu, 0);
    NodeType { name: name.into(), spec, min: 0, max, launching: 0, launch_ns: 0, idle_ns: None }
}

/// Adds a node of a type.
fn launch(engine: &mut Engine, name: &str, of_type: &str, cpu: u32) -> Vec<(Tag, PortReply)> {
    let labels = Labels::new(vec![("node-type".into(), of_type.into())]).expect("one key");
    let spec = NodeSpec { labels, ..node_spec(name, cpu, 0) };
    let registration = engine.registrar.register(spec).expect("a new name");
    engine.catalog.store(Arc::new(engine.registrar.catalog()));
    let command = engine.registrar.join_command(registration.clone());
    engine.ports[0]
        .submit(1, PortRequest::Partition(registration.partition, command), engine.now)
        .expect("room");
    settle(engine)
}

fn waiting(spec: GroupSpec) -> GroupSpec {
    GroupSpec { wait_until: Some(Time(u64::MAX)), ..spec }
}

/// Asks for a group that has no room yet.
fn ask_for(engine: &mut Engine, tag: Tag, spec: GroupSpec) {
    let job = PortRequest::Plan(PlanJob::CreateGroup(Arc::new(waiting(spec))));
    engine.ports[0].submit(tag, job, engine.now).expect("room");
    let replies = settle(engine);
    assert!(replies.is_empty(), "it waits: {replies:?}");
}

fn plan_for(engine: &mut Engine, request: &NodesRequest, tenant: Option<TenantId>) -> NodesPlan {
    let asked = JobsRequest::PlanNodes { tenant, request: Box::new(request.clone()), idle: Vec::new() };
    let job = PortRequest::Plan(PlanJob::Jobs(Box::new(asked)));
    engine.ports[0].submit(PLAN, job, engine.now).expect("room");
    assert!(settle(engine).is_empty(), "a thread of its own makes the plan");
    let planner = engine.nodes_planner.as_mut().expect("jobs are kept");
    assert!(planner.run_round(), "the plan is handed over when all planners have answered");
    let mut replies = settle(engine);
    assert_eq!(replies.len(), 1, "{replies:?}");
    let (tag, PortReply::Plan(reply)) = replies.remove(0) else { panic!("a planner answers") };
    match (tag, *reply) {
        (PLAN, PlanReply::Jobs(Ok(JobsReply::Nodes(view)))) => view.plan,
        other => panic!("a plan: {other:?}"),
    }
}

fn needed(plan: &NodesPlan) -> Vec<u32> {
    plan.types.iter().map(|of| of.needed).collect()
}

/// The tags of groups that were placed.
fn placed(replies: &[(Tag, PortReply)]) -> Vec<Tag> {
    let is_placed = |reply: &PortReply| matches!(reply, PortReply::Plan(reply) if matches!(**reply, PlanReply::Group(Ok(_))));
    replies.iter().filter(|(_, reply)| is_placed(reply)).map(|&(tag, _)| tag).collect()
}

fn fill(engine: &mut Engine, cpu: u32) {
    let reply = ask(engine, PortRequest::Place(cores(cpu)));
    assert!(matches!(reply, PortReply::Place(Ok(_))), "{reply:?}");
}

/// Two nodes that are full, so that groups for them wait.
fn full(shards: u16, planners: u16) -> Engine {
    let mut engine = engine(shards, planners);
    for number in 0..3 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 8, 0));
        fill(&mut engine, 8);
    }
    engine
}

#[test]
fn a_group_that_waits_gets_nodes_and_is_placed_when_they_come() {
    for (shards, planners) in [(1, 1), (3, 4)] {
        let mut engine = full(shards, planners);
        ask_for(&mut engine, 11, group_of(cores(2), 3, Strategy::StrictSpread));
        ask_for(&mut engine, 12, group_of(cores(4), 2, Strategy::StrictPack));
        let request = NodesRequest::new(vec![of_type("small", 4, 9), of_type("large", 8, 9)]);
        let made = plan_for(&mut engine, &request, None);
        // One node for each bundle that goes apart, and a large one for both that go together.
        assert_eq!((needed(&made), made.fit_needed), (vec![3, 1], 5), "{made:?}");
        assert!(made.unplaced.is_empty() && made.left_out == 0 && !made.is_partial);
        // Who names all groups by itself asks for those only.
        let only = NodesRequest { counts_waiting: false, ..request.clone() };
        assert_eq!(needed(&plan_for(&mut engine, &only, None)), [0, 0]);
        let mut done = Vec::new();
        for (at, (name, cpu)) in [("small", 4), ("large", 8)].into_iter().enumerate() {
            for number in 0..made.types[at].needed {
                done.extend(placed(&launch(&mut engine, &format!("{name}{number}"), name, cpu)));
            }
        }
        done.sort_unstable();
        assert_eq!(done, [11, 12], "{shards} shards and {planners} planners");
        let made = plan_for(&mut engine, &request, None);
        assert_eq!((needed(&made), made.fit_present, made.fit_needed), (vec![0, 0], 0, 0), "{made:?}");
        check_all(&engine);
    }
}

/// The keeper of jobs has them, and adds them to those of all planners.
#[test]
fn groups_in_queues_that_wait_get_nodes_within_their_caps() {
    for planners in [1, 3] {
        let mut engine = full(2, planners);
        set_queue(&mut engine, QueueSpec { capability: cpu(10), ..QueueSpec::new("small") });
        ask_for(&mut engine, 11, in_queue("small", 4, 2));
        ask_for(&mut engine, 12, in_queue("all", 8, 1));
        // The cap does not allow it with the first one.
        ask_for(&mut engine, 13, in_queue("small", 3, 1));
        let request = NodesRequest::new(vec![of_type("small", 4, 9), of_type("large", 8, 9)]);
        let made = plan_for(&mut engine, &request, None);
        assert_eq!((needed(&made), made.fit_needed, made.left_out), (vec![0, 2], 3, 0), "{made:?}");
        let [left] = &made.unplaced[..] else { panic!("one is left: {made:?}") };
        let cap = Unfit::Cap { queue: "small".into(), of: Capped::Resource(Dim::CPU) };
        assert!(matches!(left.asker, Asker::Waiting(group) if group.is_in_queue()), "{left:?}");
        assert_eq!((left.count, &left.reason), (1, &cap));
        let mut done = Vec::new();
        for number in 0..2 {
            done.extend(placed(&launch(&mut engine, &format!("large{number}"), "large", 8)));
            engine.now = engine.now.plus_nanos(INTERVAL_NS);
            done.extend(placed(&settle(&mut engine)));
        }
        done.sort_unstable();
        assert_eq!(done, [11, 12], "{planners} planners");
        check_all(&engine);
    }
}

/// The cap allows the first, large bundle. The small one after it is passed over, though it would fit alone.
#[test]
fn nodes_are_for_the_bundles_that_are_charged_first() {
    let mut engine = full(1, 1);
    set_queue(&mut engine, QueueSpec { capability: cpu(8), ..QueueSpec::new("small") });
    let bundles = [8, 1].map(|cpu| Arc::new(cores(cpu))).to_vec();
    let spec = GroupSpec { bundles, min_members: 1, ..in_queue("small", 1, 1) };
    ask_for(&mut engine, 11, spec);
    let request = NodesRequest::new(vec![of_type("small", 1, 9), of_type("large", 8, 9)]);
    let made = plan_for(&mut engine, &request, None);
    assert_eq!((needed(&made), made.unplaced.len()), (vec![0, 1], 1), "{made:?}");
    launch(&mut engine, "large0", "large", 8);
    engine.now = engine.now.plus_nanos(INTERVAL_NS);
    assert_eq!(placed(&settle(&mut engine)), [11]);
    check_all(&engine);
}

#[test]
fn groups_and_jobs_are_planned_in_one_order_of_priority() {
    let mut engine = full(2, 2);
    let job = submit_job(&mut engine, gang("job", 2, cores(4)), "all");
    wait(&mut engine);
    let first = GroupSpec { priority: 5, ..group_of(cores(4), 2, Strategy::Pack) };
    ask_for(&mut engine, 11, first);
    ask_for(&mut engine, 12, GroupSpec { priority: -5, ..group_of(cores(4), 2, Strategy::Pack) });
    let mut request = NodesRequest::new(vec![of_type("a", 8, 2)]);
    let made = plan_for(&mut engine, &request, None);
    let askers: Vec<Asker> = made.unplaced.iter().map(|left| left.asker).collect();
    let [Asker::Waiting(last)] = askers[..] else { panic!("{made:?}") };
    assert_eq!((needed(&made), made.fit_needed), (vec![2], 4));
    request.types[0].max = 1;
    let made = plan_for(&mut engine, &request, None);
    let askers: Vec<Asker> = made.unplaced.iter().map(|left| left.asker).collect();
    assert_eq!(
        askers,
        [Asker::Job(job), Asker::Waiting(last)],
        "the group of the highest priority has the node"
    );
    // A tenant sees neither what others ask for nor who they are.
    let made = plan_for(&mut engine, &request, Some(TenantId(3)));
    assert_eq!((needed(&made), made.unplaced.len()), (vec![1], 0));
    check_all(&engine);
}

/// More bundles wait than are looked at in one step of a planner, and then more than are looked at in all.
#[test]
fn many_groups_are_collected_in_pages_up_to_the_bound() {
    let bundles = GROUP_BUNDLES_MAX;
    // The keeper of jobs has those in queues.
    for group in [group_of(cores(1), bundles, Strategy::Pack), in_queue("all", 1, bundles)] {
        collected_up_to_the_bound(&GroupSpec { min_members: 1, ..group });
    }
}

fn collected_up_to_the_bound(large: &GroupSpec) {
    let mut engine = full(1, 2);
    let bundles = large.bundles.len();
    let most = WAITING_BUNDLES_PLANNED_MAX / bundles as u64;
    let cpu = u32::try_from(bundles).expect("few");
    for number in 0..most {
        ask_for(&mut engine, 1_000 + number, large.clone());
    }
    let request = NodesRequest::new(vec![of_type("huge", cpu, 200)]);
    let made = plan_for(&mut engine, &request, None);
    assert_eq!((needed(&made), made.left_out), (vec![u32::try_from(most).expect("few")], 0));
    assert_eq!(made.fit_needed, WAITING_BUNDLES_PLANNED_MAX);
    for number in 0..3 {
        ask_for(&mut engine, 2_000 + number, large.clone());
    }
    let made = plan_for(&mut engine, &request, None);
    assert_eq!((made.fit_needed, made.left_out, made.is_partial), (WAITING_BUNDLES_PLANNED_MAX, 3, true));
}

/// Single placements wait with copies at every shard, and count once. More kinds wait than one step of a shard looks at.
#[test]
fn single_placements_that_wait_get_nodes_and_are_placed_when_they_come() {
    for shards in [1, 3] {
        let mut engine = full(shards, 1);
        let place = |engine: &mut Engine, tag: Tag, request: PlacementRequest, priority: i32| {
            let since = engine.now;
            let until = Time(u64::MAX);
            let wait = WaitRequest { request, priority, since, until, is_resumed: false };
            engine.ports[0].submit(tag, PortRequest::Wait(Box::new(wait)), engine.now).expect("room");
        };
        for tag in 100..104 {
            place(&mut engine, tag, cores(2), 3);
        }
        place(&mut engine, 104, cores(4), 0);
        assert!(settle(&mut engine).is_empty(), "all is full");
        let mut request = NodesRequest::new(vec![of_type("a", 8, 9)]);
        let made = plan_for(&mut engine, &request, None);
        assert_eq!((needed(&made), made.fit_needed, made.left_out), (vec![2], 5, 0), "{made:?}");
        request.types[0].max = 1;
        let made = plan_for(&mut engine, &request, None);
        let [left] = &made.unplaced[..] else { panic!("{made:?}") };
        assert_eq!((left.asker, left.count, made.fit_needed), (Asker::Placements, 1, 4));
        assert!(plan_for(&mut engine, &request, Some(TenantId(3))).unplaced.is_empty(), "of others");
        let kinds = WAITING_SHAPES_PER_PAGE as u32 + 50;
        for number in 0..kinds {
            let demand = Demand { cpu: Amount::from_milli(1 + number), ..Demand::default() };
            place(&mut engine, 1_000 + u64::from(number), PlacementRequest::new(demand, Policy::BestFit), -1);
        }
        assert!(settle(&mut engine).is_empty());
        // A node holds 1,024 allocations.
        request.types = vec![of_type("huge", 1_000, 2)];
        let made = plan_for(&mut engine, &request, None);
        assert_eq!((needed(&made), made.fit_needed), (vec![2], u64::from(kinds) + 5));
        let mut done = launch(&mut engine, "huge1", "huge", 1_000);
        done.extend(launch(&mut engine, "huge2", "huge", 1_000));
        let placed = done.iter().filter(|(_, reply)| matches!(reply, PortReply::Place(Ok(_)))).count();
        assert_eq!(placed, kinds as usize + 5);
        let made = plan_for(&mut engine, &request, None);
        assert_eq!((needed(&made), made.fit_present, made.fit_needed), (vec![0], 0, 0));
        check_all(&engine);
    }
}

/// The keeper measures run times, and each plan gets a copy of them.
#[test]
fn tasks_end_in_a_plan_as_those_before_them_did() {
    const SECOND: u64 = 1_000_000_000;
    let mut engine = engine(2, 1);
    add_node(&mut engine, node_spec("n", 4, 0));
    let begin = |engine: &mut Engine, name: &str| {
        let job = submit_job(engine, gang(name, 1, cores(4)), "all");
        wait(engine);
        job
    };
    let bound = |engine: &Engine, job: JobId| {
        let task = jobs_of(engine).task(TaskId { job, index: 0 });
        task.bound.expect("it is placed")
    };
    let first = begin(&mut engine, "first");
    let since = bound(&engine, first);
    wait_ns(&mut engine, 30 * SECOND);
    let measured = engine.now.nanos_since(since);
    assert_eq!(report(&mut engine, first, TaskState::Succeeded), 0);
    let runs = begin(&mut engine, "runs");
    let ends = bound(&engine, runs).plus_nanos(measured);
    wait_ns(&mut engine, 10 * SECOND);
    let next = begin(&mut engine, "next");
    let mut request = NodesRequest::new(vec![of_type("a", 4, 0)]);
    request.horizon_ns = 3_600 * SECOND;
    let made = plan_for(&mut engine, &request, None);
    let [start] = &made.starts[..] else { panic!("{made:?}") };
    assert_eq!(start.job, next);
    // Each round of the engine takes some ns.
    let differs_ns = start.after_ns.abs_diff(ends.nanos_since(engine.now));
    assert!(differs_ns < 1_000, "{start:?} ends {differs_ns} ns too late or too early");
    assert_eq!((made.measured_ends, made.waiting.len()), (2, 0), "{made:?}");
    check_all(&engine);
}

/// Planners may have ended when the keeper is about to ask them. Then nobody waits for the plan, and the keeper ends, too.
#[test]
fn a_keeper_that_waits_for_planners_may_stop() {
    let mut engine = full(1, 1);
    ask_for(&mut engine, 11, group_of(cores(2), 3, Strategy::Pack));
    let request = Box::new(NodesRequest::new(vec![of_type("a", 8, 2)]));
    let asked = JobsRequest::PlanNodes { tenant: None, request, idle: Vec::new() };
    engine.ports[0]
        .submit(PLAN, PortRequest::Plan(PlanJob::Jobs(Box::new(asked))), engine.now)
        .expect("room");
    engine.ports[0].flush();
    let clock = crate::by_hand::ManualClock::new(engine.now);
    let mut keeper = engine.planners.pop().expect("the keeper is the last one");
    while keeper.run_round(&clock) > 0 {}
    assert!(!keeper.planner().is_committing(), "it waits for a planner that does not answer");
    assert!(keeper.fall_asleep() && !keeper.oversleeps());
    // The planner answers late, and the keeper is woken.
    engine.planners.push(keeper);
    assert!(settle(&mut engine).is_empty());
    assert!(engine.nodes_planner.as_mut().expect("jobs are kept").run_round());
    assert_eq!(settle(&mut engine).len(), 1);
    let reply = plan(&mut engine, PlanJob::ListGroups(None, None, 9));
    assert!(matches!(reply, PlanReply::Groups(groups) if groups.len() == 1));
}
