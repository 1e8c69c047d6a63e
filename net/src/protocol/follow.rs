//! Following changes: a client that has every shard's state as of some version asks for what came
//! since, page by page, and waits where nothing did.
//!
//! A *step* leads a client from one version of a shard, or from nothing, to a later one, in one page or
//! several. A step from nothing is a *resync*: its first page says so, and the client drops whatever it
//! had of that shard. Only after the last page has the client a state that the shard was in.

use serde::{Deserialize, Serialize};
use wharf_core::ids::Incarnation;
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, SHARDS_MAX};
use wharf_core::view::ViewVersion;

use super::bounded::{self, field};
use super::{
    DemandBody, NamedAmount, NamedUnits, NodeBody, ReasonCode, UnhealthyBody, WireAllocation, WireStatement,
};

/// Tell of nodes.
pub const FOLLOW_NODES: u8 = 1;
/// Tell of allocations.
pub const FOLLOW_ALLOCATIONS: u8 = 2;
/// Tell of what statements hold.
pub const FOLLOW_HOLDS: u8 = 4;
/// Tell of everything.
pub const FOLLOW_ALL: u8 = FOLLOW_NODES | FOLLOW_ALLOCATIONS | FOLLOW_HOLDS;

/// Most changes of one page.
pub const CHANGES_PER_MESSAGE_MAX: usize = 4096;
/// Changes of one page where no limit is given.
pub const CHANGES_PER_MESSAGE_DEFAULT: u16 = 1024;
/// Longest wait for a change, in ms: an hour.
pub const FOLLOW_WAIT_MS_MAX: u32 = 3_600_000;

/// A version of a shard's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardVersion {
    /// The shard.
    pub shard: u16,
    /// The start of the service.
    pub incarnation: u32,
    /// Counts the versions since then, from 1.
    pub sequence: u64,
}

impl ShardVersion {
    /// The version of a view of `shard`.
    #[must_use]
    pub fn new(shard: u16, version: ViewVersion) -> Self {
        Self { shard, incarnation: version.incarnation.0, sequence: version.sequence }
    }

    /// The version of the shard's view.
    #[must_use]
    pub fn view(&self) -> ViewVersion {
        ViewVersion { incarnation: Incarnation(self.incarnation), sequence: self.sequence }
    }
}

/// Where a step goes on that has more pages. Its numbers have no meaning for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowCursor {
    /// Where the step leads.
    pub to: ShardVersion,
    /// Below [`ChangeCursor::STAGES`](wharf_core::view::ChangeCursor::STAGES).
    pub stage: u8,
    /// Within the stage.
    pub place: u32,
    /// Within the place.
    pub within: u32,
}

/// Asks for what came since the client's versions. One at a time per connection: the next takes the
/// place of one that waits, which is answered with nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowRequest {
    /// What the client has, each shard at most once; nothing of those that are not here.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Versions, { SHARDS_MAX as usize }>")]
    pub from: Vec<ShardVersion>,
    /// The step to go on with, in the state of whose shard the client is in between.
    pub at: Option<FollowCursor>,
    /// `FOLLOW_*`, added up: the same in all requests of a follower.
    pub kinds: u8,
    /// At most so many changes, up to [`CHANGES_PER_MESSAGE_MAX`]; 0: as many as the service thinks fit.
    pub limit: u16,
    /// How long to wait for a change, in ms, up to [`FOLLOW_WAIT_MS_MAX`]; 0: not at all.
    pub wait_ms: u32,
}

/// A page, or that nothing came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowReply {
    /// How many shards this start of the service has. What a client has of others is gone.
    pub shards: u16,
    /// None: the client has everything still.
    pub page: Option<FollowPage>,
}

/// Changes of one shard, to be applied in the order of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowPage {
    /// Where the step leads.
    pub to: ShardVersion,
    /// Whether this is its first page.
    pub begins: bool,
    /// On a first page: `done` where it goes on from the client's version, else why it begins with
    /// nothing.
    pub resync: ReasonCode,
    /// Where it goes on; none: this was its last page, and the client has the version `to`.
    pub next: Option<FollowCursor>,
    /// Service time of the version, in ns.
    pub now: u64,
    /// Nodes of the shard in this version.
    pub node_count: u32,
    /// Live allocations of the shard in this version.
    pub allocation_count: u64,
    /// Holds that ended: their statement was decided.
    #[serde(deserialize_with = "bounded::list::<_, _, field::HoldsEnded, CHANGES_PER_MESSAGE_MAX>")]
    pub holds_ended: Vec<HoldEnded>,
    /// Allocations that ended.
    #[serde(deserialize_with = "bounded::list::<_, _, field::AllocationsEnded, CHANGES_PER_MESSAGE_MAX>")]
    pub allocations_ended: Vec<AllocationEnded>,
    /// Nodes that are gone.
    #[serde(deserialize_with = "bounded::list::<_, _, field::NodesGone, CHANGES_PER_MESSAGE_MAX>")]
    pub nodes_gone: Vec<NodeGone>,
    /// Nodes that are new or not as they were.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, CHANGES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<NodeChange>,
    /// Allocations that began.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Allocations, CHANGES_PER_MESSAGE_MAX>")]
    pub allocations: Vec<AllocationBegun>,
    /// What statements hold from now on.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Holds, CHANGES_PER_MESSAGE_MAX>")]
    pub holds: Vec<HoldBegun>,
}

