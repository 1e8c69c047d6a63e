//! Queues and jobs as they are submitted.

use std::sync::Arc;

use super::{JobPhase, JobPolicy, QueueId, TopologyRule};
use crate::fairness::{Amounts, Caps};
use crate::ids::TenantId;
use crate::limits::JOB_MAX_RETRY_DEFAULT;
use crate::request::PlacementRequest;
use crate::time::Time;

/// The order of the jobs of a queue, or of the queues below it (YARN's policies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrdering {
    /// By priority, then in the order of submission.
    Fifo,
    /// By fair share of memory.
    Fair,
    /// By fair share of the dominant resource.
    #[default]
    Drf,
}

/// A queue as it is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its name, which is unique.
    pub name: Arc<str>,
    /// The queue that contains it.
    pub parent: QueueId,
    /// The tenant that may submit jobs to it. `None`: every tenant.
    pub tenant: Option<TenantId>,
    /// Its weight among the queues of its parent, at least 1.
    pub weight: u32,
    /// What it gets in any case (Volcano's guarantee, YARN's least share).
    pub guarantee: Amounts,
    /// What it deserves, if that is not computed from weights (Volcano's plugin `capacity`).
    pub deserved: Option<Amounts>,
    /// The most that it may use. It is never exceeded.
    pub capability: Caps,
    /// The most allocations and claims that its tasks and direct placements may have, with those of the queues below it. It
    /// is never exceeded. `None`: any number.
    pub allocations_max: Option<u32>,
    /// Queues of a higher priority are served first.
    pub priority: i32,
    /// Whether others may reclaim what it uses beyond what it deserves.
    pub reclaimable: bool,
    /// Whether it takes new jobs.
    pub open: bool,
    /// The order of its jobs.
    pub ordering: QueueOrdering,
    /// The part of its fair share below which a job of the queue starves, in 1/10,000, at most all of it. `None`: that of
    /// the parent.
    pub starves_below: Option<u32>,
    /// How long a job of the queue is below that part before others are evicted for it, in ns. `None`: that of the
    /// parent.
    pub fair_share_patience_ns: Option<u64>,
    /// How long the queue is below its guarantee before others are evicted for its jobs, in ns. `None`: that of the
    /// parent.
    pub guarantee_patience_ns: Option<u64>,
    /// How long a task of the queue runs before it may be evicted, in ns. `None`: that of the parent.
    pub min_run_time_ns: Option<u64>,
    /// The time in which what the queue and its users have held comes to count half as much, in ns. 0: only what runs now
    /// counts. `None`: that of the parent.
    pub usage_half_life_ns: Option<u64>,
}

impl QueueSpec {
    /// Creates a queue of weight 1 without bounds below the root.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            parent: QueueId::ROOT,
            tenant: None,
            weight: 1,
            guarantee: Amounts::zero(),
            deserved: None,
            capability: Caps::none(),
            allocations_max: None,
            priority: 0,
            reclaimable: true,
            open: true,
            ordering: QueueOrdering::default(),
            starves_below: None,
            fair_share_patience_ns: None,
            guarantee_patience_ns: None,
            min_run_time_ns: None,
            usage_half_life_ns: None,
        }
    }
}

/// What equal tasks ask for. Tasks that share a class are decided together.
#[derive(Debug)]
pub struct TaskClass {
    /// The request of one task.
    pub request: Arc<PlacementRequest>,
    /// What one task takes.
    pub amounts: Amounts,
}

impl TaskClass {
    /// Returns whether the tasks ask for nothing, so that they run on what others leave (Kubernetes' best effort).
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        self.amounts.is_zero()
    }
}

/// Equal tasks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGroup {
    /// The request of each of them.
    pub request: PlacementRequest,
    /// The number of tasks.
    pub count: u32,
    /// The index of their role.
    pub role: u32,
    /// Tasks of a higher priority are placed first and evicted last.
    pub priority: i32,
    /// Whether they may be evicted for others.
    pub preemptable: bool,
    /// Whether the job depends on them, so that they are evicted only if no others suffice (YARN's application master).
    pub master: bool,
    /// How long each of them may run, in ns from when it is bound. At least 1. `None`: as long as it must.
    pub run_time_ns: Option<u64>,
    /// What becomes of the job when something becomes of them. At most
    /// [`JOB_POLICIES_MAX`](crate::limits::JOB_POLICIES_MAX). They come before those of the job.
    pub policies: Vec<JobPolicy>,
    /// In which domain of the topology they are, within that of the job.
    pub topology: Option<TopologyRule>,
}

