//! An engine run by hand: no threads, a clock that the test moves, and batches on demand.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{BatchRecord, Observer, Unobserved};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, TenantId};
use wharf_core::index::Geometry;
use wharf_core::link::Clock;
use wharf_core::node::{
    Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term,
};
use wharf_core::request::{Explain, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::{Command, HybridSettings, NodeChange, Outcome, Shard, ShardConfig};
use wharf_core::state::StoreState;
use wharf_core::statement::Granted;
use wharf_core::time::Time;

/// A clock that advances by one at each look.
pub(crate) struct ManualClock(Cell<u64>);

impl ManualClock {
    pub(crate) fn new(now: Time) -> Self {
        Self(Cell::new(now.0))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        self.0.set(self.0.get() + 1);
        Time(self.0.get())
    }
}

/// Records the commands and outcomes of a shard, in order.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) commands: Vec<Command>,
    pub(crate) outcomes: Vec<Outcome>,
    /// The ports of each batch, with the number of commands of each.
    pub(crate) orders: Vec<Vec<(u16, u16)>>,
}

impl Observer for Recorder {
    fn handle_batch(&mut self, batch: &BatchRecord<'_>) {
        self.commands.extend_from_slice(batch.commands);
        self.orders.push(batch.order.to_vec());
        assert_eq!(batch.enqueued.len(), batch.commands.len());
    }

    fn handle_stepped(&mut self, outcomes: &[Outcome], _finished: Time) {
        self.outcomes.extend_from_slice(outcomes);
    }

    fn wants_times(&self) -> bool {
        true
    }
}

pub(crate) fn config(shards: u16) -> EngineConfig {
    EngineConfig { shards, seed: 42, ..EngineConfig::default() }
}

pub(crate) fn open(state: StoreState, shards: u16, ports: usize) -> Engine {
    Engine::open(state, &config(shards), vec![Waker::noop().clone(); ports]).expect("numbers in range")
}

/// Creates a shard of one partition, alone and without nodes.
pub(crate) fn lone_shard() -> Shard {
    Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed: 1,
        hybrid: HybridSettings::default(),
    })
}

/// Registers a node of the lone shard. Its number is its id and its ordinal.
pub(crate) fn lone_node(number: u64, spec: NodeSpec, agent: bool) -> Command {
    let id = NodeId(number);
    let ordinal = Ordinal(number);
    let partition = PartitionId(0);
    let agent = agent.then(std::sync::Arc::default);
    Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, spec, agent }))
}

/// Returns the shards of a fresh engine, to be stepped directly.
pub(crate) fn shards_of(engine: Engine) -> Vec<Shard> {
    engine.stop.stop();
    let clock = ManualClock::new(engine.now);
    engine.runners.into_iter().map(|runner| runner.run(&clock, &mut Unobserved)).collect()
}

/// Runs every shard and polls every port until nothing moves. Returns the replies of all ports.
///
/// Each of them falls asleep when it has nothing to do, as its thread would. Its bell must be rung before it
/// has something to do again.
pub(crate) fn settle(engine: &mut Engine) -> Vec<(Tag, PortReply)> {
    let clock = ManualClock::new(engine.now);
    let mut replies = Vec::new();
    // Sends what the test itself submitted.
    engine.ports.iter_mut().for_each(Port::flush);
    loop {
        // A round that took nothing may still have sent something, at a deadline. Then another thread was
        // woken.
        let mut all_asleep = true;
        for runner in &mut engine.runners {
            assert!(!runner.oversleeps(), "nobody woke shard {}", runner.id().0);
            all_asleep &= runner.run_batch(&clock, &mut Unobserved) == 0 && runner.fall_asleep();
        }
        for (number, planner) in engine.planners.iter_mut().enumerate() {
            assert!(!planner.oversleeps(), "nobody woke planner {number}");
            all_asleep &= planner.run_round(&clock) == 0 && planner.fall_asleep();
        }
        for (number, port) in engine.ports.iter_mut().enumerate() {
            let bell = Arc::clone(port.bell());
            assert!(!bell.is_asleep() || port.is_idle(), "nobody woke the owner of port {number}");
            let answers = port.poll(engine.now, |tag, reply| replies.push((tag, reply)));
            port.flush();
            all_asleep &= answers == 0 && bell.sleep_if(|| port.is_idle());
        }
        engine.now = clock.now();
        let nobody_woken = engine.runners.iter().all(|runner| runner.is_asleep())
            && engine.planners.iter().all(|planner| planner.is_asleep());
        if all_asleep && nobody_woken {
            return replies;
        }
    }
}

