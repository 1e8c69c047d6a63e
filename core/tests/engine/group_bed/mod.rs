//! Shared helpers for tests of groups: an engine with planners run by hand, uniform groups, and their
//! placements.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::group::{
    BundlePlace, GroupRefusal, GroupSpec, GroupView, NoGroup, PlanJob, PlanReply, Strategy, Submit,
};
use wharf_core::ids::{AllocationId, GroupId, NodeId};
use wharf_core::node::{Labels, LifeEvent, NodeSpec};
use wharf_core::request::PlacementRequest;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_core::state::StoreState;
use wharf_core::statement::{CommitMode, ConflictDetection, Operation};

use crate::by_hand::{add_node, ask, config, cores, node_spec, settle};

pub(crate) fn engine(shards: u16, planners: u16) -> Engine {
    let config = EngineConfig { planners, ..config(shards) };
    Engine::open(StoreState::create(8), &config, vec![Waker::noop().clone()]).expect("numbers in range")
}

/// Adds `count` nodes of `cpu` cores and `gpus` devices each.
pub(crate) fn with_nodes(engine: &mut Engine, count: u32, cpu: u32, gpus: u8) -> Vec<NodeId> {
    let spec = |number| node_spec(&format!("n{number}"), cpu, gpus);
    (0..count).map(|number| add_node(engine, spec(number)).id).collect()
}

pub(crate) fn labelled(name: &str, cpu: u32, zone: &str) -> NodeSpec {
    let labels = Labels::new(vec![("zone".into(), zone.into())]).expect("one key");
    NodeSpec { labels, ..node_spec(name, cpu, 0) }
}

pub(crate) fn plan(engine: &mut Engine, job: PlanJob) -> PlanReply {
    match ask(engine, PortRequest::Plan(job)) {
        PortReply::Plan(reply) => *reply,
        other => panic!("a planner answers: {other:?}"),
    }
}

/// Returns `count` copies of one request.
pub(crate) fn same(request: PlacementRequest, count: usize) -> Vec<Arc<PlacementRequest>> {
    let request = Arc::new(request);
    std::iter::repeat_with(|| Arc::clone(&request)).take(count).collect()
}

pub(crate) fn group_of(request: PlacementRequest, count: usize, strategy: Strategy) -> GroupSpec {
    GroupSpec::new(same(request, count), strategy)
}

pub(crate) fn create(engine: &mut Engine, spec: GroupSpec) -> Result<GroupView, GroupRefusal> {
    match plan(engine, PlanJob::CreateGroup(Arc::new(spec))) {
        PlanReply::Group(Ok(view)) => Ok(*view),
        PlanReply::Group(Err(NoGroup::Refused(refusal))) => Err(*refusal),
        other => panic!("made or refused: {other:?}"),
    }
}

pub(crate) fn places(view: &GroupView) -> Vec<(u32, NodeId, AllocationId)> {
    let place = |&(index, bundle): &(u32, Option<BundlePlace>)| {
        bundle.map(|BundlePlace { node, allocation, .. }| (index, node, allocation))
    };
    view.bundles.iter().filter_map(place).collect()
}

pub(crate) fn nodes_of(view: &GroupView) -> BTreeMap<NodeId, usize> {
    let mut nodes = BTreeMap::new();
    places(view).iter().for_each(|&(_, node, _)| *nodes.entry(node).or_default() += 1);
    nodes
}

pub(crate) fn live_allocations(engine: &mut Engine) -> u64 {
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(Command::Audit { number: 0 })) else {
        panic!("every shard answers");
    };
    let of_shard = |outcome| match outcome {
        Outcome::Status(status) => status.allocations,
        other => panic!("a status: {other:?}"),
    };
    outcomes.into_iter().map(of_shard).sum()
}

pub(crate) fn life(engine: &mut Engine, node: NodeId, event: LifeEvent) {
    let partition = engine.catalog.load().node_partition(node).expect("a registered node");
    let reply = ask(engine, PortRequest::Partition(partition, Command::Life(node, event)));
    assert!(matches!(reply, PortReply::One(Outcome::Node(Ok(NodeChange::State(..))))), "{reply:?}");
}

/// The same as `ask`, but other replies may arrive too.
pub(crate) fn ask_meanwhile(engine: &mut Engine, request: PortRequest) -> Vec<(u64, PortReply)> {
    engine.ports[0].submit(7, request, engine.now).expect("room");
    engine.ports[0].flush();
    settle(engine)
}

pub(crate) fn add_agent_node(engine: &mut Engine, spec: NodeSpec) -> NodeId {
    let mut registration = engine.registrar.register(spec).expect("a new name");
    registration.agent = Some(Arc::default());
    engine.catalog.store(Arc::new(engine.registrar.catalog()));
    let id = registration.id;
    let partition = registration.partition;
    let reply = ask(engine, PortRequest::Partition(partition, Command::AddNode(Box::new(registration))));
    assert!(matches!(reply, PortReply::One(Outcome::Node(Ok(NodeChange::Added(_))))), "{reply:?}");
    life(engine, id, LifeEvent::Beat);
    id
}

pub(crate) fn status(engine: &mut Engine, id: GroupId) -> GroupView {
    match plan(engine, PlanJob::GroupStatus(id)) {
        PlanReply::Status(Ok(view)) => *view,
        other => panic!("it is placed: {other:?}"),
    }
}

pub(crate) fn submit(
    engine: &mut Engine,
    operations: Vec<Operation>,
    conflict_detection: ConflictDetection,
    mode: CommitMode,
) -> PlanReply {
    plan(engine, PlanJob::Submit(Box::new(Submit { operations, conflict_detection, mode })))
}

/// Runs direct traffic that takes any freed capacity at once, in the same batch.
pub(crate) fn hostile_round(
    engine: &mut Engine,
    live: &mut Vec<AllocationId>,
) -> (Vec<(u64, PortReply)>, bool) {
    let oldest = live.remove(0);
    engine.ports[0].submit(1, PortRequest::Release(oldest), engine.now).expect("room");
    engine.ports[0].submit(2, PortRequest::Place(cores(1)), engine.now).expect("room");
    engine.ports[0].flush();
    let replies = settle(engine);
    let mut served = false;
    for (tag, reply) in &replies {
        if let (2, PortReply::Place(Ok(placement))) = (*tag, reply) {
            live.push(placement.allocation);
            served = true;
        }
    }
    (replies, served)
}
