//! The inputs and outputs of a shard. Outcome `i` of a step answers command `i`.

use std::sync::Arc;

use crate::ids::{AllocationId, NodeId, Ordinal, OwnerId, ResourceId, ShardId, StatementId};
use crate::limits::CUSTOM_RESOURCES_MAX;
use crate::link::Decision;
use crate::node::{AgentReport, IllegalChange, LifeEvent, NodeRegistration, NodeSpec, NodeState, Unhealthy};
use crate::request::{Placement, PlacementRequest, Refusal};
use crate::resource::{Amount, Demand, GpuBooks, ResourceKind};
use crate::shard::state_hash::StateHashes;
use crate::shard::{NodeBooks, ReservationView, Reserve, WaitingShape};
use crate::statement::{Applied, Part, Prepare, Prepared};
use crate::time::Time;

/// One input of a shard.
#[derive(Clone, Debug)]
pub enum Command {
    /// Finds a node and allocates.
    Place(PlacementRequest),
    /// Ends an allocation.
    Release(AllocationId),
    /// Registers a node. It is ready, or joining if an agent reports it.
    AddNode(Box<NodeRegistration>),
    /// Registers a removed node again under its old id.
    RejoinNode {
        /// Same as for [`AddNode`](Self::AddNode).
        registration: Box<NodeRegistration>,
        /// The last version that it had. Its versions continue from there, so that no plan for its previous
        /// life matches.
        version: u64,
    },
    /// Replaces capacity and labels. Use beyond the new capacity becomes a shortfall.
    UpdateNode(NodeId, Box<NodeSpec>),
    /// Applies an event to a node: it is drained, sends a heartbeat, or is lost.
    Life(NodeId, LifeEvent),
    /// Reports the findings of the node's agent.
    Report(NodeId, Box<AgentReport>),
    /// Sets the unhealthy GPU instances of a node, ascending. All others are healthy.
    SetHealth(NodeId, Unhealthy),
    /// Removes a node.
    RemoveNode {
        /// The node.
        node: NodeId,
        /// True if its allocations end too. Otherwise a node in use stays.
        force: bool,
    },
    /// Lists nodes in order of registration, starting after `after`.
    ListNodes {
        /// The last ordinal already seen; `Ordinal(0)` to begin.
        after: Ordinal,
        /// The maximum number of nodes.
        limit: u16,
    },
    /// Returns sums and counters.
    Status,
    /// Reads one page of an audit. The answer to the last page is a status that contains the result.
    Audit {
        /// The audit's number from the answer to the previous page; 0 to begin.
        number: u64,
    },
    /// Counts one more page of a refusal.
    Explain(Box<Explain>),
    /// Records an allocation made by another system.
    Adopt(Box<Adoption>),
    /// Replaces the capacity of single resources of a node, all or none. Zero removes a resource. The amounts
    /// of GPUs and unit-instance kinds are whole and within the limits of a node.
    SetResources(NodeId, Box<[(ResourceKind, Amount)]>),
    /// Returns the books of one node.
    NodeBooks(NodeId),
    /// Places a request, or lets it wait if nothing fits.
    Park(Box<Park>),
    /// Tries a waiting request again after it was woken.
    Retry(WaitToken),
    /// Stops a request from waiting.
    Unpark(WaitToken),
    /// Continues with a bounded part of the deferred work. Ports never send this command. The thread that runs
    /// the shard sends it while [`Shard::is_behind`](crate::shard::Shard::is_behind).
    GoOn,
    /// Reserves capacity of a node for an owner, or replaces the owner's reservation.
    Reserve(Box<Reserve>),
    /// Ends the reservation of an owner on a node.
    EndReservation(NodeId, OwnerId),
    /// Checks this shard's part of a statement, and holds the capacity it needs.
    Prepare(Box<Prepare>),
    /// Carries out the decision on a prepared statement.
    Finish {
        /// The statement.
        statement: StatementId,
        /// The decision in the statement's cell.
        decision: Decision,
    },
    /// Checks and commits a statement that concerns only this shard.
    Apply(Box<Part>),
    /// Places into the first of some bundles that has room. Bundles are allocations that a statement created.
    PlaceInto {
        /// The allocations of the bundles, at least one and at most
        /// [`GROUP_BUNDLES_MAX`](crate::limits::GROUP_BUNDLES_MAX).
        bundles: Box<[AllocationId]>,
        /// The resources that it takes from the bundle.
        demand: Box<Demand>,
    },
    /// Returns the durable state of all partitions as of this command.
    Export,
}

