//! The tasks that an explanation is about: those that a job lacks, also those that wait for a cap.
//!
//! A task that waits for a cap has a node, and nothing there. Sums count it like a claim. Each cycle tries such tasks first,
//! in their order, each as if it and those after it had nothing. So they are explained like pending tasks, and come before
//! all jobs with pending tasks.

use std::sync::Arc;

use super::{Explaining, is_pending};
use crate::cycle::Scheduler;
use crate::cycle::best_effort::Lacks;
use crate::cycle::plugin::Counted;
use crate::fairness::Amounts;
use crate::jobs::{Claims, Job, JobId, TaskClass, TaskId, TaskState};
use crate::limits::WAITING_FOR_CAP_LOOKED_AT_MAX;

/// The tasks that a job lacks: those that must have places together.
pub(super) struct Wanted {
    pub(super) tasks: Vec<u32>,
    /// What all of them ask for.
    pub(super) sum: Amounts,
    /// What the pending ones ask for. Rules count tasks that wait for a cap already.
    pub(super) pending: Amounts,
}

impl Wanted {
    /// Returns one pending task.
    pub(super) fn one(task: u32, class: &Arc<TaskClass>) -> Self {
        Self { tasks: vec![task], sum: class.amounts.clone(), pending: class.amounts.clone() }
    }
}

/// Returns the tasks that a job needs in addition to those it has, in the order in which cycles try them: those that wait
/// for a cap (`capped`) and pending ones. A job that has what it needs wants its next task. The task that was asked for is
/// always among them.
pub(super) fn wanted(job: &Job, asked: Option<u32>, capped: &[u32]) -> Wanted {
    let role_of = |index: u32| job.tasks()[index as usize].role;
    // Those that ask for nothing make up for what the others do not give.
    let mut lacks = Lacks::without_claims(job, Counted::BestEffortToo, capped);
    let is_best_effort = |index: u32| job.tasks()[index as usize].class.is_best_effort();
    for &index in capped.iter().filter(|&&index| is_best_effort(index)) {
        if lacks.has(role_of(index)) {
            lacks.take(role_of(index));
        }
    }
    let mut left = Lacks::without_claims(job, Counted::Placed, capped);
    let mut tasks: Vec<u32> = Vec::new();
    let candidates = |best_effort: bool| {
        capped.iter().copied().chain(job.pending()).filter(move |&index| is_best_effort(index) == best_effort)
    };
    for index in candidates(false) {
        if lacks.is_none() {
            break;
        }
        if lacks.take(role_of(index)) {
            left.take(role_of(index));
            tasks.push(index);
        }
    }
    for index in candidates(true) {
        if left.is_none() {
            break;
        }
        if left.has(role_of(index)) {
            left.take(role_of(index));
            tasks.push(index);
        }
    }
    if tasks.is_empty() && asked.is_none() {
        tasks.extend(candidates(false).next().or_else(|| candidates(true).next()));
    }
    let is_capped = |index: u32| capped.binary_search(&index).is_ok();
    if let Some(asked) = asked.filter(|&asked| is_pending(job, asked) || is_capped(asked))
        && !tasks.contains(&asked)
    {
        tasks.push(asked);
    }
    let [mut sum, mut pending] = [Amounts::zero(), Amounts::zero()];
    for &index in &tasks {
        let amounts = &job.tasks()[index as usize].class.amounts;
        sum.add(amounts);
        if !is_capped(index) {
            pending.add(amounts);
        }
    }
    Wanted { tasks, sum, pending }
}

fn count(tasks: usize) -> u32 {
    u32::try_from(tasks).expect("at most JOB_TASKS_MAX")
}

impl Scheduler {
    /// Returns the claims of a job.
    pub(super) fn claims_of(&self, id: JobId) -> Claims {
        let pipelined = self.jobs.job(id).count(TaskState::Pipelined);
        let capped = count(self.jobs.waiting_for_cap_of(id).count());
        Claims { claimed: pipelined.saturating_sub(capped), capped }
    }

    /// Returns the tasks of a job that wait for a cap, in order, if these are what an explanation is about: one of them was
    /// asked for, or they keep the job waiting. None otherwise.
    pub(super) fn capped_of(&self, id: JobId, asked: Option<u32>) -> Vec<u32> {
        let job = self.jobs.job(id);
        let capped: Vec<u32> = self.jobs.waiting_for_cap_of(id).collect();
        let is_about = match asked {
            Some(task) => capped.binary_search(&task).is_ok(),
            None => {
                let has_claims = job.count(TaskState::Pipelined) > count(capped.len());
                !has_claims
                    && (job.pending().len() == 0 || !self.tiers.is_ready(self.present(), id, Counted::Placed))
            }
        };
        if is_about { capped } else { Vec::new() }
    }

    /// Counts the jobs of the queue with tasks that wait for a cap: they are served before those that only have pending
    /// tasks, in their order. A bounded number of tasks is looked at.
    pub(super) fn count_capped(&self, explaining: &mut Explaining, is_capped: bool) {
        let id = explaining.job;
        let job = self.jobs.job(id);
        let all = self.jobs.waiting_for_cap_from(TaskId { job: JobId(0), index: 0 });
        let mut last = id;
        for task in all.take(WAITING_FOR_CAP_LOOKED_AT_MAX) {
            if task.job == last || task.job == id {
                continue;
            }
            last = task.job;
            let other = self.jobs.job(last);
            if other.spec().queue == job.spec().queue {
                // Others are among the jobs with pending tasks already.
                let is_new = other.pending().len() == 0;
                explaining.place.waiting += u32::from(is_new);
                explaining.place.before += u32::from(if is_capped { last < id } else { is_new });
            }
        }
        explaining.place.waiting += u32::from(is_capped && job.pending().len() == 0);
    }
}
