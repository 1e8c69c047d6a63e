//! All queues, jobs and tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::changes::Noted;
use super::charge::NextIds;
use super::ends::Ends;
use super::job::RoleCounts;
use super::past::PastRules;
use super::policy;
use super::priority_class::PriorityClasses;
use super::{
    Delayed, Job, JobError, JobId, JobPhase, JobSpec, Queue, QueueId, QueueSpec, RunTimes, Task, TaskClass,
    TaskId, TaskState, TopologyTier, Usage,
};
use crate::fairness::{Amounts, Dim};
use crate::ids::{AllocationId, NodeId, TenantId};
use crate::limits::{JOB_MIN_MEMBER_MAX, JOB_TASKS_MAX};
use crate::map::FixedMap;
use crate::resource::Demand;
use crate::time::Time;
use crate::touched::Touched;

/// All queues, jobs and tasks.
pub struct Jobs {
    /// By id.
    pub(super) queues: Vec<Queue>,
    /// The ids of removed queues.
    pub(super) vacant: BTreeSet<QueueId>,
    pub(super) queue_names: BTreeMap<Arc<str>, QueueId>,
    /// Looked up many times in a cycle.
    pub(super) jobs: FixedMap<JobId, Job>,
    /// The ids of all jobs but direct placements.
    pub(super) ids: BTreeSet<JobId>,
    /// The ids of direct placements.
    pub(super) direct: BTreeSet<JobId>,
    /// The newest job of each name of a tenant.
    job_names: BTreeMap<(TenantId, Arc<str>), JobId>,
    pub(super) next_ids: NextIds,
    pub(super) by_node: BTreeMap<NodeId, Vec<TaskId>>,
    /// The nodes where tasks are releasing, with their number.
    pub(super) releasing: BTreeMap<NodeId, u32>,
    classes: FixedMap<Demand, Vec<Arc<TaskClass>>>,
    /// Tasks that have a node and no claim there.
    waiting_for_cap: BTreeSet<TaskId>,
    /// When the tasks that run must have ended.
    pub(super) ends: Ends,
    /// How long tasks have run that have succeeded.
    pub(super) run_times: RunTimes,
    /// The tasks for which policies do something later, by when they do.
    pub(super) delays: BTreeSet<(Time, TaskId)>,
    /// Jobs whose phase was decided by a policy, and whose other tasks have not been told, and those of `given_up`.
    pub(super) ending: BTreeSet<JobId>,
    /// Jobs with tasks that have a node and wait for others of their job.
    pub(super) starting: BTreeSet<JobId>,
    /// Jobs among these that are to give up what they have.
    pub(super) given_up: BTreeSet<JobId>,
    /// How past use counts.
    pub(super) past_rules: PastRules,
    pub(super) priority_classes: PriorityClasses,
    /// The tiers that jobs may name, from the narrowest to the widest.
    pub(super) tiers: Vec<TopologyTier>,
    /// The number of changes of queues, jobs and tasks so far.
    pub(super) changes: u64,
    /// The number of changes of what queues were submitted with.
    pub(super) queue_changes: u64,
    /// The nodes of tasks that changed.
    touched: Touched<NodeId>,
    /// What changed since the last call of [`take_changes`](Jobs::take_changes), if that is noted.
    pub(super) noted: Option<Noted>,
    /// What changed since the last step of a [copy](super::JobsCopy), while one is made.
    pub(super) noted_for_copy: Option<Noted>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self::new()
    }
}

impl Jobs {
    /// Returns no jobs, with the root queue only.
    #[must_use]
    pub fn new() -> Self {
        let root = QueueSpec { open: true, ..QueueSpec::new(QueueId::ROOT_NAME) };
        Self {
            queue_names: BTreeMap::from([(Arc::clone(&root.name), QueueId::ROOT)]),
            queues: vec![Queue::new(root)],
            vacant: BTreeSet::new(),
            jobs: FixedMap::default(),
            ids: BTreeSet::new(),
            direct: BTreeSet::new(),
            job_names: BTreeMap::new(),
            next_ids: NextIds::first(),
            by_node: BTreeMap::new(),
            releasing: BTreeMap::new(),
            classes: FixedMap::default(),
            waiting_for_cap: BTreeSet::new(),
            ends: Ends::default(),
            run_times: RunTimes::default(),
            delays: BTreeSet::new(),
            ending: BTreeSet::new(),
            starting: BTreeSet::new(),
            given_up: BTreeSet::new(),
            past_rules: PastRules::default(),
            priority_classes: PriorityClasses::new(),
            tiers: Vec::new(),
            changes: 0,
            queue_changes: 0,
            touched: Touched::default(),
            noted: None,
            noted_for_copy: None,
        }
    }

