//! Orders that change although nothing happens, because past use comes to count less.
//!
//! A cycle that placed nothing tried each job on the same state. Its order matters to dated reservations only. So after
//! such a cycle, another one runs only once these orders are others. They are looked at from time to time, which costs
//! far less than a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::plugin::{Facts, Tiers};
use crate::jobs::{JobId, QueueId};

/// The orders of what waits, by rules whose answers change as time passes. Each entry says whether it is equal to the one
/// before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Orders {
    /// The queues of each parent.
    queues: Vec<Vec<(QueueId, bool)>>,
    /// The users of each queue, each by one of its jobs.
    users: Vec<Vec<(JobId, bool)>>,
}

impl Orders {
    /// Orders the queues and users that wait for something, as of the time of the facts. The rules must be
    /// [opened](Tiers::open_timed) for that time.
    pub(super) fn of_waiting(tiers: &Tiers, facts: Facts<'_>) -> Self {
        let mut siblings: BTreeMap<QueueId, BTreeSet<QueueId>> = BTreeMap::new();
        let mut users: BTreeMap<QueueId, Vec<JobId>> = BTreeMap::new();
        for (leaf, queue) in facts.jobs.queues() {
            let mut jobs: BTreeMap<&str, JobId> = BTreeMap::new();
            for job in queue.waiting() {
                let user = facts.jobs.job(job).spec().user.as_deref();
                jobs.entry(user.unwrap_or_default()).or_insert(job);
            }
            if jobs.is_empty() {
                continue;
            }
            users.insert(leaf, jobs.into_values().collect());
            for queue in facts.jobs.chain(leaf).take_while(|&queue| queue != QueueId::ROOT) {
                siblings.entry(facts.jobs.queue(queue).spec().parent).or_default().insert(queue);
            }
        }
        let of_queues = |queues: BTreeSet<QueueId>| {
            in_order(queues.into_iter().collect(), |&a, &b| tiers.timed_queue_order(facts, a, b))
        };
        let of_users = |jobs: Vec<JobId>| in_order(jobs, |&a, &b| tiers.timed_job_order(facts, a, b));
        Self {
            queues: siblings.into_values().map(of_queues).collect(),
            users: users.into_values().map(of_users).collect(),
        }
    }

    /// Returns whether time can change something: there are two of some kind.
    pub(super) fn can_change(&self) -> bool {
        self.queues.iter().any(|queues| queues.len() > 1) || self.users.iter().any(|users| users.len() > 1)
    }
}

/// Sorts, and says of each whether it is equal to the one before.
fn in_order<T: Copy + Ord>(
    mut all: Vec<T>,
    compare: impl Fn(&T, &T) -> std::cmp::Ordering,
) -> Vec<(T, bool)> {
    all.sort_by(|a, b| compare(a, b).then(a.cmp(b)));
    let is_equal = |at: usize| at > 0 && compare(&all[at - 1], &all[at]).is_eq();
    all.iter().enumerate().map(|(at, &one)| (one, is_equal(at))).collect()
}
