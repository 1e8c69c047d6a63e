//! What goes into a shard and what comes out. Outcome `i` of a step answers command `i`.

use std::sync::Arc;

use super::state_hash::StateHashes;
use crate::ids::{AllocationId, NodeId, Ordinal, OwnerId, ResourceId, ShardId, StatementId};
use crate::limits::CUSTOM_RESOURCES_MAX;
use crate::link::Decision;
use crate::node::{AgentReport, IllegalChange, LifeEvent, NodeRegistration, NodeSpec, NodeState, Unhealthy};
use crate::request::{Placement, PlacementRequest, Refusal};
use crate::resource::{Amount, Demand, GpuBooks, ResourceKind};
use crate::shard::{NodeBooks, ReservationView, Reserve, WaitingShape};
use crate::statement::{Applied, Part, Prepare, Prepared};
use crate::time::Time;

/// One input of a shard.
#[derive(Clone, Debug)]
pub enum Command {
    /// Find a node and allocate.
    Place(PlacementRequest),
    /// End an allocation.
    Release(AllocationId),
    /// A node is registered: ready, or joining where an agent keeps it.
    AddNode(Box<NodeRegistration>),
    /// A node that was removed is back under its id.
    RejoinNode {
        /// As for [`AddNode`](Self::AddNode).
        registration: Box<NodeRegistration>,
        /// The last version that it had. Its versions go on after this one, so that no plan for its former life
        /// matches.
        version: u64,
    },
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
    Status,
    /// One page of an audit. The last page is answered by a status that has what the audit found.
    Audit {
        /// The audit's number, as the answer to the page before said it; 0 to begin.
        number: u64,
    },
    /// One more page of the counts of a refusal.
    Explain(Box<Explain>),
    /// Record an allocation that was made elsewhere.
    Adopt(Box<Adoption>),
    /// New capacity of single resources of a node, all or none; zero takes a resource away. GPUs
    /// and unit-instance kinds are whole, and no more than a node can have.
    SetResources(NodeId, Box<[(ResourceKind, Amount)]>),
    /// The books of one node.
    NodeBooks(NodeId),
    /// Place; where nothing fits, wait for it.
    Park(Box<Park>),
    /// Try a waiting request again, which was woken.
    Retry(WaitToken),
    /// A request does not wait any more.
    Unpark(WaitToken),
    /// Go on with a bounded part of the work that was put off. No port gives this command, but the
    /// thread that runs the shard, while [`Shard::is_behind`](super::Shard::is_behind).
    GoOn,
    /// Keep a node for an owner, or exchange what the owner has reserved there.
    Reserve(Box<Reserve>),
    /// End the reservation that an owner has on a node.
    EndReservation(NodeId, OwnerId),
    /// Check this shard's part of a statement and hold what it takes.
    Prepare(Box<Prepare>),
    /// Do what was decided of a statement that was prepared here.
    Finish {
        /// The statement.
        statement: StatementId,
        /// What its cell says.
        decision: Decision,
    },
    /// A statement over this shard alone: check it and do it.
    Apply(Box<Part>),
    /// Place into a bundle: an allocation that a statement made as one.
    PlaceInto {
        /// The bundle's allocation.
        bundle: AllocationId,
        /// What it takes of the bundle.
        demand: Box<Demand>,
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
    /// A bundle ended, and what was placed into it.
    BundleReleased {
        /// Its allocation.
        bundle: AllocationId,
        /// How many allocations inside ended with it.
        ended: u32,
    },
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
        /// The last version that it had.
        version: u64,
    },
    /// A page of nodes.
    Nodes(Vec<NodeView>),
    /// Sums and counters.
    Status(Box<ShardStatus>),
    /// An audit goes on: ask for its next page.
    Auditing {
        /// The audit's number.
        number: u64,
    },
    /// The counts over one page of nodes.
    Explained(Box<Refusal>),
    /// Recorded.
    Adopted(Placement),
    /// The books of one node.
    Books(Box<NodeBooks>),
    /// Nothing fitted: it waits, and would have been refused so.
    Parked(Box<Refusal>),
    /// It does not wait any more.
    Unparked,
    /// A part of the work that was put off is done.
    WentOn,
    /// The node is reserved so.
    Reserved(Box<ReservationView>),
    /// The node is not reserved any more.
    ReservationEnded(NodeId),
    /// What is held of a statement, and what conflicts.
    Prepared(Box<Prepared>),
    /// What was done of a statement.
    Applied(Box<Applied>),
    /// The durable state.
    Exported(Box<crate::state::ShardState>),
    /// Not done, and nothing moved.
    Rejected(Rejection),
}

