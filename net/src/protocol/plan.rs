//! Plans of nodes: what to launch for all that waits, what to remove, and what would start.

use wharf_core::limits::{FLOORS_MAX, NODE_TYPES_MAX};

use super::bounded::NAME;
use super::{FRAME_BYTES_MAX, Fault, NodeBody, PlaceRequest, ReasonCode, RefusalBody};

/// Maximum number of nodes in a request of which it is said how long they have been idle.
pub const IDLE_NODES_MAX: usize = 1000;
/// Maximum number of rows of a plan that say what gets no node, and of waiting jobs.
pub const UNPLACED_MAX: usize = 256;
/// Maximum number of rows of a plan that have a refusal.
pub const PLAN_REFUSALS_MAX: usize = 8;
/// Maximum number of nodes to remove in a plan, and of starts.
pub const PLAN_ROWS_PER_MESSAGE_MAX: usize = 1000;

/// The bundles go to any nodes.
pub const SPREAD_ANY: u8 = 0;
/// Each bundle goes to a node of its own.
pub const SPREAD_APART: u8 = 1;
/// All bundles go to one node.
pub const SPREAD_TOGETHER: u8 = 2;

/// A floor asks.
pub const ASKER_FLOOR: u8 = 1;
/// A placement group of the request asks.
pub const ASKER_GROUP: u8 = 2;
/// A job asks.
pub const ASKER_JOB: u8 = 3;
/// A placement group of the service that waits asks.
pub const ASKER_WAITING_GROUP: u8 = 4;
/// Single placements that wait at the service ask.
pub const ASKER_PLACEMENTS: u8 = 5;

/// The cap of a queue forbids it, so no node is asked for.
pub const UNFIT_CAP: u8 = 1;
/// No type and no present node could ever hold it.
pub const UNFIT_NEVER: u8 = 2;
/// A present node could hold it if it were empty, and no type could.
pub const UNFIT_ONLY_PRESENT: u8 = 3;
/// The types that could hold it have as many nodes as they may.
pub const UNFIT_TYPE_LIMIT: u8 = 4;
/// There are as many nodes as there may be.
pub const UNFIT_ALL_LIMIT: u8 = 5;
/// The other members of its gang, or its rule of spreading, do not fit with it.
pub const UNFIT_GANG: u8 = 6;
/// It was not decided: the work of a plan is bounded.
pub const UNFIT_UNDECIDED: u8 = 7;
/// No domain of the topology could have room for the tasks that must be in one.
pub const UNFIT_TOPOLOGY: u8 = 8;

/// The node has been idle for too long, and nothing needs it.
pub const REMOVAL_IDLE: u8 = 1;
/// Its type has more nodes than it may.
pub const REMOVAL_TYPE_LIMIT: u8 = 2;
/// There are more nodes than there may be.
pub const REMOVAL_ALL_LIMIT: u8 = 3;

