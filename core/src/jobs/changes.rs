//! What changed of queues, jobs and tasks, as records for the journal, and the way back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::past::PastKey;
use super::{
    JobId, JobRecord, JobSpec, Jobs, JobsChange, JobsRecord, JobsTable, PastRecord, QueueId, QueueRecord,
    QueueSpec, Task, TaskId, TaskRecord, TaskState,
};
use crate::broken::{Broken, broken};
use crate::time::Time;

/// What changed since the last record.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// In order: a queue is made after its parent.
    queues: Vec<Arc<str>>,
    /// Jobs that were submitted or removed.
    jobs: BTreeSet<JobId>,
    phases: BTreeSet<JobId>,
    /// Each as it was before.
    tasks: BTreeMap<TaskId, TaskRecord>,
    /// Each as it was before.
    past: BTreeMap<PastKey, Option<PastRecord>>,
}

impl Jobs {
    /// Notes all changes from now on, for [`take_changes`](Self::take_changes).
    pub(crate) fn note_changes(&mut self) {
        self.noted.get_or_insert_default();
    }

    pub(super) fn note_queue(&mut self, name: &Arc<str>) {
        if let Some(noted) = &mut self.noted {
            noted.queues.push(Arc::clone(name));
        }
    }

    pub(super) fn note_job(&mut self, id: JobId) {
        if let Some(noted) = &mut self.noted {
            noted.jobs.insert(id);
        }
    }

    pub(super) fn note_phase(&mut self, id: JobId) {
        if let Some(noted) = &mut self.noted {
            noted.phases.insert(id);
        }
    }

    /// Notes that a task is about to change.
    pub(super) fn note_task(&mut self, id: TaskId) {
        if self.noted.is_none() {
            return;
        }
        let before = self.task(id).record();
        if let Some(noted) = &mut self.noted {
            noted.tasks.entry(id).or_insert(before);
        }
    }

    /// Notes that what a queue or a user has held is about to change.
    pub(super) fn note_past(&mut self, queue: QueueId, user: Option<&Arc<str>>) {
        let Some(noted) = &self.noted else { return };
        let key = (Arc::clone(&self.queue(queue).spec().name), user.cloned());
        if noted.past.contains_key(&key) {
            return;
        }
        let before = self.past_record(&key);
        if let Some(noted) = &mut self.noted {
            noted.past.insert(key, before);
        }
    }

    /// Notes that what a queue and its users have held is about to change.
    pub(super) fn note_pasts(&mut self, queue: QueueId) {
        if self.noted.is_none() {
            return;
        }
        for (_, user) in self.past_keys(queue) {
            self.note_past(queue, user.as_ref());
        }
    }

    /// Returns what changed since the last call. Each queue, job and task is as it is now.
    pub(crate) fn take_changes(&mut self) -> Vec<JobsChange> {
        let Some(Noted { queues, jobs, phases, tasks, past }) = self.noted.as_mut().map(std::mem::take)
        else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        for name in queues {
            changes.push(match self.queue_named(&name) {
                Some(id) => JobsChange::Queue(Box::new(self.queue_record(id))),
                None => JobsChange::QueueRemoved(name),
            });
        }
        for &id in &jobs {
            changes.push(if self.has_job(id) {
                JobsChange::Job(Box::new(self.job_record(id)))
            } else {
                JobsChange::JobRemoved(id)
            });
        }
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

    /// Returns all queues and jobs as records.
    #[must_use]
    pub fn record(&self) -> JobsRecord {
        let queues = self.named_queues().map(|(id, _)| self.queue_record(id)).collect();
        let jobs: BTreeSet<JobId> = self.jobs().map(|(id, _)| id).collect();
        let jobs = jobs.into_iter().map(|id| self.job_record(id)).collect();
        let keys = self.named_queues().flat_map(|(id, _)| self.past_keys(id));
        let past = keys.filter_map(|key| self.past_record(&key)).collect();
        JobsTable::new(JobsRecord { next_job: self.next_job(), queues, jobs, past }).into_record()
    }

    fn queue_record(&self, id: QueueId) -> QueueRecord {
        let spec = self.queue(id).spec();
        let parent = Some(spec.parent).filter(|&parent| parent != QueueId::ROOT);
        let parent = parent.map(|parent| Arc::clone(&self.queue(parent).spec().name));
        QueueRecord { spec: QueueSpec { parent: QueueId::ROOT, ..spec.clone() }, parent }
    }

    fn job_record(&self, id: JobId) -> JobRecord {
        let job = self.job(id);
        let spec = job.spec();
        let queue = Arc::clone(&self.queue(spec.queue).spec().name);
        let fresh = |task: &Task| {
            task.state == TaskState::Pending && task.since == spec.created && task.delayed.is_none()
        };
        let tasks = (0..).zip(job.tasks()).filter(|(_, task)| !fresh(task));
        let tasks = tasks.map(|(index, task)| (index, task.record())).collect();
        let spec = Arc::new(JobSpec { queue: QueueId::ROOT, ..spec.clone() });
        JobRecord { id, spec, queue, phase: job.phase(), restarts: job.restarts(), tasks }
    }

    /// Takes over what an earlier start left, at the time of this one.
    ///
    /// # Errors
    /// The first record that contradicts the others.
    pub(crate) fn adopt(&mut self, record: JobsRecord, now: Time) -> Result<(), Broken> {
        let JobsRecord { next_job, queues, jobs, past } = record;
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
        for JobRecord { id, spec, queue, phase, restarts, tasks } in jobs {
            let of_queue = self.queue_named(&queue).filter(|&id| self.queue(id).is_leaf());
            let Some(of_queue) = of_queue.filter(|&id| id != QueueId::ROOT) else {
                return Err(broken!("job {id} is in queue `{queue}`, which takes no jobs"));
            };
            if self.has_job(id) || id.0 >= next_job {
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
