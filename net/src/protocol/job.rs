//! Queues, jobs and tasks: the work that waits for resources.
//!
//! The task groups of a job are described by placement requests, as the bundles of a group are. Equal tasks are
//! described once, with their count.

use wharf_core::limits::{
    CLASS_NAME_BYTES_MAX, CUSTOM_RESOURCES_MAX, DOMAIN_BYTES_PER_PAGE_MAX, DOMAIN_PATH_BYTES_MAX,
    JOB_MAX_RETRY_DEFAULT, QUEUE_USERS_SHOWN_MAX, USER_BYTES_MAX,
};

use super::bounded::NAME;
use super::{FRAME_BYTES_MAX, Fault, NamedAmount, PlaceRequest, ReasonCode, WireAllocation};

/// Maximum number of queues on one page of a list.
pub const QUEUES_PER_MESSAGE_MAX: usize = 1000;
/// Maximum number of jobs on one page of a list.
pub const JOBS_PER_MESSAGE_MAX: usize = 1000;
/// Maximum number of tasks on one page of a job's status.
pub const TASKS_PER_MESSAGE_MAX: usize = 1000;
/// Maximum number of reports about tasks in one message.
pub const TASK_REPORTS_PER_MESSAGE_MAX: usize = 1024;
/// Maximum number of roles of one job.
pub const JOB_ROLES_MAX: usize = 256;
/// Maximum number of task groups of one job.
pub const JOB_TASK_GROUPS_MAX: usize = 1024;
/// Maximum number of job policies of one job, and of each of its task groups.
pub const JOB_POLICIES_PER_LIST_MAX: usize = wharf_core::limits::JOB_POLICIES_MAX;
/// Maximum number of events of one job policy.
pub const TASK_EVENTS_MAX: usize = 4;
/// Maximum number of amounts of what a queue is given or a job needs: cpu, memory, gpu, and as many custom kinds as one
/// request may have.
pub const JOB_AMOUNTS_MAX: usize = CUSTOM_RESOURCES_MAX + 3;
/// Maximum number of amounts of what a queue uses. Kinds beyond that are left out.
pub const USED_AMOUNTS_MAX: usize = 256;
/// Maximum number of amounts of what a user uses. Kinds beyond that are left out.
pub const USER_AMOUNTS_MAX: usize = 8;
/// Maximum number of states in the counts of a job's tasks.
const TASK_STATES_MAX: usize = 16;

/// The order of jobs by fair share of the dominant resource.
pub const ORDERING_DRF: u8 = 0;
/// The order of jobs by priority, then in the order of submission.
pub const ORDERING_FIFO: u8 = 1;
/// The order of jobs by fair share of memory.
pub const ORDERING_FAIR: u8 = 2;

/// The queue of the job has not admitted it. None of its tasks is placed.
pub const JOB_PENDING: u8 = 1;
/// The queue of the job has admitted it. Its tasks may be placed.
pub const JOB_INQUEUE: u8 = 2;
/// As many tasks of the job as it needs have nodes.
pub const JOB_RUNNING: u8 = 3;
/// All tasks of the job have ended, and as many have succeeded as it needs. Or a job policy has completed it.
pub const JOB_COMPLETED: u8 = 4;
/// The job was cancelled. Its tasks have ended, or end after their grace period.
pub const JOB_CANCELLED: u8 = 5;
/// A job policy restarts the job. None of its tasks is placed until all of them have ended.
pub const JOB_RESTARTING: u8 = 6;
/// A job policy has aborted the job. Its tasks have ended, or end after their grace period.
pub const JOB_ABORTED: u8 = 7;
/// All tasks of the job have ended, and too few have succeeded. Or it was restarted as often as it may be.
pub const JOB_FAILED: u8 = 8;

/// A task has failed.
pub const TASK_EVENT_FAILED: u8 = 1;
/// A task that was bound has lost its allocation, without a report of an end.
pub const TASK_EVENT_EVICTED: u8 = 2;
/// All tasks of a task group have succeeded.
pub const TASK_EVENT_COMPLETED: u8 = 3;
/// Any of these events.
pub const TASK_EVENT_ANY: u8 = 4;

/// The task that failed is pending again.
pub const ACTION_RESTART_TASK: u8 = 1;
/// All tasks of the job end, and are pending again once the last one has ended.
pub const ACTION_RESTART_JOB: u8 = 2;
/// All other tasks of the job end, and it is completed.
pub const ACTION_COMPLETE_JOB: u8 = 3;
/// All other tasks of the job end, and it is aborted.
pub const ACTION_ABORT_JOB: u8 = 4;

