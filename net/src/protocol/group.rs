//! Placement groups: bundles that are placed together, and placements into them.
//!
//! A bundle is described by a placement request: the amounts that it takes, and the nodes on which it may be
//! placed. Equal bundles are described once, with their count.

use wharf_core::limits::GROUP_BUNDLES_MAX;

use super::bounded::{NAME, PROSE};
use super::{
    ConflictBody, DemandBody, Fault, PlaceRequest, PlacedBody, ReasonCode, RefusalBody, WireAllocation,
};

/// Maximum number of groups on one page of a list.
pub const GROUPS_PER_MESSAGE_MAX: usize = 1024;
/// Maximum number of candidates over all templates of a message.
pub const GROUP_CANDIDATES_MAX: usize = 1024;
/// Maximum number of conflicts in the refusal of a group.
pub const GROUP_CONFLICTS_MAX: usize = 64;

/// Places the bundles on as few nodes as possible.
pub const STRATEGY_PACK: u8 = 0;
/// Places the bundles on as many nodes as possible.
pub const STRATEGY_SPREAD: u8 = 1;
/// Places all bundles on one node.
pub const STRATEGY_STRICT_PACK: u8 = 2;
/// Places each bundle on a node of its own.
pub const STRATEGY_STRICT_SPREAD: u8 = 3;

/// Prefers nodes with one value of the label, but allows others.
pub const TOPOLOGY_PACK: u8 = 1;
/// Allows only nodes with one value of the label.
pub const TOPOLOGY_STRICT_PACK: u8 = 2;
/// Spreads the bundles evenly over the values of the label.
pub const TOPOLOGY_SPREAD: u8 = 3;

/// An operation conflicts if it is no longer possible.
pub const CONFLICT_DETECTION_FINE: u8 = 0;
/// An operation conflicts if its node has another version than expected.
pub const CONFLICT_DETECTION_COARSE: u8 = 1;

/// The group waits for capacity.
pub const GROUP_WAITING: u8 = 1;
/// The group is being placed.
pub const GROUP_COMMITTING: u8 = 2;
/// At least the minimum of the group is placed.
pub const GROUP_PLACED: u8 = 3;
/// Bundles were lost with their nodes, released or evicted, and fewer than the minimum are left. They are
/// placed again.
pub const GROUP_DEGRADED: u8 = 4;
/// The request was done before a crash, and this start of the service has no planners to show its group. Only the id is
/// set. A status request shows the rest once the service has planners.
pub const GROUP_NOT_SHOWN: u8 = 5;

