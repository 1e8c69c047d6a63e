//! Queues, jobs and tasks in the durable state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::after::{After, Facts, TaskEnd, phase_of_ended};
use super::priority_class::PriorityClasses;
use super::{Delayed, JobId, JobPhase, JobSpec, PriorityClass, QueueSpec, TaskGroup, TaskId, TaskState};
use crate::fairness::Dim;
use crate::ids::{AllocationId, BundleId, NodeId};
use crate::limits::QUEUE_LEVELS_MAX;
use crate::time::Time;

/// A queue in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// The queue. The field `parent` is the root in a record.
    pub spec: QueueSpec,
    /// The name of the queue that contains it. `None`: the root.
    pub parent: Option<Arc<str>>,
}

/// A task in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// Its state.
    pub state: TaskState,
    /// Its node, if its state has one.
    pub node: Option<NodeId>,
    /// Its allocation or claim.
    pub allocation: Option<AllocationId>,
    /// Since when it is in its state.
    pub since: Time,
    /// Since when it holds capacity.
    pub started: Option<Time>,
    /// When it was bound, also while it is being released, and after it has succeeded where it ran.
    pub bound: Option<Time>,
    /// What a policy does later, if what it reacts to lasts.
    pub delayed: Option<Delayed>,
}

impl TaskRecord {
    /// Returns the record of a task that has no node.
    #[must_use]
    pub fn without_node(state: TaskState, since: Time) -> Self {
        Self { state, node: None, allocation: None, since, started: None, bound: None, delayed: None }
    }
}

/// A job in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// The job. The field `queue` is the root in a record.
    pub spec: Arc<JobSpec>,
    /// The name of its queue.
    pub queue: Arc<str>,
    /// Its phase.
    pub phase: JobPhase,
    /// How often policies have restarted it, or a task of it.
    pub restarts: u32,
    /// Its tasks by index. Those that have been pending since the job was submitted are left out.
    pub tasks: BTreeMap<u32, TaskRecord>,
}

/// What was held of a resource kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastAmount {
    /// The kind.
    pub dim: Dim,
    /// What was not free because of it when this was recorded, in 1/10,000 of its unit.
    pub held: i64,
    /// The [weighted sum](crate::fairness::PastSums::get).
    pub sum: i128,
}

/// What a queue or a user in it has held, in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRecord {
    /// The name of the queue.
    pub queue: Arc<str>,
    /// The user, the empty name for jobs without one. `None`: the queue with all below it.
    pub user: Option<Arc<str>>,
    /// The half-life, in ns.
    pub half_life_ns: u64,
    /// The [epoch](crate::fairness::PastSums::epoch) of the sums.
    pub epoch: u64,
    /// The kinds of which something is held or was, in order. None: nothing is left.
    pub kinds: Vec<PastAmount>,
}

/// All queues and jobs in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsRecord {
    /// The number of the next job.
    pub next_job: u64,
    /// Queues by their distance from the root, then by name.
    pub queues: Vec<QueueRecord>,
    /// Priority classes in order of name.
    pub classes: Vec<PriorityClass>,
    /// Jobs in order of id.
    pub jobs: Vec<JobRecord>,
    /// What queues and users have held, in order of queue and user.
    pub past: Vec<PastRecord>,
}

impl Default for JobsRecord {
    fn default() -> Self {
        Self { next_job: 1, queues: Vec::new(), classes: Vec::new(), jobs: Vec::new(), past: Vec::new() }
    }
}

