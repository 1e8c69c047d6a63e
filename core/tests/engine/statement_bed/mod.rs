//! A shard with a few nodes. It is stepped command by command, and its invariants are checked after each.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use crate::by_hand::{lone_shard, node_spec, open, shards_of};
use wharf_core::hash::StateHash;
use wharf_core::ids::{
    AllocationId, BundleId, GroupId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, StatementId,
    TenantId,
};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::node::NodeRegistration;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::shard::{
    BundleRejection, Command, NodeBooks, Outcome, Released, Reserve, Shard, UnknownStatement,
};
use wharf_core::state::StoreState;
use wharf_core::statement::{
    Allocate, Applied, CommitMode, ConflictDetection, Evict, Operation, Part, Pipeline, Prepare, Prepared,
};
use wharf_core::time::Time;

/// The shard and the time.
pub(crate) struct Bed {
    pub(crate) shard: Shard,
    pub(crate) now: u64,
}

impl Bed {
    /// Creates nodes n1, n2, … with these cores (and MiB) and GPUs.
    pub(crate) fn with_nodes(nodes: &[(u32, u8)]) -> Self {
        let mut bed = Self { shard: lone_shard(), now: 0 };
        for (id, &(cpu, gpus)) in (1u64..).zip(nodes) {
            let spec = node_spec(&format!("n{id}"), cpu, gpus);
            let partition = PartitionId(0);
            let agent = None;
            let node = NodeRegistration { id: NodeId(id), ordinal: Ordinal(id), partition, spec, agent };
            bed.step(Command::AddNode(Box::new(node)));
        }
        bed
    }

    /// Returns the same state in another start.
    pub(crate) fn reopened(mut self) -> Self {
        let Outcome::Exported(exported) = self.step(Command::Export) else { panic!("an export") };
        let mut state = StoreState::create(1);
        state.partitions = exported.partitions;
        (state.now, state.registrar.next_node) = (Time(self.now), 1_000);
        let shard = shards_of(open(state, 1, 1)).remove(0);
        shard.check_invariants().expect("the books are right");
        Self { shard, now: self.now + 100 }
    }

    pub(crate) fn place_into(
        &mut self,
        bundle: AllocationId,
        demand: Demand,
    ) -> Result<Placement, BundleRejection> {
        self.place_into_any(&[bundle], demand)
    }

    pub(crate) fn place_into_any(
        &mut self,
        bundles: &[AllocationId],
        demand: Demand,
    ) -> Result<Placement, BundleRejection> {
        match self.step(Command::PlaceInto { bundles: bundles.into(), demand: Box::new(demand) }) {
            Outcome::PlaceInto(placed) => placed.map(|placement| *placement),
            other => panic!("{other:?}"),
        }
    }

    /// Advances the time by one and executes a command.
    pub(crate) fn step(&mut self, command: Command) -> Outcome {
        self.now += 1;
        let mut outcomes = Vec::new();
        self.shard.step([command], Time(self.now), &mut outcomes);
        self.shard.check_invariants().expect("the books are right");
        outcomes.pop().expect("one outcome")
    }

    pub(crate) fn idle_until(&mut self, now: u64) {
        self.now = now;
        self.shard.step([], Time(now), &mut Vec::new());
        self.shard.check_invariants().expect("the books are right");
    }