bodies! {
    /// A type of nodes that can be launched.
    pub struct NodeTypeBody {
        /// What a node of it has. The name is that of the type. Nodes get a label with it in addition.
        pub node: NodeBody,
        /// The number of nodes that are there in any case.
        pub min: u32,
        /// The largest number of nodes, at least `min`.
        pub max: u32,
        /// The number of nodes that are being launched and are not registered yet.
        pub launching: u32,
        /// How long a launch takes, in ns.
        pub launch_time: u64,
        /// How long a node is idle before it is named for removal, in ns. `None`: as the request says.
        pub idle_timeout: Option<u64>,
    }

    /// Equal requests.
    pub struct BundlesBody {
        /// Each of them. It has no wait, no lease and no priority of its own.
        pub request: PlaceRequest,
        /// Their number.
        pub count: u32 = 1,
    }

    /// A placement group that waits: it gets all or nothing.
    pub struct PendingGroupBody {
        /// Its name.
        pub name: String [NAME],
        /// Its bundles, at least one.
        pub bundles: Vec<BundlesBody> [FLOORS_MAX],
        /// `SPREAD_*`.
        pub spread: u8,
        /// The label of which all nodes of the group have the same value. Empty: none.
        pub domain: String [NAME],
        /// Demand of a higher priority comes first.
        pub priority: i32,
    }

    /// How long a node has been idle, as its agent knows.
    #[derive(Copy)]
    pub struct IdleNodeBody {
        /// The node's id.
        pub node: u64,
        /// How long, in ns.
        pub idle: u64,
    }

    /// Asks which nodes to launch for all that waits, which to remove, and what would start. Nothing is changed.
    pub struct PlanNodesRequest {
        /// The types, in order of preference among equals. At least one.
        pub types: Vec<NodeTypeBody> [NODE_TYPES_MAX],
        /// The label of a node with the name of its type. Nodes without it are used, and neither counted nor removed.
        pub type_label: String [NAME] = "node-type".to_owned(),
        /// The largest number of nodes of all types together. `None`: no other limit than those of the types.
        pub nodes_max: Option<u32>,
        /// How many nodes of a type are launched at a time, as a part of those that there are, in 1/10,000.
        pub upscaling_speed: u32 = 10_000,
        /// The largest number of nodes that are being launched at a time.
        pub launches_max: u32 = 10,
        /// How long a node is idle before it is named for removal, in ns. `None`: for ever.
        pub idle_timeout: Option<u64>,
        /// What the cluster must be able to hold, whatever runs on it.
        pub floors: Vec<BundlesBody> [FLOORS_MAX],
        /// Placement groups that wait, and that the service does not know.
        pub groups: Vec<PendingGroupBody> [FLOORS_MAX],
        /// How far into the future it is tried which jobs start, in ns.
        pub horizon: u64,
        /// How long nodes have been idle, as their agents know. The service notices by itself since when they are.
        pub idle: Vec<IdleNodeBody> [IDLE_NODES_MAX],
        /// Whether groups and placements that wait at the service are counted, too. Who names them in `groups` says no.
        pub waiting: bool = true,
    }

    /// What is planned for a type of nodes.
    #[derive(Copy)]
    pub struct TypePlanBody {
        /// The number of nodes that are registered.
        pub present: u32,
        /// The number of nodes that are being launched, without those to cancel.
        pub launching: u32,
        /// The number of further nodes that are needed.
        pub needed: u32,
        /// How many of these to launch now.
        pub launch: u32,
        /// How many of the launches under way to cancel, because they exceed a limit.
        pub cancel: u32,
    }

    /// What gets no node.
    pub struct UnplacedBody {
        /// `ASKER_*`: who asks for it.
        pub asker: u8,
        /// The number of the job or of the waiting group, or the index of the floor or group. 0 for placements.
        pub number: u64,
        /// The name of the job or group, or the id of the waiting group as text. Empty for floors and placements.
        pub name: String [NAME],
        /// The number of tasks or bundles. Of a gang, all of them.
        pub count: u32,
        /// `UNFIT_*`: why.
        pub reason: u8,
        /// For `UNFIT_CAP`: the queue.
        pub queue: String [NAME],
        /// For `UNFIT_CAP`: the resource.
        pub resource: String [NAME],
        /// For `UNFIT_NEVER`: the types by the check that they fail. Only the first rows of a plan have it.
        pub refusal: Option<RefusalBody>,
    }

    /// A node to remove.
    pub struct RemovalBody {
        /// The node's id.
        pub node: u64,
        /// The node's name. Empty if the node was removed.
        pub node_name: String [NAME],
        /// The index of its type.
        pub of_type: u32,
        /// How long it has been idle, in ns.
        pub idle: u64,
        /// `REMOVAL_*`: why.
        pub cause: u8,
    }

    /// Tasks of a job that would be bound.
    pub struct StartBody {
        /// How long from now, in ns.
        pub after: u64,
        /// The number of the job.
        pub job: u64,
        /// The name of the job.
        pub name: String [NAME],
        /// The number of tasks.
        pub tasks: u32,
    }

    /// A job of which no task would be bound until the horizon.
    pub struct WaitingJobBody {
        /// The number of the job.
        pub job: u64,
        /// The name of the job.
        pub name: String [NAME],
    }

    /// A plan of nodes, or the fault why there is none. A tenant sees its own jobs and groups, and no single placements.
    pub struct PlanNodesReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// What is planned for each type, in the order of the request.
        pub types: Vec<TypePlanBody> [NODE_TYPES_MAX],
        /// The number of pending tasks and bundles that fit on present nodes, and on those being launched.
        pub fit_present: u64,
        /// The number of pending tasks and bundles that fit on the nodes that are needed.
        pub fit_needed: u64,
        /// What gets no node.
        pub unplaced: Vec<UnplacedBody> [UNPLACED_MAX],
        /// The nodes to remove, those first that are to go first.
        pub removals: Vec<RemovalBody> [PLAN_ROWS_PER_MESSAGE_MAX],
        /// What would be bound if all needed nodes came, in order of time.
        pub starts: Vec<StartBody> [PLAN_ROWS_PER_MESSAGE_MAX],
        /// The jobs that would not start.
        pub waiting: Vec<WaitingJobBody> [UNPLACED_MAX],
        /// Whether something was left out, because the work and the size of a plan are bounded.
        pub is_partial: bool,
        /// The number of groups and placements that wait at the service and were not looked at, because there are too many:
        /// those of the lowest priority.
        pub left_out: u64,
        /// The number of tasks that state no run time, and that ended in the plan as others of their queue, user and role did.
        pub measured_ends: u64,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }
}

/// Bytes of a row at most: names, and numbers at their longest encoding.
const ROW_BYTES: usize = NAME + 3 + 4 * 9;
/// Bytes of a refusal at most: its checks with their names.
const REFUSAL_BYTES: usize = 64 * ROW_BYTES + 2 * 9 + 3;
// The longest plan fits a frame.
const _: () = assert!(
    UNPLACED_MAX * (2 * (NAME + 3) + 2 * ROW_BYTES)
        + PLAN_REFUSALS_MAX * REFUSAL_BYTES
        + 2 * PLAN_ROWS_PER_MESSAGE_MAX * ROW_BYTES
        + NODE_TYPES_MAX * 5 * 5
        + 128
        <= FRAME_BYTES_MAX as usize
);
