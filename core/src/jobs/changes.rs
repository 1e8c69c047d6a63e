//! What changed of queues, jobs and tasks, as records for the journal, and the way back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::past::PastKey;
use super::{
    JobId, JobRecord, JobSpec, Jobs, JobsChange, JobsRecord, JobsTable, PastRecord, PriorityClass, QueueId,
    QueueRecord, QueueSpec, Task, TaskId, TaskRecord, TaskState,
};
use crate::broken::{Broken, broken};
use crate::time::Time;

/// What changed since the last record.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// In order: a queue is made after its parent.
    queues: Vec<Arc<str>>,
    classes: BTreeSet<Arc<str>>,
    /// Jobs that were submitted or removed.
    jobs: BTreeSet<JobId>,
    phases: BTreeSet<JobId>,
    /// Each as it was before.
    tasks: BTreeMap<TaskId, TaskRecord>,
    /// Each as it was before.
    past: BTreeMap<PastKey, Option<PastRecord>>,
    /// Direct placements that have ended, of those that are recorded.
    direct_ended: BTreeSet<JobId>,
}

impl Jobs {
    /// Notes all changes from now on, for [`take_changes`](Self::take_changes).
    pub(crate) fn note_changes(&mut self) {
        self.noted.get_or_insert_default();
    }

    /// Returns what is noted, for the journal and for a copy that is under way.
    fn all_noted(&mut self) -> impl Iterator<Item = &mut Noted> {
        self.noted.iter_mut().chain(&mut self.noted_for_copy)
    }

    /// Returns what is noted of a job. The journal knows no charges and no placeholders. A copy has no placeholders: groups that wait are
    /// counted in plans of nodes as what they are.
    fn noted_of(&mut self, id: JobId) -> impl Iterator<Item = &mut Noted> {
        let for_journal = self.noted.iter_mut().filter(move |_| id.is_recorded());
        for_journal.chain(self.noted_for_copy.iter_mut().filter(move |_| !id.is_placeholder()))
    }

    fn is_noting(&self) -> bool {
        self.noted.is_some() || self.noted_for_copy.is_some()
    }

    pub(super) fn note_queue(&mut self, name: &Arc<str>) {
        self.all_noted().for_each(|noted| noted.queues.push(Arc::clone(name)));
    }

    pub(super) fn note_class(&mut self, name: &Arc<str>) {
        for noted in self.all_noted() {
            noted.classes.insert(Arc::clone(name));
        }
    }

    pub(super) fn note_job(&mut self, id: JobId) {
        self.noted_of(id).for_each(|noted| noted.jobs.extend([id]));
    }

    /// Notes that a direct placement is removed. If it is not recorded, nothing of it ever is.
    pub(super) fn note_direct_ended(&mut self, id: JobId) {
        for noted in self.noted_of(id) {
            if !noted.jobs.remove(&id) {
                noted.direct_ended.insert(id);
            }
        }
    }

    pub(super) fn note_phase(&mut self, id: JobId) {
        self.noted_of(id).for_each(|noted| noted.phases.extend([id]));
    }

    /// Notes that a task is about to change.
    pub(super) fn note_task(&mut self, id: TaskId) {
        if !self.is_noting() {
            return;
        }
        let before = self.task(id).record();
        for noted in self.noted_of(id.job) {
            noted.tasks.entry(id).or_insert(before);
        }
    }

    /// Notes that what a queue or a user has held is about to change.
    pub(super) fn note_past(&mut self, queue: QueueId, user: Option<&Arc<str>>) {
        if !self.is_noting() {
            return;
        }
        let key = (Arc::clone(&self.queue(queue).spec().name), user.cloned());
        if self.all_noted().all(|noted| noted.past.contains_key(&key)) {
            return;
        }
        let before = self.past_record(&key);
        for noted in self.all_noted() {
            noted.past.entry(key.clone()).or_insert_with(|| before.clone());
        }
    }

