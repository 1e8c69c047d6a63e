//! The memory used by a shard, per structure.

use crate::memory::{Per, StructureBytes, of_btree};
use crate::shard::Shard;

impl Shard {
    /// Returns the bytes of every structure that grows. O(nodes): not for the hot path.
    ///
    /// Texts (names, label keys and values) are shared with the catalog that the registrar publishes. They are
    /// counted as if each node had its own name and labels.
    #[must_use]
    pub fn memory(&self) -> Vec<StructureBytes> {
        let mut table = Vec::new();
        let mut add = |name, per, bytes| table.push(StructureBytes { name, bytes, per });
        let Self { books, choose, pending, statements, .. } = self;
        books.nodes.memory(|name, bytes| add(name, Per::Node, bytes));
        add("nodes by order of registration", Per::Node, of_btree(books.by_ordinal.len(), 16));
        books.ledger.memory(|name, bytes| add(name, Per::Allocation, bytes));
        books.adopted.memory(|name, bytes| add(name, Per::Allocation, bytes));
        pending.memory(|name, bytes| add(name, Per::Waiting, bytes));
        add("withheld amounts", Per::Shard, books.entries.bytes());
        statements.memory(|name, bytes| add(name, Per::Shard, bytes));
        add("releasing allocations", Per::Shard, books.releasing.bytes());
        add("leases", Per::Shard, books.leases.bytes());
        add("claims", Per::Shard, books.claims.bytes());
        add("bundles and what is in them", Per::Shard, books.bundles.bytes());
        if let Some((reader, handed_over)) = self.publish.views() {
            add("changes that are handed over for views", Per::Node, handed_over);
            add("the newest view", Per::Node, reader.latest().extent().bytes);
            add("past views that are kept, at most", Per::Shard, reader.retained().bytes);
        }
        choose.memory(add);
        table
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::{Incarnation, NodeId, Ordinal, PartitionId, ShardId, TenantId};
    use crate::index::Geometry;
    use crate::memory::Per;
    use crate::node::{Labels, NodeRegistration, NodeSpec};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand, GpuRequest};
    use crate::shard::{Adoption, Command, Home, Park, Shard, ShardConfig, WaitToken};
    use crate::time::Time;

    fn sum(shard: &Shard, per: Per) -> u64 {
        shard.memory().iter().filter(|structure| structure.per == per).map(|structure| structure.bytes).sum()
    }

