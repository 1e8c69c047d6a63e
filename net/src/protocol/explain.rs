//! Why jobs and tasks, placements and groups wait, and what would help.

use wharf_core::limits::DOMAIN_PATH_BYTES_MAX;

use super::bounded::{NAME, PROSE};
use super::{
    Fault, GroupSummary, JOB_AMOUNTS_MAX, JobSummaryBody, NamedAmount, ReasonCode, RefusalBody, WireGroup,
    WireSession,
};

/// Maximum number of jobs or queues that are named as those that use most of something.
pub const HOLDERS_MAX: usize = 8;
/// Maximum number of bounds of queues in an explanation. Those of outer queues are left out beyond that.
pub const QUEUE_BOUNDS_MAX: usize = 64;
/// Maximum number of changes in an explanation.
pub const CHANGES_MAX: usize = 256;

/// The job or task does not wait: it has what it needs, or it has ended.
pub const PENDING_NONE: u8 = 0;
/// No cycle has tried it yet.
pub const PENDING_NOT_TRIED: u8 = 1;
/// Its queue has not admitted the job.
pub const PENDING_NOT_ADMITTED: u8 = 2;
/// The job cannot have as many tasks as it needs: others of them have failed or are being released.
pub const PENDING_TOO_FEW_TASKS: u8 = 3;
/// Its queue has all that it deserves, so none of its jobs is tried.
pub const PENDING_OVERUSED: u8 = 4;
/// The rules give its queue no more of something that it asks for.
pub const PENDING_SHARE: u8 = 5;
/// The capability of its queue, or of one that contains it, forbids it.
pub const PENDING_CAP: u8 = 6;
/// No node has room for it.
pub const PENDING_NO_NODE: u8 = 7;
/// Some tasks of the job could be placed, but fewer than it needs.
pub const PENDING_GANG: u8 = 8;
/// It would fit, and would delay a job with a dated reservation.
pub const PENDING_RESERVATION: u8 = 9;
/// It has a claim on capacity that is being released.
pub const PENDING_CLAIM: u8 = 10;
/// What the last cycle planned for it was not possible any longer. The next one tries again.
pub const PENDING_CONFLICT: u8 = 11;
/// No domain of the topology has room for as many tasks as must be in one.
pub const PENDING_TOPOLOGY: u8 = 12;

/// The action `preempt` found nobody to evict.
pub const NO_VICTIMS_PREEMPT: u8 = 1;
/// The action `reclaim` found nobody to evict.
pub const NO_VICTIMS_RECLAIM: u8 = 2;
/// The action `starve` found nobody to evict.
pub const NO_VICTIMS_STARVE: u8 = 4;

/// The bound is the capability of the queue.
pub const RULE_CAPABILITY: u8 = 1;
/// The bound is what the cluster has less what other queues are guaranteed.
pub const RULE_GUARANTEES: u8 = 2;
/// The bound is what the queue deserves.
pub const RULE_DESERVED: u8 = 3;
/// The bound is the part of the cluster for which jobs are admitted.
pub const RULE_OVERCOMMIT: u8 = 4;
/// The bound is the most allocations that the queue may have.
pub const RULE_ALLOCATIONS: u8 = 5;

/// So much more is free on a node. With a queue, tasks of it give that back.
pub const CHANGE_FREE_ON_NODE: u8 = 1;
/// There are so many more nodes like this one, empty.
pub const CHANGE_MORE_NODES: u8 = 2;
/// There are so many nodes that suit the labels and taints, each with at least these amounts.
pub const CHANGE_LARGER_NODES: u8 = 3;
/// The capability of a queue is so much higher.
pub const CHANGE_RAISE_CAP: u8 = 4;
/// Tasks of a queue give back so much.
pub const CHANGE_RELEASE: u8 = 5;
/// The cluster has so much more.
pub const CHANGE_CAPACITY: u8 = 6;
/// The tasks state a run time of at most this.
pub const CHANGE_RUN_TIME: u8 = 7;
/// As `CHANGE_MORE_NODES`, all of them in the domain that the explanation names. If there is no domain of the tier, all in a new
/// one.
pub const CHANGE_MORE_NODES_IN_DOMAIN: u8 = 8;
/// As `CHANGE_LARGER_NODES`, all of them in the domain that the explanation names. If there is no domain of the tier, all in a
/// new one.
pub const CHANGE_LARGER_NODES_IN_DOMAIN: u8 = 9;
/// Others leave room for so many more tasks, each with these amounts, on nodes of the domain that the explanation names.
pub const CHANGE_FREE_IN_DOMAIN: u8 = 10;

