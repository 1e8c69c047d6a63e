//! The inputs and outputs of a shard. Outcome `i` of a step answers command `i`.

use std::sync::Arc;

use super::rejection::{
    AdoptionRejection, BundleRejection, LeaseRejection, NodeRejection, ReservationRejection,
    UnknownAllocation, UnknownNode, UnknownStatement,
};
use crate::ids::{
    AllocationId, NodeId, Ordinal, OwnerId, ResourceId, SessionId, ShardId, StatementId, TenantId,
};
use crate::link::Decision;
use crate::node::{AgentReport, LifeEvent, NodeRegistration, NodeSpec, NodeState, Unhealthy};
use crate::reply::reply_types;
use crate::request::{Placement, PlacementRequest, Refusal};
use crate::resource::{Amount, Demand, GpuBooks, ResourceKind};
use crate::shard::state_hash::StateHashes;
use crate::shard::{
    CheckpointPage, CountTurns, NodeBooks, RenewedLease, RenewedSession, Reserve, TurnsCounted,
    WaitingPlacementsPage, WaitingShape,
};
use crate::state::{ReservationRecord, ShardState};
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
    /// Lists placements that wait and are counted at this shard, a page of them.
    ListWaiting {
        /// Where the page begins: 0, or as the page before says.
        from: u32,
    },
    /// Counts the placements that wait, and those of them that come before a turn, a page of them.
    CountTurns(Box<CountTurns>),
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
    /// Reports when a node could hold a bundle of a waiting group. The bundle waits in one order with the requests
    /// that are parked, and it is never placed by this.
    Watch(Box<Watch>),
    /// Says that room that was reported for a watched bundle did not serve its group. It is offered to others, and the
    /// bundle waits on.
    Rearm {
        /// The bundle.
        token: WaitToken,
        /// The number of reports that this answers, oldest first.
        reports: u32,
    },
    /// Stops a request or a bundle from waiting.
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
    /// Lets the lease of an allocation last from now on, unless it lasts longer already.
    RenewLease {
        /// The allocation.
        allocation: AllocationId,
        /// The time that it lasts, in ns.
        lasts_ns: u64,
    },
    /// Lets all leases of a session last from now on, unless they last longer already.
    RenewSession {
        /// The session.
        session: SessionId,
        /// The time that they last, in ns.
        lasts_ns: u64,
    },
    /// Returns the durable state of all partitions as of this command.
    Export,
    /// Returns the durable state of some nodes, for a checkpoint.
    Checkpoint {
        /// The slot at which the page begins: 0, then what the page before says.
        from: u32,
    },
}

reply_types! {
    /// One output of a shard. Each variant answers one family of commands. [`reply_of`](crate::reply::reply_of) turns an
    /// outcome into the reply of a family.
    pub enum Outcome {
        /// Answers `Place`, `Park` and `Retry`.
        Place(Result<Placement, Refused>),
        /// Answers `Explain`: the counts over one page of nodes.
        Explained(Box<Refusal>),
        /// Answers `Release`.
        Release(Result<Released, UnknownAllocation>),
        /// Answers the commands that add, change or remove a node.
        Node(NodeReply),
        /// Answers `ListNodes`: a page of nodes.
        Nodes(Vec<NodeView>),
        /// Answers `ListWaiting`: a page of placements that wait.
        Waiting(Box<WaitingPlacementsPage>),
        /// Answers `CountTurns`: a page of the count.
        Turns(Box<TurnsCounted>),
        /// Answers `Status` and the last page of `Audit`: sums and counters.
        Status(Box<ShardStatus>),
        /// Answers `Audit`, which continues under this number: ask for its next page.
        Auditing(u64),
        /// Answers `Adopt`: the allocation was recorded.
        Adopt(Result<Box<Placement>, AdoptionRejection>),
        /// Answers `NodeBooks`.
        Books(Result<Box<NodeBooks>, UnknownNode>),
        /// Answers `Watch` and `Rearm`: the bundle waits.
        Watches,
        /// Answers `Unpark`: the request or bundle no longer waits.
        Unparked,
        /// Answers `Retry`, `Rearm` and `Unpark`: no such request or bundle waits on this shard.
        NotParked,
        /// Answers `GoOn`: part of the deferred work was done.
        WentOn,
        /// Answers `Reserve` and `EndReservation`.
        Reserve(ReservationReply),
        /// Answers `Prepare`: the operations of a statement that are held, and those that conflict.
        Prepared(Box<Prepared>),
        /// Answers `Apply` and `Finish`: the effect of a statement.
        Applied(Result<Box<Applied>, UnknownStatement>),
        /// Answers `PlaceInto`.
        PlaceInto(Result<Box<Placement>, BundleRejection>),
        /// Answers `RenewLease`.
        RenewedLease(Result<RenewedLease, LeaseRejection>),
        /// Answers `RenewSession`.
        RenewedSession(RenewedSession),
        /// Answers `Export`: the durable state.
        Exported(Box<ShardState>),
        /// Answers `Checkpoint`.
        Page(Box<CheckpointPage>),
    }
}

// Outcomes travel through rings, by value.
const _: () = assert!(size_of::<Outcome>() <= 48);

impl Outcome {
    /// Returns whether a command with this outcome may have changed the durable state.
    pub(super) fn may_have_changed_books(&self) -> bool {
        match self {
            Self::Place(placed) => placed.is_ok(),
            Self::Release(released) => released.is_ok(),
            Self::Node(changed) => changed.is_ok(),
            Self::Adopt(adopted) => adopted.is_ok(),
            Self::Reserve(changed) => changed.is_ok(),
            Self::Applied(applied) => applied.is_ok(),
            Self::PlaceInto(placed) => placed.is_ok(),
            Self::RenewedLease(renewed) => renewed.is_ok(),
            Self::RenewedSession(renewed) => renewed.allocations > 0,
            Self::Prepared(_) | Self::WentOn => true,
            _ => false,
        }
    }
}

/// No node of this shard fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The counts of the failing checks.
    pub refusal: Box<Refusal>,
    /// True if the request now waits on this shard.
    pub parked: bool,
}

/// An allocation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The allocation.
    pub allocation: AllocationId,
    /// If it is a bundle, the number of allocations inside that ended with it.
    pub inside: Option<u32>,
}

/// The reply to a command that adds, changes or removes a node.
pub type NodeReply = Result<NodeChange, NodeRejection>;

/// A change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node was registered.
    Added(NodeId),
    /// The node was updated.
    Updated(NodeId),
    /// The state that the node is in now.
    State(NodeId, NodeState),
    /// The health was set.
    Health(NodeId),
    /// The node was removed.
    Removed {
        /// The node.
        node: NodeId,
        /// The number of allocations that ended with it.
        allocations_ended: u32,
        /// The last version that it had.
        version: u64,
    },
}

/// The reply to a command that makes or ends a reservation.
pub type ReservationReply = Result<ReservationChange, ReservationRejection>;

/// A change of a node's reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// The node is reserved as shown.
    Made(Box<ReservationRecord>),
    /// The node is no longer reserved.
    Ended(NodeId),
}

/// The next page of the counts of a refusal, over nodes that the refusal did not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// The request that was refused.
    pub request: PlacementRequest,
    /// The start of the page: [`Refusal::rest`] of the previous page.
    pub from: u32,
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

/// A bundle of a waiting group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The token that identifies it.
    pub token: WaitToken,
    /// The request of the bundle.
    pub request: PlacementRequest,
    /// The priority of the group.
    pub priority: i32,
    /// The time since which the group waits.
    pub since: Time,
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
    /// Who the allocation belongs to.
    pub tenant: TenantId,
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
