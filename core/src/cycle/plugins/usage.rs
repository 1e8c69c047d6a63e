//! Queues and users that use less and have used less come first (Slurm's fair share with `PriorityDecayHalfLife`, Kueue's
//! admission fair sharing).
//!
//! What counts is the sum of what is used in the plan and what was held on average, with a half-life. So a queue that has
//! used nothing is served until what it uses makes up for what others have used, and then they take turns. Only orders
//! follow it: what queues deserve, and who may be evicted, is about what runs now.

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Facts, Plugin, siblings};
use crate::fairness::{Amounts, Share, dominant_share};
use crate::jobs::{JobId, QueueId};

/// What was held on average, as far as it was asked for. In a cycle it does not change, because no time passes.
#[derive(Default)]
pub(super) struct ByUsage {
    queues: RefCell<BTreeMap<QueueId, Amounts>>,
    users: RefCell<BTreeMap<QueueId, BTreeMap<Arc<str>, Amounts>>>,
}

impl ByUsage {
    fn share_of_queue(&self, facts: Facts<'_>, queue: QueueId) -> Share {
        let mut queues = self.queues.borrow_mut();
        let past = queues.entry(queue).or_insert_with(|| facts.jobs.past_use(queue, facts.now));
        dominant_share(&facts.planned(queue).plus(past), facts.total)
    }

    fn share_of_user(&self, facts: Facts<'_>, queue: QueueId, user: &str) -> Share {
        let mut users = self.users.borrow_mut();
        let of_queue = users.entry(queue).or_default();
        let Some(planned) = facts.jobs.planned_of_user(queue, user) else { return Share::ZERO };
        if !of_queue.contains_key(user) {
            let view = facts.jobs.user(queue, user, facts.now);
            of_queue.insert(user.into(), view.map(|view| view.past).unwrap_or_default());
        }
        dominant_share(&planned.plus(&of_queue[user]), facts.total)
    }
}

impl Plugin for ByUsage {
    fn open(&mut self, _: Facts<'_>) {
        self.queues.get_mut().clear();
        self.users.get_mut().clear();
    }

    /// What was held comes to count less.
    fn is_timed(&self) -> bool {
        true
    }

    /// Queues of a higher priority come first. Then those with the smaller share for their weight. Queues of two parents
    /// are ordered as those above them that have one parent.
    fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let Some((a, b)) = siblings(facts, a, b) else { return Ordering::Equal };
        let [mine, theirs] = [a, b].map(|queue| facts.jobs.queue(queue).spec());
        Reverse(mine.priority).cmp(&Reverse(theirs.priority)).then_with(|| {
            let share = |queue| self.share_of_queue(facts, queue);
            share(a).cmp_weighted(mine.weight, &share(b), theirs.weight)
        })
    }

    /// Jobs of users with a smaller share come first. Jobs of different queues are not compared.
    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let [mine, theirs] = [a, b].map(|job| facts.jobs.job(job).spec());
        if mine.queue != theirs.queue || mine.user == theirs.user {
            return Ordering::Equal;
        }
        let [mine, theirs] = [mine, theirs].map(|job| {
            let user = job.user.as_deref().unwrap_or_default();
            self.share_of_user(facts, job.queue, user)
        });
        mine.cmp(&theirs)
    }
}
