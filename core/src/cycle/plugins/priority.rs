//! Jobs and tasks of a higher priority come first, and preempt those of a lower one.

use std::cmp::Ordering;

use super::{Facts, Plugin};
use crate::cycle::config::Decision;
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
        Some(candidates.iter().copied().filter(|&victim| is_lower(facts, victim, task)).collect())
    }

    fn may_accept(&self, facts: Facts<'_>, decision: Decision, task: TaskId, victim: TaskId) -> bool {
        decision != Decision::Preemptable || is_lower(facts, victim, task)
    }

    fn takes_lower_priorities(&self) -> bool {
        true
    }
}

fn is_lower(facts: Facts<'_>, victim: TaskId, than: TaskId) -> bool {
    let jobs = facts.jobs;
    if victim.job == than.job {
        jobs.task(victim).priority < jobs.task(than).priority
    } else {
        jobs.job(victim.job).spec().priority < jobs.job(than.job).spec().priority
    }
}
