//! Why an operation of a statement could not be done: the facts, so that the loser can plan anew
//! on them and not on what it believed.

use crate::ids::{AllocationId, BundleId, NodeId, OwnerId, StatementId};
use crate::limits::CLAIMS_PER_NODE_MAX;
use crate::node::NodeState;
use crate::resource::{Amount, ResourceKind};

/// An operation that conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its place in the statement.
    pub operation: u16,
    /// The node concerned, where there is one.
    pub node: Option<NodeId>,
    /// The version that the node has now.
    pub version: Option<u64>,
    /// Why.
    pub reason: ConflictReason,
}

/// Why an operation conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConflictReason {
    /// The node is not registered with this shard.
    #[error("the node is not registered: list the nodes to see which are")]
    UnknownNode,
    /// The node takes no new work.
    #[error("the node takes no new work: it is {0}")]
    NotReady(NodeState),
    /// The node changed (coarse conflict detection only).
    #[error("the node was planned on at version {expected}, and it has version {found}")]
    VersionChanged {
        /// Planned on.
        expected: u64,
        /// Found.
        found: u64,
    },
    /// Coarse conflict detection compares versions, and the operation names none.
    #[error("coarse conflict detection compares versions, and the operation expects none: name one")]
    NoVersion,
    /// Less is available than asked. For a claim: than is available and being released, less other claims.
    #[error("{asked} of {kind} is asked, and {available} can be had")]
    Short {
        /// Of which resource: the first that falls short.
        kind: ResourceKind,
        /// Asked.
        asked: Amount,
        /// What can be had.
        available: Amount,
    },
    /// A GPU instance that was asked for by name is not free, or not there.
    #[error("GPU instance {0} has not enough free, or is not there")]
    InstanceTaken(u8),
    /// What is available there is reserved.
    #[error("what is available is reserved for owner {0}")]
    Reserved(OwnerId),
    /// The allocation is not live.
    #[error("allocation {0} is not live: it was never granted, was released, or ended with its node")]
    UnknownAllocation(AllocationId),
    /// The allocation is placed into a bundle.
    #[error("the allocation is placed into bundle {0}: release it, or evict the bundle")]
    InBundle(AllocationId),
    /// Another statement is about to evict the allocation.
    #[error("statement {0} is about to evict the allocation")]
    HeldBy(StatementId),
    /// The allocation is being released already.
    #[error("the allocation is being released already")]
    AlreadyReleasing,
    /// The bundle stands on some node already.
    #[error("bundle {0} is placed already")]
    BundlePlaced(BundleId),
    /// The node has as many claims as one may have.
    #[error("the node has {CLAIMS_PER_NODE_MAX} claims already: wait until some of them are granted")]
    TooManyClaims,
    /// The node holds as many allocations as one may.
    #[error(
        "the node holds as many allocations as one may (setting `allocations_per_node_max`): take another node, or wait until some end"
    )]
    TooManyAllocations,
    /// Another operation of the same statement forbids it: it evicts the same allocation, or
    /// expects another version of the same node, or is the same bundle.
    #[error("it contradicts operation {0} of the same statement")]
    Contradicts(u16),
    /// The statement was under way already.
    #[error("the statement was prepared before: an id stands for one statement")]
    Repeated,
}
