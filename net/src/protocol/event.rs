//! Events: what happened, in the order of the journal. A client asks for a page from a position on, and waits if there
//! is nothing after it yet. Only durable changes are told.

use wharf_core::limits::{CLASS_NAME_BYTES_MAX, GPU_INSTANCES_MAX, GROUP_BUNDLES_MAX};

use super::bounded::NAME;
use super::{
    AgentBody, DemandBody, Holding, NodeBody, Pending, ReasonCode, UnhealthyBody, WireAllocation, WireGroup,
    WireSession,
};

/// Something that this version of the service has no body for. Ignore it.
pub const EVENT_OTHER: u8 = 0;
/// The service started. `incarnation` numbers the start.
pub const EVENT_STARTED: u8 = 1;
/// An allocation began. `cause` is one of `BEGUN_*`.
pub const EVENT_BEGUN: u8 = 2;
/// An allocation is a bundle.
pub const EVENT_BUNDLE: u8 = 3;
/// An allocation was placed into a bundle.
pub const EVENT_INSIDE: u8 = 4;
/// An allocation ended, or one inside a bundle. `cause` is one of `ENDED_*`.
pub const EVENT_ENDED: u8 = 5;
/// A node is new or changed. `cause` is a sum of `CHANGED_NEW`, `CHANGED_SPEC` and `CHANGED_STATE`. 0: its reservation,
/// claims, releasing allocations or health.
pub const EVENT_NODE: u8 = 6;
/// Only the version of a node is new, because its allocations changed.
pub const EVENT_NODE_COUNT: u8 = 7;
/// A node was removed. Its allocations ended before.
pub const EVENT_NODE_REMOVED: u8 = 8;
/// A group is new or changed.
pub const EVENT_GROUP: u8 = 9;
/// A group was removed.
pub const EVENT_GROUP_REMOVED: u8 = 10;
/// The service learnt resource kinds. `kinds` is their number so far.
pub const EVENT_KINDS: u8 = 11;
/// A client session ended. `cause` is one of `SESSION_*`.
pub const EVENT_SESSION_ENDED: u8 = 12;
/// An allocation has a lease, or its lease was renewed. If the lease belongs to a session, all leases of the session in the
/// partition of the allocation have the same end.
pub const EVENT_LEASE: u8 = 13;
/// The leases of a session in a partition were renewed.
pub const EVENT_SESSION_RENEWED: u8 = 14;
/// The wait of a placement ended. `session` and `sequence` name its request, and `cause` is one of `WAIT_*`. A wait that
/// ends with its session has no event of its own.
pub const EVENT_WAIT_ENDED: u8 = 15;
/// A queue of jobs is new or changed. `queue` is its name.
pub const EVENT_QUEUE: u8 = 16;
/// A queue of jobs was removed. `queue` is its name.
pub const EVENT_QUEUE_REMOVED: u8 = 17;
/// A job was submitted. `queue` is the name of its queue.
pub const EVENT_JOB: u8 = 18;
/// A job has another phase, or was restarted. `state` is one of `JOB_*`.
pub const EVENT_JOB_PHASE: u8 = 19;
/// A job that had ended is no longer kept.
pub const EVENT_JOB_REMOVED: u8 = 20;
/// A task has another state, or another allocation. `state` is one of `TASK_*`. If it has a node, `node` and `allocation` say
/// where it is.
pub const EVENT_TASK: u8 = 21;
/// A priority class is new or changed. `priority_class` is its name.
pub const EVENT_PRIORITY_CLASS: u8 = 22;
/// A priority class was removed. `priority_class` is its name.
pub const EVENT_PRIORITY_CLASS_REMOVED: u8 = 23;

/// A placement was granted at once.
pub const BEGUN_PLACED: u8 = 1;
/// A placement was granted after it had waited.
pub const BEGUN_WAITED: u8 = 2;
/// A statement committed it, for a group or for an external scheduler.
pub const BEGUN_COMMITTED: u8 = 3;
/// A claim was granted.
pub const BEGUN_CLAIMED: u8 = 4;
/// Another system made it, and it was adopted.
pub const BEGUN_ADOPTED: u8 = 5;