    fn empty() -> Shard {
        Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: crate::shard::HybridSettings::default(),
        })
    }

    fn spec(id: u64) -> NodeSpec {
        NodeSpec {
            name: format!("node-{id}").into(),
            identity: None,
            cpu: Amount::whole(96),
            memory: Amount::whole(384 * 1024),
            gpus: 8,
            custom: None,
            labels: Labels::new(vec![("zone".into(), format!("zone-{}", id % 8).into())]).unwrap(),
            taints: crate::node::Taints::default(),
        }
    }

    #[test]
    fn nodes_and_allocations_are_within_their_bounds() {
        let mut shard = empty();
        // Powers of two, so that vectors that double have no spare capacity.
        let nodes = 1024;
        let allocations = 4096;
        let mut outcomes = Vec::new();
        for id in 1..=nodes {
            let spec = spec(id);
            let ordinal = Ordinal(id);
            let id = NodeId(id);
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
        assert_eq!(shard.status(None).allocations, u64::from(allocations));
        let per_node = sum(&shard, Per::Node) / nodes;
        let per_allocation = (sum(&shard, Per::Allocation) - before) / u64::from(allocations);
        assert!((200..=1024).contains(&per_node), "{per_node} bytes per node: {:?}", shard.memory());
        assert!((40..=128).contains(&per_allocation), "{per_allocation} bytes: {:?}", shard.memory());
    }

    fn row(shard: &Shard, name: &str) -> u64 {
        shard.memory().iter().find(|structure| structure.name == name).expect("a row of this name").bytes
    }

    /// The structures of policies and preferences have rows as soon as they are used.
    #[test]
    fn what_policies_keep_has_rows_of_its_own() {
        use crate::request::{Preferences, RankRules};
        let mut shard = empty();
        let mut outcomes = Vec::new();
        for id in 1..=1024 {
            let spec = spec(id);
            let ordinal = Ordinal(id);
            let id = NodeId(id);
            let node = NodeRegistration { id, ordinal, partition: PartitionId(0), agent: None, spec };
            shard.step([Command::AddNode(Box::new(node))], Time(0), &mut outcomes);
        }
        let has = |shard: &Shard, name: &str| shard.memory().iter().any(|row| row.name == name);
        let mut place = |shard: &mut Shard, policy, preferences| {
            let demand =
                Demand { cpu: Amount::whole(1), gpu: GpuRequest::Fraction(5000), ..Demand::default() };
            let request = PlacementRequest { preferences, ..PlacementRequest::new(demand, policy) };
            shard.step([Command::Place(request)], Time(0), &mut outcomes);
        };
        assert!(!has(&shard, "hybrid order") && !has(&shard, "fragmentation of nodes"));
        place(&mut shard, Policy::Hybrid, None);
        assert!((1024 * 40..1024 * 400).contains(&row(&shard, "hybrid order")));
        place(&mut shard, Policy::Fgd, None);
        let kept = row(&shard, "fragmentation of nodes");
        assert!((1024 * 64..1024 * 400).contains(&kept), "{kept}");
        // The table of remembered results alone has 32,768 entries of 16 bytes.
        assert!(row(&shard, "fragmentation tables, short lists") >= 16 << 15);
        let before = row(&shard, "rankings of preferences");
        let preferences = Preferences {
            rules: Some(std::sync::Arc::new(RankRules::new(Vec::new(), Vec::new(), Vec::new()).unwrap())),
            avoid_gpu: true,
            ..Preferences::default()
        };
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let preferences = Some(std::sync::Arc::new(preferences));
        let request = PlacementRequest { preferences, ..PlacementRequest::new(demand, Policy::BestFit) };
        shard.step([Command::Place(request)], Time(0), &mut outcomes);
        assert!(row(&shard, "rankings of preferences") >= before + 1024 / 8, "a bit per node");
    }

    /// The rows of waiting requests and adoptions grow with their number, and shrink when these end.
    #[test]
    fn waiting_requests_and_adoptions_have_rows_of_their_own() {
        let mut shard = empty();
        let mut outcomes = Vec::new();
        let id = NodeId(1);
        let ordinal = Ordinal(1);
        let node = NodeRegistration { id, ordinal, partition: PartitionId(0), agent: None, spec: spec(1) };
        shard.step([Command::AddNode(Box::new(node))], Time(0), &mut outcomes);
        let rows = ["waiting requests", "shapes of waiting requests", "external ids of adoptions"];
        assert_eq!(rows.map(|name| row(&shard, name)), [0; 3]);
        let park = |number: u64| {
            // Half of them have the same request; each of the others has a different one.
            let cpu = Amount::whole(100 + if number.is_multiple_of(2) { 0 } else { number as u32 });
            let request = PlacementRequest::new(Demand { cpu, ..Demand::default() }, Policy::BestFit);
            let token = WaitToken { port: 0, number };
            Command::Park(Box::new(Park { token, request, priority: 0, since: Time(0), home: Home::Here }))
        };
        let adopt = |number: u64| {
            Command::Adopt(Box::new(Adoption {
                node: id,
                demand: Demand { cpu: Amount::from_milli(1), ..Demand::default() },
                gpus: None,
                units: Vec::new(),
                external_id: Some(format!("pod-{number:010}").into()),
                tenant: TenantId::OPERATOR,
            }))
        };
        shard.step((0..1000).map(park), Time(0), &mut outcomes);
        shard.step((0..1000).map(adopt), Time(0), &mut outcomes);
        let [waiting, shapes, names] = rows.map(|name| row(&shard, name));
        let copy = size_of::<PlacementRequest>() as u64;
        assert!((1000 * copy..8000 * copy).contains(&waiting), "{waiting} bytes of 1,000 copies");
        assert!((500 * copy..501 * 8192).contains(&shapes), "{shapes} bytes of 501 shapes");
        assert!((50_000..500_000).contains(&names), "{names} bytes of 1,000 names");
        // Twice the number takes about twice the memory. Ended requests leave only spare capacity behind.
        shard.step((1000..2000).map(park), Time(0), &mut outcomes);
        assert!((waiting * 3 / 2..waiting * 3).contains(&row(&shard, rows[0])));
        assert!((shapes * 3 / 2..shapes * 3).contains(&row(&shard, rows[1])));
        let ends = (0..2000).map(|number| Command::Unpark(WaitToken { port: 0, number }));
        shard.step(ends, Time(0), &mut outcomes);
        assert!(row(&shard, rows[1]) < shapes * 3);
        assert_eq!(shard.status(None).allocations, 1000);
    }
}