/// One output of a shard.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Allocated.
    Placed(Placement),
    /// No node of this shard fits.
    Refused(Box<Refusal>),
    /// Ended.
    Released(AllocationId),
    /// A bundle ended, with everything inside.
    BundleReleased {
        /// The bundle's allocation.
        bundle: AllocationId,
        /// The number of allocations inside that ended with it.
        ended: u32,
    },
    /// The node was registered.
    NodeAdded(NodeId),
    /// The node was updated.
    NodeUpdated(NodeId),
    /// The state that the node is in now.
    StateSet(NodeId, NodeState),
    /// The health was set.
    HealthSet(NodeId),
    /// The node was removed.
    NodeRemoved {
        /// The node.
        node: NodeId,
        /// The number of allocations that ended with it.
        allocations_ended: u32,
        /// The last version that it had.
        version: u64,
    },
    /// A page of nodes.
    Nodes(Vec<NodeView>),
    /// Sums and counters.
    Status(Box<ShardStatus>),
    /// The audit continues: ask for its next page.
    Auditing {
        /// The audit's number.
        number: u64,
    },
    /// The counts over one page of nodes.
    Explained(Box<Refusal>),
    /// The allocation was recorded.
    Adopted(Placement),
    /// The books of one node.
    Books(Box<NodeBooks>),
    /// Nothing fits: the request waits. Contains the refusal that it would have received.
    Parked(Box<Refusal>),
    /// The request no longer waits.
    Unparked,
    /// Part of the deferred work was done.
    WentOn,
    /// The node is reserved as shown.
    Reserved(Box<ReservationView>),
    /// The node is no longer reserved.
    ReservationEnded(NodeId),
    /// The operations of a statement that are held, and those that conflict.
    Prepared(Box<Prepared>),
    /// The effect of a statement.
    Applied(Box<Applied>),
    /// The durable state.
    Exported(Box<crate::state::ShardState>),
    /// The command was not carried out and changed nothing.
    Rejected(Rejection),
}

impl Outcome {
    /// Returns whether a command with this outcome may have changed the durable state.
    pub(super) fn may_have_changed_books(&self) -> bool {
        !matches!(
            self,
            Self::Refused(_)
                | Self::Explained(_)
                | Self::Nodes(_)
                | Self::Status(_)
                | Self::Auditing { .. }
                | Self::Books(_)
                | Self::Parked(_)
                | Self::Unparked
                | Self::Exported(_)
                | Self::Rejected(_)
        )
    }
}

/// The next page of the counts of a refusal, over nodes that the refusal did not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// The request that was refused.
    pub request: PlacementRequest,
    /// The start of the page: [`Refusal::rest`] of the previous page.
    pub from: u32,
}