    /// Notes that what a queue and its users have held is about to change.
    pub(super) fn note_pasts(&mut self, queue: QueueId) {
        if !self.is_noting() {
            return;
        }
        for (_, user) in self.past_keys(queue) {
            self.note_past(queue, user.as_ref());
        }
    }

    /// Returns what changed since the last call. Each queue, job and task is as it is now.
    pub(crate) fn take_changes(&mut self) -> Vec<JobsChange> {
        let noted = self.noted.as_mut().map(std::mem::take);
        noted.map_or_else(Vec::new, |noted| self.changes_of(noted))
    }

    /// Returns what was noted, as it is now.
    pub(super) fn changes_of(&self, noted: Noted) -> Vec<JobsChange> {
        let Noted { queues, classes, jobs, phases, tasks, past, direct_ended } = noted;
        let mut changes = Vec::new();
        for name in queues {
            changes.push(match self.queue_named(&name) {
                Some(id) => JobsChange::Queue(Box::new(self.queue_record(id))),
                None => JobsChange::QueueRemoved(name),
            });
        }
        changes.extend(classes.into_iter().map(|name| match self.priority_class(&name) {
            Some(class) => JobsChange::Class(Box::new(class.clone())),
            None => JobsChange::ClassRemoved(name),
        }));
        for &id in &jobs {
            changes.push(if self.has_job(id) {
                JobsChange::Job(Box::new(self.job_record(id)))
            } else {
                JobsChange::JobRemoved(id)
            });
        }
        changes.extend(direct_ended.into_iter().map(JobsChange::DirectEnded));
        // The record of a new job has its phase and its tasks.
        let is_old = |id: JobId| !jobs.contains(&id) && self.has_job(id);
        let phases = phases.into_iter().filter(|&id| is_old(id));
        changes.extend(phases.map(|id| {
            let job = self.job(id);
            JobsChange::Phase(id, job.phase(), job.restarts())
        }));
        for (id, before) in tasks.into_iter().filter(|(id, _)| is_old(id.job)) {
            // A cycle may have tried a change and undone it.
            let now = self.task(id).record();
            changes.extend((now != before).then_some(JobsChange::Task(id, now)));
        }
        for (key, before) in past {
            let now = self.past_record(&key);
            // What a queue has held is gone with the queue.
            if now != before && self.queue_named(&key.0).is_some() {
                let (queue, user) = key;
                let nothing = PastRecord { queue, user, half_life_ns: 0, epoch: 0, kinds: Vec::new() };
                changes.push(JobsChange::Past(Box::new(now.unwrap_or(nothing))));
            }
        }
        changes
    }

    /// Returns all queues and jobs as records, without charges and placeholders.
    #[must_use]
    pub fn record(&self) -> JobsRecord {
        let queues = self.named_queues().map(|(id, _)| self.queue_record(id)).collect();
        let jobs: BTreeSet<JobId> = self.jobs().map(|(id, _)| id).filter(|id| id.is_recorded()).collect();
        let jobs = jobs.into_iter().map(|id| self.job_record(id)).collect();
        let keys = self.named_queues().flat_map(|(id, _)| self.past_keys(id));
        let past = keys.filter_map(|key| self.past_record(&key)).collect();
        let classes = self.class_records();
        JobsTable::new(JobsRecord { next_job: self.next_job(), queues, classes, jobs, past }).into_record()
    }

    pub(super) fn class_records(&self) -> Vec<PriorityClass> {
        self.priority_classes.values().cloned().collect()
    }

    pub(super) fn queue_record(&self, id: QueueId) -> QueueRecord {
        let spec = self.queue(id).spec();
        let parent = Some(spec.parent).filter(|&parent| parent != QueueId::ROOT);
        let parent = parent.map(|parent| Arc::clone(&self.queue(parent).spec().name));
        QueueRecord { spec: QueueSpec { parent: QueueId::ROOT, ..spec.clone() }, parent }
    }

    fn job_record(&self, id: JobId) -> JobRecord {
        let tasks = self.task_records(id, 0, u32::MAX).collect();
        JobRecord { tasks, ..self.job_record_without_tasks(id) }
    }

