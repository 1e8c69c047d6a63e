//! Tasks that the cluster itself needs are never victims.

use super::{Facts, Plugin};
use crate::jobs::TaskId;
use crate::limits::SYSTEM_PRIORITY;

pub(super) struct Conformance;

fn spare(facts: Facts<'_>, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
    let is_spared = |victim: &TaskId| {
        let job = facts.jobs.job(victim.job);
        job.spec().priority.max(facts.jobs.task(*victim).priority) >= SYSTEM_PRIORITY
    };
    Some(candidates.iter().copied().filter(|victim| !is_spared(victim)).collect())
}

impl Plugin for Conformance {
    fn preemptable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        spare(facts, candidates)
    }

    fn reclaimable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        spare(facts, candidates)
    }

    fn evictable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        spare(facts, candidates)
    }
}
