//! Run times: a task that runs for longer than it states is evicted with the grace period, and fails.

use std::collections::BTreeMap;

use wharf_core::jobs::{Job, JobId, JobPhase, Jobs, Task, TaskId, TaskState};
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// Returns whether a task is in its grace period because its run time was over.
pub(super) fn has_overrun(task: &Task) -> bool {
    task.state == TaskState::Releasing && task.expected_end().is_some_and(|end| end <= task.since)
}

/// The tasks that are in their grace periods because their run times were over, each with the restarts of its job.
#[derive(Debug, Default)]
pub struct Overruns(BTreeMap<TaskId, u32>);

impl Overruns {
    /// Checks that tasks whose grace period is over since the last call have ended, and were not made pending again except
    /// by a restart. The shards have agreed to the states of tasks.
    ///
    /// # Errors
    /// Returns the task.
    pub fn what_overruns_fails(&mut self, jobs: &Jobs) -> Verdict {
        for (&task, &restarts) in self.0.iter().filter(|(task, _)| jobs.has_task(**task)) {
            let job = jobs.job(task.job);
            let state = jobs.task(task).state;
            let is_right = state == TaskState::Releasing || state.is_end() || job.restarts() > restarts;
            ensure(is_right, || {
                format!("the run time of task {task} was over, and it is {state:?} after {restarts} restarts")
            })?;
        }
        // A job that restarts makes all of its tasks pending.
        let stays = |(_, job): &(JobId, &Job)| job.phase() != JobPhase::Restarting;
        let tasks = jobs.jobs().filter(stays).flat_map(|(id, job)| {
            let overran = (0..).zip(job.tasks()).filter(|(_, task)| has_overrun(task));
            overran.map(move |(index, _)| (TaskId { job: id, index }, job.restarts()))
        });
        self.0 = tasks.collect();
        Ok(())
    }
}

/// Checks, at rest, that no task runs on although its run time was over before `by`.
///
/// # Errors
/// Returns the task.
pub fn overruns_are_ended(jobs: &Jobs, by: Time) -> Verdict {
    for (id, job) in jobs.jobs() {
        let mut bound = (0..).zip(job.tasks()).filter(|(_, task)| task.state.is_bound());
        let late = bound.find(|(_, task): &(u32, _)| task.expected_end().is_some_and(|end| end < by));
        ensure(late.is_none(), || format!("a task of job {id} goes on at {by:?}: {late:?}"))?;
    }
    Ok(())
}
