//! Placement groups: bundles that are placed as a whole, and placements into them.
//!
//! A bundle is written as a placement is: what it takes, and on which nodes it may be placed. Equal bundles are
//! written once, with their number.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{GroupId, Incarnation};
use wharf_core::limits::GROUP_BUNDLES_MAX;

use super::bounded::{self, field};
use super::{
    ConflictBody, DemandBody, Fault, PlaceRequest, PlacedBody, ReasonCode, RefusalBody, WireAllocation,
};

/// Groups of one page of a list.
pub const GROUPS_PER_MESSAGE_MAX: usize = 1024;
/// Candidates that all templates of a message name together.
pub const GROUP_CANDIDATES_MAX: usize = 1024;
/// Conflicts that the refusal of a group names.
pub const GROUP_CONFLICTS_MAX: usize = 64;

/// On as few nodes as can be.
pub const STRATEGY_PACK: u8 = 0;
/// On as many nodes as can be.
pub const STRATEGY_SPREAD: u8 = 1;
/// All on one node.
pub const STRATEGY_STRICT_PACK: u8 = 2;
/// Each on a node of its own.
pub const STRATEGY_STRICT_SPREAD: u8 = 3;

/// On nodes with one value of the label where that can be, else anywhere.
pub const TOPOLOGY_PACK: u8 = 1;
/// On nodes with one value of the label, or nowhere.
pub const TOPOLOGY_STRICT_PACK: u8 = 2;
/// Evenly over the values of the label.
pub const TOPOLOGY_SPREAD: u8 = 3;

/// An operation conflicts that is not possible any more.
pub const CONFLICT_DETECTION_FINE: u8 = 0;
/// An operation conflicts whose node has another version than was expected.
pub const CONFLICT_DETECTION_COARSE: u8 = 1;

/// It waits for capacity.
pub const GROUP_WAITING: u8 = 1;
/// It is being placed.
pub const GROUP_COMMITTING: u8 = 2;
/// At least its minimum is placed.
pub const GROUP_PLACED: u8 = 3;
/// Bundles were lost with their nodes, released or evicted, and fewer than the minimum are left: they are placed
/// again.
pub const GROUP_DEGRADED: u8 = 4;

/// [`GroupId`] on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireGroup {
    /// The start of the service that made it.
    pub incarnation: u32,
    /// Its number within.
    pub number: u64,
}

impl From<GroupId> for WireGroup {
    fn from(id: GroupId) -> Self {
        Self { incarnation: id.incarnation.0, number: id.number }
    }
}

impl From<WireGroup> for GroupId {
    fn from(wire: WireGroup) -> Self {
        Self { incarnation: Incarnation(wire.incarnation), number: wire.number }
    }
}

/// So many equal bundles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleTemplate {
    /// What one takes, and where it may stand. It does not wait by itself, and has no priority.
    pub request: PlaceRequest,
    /// How many: all templates of a message together have 1 to 1,024.
    pub count: u32,
}

impl Default for BundleTemplate {
    fn default() -> Self {
        Self { request: PlaceRequest::default(), count: 1 }
    }
}

/// A rule over the values of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyBody {
    /// The label's key.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// `TOPOLOGY_*`.
    pub rule: u8,
    /// Of `TOPOLOGY_SPREAD`: by how much the numbers of bundles on any two values may differ, from 1
    /// on. Otherwise 0.
    pub max_skew: u32,
}

/// Makes a group. The reply is a [`GroupReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateGroupRequest {
    /// Its bundles: places are counted from 0 on, in this order.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Bundles, GROUP_BUNDLES_MAX>")]
    pub bundles: Vec<BundleTemplate>,
    /// `STRATEGY_*`.
    pub strategy: u8,
    /// Over the values of a label.
    pub topology: Option<TopologyBody>,
    /// At least so many are placed, or none; 0: all of them.
    pub min_members: u32,
    /// `MODE_*`: whether it waits where it does not fit now.
    pub mode: u8,
    /// Until when it waits, in ns of service time; 0 for ever. 0 for a group that does not wait.
    pub deadline: u64,
    /// Of waiting groups, those of higher priority go first.
    pub priority: i32,
    /// `CONFLICT_DETECTION_*`: what counts as a conflict when it is committed.
    pub conflict_detection: u8,
}

/// Adds bundles to a group: all of them, or none. The reply is a [`GroupReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowGroupRequest {
    /// Which.
    pub group: WireGroup,
    /// Their places follow the last that the group ever had.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Bundles, GROUP_BUNDLES_MAX>")]
    pub bundles: Vec<BundleTemplate>,
    /// `MODE_*`: whether they wait where they do not fit now. They do not wait while an earlier bundle of the group
    /// has no place: that one comes first.
    pub mode: u8,
    /// Until when they wait, in ns of service time; 0 for ever. 0 where they do not wait.
    pub deadline: u64,
}

/// Takes bundles out of a group, with what runs in them. The reply is a [`GroupReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkGroupRequest {
    /// Which.
    pub group: WireGroup,
    /// The places of the bundles, each once.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Bundles, GROUP_BUNDLES_MAX>")]
    pub bundles: Vec<u32>,
}

/// Ends a group, with what runs in its bundles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveGroupRequest {
    /// Which.
    pub group: WireGroup,
}

