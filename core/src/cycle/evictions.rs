//! What evictions were for: whether those for whom tasks were evicted got what these gave up.

use std::collections::BTreeSet;

use super::report::Plan;
use crate::jobs::{Jobs, TaskId, TaskState};
use crate::statement::Operation;

/// Follows the evictions of plans, until those for whom they were are placed or have lost their claims.
///
/// All evictions of a plan are for all tasks that it places. They are of use once each of these tasks has its node.
/// They are wasted if one of these tasks is pending again, or waits on although all victims have ended.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    open: Vec<Open>,
    useful: usize,
    wasted: Vec<TaskId>,
}

/// The evictions of a plan, and the tasks that wait for them.
#[derive(Clone, Debug)]
struct Open {
    victims: Vec<TaskId>,
    waiting: BTreeSet<TaskId>,
}

impl Evictions {
    /// Notes the evictions of plans that were committed or aborted. Evictions that make room for nobody do not count,
    /// such as those of tasks whose run time is over.
    ///
    /// # Panics
    /// If a plan names a task that there is not.
    pub fn note(&mut self, jobs: &Jobs, plans: &[Plan]) {
        for plan in plans {
            let mut open = Open { victims: Vec::new(), waiting: BTreeSet::new() };
            for step in &plan.tasks {
                if matches!(step.operation, Some(Operation::Evict(_))) {
                    open.victims.push(step.task);
                } else {
                    open.waiting.insert(step.task);
                }
            }
            // In a plan that was aborted, all tasks are what they were.
            open.victims.retain(|&victim| !jobs.task(victim).state.holds());
            if !open.victims.is_empty() && !open.waiting.is_empty() {
                self.open.push(open);
            }
        }
        self.follow(jobs);
    }

    /// Follows tasks that were bound, or have lost their claims.
    ///
    /// # Panics
    /// If a task of a plan that was noted is not there any more.
    pub fn follow(&mut self, jobs: &Jobs) {
        let state = |task: TaskId| jobs.task(task).state;
        for mut open in std::mem::take(&mut self.open) {
            if open.waiting.iter().any(|&task| state(task) == TaskState::Pending) {
                self.wasted.append(&mut open.victims);
                continue;
            }
            // A task without a node whose claim is being given up is not placed: it is pending after that.
            open.waiting.retain(|&task| matches!(state(task), TaskState::Pipelined | TaskState::Releasing));
            if open.waiting.is_empty() {
                self.useful += open.victims.len();
            } else {
                self.open.push(open);
            }
        }
    }

    /// Ends what is followed: evictions whose victims have all ended, and for which somebody waits still, are wasted.
    /// Those with a victim in its grace period count neither way.
    ///
    /// # Panics
    /// If a task of a plan that was noted is not there any more.
    pub fn close(&mut self, jobs: &Jobs) {
        self.follow(jobs);
        for mut open in std::mem::take(&mut self.open) {
            if open.victims.iter().all(|&victim| jobs.task(victim).state != TaskState::Releasing) {
                self.wasted.append(&mut open.victims);
            }
        }
    }

    /// Returns the number of evictions that were of use.
    #[must_use]
    pub fn useful(&self) -> usize {
        self.useful
    }

    /// Returns the victims of the evictions that were wasted, in the order in which that was found.
    #[must_use]
    pub fn wasted(&self) -> &[TaskId] {
        &self.wasted
    }
}