impl TaskGroup {
    /// Creates tasks of the first role, which may be evicted and run as long as they must.
    #[must_use]
    pub fn new(request: PlacementRequest, count: u32) -> Self {
        Self {
            request,
            count,
            role: 0,
            priority: 0,
            preemptable: true,
            master: false,
            run_time_ns: None,
            policies: Vec::new(),
            topology: None,
        }
    }
}

/// A role of tasks with a minimum of its own (Volcano's `minTaskMember`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: Arc<str>,
    /// How many of its tasks the job needs. 0: none in particular.
    pub min_member: u32,
}

/// A job as it is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Its name, which is unique among the jobs of its tenant that have not ended.
    pub name: Arc<str>,
    /// Its queue, which has no queues below it.
    pub queue: QueueId,
    /// Who it belongs to, with all that its tasks hold.
    pub tenant: TenantId,
    /// The user in the queue for whom it counts. `None`: it counts with all jobs that name none.
    pub user: Option<Arc<str>>,
    /// How many tasks must have nodes before any is bound.
    pub min_member: u32,
    /// What the queue must have room for before it admits the job. `None`: it is admitted at once.
    pub min_resources: Option<Amounts>,
    /// Its roles. At least one.
    pub roles: Vec<Role>,
    /// Its tasks.
    pub tasks: Vec<TaskGroup>,
    /// Jobs of a higher priority come first, and may preempt others of their queue.
    pub priority: i32,
    /// The priority class that it was submitted with, if any. The class may have changed since, or be gone.
    pub priority_class: Option<Arc<str>>,
    /// Whether its tasks may preempt others (Kubernetes' `preemptionPolicy`).
    pub preempts: bool,
    /// When it was submitted.
    pub created: Time,
    /// Its phase at submission: `Pending` until its queue admits it.
    pub phase: JobPhase,
    /// What becomes of it when something becomes of its tasks. At most
    /// [`JOB_POLICIES_MAX`](crate::limits::JOB_POLICIES_MAX).
    pub policies: Vec<JobPolicy>,
    /// How many of its tasks must succeed for it to be completed. Once they have, its other tasks end. At least 1, and no more
    /// than it has. `None`: all of its tasks must end, and as many succeed as it needs at once.
    pub min_success: Option<u32>,
    /// How often its policies restart it or a task of it, at most
    /// [`JOB_MAX_RETRY_MAX`](crate::limits::JOB_MAX_RETRY_MAX). Then it fails.
    pub max_retry: u32,
    /// How long it waits, in ns from its submission, before the plugin `sla` lets it come first. `None`: as long as the plugin
    /// says.
    pub wait_ns: Option<u64>,
    /// In which domain of the topology all of its tasks are.
    pub topology: Option<TopologyRule>,
    /// Whether it is a direct placement: one task, which is placed at once, or waits for its turn. It is forgotten as soon as
    /// its allocation has ended. Lists of jobs leave it out, and its name means nothing.
    pub is_direct: bool,
}

impl JobSpec {
    /// Creates a job of the operator with one role, which needs none of its tasks in particular.
    #[must_use]
    pub fn new(name: &str, tasks: Vec<TaskGroup>) -> Self {
        Self {
            name: name.into(),
            queue: QueueId::ROOT,
            user: None,
            tenant: TenantId::OPERATOR,
            min_member: 0,
            min_resources: None,
            roles: vec![Role { name: "task".into(), min_member: 0 }],
            tasks,
            priority: 0,
            priority_class: None,
            preempts: true,
            created: Time::default(),
            phase: JobPhase::Pending,
            policies: Vec::new(),
            min_success: None,
            max_retry: JOB_MAX_RETRY_DEFAULT,
            wait_ns: None,
            topology: None,
            is_direct: false,
        }
    }

    /// Creates the job of a direct placement. Its task is not evicted for others, and nobody is for it. `since` is when it
    /// was asked for. Among the jobs of its queue, it has this priority while it waits.
    #[must_use]
    pub fn direct(request: PlacementRequest, queue: QueueId, priority: i32, since: Time) -> Self {
        let tenant = request.tenant;
        let task = TaskGroup { preemptable: false, ..TaskGroup::new(request, 1) };
        Self {
            queue,
            tenant,
            min_member: 1,
            priority,
            preempts: false,
            created: since,
            phase: JobPhase::Inqueue,
            is_direct: true,
            ..Self::new("placement", vec![task])
        }
    }

    /// Returns whether the minima of roles count. If the roles together need more than the job, they do not, as in Volcano.
    #[must_use]
    pub fn roles_count(&self) -> bool {
        let needed: u64 = self.roles.iter().map(|role| u64::from(role.min_member)).sum();
        needed <= u64::from(self.min_member)
    }
}
