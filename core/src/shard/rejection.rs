//! The reasons why a shard does not carry out a command, one type per family of commands. A rejected command changed
//! nothing.

use crate::ids::{AllocationId, NodeId, OwnerId, SessionId, StatementId};
use crate::limits::CUSTOM_RESOURCES_MAX;
use crate::node::IllegalChange;
use crate::resource::{Amount, ResourceKind};
use crate::time::Time;

/// The node is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {0} is not registered: list the nodes to see which are")]
pub struct UnknownNode(pub NodeId);

/// The allocation is not live: it was never granted, was released, ended with its node, or its lease ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "allocation {0} is not live: it was never granted, was released, ended with its node, or its lease ran out"
)]
pub struct UnknownAllocation(pub AllocationId);

/// The reason why a lease was not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRejection {
    /// The allocation is not live. Its lease may have run out.
    #[error(transparent)]
    UnknownAllocation(#[from] UnknownAllocation),
    /// The allocation has no lease.
    #[error("allocation {0} has no lease: it lasts until it is released")]
    NoLease(AllocationId),
    /// The lease belongs to a session.
    #[error("the lease of allocation {0} belongs to session {1}: renew the leases of the session")]
    OfSession(AllocationId, SessionId),
}

/// The statement is not in progress on this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("statement {0} is not under way here: it was never prepared, was aborted, or was finished before")]
pub struct UnknownStatement(pub StatementId);

/// The node has the maximum number of allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {0} holds as many allocations as one may (setting `allocations_per_node_max`): release some, or raise the setting"
)]
pub struct TooManyAllocations(pub NodeId);

/// The reason why a node was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeRejection {
    /// The node is not registered.
    #[error(transparent)]
    Unknown(#[from] UnknownNode),
    /// The node has this number of allocations, so it cannot be removed without force.
    #[error("node {0} holds {1} allocations: release them, or remove it with force")]
    InUse(NodeId, u32),
    /// An undecided statement involves the node: this one, and possibly others.
    #[error("node {0} is part of statement {1}, which is not decided yet: try again after it is")]
    Held(NodeId, StatementId),
    /// The event is not legal in the node's state.
    #[error("node {0} {1}")]
    IllegalChange(NodeId, IllegalChange),
    /// More custom kinds than a node can have.
    #[error("node {0} would have more than {CUSTOM_RESOURCES_MAX} custom resources: set one of them to 0")]
    TooManyResources(NodeId),
}

/// The reason why an allocation was not adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptionRejection {
    /// The node is not registered.
    #[error(transparent)]
    UnknownNode(#[from] UnknownNode),
    /// The adoption names a different number of instances than its demand takes.
    #[error("{given} instances of {kind} are named, and {asked} are taken: name as many, or none")]
    InstanceCount {
        /// The resource.
        kind: ResourceKind,
        /// The number of instances named.
        given: u32,
        /// The number of instances that the demand takes.
        asked: u32,
    },
    /// The adoption names an instance that the node does not have.
    #[error(
        "node {node} has {count} instances of {kind}, and not number {instance}: name lower ones, or none"
    )]
    NoSuchInstance {
        /// The node.
        node: NodeId,
        /// The resource.
        kind: ResourceKind,
        /// The instance.
        instance: u8,
        /// The number of instances that the node has.
        count: u8,
    },
    /// The node has another allocation with this external id.
    #[error(
        "node {0} has allocation {1} of that external id, with another demand: release it first, or give another id"
    )]
    ExternalIdTaken(NodeId, AllocationId),
    /// The use beyond capacity would exceed what can be counted.
    #[error(
        "node {0} would have more in use beyond its capacity than can be counted: release something first"
    )]
    ShortfallTooLarge(NodeId),
    /// The node has the maximum number of allocations.
    #[error(transparent)]
    TooManyAllocations(#[from] TooManyAllocations),
}

/// The reason why a reservation was not made or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationRejection {
    /// The node is not registered.
    #[error(transparent)]
    UnknownNode(#[from] UnknownNode),
    /// The node is reserved for another owner, until the given time if there is one.
    #[error(
        "node {0} is reserved for owner {1}{ends}: reserve another node, or end that reservation first",
        ends = ending(*.2)
    )]
    Taken(NodeId, OwnerId, Option<Time>),
    /// The owner has no reservation on the node. The second owner is that of the existing reservation, if any.
    #[error("node {0} is not reserved for owner {1}{held}", held = held_by(*.2))]
    NotReserved(NodeId, OwnerId, Option<OwnerId>),
    /// The reservation exceeds the capacity that the empty node has of a resource.
    #[error("node {0} has {2} of {1} in all: reserve no more than that, or a larger node")]
    TooMuch(NodeId, ResourceKind, Amount),
    /// The reservation is empty.
    #[error("nothing is to be reserved on node {0}: say how much of which resource")]
    Nothing(NodeId),
    /// The reservation would end before it begins.
    #[error("the reservation of node {0} would end at once: give a later end, or none")]
    DeadlinePassed(NodeId),
    /// The maximum number of nodes is already reserved, which is the given share of the shard's nodes in percent.
    #[error(
        "{1} nodes of node {0}'s shard are reserved, which is all that may be ({2} % of its nodes): end a reservation first, or raise `reserved_nodes_percent`"
    )]
    TooManyNodes(NodeId, u32, u8),
}

/// The reason why nothing was placed into a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleRejection {
    /// The allocation of the bundle is not live.
    #[error(transparent)]
    Unknown(#[from] UnknownAllocation),
    /// The allocation is not a bundle.
    #[error("allocation {0} is no bundle: place into an allocation that a group made as one")]
    NotABundle(AllocationId),
    /// The bundle is still a claim.
    #[error(
        "bundle {0} waits for what is being released on its node: place into it when it is an allocation"
    )]
    Pending(AllocationId),
    /// The bundle is releasing.
    #[error("bundle {0} is being released: place into another one")]
    Releasing(AllocationId),
    /// The node of the bundle is lost.
    #[error("bundle {0} is on node {1}, which is lost: place into another one, or wait for it")]
    Lost(AllocationId, NodeId),
    /// The node of the bundle has the maximum number of allocations.
    #[error(transparent)]
    TooManyAllocations(#[from] TooManyAllocations),
    /// The bundle has less free than requested.
    #[error("{asked} of {kind} is asked of bundle {bundle}, and {available} can be had")]
    Short {
        /// The bundle.
        bundle: AllocationId,
        /// The first resource that falls short.
        kind: ResourceKind,
        /// The amount requested.
        asked: Amount,
        /// The amount that is free.
        available: Amount,
    },
}

fn ending(until: Option<Time>) -> &'static str {
    if until.is_some() { ", for a time" } else { "" }
}

fn held_by(holder: Option<OwnerId>) -> String {
    match holder {
        Some(holder) => format!(", but for owner {holder}: name that one"),
        None => ": it is not reserved at all, or not any more".to_owned(),
    }
}