    /// Removes a job that has ended.
    ///
    /// # Panics
    /// If there is none, or if a task of it has a node or is pending.
    pub fn remove_job(&mut self, id: JobId) {
        let job = self.jobs.remove(&id).unwrap_or_else(|| panic!("there is no job {id}"));
        let has_ended = job.tasks.iter().all(|task| task.state.is_end());
        assert!(has_ended, "job {id} has tasks that have not ended");
        let queue = &mut self.queues[job.spec.queue.0 as usize];
        if job.spec.is_direct {
            self.direct.remove(&id);
            queue.direct.remove(&id);
        } else {
            self.ids.remove(&id);
            queue.jobs.remove(&id);
            let name = (job.spec.tenant, Arc::clone(&job.spec.name));
            if self.job_names.get(&name) == Some(&id) {
                self.job_names.remove(&name);
            }
        }
        queue.waiting.remove(&id);
        self.changes += 1;
        if job.spec.is_direct {
            self.note_direct_ended(id);
        } else {
            self.note_job(id);
        }
    }

    /// Adds a job. Its tasks are pending.
    ///
    /// # Errors
    /// The reason why it is refused. Nothing has changed.
    pub fn submit(&mut self, spec: JobSpec) -> Result<JobId, JobError> {
        self.check_job(&spec)?;
        self.admit_user(&spec)?;
        let id = JobId(self.next_ids.job);
        self.insert(id, spec);
        Ok(id)
    }

    /// Adds a job that was checked. Its tasks are pending.
    pub(super) fn insert(&mut self, id: JobId, spec: JobSpec) {
        self.next_ids.meet(id);
        self.changes += 1;
        self.note_job(id);
        let mut job = Job {
            phase: spec.phase,
            restarts: 0,
            tasks: Vec::new(),
            counts: [0; TaskState::ALL.len()],
            role_counts: vec![RoleCounts::default(); spec.roles.len()],
            succeeded_of_group: vec![0; spec.tasks.len()],
            delayed: 0,
            pending_best_effort: 0,
            usage: Usage::default(),
            pending: BTreeSet::new(),
            has_topology: spec.has_topology(),
            spec,
        };
        let groups = std::mem::take(&mut job.spec.tasks);
        for (number, group) in (0..).zip(&groups) {
            let class = self.class(&group.request);
            for _ in 0..group.count {
                let index = u32::try_from(job.tasks.len()).expect("at most JOB_TASKS_MAX");
                job.tasks.push(Task {
                    class: Arc::clone(&class),
                    group: number,
                    role: group.role,
                    priority: group.priority,
                    preemptable: group.preemptable,
                    master: group.master,
                    run_time_ns: group.run_time_ns,
                    state: TaskState::Pending,
                    node: None,
                    allocation: None,
                    since: job.spec.created,
                    started: None,
                    bound: None,
                    delayed: None,
                });
                job.enter(index);
            }
        }
        job.spec.tasks = groups;
        let queue = job.spec.queue;
        let pending = job.usage.pending.clone();
        let tasks = job.tasks.len() as u64;
        let of_queue = &mut self.queues[queue.0 as usize];
        of_queue.waiting.insert(id);
        if job.spec.is_direct {
            of_queue.direct.insert(id);
            self.direct.insert(id);
        } else {
            of_queue.jobs.insert(id);
            self.ids.insert(id);
            self.job_names.insert((job.spec.tenant, Arc::clone(&job.spec.name)), id);
        }
        self.jobs.insert(id, job);
        self.user_asks(id);
        for id in self.chain(queue).collect::<Vec<_>>() {
            let queue = &mut self.queues[id.0 as usize];
            queue.usage.pending.add(&pending);
            queue.pending_tasks += tasks;
        }
    }

