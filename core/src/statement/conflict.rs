//! Conflicts: the reason why an operation was not possible, with the facts that a new plan needs.

use crate::ids::{AllocationId, BundleId, NodeId, OwnerId, StatementId};
use crate::limits::CLAIMS_PER_NODE_MAX;
use crate::node::NodeState;
use crate::resource::{Amount, ResourceKind};

/// An operation that conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The index of the operation in the statement.
    pub operation: u16,
    /// The node concerned, if any.
    pub node: Option<NodeId>,
    /// The current version of the node.
    pub version: Option<u64>,
    /// The reason.
    pub reason: ConflictReason,
}

/// The reason why an operation conflicts.
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
        /// The version that the plan was made on.
        expected: u64,
        /// The current version.
        found: u64,
    },
    /// The operation names no version, but coarse conflict detection compares versions.
    #[error("coarse conflict detection compares versions, and the operation expects none: name one")]
    NoVersion,
    /// Less is available than requested. A claim can get what is available or being released, less other
    /// claims.
    #[error("{asked} of {kind} is asked, and {available} can be had")]
    Short {
        /// The first resource that falls short.
        kind: ResourceKind,
        /// The amount requested.
        asked: Amount,
        /// The amount that can be had.
        available: Amount,
    },
    /// A requested GPU instance does not exist or has not enough free.
    #[error("GPU instance {0} has not enough free, or is not there")]
    InstanceTaken(u8),
    /// The available capacity is reserved for an owner.
    #[error("what is available is reserved for owner {0}")]
    Reserved(OwnerId),
    /// The allocation is not live.
    #[error("allocation {0} is not live: it was never granted, was released, or ended with its node")]
    UnknownAllocation(AllocationId),
    /// The allocation is placed into a bundle.
    #[error("the allocation is placed into bundle {0}: release it, or evict the bundle")]
    InBundle(AllocationId),
    /// Another undecided statement evicts the allocation.
    #[error("statement {0} is about to evict the allocation")]
    HeldBy(StatementId),
    /// The allocation is being released already.
    #[error("the allocation is being released already")]
    AlreadyReleasing,
    /// The bundle is already placed.
    #[error("bundle {0} is placed already")]
    BundlePlaced(BundleId),
    /// The node has the maximum number of claims.
    #[error("the node has {CLAIMS_PER_NODE_MAX} claims already: wait until some of them are granted")]
    TooManyClaims,
    /// The node has the maximum number of allocations.
    #[error(
        "the node holds as many allocations as one may (setting `allocations_per_node_max`): take another node, or wait until some end"
    )]
    TooManyAllocations,
    /// Another operation of the same statement contradicts it. That operation evicts the same allocation,
    /// expects another version of the same node, or places the same bundle.
    #[error("it contradicts operation {0} of the same statement")]
    Contradicts(u16),
    /// The statement was prepared before.
    #[error("the statement was prepared before: an id names one statement")]
    Repeated,
}