/// All tasks are in one domain of the topology, or wait.
pub const JOB_TOPOLOGY_HARD: u8 = 1;
/// All tasks are in one domain of the topology if one has room, and otherwise anywhere.
pub const JOB_TOPOLOGY_SOFT: u8 = 2;

/// The task waits for a node.
pub const TASK_PENDING: u8 = 1;
/// The task has a node, but its job has not yet as many tasks as it needs.
pub const TASK_ALLOCATED: u8 = 2;
/// The task has a claim on capacity that is being released.
pub const TASK_PIPELINED: u8 = 3;
/// The job of the task has what it needs. The control plane is told where the task runs.
pub const TASK_BINDING: u8 = 4;
/// The control plane has bound the task to its node.
pub const TASK_BOUND: u8 = 5;
/// The task runs.
pub const TASK_RUNNING: u8 = 6;
/// The task was evicted and is in its grace period.
pub const TASK_RELEASING: u8 = 7;
/// The task ended well.
pub const TASK_SUCCEEDED: u8 = 8;
/// The task ended with an error.
pub const TASK_FAILED: u8 = 9;
/// The node of the task does not answer.
pub const TASK_UNKNOWN: u8 = 10;

bodies! {
    /// Amounts by resource.
    pub struct AmountsBody {
        /// `cpu`, `memory`, `gpu` or a custom name, each at most once, with its amount in 1/10,000 of its unit.
        pub amounts: Vec<NamedAmount> [JOB_AMOUNTS_MAX],
    }

    /// A queue.
    pub struct QueueBody {
        /// Its name, which is unique.
        pub name: String [NAME],
        /// The name of the queue that contains it. Empty: the root. A queue that is there keeps its own.
        pub parent: String [NAME],
        /// The tenant that may submit jobs to it. `None`: every tenant.
        pub tenant: Option<u16>,
        /// Its weight among the queues of its parent, at least 1.
        pub weight: u32 = 1,
        /// What it gets in any case.
        pub guarantee: AmountsBody,
        /// What it deserves, if that is not computed from weights.
        pub deserved: Option<AmountsBody>,
        /// The most that it may use. Resources that are not named have no bound.
        pub capability: AmountsBody,
        /// Queues of a higher priority are served first.
        pub priority: i32,
        /// Whether others may reclaim what it uses beyond what it deserves.
        pub reclaimable: bool = true,
        /// Whether it takes new jobs.
        pub open: bool = true,
        /// `ORDERING_*`: the order of its jobs.
        pub ordering: u8,
        /// The part of its fair share below which a job of the queue starves, in 1/10,000, at most 10,000. `None`: that
        /// of the parent.
        pub starves_below: Option<u32>,
        /// How long a job of the queue is below that part before others are evicted for it, in ns. `None`: that of the
        /// parent.
        pub fair_share_patience: Option<u64>,
        /// How long the queue is below its guarantee before others are evicted for its jobs, in ns. `None`: that of the
        /// parent.
        pub guarantee_patience: Option<u64>,
        /// How long a task of the queue runs before it may be evicted, in ns. `None`: that of the parent.
        pub min_run_time: Option<u64>,
        /// The time in which what the queue and its users have held comes to count half as much, in ns. 0: only what runs
        /// now counts. `None`: that of the parent.
        pub usage_half_life: Option<u64>,
        /// The most allocations and claims that its tasks and direct placements may have, with those of the queues below
        /// it. `None`: any number.
        pub allocations_max: Option<u32>,
    }

    /// Makes a queue, or changes the one of this name.
    pub struct SetQueueRequest {
        /// What the queue is to be.
        pub queue: QueueBody,
    }

    /// Removes a queue that has no jobs, except ended ones, and no queues below it.
    pub struct RemoveQueueRequest {
        /// The name of the queue.
        pub name: String [NAME],
    }

    /// Confirms a change of a queue, or carries the fault why not.
    pub struct QueueReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks for a page of queues, in order of name. A tenant sees the queues that it may use.
    pub struct ListQueuesRequest {
        /// Returns the queues after the one of this name. Empty: starts with the first.
        pub after: String [NAME],
        /// Maximum number of queues to return, at most 1,000. 0 means a full page.
        pub limit: u32,
    }

    /// What the jobs and direct placements of a queue use, and those of the queues below it. Each list has the amounts by resource, in 1/10,000
    /// of a unit. Resources of which there is nothing are left out.
    pub struct QueueUsageBody {
        /// What tasks hold that keep it.
        pub held: Vec<NamedAmount> [USED_AMOUNTS_MAX],
        /// What tasks have claimed of capacity that is being released.
        pub pipelined: Vec<NamedAmount> [USED_AMOUNTS_MAX],
        /// What evicted tasks hold in their grace period.
        pub releasing: Vec<NamedAmount> [USED_AMOUNTS_MAX],
        /// What pending tasks ask for.
        pub pending: Vec<NamedAmount> [USED_AMOUNTS_MAX],
    }

    /// A user of a queue. Each list has the amounts by resource, in 1/10,000 of a unit.
    pub struct UserBody {
        /// Its name. Empty: the jobs that name no user.
        pub name: String [USER_BYTES_MAX],
        /// What its jobs hold or have claimed.
        pub planned: Vec<NamedAmount> [USER_AMOUNTS_MAX],
        /// What they have held on average, with the half-life of the queue.
        pub past: Vec<NamedAmount> [USER_AMOUNTS_MAX],
    }

    /// A queue in a list.
    pub struct QueueStatusBody {
        /// The queue.
        pub queue: QueueBody,
        /// What is used of it.
        pub usage: QueueUsageBody,
        /// True if a cycle has computed what the queue deserves.
        pub has_deserved: bool,
        /// What the queue deserves by the rules, as of the last cycle.
        pub deserved: Vec<NamedAmount> [USED_AMOUNTS_MAX],
        /// The number of its jobs, without those of queues below it.
        pub jobs: u32,
        /// The number of these that have pending tasks.
        pub waiting: u32,
        /// What its jobs and those of the queues below it have held on average, with the half-life of the queue. In
        /// 1/10,000 of a unit.
        pub past: Vec<NamedAmount> [USED_AMOUNTS_MAX],
        /// The users of its jobs with the most use, the first one with the largest part.
        pub users: Vec<UserBody> [QUEUE_USERS_SHOWN_MAX],
        /// The number of its other users.
        pub more_users: u32,
        /// The number of direct placements in it, without those of queues below it.
        pub direct: u32,
        /// The number of allocations and claims of its tasks and direct placements, with those of the queues below it.
        pub allocations: u64,
    }

    /// A page of queues.
    pub struct ListQueuesReply {
        /// The queues in order of name.
        pub queues: Vec<QueueStatusBody> [QUEUES_PER_MESSAGE_MAX],
        /// There may be more queues after the last one.
        pub more: bool,
    }

    /// A role of tasks.
    pub struct RoleBody {
        /// Its name, which is unique in the job.
        pub name: String [NAME],
        /// How many of its tasks the job needs. 0: none in particular.
        pub min_member: u32,
    }

    /// What a job does when something becomes of its tasks.
    pub struct JobPolicyBody {
        /// `TASK_EVENT_*`: to what it reacts. At least one.
        pub events: Vec<u8> [TASK_EVENTS_MAX],
        /// `ACTION_*`: what it does.
        pub action: u8,
        /// Of failures, it reacts to those with this exit code only. Not 0. `None`: to all.
        pub exit_code: Option<i32>,
        /// How long the event must have lasted before it does that, in ns. At least 1. `None`: it does that at once.
        pub timeout: Option<u64>,
    }

    /// In which domains of the topology tasks are to be.
    pub struct JobTopologyBody {
        /// `JOB_TOPOLOGY_*`: whether it must be kept.
        pub mode: u8 = JOB_TOPOLOGY_HARD,
        /// The name of the widest tier of which one domain will do. Empty: the widest tier that there is, for
        /// `JOB_TOPOLOGY_SOFT` only.
        pub tier: String [NAME],
    }

    /// Equal tasks of a job.
    pub struct TaskGroupBody {
        /// The amounts that one task takes, and the nodes on which it may be placed. It has no wait, no lease and no
        /// priority of its own.
        pub request: PlaceRequest,
        /// The number of tasks, at least 1. All task groups of a job together have at most 100,000.
        pub count: u32 = 1,
        /// The index of their role among the roles of the job.
        pub role: u32,
        /// Tasks of a higher priority are placed first and evicted last. `None`: that of their class or, without one, of the job.
        pub priority: Option<i32>,
        /// Whether they may be evicted for others.
        pub preemptable: bool = true,
        /// Whether the job depends on them, so that they are evicted only if no others suffice.
        pub master: bool,
        /// How long each of them may run, in ns from when it is bound. At least 1. `None`: as long as it must.
        pub run_time: Option<u64>,
        /// Their job policies, which come before those of the job. The first one that reacts decides.
        pub policies: Vec<JobPolicyBody> [JOB_POLICIES_PER_LIST_MAX],
        /// In which domain of the topology they are, within that of the job. `None`: anywhere there.
        pub topology: Option<JobTopologyBody>,
        /// The priority class that they have their priority from, when the job is submitted. Empty: none.
        pub priority_class: String [CLASS_NAME_BYTES_MAX],
    }

    /// A job.
    pub struct JobBody {
        /// Its name, which is unique among the jobs of its tenant that have not ended.
        pub name: String [NAME],
        /// The name of its queue, which has no queues below it. Empty: that to which its tenant is
        /// bound, else the default queue of the service.
        pub queue: String [NAME],
        /// How many tasks must have nodes before any is bound. 0: none in particular.
        pub min_member: u32,
        /// What the queue must have room for before it admits the job. `None`: it is admitted at once.
        pub min_resources: Option<AmountsBody>,
        /// Its roles, at least one.
        pub roles: Vec<RoleBody> [JOB_ROLES_MAX],
        /// Its tasks, at least one. Their indices count from 0, in this order.
        pub tasks: Vec<TaskGroupBody> [JOB_TASK_GROUPS_MAX],
        /// Jobs of a higher priority come first, and may preempt others of their queue. `None`: that of its class. With a
        /// class, no other number than that of the class is taken.
        pub priority: Option<i32>,
        /// Whether its tasks may preempt others.
        pub preempts: bool = true,
        /// Its job policies. The first one that reacts decides.
        pub policies: Vec<JobPolicyBody> [JOB_POLICIES_PER_LIST_MAX],
        /// How often job policies restart it or a task of it, at most 1,000,000. Then it fails.
        pub max_retry: u32 = JOB_MAX_RETRY_DEFAULT,
        /// The user in the queue for whom it counts. Empty: it counts with all jobs that name none.
        pub user: String [USER_BYTES_MAX],
        /// In which domain of the topology all of its tasks are. `None`: anywhere.
        pub topology: Option<JobTopologyBody>,
        /// How many of its tasks must succeed for it to be completed; its other tasks end then. At least 1. `None`: all of
        /// its tasks must end, and as many succeed as it needs at once.
        pub min_success: Option<u32>,
        /// How long it waits, in ns from its submission, before the plugin `sla` lets it come first. `None`: as long as the
        /// plugin says.
        pub wait: Option<u64>,
        /// The priority class that it has its priority from, when it is submitted. Empty: none if it has a priority, and
        /// otherwise the default class. If there is none, its priority is 0.
        pub priority_class: String [CLASS_NAME_BYTES_MAX],
    }

    /// Submits a job. It belongs to the tenant of the session. The reply is a [`JobReply`].
    pub struct SubmitJobRequest {
        /// The job.
        pub job: JobBody,
    }

    /// Ends a job. What its tasks hold is released after a grace period. The reply is a [`JobReply`].
    #[derive(Copy)]
    pub struct CancelJobRequest {
        /// The number of the job.
        pub job: u64,
        /// The grace period in ns, at most 365 days. 0 ends its tasks at once.
        pub grace: u64,
    }

    /// Confirms a change of a job, or carries the fault why not.
    pub struct JobReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The number of the job.
        pub job: u64,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks for a job with a page of its tasks.
    #[derive(Copy)]
    pub struct JobStatusRequest {
        /// The number of the job.
        pub job: u64,
        /// The index of the first task of the page.
        pub from: u32,
        /// Maximum number of tasks to return, at most 1,000. 0 means a full page.
        pub limit: u32,
    }

    /// The number of a job's tasks in one state.
    #[derive(Copy)]
    pub struct TaskCountBody {
        /// `TASK_*`.
        pub state: u8,
        /// The number of tasks, at least 1.
        pub count: u32,
    }

    /// A job without its tasks.
    pub struct JobSummaryBody {
        /// Its number.
        pub id: u64,
        /// Its name.
        pub name: String [NAME],
        /// The name of its queue.
        pub queue: String [NAME],
        /// Who it belongs to; 0: the operator.
        pub tenant: u16,
        /// `JOB_*`.
        pub phase: u8,
        /// Its priority.
        pub priority: i32,
        /// How many of its tasks must have nodes before any is bound.
        pub min_member: u32,
        /// The number of its tasks in each state that some have.
        pub counts: Vec<TaskCountBody> [TASK_STATES_MAX],
        /// When it was submitted, in ns of service time.
        pub created: u64,
        /// How often job policies have restarted it, or a task of it.
        pub restarts: u32,
        /// The user in the queue for whom it counts. Empty: it names none.
        pub user: String [USER_BYTES_MAX],
        /// The priority class that it was submitted with, which may have changed since. Empty: it had none.
        pub priority_class: String [CLASS_NAME_BYTES_MAX],
    }

    /// A task of a job.
    pub struct TaskBody {
        /// Its index in the job.
        pub index: u32,
        /// The name of its role.
        pub role: String [NAME],
        /// `TASK_*`.
        pub state: u8,
        /// Its node's id. 0 if its state has none.
        pub node: u64,
        /// Its node's name. Empty if its state has none, or if the node was removed.
        pub node_name: String [NAME],
        /// Its allocation or claim, if it has one.
        pub allocation: Option<WireAllocation>,
        /// Since when it is in its state, in ns of service time.
        pub since: u64,
        /// The domain of its node: its values in all tiers, the widest first, as in `z1/b2/r3`. Empty: its node has no value in
        /// any tier, or its state has no node.
        pub domain: String [DOMAIN_PATH_BYTES_MAX],
    }

    /// A job with a page of its tasks, or the fault why not.
    pub struct JobStatusReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The job.
        pub job: Option<JobSummaryBody>,
        /// Tasks in order of index.
        pub tasks: Vec<TaskBody> [TASKS_PER_MESSAGE_MAX],
        /// There are more tasks after the last one.
        pub more: bool,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks for a page of jobs, in order of number. A tenant sees its own jobs.
    pub struct ListJobsRequest {
        /// Only jobs of the queue of this name. Empty: of all queues.
        pub queue: String [NAME],
        /// Returns the jobs after the one of this number. 0: starts with the first.
        pub after: u64,
        /// Maximum number of jobs to return, at most 1,000. 0 means a full page.
        pub limit: u32,
    }

    /// A page of jobs.
    pub struct ListJobsReply {
        /// The jobs in order of number.
        pub jobs: Vec<JobSummaryBody> [JOBS_PER_MESSAGE_MAX],
        /// There may be more jobs after the last one.
        pub more: bool,
    }

    /// What became of a task.
    #[derive(Copy)]
    pub struct TaskReportBody {
        /// The number of the job.
        pub job: u64,
        /// The index of the task.
        pub index: u32,
        /// The allocation that the task runs in. A report about another one is out of date.
        pub allocation: WireAllocation,
        /// `TASK_RUNNING`, `TASK_SUCCEEDED` or `TASK_FAILED`.
        pub state: u8,
        /// With which exit code it failed. `None`: it did not, or that is not known.
        pub exit_code: Option<i32>,
    }

    /// Tells what became of tasks. Either all reports are taken or, with a fault, none.
    pub struct ReportTasksRequest {
        /// The reports, at least one, in the order in which they are taken.
        pub tasks: Vec<TaskReportBody> [TASK_REPORTS_PER_MESSAGE_MAX],
    }

    /// Confirms the reports, or carries the fault why none was taken.
    pub struct ReportTasksReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The indices of reports that changed nothing: no task runs in that allocation any longer.
        pub outdated: Vec<u32> [TASK_REPORTS_PER_MESSAGE_MAX],
        /// The fault, if any.
        pub fault: Option<Fault>,
    }
}

