//! The fragmentation-aware policies on large clusters. Short lists end below their bound, run empty, are cut
//! and are replaced by others. Every placement matches the linear scan, including devices, and few nodes are
//! examined.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::sync::Arc;

use wharf_core::fragmentation::{RequestShape, TypicalShapes};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::limits::SHORT_LISTS_MAX;
use wharf_core::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;
use wharf_fuzz::oracle::LinearShard;

const MODELS: [&str; 3] = ["T4", "P100", "G2"];

struct Pair {
    shard: Shard,
    oracle: LinearShard,
    live: Vec<AllocationId>,
    placed: u64,
}

impl Pair {
    fn new(typical: Option<TypicalShapes>) -> Self {
        let geometry = Geometry::default();
        let mut oracle = LinearShard::new(&geometry, Incarnation(1));
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry,
            seed: 0,
            hybrid: wharf_core::shard::HybridSettings::default(),
        });
        if let Some(typical) = typical {
            oracle.set_typical_shapes(&typical);
            shard.set_typical_shapes(Arc::new(typical));
        }
        Self { shard, oracle, live: Vec::new(), placed: 0 }
    }

    fn step(&mut self, command: Command) {
        let mut outcomes = Vec::new();
        self.shard.step([command.clone()], Time(0), &mut outcomes);
        self.oracle
            .compare(&command, &outcomes[0])
            .unwrap_or_else(|difference| panic!("{command:?}: {difference}"));
        if let Outcome::Place(Ok(placement)) = &outcomes[0] {
            self.live.push(placement.allocation);
            self.placed += 1;
        }
    }

    fn release(&mut self, rng: &mut Rng) {
        if !self.live.is_empty() {
            let at = rng.below(self.live.len() as u64) as usize;
            let id = self.live.swap_remove(at);
            self.step(Command::Release(id));
        }
    }
}

fn spec(rng: &mut Rng, number: u64) -> NodeSpec {
    let model = MODELS.get(rng.below(4) as usize).map(|&model| ("gpu-model".into(), model.into()));
    NodeSpec {
        name: format!("n{number}").into(),
        identity: None,
        cpu: Amount::whole([16, 32, 64, 96][rng.below(4) as usize]),
        memory: Amount::whole(1 << 17),
        gpus: [0, 2, 4, 8, 8, 16][rng.below(6) as usize],
        custom: None,
        labels: Labels::new(model.into_iter().collect()).unwrap(),
        taints: wharf_core::node::Taints::default(),
    }
}

fn gpu(rng: &mut Rng) -> GpuRequest {
    match rng.below(8) {
        0 => GpuRequest::None,
        1..=4 => GpuRequest::Fraction(rng.below(9) as u16 * 1000 + 1000),
        5 | 6 => GpuRequest::Whole(1),
        _ => GpuRequest::Whole(1 << rng.below(4)),
    }
}

fn request(rng: &mut Rng, shapes: &[Demand]) -> PlacementRequest {
    // Most requests have one of a few shapes, as in a trace.
    let of = if rng.below(4) > 0 { shapes.len().min(12) } else { shapes.len() };
    let demand = shapes[rng.below(of as u64) as usize].clone();
    let policy = match rng.below(9) {
        0..4 => Policy::Fgd,
        4..8 => Policy::LeastStranded,
        _ => Policy::BestFit,
    };
    let mut request = PlacementRequest::new(demand, policy);
    if rng.below(5) == 0 {
        let models = &MODELS[..rng.below(3) as usize + 1];
        let values = models.iter().map(|&model| model.to_owned()).collect();
        let term = Term { key: "gpu-model".to_owned(), operator: Operator::In, values };
        request.selector = Some(Arc::new(Selector::new(vec![term])));
    }
    request
}

fn shapes(rng: &mut Rng, count: usize) -> Vec<Demand> {
    let mut shape = || Demand {
        cpu: Amount::whole(rng.below(12) as u32),
        memory: Amount::whole(rng.below(1 << 13) as u32),
        gpu: gpu(rng),
        custom: None,
    };
    (0..count).map(|_| shape()).collect()
}

