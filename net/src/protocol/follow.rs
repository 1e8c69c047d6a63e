//! Following changes. A client that has the state of every shard as of some version asks for the changes
//! since then. It gets them page by page, and waits if nothing changed.
//!
//! A *step* leads a client from one version of a shard, or from nothing, to a later version, in one or more
//! pages. A step from nothing is a *resync*: its first page says so, and the client drops its copy of that
//! shard. The client's copy matches a state of the shard only after the last page.

use wharf_core::ids::Incarnation;
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, SHARDS_MAX};
use wharf_core::view::ViewVersion;

use super::bounded::NAME;
use super::{
    DemandBody, NamedAmount, NamedUnits, NodeBody, ReasonCode, UnhealthyBody, WireAllocation, WireStatement,
};

/// Report nodes.
pub const FOLLOW_NODES: u8 = 1;
/// Report allocations.
pub const FOLLOW_ALLOCATIONS: u8 = 2;
/// Report the holds of statements.
pub const FOLLOW_HOLDS: u8 = 4;
/// Report everything.
pub const FOLLOW_ALL: u8 = FOLLOW_NODES | FOLLOW_ALLOCATIONS | FOLLOW_HOLDS;

/// Maximum number of changes on one page.
pub const CHANGES_PER_MESSAGE_MAX: usize = 4096;
/// Default maximum number of changes on one page.
pub const CHANGES_PER_MESSAGE_DEFAULT: u16 = 1024;
/// Maximum wait for a change, in ms: one hour.
pub const FOLLOW_WAIT_MS_MAX: u32 = 3_600_000;

/// Maximum length of each list of [`Pending`].
pub const PENDING_MAX: usize = 1024;

