//! Reasons why a queue or a job is refused.

use std::fmt;
use std::sync::Arc;

use super::{PolicyFault, RuleFault};
use crate::fairness::Dim;
use crate::resource::Amount;

/// Returns an amount as it is written in files. `units` are 1/10,000.
fn shown(units: i64) -> String {
    Amount::try_from_units(units).map_or_else(|_| format!("{units} in 1/10,000"), |amount| amount.to_string())
}

/// Returns whose policies are meant, before the name of the job.
fn of_group(group: Option<u32>) -> String {
    group.map(|group| format!("task group {group} of ")).unwrap_or_default()
}

/// What a queue has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueContents {
    /// The number of its jobs.
    pub jobs: usize,
    /// The number of its direct placements, with the bundles of groups that are charged to it.
    pub direct: usize,
    /// The number of its placement groups without a placed bundle.
    pub groups: usize,
}

impl fmt::Display for QueueContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            count => Some(format!("{count} {what}s")),
        };
        let groups = number(self.groups, "placement group");
        let direct = number(self.direct, "direct placement");
        let all: Vec<String> = number(self.jobs, "job").into_iter().chain(direct).chain(groups).collect();
        write!(f, "{}", all.join(" and "))
    }
}

/// The reason why a queue is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// There is a queue of this name.
    #[error("queue `{0}` exists already: change it, or choose another name")]
    Exists(Arc<str>),
    /// There is no queue of this name.
    #[error("there is no queue `{0}`: make it first")]
    Unknown(Arc<str>),
    /// The queue would contain itself.
    #[error("queue `{0}` would be its own ancestor: choose a parent that is not below it")]
    Cycle(Arc<str>),
    /// The weight is 0.
    #[error("queue `{0}` has weight 0: give a weight of at least 1")]
    Weight(Arc<str>),
    /// The children of a queue are guaranteed more than the queue itself.
    #[error(
        "the queues below `{parent}` are guaranteed {dim} {}, and `{parent}` itself {}: lower theirs or raise its \
         guarantee",
        shown(*children),
        shown(*guarantee)
    )]
    ChildrenGuarantee {
        /// The parent.
        parent: Arc<str>,
        /// The resource.
        dim: Dim,
        /// The sum of the guarantees of the children.
        children: i64,
        /// The guarantee of the parent.
        guarantee: i64,
    },
    /// A queue is guaranteed more than it may use.
    #[error(
        "queue `{queue}` is guaranteed {dim} {}, and may use {}: lower the guarantee or raise the capability",
        shown(*guarantee),
        shown(*capability)
    )]
    GuaranteeAboveCapability {
        /// The queue.
        queue: Arc<str>,
        /// The resource.
        dim: Dim,
        /// What it is guaranteed.
        guarantee: i64,
        /// What it may use.
        capability: i64,
    },
    /// Jobs of the queue would starve although they have their fair share.
    #[error(
        "jobs of queue `{queue}` would starve below {} of their fair share: give at most 1, all of it",
        shown(i64::from(*part))
    )]
    StarvesAboveShare {
        /// The queue.
        queue: Arc<str>,
        /// The part of the fair share, in 1/10,000.
        part: u32,
    },
    /// The queue is too far below the root.
    #[error("queue `{0}` is more than {max} levels below the root: choose a parent higher up", max = crate::limits::QUEUE_LEVELS_MAX)]
    TooDeep(Arc<str>),
    /// The parent has jobs of its own.
    #[error("queue `{queue}` has {has}: only queues without any have queues below them")]
    HasJobs {
        /// The parent.
        queue: Arc<str>,
        /// What it has.
        has: QueueContents,
    },
    /// The queue would get another parent.
    #[error("queue `{queue}` is in `{parent}` and stays there: leave `parent` out, or make another queue")]
    ParentFixed {
        /// The queue.
        queue: Arc<str>,
        /// The queue that contains it.
        parent: Arc<str>,
    },
    /// The queue to be removed has jobs that have not ended, or direct placements.
    #[error("queue `{queue}` has {has}: close it, and remove it when they have ended")]
    InUse {
        /// The queue.
        queue: Arc<str>,
        /// What it has.
        has: QueueContents,
    },
    /// The queue to be removed has queues below it.
    #[error("queue `{0}` has queues below it: remove these first")]
    HasQueues(Arc<str>),
    /// The queue to be removed or changed is the root.
    #[error("the root contains all queues: choose another queue")]
    Root,
}