    fn check_job(&self, spec: &JobSpec) -> Result<(), JobError> {
        let job = Arc::clone(&spec.name);
        let Some(queue) = self.queues.get(spec.queue.0 as usize) else {
            return Err(JobError::UnknownQueue { job, queue: spec.queue.0.to_string().into() });
        };
        let name = Arc::clone(&queue.spec.name);
        // A job that has ended gives its name to another one. Direct placements have none.
        let known = self.job_names.get(&(spec.tenant, Arc::clone(&spec.name)));
        if !spec.is_direct && known.is_some_and(|&known| !self.job(known).has_ended()) {
            return Err(JobError::Exists(job));
        }
        if !queue.is_leaf() || spec.queue == QueueId::ROOT {
            return Err(JobError::InnerQueue { job, queue: name });
        }
        if !queue.spec.open {
            return Err(JobError::ClosedQueue { job, queue: name });
        }
        let tasks: u64 = spec.tasks.iter().map(|group| u64::from(group.count)).sum();
        if tasks == 0 {
            return Err(JobError::Empty(job));
        }
        if tasks > u64::from(JOB_TASKS_MAX) {
            return Err(JobError::TooManyTasks { job, tasks });
        }
        let tasks = tasks as u32;
        self.check_amounts(spec)?;
        if spec.min_member > JOB_MIN_MEMBER_MAX {
            return Err(JobError::MinMemberTooLarge { job, min_member: spec.min_member });
        }
        if spec.min_member > tasks {
            return Err(JobError::MinMember { job, min_member: spec.min_member, tasks });
        }
        if spec.tasks.iter().any(|group| group.run_time_ns == Some(0)) {
            return Err(JobError::NoRunTime(job));
        }
        policy::check(spec, tasks)?;
        self.check_topology(spec)?;
        for (number, role) in (0..).zip(&spec.roles) {
            let of_role = spec.tasks.iter().filter(|group| group.role == number);
            let tasks = of_role.map(|group| group.count).sum();
            if role.min_member > tasks {
                let min_member = role.min_member;
                return Err(JobError::RoleMinMember { job, role: Arc::clone(&role.name), min_member, tasks });
            }
        }
        Ok(())
    }

    /// Checks that all tasks together ask for at most half of the largest number of each kind. Below that, no sum overflows.
    pub(super) fn check_amounts(&self, spec: &JobSpec) -> Result<(), JobError> {
        let usage = self.queue(QueueId::ROOT).usage();
        let there = [&usage.held, &usage.pipelined, &usage.releasing, &usage.pending];
        let groups =
            || spec.tasks.iter().map(|group| (Amounts::of(&group.request.demand), i128::from(group.count)));
        let kinds: BTreeSet<Dim> = groups()
            .flat_map(|(amounts, _)| amounts.iter().map(|(dim, _)| dim).collect::<Vec<_>>())
            .collect();
        let too_much = kinds.into_iter().find(|&dim| {
            let asked: i128 = groups().map(|(amounts, count)| i128::from(amounts.get(dim)) * count).sum();
            let all = asked + there.iter().map(|sum| i128::from(sum.get(dim))).sum::<i128>();
            all > i128::from(i64::MAX / 2)
        });
        too_much.map_or(Ok(()), |dim| Err(JobError::TooMuch { job: Arc::clone(&spec.name), dim }))
    }

    /// Returns the class of a request, which all tasks with an equal request share.
    fn class(&mut self, request: &crate::request::PlacementRequest) -> Arc<TaskClass> {
        let known = self.classes.entry(request.demand.clone()).or_default();
        if let Some(class) = known.iter().find(|class| *class.request == *request) {
            return Arc::clone(class);
        }
        let amounts = Amounts::of(&request.demand);
        let class = Arc::new(TaskClass { request: Arc::new(request.clone()), amounts });
        // A class that no task has any longer makes room.
        known.retain(|class| Arc::strong_count(class) > 1);
        known.push(Arc::clone(&class));
        class
    }

