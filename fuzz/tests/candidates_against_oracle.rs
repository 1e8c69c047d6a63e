//! Candidate sets from one node to half of all nodes. Every placement matches the linear scan. The nodes
//! examined grow with the smaller of the candidate set and the search, not with the cluster.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::limits::CANDIDATES_MAX;
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, Operator, Selector, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, HybridSettings, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;
use wharf_fuzz::oracle::LinearShard;

const NODES: u64 = 3000;

struct Pair {
    shard: Shard,
    oracle: LinearShard,
    live: Vec<AllocationId>,
}

impl Pair {
    fn new(rng: &mut Rng) -> Self {
        let geometry = Geometry::default();
        let oracle = LinearShard::new(&geometry, Incarnation(1));
        let shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry,
            seed: 5,
            hybrid: HybridSettings::default(),
        });
        let mut pair = Self { shard, oracle, live: Vec::new() };
        for number in 1..=NODES {
            let half = if rng.below(2) == 0 { "a" } else { "b" };
            let spec = NodeSpec {
                name: format!("n{number}").into(),
                identity: None,
                cpu: Amount::whole(rng.below(24) as u32 + 8),
                memory: Amount::whole(rng.below(65_536) as u32 + 8192),
                gpus: [0, 4][rng.below(2) as usize],
                custom: None,
                labels: Labels::new(vec![("half".into(), half.into())]).unwrap(),
                taints: Taints::default(),
            };
            let id = NodeId(number);
            let ordinal = Ordinal(number);
            let partition = PartitionId(0);
            let registration = NodeRegistration { id, ordinal, partition, agent: None, spec };
            pair.step(Command::AddNode(Box::new(registration)));
        }
        pair
    }

    /// Runs a command on both. Returns the vertices and nodes that the shard examined.
    fn step(&mut self, command: Command) -> u64 {
        let mut outcomes = Vec::new();
        let before = self.shard.visits();
        self.shard.step([command.clone()], Time(0), &mut outcomes);
        let after = self.shard.visits();
        self.oracle.compare(&command, &outcomes[0]).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        if let Outcome::Place(Ok(placement)) = &outcomes[0] {
            self.live.push(placement.allocation);
        }
        after.vertices + after.nodes - before.vertices - before.nodes
    }
}

fn demand(rng: &mut Rng) -> Demand {
    Demand {
        cpu: Amount::whole(rng.below(8) as u32 + 1),
        memory: Amount::whole(rng.below(8192) as u32),
        gpu: match rng.below(4) {
            0 => GpuRequest::Whole(1),
            1 => GpuRequest::Fraction(rng.below(9) as u16 * 1000 + 500),
            _ => GpuRequest::None,
        },
        custom: None,
    }
}

fn drawn(count: u64, rng: &mut Rng) -> Arc<[NodeId]> {
    let mut ids = BTreeSet::new();
    while (ids.len() as u64) < count {
        ids.insert(NodeId(rng.below(NODES) + 1));
    }
    ids.into_iter().collect()
}

/// Returns the mean and the maximum visits of one policy's requests with candidate sets of one size.
fn measured(visits: &[u64]) -> (u64, u64) {
    (visits.iter().sum::<u64>() / visits.len() as u64, visits.iter().copied().max().unwrap())
}

#[test]
fn candidates_are_the_oracles_at_the_cost_of_the_smaller_set() {
    let mut rng = Rng::new(11);
    let mut pair = Pair::new(&mut rng);
    // Nearly full: 3,000 nodes of 20 cores, requests of 4.5 cores.
    while pair.live.len() < 9000 {
        let before = pair.live.len();
        pair.step(Command::Place(PlacementRequest::new(demand(&mut rng), Policy::LeastFit)));
        if pair.live.len() == before {
            break;
        }
    }
    let half = |value: &str| {
        let values = vec![value.to_owned()];
        Arc::new(Selector::new(vec![Term { key: "half".into(), operator: Operator::In, values }]))
    };
    let halves = [half("a"), half("b")];
    let policies = [
        Policy::LeastFit,
        Policy::BestFit,
        Policy::FirstFit,
        Policy::NextFit,
        Policy::Spread,
        Policy::Random,
    ];
    for policy in policies {
        // No candidates, then sets of the given size, then half of all nodes by a selector.
        for size in [0, 1, 10, 100, 1000, NODES / 2] {
            let mut visits = Vec::new();
            for _ in 0..40 {
                let at = rng.below(pair.live.len() as u64) as usize;
                let released = Command::Release(pair.live.swap_remove(at));
                pair.step(released);
                let mut request = PlacementRequest::new(demand(&mut rng), policy);
                if size == NODES / 2 {
                    request.selector = Some(Arc::clone(&halves[rng.below(2) as usize]));
                } else if size > 0 {
                    request.candidates = Some(drawn(size, &mut rng));
                }
                visits.push(pair.step(Command::Place(request)));
            }
            let (mean, most) = measured(&visits);
            println!("{policy}, {size} of {NODES}: {mean} in the mean, {most} at most");
            // A walk of the set, after a search that gives up at a quarter of its size. The search also counts
            // vertices.
            let bound = if size == NODES / 2 || size == 0 { NODES / 6 } else { size + size / 4 + 64 };
            assert!(most <= bound, "{policy}: a set of {size} took {most}");
            if size >= 1000 {
                assert!(mean <= 400, "{policy}: sets of {size} took {mean} in the mean");
            }
        }
    }
    pair.shard.check_invariants().unwrap();
}

/// Candidate sets larger than the cluster with mostly unregistered ids, and sets of most of its nodes.
#[test]
fn tens_of_thousands_of_candidates_are_the_oracles() {
    let mut rng = Rng::new(12);
    let mut pair = Pair::new(&mut rng);
    let policies = [Policy::LeastFit, Policy::BestFit, Policy::NextFit, Policy::Random, Policy::Fgd];
    for (round, policy) in (0..20).flat_map(|round| policies.map(|policy| (round, policy))) {
        // Every n-th id from an offset, up to the limit of a request.
        let first = rng.below(NODES) + 1;
        let step = [1, 2, 7][round % 3];
        let candidates: Arc<[NodeId]> =
            (0..CANDIDATES_MAX as u64).map(|place| NodeId(first + place * step)).collect();
        let registered = (NODES - first) / step + 1;
        let mut request = PlacementRequest::new(demand(&mut rng), policy);
        request.candidates = Some(candidates);
        let visits = pair.step(Command::Place(request));
        // At most a walk of the registered candidates, after a search of at most the same size.
        assert!(visits <= 2 * registered + NODES + 64, "{policy}: {visits} of {registered}");
    }
    assert!(pair.live.len() > 60, "{} placed", pair.live.len());
    // Most of all nodes are candidates, so the search over all nodes finds one at once.
    let most: Arc<[NodeId]> = (1..=NODES).filter(|id| id % 10 > 0).map(NodeId).collect();
    for _ in 0..30 {
        let mut request = PlacementRequest::new(demand(&mut rng), Policy::BestFit);
        request.candidates = Some(Arc::clone(&most));
        let visits = pair.step(Command::Place(request));
        assert!(visits <= NODES / 4, "{visits} for {} of {NODES} nodes", most.len());
    }
    pair.shard.check_invariants().unwrap();
}
