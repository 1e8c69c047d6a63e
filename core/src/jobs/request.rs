//! Requests about queues and jobs, and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::nodes::{NodesPlan, NodesRequest, NodesRequestError};
use super::{
    AskedPriorities, Binding, BindingError, ClassError, JobError, JobExplanation, JobId, JobPhase, JobSpec,
    Jobs, PriorityClass, QueueError, QueueSpec, TaskId, TaskState, Usage, UserView,
};
use crate::fairness::Amounts;
use crate::ids::{AllocationId, NodeId, TenantId};
use crate::limits::CLIENT_QUANTUM;
use crate::time::Time;

/// A request about queues and jobs. A request of a tenant sees and changes the tenant's own jobs only.
#[derive(Clone, Debug)]
pub enum JobsRequest {
    /// Makes a queue, or changes the one of this name.
    SetQueue {
        /// What the queue is to be. The field `parent` is ignored.
        spec: Box<QueueSpec>,
        /// The name of the queue that contains it. `None`: the root. A queue that is there keeps its own.
        parent: Option<Arc<str>>,
    },
    /// Removes a queue that has no jobs and no queues below it.
    RemoveQueue(Arc<str>),
    /// Lists a page of the queues that the tenant may use, by name.
    ListQueues {
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
        /// Only queues after the one of this name.
        after: Option<Arc<str>>,
        /// The most queues in the page.
        limit: u16,
    },
    /// Makes a priority class, or changes the one of this name.
    SetPriorityClass(Box<PriorityClass>),
    /// Removes a priority class. Jobs of it keep their priorities.
    RemovePriorityClass(Arc<str>),
    /// Lists a page of the priority classes, by name.
    ListPriorityClasses {
        /// Only classes after the one of this name.
        after: Option<Arc<str>>,
        /// The most classes in the page.
        limit: u16,
    },
    /// Submits a job.
    Submit {
        /// The job. The fields `queue`, `created` and `phase` are ignored.
        spec: Box<JobSpec>,
        /// The name of its queue.
        queue: Arc<str>,
        /// The queue of its tenant, or the default queue, if the settings name one.
        bound: Option<Arc<Binding>>,
        /// The priorities that it asks for. `None`: they are as in `spec`.
        priorities: Option<Box<AskedPriorities>>,
    },
    /// Ends a job. What its tasks hold is released after a grace period.
    Cancel {
        /// The job.
        job: JobId,
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
        /// The grace period, in ns.
        grace_ns: u64,
    },
    /// Returns a job with a page of its tasks.
    Status {
        /// The job.
        job: JobId,
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
        /// The index of the first task of the page.
        from: u32,
        /// The most tasks in the page.
        limit: u16,
    },
    /// Explains why a job or a task waits.
    Explain {
        /// The job.
        job: JobId,
        /// The index of the task. `None`: the job as a whole.
        task: Option<u32>,
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
    },
    /// Lists a page of jobs, by id.
    List {
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
        /// Only the jobs of this queue.
        queue: Option<Arc<str>>,
        /// Only jobs after this one.
        after: Option<JobId>,
        /// The most jobs in the page.
        limit: u16,
    },
    /// Tells what became of tasks.
    Report {
        /// The tenant that asks. `None`: the operator.
        tenant: Option<TenantId>,
        /// The tasks.
        tasks: Vec<TaskReport>,
    },
    /// Plans nodes for all that waits.
    PlanNodes {
        /// The tenant that asks, who sees its own jobs. `None`: the operator.
        tenant: Option<TenantId>,
        /// What is asked for.
        request: Box<NodesRequest>,
        /// How long nodes have been idle, in ns, as their agents know.
        idle: Vec<(NodeId, u64)>,
    },
}