    /// Returns a job.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn job(&self, id: JobId) -> &Job {
        self.jobs.get(&id).unwrap_or_else(|| panic!("there is no job {id}"))
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).unwrap_or_else(|| panic!("there is no job {id}"))
    }

    /// Returns the newest job of a name among those of the operator.
    #[must_use]
    pub fn job_named(&self, name: &str) -> Option<JobId> {
        self.job_names.get(&(TenantId::OPERATOR, Arc::from(name))).copied()
    }

    /// Returns a task.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn task(&self, id: TaskId) -> &Task {
        &self.job(id.job).tasks[id.index as usize]
    }

    /// Returns the number of changes of queues, jobs and tasks so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of changes so far of what queues were submitted with.
    pub(crate) fn queue_changes(&self) -> u64 {
        self.queue_changes
    }

    /// Returns the nodes whose tasks changed since the last call, with repetitions. `None`: those of any may have.
    pub(crate) fn take_touched_nodes(&mut self) -> Option<Vec<NodeId>> {
        self.touched.take()
    }

    /// Returns a mark for [`forget_since`](Self::forget_since).
    pub(crate) fn mark(&self) -> usize {
        self.touched.mark()
    }

    /// Forgets which nodes were touched since a mark, because the changes were undone.
    pub(crate) fn forget_since(&mut self, mark: usize) {
        self.touched.forget_since(mark);
    }

    /// Returns the tasks that wait until their queue's cap allows them: they have a node, and no claim there.
    #[must_use]
    pub fn waiting_for_cap(&self) -> Vec<TaskId> {
        self.waiting_for_cap.iter().copied().collect()
    }

    /// Returns the first `most` tasks that wait until their queue's cap allows them.
    pub(super) fn first_waiting_for_cap(&self, most: usize) -> impl Iterator<Item = TaskId> + '_ {
        self.waiting_for_cap.iter().copied().take(most)
    }

    /// Returns the tasks from one on that wait until their queue's cap allows them, in order.
    pub(crate) fn waiting_for_cap_from(&self, first: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        self.waiting_for_cap.range(first..).copied()
    }

    /// Returns the tasks of a job that wait until their queue's cap allows them, in order.
    pub fn waiting_for_cap_of(&self, job: JobId) -> impl Iterator<Item = u32> + '_ {
        let [first, last] = [0, u32::MAX].map(|index| TaskId { job, index });
        self.waiting_for_cap.range(first..=last).map(|task| task.index)
    }

    /// Returns the tasks that run and state a run time, each with the time at which it must have ended, the first end
    /// first. With `after`, only those that come after it in this order.
    pub fn ends(&self, after: Option<(Time, TaskId)>) -> impl Iterator<Item = (Time, TaskId)> + '_ {
        self.ends.after(after)
    }

    /// Changes the phase of a job.
    pub fn set_phase(&mut self, id: JobId, phase: JobPhase) {
        self.changes += 1;
        let job = self.job_mut(id);
        job.phase = phase;
        let mut at = job.spec.queue;
        while at != QueueId::ROOT {
            let queue = &mut self.queues[at.0 as usize];
            queue.changed = self.changes;
            at = queue.spec.parent;
        }
        self.note_phase(id);
    }

    /// Records the allocation or claim of a task.
    ///
    /// # Panics
    /// If the task has no node.
    pub fn set_allocation(&mut self, id: TaskId, allocation: AllocationId) {
        self.note_task(id);
        let task = &mut self.job_mut(id.job).tasks[id.index as usize];
        let node = task.node.unwrap_or_else(|| panic!("task {id} has an allocation and no node"));
        task.allocation = Some(allocation);
        self.touched.note(node);
        self.waiting_for_cap.remove(&id);
    }

    /// Changes the state of a task. All sums follow. A task that has no node afterwards has no allocation either.
    ///
    /// # Panics
    /// If there is no such task, or if the state has a node and `node` is none, or the other way round.
    pub fn set(&mut self, id: TaskId, state: TaskState, node: Option<NodeId>, now: Time) {
        let delayed = self.lasting_delay(id, state);
        self.set_as(id, (state, node, delayed), (now, now));
    }

    /// Changes the state of a task and what a policy does later, since when that holds, and when it changes what is held.
    pub(super) fn set_as(
        &mut self,
        id: TaskId,
        (state, node, delayed): (TaskState, Option<NodeId>, Option<Delayed>),
        (now, at): (Time, Time),
    ) {
        assert_eq!(state.has_node(), node.is_some(), "a {} task has a node: {id}", state.name());
        self.changes += 1;
        self.note_task(id);
        let job = self.job_mut(id.job);
        let before = job.tasks[id.index as usize].clone();
        let started = job.count(TaskState::Allocated) > 0;
        job.leave(id.index);
        let task = &mut job.tasks[id.index as usize];
        task.state = state;
        task.node = node;
        task.since = now;
        task.delayed = delayed;
        if !before.state.holds() {
            task.started = state.holds().then_some(now);
        }
        task.bound = match state {
            _ if state.is_bound() => task.bound.or(Some(now)),
            TaskState::Releasing | TaskState::Unknown => task.bound,
            // So how long it has run is known after a restart, too. What was being evicted has ended early.
            TaskState::Succeeded if before.state != TaskState::Releasing => task.bound,
            _ => None,
        };
        if node.is_none() {
            task.allocation = None;
            task.started = None;
        }
        job.enter(id.index);
        let phase = job.phase_by_tasks();
        let changes_phase = phase != job.phase;
        job.phase = phase;
        let queue = job.spec.queue;
        let waits = !job.pending.is_empty();
        let starts = job.count(TaskState::Allocated) > 0;
        if state == TaskState::Pipelined && before.allocation.is_none() {
            self.waiting_for_cap.insert(id);
        } else {
            self.waiting_for_cap.remove(&id);
        }
        if starts && !started {
            self.starting.insert(id.job);
        } else if started && !starts {
            self.starting.remove(&id.job);
        }
        if changes_phase {
            self.note_phase(id.job);
        }
        self.follow_run_time(id, &before, state, now);
        before.node.into_iter().chain(node).for_each(|node| self.touched.note(node));
        self.move_on_nodes(id, &before, node, state);
        self.follow_delay(id, before.delayed, delayed);
        let after = self.jobs.get(&id.job).map(|job| &job.tasks[id.index as usize]);
        self.ends.follow(id, &before, after.expect("the job was there before"));
        let leaf = &mut self.queues[queue.0 as usize];
        if waits {
            leaf.waiting.insert(id.job);
        } else {
            leaf.waiting.remove(&id.job);
        }
        if self.queues[queue.0 as usize].past.is_some() {
            self.follow_past(id.job, &before, state, at);
        }
        let mut at = queue;
        loop {
            let queue = &mut self.queues[at.0 as usize];
            queue.changed = self.changes;
            queue.usage.leave(before.state, &before.class.amounts);
            queue.usage.enter(state, &before.class.amounts);
            queue.pending_tasks -= u64::from(before.state == TaskState::Pending);
            queue.pending_tasks += u64::from(state == TaskState::Pending);
            if at == QueueId::ROOT {
                break;
            }
            at = queue.spec.parent;
        }
    }

    /// Returns whether there is such a job.
    #[must_use]
    pub fn has_job(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Returns whether there is such a task.
    #[must_use]
    pub fn has_task(&self, id: TaskId) -> bool {
        self.jobs.get(&id.job).is_some_and(|job| (id.index as usize) < job.tasks.len())
    }

    /// Returns the number of the next job.
    #[must_use]
    pub fn next_job(&self) -> u64 {
        self.next_ids.job
    }

    /// Returns the ids of the jobs after one, in order, without direct placements.
    pub fn ids_after(&self, after: Option<JobId>) -> impl Iterator<Item = JobId> + '_ {
        self.ids.range((after.map_or(Unbounded, Excluded), Unbounded)).copied()
    }

    /// Returns all jobs in order of id, also direct placements.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = (JobId, &Job)> {
        let mut ids: Vec<JobId> = self.ids.iter().chain(&self.direct).copied().collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| (id, self.job(id)))
    }

    /// Returns the number of all jobs, also of direct placements.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Makes the number of the next job at least this one.
    pub(super) fn skip_ids(&mut self, next_job: u64) {
        self.next_ids.job = self.next_ids.job.max(next_job);
    }

    /// Makes a task what it was before: its state, its node, its allocation, and since when it has these.
    pub(crate) fn restore(&mut self, id: TaskId, before: &Task) {
        let task = &mut self.job_mut(id.job).tasks[id.index as usize];
        if !task.state.is_bound() {
            // Its run time goes on as if nothing had happened.
            task.bound = before.bound;
        }
        let changed = task.since;
        self.set_as(id, (before.state, before.node, before.delayed), (before.since, changed));
        let task = &mut self.job_mut(id.job).tasks[id.index as usize];
        task.allocation = before.allocation;
        task.started = before.started;
        if before.allocation.is_some() {
            self.waiting_for_cap.remove(&id);
        }
    }
}
