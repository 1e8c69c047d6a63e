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

    /// Adds what others use.
    pub(super) fn add(&mut self, other: &Self) {
        self.held.add(&other.held);
        self.pipelined.add(&other.pipelined);
        self.releasing.add(&other.releasing);
        self.pending.add(&other.pending);
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
    }

    /// Removes a task.
    ///
    /// # Panics
    /// If less is there than the task has.
    pub(super) fn leave(&mut self, state: TaskState, amounts: &Amounts) {
        if let Some(sum) = self.of_state(state) {
            sum.subtract(amounts);
        }
    }
}