/// The reason why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The node is not registered.
    #[error("node {0} is not registered: list the nodes to see which are")]
    UnknownNode(NodeId),
    /// The allocation is not live: it was never granted, was released, or ended with its node.
    #[error("allocation {0} is not live: it was never granted, was released, or ended with its node")]
    UnknownAllocation(AllocationId),
    /// A node with allocations cannot be removed without force.
    #[error("node {node} holds {allocations} allocations: release them, or remove it with force")]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// The number of allocations.
        allocations: u32,
    },
    /// The event is not legal in the node's state.
    #[error("node {node} {illegal}")]
    IllegalChange {
        /// The node.
        node: NodeId,
        /// The change that is not legal.
        illegal: IllegalChange,
    },
    /// An adoption names a different number of instances than its demand takes.
    #[error("{given} instances of {kind} are named, and {asked} are taken: name as many, or none")]
    InstanceCount {
        /// The resource.
        kind: ResourceKind,
        /// The number of instances named.
        given: u32,
        /// The number of instances that the demand takes.
        asked: u32,
    },
    /// An adoption names an instance that the node does not have.
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
        "node {node} has allocation {allocation} of that external id, with another demand: release it first, or give another id"
    )]
    ExternalIdTaken {
        /// The node.
        node: NodeId,
        /// The allocation.
        allocation: AllocationId,
    },
    /// The use beyond capacity would exceed what can be counted.
    #[error(
        "node {0} would have more in use beyond its capacity than can be counted: release something first"
    )]
    ShortfallTooLarge(NodeId),
    /// More custom kinds than a node can have.
    #[error("node {0} would have more than {CUSTOM_RESOURCES_MAX} custom resources: set one of them to 0")]
    TooManyResources(NodeId),
    /// The node is reserved for another owner.
    #[error(
        "node {node} is reserved for owner {owner}{}: reserve another node, or end that reservation first",
        ending(*until)
    )]
    NodeReserved {
        /// The node.
        node: NodeId,
        /// The owner of the reservation.
        owner: OwnerId,
        /// The time at which the reservation ends, if any.
        until: Option<Time>,
    },
    /// The owner has no reservation on the node.
    #[error("node {node} is not reserved for owner {owner}{}", held_by(*holder))]
    NotReserved {
        /// The node.
        node: NodeId,
        /// The owner that was named.
        owner: OwnerId,
        /// The owner of the existing reservation, if any.
        holder: Option<OwnerId>,
    },
    /// The reservation exceeds the capacity of the node.
    #[error("node {node} has {capacity} of {kind} in all: reserve no more than that, or a larger node")]
    ReservedTooMuch {
        /// The node.
        node: NodeId,
        /// The resource.
        kind: ResourceKind,
        /// The capacity of the empty node.
        capacity: Amount,
    },
    /// The reservation is empty.
    #[error("nothing is to be reserved on node {0}: say how much of which resource")]
    NothingReserved(NodeId),
    /// The reservation would end before it begins.
    #[error("the reservation of node {0} would end at once: give a later end, or none")]
    DeadlinePassed(NodeId),
    /// The maximum number of nodes is already reserved.
    #[error(
        "{most} nodes of node {node}'s shard are reserved, which is all that may be ({percent} % of its nodes): end a reservation first, or raise `reserved_nodes_percent`"
    )]
    TooManyReserved {
        /// The node to reserve.
        node: NodeId,
        /// The maximum number of reserved nodes.
        most: u32,
        /// The maximum share of the shard's nodes, in percent.
        percent: u8,
    },
    /// The statement is not in progress on this shard.
    #[error(
        "statement {0} is not under way here: it was never prepared, was aborted, or was finished before"
    )]
    UnknownStatement(StatementId),
    /// An undecided statement involves the node.
    #[error("node {node} is part of statement {statement}, which is not decided yet: try again after it is")]
    NodeHeld {
        /// The node.
        node: NodeId,
        /// One such statement; there may be others.
        statement: StatementId,
    },
    /// The allocation is not a bundle.
    #[error("allocation {0} is no bundle: place into an allocation that a group made as one")]
    NotABundle(AllocationId),
    /// The bundle is still a claim.
    #[error(
        "bundle {0} waits for what is being released on its node: place into it when it is an allocation"
    )]
    BundlePending(AllocationId),
    /// The bundle is releasing.
    #[error("bundle {0} is being released: place into another one")]
    BundleReleasing(AllocationId),
    /// The node of the bundle is lost.
    #[error("bundle {bundle} is on node {node}, which is lost: place into another one, or wait for it")]
    BundleLost {
        /// The bundle.
        bundle: AllocationId,
        /// The node of the bundle.
        node: NodeId,
    },
    /// The node has the maximum number of allocations.
    #[error(
        "node {0} holds as many allocations as one may (setting `allocations_per_node_max`): release some, or raise the setting"
    )]
    TooManyAllocations(NodeId),
    /// The bundle has less free than requested.
    #[error("{asked} of {kind} is asked of bundle {bundle}, and {available} can be had")]
    BundleShort {
        /// The bundle.
        bundle: AllocationId,
        /// The first resource that falls short.
        kind: ResourceKind,
        /// The amount requested.
        asked: Amount,
        /// The amount that is free.
        available: Amount,
    },
    /// No such request waits on this shard.
    #[error("no such request waits here")]
    NotParked,
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

/// Identifies a waiting request: its port, and a number that is unique within the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitToken {
    /// The port that waits for the answer.
    pub port: u16,
    /// A counter of the port.
    pub number: u64,
}

