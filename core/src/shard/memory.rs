//! What a shard takes, structure by structure.

use super::Shard;
use crate::memory::{Per, StructureBytes};

impl Shard {
    /// The bytes of every structure that grows. O(nodes): not for the hot path.
    ///
    /// Texts (names, label keys and values) are shared with the catalog that the registrar
    /// publishes; they are counted here, as if each node had its name and its list of labels alone.
    #[must_use]
    pub fn memory(&self) -> Vec<StructureBytes> {
        let mut table = Vec::new();
        let mut add = |name, per, bytes| table.push(StructureBytes { name, bytes, per });
        self.nodes.memory(|name, bytes| add(name, Per::Node, bytes));
        add("index of what is free", Per::Node, self.index.bytes() as u64);
        add("index of capacities", Per::Node, self.capacities.bytes() as u64);
        self.ledger.memory(|name, bytes| add(name, Per::Allocation, bytes));
        add("reservations", Per::Shard, self.reservation_bytes());
        add("candidate sets of selectors", Per::Shard, self.selectors.memory());
        table
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::{Incarnation, NodeId, Ordinal, PartitionId, ShardId};
    use crate::index::Geometry;
    use crate::memory::Per;
    use crate::node::{Labels, NodeRegistration, NodeSpec};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand, GpuRequest};
    use crate::shard::{Command, Shard, ShardConfig};
    use crate::time::Time;

    fn sum(shard: &Shard, per: Per) -> u64 {
        shard.memory().iter().filter(|structure| structure.per == per).map(|structure| structure.bytes).sum()
    }

    #[test]
    fn nodes_and_allocations_are_within_their_bounds() {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: crate::shard::HybridSettings::default(),
        });
        // Powers of two: vectors that double have no room to spare.
        let (nodes, allocations) = (1024, 4096);
        let mut outcomes = Vec::new();
        for id in 1..=nodes {
            let spec = NodeSpec {
                name: format!("node-{id}").into(),
                identity: None,
                cpu: Amount::whole(96),
                memory: Amount::whole(384 * 1024),
                gpus: 8,
                custom: None,
                labels: Labels::new(vec![("zone".into(), format!("zone-{}", id % 8).into())]).unwrap(),
                taints: crate::node::Taints::default(),
            };
            let (id, ordinal) = (NodeId(id), Ordinal(id));
            let node = NodeRegistration { id, ordinal, partition: PartitionId(0), agent: None, spec };
            shard.step([Command::AddNode(Box::new(node))], Time(0), &mut outcomes);
        }
        let before = sum(&shard, Per::Allocation);
        for number in 0..allocations {
            let cpu = Amount::whole(1 + number % 7);
            let demand = Demand { cpu, gpu: GpuRequest::Fraction(5000), ..Demand::default() };
            shard.step(
                [Command::Place(PlacementRequest::new(demand, Policy::BestFit))],
                Time(0),
                &mut outcomes,
            );
        }
        assert_eq!(shard.status(false).allocations, u64::from(allocations));
        let per_node = sum(&shard, Per::Node) / nodes;
        let per_allocation = (sum(&shard, Per::Allocation) - before) / u64::from(allocations);
        assert!((200..=1024).contains(&per_node), "{per_node} bytes per node: {:?}", shard.memory());
        assert!((40..=128).contains(&per_allocation), "{per_allocation} bytes: {:?}", shard.memory());
    }
}