/// Bytes of a job or task in a list at most: two names, a user, and numbers at their longest encoding.
const LISTED_BYTES: usize = 2 * (NAME + 3) + USER_BYTES_MAX + 1 + 16 * 9 + TASK_STATES_MAX * 6 + 3;
// The longest pages fit a frame.
const _: () = assert!(
    JOBS_PER_MESSAGE_MAX * (LISTED_BYTES + CLASS_NAME_BYTES_MAX + 1) + 128 <= FRAME_BYTES_MAX as usize
);
const _: () = assert!(
    TASKS_PER_MESSAGE_MAX * LISTED_BYTES
        + LISTED_BYTES
        + CLASS_NAME_BYTES_MAX
        + DOMAIN_BYTES_PER_PAGE_MAX
        + DOMAIN_PATH_BYTES_MAX
        + 128
        <= FRAME_BYTES_MAX as usize
);
/// Bytes of a named amount at most.
const AMOUNT_BYTES: usize = NAME + 3 + 9;
/// Bytes of a user at most.
const USER_BYTES: usize = USER_BYTES_MAX + 3 + 2 * USER_AMOUNTS_MAX * AMOUNT_BYTES;
// What a queue uses at most, what it is and its users fit a frame.
const _: () = assert!(
    (6 * USED_AMOUNTS_MAX + 3 * JOB_AMOUNTS_MAX) * AMOUNT_BYTES + QUEUE_USERS_SHOWN_MAX * USER_BYTES + 1024
        <= FRAME_BYTES_MAX as usize
);
