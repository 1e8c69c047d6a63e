//! Queues and jobs are ordered by YARN's fair shares, and jobs that starve take from those above their shares.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Facts, Plugin};
use crate::cycle::shares::{is_below, measure};
use crate::fairness::{Amounts, Schedulable, by_fair_share};
use crate::jobs::{JobId, QueueId, QueueOrdering, TaskId};
use crate::planted::{PlantedBug, is_planted};
use crate::time::Time;

pub(super) struct ByFairShare;

/// What jobs and queues keep of what they use, as victims are chosen.
#[derive(Default)]
struct Kept {
    of_jobs: BTreeMap<JobId, Amounts>,
    of_queues: BTreeMap<QueueId, Amounts>,
}

impl Kept {
    /// Takes a task from what its job and its queue keep, if both then have what is theirs.
    fn spares(&mut self, facts: Facts<'_>, victim: TaskId, of_own_queue: bool) -> bool {
        let amounts = &facts.jobs.task(victim).class.amounts;
        let job = facts.jobs.job(victim.job);
        let queue = facts.jobs.queue(job.spec().queue);
        let of_job = self.of_jobs.entry(victim.job).or_insert_with(|| job.usage().planned());
        let of_queue = self.of_queues.entry(job.spec().queue).or_insert_with(|| queue.usage().planned());
        let job_keeps = of_job.minus_or_zero(amounts);
        let queue_keeps = of_queue.minus_or_zero(amounts);
        let is_below =
            is_below(queue.spec().ordering, &job_keeps, &facts.fair_share(victim.job), facts.total);
        if is_below && !is_planted(PlantedBug::FairShareNotKept) {
            return false;
        }
        let least = queue.spec().guarantee.min(&queue.usage().demand());
        if !of_own_queue && amounts.iter().any(|(dim, _)| queue_keeps.get(dim) < least.get(dim)) {
            return false;
        }
        *of_job = job_keeps;
        *of_queue = queue_keeps;
        true
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

    /// A task may be evicted if its job keeps its fair share without it. If another queue takes, its queue keeps its
    /// guarantee, too: otherwise, two queues could evict each other in turns.
    fn evictable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let queue_of = |task: TaskId| facts.jobs.job(task.job).spec().queue;
        let mut kept = Kept::default();
        let is_spare = |victim: &TaskId| kept.spares(facts, *victim, queue_of(*victim) == queue_of(task));
        Some(candidates.iter().copied().filter(is_spare).collect())
    }
}
