//! A job is placed with as many tasks as it needs, or not at all. A running job keeps as many as it needs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Facts, Plugin};
use crate::cycle::config::Decision;
use crate::cycle::plugin::{Counted, More};
use crate::jobs::{Job, JobId, TaskId, TaskState};
use crate::planted::{PlantedBug, is_planted};

pub(super) struct Gang {
    whole: bool,
}

impl Gang {
    /// With `whole`, running gangs may go as a whole.
    pub(super) fn new(whole: bool) -> Self {
        Self { whole }
    }
}

/// Returns the number of tasks of a role in any of the states.
pub(in crate::cycle) fn of_role(job: &Job, role: usize, states: impl Fn(TaskState) -> bool) -> u32 {
    TaskState::ALL.into_iter().filter(|&state| states(state)).map(|state| job.role_count(role, state)).sum()
}

/// Returns whether a task in a state counts for its gang.
pub(in crate::cycle) fn has_place(state: TaskState) -> bool {
    state.holds() || state == TaskState::Succeeded
}

/// Returns whether each role has as many tasks in such states as it needs, with more of them and without some.
fn roles_have(
    job: &Job,
    states: impl Fn(TaskState) -> bool + Copy,
    counted: Counted,
    more: &More,
    without: &BTreeMap<u32, u32>,
) -> bool {
    let has = |at: usize| {
        let pending = if counts_pending(counted) { job.role_pending_best_effort(at) } else { 0 };
        let more = more.of_roles.get(at).unwrap_or(&0);
        of_role(job, at, states) + pending + more - without.get(&(at as u32)).unwrap_or(&0)
    };
    let roles = &job.spec().roles;
    !job.spec().roles_count() || roles.iter().enumerate().all(|(at, role)| has(at) >= role.min_member)
}

/// Returns the number of tasks of each role that have a place which no shard has granted, if these do not count.
fn planned(job: &Job, counted: Counted) -> BTreeMap<u32, u32> {
    let mut of_roles = BTreeMap::new();
    if counted == Counted::Granted && job.count(TaskState::Allocated) > 0 {
        let planned = job.tasks().iter().filter(|task| task.is_planned());
        planned.for_each(|task| *of_roles.entry(task.role).or_default() += 1);
    }
    of_roles
}

/// Returns whether pending tasks that ask for nothing count.
fn counts_pending(counted: Counted) -> bool {
    counted == Counted::BestEffortToo || is_planted(PlantedBug::GangStartsInPart)
}

/// Returns the number of pending tasks that count.
fn pending(job: &Job, counted: Counted) -> u32 {
    if counts_pending(counted) { job.pending_best_effort() } else { 0 }
}

impl Plugin for Gang {
    /// A job that has not what it needs comes first.
    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let is_ready = |job| self.ready(facts, job, Counted::BestEffortToo, &More::default());
        is_ready(a).cmp(&is_ready(b))
    }

    fn valid(&self, facts: Facts<'_>, job: JobId) -> bool {
        let job = facts.jobs.job(job);
        let may_run = |state| has_place(state) || matches!(state, TaskState::Pipelined | TaskState::Pending);
        let tasks: u32 = TaskState::ALL.into_iter().filter(|&of| may_run(of)).map(|of| job.count(of)).sum();
        roles_have(job, may_run, Counted::Placed, &More::default(), &BTreeMap::new())
            && tasks >= job.spec().min_member
    }

    fn ready(&self, facts: Facts<'_>, job: JobId, counted: Counted, more: &More) -> bool {
        let job = facts.jobs.job(job);
        let planned = planned(job, counted);
        let there = job.ready_tasks() + pending(job, counted) + more.all - planned.values().sum::<u32>();
        there >= job.spec().min_member && roles_have(job, has_place, counted, more, &planned)
    }

    fn pipelined(&self, facts: Facts<'_>, job: JobId, counted: Counted) -> bool {
        let job = facts.jobs.job(job);
        let placed = job.ready_tasks() + job.count(TaskState::Pipelined) + pending(job, counted);
        let has = |state| has_place(state) || state == TaskState::Pipelined;
        let roles = roles_have(job, has, counted, &More::default(), &BTreeMap::new());
        roles && placed >= job.spec().min_member
    }

    fn takes_whole_gangs(&self) -> bool {
        self.whole
    }

    fn starving(&self, facts: Facts<'_>, job: JobId) -> Option<bool> {
        let job = facts.jobs.job(job);
        Some(job.ready_tasks() + job.count(TaskState::Pipelined) < job.spec().min_member)
    }

    fn preemptable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        Some(beyond_minimum(facts, candidates))
    }

    fn reclaimable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        Some(beyond_minimum(facts, candidates))
    }

    fn evictable(&self, facts: Facts<'_>, _: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        Some(beyond_minimum(facts, candidates))
    }

    fn may_accept(&self, facts: Facts<'_>, _: Decision, _: TaskId, victim: TaskId) -> bool {
        let job = facts.jobs.job(victim.job);
        self.whole || job.ready_tasks() > job.spec().min_member
    }
}

/// Returns the candidates that leave their jobs as many tasks as these need, in all and of each role.
fn beyond_minimum(facts: Facts<'_>, candidates: &[TaskId]) -> Vec<TaskId> {
    let mut left: BTreeMap<JobId, u32> = BTreeMap::new();
    let mut left_of_roles: BTreeMap<(JobId, u32), u32> = BTreeMap::new();
    let mut victims = Vec::new();
    for &victim in candidates {
        let job = facts.jobs.job(victim.job);
        let role = facts.jobs.task(victim).role;
        let left = left.entry(victim.job).or_insert_with(|| job.ready_tasks());
        let of_role = || of_role(job, role as usize, has_place);
        let left_of_role = left_of_roles.entry((victim.job, role)).or_insert_with(of_role);
        if *left > job.spec().min_member && *left_of_role > least_of_role(job, role) {
            *left -= 1;
            *left_of_role -= 1;
            victims.push(victim);
        }
    }
    victims
}

/// Returns how many tasks of a role a job needs, or 0 if the minima of roles do not count.
fn least_of_role(job: &Job, role: u32) -> u32 {
    if job.spec().roles_count() { job.spec().roles[role as usize].min_member } else { 0 }
}
