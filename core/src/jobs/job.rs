//! One job and its tasks.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::after::phase_of_ended;
use super::{Delayed, JobPhase, JobSpec, TaskClass, TaskRecord, TaskState, Usage};
use crate::ids::{AllocationId, NodeId};
use crate::time::Time;

/// A task.
#[derive(Clone, Debug)]
pub struct Task {
    /// What it asks for.
    pub class: Arc<TaskClass>,
    /// The index of its task group.
    pub group: u32,
    /// The index of its role.
    pub role: u32,
    /// Its priority.
    pub priority: i32,
    /// Whether it may be evicted for others.
    pub preemptable: bool,
    /// Whether its job depends on it, so that it is evicted only if no others suffice (YARN's application master).
    pub master: bool,
    /// How long it may run, in ns. `None`: as long as it must.
    pub run_time_ns: Option<u64>,
    /// Its state.
    pub state: TaskState,
    /// Its node, if its state has one.
    pub node: Option<NodeId>,
    /// Its allocation or claim, once a shard has granted it.
    pub allocation: Option<AllocationId>,
    /// Since when it is in its state.
    pub since: Time,
    /// Since when it holds capacity, also while this is being released. `None`: it holds none.
    pub started: Option<Time>,
    /// When it was bound, also while it is being released, and after it has succeeded where it ran. `None`: its run time is
    /// not being counted, and was not.
    pub bound: Option<Time>,
    /// What a policy does later, if what it reacts to lasts.
    pub delayed: Option<Delayed>,
}

impl Task {
    /// Returns when the task must have ended, if it was bound and states a run time.
    #[must_use]
    pub fn expected_end(&self) -> Option<Time> {
        Some(self.bound?.plus_nanos(self.run_time_ns?))
    }

    /// Returns what of it is durable.
    pub(super) fn record(&self) -> TaskRecord {
        let &Self { state, node, allocation, since, started, bound, delayed, .. } = self;
        TaskRecord { state, node, allocation, since, started, bound, delayed }
    }

    /// Returns whether it has a claim on capacity that is being released.
    #[must_use]
    pub fn has_claim(&self) -> bool {
        self.state == TaskState::Pipelined && self.allocation.is_some()
    }

    /// Returns whether a cycle has planned a place for it that no shard has granted.
    pub(crate) fn is_planned(&self) -> bool {
        self.state == TaskState::Allocated && self.allocation.is_none()
    }
}

/// The numbers of tasks of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RoleCounts {
    /// In each state.
    states: [u32; TaskState::ALL.len()],
    /// Pending ones that ask for nothing.
    pending_best_effort: u32,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    pub(super) spec: JobSpec,
    pub(super) phase: JobPhase,
    /// How often policies have restarted it, or a task of it.
    pub(super) restarts: u32,
    pub(super) tasks: Vec<Task>,
    pub(super) counts: [u32; TaskState::ALL.len()],
    /// The numbers of tasks of each role.
    pub(super) role_counts: Vec<RoleCounts>,
    /// The number of tasks of each task group that have succeeded.
    pub(super) succeeded_of_group: Vec<u32>,
    /// The number of tasks for which a policy does something later.
    pub(super) delayed: u32,
    /// Pending tasks that ask for nothing.
    pub(super) pending_best_effort: u32,
    pub(super) usage: Usage,
    /// The pending tasks, by priority and then by index.
    pub(super) pending: BTreeSet<(Reverse<i32>, u32)>,
    pub(super) has_topology: bool,
}

impl Job {
    /// Returns the job as it was submitted.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Returns whether it, or a task group of it, says in which domains its tasks are to be.
    #[must_use]
    pub fn has_topology(&self) -> bool {
        self.has_topology
    }

    /// Returns its phase.
    #[must_use]
    pub fn phase(&self) -> JobPhase {
        self.phase
    }

    /// Returns how often policies have restarted it, or a task of it.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns its tasks by index.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the number of its tasks in a state.
    #[must_use]
    pub fn count(&self, state: TaskState) -> u32 {
        self.counts[state.index()]
    }

