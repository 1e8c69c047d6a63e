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

    /// Returns what a queue has left.
    pub(super) fn of(&mut self, facts: Facts<'_>, queue: QueueId) -> &mut Amounts {
        self.left.entry(queue).or_insert_with(|| facts.jobs.queue(queue).usage().planned())
    }

    /// Has a queue give up some amounts, if it and those that contain it then keep what they are guaranteed of these kinds. Returns
    /// whether it did.
    pub(super) fn give_up(&mut self, facts: Facts<'_>, queue: QueueId, amounts: &Amounts) -> bool {
        let givers: Vec<QueueId> =
            facts.jobs.chain(queue).take_while(|queue| !self.takers.contains(queue)).collect();
        let keeps = givers.iter().all(|&queue| {
            let guarantee = &facts.jobs.queue(queue).spec().guarantee;
            let left = self.of(facts, queue);
            guarantee.is_zero()
                || amounts.iter().all(|(dim, amount)| left.get(dim) - amount >= guarantee.get(dim))
        });
        for queue in givers.into_iter().filter(|_| keeps) {
            let left = self.of(facts, queue);
            *left = left.minus_or_zero(amounts);
        }
        keeps
    }
}
