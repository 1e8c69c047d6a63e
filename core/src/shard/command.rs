//! What goes into a shard and what comes out. Outcome `i` of a step answers command `i`.

use crate::hash::StateHash;
use crate::ids::{AllocationId, NodeId, Ordinal, PartitionId, ResourceId, ShardId};
use crate::node::{AgentReport, IllegalChange, LifeEvent, NodeRegistration, NodeSpec, NodeState, Unhealthy};
use crate::request::PlacementRequest;
use crate::resource::{Amount, GpuAssignment, GpuBooks};
use crate::shard::Refusal;

/// One input of a shard.
#[derive(Clone, Debug)]
pub enum Command {
    /// Find a node and allocate.
    Place(PlacementRequest),
    /// End an allocation.
    Release(AllocationId),
    /// A node is registered: ready, or joining where an agent keeps it.
    AddNode(Box<NodeRegistration>),
    /// New capacity and labels; also below what is in use, which is then a shortfall.
    UpdateNode(NodeId, Box<NodeSpec>),
    /// Something happens to a node: it is drained, heard of, lost.
    Life(NodeId, LifeEvent),
    /// What the node's agent found.
    Report(NodeId, Box<AgentReport>),
    /// Which GPU instances offer nothing to new work from now on, ascending; all others are healthy.
    SetHealth(NodeId, Unhealthy),
    /// The node goes.
    RemoveNode {
        /// Which.
        node: NodeId,
        /// End its allocations too; otherwise a node in use stays.
        force: bool,
    },
    /// Nodes in order of registration, those after `after`.
    ListNodes {
        /// The last ordinal already seen; `Ordinal(0)` to begin.
        after: Ordinal,
        /// At most so many.
        limit: u16,
    },
    /// Sums and counters.
    Status {
        /// Also check every invariant and compute the canonical hashes: O(state).
        audit: bool,
    },
    /// The durable state of all partitions, as at this place in the order of commands.
    Export,
}

/// One output of a shard.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Allocated.
    Placed(Placement),
    /// No node of this shard could hold it.
    Refused(Box<Refusal>),
    /// Ended.
    Released(AllocationId),
    /// Joined.
    NodeAdded(NodeId),
    /// Updated.
    NodeUpdated(NodeId),
    /// The state that the node has now.
    StateSet(NodeId, NodeState),
    /// Health set.
    HealthSet(NodeId),
    /// Gone.
    NodeRemoved {
        /// Which.
        node: NodeId,
        /// How many allocations ended with it.
        allocations_ended: u32,
    },
    /// A page of nodes.
    Nodes(Vec<NodeView>),
    /// Sums and counters.
    Status(Box<ShardStatus>),
    /// The durable state.
    Exported(Box<crate::store::ShardState>),
    /// Not done, and nothing moved.
    Rejected(Rejection),
}

/// Why a command was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No such node.
    #[error("node {0} is not registered: list the nodes to see which are")]
    UnknownNode(NodeId),
    /// No such allocation: never granted, released before, or ended with its node.
    #[error("allocation {0} is not live: it was never granted, was released, or ended with its node")]
    UnknownAllocation(AllocationId),
    /// A node that holds allocations cannot be removed without force.
    #[error("node {node} holds {allocations} allocations: release them, or remove it with force")]
    NodeInUse {
        /// Which.
        node: NodeId,
        /// How many.
        allocations: u32,
    },
    /// A node in that state cannot follow the event.
    #[error("node {node} {illegal}")]
    IllegalChange {
        /// Which.
        node: NodeId,
        /// What cannot follow.
        illegal: IllegalChange,
    },
}

/// A granted placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// The allocation, to be released by this id.
    pub allocation: AllocationId,
    /// The GPU instances, and how much of each.
    pub gpus: GpuAssignment,
    /// Which selector holds: 0 the request's own, 1 the first fallback, and so on.
    pub alternative: u8,
}

/// A node as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Capacity, labels, ids.
    pub registration: NodeRegistration,
    /// Whether it takes new work.
    pub state: NodeState,
    /// Counts the changes of this node.
    pub version: u64,
    /// Free cores.
    pub cpu_available: Amount,
    /// Free MiB.
    pub memory_available: Amount,
    /// The free part of each GPU instance; nothing of an unhealthy one.
    pub gpus_available: GpuBooks,
    /// Which instances are unhealthy, and why.
    pub unhealthy: Unhealthy,
    /// Live allocations.
    pub allocations: u32,
}

/// A resource in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Cores.
    Cpu,
    /// MiB.
    Memory,
    /// GPU devices.
    Gpu,
    /// A custom kind.
    Custom(ResourceId),
}

/// The books of one resource over all nodes, in 1/10 000 units:
/// `available + allocated + unhealthy = total + shortfall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceSum {
    /// Capacity.
    pub total: i128,
    /// Held by live allocations.
    pub allocated: i128,
    /// In use beyond capacity, where capacity was taken away below use.
    pub shortfall: i128,
    /// Free, and hidden because it is unhealthy.
    pub unhealthy: i128,
}

impl ResourceSum {
    /// What is neither allocated nor missing nor hidden.
    #[must_use]
    pub fn available(&self) -> i128 {
        self.total + self.shortfall - self.allocated - self.unhealthy
    }
}

/// Sums and counters of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// Which.
    pub shard: ShardId,
    /// Nodes that take new work.
    pub nodes_ready: u32,
    /// Nodes that do not, because their operator said so.
    pub nodes_draining: u32,
    /// Nodes whose agent has not joined them yet.
    pub nodes_joining: u32,
    /// Nodes whose agent is not heard of any more.
    pub nodes_lost: u32,
    /// Live allocations.
    pub allocations: u64,
    /// Requests placed since the start.
    pub placed: u64,
    /// Requests refused since the start; a request that spilled counts at each shard that refused it.
    pub refused: u64,
    /// Allocations released since the start.
    pub released: u64,
    /// The books per resource.
    pub resources: Vec<(ResourceKind, ResourceSum)>,
    /// The result of the audit, when one was asked for.
    pub audit: Option<Audit>,
}

/// Every invariant held, and these are the canonical hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Of the whole shard, cursors and random state included.
    pub shard: StateHash,
    /// Of each partition: equal whichever shard serves it.
    pub partitions: Vec<(PartitionId, StateHash)>,
}