bodies! {
    /// A version of a shard's state.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct ShardVersion {
        /// The shard.
        pub shard: u16,
        /// The start of the service.
        pub incarnation: u32,
        /// Counts the versions since that start, from 1.
        pub sequence: u64,
    }

    /// The position at which an unfinished step continues. The numbers mean nothing to a client.
    #[derive(Copy)]
    pub struct FollowCursor {
        /// The target of the step.
        pub to: ShardVersion,
        /// The stage of the step.
        pub stage: u8,
        /// The position within the stage.
        pub place: u32,
        /// The position within the place.
        pub within: u32,
    }

    /// Asks for the changes since the client's versions. A connection has one waiting request at a time: the
    /// next one replaces it, and the waiting one is answered without a page.
    pub struct FollowRequest {
        /// The client's versions, each shard at most once. Shards that are not listed begin from nothing.
        pub from: Vec<ShardVersion> [SHARDS_MAX as usize],
        /// The step to continue. The client's copy of its shard is between two versions.
        pub at: Option<FollowCursor>,
        /// The sum of `FOLLOW_*` kinds. A follower must send the same sum in all requests.
        pub kinds: u8,
        /// Maximum number of changes, up to [`CHANGES_PER_MESSAGE_MAX`]. 0 means the default.
        pub limit: u16,
        /// The wait for a change, in ms, up to [`FOLLOW_WAIT_MS_MAX`]. 0 means no wait.
        pub wait_ms: u32,
    }

    /// A page of changes, or the answer that nothing changed.
    pub struct FollowReply {
        /// The number of shards of this start of the service. The client must drop its copies of others.
        pub shards: u16,
        /// `None` if nothing changed.
        pub page: Option<FollowPage>,
    }

    /// Changes of one shard. The client applies them in the order of the lists.
    pub struct FollowPage {
        /// The target of the step.
        pub to: ShardVersion,
        /// True on the first page of the step.
        pub begins: bool,
        /// On a first page: `done` if the step starts from the client's version, else why it starts from
        /// nothing.
        pub resync: ReasonCode,
        /// Where the step continues. `None` on the last page: the client then has the version `to`.
        pub next: Option<FollowCursor>,
        /// Service time of the version, in ns.
        pub now: u64,
        /// The number of nodes of the shard in this version.
        pub node_count: u32,
        /// The number of live allocations of the shard in this version.
        pub allocation_count: u64,
        /// Holds that ended because their statement was decided.
        pub holds_ended: Vec<HoldEnded> [CHANGES_PER_MESSAGE_MAX],
        /// Allocations that ended.
        pub allocations_ended: Vec<AllocationEnded> [CHANGES_PER_MESSAGE_MAX],
        /// Nodes that were removed.
        pub nodes_gone: Vec<NodeGone> [CHANGES_PER_MESSAGE_MAX],
        /// Nodes that are new or changed.
        pub nodes: Vec<NodeChange> [CHANGES_PER_MESSAGE_MAX],
        /// Allocations that began.
        pub allocations: Vec<AllocationBegun> [CHANGES_PER_MESSAGE_MAX],
        /// New holds of statements.
        pub holds: Vec<HoldBegun> [CHANGES_PER_MESSAGE_MAX],
    }

    /// A node that was removed.
    pub struct NodeGone {
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
    }

    /// An allocation that ended.
    pub struct AllocationEnded {
        /// The allocation.
        pub allocation: WireAllocation,
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
        /// `lease_expired` if its lease ran out. `done` if it ended otherwise, or the follower is too far behind
        /// to tell.
        pub reason: ReasonCode,
    }

    /// A hold that ended.
    pub struct HoldEnded {
        /// The statement.
        pub statement: WireStatement,
        /// The operation's place in the statement.
        pub operation: u16,
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
    }

    /// The state of a node. Details and capacity, which change seldom, are included only if they changed.
    pub struct NodeChange {
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
        /// `NODE_*`.
        pub state: u8,
        /// Counts the node's changes.
        pub version: u64,
        /// Free cores, in 1/10,000, without reserved capacity.
        pub cpu: i64,
        /// Free MiB, in 1/10,000, without reserved capacity.
        pub memory: i64,
        /// The free part of each GPU, in 1/10,000. 0 for unhealthy GPUs.
        pub gpus: Vec<u16> [GPU_INSTANCES_MAX],
        /// The number of live allocations.
        pub allocations: u32,
        /// Further details. `None` if unchanged.
        pub details: Option<NodeRest>,
        /// Capacity and labels. `None` if unchanged.
        pub body: Option<NodeBody>,
        /// Pending changes on the node.
        pub pending: Pending,
    }

    /// Changes on a node that will happen by themselves. Claims (`OPERATION_PIPELINE`) are planned on them.
    pub struct Pending {
        /// Releasing allocations, by id. Each one is among the node's allocations until it ends.
        pub releasing: Vec<ReleasingBody> [PENDING_MAX],
        /// Claims, in the order in which they are served.
        pub claims: Vec<ClaimBody> [PENDING_MAX],
        /// The number of further entries of both lists that do not fit a page.
        pub untold: u32,
    }

    /// A releasing allocation.
    #[derive(Copy)]
    pub struct ReleasingBody {
        /// The allocation.
        pub allocation: WireAllocation,
        /// The latest end of the allocation, in ns of service time.
        pub until: u64,
    }

    /// A claim on releasing capacity.
    pub struct ClaimBody {
        /// The id of the allocation that the claim becomes when all of its capacity is free.
        pub allocation: WireAllocation,
        /// The claimed amounts.
        pub holds: Holding,
    }

    /// Further details of a node.
    pub struct NodeRest {
        /// The free amounts of the node's custom resources.
        pub custom: Vec<NamedAmount> [CUSTOM_RESOURCES_MAX],
        /// Unhealthy GPU instances, ascending.
        pub unhealthy: Vec<UnhealthyBody> [GPU_INSTANCES_MAX],
        /// The owner for whom the node is reserved. 0 for none.
        pub owner: u64,
        /// When the reservation ends by itself, in ns of service time. 0 means never.
        pub until: u64,
    }

    /// An allocation that began.
    pub struct AllocationBegun {
        /// The allocation.
        pub allocation: WireAllocation,
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
        /// The amounts and instances that it holds.
        pub holds: Holding,
    }

    /// Amounts and instances held on a node.
    pub struct Holding {
        /// The amounts.
        pub demand: DemandBody,
        /// GPU instances, ascending.
        pub gpus: Vec<u8> [GPU_INSTANCES_MAX],
        /// The part of each GPU instance, in 1/10,000.
        pub gpu_part: u16,
        /// Units of unit-instance kinds.
        pub units: Vec<NamedUnits> [CUSTOM_RESOURCES_MAX],
    }

    /// The hold of an undecided statement on a node.
    pub struct HoldBegun {
        /// The statement.
        pub statement: WireStatement,
        /// The operation's place in the statement.
        pub operation: u16,
        /// The node's id.
        pub node: u64,
        /// The node's name.
        pub node_name: String [NAME],
        /// The capacity taken. `None` for an eviction or for a claim on releasing capacity, which take
        /// nothing yet.
        pub holds: Option<Holding>,
        /// The allocation that the statement is about to evict.
        pub evicts: Option<WireAllocation>,
    }
}

impl ShardVersion {
    /// Returns the version of a view of `shard`.
    #[must_use]
    pub fn new(shard: u16, version: ViewVersion) -> Self {
        Self { shard, incarnation: version.incarnation.0, sequence: version.sequence }
    }

    /// Returns the version of the shard's view.
    #[must_use]
    pub fn view(&self) -> ViewVersion {
        ViewVersion { incarnation: Incarnation(self.incarnation), sequence: self.sequence }
    }
}

impl FollowPage {
    /// Returns the number of changes on the page.
    #[must_use]
    pub fn changes(&self) -> usize {
        let ended = self.holds_ended.len() + self.allocations_ended.len() + self.nodes_gone.len();
        ended + self.nodes.len() + self.allocations.len() + self.holds.len()
    }

    /// Returns whether the client must drop its copy of the shard.
    #[must_use]
    pub fn is_resync(&self) -> bool {
        self.begins && !self.resync.is_done()
    }
}

impl Pending {
    /// Returns whether nothing is releasing or claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
