//! Jobs and tasks of a higher priority come first, and preempt those of a lower one.

use std::cmp::Ordering;

use super::{Facts, Plugin};
use crate::jobs::{JobId, TaskId, TaskState};

pub(super) struct Priority;

impl Plugin for Priority {
    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let priority = |job| facts.jobs.job(job).spec().priority;
        priority(b).cmp(&priority(a))
    }

    fn task_order(&self, facts: Facts<'_>, a: TaskId, b: TaskId) -> Ordering {
        facts.jobs.task(b).priority.cmp(&facts.jobs.task(a).priority)
    }

    /// A job starves as long as any of its tasks has no place.
    fn starving(&self, facts: Facts<'_>, job: JobId) -> Option<bool> {
        let job = facts.jobs.job(job);
        let placed = job.ready_tasks() + job.count(TaskState::Pipelined);
        Some((placed as usize) < job.tasks().len())
    }

    /// Tasks of jobs of a lower priority, and of the same job those of a lower priority.
    fn preemptable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let jobs = facts.jobs;
        let is_lower = |victim: &TaskId| {
            if victim.job == task.job {
                jobs.task(*victim).priority < jobs.task(task).priority
            } else {
                jobs.job(victim.job).spec().priority < jobs.job(task.job).spec().priority
            }
        };
        Some(candidates.iter().copied().filter(is_lower).collect())
    }
}