impl Outcome {
    /// Whether the durable state may be another one after a command that came to this.
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
    /// What was refused.
    pub request: PlacementRequest,
    /// Where the page begins: [`Refusal::rest`] of the page before.
    pub from: u32,
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
    /// An adoption names other instances than its demand takes.
    #[error("{given} instances of {kind} are named, and {asked} are taken: name as many, or none")]
    InstanceCount {
        /// Of which resource.
        kind: ResourceKind,
        /// Named.
        given: u32,
        /// Taken.
        asked: u32,
    },
    /// An adoption names an instance that the node does not have.
    #[error(
        "node {node} has {count} instances of {kind}, and not number {instance}: name lower ones, or none"
    )]
    NoSuchInstance {
        /// Which node.
        node: NodeId,
        /// Of which resource.
        kind: ResourceKind,
        /// The instance.
        instance: u8,
        /// How many there are.
        count: u8,
    },
    /// The node has another allocation of that name.
    #[error(
        "node {node} has allocation {allocation} of that external id, with another demand: release it first, or give another id"
    )]
    ExternalIdTaken {
        /// The node.
        node: NodeId,
        /// The allocation.
        allocation: AllocationId,
    },
    /// More in use beyond capacity than is counted.
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
        /// Which node.
        node: NodeId,
        /// For whom.
        owner: OwnerId,
        /// When that ends by itself.
        until: Option<Time>,
    },
    /// The owner has no reservation on the node.
    #[error("node {node} is not reserved for owner {owner}{}", held_by(*holder))]
    NotReserved {
        /// Which node.
        node: NodeId,
        /// Who was named.
        owner: OwnerId,
        /// For whom it is reserved, if it is.
        holder: Option<OwnerId>,
    },
    /// A reservation of more than the node has.
    #[error("node {node} has {capacity} of {kind} in all: reserve no more than that, or a larger node")]
    ReservedTooMuch {
        /// Which node.
        node: NodeId,
        /// Of which resource.
        kind: ResourceKind,
        /// What the node has of it when nothing runs there.
        capacity: Amount,
    },
    /// A reservation of nothing.
    #[error("nothing is to be reserved on node {0}: say how much of which resource")]
    NothingReserved(NodeId),
    /// A reservation that would have ended before it began.
    #[error("the reservation of node {0} would end at once: give a later end, or none")]
    DeadlinePassed(NodeId),
    /// As many nodes are reserved as may be.
    #[error(
        "{most} nodes of node {node}'s shard are reserved, which is all that may be ({percent} % of its nodes): end a reservation first, or raise `reserved_nodes_percent`"
    )]
    TooManyReserved {
        /// Which node was to be.
        node: NodeId,
        /// How many may be.
        most: u32,
        /// The share of the shard's nodes.
        percent: u8,
    },
    /// The statement is not under way here.
    #[error(
        "statement {0} is not under way here: it was never prepared, was aborted, or was finished before"
    )]
    UnknownStatement(StatementId),
    /// A statement that is not decided yet has to do with the node.
    #[error("node {node} is part of statement {statement}, which is not decided yet: try again after it is")]
    NodeHeld {
        /// Which node.
        node: NodeId,
        /// The statement; others may be there too.
        statement: StatementId,
    },
    /// No bundle.
    #[error("allocation {0} is no bundle: place into an allocation that a group made as one")]
    NotABundle(AllocationId),
    /// The bundle is a claim yet.
    #[error(
        "bundle {0} waits for what is being released on its node: place into it when it is an allocation"
    )]
    BundlePending(AllocationId),
    /// The bundle is on its way out.
    #[error("bundle {0} is being released: place into another one")]
    BundleReleasing(AllocationId),
    /// The node of the bundle is lost.
    #[error("bundle {bundle} stands on node {node}, which is lost: place into another one, or wait for it")]
    BundleLost {
        /// Which bundle.
        bundle: AllocationId,
        /// Its node.
        node: NodeId,
    },
    /// The node holds as many allocations as one may.
    #[error(
        "node {0} holds as many allocations as one may (setting `allocations_per_node_max`): release some, or raise the setting"
    )]
    TooManyAllocations(NodeId),
    /// Less is free in the bundle than asked.
    #[error("{asked} of {kind} is asked of bundle {bundle}, and {available} can be had")]
    BundleShort {
        /// Which bundle.
        bundle: AllocationId,
        /// Of which resource: the first that falls short.
        kind: ResourceKind,
        /// Asked.
        asked: Amount,
        /// What can be had.
        available: Amount,
    },
    /// No such request waits here.
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