/// A caller released it.
pub const ENDED_RELEASED: u8 = 1;
/// A statement evicted it.
pub const ENDED_EVICTED: u8 = 2;
/// Its node was removed.
pub const ENDED_NODE_REMOVED: u8 = 3;
/// Its node was lost.
pub const ENDED_NODE_LOST: u8 = 4;
/// Its lease ran out.
pub const ENDED_EXPIRED: u8 = 5;
/// A start took it back, because a crash came before all of a change was recorded. Nobody was told of it.
pub const ENDED_TAKEN_BACK: u8 = 6;

/// Its client ended the session, and has all replies.
pub const SESSION_CLOSED: u8 = 1;
/// Its client stayed away for too long.
pub const SESSION_EXPIRED: u8 = 2;
/// There were too many sessions without a connection.
pub const SESSION_EVICTED: u8 = 3;

/// The request was placed. `allocation` is its allocation, or `group` its group.
pub const WAIT_PLACED: u8 = 1;
/// Its deadline passed.
pub const WAIT_EXPIRED: u8 = 2;
/// Its client cancelled it, or its group was removed.
pub const WAIT_CANCELLED: u8 = 3;
/// It can never be placed, or its group is gone or is being changed.
pub const WAIT_REFUSED: u8 = 4;

/// The node was added.
pub const CHANGED_NEW: u8 = 1;
/// Capacity, labels, taints or names may be others.
pub const CHANGED_SPEC: u8 = 2;
/// The state may be another.
pub const CHANGED_STATE: u8 = 4;

/// Maximum number of events on one page.
pub const EVENTS_PER_MESSAGE_MAX: usize = 4096;
/// Default maximum number of events on one page.
pub const EVENTS_PER_MESSAGE_DEFAULT: u16 = 1024;