/// A request that waits if nothing fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    /// The token that identifies it.
    pub token: WaitToken,
    /// The request.
    pub request: PlacementRequest,
    /// Requests with higher priority are woken first.
    pub priority: i32,
    /// Among requests with equal priority, those that have waited longer are woken first.
    pub since: Time,
    /// Says whether this shard counts the request. Every shard has a copy.
    pub home: Home,
}

/// The shard that counts a waiting request, so that its load is shown on a node. This is the first shard asked
/// that could hold the request if its nodes were empty. If there is none, the last shard asked counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Another shard counts it.
    Elsewhere,
    /// This shard counts it if the refusal says that it is feasible.
    IfFeasible,
    /// This shard counts it, because no other shard could hold it either.
    Here,
}

impl Home {
    /// Returns whether a copy is counted at the shard that returned `refusal`.
    pub(crate) fn is_at(self, refusal: &Refusal) -> bool {
        match self {
            Self::Elsewhere => false,
            Self::IfFeasible => refusal.feasible,
            Self::Here => true,
        }
    }
}

/// An allocation made by another system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The node that holds it.
    pub node: NodeId,
    /// The resources that it holds.
    pub demand: Demand,
    /// The GPU instances, as a mask. If `None`, the shard chooses.
    pub gpus: Option<u16>,
    /// Units of unit-instance kinds, as masks. The shard chooses for kinds that are not listed.
    pub units: Vec<(ResourceId, u64)>,
    /// The name given by the other system. Adopting the same demand again on this node under this name returns
    /// the recorded allocation.
    pub external_id: Option<Arc<str>>,
}

/// The current state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Capacity, labels, ids.
    pub registration: NodeRegistration,
    /// The state, which says whether it takes new work.
    pub state: NodeState,
    /// The number of changes of this node.
    pub version: u64,
    /// Free cores.
    pub cpu_available: Amount,
    /// Free MiB.
    pub memory_available: Amount,
    /// The free part of each GPU instance. Zero for an unhealthy one.
    pub gpus_available: GpuBooks,
    /// The unhealthy instances, with reasons.
    pub unhealthy: Unhealthy,
    /// The number of live allocations.
    pub allocations: u32,
    /// The owner for whom it is reserved, and the end of the reservation, if any.
    pub reserved: Option<(OwnerId, Option<Time>)>,
}

/// The books of one resource over all nodes, in 1/10,000 units:
/// `available + allocated + held + releasing + reserved + unhealthy = total + shortfall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceSum {
    /// Capacity.
    pub total: i128,
    /// Held by live allocations that are not being evicted.
    pub allocated: i128,
    /// Held by undecided statements.
    pub held: i128,
    /// Held by releasing allocations.
    pub releasing: i128,
    /// In use beyond capacity.
    pub shortfall: i128,
    /// Free but not offered, because the instance is unhealthy.
    pub unhealthy: i128,
    /// Free but withheld, for reservations and claims.
    pub reserved: i128,
}

impl ResourceSum {
    /// Returns the amount that is allocated, held or releasing.
    #[must_use]
    pub fn in_use(&self) -> i128 {
        self.allocated + self.held + self.releasing
    }

    /// Returns the amount that is free for new work.
    #[must_use]
    pub fn available(&self) -> i128 {
        self.total + self.shortfall - self.in_use() - self.unhealthy - self.reserved
    }
}

/// Sums and counters of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// Nodes that take new work.
    pub nodes_ready: u32,
    /// Nodes that an operator drained.
    pub nodes_draining: u32,
    /// Nodes whose agent has not joined them yet.
    pub nodes_joining: u32,
    /// Nodes whose agent no longer sends heartbeats.
    pub nodes_lost: u32,
    /// The number of live allocations.
    pub allocations: u64,
    /// Requests placed since the start.
    pub placed: u64,
    /// Requests refused since the start. A request that spilled back counts at each shard that refused it.
    pub refused: u64,
    /// Allocations released since the start.
    pub released: u64,
    /// The books, per resource.
    pub resources: Vec<(ResourceKind, ResourceSum)>,
    /// The waiting requests, per shape.
    pub waiting: Vec<WaitingShape>,
    /// The number of reserved nodes.
    pub nodes_reserved: u32,
    /// The result of the audit, if one was requested.
    pub audit: Option<Audit>,
}

/// The result of an audit that found no discrepancy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The canonical hashes. `None` if the books changed during the audit.
    pub hashes: Option<StateHashes>,
}