/// It is gone, or a fault says why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveGroupReply {
    /// `done` or the fault's.
    pub reason: ReasonCode,
    /// Bundles that ended with it.
    pub bundles_ended: u32,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// Asks how a group stands. The reply is a [`GroupReply`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatusRequest {
    /// Which.
    pub group: WireGroup,
}

/// Asks for a page of groups, in order of id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListGroupsRequest {
    /// Those after this one; from the first on if none is named.
    pub after: Option<WireGroup>,
    /// At most so many; 0: as many as a page has.
    pub limit: u32,
}

/// A group in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Its id.
    pub id: WireGroup,
    /// `GROUP_*`.
    pub state: u8,
    /// `STRATEGY_*`.
    pub strategy: u8,
    /// Its bundles.
    pub bundles: u32,
    /// Of these, how many are placed.
    pub placed: u32,
    /// At least so many are to be.
    pub min_members: u32,
    /// Of waiting groups, those of higher priority go first.
    pub priority: i32,
}

/// A page of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListGroupsReply {
    /// In order of id.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Groups, GROUPS_PER_MESSAGE_MAX>")]
    pub groups: Vec<GroupSummary>,
    /// There may be more after the last.
    pub more: bool,
}

/// A bundle of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleBody {
    /// Its place in the group.
    pub index: u32,
    /// The cores that it takes, in 1/10 000.
    pub cpu: i64,
    /// The MiB that it takes, in 1/10 000.
    pub memory: i64,
    /// The GPU devices that it takes, in 1/10 000. Custom resources are not listed.
    pub gpu: i64,
    /// Where it stands; none while it is not placed. By this allocation placements are made into it.
    pub placed: Option<PlacedBody>,
    /// When it ends at the latest, in ns of service time, as somebody evicted it with grace; 0: nobody did. Only a
    /// status tells it.
    pub releasing_until: u64,
}

/// A group as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupBody {
    /// Its id.
    pub id: WireGroup,
    /// `GROUP_*`.
    pub state: u8,
    /// `STRATEGY_*`.
    pub strategy: u8,
    /// Over the values of a label.
    pub topology: Option<TopologyBody>,
    /// At least so many bundles are to be placed.
    pub min_members: u32,
    /// Of waiting groups, those of higher priority go first.
    pub priority: i32,
    /// Until when it waits where it does not fit, in ns of service time; 0: it does not wait, or for ever.
    pub deadline: u64,
    /// How often a plan of it was tried.
    pub attempts: u32,
    /// In order of place.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Bundles, GROUP_BUNDLES_MAX>")]
    pub bundles: Vec<BundleBody>,
}

/// Why a group was not placed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRefusalBody {
    /// `no_node_for_bundle`, `no_single_node`, `too_few_nodes`, `cluster_too_small`,
    /// `topology_too_small`, `own_bundles`, `confined_too_small`, `too_few_places`, `conflicted` or
    /// `cancelled`.
    pub cause: ReasonCode,
    /// Over how many attempts.
    pub attempts: u32,
    /// The place of the bundle that finds no node (`no_node_for_bundle`, `own_bundles`, `topology_too_small`).
    pub bundle: Option<u32>,
    /// How many bundles it is about: all those that find a node beside the one that does not
    /// (with a `bundle`), those that are confined to few nodes (`too_few_nodes`, `confined_too_small`), or
    /// else all that must be placed.
    pub bundles: u32,
    /// Nodes that could hold any of them (`too_few_nodes`, `confined_too_small`), or that have room for the
    /// bundle and are used by others of its group (`own_bundles`).
    pub nodes: u32,
    /// The resource of which nodes together have too little (`cluster_too_small`, `confined_too_small`), or
    /// empty.
    #[serde(deserialize_with = "bounded::name::<_, field::Resource>")]
    pub resource: String,
    /// What nodes lack for that bundle (`no_node_for_bundle`).
    pub refusal: Option<RefusalBody>,
    /// What it lost against (`conflicted`): the first of them.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Conflicts, GROUP_CONFLICTS_MAX>")]
    pub conflicts: Vec<ConflictBody>,
    /// What it falls short of, for people.
    #[serde(deserialize_with = "bounded::prose::<_, field::Message>")]
    pub message: String,
}

/// How a group stands, or why it was not placed: with `done` a group, with `no_fit_now`, `infeasible`,
/// `conflicted` or `cancelled` a refusal, else a fault. With `infeasible` a fault too where a bundle
/// asks for a resource that no node has ever had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReply {
    /// Which of the three.
    pub reason: ReasonCode,
    /// The group.
    pub group: Option<GroupBody>,
    /// It was not placed, and nothing of it is held.
    pub refusal: Option<GroupRefusalBody>,
    /// Something in the request is wrong.
    pub fault: Option<Fault>,
}

/// A placement into a bundle, which is named by its allocation or by its group. The reply is a
/// [`PlaceReply`](super::PlaceReply); a release ends it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceIntoRequest {
    /// The allocation of the bundle. Give this, or the group.
    pub allocation: Option<WireAllocation>,
    /// The group: into its first bundle with room, unless one is named.
    pub group: Option<WireGroup>,
    /// The bundle's place in the group.
    pub bundle: Option<u32>,
    /// What it takes.
    pub demand: DemandBody,
}
