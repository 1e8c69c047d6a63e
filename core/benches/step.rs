//! Measures the cost of a step of one shard at steady state: placements and releases, without rings or wire.
//!
//! `cargo bench -p wharf-core --bench step -- [NODES] [POLICY] [ROUNDS] [MARKED] [FULL]` prints nanoseconds
//! per placement and release. `MARKED` is the number of requests in ten with a selector. The shard is filled
//! until more than `FULL` requests were refused. On a noisy machine, count instructions instead:
//! `valgrind --tool=callgrind --toggle-collect='*steady_state*' target/release/deps/step-… 1523`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, Operator, Selector, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;

const PARTITIONS: u16 = 256;
const ZONES: u64 = 8;

fn zone(number: u64) -> String {
    format!("zone-{number}")
}

fn node(number: u64, rng: &mut Rng) -> NodeRegistration {
    // The sizes of a GPU cluster: many medium machines, some large ones, a few without GPUs.
    let (cpu, gib, gpus) =
        [(96, 384, 8), (64, 256, 2), (96, 512, 4), (32, 128, 0), (128, 768, 8)][rng.below(5) as usize];
    let labels = vec![("zone".into(), zone(rng.below(ZONES)).into())];
    NodeRegistration {
        id: NodeId(number),
        ordinal: Ordinal(number),
        partition: PartitionId((number % u64::from(PARTITIONS)) as u16),
        spec: NodeSpec {
            name: format!("n{number}").into(),
            identity: None,
            cpu: Amount::whole(cpu),
            memory: Amount::whole(gib * 1024),
            gpus,
            custom: None,
            labels: Labels::new(labels).expect("one key"),
            taints: Taints::default(),
        },
        agent: None,
    }
}

fn request(policy: Policy, marked: u64, selectors: &[Arc<Selector>], rng: &mut Rng) -> PlacementRequest {
    let gpu = match rng.below(10) {
        0..4 => GpuRequest::Fraction((rng.below(9) as u16 + 1) * (GPU_UNIT / 10)),
        4..7 => GpuRequest::Whole(1),
        7 => GpuRequest::Whole(1 << rng.below(4)),
        _ => GpuRequest::None,
    };
    let demand = Demand {
        cpu: Amount::from_milli(1000 * (rng.below(12) as u32 + 1)),
        memory: Amount::whole(1024 * (rng.below(40) as u32 + 1)),
        gpu,
        custom: None,
    };
    let mut request = PlacementRequest::new(demand, policy);
    if rng.below(10) < marked {
        request.selector = Some(Arc::clone(&selectors[rng.below(ZONES) as usize]));
    }
    request
}

/// Handles one request after the other: places it, and releases the oldest live allocation.
#[inline(never)]
fn steady_state(
    shard: &mut Shard,
    requests: &[PlacementRequest],
    live: &mut std::collections::VecDeque<AllocationId>,
    rounds: usize,
) -> usize {
    let mut outcomes = Vec::with_capacity(2);
    let mut refused = 0;
    for request in requests.iter().cycle().take(rounds) {
        outcomes.clear();
        let oldest = live.pop_front().expect("placements are live");
        shard.step(
            [Command::Place(request.clone()), Command::Release(oldest)],
            Time(0),
            black_box(&mut outcomes),
        );
        match &outcomes[0] {
            Outcome::Place(Ok(placement)) => live.push_back(placement.allocation),
            _ => refused += 1,
        }
    }
    refused
}

fn fill(
    shard: &mut Shard,
    requests: &[PlacementRequest],
    full: usize,
) -> std::collections::VecDeque<AllocationId> {
    let mut live = std::collections::VecDeque::new();
    let mut outcomes = Vec::new();
    let mut refused = 0;
    for request in requests.iter().cycle() {
        shard.step([Command::Place(request.clone())], Time(0), &mut outcomes);
        match outcomes.pop() {
            Some(Outcome::Place(Ok(placement))) => live.push_back(placement.allocation),
            _ => refused += 1,
        }
        if refused > full {
            return live;
        }
    }
    live
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock; the engine does not")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a whole number"))
    };
    let nodes = number(0, 1523);
    let rounds = number(2, 200_000) as usize;
    let policy = arguments.get(1).map_or(Policy::BestFit, |text| text.parse().expect("a policy"));
    let marked = number(3, 0);
    let full = number(4, 20) as usize;
    let selectors: Vec<Arc<Selector>> = (0..ZONES)
        .map(|z| Term { key: "zone".into(), operator: Operator::In, values: vec![zone(z)] })
        .map(|term| Arc::new(Selector::new(vec![term])))
        .collect();
    let mut rng = Rng::new(1);
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: (0..PARTITIONS).map(PartitionId).collect(),
        geometry: Geometry::default(),
        seed: 7,
        hybrid: wharf_core::shard::HybridSettings::default(),
    });
    let mut outcomes = Vec::new();
    let joining: Vec<_> = (1..=nodes).map(|n| Command::AddNode(Box::new(node(n, &mut rng)))).collect();
    shard.step(joining, Time(0), &mut outcomes);
    let requests: Vec<_> = (0..10_000).map(|_| request(policy, marked, &selectors, &mut rng)).collect();
    let mut live = fill(&mut shard, &requests, full);
    // Release one allocation in ten for good, so that most requests fit from here on.
    for id in live.drain(..).collect::<Vec<_>>() {
        if rng.below(10) == 0 {
            shard.step([Command::Release(id)], Time(0), &mut outcomes);
        } else {
            live.push_back(id);
        }
    }
    outcomes.clear();
    let before = (shard.visits(), Instant::now());
    let refused = steady_state(&mut shard, &requests, &mut live, rounds);
    let visits = shard.visits();
    let elapsed = before.1.elapsed();
    let each = |total: u128| total / rounds.max(1) as u128;
    println!(
        "{nodes} nodes, {policy}, {} live: {} ns per place and release, {refused} of {rounds} refused, {} vertices, {} nodes each",
        live.len(),
        each(elapsed.as_nanos()),
        each(u128::from(visits.vertices - before.0.vertices)),
        each(u128::from(visits.nodes - before.0.nodes)),
    );
    shard.check_invariants().expect("the books are right");
}
