//! Tasks that the cluster itself needs are never victims.

use super::{Facts, Plugin};
use crate::cycle::config::Decision;
use crate::jobs::TaskId;
use crate::limits::SYSTEM_PRIORITY;

pub(super) struct Conformance;

fn is_spared(facts: Facts<'_>, victim: TaskId) -> bool {
    let job = facts.jobs.job(victim.job);
    job.spec().priority.max(facts.jobs.task(victim).priority) >= SYSTEM_PRIORITY
}

fn spare(facts: Facts<'_>, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
    Some(candidates.iter().copied().filter(|&victim| !is_spared(facts, victim)).collect())
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

    fn may_accept(&self, facts: Facts<'_>, _: Decision, _: TaskId, victim: TaskId) -> bool {
        !is_spared(facts, victim)
    }
}
