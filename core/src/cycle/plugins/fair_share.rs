//! Queues and jobs are ordered by YARN's fair shares.

use std::cmp::Ordering;

use super::{Facts, Plugin};
use crate::fairness::{Amounts, Dim, Schedulable, by_fair_share};
use crate::jobs::{JobId, QueueId, QueueOrdering};
use crate::time::Time;

pub(super) struct ByFairShare;

/// Returns the resource by which a policy compares usage: `None` for the dominant one.
fn measure(ordering: QueueOrdering) -> Option<Dim> {
    match ordering {
        QueueOrdering::Fair => Some(Dim::MEMORY),
        QueueOrdering::Drf | QueueOrdering::Fifo => None,
    }
}

impl Plugin for ByFairShare {
    /// Queues of one parent are ordered by its policy. Others are ordered as their ancestors below the first common
    /// one.
    fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let ways = [a, b].map(|queue| {
            let mut way: Vec<QueueId> = facts.jobs.chain(queue).collect();
            way.reverse();
            way
        });
        let Some((&a, &b)) = ways[0].iter().zip(&ways[1]).find(|(a, b)| a != b) else {
            return Ordering::Equal;
        };
        let parent = facts.jobs.queue(facts.jobs.queue(a).spec().parent);
        let sums = [a, b].map(|queue| {
            let usage = facts.jobs.queue(queue).usage();
            (usage.planned(), usage.request())
        });
        let [mine, theirs] = [(a, &sums[0]), (b, &sums[1])].map(|(queue, (usage, demand))| {
            let spec = facts.jobs.queue(queue).spec();
            let weight = spec.weight;
            Schedulable {
                usage,
                demand,
                min_share: &spec.guarantee,
                weight,
                start: Time(0),
                name: &spec.name,
            }
        });
        by_fair_share(&mine, &theirs, measure(parent.spec().ordering), facts.total)
    }

    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let [mine, theirs] = [a, b].map(|job| facts.jobs.job(job));
        let ordering = facts.jobs.queue(mine.spec().queue).spec().ordering;
        if ordering == QueueOrdering::Fifo {
            let by_priority = theirs.spec().priority.cmp(&mine.spec().priority);
            return by_priority.then(mine.spec().created.cmp(&theirs.spec().created));
        }
        let sums = [mine, theirs].map(|job| (job.usage().planned(), job.usage().request()));
        let none = Amounts::zero();
        let [mine, theirs] =
            [(mine, &sums[0]), (theirs, &sums[1])].map(|(job, (usage, demand))| Schedulable {
                usage,
                demand,
                min_share: &none,
                weight: 1,
                start: job.spec().created,
                name: &job.spec().name,
            });
        by_fair_share(&mine, &theirs, measure(ordering), facts.total)
    }
}
