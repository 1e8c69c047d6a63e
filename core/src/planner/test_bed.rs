//! What unit tests of planners share: shards that tests step themselves, and the copies of them.

use std::sync::Arc;

use super::colocate::Item;
use super::draft::Replicas;
use super::strategy::Wanted;
use crate::group::Strategy;
use crate::ids::{Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use crate::index::Geometry;
use crate::node::{Labels, NodeRegistration, NodeSpec, Taints};
use crate::replica::Replica;
use crate::request::{PlacementRequest, Policy};
use crate::resource::{Amount, Demand};
use crate::shard::{Command, HybridSettings, NodeChange, Outcome, Shard, ShardConfig};
use crate::time::Time;

/// Shards of one partition each, and copies that follow their views.
pub(super) struct Bed {
    shards: Vec<Shard>,
    pub(super) replicas: Replicas,
    nodes: u64,
}

impl Bed {
    pub(super) fn new(shards: u16) -> Self {
        let config = |number| ShardConfig {
            shard: ShardId(number),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(number)],
            geometry: Geometry::default(),
            seed: 1,
            hybrid: HybridSettings::default(),
        };
        let mut shards: Vec<Shard> = (0..shards).map(|number| Shard::new(config(number))).collect();
        let copy = |(number, shard): (u16, &mut Shard)| {
            Replica::new(Shard::replica(config(number)), shard.enable_views())
        };
        let copies = (0..).zip(&mut shards).map(copy).collect();
        Self { shards, replicas: Replicas::new(copies, 1), nodes: 0 }
    }

    /// Has a shard carry out a command; its copy learns of it with the next [`sync`](Self::sync).
    pub(super) fn step(&mut self, shard: usize, command: Command) -> Outcome {
        let mut outcomes = Vec::new();
        self.shards[shard].step([command], Time::default(), &mut outcomes);
        outcomes.remove(0)
    }

    /// A node more of a shard; where it has an agent, it takes work after its first beat.
    pub(super) fn add(&mut self, shard: usize, spec: NodeSpec, has_agent: bool) -> NodeId {
        self.nodes += 1;
        let id = NodeId(self.nodes);
        let ordinal = Ordinal(self.nodes);
        let partition = PartitionId(u16::try_from(shard).expect("few shards"));
        let agent = has_agent.then(Arc::default);
        let registration = NodeRegistration { id, ordinal, partition, spec, agent };
        let outcome = self.step(shard, Command::AddNode(Box::new(registration)));
        assert!(matches!(outcome, Outcome::Node(Ok(NodeChange::Added(added))) if added == id), "{outcome:?}");
        id
    }

    /// Publishes a view of each shard where anything changed, and has the copies follow.
    pub(super) fn sync(&mut self) {
        for (shard, copy) in self.shards.iter_mut().zip(&mut self.replicas.copies) {
            shard.publish_view();
            copy.sync();
        }
    }
}

/// A node of so many cores, with these labels.
pub(super) fn node_of(cpu: u32, labels: &[(&str, &str)]) -> NodeSpec {
    let labels = labels.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    NodeSpec {
        name: "n".into(),
        identity: None,
        cpu: Amount::whole(cpu),
        memory: Amount::ZERO,
        gpus: 0,
        custom: None,
        labels: Labels::new(labels).expect("each key once"),
        taints: Taints::default(),
    }
}

/// A request for so many cores.
pub(super) fn cores(cpu: u32) -> PlacementRequest {
    PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit)
}

/// Bundles that ask this, numbered from 0.
pub(super) fn items_of(requests: impl IntoIterator<Item = PlacementRequest>) -> Vec<Item> {
    let item = |(bundle, request)| Item { bundle, request: Arc::new(request) };
    (0..).zip(requests).map(item).collect()
}

/// All of these bundles, where none is placed yet and no rule binds them.
pub(super) fn wanted_of(strategy: Strategy, items: Vec<Item>) -> Wanted {
    let least = items.len();
    Wanted { strategy, topology: None, items, standing: Vec::new(), settled: Vec::new(), least }
}
