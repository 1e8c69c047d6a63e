//! When the tasks that run must have ended, by what they state.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::{Task, TaskId};
use crate::time::Time;

/// The tasks whose run time is being counted, in the order of their ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ends(BTreeSet<(Time, TaskId)>);

/// Returns the entry of a task.
fn entry(id: TaskId, task: &Task) -> Option<(Time, TaskId)> {
    task.state.is_bound().then_some(())?;
    Some((task.expected_end()?, id))
}

impl Ends {
    /// Follows a task that was `before` and is `now`.
    pub(super) fn follow(&mut self, id: TaskId, before: &Task, now: &Task) {
        if let Some(entry) = entry(id, before) {
            let known = self.0.remove(&entry);
            assert!(known, "task {id} runs and its end is not listed");
        }
        if let Some(entry) = entry(id, now) {
            let fresh = self.0.insert(entry);
            assert!(fresh, "the end of task {id} is listed twice");
        }
    }

    /// Returns the ends after one, or all of them, in order.
    pub(super) fn after(&self, after: Option<(Time, TaskId)>) -> impl Iterator<Item = (Time, TaskId)> + '_ {
        self.0.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)).copied()
    }
}