/// It waits for nothing: it has what it needs, or it is being changed.
pub const WAITS_FOR_NOTHING: u8 = 0;
/// It waits for a node with room: none has any for it.
pub const WAITS_FOR_NODE: u8 = 1;
/// The group waits for room for more bundles: there is room for some, and for fewer than it needs at once.
pub const WAITS_FOR_BUNDLES: u8 = 2;
/// The group waits for room for all of its bundles together, by its strategy or its rule. There is room for each by itself.
pub const WAITS_FOR_TOGETHER: u8 = 3;
/// It waits for its turn: there is room.
pub const WAITS_FOR_TURN: u8 = 4;
/// The group waits for a ticket, because others took several times what came free.
pub const WAITS_FOR_TICKET: u8 = 5;
/// The placement waits in its queue, as a job: the explanation of the job tells what for. Or the queue of the group is not to have
/// more now, for the reason that was found.
pub const WAITS_FOR_QUEUE: u8 = 6;

/// In place of the number of a job: a placement group uses something.
pub const HOLDER_GROUP: u64 = u64::MAX;

bodies! {
    /// Asks why a job, or a task of it, waits.
    #[derive(Copy)]
    pub struct ExplainJobRequest {
        /// The number of the job.
        pub job: u64,
        /// The index of the task. `None`: the job as a whole.
        pub task: Option<u32>,
    }

    /// A job, a placement group, or a queue, that uses much of something.
    pub struct HolderBody {
        /// The name of the job or the queue, or the id of the group (`g1-q0`).
        pub name: String [NAME],
        /// The number of the job. 0: it is a queue. 2^64 - 1: it is a group.
        pub job: u64,
        /// What it uses, in 1/10,000 of a unit: held, claimed, or being released.
        pub amount: i64,
    }

    /// A bound of a queue that is in the way.
    pub struct QueueBoundBody {
        /// The name of the queue. Empty: the session may not see it.
        pub queue: String [NAME],
        /// `RULE_*`.
        pub rule: u8,
        /// `cpu`, `memory`, `gpu` or a custom name. With `RULE_ALLOCATIONS`, `allocations`, and all amounts are numbers.
        pub resource: String [NAME],
        /// The bound, in 1/10,000 of a unit.
        pub bound: i64,
        /// What counts against it now, in 1/10,000 of a unit.
        pub used: i64,
        /// What is asked for in addition, in 1/10,000 of a unit.
        pub asked: i64,
        /// The others in the queue that use most of it, the largest first. A tenant is told its own jobs and the queues that
        /// it may use.
        pub holders: Vec<HolderBody> [HOLDERS_MAX],
    }

    /// What the nodes that labels and taints allow have room for.
    pub struct NodeRoomBody {
        /// The number of nodes that could hold the task now.
        pub fits: u64,
        /// How many of such tasks all nodes together could hold now, at least.
        pub places: u64,
        /// The number of nodes that have enough GPU in total, but not in one device or not in whole devices.
        pub fragmented: u64,
        /// What is free on all of them together, of the resources that the task asks for.
        pub free: Vec<NamedAmount> [JOB_AMOUNTS_MAX],
    }

    /// A change that would help.
    pub struct ChangeBody {
        /// `CHANGE_*`.
        pub change: u8,
        /// True if it is another way to do what the change before it does. All others are needed together.
        pub instead: bool,
        /// The name of a queue, for `CHANGE_RAISE_CAP`, `CHANGE_RELEASE` and `CHANGE_FREE_ON_NODE`.
        pub queue: String [NAME],
        /// The id of a node, for `CHANGE_FREE_ON_NODE`, `CHANGE_MORE_NODES` and `CHANGE_MORE_NODES_IN_DOMAIN`. 0: the session
        /// may not see it.
        pub node: u64,
        /// Its name.
        pub node_name: String [NAME],
        /// A number of nodes, for `CHANGE_MORE_NODES`, `CHANGE_LARGER_NODES` and the same in a domain. For
        /// `CHANGE_FREE_IN_DOMAIN`, a number of tasks. For `CHANGE_RAISE_CAP` and `CHANGE_RELEASE` without amounts, a number of
        /// allocations.
        pub count: u64,
        /// Amounts, in 1/10,000 of a unit.
        pub amounts: Vec<NamedAmount> [JOB_AMOUNTS_MAX],
        /// A run time in ns, for `CHANGE_RUN_TIME`.
        pub run_time: u64,
    }

    /// What domains of the topology lack for a job.
    pub struct DomainLackBody {
        /// The tier of which no domain has room.
        pub tier: String [NAME],
        /// The domain that has room for most tasks: the values of its labels, the widest tier first. Empty: there is none, or
        /// the session may not see it.
        pub best: String [DOMAIN_PATH_BYTES_MAX],
        /// The number of tasks for which it has room, at most.
        pub holds: u32,
        /// The number of tasks that need a place there, with those that have one.
        pub needed: u32,
        /// True if the settings of the service have no such tier any longer.
        pub missing: bool,
    }

    /// Why a job or a task waits, or the fault why that is not told.
    pub struct ExplainJobReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The job.
        pub job: Option<JobSummaryBody>,
        /// The index of the task that the rest is about: the one that was asked for, or the first one that the job lacks.
        pub task: Option<u32>,
        /// `TASK_*`: its state. 0 without a task.
        pub state: u8,
        /// `PENDING_*`: why it waits, as of the last cycle.
        pub pending: u8,
        /// `PENDING_*`: why the first task that did not fit has no place, if `pending` is `PENDING_GANG`.
        pub cause: u8,
        /// When the last cycle tried the job, in ns of service time. `None`: it did not.
        pub tried: Option<u64>,
        /// The number of tasks that the job has, or that the last cycle could have placed.
        pub fit: u32,
        /// The number of tasks that the job needs before any is bound.
        pub needed: u32,
        /// The sum of `NO_VICTIMS_*`.
        pub no_victims: u8,
        /// The number of waiting jobs of its queue that are served before it.
        pub before: u32,
        /// The number of waiting jobs of its queue.
        pub waiting: u32,
        /// The number of its tasks with claims on capacity that is being released.
        pub claimed: u32,
        /// The number of its tasks that have a node and wait until the cap of their queue allows them.
        pub capped: u32,
        /// When all that it needs will fit, in ns of service time, if it has a dated reservation.
        pub date: Option<u64>,
        /// The earliest date of the dated reservations that hold it back, in ns of service time.
        pub held_until: Option<u64>,
        /// The number of the job with that date. 0: the session may not see it.
        pub held_by: u64,
        /// The number of other jobs with dated reservations.
        pub reserved: u32,
        /// The nodes that have no room for the task, by failing check. `None`: it does not wait for a node.
        pub nodes: Option<RefusalBody>,
        /// What the other nodes have room for.
        pub room: NodeRoomBody,
        /// The resource that most nodes lack. Empty: none.
        pub scarce: String [NAME],
        /// The queues that use most of it, the largest first.
        pub scarce_holders: Vec<HolderBody> [HOLDERS_MAX],
        /// The bounds of queues that are in the way.
        pub bounds: Vec<QueueBoundBody> [QUEUE_BOUNDS_MAX],
        /// What would help. Empty: nothing but time, or nothing that is known.
        pub changes: Vec<ChangeBody> [CHANGES_MAX],
        /// What domains lack, if the tasks must be in one and none has room.
        pub domain: Option<DomainLackBody>,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks why a placement waits, which a session and a sequence name, or a group.
    #[derive(Copy)]
    pub struct ExplainWaitRequest {
        /// The session whose placement waits. `None`: a group is named.
        pub session: Option<WireSession>,
        /// The sequence of the placement in its session. 0 with a group.
        pub sequence: u64,
        /// The group.
        pub group: Option<WireGroup>,
        /// The index of a bundle of the group. `None`: the first one that has no room.
        pub bundle: Option<u32>,
    }

    /// Why a placement or a group waits, or the fault why that is not told.
    pub struct ExplainWaitReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The group. `None`: it is a placement.
        pub group: Option<GroupSummary>,
        /// The number of the job as which a placement waits in its queue: ask `explain_job` about it. 0: there is none.
        pub job: u64,
        /// The index of the bundle that the counts are about.
        pub bundle: Option<u32>,
        /// `WAITS_FOR_*`.
        pub waits_for: u8,
        /// Its priority.
        pub priority: i32,
        /// Since when it waits, in ns of service time.
        pub since: u64,
        /// Until when it waits, in ns of service time. `None`: as long as it must.
        pub until: Option<u64>,
        /// The number of bundles that are placed or have room, each by itself. 0 or 1 for a placement.
        pub fit: u32,
        /// The number of bundles that must have places at once, with those that are placed. 1 for a placement.
        pub needed: u32,
        /// What was found when the group was tried last, for people. May be empty.
        pub found: String [PROSE],
        /// The number of placements and groups that come before it: by priority, then by age.
        pub before: u64,
        /// The number of all placements and groups that wait. Placements that are tried at the moment are left out.
        pub waiting: u64,
        /// The nodes that have no room for the bundle or the placement, by failing check. `None`: it does not wait.
        pub nodes: Option<RefusalBody>,
        /// What the other nodes have room for.
        pub room: NodeRoomBody,
        /// What would help. Empty: nothing but time, or nothing that is known.
        pub changes: Vec<ChangeBody> [CHANGES_MAX],
        /// The fault, if any.
        pub fault: Option<Fault>,
    }
}

/// Bytes of a name and a number at most.
const NAMED_BYTES: usize = NAME + 3 + 9;
/// Bytes of a bound at most.
const BOUND_BYTES: usize = (2 + HOLDERS_MAX) * (NAMED_BYTES + 9) + 32;
/// Bytes of a change with one amount at most. Only a few changes have more than one.
const CHANGE_BYTES: usize = 3 * NAMED_BYTES + 40;
// The longest explanation fits a frame.
const _: () = assert!(
    QUEUE_BOUNDS_MAX * BOUND_BYTES + CHANGES_MAX * CHANGE_BYTES + 8 * JOB_AMOUNTS_MAX * NAMED_BYTES + 65_536
        <= super::FRAME_BYTES_MAX as usize
);