/// The reason why a job is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The tenant has a job of this name that has not ended.
    #[error("job `{0}` exists already and has not ended: choose another name")]
    Exists(Arc<str>),
    /// There is no such queue.
    #[error("job `{job}` names queue `{queue}`, which does not exist: make it first")]
    UnknownQueue {
        /// The job.
        job: Arc<str>,
        /// The queue.
        queue: Arc<str>,
    },
    /// The queue is closed.
    #[error("job `{job}` names queue `{queue}`, which is closed: open it, or choose another queue")]
    ClosedQueue {
        /// The job.
        job: Arc<str>,
        /// The queue.
        queue: Arc<str>,
    },
    /// The queue has queues below it.
    #[error("job `{job}` names queue `{queue}`, which has queues below it: name one of these")]
    InnerQueue {
        /// The job.
        job: Arc<str>,
        /// The queue.
        queue: Arc<str>,
    },
    /// The job has no tasks.
    #[error("job `{0}` has no tasks: give at least one")]
    Empty(Arc<str>),
    /// The job has too many tasks.
    #[error("job `{job}` has {tasks} tasks: give at most {max}", max = crate::limits::JOB_TASKS_MAX)]
    TooManyTasks {
        /// The job.
        job: Arc<str>,
        /// Its tasks.
        tasks: u64,
    },
    /// The queue has as many users with jobs as it may have.
    #[error(
        "job `{job}` would be that of one user more than queue `{queue}` may have at a time, {max}: wait until jobs of \
         others have ended, or choose another queue",
        max = crate::limits::QUEUE_USERS_MAX
    )]
    TooManyUsers {
        /// The job.
        job: Arc<str>,
        /// The queue.
        queue: Arc<str>,
    },
    /// The tasks of all jobs together would ask for more than can be counted.
    #[error("job `{job}` asks for so much {dim} that the sum over all jobs is too large: ask for less")]
    TooMuch {
        /// The job.
        job: Arc<str>,
        /// The resource.
        dim: Dim,
    },
    /// More tasks are needed than a statement can place.
    #[error(
        "job `{job}` needs {min_member} tasks at once: give at most {max}",
        max = crate::limits::JOB_MIN_MEMBER_MAX
    )]
    MinMemberTooLarge {
        /// The job.
        job: Arc<str>,
        /// The tasks that it needs.
        min_member: u32,
    },
    /// More tasks are needed than the job has.
    #[error("job `{job}` needs {min_member} tasks and has {tasks}: lower `min_member` or add tasks")]
    MinMember {
        /// The job.
        job: Arc<str>,
        /// The tasks that it needs.
        min_member: u32,
        /// The tasks that it has.
        tasks: u32,
    },
    /// More tasks must succeed than the job has, or none.
    #[error(
        "job `{job}` is completed once {min_success} tasks have succeeded, and has {tasks}: give a `min_success` of 1 to {tasks}, or leave it out"
    )]
    MinSuccess {
        /// The job.
        job: Arc<str>,
        /// The tasks that must succeed.
        min_success: u32,
        /// The tasks that it has.
        tasks: u32,
    },
    /// Tasks may run for no time.
    #[error("tasks of job `{0}` may run for 0 ns: give a `run_time` above 0, or leave it out")]
    NoRunTime(Arc<str>),
    /// Policies may restart the job too often.
    #[error(
        "job `{job}` restarts at most {max_retry} times: give a `max_retry` of at most {max}",
        max = crate::limits::JOB_MAX_RETRY_MAX
    )]
    MaxRetry {
        /// The job.
        job: Arc<str>,
        /// The restarts that it allows.
        max_retry: u32,
    },
    /// A list of policies is too long.
    #[error(
        "{}job `{job}` has {policies} policies: give at most {max}",
        of_group(*group),
        max = crate::limits::JOB_POLICIES_MAX
    )]
    TooManyPolicies {
        /// The job.
        job: Arc<str>,
        /// The index of the task group. `None`: the policies of the job itself.
        group: Option<u32>,
        /// The number of policies.
        policies: usize,
    },
    /// A policy is wrong.
    #[error("policy {policy} of {}job `{job}`: {fault}", of_group(*group))]
    Policy {
        /// The job.
        job: Arc<str>,
        /// The index of the task group. `None`: it is a policy of the job itself.
        group: Option<u32>,
        /// The index of the policy in its list.
        policy: u32,
        /// What is wrong with it.
        fault: PolicyFault,
    },
    /// What it demands of the topology is wrong.
    #[error("topology of {}job `{job}`: {fault}", of_group(*group))]
    Topology {
        /// The job.
        job: Arc<str>,
        /// The index of the task group. `None`: it is the rule of the job itself.
        group: Option<u32>,
        /// What is wrong with it.
        fault: RuleFault,
    },
    /// There is no such priority class.
    #[error(
        "{}job `{job}` names priority class `{class}`, which does not exist: make it first, or give a `priority`",
        of_group(*group)
    )]
    UnknownClass {
        /// The job.
        job: Arc<str>,
        /// The index of the task group. `None`: the class is that of the job itself.
        group: Option<u32>,
        /// The class.
        class: Arc<str>,
    },
    /// A priority is given next to a class that has another one.
    #[error(
        "{}job `{job}` has priority {priority}, and that of its priority class `{class}` is {value}: leave one of \
         them out",
        of_group(*group)
    )]
    OtherPriority {
        /// The job.
        job: Arc<str>,
        /// The index of the task group. `None`: they are those of the job itself.
        group: Option<u32>,
        /// The class.
        class: Arc<str>,
        /// The priority of the class.
        value: i32,
        /// The priority that is given.
        priority: i32,
    },
    /// A role needs more tasks than it has.
    #[error(
        "role `{role}` of job `{job}` needs {min_member} tasks and has {tasks}: lower its minimum or add tasks"
    )]
    RoleMinMember {
        /// The job.
        job: Arc<str>,
        /// The role.
        role: Arc<str>,
        /// The tasks that it needs.
        min_member: u32,
        /// The tasks that it has.
        tasks: u32,
    },
}