    /// Returns the number of tasks of a role in a state.
    #[must_use]
    pub fn role_count(&self, role: usize, state: TaskState) -> u32 {
        self.role_counts[role].states[state.index()]
    }

    /// Returns the number of pending tasks that ask for nothing.
    #[must_use]
    pub fn pending_best_effort(&self) -> u32 {
        self.pending_best_effort
    }

    /// Returns whether it has pending tasks that ask for something.
    #[must_use]
    pub fn asks_for_something(&self) -> bool {
        self.pending.len() > self.pending_best_effort as usize
    }

    /// Returns the number of pending tasks of a role that ask for nothing.
    #[must_use]
    pub fn role_pending_best_effort(&self, role: usize) -> u32 {
        self.role_counts[role].pending_best_effort
    }

    /// Returns the number of tasks that have what they need: they hold it, or have succeeded.
    #[must_use]
    pub fn ready_tasks(&self) -> u32 {
        let states =
            TaskState::ALL.into_iter().filter(|state| state.holds() || *state == TaskState::Succeeded);
        states.map(|state| self.count(state)).sum()
    }

    /// Returns the number of tasks that have ended.
    #[must_use]
    pub fn ended_tasks(&self) -> usize {
        (self.count(TaskState::Succeeded) + self.count(TaskState::Failed)) as usize
    }

    /// Returns whether all of its tasks have ended, and no policy does anything later.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended_tasks() == self.tasks.len() && self.delayed == 0
    }

    /// Returns the phase that the job has by the states of its tasks: it is over if all of them have ended, and has
    /// restarted if all of them are pending.
    pub(super) fn phase_by_tasks(&self) -> JobPhase {
        match self.phase {
            JobPhase::Restarting if self.pending.len() == self.tasks.len() => self.spec.phase,
            phase if phase.is_end() || phase == JobPhase::Restarting || !self.has_ended() => phase,
            _ => phase_of_ended(&self.spec, self.count(TaskState::Succeeded), |role| {
                self.role_count(role, TaskState::Succeeded)
            }),
        }
    }

    /// Returns what its tasks use.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns its pending tasks, first those of the highest priority.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.pending.iter().map(|&(_, index)| index)
    }
}

impl Job {
    /// Adds a task as it is to the sums.
    pub(super) fn enter(&mut self, index: u32) {
        let task = &self.tasks[index as usize];
        self.counts[task.state.index()] += 1;
        let of_role = &mut self.role_counts[task.role as usize];
        of_role.states[task.state.index()] += 1;
        self.succeeded_of_group[task.group as usize] += u32::from(task.state == TaskState::Succeeded);
        self.delayed += u32::from(task.delayed.is_some());
        self.usage.enter(task.state, &task.class.amounts);
        if task.state == TaskState::Pending {
            let is_best_effort = u32::from(task.class.is_best_effort());
            self.pending_best_effort += is_best_effort;
            of_role.pending_best_effort += is_best_effort;
            let fresh = self.pending.insert((Reverse(task.priority), index));
            assert!(fresh, "task {index} is pending twice");
        }
    }

    /// Removes a task as it is from the sums.
    pub(super) fn leave(&mut self, index: u32) {
        let task = &self.tasks[index as usize];
        self.counts[task.state.index()] -= 1;
        let of_role = &mut self.role_counts[task.role as usize];
        of_role.states[task.state.index()] -= 1;
        self.succeeded_of_group[task.group as usize] -= u32::from(task.state == TaskState::Succeeded);
        self.delayed -= u32::from(task.delayed.is_some());
        self.usage.leave(task.state, &task.class.amounts);
        if task.state == TaskState::Pending {
            let is_best_effort = u32::from(task.class.is_best_effort());
            self.pending_best_effort -= is_best_effort;
            of_role.pending_best_effort -= is_best_effort;
            let known = self.pending.remove(&(Reverse(task.priority), index));
            assert!(known, "task {index} is pending and not listed");
        }
    }
}