/// Submits a request at port 0 and settles. Returns the only reply.
pub(crate) fn ask(engine: &mut Engine, request: PortRequest) -> PortReply {
    let direct = engine.ports[0].submit(7, request, engine.now).expect("room for one");
    let mut replies: Vec<PortReply> = direct.into_iter().collect();
    replies.extend(settle(engine).into_iter().map(|(_, reply)| reply));
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies.remove(0)
}

/// Registers a node, publishes the catalog, and adds the node to its shard.
pub(crate) fn add_node(engine: &mut Engine, spec: NodeSpec) -> NodeRegistration {
    let registration = engine.registrar.register(spec).expect("a new name");
    engine.catalog.store(std::sync::Arc::new(engine.registrar.catalog()));
    let command = engine.registrar.join_command(registration.clone());
    let reply = ask(engine, PortRequest::Partition(registration.partition, command));
    assert!(
        matches!(reply, PortReply::One(Outcome::Node(Ok(NodeChange::Added(id)))) if id == registration.id),
        "{reply:?}"
    );
    registration
}

/// Removes a node by force, as the registrar's task does. Returns its last version.
pub(crate) fn remove_node(engine: &mut Engine, node: &NodeRegistration) -> u64 {
    let remove = Command::RemoveNode { node: node.id, force: true };
    let reply = ask(engine, PortRequest::Partition(node.partition, remove));
    let PortReply::One(Outcome::Node(Ok(NodeChange::Removed { version, .. }))) = reply else {
        panic!("{reply:?}")
    };
    engine.registrar.forget(node.id, version);
    version
}

/// Returns the durable state, as a stop would store it.
pub(crate) fn export(engine: &mut Engine) -> StoreState {
    let PortReply::Every(outcomes) = ask(engine, PortRequest::Every(Command::Export)) else {
        panic!("every shard answers");
    };
    let shards = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Exported(state) => *state,
            other => panic!("not an export: {other:?}"),
        })
        .collect();
    StoreState::collect(engine.incarnation, engine.now, engine.registrar.state(), shards)
}

pub(crate) fn check_all(engine: &Engine) {
    for runner in &engine.runners {
        runner.shard().check_invariants().expect("the books are right");
    }
}

pub(crate) fn node_spec(name: &str, cpu: u32, gpus: u8) -> NodeSpec {
    NodeSpec {
        name: name.into(),
        identity: None,
        cpu: Amount::whole(cpu),
        memory: Amount::whole(cpu * 4096),
        gpus,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    }
}

pub(crate) fn cores(cpu: u32) -> PlacementRequest {
    PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit)
}

/// Random requests, releases and node changes of every kind. They depend only on the seed.
pub(crate) struct Workload {
    rng: Rng,
    pub(crate) incarnation: Incarnation,
    pub(crate) partitions: u16,
    pub(crate) nodes: u64,
    /// The ids that were granted, in order.
    pub(crate) granted: Vec<AllocationId>,
}

impl Workload {
    pub(crate) fn new(seed: u64, incarnation: Incarnation, partitions: u16) -> Self {
        Self { rng: Rng::new(seed), incarnation, partitions, nodes: 0, granted: Vec::new() }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.rng.below(u64::from(bound)) as u32
    }