bodies! {
    /// [`GroupId`](wharf_core::ids::GroupId) on the wire.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct WireGroup {
        /// The start of the service that created the group.
        pub incarnation: u32,
        /// The group's number within that start. Texts have `q` and the rest for 2^48 and more: the group
        /// is charged to a queue.
        pub number: u64,
        /// Who the group belongs to; 0: the operator.
        pub tenant: u16,
    }

    /// A number of equal bundles.
    pub struct BundleTemplate {
        /// The amounts that one bundle takes, and the nodes on which it may be placed. It has no wait and no
        /// priority of its own. For a new group, it may name the queue that is charged: all bundles name the
        /// same one, or none does.
        pub request: PlaceRequest,
        /// The number of bundles. All templates of a message together have 1 to 1,024.
        pub count: u32 = 1,
    }

    /// A rule over the values of a label.
    pub struct TopologyBody {
        /// The label's key.
        pub key: String [NAME],
        /// `TOPOLOGY_*`.
        pub rule: u8,
        /// For `TOPOLOGY_SPREAD`: the maximum difference between the numbers of bundles on any two values, at
        /// least 1. Otherwise 0.
        pub max_skew: u32,
    }

    /// Creates a group. The reply is a [`GroupReply`].
    pub struct CreateGroupRequest {
        /// The bundles. Their indices count from 0, in this order.
        pub bundles: Vec<BundleTemplate> [GROUP_BUNDLES_MAX],
        /// `STRATEGY_*`.
        pub strategy: u8,
        /// The rule over the values of a label.
        pub topology: Option<TopologyBody>,
        /// The minimum number of bundles to place, or none is placed. 0 means all.
        pub min_members: u32,
        /// `MODE_*`: whether the group waits if it does not fit now.
        pub mode: u8,
        /// The end of the wait, in ns of service time. 0 means no end. Must be 0 for a group that does not
        /// wait.
        pub deadline: u64,
        /// Waiting groups of higher priority go first.
        pub priority: i32,
        /// `CONFLICT_DETECTION_*`: what counts as a conflict when the group is committed.
        pub conflict_detection: u8,
    }

    /// Adds bundles to a group, all of them or none. The reply is a [`GroupReply`].
    pub struct GrowGroupRequest {
        /// The group.
        pub group: WireGroup,
        /// The new bundles. Their indices follow the highest index that the group ever had.
        pub bundles: Vec<BundleTemplate> [GROUP_BUNDLES_MAX],
        /// `MODE_*`: whether the bundles wait if they do not fit now. They do not wait while an earlier
        /// bundle of the group is not placed, since that one comes first.
        pub mode: u8,
        /// The end of the wait, in ns of service time. 0 means no end. Must be 0 for bundles that do not
        /// wait.
        pub deadline: u64,
    }

    /// Removes bundles from a group, with the allocations inside them. The reply is a [`GroupReply`].
    pub struct ShrinkGroupRequest {
        /// The group.
        pub group: WireGroup,
        /// The indices of the bundles, each once.
        pub bundles: Vec<u32> [GROUP_BUNDLES_MAX],
    }

    /// Ends a group, with the allocations inside its bundles.
    #[derive(Copy)]
    pub struct RemoveGroupRequest {
        /// The group.
        pub group: WireGroup,
    }

    /// Confirms that the group is removed, or carries the fault why not.
    pub struct RemoveGroupReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The number of bundles that ended with the group.
        pub bundles_ended: u32,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks for the state of a group. The reply is a [`GroupReply`].
    #[derive(Copy)]
    pub struct GroupStatusRequest {
        /// The group.
        pub group: WireGroup,
    }

    /// Asks for a page of groups, in order of id.
    #[derive(Copy)]
    pub struct ListGroupsRequest {
        /// Returns the groups after this one. `None` starts with the first.
        pub after: Option<WireGroup>,
        /// Maximum number of groups to return. 0 means a full page.
        pub limit: u32,
    }

    /// A group in a list.
    #[derive(Copy)]
    pub struct GroupSummary {
        /// The group's id.
        pub id: WireGroup,
        /// `GROUP_*`.
        pub state: u8,
        /// `STRATEGY_*`.
        pub strategy: u8,
        /// The number of its bundles.
        pub bundles: u32,
        /// The number of placed bundles.
        pub placed: u32,
        /// The minimum number of bundles to place.
        pub min_members: u32,
        /// Waiting groups of higher priority go first.
        pub priority: i32,
    }

    /// A page of groups.
    pub struct ListGroupsReply {
        /// The groups in order of id.
        pub groups: Vec<GroupSummary> [GROUPS_PER_MESSAGE_MAX],
        /// There may be more groups after the last one.
        pub more: bool,
    }

    /// A bundle of a group.
    pub struct BundleBody {
        /// The bundle's index in the group.
        pub index: u32,
        /// The cores that the bundle takes, in 1/10,000.
        pub cpu: i64,
        /// The MiB that the bundle takes, in 1/10,000.
        pub memory: i64,
        /// The GPU devices that the bundle takes, in 1/10,000. Custom resources are not listed.
        pub gpu: i64,
        /// The bundle's placement, or `None`. Its allocation is the target for placements into the bundle.
        pub placed: Option<PlacedBody>,
        /// The latest end of a bundle that was evicted with a grace period, in ns of service time. 0 if it
        /// was not evicted. Only the reply to a status request sets it.
        pub releasing_until: u64,
    }

    /// The state of a group.
    pub struct GroupBody {
        /// The group's id.
        pub id: WireGroup,
        /// `GROUP_*`.
        pub state: u8,
        /// `STRATEGY_*`.
        pub strategy: u8,
        /// The rule over the values of a label.
        pub topology: Option<TopologyBody>,
        /// The minimum number of bundles to place.
        pub min_members: u32,
        /// Waiting groups of higher priority go first.
        pub priority: i32,
        /// The end of the wait, in ns of service time. 0 if the group does not wait, or waits without end.
        pub deadline: u64,
        /// The number of attempts to place the group.
        pub attempts: u32,
        /// The bundles in order of index.
        pub bundles: Vec<BundleBody> [GROUP_BUNDLES_MAX],
    }

    /// Why a group was not placed.
    pub struct GroupRefusalBody {
        /// `no_node_for_bundle`, `no_single_node`, `too_few_nodes`, `cluster_too_small`,
        /// `topology_too_small`, `own_bundles`, `confined_too_small`, `too_few_places`, `limit_exceeded`,
        /// `conflicted` or `cancelled`.
        pub cause: ReasonCode,
        /// The number of attempts.
        pub attempts: u32,
        /// The index of the bundle that fits on no node. Set for some causes, for example
        /// `no_node_for_bundle`, `own_bundles` and `topology_too_small`.
        pub bundle: Option<u32>,
        /// The number of bundles concerned. With a `bundle`: all others that do find a node. For
        /// `too_few_nodes` and `confined_too_small`: those that are confined to few nodes. Otherwise: all
        /// that must be placed.
        pub bundles: u32,
        /// For `too_few_nodes` and `confined_too_small`: the nodes that could hold any of these bundles. For
        /// `own_bundles`: the nodes with room for the bundle that the group's other bundles use.
        pub nodes: u32,
        /// The resource of which nodes together have too little (`cluster_too_small`, `confined_too_small`),
        /// or empty.
        pub resource: String [NAME],
        /// The counts of what nodes lack for that bundle (`no_node_for_bundle`).
        pub refusal: Option<RefusalBody>,
        /// The first conflicts (`conflicted`).
        pub conflicts: Vec<ConflictBody> [GROUP_CONFLICTS_MAX],
        /// The cause, for people.
        pub message: String [PROSE],
    }

    /// The state of a group, or why it was not placed.
    ///
    /// - `done`: a group.
    /// - `no_fit_now`, `infeasible`, `conflicted`, `cancelled`: a refusal.
    /// - `over_cap`: a fault that tells which cap of which queue forbids it.
    /// - Anything else: a fault.
    ///
    /// An `infeasible` reply also has a fault if a bundle requests a resource that no node has ever had.
    pub struct GroupReply {
        /// The reason, which selects one of the fields below.
        pub reason: ReasonCode,
        /// The group.
        pub group: Option<GroupBody>,
        /// Why the group was not placed. It holds nothing.
        pub refusal: Option<GroupRefusalBody>,
        /// The fault in the request, if any.
        pub fault: Option<Fault>,
    }

    /// Places into a bundle, which is named by its allocation or by its group. The reply is a
    /// [`PlaceReply`](super::PlaceReply). A release ends the allocation.
    pub struct PlaceIntoRequest {
        /// The bundle's allocation. Give either this or the group.
        pub allocation: Option<WireAllocation>,
        /// The group. Without `bundle`, its first bundle with room is used.
        pub group: Option<WireGroup>,
        /// The bundle's index in the group.
        pub bundle: Option<u32>,
        /// The amounts to take.
        pub demand: DemandBody,
    }
}