/// A change of queues and jobs. Each is a state, not a step: it may be applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobsChange {
    /// A queue was made or changed. Its parent was made before.
    Queue(Box<QueueRecord>),
    /// The queue of this name was removed.
    QueueRemoved(Arc<str>),
    /// A job was submitted.
    Job(Box<JobRecord>),
    /// A job was removed.
    JobRemoved(JobId),
    /// The phase of a job, and how often policies have restarted it or a task of it.
    Phase(JobId, JobPhase, u32),
    /// The state of a task.
    Task(TaskId, TaskRecord),
    /// What a queue or a user has held.
    Past(Box<PastRecord>),
    /// A direct placement has ended, and is removed.
    DirectEnded(JobId),
    /// A priority class was made or changed.
    Class(Box<PriorityClass>),
    /// The priority class of this name was removed.
    ClassRemoved(Arc<str>),
}

/// The queues and jobs that changes lead to.
#[derive(Clone, Debug)]
pub struct JobsTable {
    next_job: u64,
    /// By name.
    queues: BTreeMap<Arc<str>, QueueRecord>,
    classes: PriorityClasses,
    jobs: BTreeMap<JobId, JobRecord>,
    /// By queue and user.
    past: BTreeMap<Arc<str>, BTreeMap<Option<Arc<str>>, PastRecord>>,
}

impl Default for JobsTable {
    fn default() -> Self {
        Self::new(JobsRecord::default())
    }
}

impl JobsTable {
    /// Takes the records of a state.
    #[must_use]
    pub fn new(record: JobsRecord) -> Self {
        let JobsRecord { next_job, queues, classes, jobs, past } = record;
        let mut of_queues: BTreeMap<Arc<str>, BTreeMap<_, _>> = BTreeMap::new();
        for past in past {
            of_queues.entry(Arc::clone(&past.queue)).or_default().insert(past.user.clone(), past);
        }
        Self {
            next_job,
            past: of_queues,
            queues: queues.into_iter().map(|queue| (Arc::clone(&queue.spec.name), queue)).collect(),
            classes: classes.into_iter().map(|class| (Arc::clone(&class.name), class)).collect(),
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
        }
    }

    /// Applies a change. A change of a job that is gone does nothing.
    pub fn apply(&mut self, change: &JobsChange) {
        match change {
            JobsChange::Queue(queue) => {
                self.queues.insert(Arc::clone(&queue.spec.name), (**queue).clone());
            }
            JobsChange::QueueRemoved(name) => {
                self.queues.remove(name);
                self.past.remove(name);
            }
            JobsChange::Job(job) => {
                if !job.id.is_charge() {
                    self.next_job = self.next_job.max(job.id.0 + 1);
                }
                self.jobs.insert(job.id, (**job).clone());
            }
            JobsChange::JobRemoved(id) | JobsChange::DirectEnded(id) => drop(self.jobs.remove(id)),
            &JobsChange::Phase(id, phase, restarts) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.phase = phase;
                    job.restarts = restarts;
                }
            }
            &JobsChange::Task(TaskId { job, index }, task) => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.tasks.insert(index, task);
                }
            }
            JobsChange::Past(past) => self.apply_past(past),
            JobsChange::Class(class) => {
                self.classes.insert(Arc::clone(&class.name), (**class).clone());
            }
            JobsChange::ClassRemoved(name) => drop(self.classes.remove(name)),
        }
    }

    /// Makes the number of the next job at least this one.
    pub(super) fn skip_ids(&mut self, next_job: u64) {
        self.next_job = self.next_job.max(next_job);
    }

    fn apply_past(&mut self, past: &PastRecord) {
        let of_queue = self.past.entry(Arc::clone(&past.queue)).or_default();
        if !past.kinds.is_empty() {
            of_queue.insert(past.user.clone(), past.clone());
            return;
        }
        of_queue.remove(&past.user);
        if of_queue.is_empty() {
            self.past.remove(&past.queue);
        }
    }

    /// Returns all jobs, for changes.
    pub(crate) fn jobs_mut(&mut self) -> impl Iterator<Item = &mut JobRecord> {
        self.jobs.values_mut()
    }

    /// Returns all jobs in order of id.
    pub fn jobs(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.values()
    }

    /// Returns the records, queues after those that contain them.
    #[must_use]
    pub fn into_record(self) -> JobsRecord {
        let Self { next_job, queues, classes, jobs, past } = self;
        let depth = |queue: &QueueRecord| {
            let parent = |name: &Arc<str>| queues.get(name).and_then(|queue| queue.parent.clone());
            // A circle, which no run of the engine writes, ends too.
            std::iter::successors(queue.parent.clone(), parent).take(QUEUE_LEVELS_MAX).count()
        };
        let mut sorted: Vec<(usize, QueueRecord)> =
            queues.values().map(|queue| (depth(queue), queue.clone())).collect();
        sorted.sort_by_key(|&(depth, _)| depth);
        let queues = sorted.into_iter().map(|(_, queue)| queue).collect();
        let past = past.into_values().flat_map(BTreeMap::into_values).collect();
        let classes = classes.into_values().collect();
        JobsRecord { next_job, queues, classes, jobs: jobs.into_values().collect(), past }
    }
}

