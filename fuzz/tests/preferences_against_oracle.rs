//! Preferences over more nodes than are ever walked, so that the tiers have marks. A search must answer as the
//! linear scan does and examine few nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::limits::CANDIDATE_WALK_MAX;
use wharf_core::node::{
    Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term,
    Toleration, TolerationOperator,
};
use wharf_core::request::{PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, HybridSettings, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;
use wharf_fuzz::oracle::LinearShard;

const INCARNATION: Incarnation = Incarnation(1);
const NODES: u64 = 8 * CANDIDATE_WALK_MAX as u64;

fn selector(zone: u64) -> Arc<Selector> {
    let values = vec![format!("z{zone}")];
    Arc::new(Selector::new(vec![Term { key: "zone".into(), operator: Operator::In, values }]))
}

fn spec(number: u64, rng: &mut Rng) -> NodeSpec {
    let effects = [None, None, None, Some(TaintEffect::NoSchedule), Some(TaintEffect::PreferNoSchedule)];
    let taint = effects[rng.below(5) as usize];
    let taint = taint.map(|effect| Taint { key: "team".into(), value: "a".into(), effect });
    NodeSpec {
        name: format!("n{number}").into(),
        identity: None,
        cpu: Amount::whole(rng.below(32) as u32 + 8),
        memory: Amount::whole(65_536),
        gpus: [0, 0, 4][rng.below(3) as usize],
        custom: None,
        labels: Labels::new(vec![("zone".into(), format!("z{}", rng.below(4)).into())]).expect("one key"),
        taints: Taints::new(taint.into_iter().collect()).expect("one taint"),
    }
}

fn request(policy: Policy, rng: &mut Rng) -> PlacementRequest {
    let demand = Demand {
        cpu: Amount::whole(rng.below(4) as u32),
        memory: Amount::whole(rng.below(4096) as u32),
        gpu: if rng.below(4) == 0 { GpuRequest::Fraction(5000) } else { GpuRequest::None },
        custom: None,
    };
    let mut request = PlacementRequest::new(demand, policy);
    request.selector = (rng.below(2) == 0).then(|| selector(rng.below(5)));
    if rng.below(4) == 0 {
        return request;
    }
    let tolerates = Toleration {
        key: "team".into(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    };
    let fallbacks = (0..rng.below(3)).map(selector).collect();
    let preferred = (0..rng.below(3)).map(|zone| (zone as u8 + 1, selector(zone))).collect();
    let tolerations = if rng.below(2) == 0 { vec![tolerates] } else { Vec::new() };
    let rules = RankRules::new(fallbacks, preferred, tolerations).expect("within their bounds");
    let nodes: Vec<NodeId> = (0..rng.below(3)).map(|_| NodeId(rng.below(NODES))).collect();
    request.preferences = Some(Arc::new(Preferences {
        rules: Some(Arc::new(rules)),
        nodes: nodes.into(),
        avoid_gpu: rng.below(2) == 0,
        affinity: false,
    }));
    request
}

struct Pair {
    shard: Shard,
    oracle: LinearShard,
}

impl Pair {
    fn new() -> Self {
        let geometry = Geometry::default();
        let oracle = LinearShard::new(&geometry, INCARNATION);
        let shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: INCARNATION,
            partitions: vec![PartitionId(0)],
            geometry,
            seed: 5,
            hybrid: HybridSettings::default(),
        });
        Self { shard, oracle }
    }

    /// Runs a command on both. Returns the outcome and the number of nodes that the shard examined.
    fn step(&mut self, command: Command) -> (Outcome, u64) {
        let mut outcomes = Vec::new();
        self.shard.step([Command::Export], Time(0), &mut outcomes);
        if let Some(Outcome::Exported(state)) = outcomes.pop() {
            self.oracle.set_rng(state.policy.rng);
        }
        let before = self.shard.visits().nodes;
        self.shard.step([command.clone()], Time(0), &mut outcomes);
        let outcome = outcomes.pop().expect("one outcome");
        self.oracle.compare(&command, &outcome).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        (outcome, self.shard.visits().nodes - before)
    }
}

#[test]
fn preferences_over_many_nodes_are_the_oracles() {
    let mut rng = Rng::new(21);
    let mut pair = Pair::new();
    for number in 1..=NODES {
        let spec = spec(number, &mut rng);
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        pair.step(Command::AddNode(Box::new(NodeRegistration {
            id,
            ordinal,
            partition: PartitionId(0),
            agent: None,
            spec,
        })));
    }
    let mut live: Vec<AllocationId> = Vec::new();
    let mut by_fallback = 0;
    let mut visited: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for round in 0..1200u64 {
        let policy = Policy::ALL[round as usize % Policy::ALL.len()];
        let asked = request(policy, &mut rng);
        let (outcome, looked_at) = pair.step(Command::Place(asked.clone()));
        if let Outcome::Place(Ok(placement)) = &outcome {
            live.push(placement.allocation);
            by_fallback += u64::from(placement.alternative > 0);
        }
        // A search ends near its start or draws a few times. The hybrid policy visits all nodes when fewer fit
        // than it draws from.
        visited.entry(policy.name()).or_default().push(looked_at);
        let node = NodeId(rng.below(NODES) + 1);
        match rng.below(16) {
            0 => drop(pair.step(Command::UpdateNode(node, Box::new(spec(node.0, &mut rng))))),
            1 => drop(pair.step(Command::Life(node, LifeEvent::Drain))),
            2 => drop(pair.step(Command::Life(node, LifeEvent::Undrain))),
            3 => drop(pair.step(Command::RemoveNode { node, force: true })),
            4..8 if !live.is_empty() => {
                let at = rng.below(live.len() as u64) as usize;
                let released = Command::Release(live.swap_remove(at));
                pair.step(released);
            }
            _ => {}
        }
        if round % 100 == 0 {
            pair.shard.check_invariants().expect("the books, ranks and orders are right");
        }
    }
    for (policy, mut looked_at) in visited {
        looked_at.sort_unstable();
        let median = looked_at[looked_at.len() / 2];
        let most = looked_at[looked_at.len() - 1];
        println!("{policy}: {median} nodes at the median, {most} at most");
        let (median_max, most_max) = match policy {
            "hybrid" => (NODES / 2, 3 * NODES),
            "random" => (NODES / 4, NODES),
            // Fragmentation-aware policies rate the nodes that changed since the last request of the shape. A
            // new shape rates all nodes once. So do new preferences that favour few nodes.
            "fgd" | "least-stranded" => (NODES / 16, 2 * NODES + CANDIDATE_WALK_MAX as u64),
            _ => (8, CANDIDATE_WALK_MAX as u64),
        };
        assert!(median <= median_max && most <= most_max, "{policy}: {median} at the median, {most} at most");
    }
    assert!(by_fallback > 20, "{by_fallback} placements by a fallback");
}