    pub(crate) fn spec(&mut self, name: &str) -> NodeSpec {
        let mut spec = node_spec(name, self.below(12) + 4, 0);
        spec.gpus = self.below(5) as u8;
        let zone = ["a", "b"][self.below(2) as usize];
        spec.labels = Labels::new(vec![("zone".into(), zone.into())]).expect("one key");
        let effects = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule];
        if let Some(&effect) = effects.get(self.below(12) as usize) {
            let taint = Taint { key: "team".into(), value: "a".into(), effect };
            spec.taints = Taints::new(vec![taint]).expect("one taint");
        }
        spec
    }

    pub(crate) fn request(&mut self) -> PlacementRequest {
        let gpu = match self.below(4) {
            0 => GpuRequest::Fraction(self.below(9) as u16 * 1000 + 1000),
            1 => GpuRequest::Whole(self.below(2) as u8 + 1),
            _ => GpuRequest::None,
        };
        let demand = Demand {
            cpu: Amount::from_milli(self.below(30) * 100),
            memory: Amount::whole(self.below(6) * 1024),
            gpu,
            custom: None,
        };
        let policy = Policy::ALL[self.below(Policy::ALL.len() as u32) as usize];
        let mut request = PlacementRequest::new(demand, policy);
        if self.below(4) == 0 {
            let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec!["a".to_owned()] };
            request.selector = Some(std::sync::Arc::new(Selector::new(vec![term])));
        }
        if self.below(8) == 0 {
            request.explain = Explain::Full;
        }
        if self.below(4) == 0 {
            let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec!["b".to_owned()] };
            let other = std::sync::Arc::new(Selector::new(vec![term]));
            let rules = RankRules::new(vec![other.clone()], vec![(3, other)], Vec::new()).expect("few");
            request.preferences = Some(std::sync::Arc::new(Preferences {
                rules: Some(std::sync::Arc::new(rules)),
                avoid_gpu: self.below(2) == 0,
                ..Preferences::default()
            }));
        }
        request
    }

    /// Notes the ids that a shard granted.
    pub(crate) fn saw(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Place(Ok(placement)) => self.granted.push(placement.allocation),
                Outcome::Applied(Ok(applied)) => {
                    self.granted.extend(applied.granted.iter().filter_map(|(_, granted)| match granted {
                        Granted::Allocated(placement) => Some(placement.allocation),
                        Granted::Pipelined { allocation, .. } => Some(*allocation),
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
    }

    /// Returns one of the last `count` ids that were granted, which may be live, or one that may be unknown.
    pub(crate) fn allocation(&mut self, count: u32) -> AllocationId {
        if !self.granted.is_empty() && self.below(8) > 0 {
            let back = self.below(count) as usize % self.granted.len();
            return self.granted[self.granted.len() - 1 - back];
        }
        AllocationId {
            incarnation: self.incarnation,
            partition: PartitionId(self.below(u32::from(self.partitions)) as u16),
            sequence: u64::from(self.below(count)),
            tenant: TenantId::OPERATOR,
        }
    }

    /// Returns a command for a shard that owns all partitions.
    pub(crate) fn command(&mut self) -> Command {
        let node = NodeId(u64::from(self.below(40)) + 1);
        match self.below(35) {
            0..4 => {
                self.nodes += 1;
                let id = self.nodes;
                Command::AddNode(Box::new(NodeRegistration {
                    id: NodeId(id),
                    ordinal: Ordinal(id),
                    partition: PartitionId((id % u64::from(self.partitions)) as u16),
                    spec: self.spec(&format!("n{id}")),
                    agent: None,
                }))
            }
            4..20 => Command::Place(self.request()),
            20..26 => Command::Release(self.allocation(60)),
            26 => Command::UpdateNode(node, Box::new(self.spec(&format!("n{}", node.0)))),
            27 => Command::Life(node, LifeEvent::Drain),
            28 => Command::Life(node, LifeEvent::Undrain),
            29 => Command::RemoveNode { node, force: self.below(4) == 0 },
            30 => Command::ListNodes { after: Ordinal(node.0), limit: 3 },
            31 => Command::Life(node, LifeEvent::Lose),
            32 => Command::Life(node, LifeEvent::Beat),
            33 => Command::SetHealth(node, vec![(0, "Xid 79".into())]),
            _ => Command::Status,
        }
    }
}