impl JobRecord {
    /// Returns the bundle that the allocation of a task is.
    #[must_use]
    pub fn bundle(&self, index: u32) -> BundleId {
        BundleId { group: self.id.group(self.spec.tenant), index }
    }

    /// Takes over that the allocations or claims of tasks have ended, and nobody has reported an end, as
    /// [`Jobs::task_lost`](super::Jobs::task_lost) does. Returns what changed.
    ///
    /// # Panics
    /// If the job has no such task.
    pub(crate) fn lose(&mut self, lost: &[u32], now: Time) -> Vec<JobsChange> {
        let before = (self.phase, self.restarts);
        let mut changes = Vec::new();
        for &index in lost {
            let waits = TaskRecord::without_node(TaskState::Pending, self.spec.created);
            let task = self.tasks.get(&index).copied().unwrap_or(waits);
            let Self { ref spec, phase, restarts, .. } = *self;
            let facts = Facts { spec, phase, restarts, group: self.group_of(index), task };
            let After { state, phase, restarts, delayed } = facts.after(TaskEnd::Lost, now);
            self.phase = phase;
            self.restarts = restarts;
            let task = TaskRecord { delayed, ..TaskRecord::without_node(state, now) };
            self.tasks.insert(index, task);
            changes.push(JobsChange::Task(TaskId { job: self.id, index }, task));
        }
        self.phase = self.phase_by_tasks();
        if before != (self.phase, self.restarts) {
            changes.push(JobsChange::Phase(self.id, self.phase, self.restarts));
        }
        changes
    }

    /// Returns the group of a task.
    fn group_of(&self, index: u32) -> &TaskGroup {
        self.spec.tasks[self.group_number(index)..].first().expect("the job has such a task")
    }

    fn group_number(&self, index: u32) -> usize {
        let mut first = 0;
        let groups = self.spec.tasks.iter().take_while(|group| {
            first += group.count;
            first <= index
        });
        groups.count()
    }

    /// Returns the phase that the job has by the states of its tasks, as `Jobs` does.
    fn phase_by_tasks(&self) -> JobPhase {
        let all: usize = self.spec.tasks.iter().map(|group| group.count as usize).sum();
        let is_over = |task: &TaskRecord| task.state.is_end() && task.delayed.is_none();
        let has_ended = || self.tasks.len() == all && self.tasks.values().all(is_over);
        match self.phase {
            // A task without a record is pending.
            JobPhase::Restarting if self.tasks.values().all(|task| task.state == TaskState::Pending) => {
                self.spec.phase
            }
            phase if phase.is_end() || phase == JobPhase::Restarting || !has_ended() => phase,
            _ => {
                let mut of_roles = vec![0; self.spec.roles.len()];
                let succeeded = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Succeeded);
                succeeded.for_each(|(&index, _)| of_roles[self.group_of(index).role as usize] += 1);
                phase_of_ended(&self.spec, of_roles.iter().sum(), |role| of_roles[role])
            }
        }
    }
}
