//! What the tasks of a job or a queue use.

use super::TaskState;
use crate::fairness::Amounts;

/// Sums over tasks by what they have. A task counts in at most one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What tasks hold that keep it: allocated, binding, bound or running.
    pub held: Amounts,
    /// What tasks have claimed of capacity that is being released.
    pub pipelined: Amounts,
    /// What evicted tasks hold in their grace period.
    pub releasing: Amounts,
    /// What pending tasks ask for.
    pub pending: Amounts,
    /// The number of tasks in each of these sums but the last.
    pub(super) counts: AllocationCounts,
}

/// How many tasks have an allocation or a claim, by what they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllocationCounts {
    held: u64,
    pipelined: u64,
    releasing: u64,
}

impl Usage {
    /// Returns what is used in the plan: held or claimed. What is being released does not count.
    #[must_use]
    pub fn planned(&self) -> Amounts {
        self.held.plus(&self.pipelined)
    }

    /// Returns what is used in the plan and asked for in addition.
    #[must_use]
    pub fn request(&self) -> Amounts {
        self.planned().plus(&self.pending)
    }

    /// Returns what is used in the plan, asked for in addition, or being released. Tasks that are evicted want to run
    /// again, so an eviction does not change it.
    #[must_use]
    pub fn demand(&self) -> Amounts {
        self.request().plus(&self.releasing)
    }

    /// Returns what is not free because of it: held, or being released.
    #[must_use]
    pub fn in_use(&self) -> Amounts {
        self.held.plus(&self.releasing)
    }

    /// Returns the number of tasks that hold or claim something.
    #[must_use]
    pub fn planned_allocations(&self) -> u64 {
        self.counts.held + self.counts.pipelined
    }

    /// Returns the number of tasks that hold or claim something, or release it.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.planned_allocations() + self.counts.releasing
    }

    /// Adds what others use.
    pub(super) fn add(&mut self, other: &Self) {
        self.counts.held += other.counts.held;
        self.counts.pipelined += other.counts.pipelined;
        self.counts.releasing += other.counts.releasing;
        self.held.add(&other.held);
        self.pipelined.add(&other.pipelined);
        self.releasing.add(&other.releasing);
        self.pending.add(&other.pending);
    }

    fn count_of_state(&mut self, state: TaskState) -> Option<&mut u64> {
        match state {
            TaskState::Pipelined => Some(&mut self.counts.pipelined),
            TaskState::Releasing => Some(&mut self.counts.releasing),
            state if state.holds() => Some(&mut self.counts.held),
            _ => None,
        }
    }

    fn of_state(&mut self, state: TaskState) -> Option<&mut Amounts> {
        match state {
            TaskState::Pending => Some(&mut self.pending),
            TaskState::Pipelined => Some(&mut self.pipelined),
            TaskState::Releasing => Some(&mut self.releasing),
            state if state.holds() => Some(&mut self.held),
            _ => None,
        }
    }

    /// Adds a task.
    pub(super) fn enter(&mut self, state: TaskState, amounts: &Amounts) {
        if let Some(sum) = self.of_state(state) {
            sum.add(amounts);
        }
        if let Some(count) = self.count_of_state(state) {
            *count += 1;
        }
    }

    /// Removes a task.
    ///
    /// # Panics
    /// If less is there than the task has.
    pub(super) fn leave(&mut self, state: TaskState, amounts: &Amounts) {
        if let Some(sum) = self.of_state(state) {
            sum.subtract(amounts);
        }
        if let Some(count) = self.count_of_state(state) {
            *count -= 1;
        }
    }
}