impl FollowPage {
    /// Changes on it.
    #[must_use]
    pub fn changes(&self) -> usize {
        let ended = self.holds_ended.len() + self.allocations_ended.len() + self.nodes_gone.len();
        ended + self.nodes.len() + self.allocations.len() + self.holds.len()
    }

    /// Whether the client has to drop what it had of the shard.
    #[must_use]
    pub fn is_resync(&self) -> bool {
        self.begins && !self.resync.is_done()
    }
}

/// A node that is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGone {
    /// Its id.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
}

/// An allocation that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationEnded {
    /// Which.
    pub allocation: WireAllocation,
    /// Where it was.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
}

/// A hold that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldEnded {
    /// Whose.
    pub statement: WireStatement,
    /// The place of its operation in the statement.
    pub operation: u16,
    /// Where it was.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
}

/// A node as it stands, without what did not change of what seldom does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// Its id.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
    /// `NODE_*`.
    pub state: u8,
    /// Counts its changes.
    pub version: u64,
    /// Free cores, in 1/10 000: without what is reserved.
    pub cpu: i64,
    /// Free MiB, likewise.
    pub memory: i64,
    /// The free part of each GPU, in 1/10 000; nothing of an unhealthy one.
    #[serde(deserialize_with = "bounded::list::<_, _, field::GpusAvailable, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u16>,
    /// Live allocations.
    pub allocations: u32,
    /// None: as it was.
    pub details: Option<NodeRest>,
    /// Capacity and labels. None: as they were.
    pub body: Option<NodeBody>,
    /// What is to change here by itself.
    pub pending: Pending,
}

/// Most elements of each list of [`Pending`].
pub const PENDING_MAX: usize = 1024;

/// What is to change on a node by itself: what claims (`OPERATION_PIPELINE`) are planned on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Allocations on their way out, by id: each is among the node's allocations until it ends.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Releasing, PENDING_MAX>")]
    pub releasing: Vec<ReleasingBody>,
    /// Claims, in the order in which they are served.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Claims, PENDING_MAX>")]
    pub claims: Vec<ClaimBody>,
    /// How many more there are of both, which would not fit a page.
    pub untold: u32,
}

impl Pending {
    /// Whether nothing is on its way out, and nothing claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An allocation on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasingBody {
    /// Which.
    pub allocation: WireAllocation,
    /// When it ends at the latest, in ns of service time.
    pub until: u64,
}

/// A claim on what is being released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimBody {
    /// The id of its allocation, once all of its own has come free.
    pub allocation: WireAllocation,
    /// What it claims.
    pub holds: Holding,
}

/// What else is told of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRest {
    /// What is free of each custom kind that it has.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Custom, CUSTOM_RESOURCES_MAX>")]
    pub custom: Vec<NamedAmount>,
    /// Unhealthy GPU instances, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Unhealthy, GPU_INSTANCES_MAX>")]
    pub unhealthy: Vec<UnhealthyBody>,
    /// For whom it is reserved; 0: for nobody.
    pub owner: u64,
    /// When the reservation ends by itself, in ns of service time; 0: it does not.
    pub until: u64,
}

/// An allocation that began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationBegun {
    /// Which.
    pub allocation: WireAllocation,
    /// Its node.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
    /// What it holds.
    pub holds: Holding,
}

/// What is held on a node, and of which instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// How much.
    pub demand: DemandBody,
    /// GPU instances, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u8>,
    /// How much of each, in 1/10 000.
    pub gpu_part: u16,
    /// Units of unit-instance kinds.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Units, CUSTOM_RESOURCES_MAX>")]
    pub units: Vec<NamedUnits>,
}

/// What a statement that is not decided holds on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldBegun {
    /// Whose.
    pub statement: WireStatement,
    /// The place of its operation in the statement.
    pub operation: u16,
    /// The node.
    pub node: u64,
    /// Its name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node_name: String,
    /// What was taken; none: an eviction, or a claim on what is being released, which take nothing yet.
    pub holds: Option<Holding>,
    /// The allocation that is about to be evicted.
    pub evicts: Option<WireAllocation>,
}
