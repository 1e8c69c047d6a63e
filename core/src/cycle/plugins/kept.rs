//! What queues keep when others take from them.

use std::collections::BTreeMap;

use super::Facts;
use crate::fairness::Amounts;
use crate::jobs::{QueueId, TaskId};

/// What queues, and those that contain them, have left without the victims so far.
pub(super) struct Kept {
    /// The queues that contain the task for which others are evicted. What it takes stays within them.
    takers: Vec<QueueId>,
    left: BTreeMap<QueueId, Amounts>,
}

impl Kept {
    /// Returns what queues have before anything is evicted for a task.
    pub(super) fn before(facts: Facts<'_>, task: TaskId) -> Self {
        let takers = facts.jobs.chain(facts.jobs.job(task.job).spec().queue).collect();
        Self { takers, left: BTreeMap::new() }
    }

    /// Returns a queue and those that contain it but not the task for which others are evicted.
    fn givers(&self, facts: Facts<'_>, queue: QueueId) -> Vec<QueueId> {
        facts.jobs.chain(queue).take_while(|queue| !self.takers.contains(queue)).collect()
    }

    /// Returns what a queue has left.
    pub(super) fn of(&mut self, facts: Facts<'_>, queue: QueueId) -> &mut Amounts {
        self.left.entry(queue).or_insert_with(|| facts.jobs.queue(queue).usage().planned())
    }

    /// Returns whether a queue and those that contain it keep what they are guaranteed if the queue gives up some amounts. Kinds
    /// of which it gives up nothing do not count.
    pub(super) fn keeps_guarantees(&mut self, facts: Facts<'_>, queue: QueueId, amounts: &Amounts) -> bool {
        self.givers(facts, queue).into_iter().all(|queue| {
            let guarantee = &facts.jobs.queue(queue).spec().guarantee;
            if guarantee.is_zero() {
                return true;
            }
            let left = self.of(facts, queue);
            amounts.iter().all(|(dim, amount)| left.get(dim) - amount >= guarantee.get(dim))
        })
    }

    /// Has a queue give up some amounts.
    pub(super) fn give_up(&mut self, facts: Facts<'_>, queue: QueueId, amounts: &Amounts) {
        for queue in self.givers(facts, queue) {
            let left = self.of(facts, queue);
            *left = left.minus_or_zero(amounts);
        }
    }
}