    pub(crate) fn place(&mut self, demand: Demand) -> AllocationId {
        let request = PlacementRequest { demand, ..crate::by_hand::cores(0) };
        match self.step(Command::Place(request)) {
            Outcome::Place(Ok(placed)) => placed.allocation,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&mut self, id: AllocationId) {
        let outcome = self.step(Command::Release(id));
        assert!(
            matches!(outcome, Outcome::Release(Ok(Released { allocation: released, inside: None })) if released == id),
            "{outcome:?}"
        );
    }

    pub(crate) fn remove(&mut self, node: u64, force: bool) -> Outcome {
        self.step(Command::RemoveNode { node: NodeId(node), force })
    }

    pub(crate) fn reserve(&mut self, node: u64, owner: u64, demand: Demand, after: Option<u64>) -> Outcome {
        let owner = OwnerId::new(owner).expect("not 0");
        let until = after.map(|after| Time(self.now + after));
        self.shard.set_reserved_nodes_percent(100);
        self.step(Command::Reserve(Box::new(Reserve { node: NodeId(node), owner, demand, until })))
    }

    pub(crate) fn books(&mut self, node: u64) -> NodeBooks {
        match self.step(Command::NodeBooks(NodeId(node))) {
            Outcome::Books(Ok(books)) => *books,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn version(&mut self, node: u64) -> u64 {
        let Outcome::Nodes(nodes) = self.step(Command::ListNodes { after: Ordinal(0), limit: 1000 }) else {
            panic!("a list of nodes")
        };
        nodes.iter().find(|known| known.registration.id == NodeId(node)).expect("registered").version
    }

    /// Returns everything that must be unchanged when nothing was done.
    pub(crate) fn books_and_hash(&mut self) -> (Vec<NodeBooks>, StateHash) {
        let Outcome::Nodes(nodes) = self.step(Command::ListNodes { after: Ordinal(0), limit: 1000 }) else {
            panic!("a list of nodes")
        };
        let books = nodes.iter().map(|node| self.books(node.registration.id.0)).collect();
        (books, self.shard.state_hash())
    }

    /// Prepares a part. `deadline` is relative to now.
    pub(crate) fn prepare(&mut self, part: Part, deadline: u64) -> Prepared {
        let deadline = Time(self.now + deadline);
        let cell = Arc::new(DecisionCell::default());
        match self.step(Command::Prepare(Box::new(Prepare { part, deadline, cell }))) {
            Outcome::Prepared(prepared) => *prepared,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn finish(&mut self, number: u64, decision: Decision) -> Applied {
        match self.step(Command::Finish { statement: statement(number), decision }) {
            Outcome::Applied(Ok(applied)) => *applied,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn finish_rejected(&mut self, number: u64, decision: Decision) -> UnknownStatement {
        match self.step(Command::Finish { statement: statement(number), decision }) {
            Outcome::Applied(Err(unknown)) => unknown,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn apply(&mut self, part: Part) -> Applied {
        match self.step(Command::Apply(Box::new(part))) {
            Outcome::Applied(Ok(applied)) => *applied,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn statement(number: u64) -> StatementId {
    StatementId { incarnation: Incarnation(1), planner: 0, number }
}

/// Returns a part with all-or-nothing commit and fine conflict detection.
pub(crate) fn part(number: u64, operations: impl IntoIterator<Item = Operation>) -> Part {
    Part {
        statement: statement(number),
        operations: (0..).zip(operations).collect(),
        conflict_detection: ConflictDetection::Fine,
        mode: CommitMode::AllOrNothing,
    }
}

pub(crate) fn incremental(part: Part) -> Part {
    Part { mode: CommitMode::Incremental, ..part }
}

pub(crate) fn coarse(part: Part) -> Part {
    Part { conflict_detection: ConflictDetection::Coarse, ..part }
}

pub(crate) fn allocation(node: u64, demand: Demand) -> Allocate {
    Allocate {
        node: NodeId(node),
        expected: None,
        demand,
        gpus: None,
        owner: None,
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    }
}

pub(crate) fn allocate(node: u64, demand: Demand) -> Operation {
    Operation::Allocate(allocation(node, demand))
}

pub(crate) fn evict(allocation: AllocationId, grace_ns: u64) -> Operation {
    Operation::Evict(Evict { allocation, expected: None, grace_ns })
}

pub(crate) fn cores(count: u32) -> Demand {
    Demand { cpu: Amount::whole(count), ..Demand::default() }
}

/// Returns a demand of one core and this amount of GPUs.
pub(crate) fn gpus(amount: &str) -> Demand {
    let gpu = GpuRequest::from_amount(amount.parse().expect("an amount")).expect("whole, or a part");
    Demand { gpu, ..cores(1) }
}

/// Returns the bundle of a group at this index.
pub(crate) fn bundle(group: u64, index: u32) -> BundleId {
    BundleId {
        group: GroupId { incarnation: Incarnation(1), number: group, tenant: TenantId::OPERATOR },
        index,
    }
}

pub(crate) fn pipeline(node: u64, demand: Demand) -> Operation {
    Operation::Pipeline(Pipeline {
        node: NodeId(node),
        expected: None,
        demand,
        bundle: None,
        tenant: TenantId::OPERATOR,
    })
}

pub(crate) fn pipeline_bundle(node: u64, demand: Demand, bundle: BundleId) -> Operation {
    Operation::Pipeline(Pipeline {
        node: NodeId(node),
        expected: None,
        demand,
        bundle: Some(bundle),
        tenant: TenantId::OPERATOR,
    })
}