impl JobsRequest {
    /// Returns the number of tasks, jobs or reports that the request names or asks for.
    pub(crate) fn units(&self) -> u64 {
        match self {
            Self::SetQueue { .. } | Self::RemoveQueue(_) | Self::Cancel { .. } => 0,
            Self::SetPriorityClass(_) | Self::RemovePriorityClass(_) => 0,
            // What is looked at is counted as it is looked at.
            Self::Explain { .. } => 1,
            Self::Submit { spec, .. } => spec.tasks.iter().map(|group| u64::from(group.count)).sum(),
            Self::Status { limit, .. }
            | Self::List { limit, .. }
            | Self::ListQueues { limit, .. }
            | Self::ListPriorityClasses { limit, .. } => u64::from(*limit),
            Self::Report { tasks, .. } => tasks.len() as u64,
            // Of the copy of all jobs that it takes.
            Self::PlanNodes { .. } => CLIENT_QUANTUM,
        }
    }
}

/// What became of a task, as its control plane tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// The task.
    pub task: TaskId,
    /// The allocation that it runs in. A report about another one is out of date.
    pub allocation: AllocationId,
    /// `Running`, `Succeeded` or `Failed`.
    pub state: TaskState,
    /// With which exit code it failed. `None`: it did not, or that is not known.
    pub exit_code: Option<i32>,
}

/// The answer to a [`JobsRequest`] that was not refused.
#[derive(Clone, Debug)]
pub enum JobsReply {
    /// A change was made.
    Done(JobsDone),
    /// The queues.
    Queues(Vec<QueueView>),
    /// A page of priority classes.
    Classes(Vec<PriorityClass>),
    /// A job with a page of its tasks.
    Job(Box<JobView>),
    /// A page of jobs.
    Jobs(Vec<JobSummary>),
    /// Why a job or a task waits.
    Explained(Box<JobExplanation>),
    /// A plan of nodes.
    Nodes(Box<NodesView>),
}

/// A plan of nodes, with the names of its jobs.
#[derive(Clone, Debug)]
pub struct NodesView {
    /// The plan. Jobs of other tenants are left out.
    pub plan: NodesPlan,
    /// The names of all jobs in it.
    pub names: BTreeMap<JobId, Arc<str>>,
}

/// What a request has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobsDone {
    /// The queue is there.
    QueueSet,
    /// The queue is gone.
    QueueRemoved,
    /// The priority class is there.
    ClassSet,
    /// The priority class is gone.
    ClassRemoved,
    /// The job was submitted.
    Submitted(JobId),
    /// The job was cancelled.
    Cancelled(JobId),
    /// The reports were taken, except those with these indexes: no task runs in that allocation any longer.
    Reported(Vec<u32>),
}

/// A queue with what is used of it.
#[derive(Clone, Debug)]
pub struct QueueView {
    /// The queue. The field `parent` is of no use.
    pub spec: QueueSpec,
    /// The name of the queue that contains it. `None`: the root.
    pub parent: Option<Arc<str>>,
    /// What its jobs and those of the queues below it use.
    pub usage: Usage,
    /// What it deserves by the rules, as of the last cycle.
    pub deserved: Option<Amounts>,
    /// What its jobs and those of the queues below it have held on average, with its half-life.
    pub past: Amounts,
    /// The users of its jobs with the most use, the first one with the largest part.
    pub users: Vec<UserView>,
    /// The number of its other users.
    pub more_users: u32,
    /// The number of its jobs, without those of queues below it.
    pub jobs: u32,
    /// The number of these that have pending tasks.
    pub waiting: u32,
    /// The number of direct placements in it, without those of queues below it.
    pub direct: u32,
}

/// A job, without its tasks.
#[derive(Clone, Debug)]
pub struct JobSummary {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: Arc<str>,
    /// The name of its queue.
    pub queue: Arc<str>,
    /// Who it belongs to.
    pub tenant: TenantId,
    /// The user in the queue for whom it counts, if it names one.
    pub user: Option<Arc<str>>,
    /// Its phase.
    pub phase: JobPhase,
    /// Its priority.
    pub priority: i32,
    /// The priority class that it was submitted with, if any.
    pub priority_class: Option<Arc<str>>,
    /// How many of its tasks must have nodes before any is bound.
    pub min_member: u32,
    /// How often policies have restarted it, or a task of it.
    pub restarts: u32,
    /// The number of its tasks in each state, by [`TaskState::index`].
    pub counts: [u32; TaskState::ALL.len()],
    /// When it was submitted.
    pub created: Time,
}