/// A waiting request: its port, and the number that the port gave it and gives to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitToken {
    /// Where it waits for its answer.
    pub port: u16,
    /// Counted by the port.
    pub number: u64,
}

/// A request that waits where nothing fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    /// Its name.
    pub token: WaitToken,
    /// What it asks.
    pub request: PlacementRequest,
    /// Those of higher priority are woken first.
    pub priority: i32,
    /// Of equal priority, those that wait longer.
    pub since: Time,
    /// Whether it is counted at this shard: a copy stands at each.
    pub home: Home,
}

/// Where a waiting request is counted: at one shard, the first asked of those that could hold it
/// if nothing else ran there, so that its load stands at a node; at the last asked if none could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// At another shard.
    Elsewhere,
    /// Here, if the refusal says that it is feasible here.
    IfFeasible,
    /// Here: no other shard could hold it either.
    Here,
}

impl Home {
    /// Whether a copy is counted at the shard that refused it so.
    pub(crate) fn is_at(self, refusal: &Refusal) -> bool {
        match self {
            Self::Elsewhere => false,
            Self::IfFeasible => refusal.feasible,
            Self::Here => true,
        }
    }
}

/// An allocation that was made elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The node that holds it.
    pub node: NodeId,
    /// What it holds.
    pub demand: Demand,
    /// The GPU instances, as a mask; chosen if none are named.
    pub gpus: Option<u16>,
    /// Units of unit-instance kinds, as masks; chosen for kinds that are not named.
    pub units: Vec<(ResourceId, u64)>,
    /// The name that whoever made it gave it: adopted again on this node under this name, with
    /// the same demand, it is answered and not recorded again.
    pub external_id: Option<Arc<str>>,
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
    /// For whom it is reserved, and until when if that ends by itself.
    pub reserved: Option<(OwnerId, Option<Time>)>,
}

/// The books of one resource over all nodes, in 1/10 000 units:
/// `available + allocated + held + releasing + reserved + unhealthy = total + shortfall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceSum {
    /// Capacity.
    pub total: i128,
    /// HeldAmounts by live allocations that nobody evicts.
    pub allocated: i128,
    /// HeldAmounts by statements that are not decided.
    pub held: i128,
    /// HeldAmounts by allocations that are on their way out.
    pub releasing: i128,
    /// In use beyond capacity, where capacity was taken away below use.
    pub shortfall: i128,
    /// Free, and hidden because it is unhealthy.
    pub unhealthy: i128,
    /// Free, and set aside for reservations.
    pub reserved: i128,
}

impl ResourceSum {
    /// Allocated, held or releasing.
    #[must_use]
    pub fn in_use(&self) -> i128 {
        self.allocated + self.held + self.releasing
    }

    /// What is neither in use nor missing nor hidden nor set aside.
    #[must_use]
    pub fn available(&self) -> i128 {
        self.total + self.shortfall - self.in_use() - self.unhealthy - self.reserved
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
    /// What waits here, per shape.
    pub waiting: Vec<WaitingShape>,
    /// Nodes that are reserved for somebody.
    pub nodes_reserved: u32,
    /// The result of the audit, when one was asked for.
    pub audit: Option<Audit>,
}

/// Everything that an audit looks at was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The canonical hashes; none where the books changed while they were read.
    pub hashes: Option<StateHashes>,
}