fn churn(seed: u64, nodes: u64, shape_count: usize, given: bool, operations: u64) -> Pair {
    let mut rng = Rng::new(seed);
    let shapes = shapes(&mut rng, shape_count);
    let typical = given.then(|| {
        let typical = |demand: &Demand| RequestShape {
            cpu: demand.cpu,
            gpu: demand.gpu,
            models: (rng.below(4) == 0).then(|| [Arc::from("T4")].into()),
        };
        let counts = [90, 50, 50, 20, 10, 5, 3, 2, 1, 1, 1, 1];
        TypicalShapes::covering(shapes.iter().map(typical).zip(counts).collect())
    });
    let mut rng = Rng::new(seed + 1);
    let mut pair = Pair::new(typical);
    let add = |pair: &mut Pair, number: u64, rng: &mut Rng| {
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId(0);
        let spec = spec(rng, number);
        pair.step(Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, agent: None, spec })));
    };
    for number in 1..=nodes {
        add(&mut pair, number, &mut rng);
    }
    let mut last = nodes;
    for operation in 0..operations {
        // The first half fills the cluster. The second half keeps it about as full.
        let release = if operation < operations / 2 { 8 } else { 50 };
        if rng.below(100) < release {
            pair.release(&mut rng);
            continue;
        }
        let node = NodeId(rng.below(last) + 1);
        match rng.below(200) {
            0 => pair.step(Command::UpdateNode(node, Box::new(spec(&mut rng, node.0)))),
            1 => pair.step(Command::Life(node, LifeEvent::Drain)),
            2 | 3 => pair.step(Command::Life(node, LifeEvent::Undrain)),
            4 => pair.step(Command::RemoveNode { node, force: false }),
            5 => {
                last += 1;
                add(&mut pair, last, &mut rng);
            }
            _ => pair.step(Command::Place(request(&mut rng, &shapes))),
        }
    }
    pair.shard.check_invariants().unwrap();
    pair
}

#[test]
fn given_shapes_are_placed_as_the_scan_places_them() {
    let pair = churn(1, 400, 60, true, 6000);
    assert!(pair.placed > 2000, "{} placed", pair.placed);
}

#[test]
fn learnt_shapes_are_placed_as_the_scan_places_them() {
    let pair = churn(2, 400, 60, false, 6000);
    assert!(pair.placed > 2000, "{} placed", pair.placed);
}

#[test]
fn more_shapes_than_are_kept_are_placed_as_the_scan_places_them() {
    churn(3, 120, 3 * SHORT_LISTS_MAX, true, 5000);
}

/// Twelve shapes of cpu and GPUs, each with twenty amounts of memory and sometimes a selector. They share
/// lists, so a request rates only the nodes that changed since the last request with the same cpu and GPUs.
#[test]
fn shapes_that_differ_in_memory_and_labels_rate_few_nodes() {
    const NODES: u64 = 1500;
    let mut rng = Rng::new(6);
    let shapes = shapes(&mut rng, 12);
    let mut pair = Pair::new(None);
    for number in 1..=NODES {
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId(0);
        let spec = spec(&mut rng, number);
        pair.step(Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, agent: None, spec })));
    }
    let mut asked = 0;
    let mut rated = 0;
    for round in 0..1000 {
        let mut request = request(&mut rng, &shapes);
        request.policy = Policy::Fgd;
        request.demand.memory = Amount::whole(rng.below(20) as u32 * 400);
        let before = pair.shard.visits().nodes;
        pair.step(Command::Place(request));
        // Earlier, typical shapes are learnt again at each power of two, and all lists become stale.
        if round > 520 {
            asked += 1;
            rated += pair.shard.visits().nodes - before;
        }
        if rng.below(2) == 0 {
            pair.release(&mut rng);
        }
    }
    println!("{} nodes rated for a request of {NODES}", rated / asked);
    assert!(rated / asked < NODES / 8, "{rated} nodes rated for {asked} requests");
}

#[test]
fn one_shape_that_fills_the_cluster_is_placed_as_the_scan_places_it() {
    churn(4, 300, 1, true, 4000);
    churn(5, 300, 2, false, 4000);
}