bodies! {
    /// Asks for events. A connection has one waiting request at a time: the next one replaces it, and the waiting one is
    /// answered without events.
    #[derive(Copy)]
    pub struct EventsRequest {
        /// The position of the first event to return. 0 returns no event, but the next position.
        pub from: u64,
        /// Maximum number of events, up to [`EVENTS_PER_MESSAGE_MAX`]. 0 means the default.
        pub limit: u16,
        /// The wait for an event, in ms, up to [`FOLLOW_WAIT_MS_MAX`](super::FOLLOW_WAIT_MS_MAX). 0 means no wait.
        pub wait_ms: u32,
    }

    /// A page of events, or the answer that there is none yet.
    pub struct EventsReply {
        /// `done`, or why there is no page: `too_far_behind` if the events from the position on are no longer kept,
        /// `future_version` if the position was never given.
        pub reason: ReasonCode,
        /// The position of the oldest event that is kept.
        pub first: u64,
        /// The position after the newest durable event.
        pub end: u64,
        /// The position to ask for next.
        pub next: u64,
        /// The events, in order of position.
        pub events: Vec<EventBody> [EVENTS_PER_MESSAGE_MAX],
    }

    /// One event. Fields that do not belong to its kind have their default.
    pub struct EventBody {
        /// Counts the events of the store. No event has the position 0.
        pub position: u64,
        /// Service time of the change, in ns.
        pub time: u64,
        /// True on the last event of a change. The changes so far amount to a state of the books.
        pub is_whole: bool,
        /// `EVENT_*`.
        pub what: u8,
        /// Why, as `what` says.
        pub cause: u8,
        /// The allocation, of `EVENT_BEGUN`, `EVENT_BUNDLE`, `EVENT_INSIDE`, `EVENT_ENDED`, `EVENT_LEASE`,
        /// `EVENT_WAIT_ENDED` and `EVENT_TASK`.
        pub allocation: Option<WireAllocation>,
        /// The bundle's allocation, of `EVENT_INSIDE`.
        pub into: Option<WireAllocation>,
        /// The group, of `EVENT_BUNDLE`, `EVENT_GROUP`, `EVENT_GROUP_REMOVED` and `EVENT_WAIT_ENDED`.
        pub group: Option<WireGroup>,
        /// The index in the group, of `EVENT_BUNDLE`.
        pub bundle: u32,
        /// The node's id, of `EVENT_BEGUN`, `EVENT_TASK`, and of all events of nodes.
        pub node: u64,
        /// The number of changes of the node so far, of all events of nodes.
        pub version: u64,
        /// The start of the service, of `EVENT_STARTED`.
        pub incarnation: u32,
        /// The number of resource kinds, of `EVENT_KINDS`.
        pub kinds: u32,
        /// What the allocation holds, of `EVENT_BEGUN` and `EVENT_INSIDE`.
        pub holds: Option<Box<Holding>>,
        /// The name that another system gave the allocation, or empty.
        pub external_id: String [NAME],
        /// The node as it is now, of `EVENT_NODE`.
        pub node_now: Option<Box<EventNode>>,
        /// The group as it is now, of `EVENT_GROUP`.
        pub group_now: Option<Box<EventGroup>>,
        /// The session, of `EVENT_SESSION_ENDED`, `EVENT_SESSION_RENEWED` and `EVENT_WAIT_ENDED`, and of a lease that
        /// belongs to one.
        pub session: Option<WireSession>,
        /// The partition, of `EVENT_SESSION_RENEWED`.
        pub partition: u16,
        /// The end of a lease, in ns of service time, of `EVENT_LEASE` and `EVENT_SESSION_RENEWED`.
        pub until: u64,
        /// The sequence of the request, of `EVENT_WAIT_ENDED`.
        pub sequence: u64,
        /// The number of the job, of all events of jobs and tasks.
        pub job: u64,
        /// The index in the job, of `EVENT_TASK`.
        pub task: u32,
        /// `JOB_*` of `EVENT_JOB_PHASE`, or `TASK_*` of `EVENT_TASK`.
        pub state: u8,
        /// How often job policies have restarted the job or a task of it, of `EVENT_JOB_PHASE`.
        pub restarts: u32,
        /// The name of the queue, of events of queues and of `EVENT_JOB`.
        pub queue: String [NAME],
        /// The job as it was submitted, of `EVENT_JOB`.
        pub job_now: Option<Box<EventJob>>,
        /// The name of the priority class, of events of classes.
        pub priority_class: String [CLASS_NAME_BYTES_MAX],
    }

    /// A job that was submitted.
    pub struct EventJob {
        /// Its name.
        pub name: String [NAME],
        /// Who it belongs to; 0: the operator.
        pub tenant: u16,
        /// Its priority.
        pub priority: i32,
        /// How many of its tasks must have nodes before any is bound.
        pub min_member: u32,
        /// The number of its tasks.
        pub tasks: u32,
    }

    /// A node after a change, without its allocations.
    pub struct EventNode {
        /// The node's place in the order of registration.
        pub ordinal: u64,
        /// The partition that owns it.
        pub partition: u16,
        /// `NODE_*`.
        pub state: u8,
        /// Capacity and labels.
        pub body: NodeBody,
        /// `None` if no agent reports the node.
        pub agent: Option<AgentBody>,
        /// Unhealthy GPU instances, ascending.
        pub unhealthy: Vec<UnhealthyBody> [GPU_INSTANCES_MAX],
        /// The reservation, if any.
        pub reservation: Option<EventReservation>,
        /// The releasing allocations and the claims.
        pub pending: Pending,
    }

    /// The reservation of a node.
    pub struct EventReservation {
        /// The owner.
        pub owner: u64,
        /// When the reservation ends by itself, in ns of service time. 0 means never.
        pub until: u64,
        /// The reserved amounts that are left.
        pub left: DemandBody,
    }

    /// A group after a change.
    pub struct EventGroup {
        /// `STRATEGY_*`.
        pub strategy: u8,
        /// The minimum number of bundles to place.
        pub min_members: u32,
        /// Waiting groups of higher priority go first.
        pub priority: i32,
        /// The bundles, by index.
        pub bundles: Vec<EventGroupBundle> [GROUP_BUNDLES_MAX],
        /// True if the custom resources of the bundles are left out, because they do not fit a page.
        pub is_cut: bool,
    }

    /// A bundle of a group.
    pub struct EventGroupBundle {
        /// The index in the group.
        pub index: u32,
        /// The amounts that the bundle takes.
        pub demand: DemandBody,
        /// The node's id, or 0 if the bundle is not placed.
        pub node: u64,
        /// The allocation, if the bundle is placed.
        pub allocation: Option<WireAllocation>,
        /// The allocation on a lost node that the bundle had before.
        pub lost: Option<WireAllocation>,
    }
}

const _: () = assert!(EVENTS_PER_MESSAGE_DEFAULT as usize <= EVENTS_PER_MESSAGE_MAX);