    pub(super) fn job_record_without_tasks(&self, id: JobId) -> JobRecord {
        let job = self.job(id);
        let spec = job.spec();
        let queue = Arc::clone(&self.queue(spec.queue).spec().name);
        let spec = Arc::new(JobSpec { queue: QueueId::ROOT, ..spec.clone() });
        let tasks = BTreeMap::new();
        JobRecord { id, spec, queue, phase: job.phase(), restarts: job.restarts(), tasks }
    }

    /// Returns the records of at most `count` tasks of a job from one on. Those that have been pending since the job was
    /// submitted have none.
    pub(super) fn task_records(
        &self,
        id: JobId,
        from: u32,
        count: u32,
    ) -> impl Iterator<Item = (u32, TaskRecord)> + '_ {
        let job = self.job(id);
        let created = job.spec().created;
        let fresh = move |task: &Task| {
            task.state == TaskState::Pending && task.since == created && task.delayed.is_none()
        };
        let tasks = (from..).zip(job.tasks().iter().skip(from as usize).take(count as usize));
        tasks.filter(move |(_, task)| !fresh(task)).map(|(index, task)| (index, task.record()))
    }

    /// Takes over what an earlier start left, at the time of this one.
    ///
    /// # Errors
    /// The first record that contradicts the others.
    pub(crate) fn adopt(&mut self, record: JobsRecord, now: Time) -> Result<(), Broken> {
        let JobsRecord { next_job, queues, classes, jobs, past } = record;
        for QueueRecord { spec, parent } in queues {
            let parent = match parent {
                None => QueueId::ROOT,
                Some(name) => self.queue_named(&name).ok_or_else(|| {
                    broken!("queue `{}` is in queue `{name}`, which is not recorded", spec.name)
                })?,
            };
            let name = Arc::clone(&spec.name);
            let added = self.add_queue(QueueSpec { parent, ..spec });
            added.map_err(|error| broken!("queue `{name}` is recorded, and {error}"))?;
        }
        for class in classes {
            let name = Arc::clone(&class.name);
            let set = self.set_priority_class(class);
            set.map_err(|error| broken!("priority class `{name}` is recorded, and {error}"))?;
        }
        for JobRecord { id, spec, queue, phase, restarts, tasks } in jobs {
            let of_queue = self.queue_named(&queue).filter(|&id| self.queue(id).is_leaf());
            let Some(of_queue) = of_queue.filter(|&id| id != QueueId::ROOT) else {
                return Err(broken!("job {id} is in queue `{queue}`, which takes no jobs"));
            };
            let was_submitted = id.is_charge() || id.0 < next_job;
            if self.has_job(id) || !was_submitted {
                return Err(broken!("job {id} (`{}`) is recorded twice, or was never submitted", spec.name));
            }
            self.insert(id, JobSpec { queue: of_queue, ..(*spec).clone() });
            for (index, task) in tasks {
                self.adopt_task(TaskId { job: id, index }, task)?;
            }
            self.job_mut(id).restarts = restarts;
            self.set_phase(id, phase);
        }
        self.skip_ids(next_job);
        self.resume_endings();
        self.measure_again();
        self.adopt_pasts(past, now)
    }

    fn adopt_task(&mut self, id: TaskId, record: TaskRecord) -> Result<(), Broken> {
        let TaskRecord { state, node, allocation, since, started, bound, delayed } = record;
        let is_there = (id.index as usize) < self.job(id.job).tasks().len();
        // A task that waits for the cap of its queue has a node and no claim there. Who has a claim or an allocation has a
        // node.
        if !is_there || state.has_node() != node.is_some() || (allocation.is_some() && node.is_none()) {
            return Err(broken!("task {id} is recorded as {}, on node {node:?}", state.name()));
        }
        let before =
            Task { state, node, allocation, since, started, bound, delayed, ..self.task(id).clone() };
        self.restore(id, &before);
        Ok(())
    }
}