impl Jobs {
    /// Returns a job without its tasks.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn summary(&self, id: JobId) -> JobSummary {
        let job = self.job(id);
        let spec = job.spec();
        JobSummary {
            id,
            name: Arc::clone(&spec.name),
            queue: Arc::clone(&self.queue(spec.queue).spec().name),
            tenant: spec.tenant,
            user: spec.user.clone(),
            phase: job.phase(),
            priority: spec.priority,
            priority_class: spec.priority_class.clone(),
            min_member: spec.min_member,
            restarts: job.restarts(),
            counts: TaskState::ALL.map(|state| job.count(state)),
            created: spec.created,
        }
    }
}

/// A job with a page of its tasks.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The job.
    pub job: JobSummary,
    /// Tasks by index.
    pub tasks: Vec<TaskView>,
    /// Whether there are tasks after these.
    pub more: bool,
}

/// A task.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// Its index in the job.
    pub index: u32,
    /// The name of its role.
    pub role: Arc<str>,
    /// Its state.
    pub state: TaskState,
    /// Its node, if its state has one.
    pub node: Option<NodeId>,
    /// Its allocation or claim, if it has one.
    pub allocation: Option<AllocationId>,
    /// The path of the domain of its node: its values in all tiers, the widest first (`z1/b2/r3`).
    pub domain: Option<Arc<str>>,
    /// Since when it is in its state.
    pub since: Time,
}

/// The reason why a [`JobsRequest`] is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobsRejection {
    /// The queue is refused.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The job is refused.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The priority class is refused.
    #[error(transparent)]
    Class(#[from] ClassError),
    /// There is no such job, or it belongs to another tenant.
    #[error("there is no job {0}: list the jobs to see which there are")]
    UnknownJob(JobId),
    /// The job has no such task.
    #[error("job {} has no task {}: show the job to see which it has", .0.job, .0.index)]
    UnknownTask(TaskId),
    /// Its binding forbids it.
    #[error(transparent)]
    Binding(#[from] BindingError),
    /// The queue is for another tenant.
    #[error("queue `{0}` belongs to another tenant: name a queue of your own")]
    ForeignQueue(Arc<str>),
    /// A report says that a task is in a state that only the service decides.
    #[error("report {index}: a control plane reports running, succeeded or failed, not {}", state.name())]
    State {
        /// The index of the report.
        index: u32,
        /// The state.
        state: TaskState,
    },
    /// A report says with which exit code a task ended that has not failed.
    #[error(
        "report {index}: a task that is {} has no exit code: leave it out, or report that the task failed",
        state.name()
    )]
    ExitCode {
        /// The index of the report.
        index: u32,
        /// The state.
        state: TaskState,
    },
    /// There are as many queues as there may be.
    #[error("there are {0} queues, which is all there may be: remove some")]
    TooManyQueues(usize),
    /// There are as many jobs as there may be.
    #[error("there are {0} jobs that have not ended, which is all there may be: cancel some, or wait")]
    TooManyJobs(usize),
    /// There are as many tasks as there may be.
    #[error("all jobs together would have {0} tasks, more than there may be: cancel some jobs, or wait")]
    TooManyTasks(u64),
    /// What a plan of nodes is asked for is wrong.
    #[error(transparent)]
    Nodes(#[from] NodesRequestError),
    /// Another plan of nodes is being made.
    #[error("another plan of nodes is being made: ask again in some seconds")]
    NodesPlannerBusy,
    /// No thread plans nodes.
    #[error("no thread of this service plans nodes: ask another service")]
    NoNodesPlanner,
}
