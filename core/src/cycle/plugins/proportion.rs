//! Queues deserve a part of the cluster by weight (Volcano's plugin `proportion`).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use super::kept::Kept;
use super::{EXPLAINED_MAX, Facts, Plugin, cap_limits, elastic, inqueue, inqueue_now};
use crate::cycle::limit::Limit;
use crate::cycle::plugin::{Used, Vote};
use crate::fairness::{Amounts, Caps, Dim, QueueClaim, Share, deserved, real_caps};
use crate::jobs::{Capped, JobId, QueueId, QueueRule, TaskClass, TaskId};

#[derive(Default)]
pub(super) struct Proportion {
    queues: BTreeMap<QueueId, Division>,
}

struct Division {
    deserved: Amounts,
    cap: Caps,
    /// What admitted jobs were promised and do not use yet.
    inqueue: Amounts,
}

impl Proportion {
    fn of(&self, queue: QueueId) -> Option<&Division> {
        self.queues.get(&queue)
    }

    /// Divides what is available among queues of one parent.
    fn divide(&mut self, facts: Facts<'_>, available: &Amounts, children: &[QueueId]) {
        for (queue, claim, deserved) in Self::division(facts, available, children, None) {
            let division = Division { deserved, cap: claim.cap, inqueue: inqueue(facts, queue) };
            self.queues.insert(queue, division);
        }
    }

    /// Returns what each of the queues of one parent claims and deserves. The capability of `uncapped` does not count.
    fn division(
        facts: Facts<'_>,
        available: &Amounts,
        children: &[QueueId],
        uncapped: Option<QueueId>,
    ) -> Vec<(QueueId, QueueClaim, Amounts)> {
        let spec = |queue: QueueId| facts.jobs.queue(queue).spec();
        let mut guaranteed = Amounts::zero();
        children.iter().for_each(|&queue| guaranteed.add(&spec(queue).guarantee));
        let with_jobs: Vec<QueueId> =
            children.iter().copied().filter(|&queue| facts.jobs.has_jobs(queue)).collect();
        let no_caps = Caps::none();
        let capability =
            |queue: QueueId| if uncapped == Some(queue) { &no_caps } else { &spec(queue).capability };
        let claim = |&queue: &QueueId| QueueClaim {
            weight: spec(queue).weight,
            cap: real_caps(available, &guaranteed, &spec(queue).guarantee, capability(queue)),
            request: facts.jobs.queue(queue).usage().request(),
            guarantee: spec(queue).guarantee.clone(),
        };
        let claims: Vec<QueueClaim> = with_jobs.iter().map(claim).collect();
        let divided = deserved(available, &claims);
        let divided = with_jobs.into_iter().zip(claims).zip(divided);
        divided.map(|((queue, claim), deserved)| (queue, claim, deserved)).collect()
    }

    /// Returns what a queue will deserve if the cluster has `total` and no capability bounds it. Where too many queues divide it, what it deserves
    /// as of the last cycle.
    fn deserved_of(&self, facts: Facts<'_>, total: &Amounts, queue: QueueId) -> Option<Amounts> {
        let mut way: Vec<QueueId> = facts.jobs.chain(queue).collect();
        way.reverse();
        let mut available = total.clone();
        for pair in way.windows(2) {
            let children = facts.jobs.queue(pair[0]).children();
            if children.len() > EXPLAINED_MAX {
                return self.of(queue).map(|division| division.deserved.clone());
            }
            let divided = Self::division(facts, &available, children, Some(pair[1]));
            available = divided.into_iter().find(|(of, ..)| *of == pair[1]).map(|(.., deserved)| deserved)?;
        }
        Some(available)
    }

    fn share(&self, facts: Facts<'_>, queue: QueueId) -> Share {
        let Some(division) = self.of(queue) else { return Share::ZERO };
        let used = facts.jobs.queue(queue).usage().planned();
        used.iter()
            .map(|(dim, used)| Share::of(used, division.deserved.get(dim)))
            .max()
            .unwrap_or(Share::ZERO)
    }
}

impl Plugin for Proportion {
    /// Divides the cluster among the queues below the root, and what each of them deserves among those below it.
    /// Queues without jobs take no part.
    fn open(&mut self, facts: Facts<'_>) {
        self.queues.clear();
        for (id, queue) in facts.jobs.queues() {
            let available = match self.of(id) {
                Some(division) => division.deserved.clone(),
                None if id == QueueId::ROOT => facts.total.clone(),
                None => continue,
            };
            self.divide(facts, &available, queue.children());
        }
    }

    fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let priority = |queue| Reverse(facts.jobs.queue(queue).spec().priority);
        priority(a).cmp(&priority(b)).then_with(|| self.share(facts, a).cmp(&self.share(facts, b)))
    }

    fn overused(&self, facts: Facts<'_>, queue: QueueId) -> bool {
        let used = facts.jobs.queue(queue).usage().planned();
        self.of(queue).is_some_and(|division| division.deserved.is_within(&used) && !used.is_zero())
    }

    fn allocatable(&self, _: Facts<'_>, used: Used<'_>, queue: QueueId, class: &TaskClass) -> bool {
        let then = used(queue).plus(&class.amounts);
        self.of(queue).is_none_or(|division| then.is_within_for(&division.deserved, &class.amounts))
    }

    fn limits(&self, facts: Facts<'_>, total: &Amounts, queue: QueueId, asked: &Amounts) -> Vec<Limit> {
        let Some(deserved) = self.deserved_of(facts, total, queue) else { return Vec::new() };
        let used = facts.planned(queue);
        let limit = |(dim, asked): (Dim, i64)| Limit {
            rule: QueueRule::Deserved,
            queue,
            of: Capped::Resource(dim),
            bound: deserved.get(dim),
            used: used.get(dim),
            asked,
        };
        asked.iter().map(limit).filter(|limit| limit.excess() > 0).collect()
    }

    fn admission_limits(&self, facts: Facts<'_>, job: JobId) -> Vec<Limit> {
        let job = facts.jobs.job(job);
        let queue = job.spec().queue;
        let (Some(least), Some(division)) = (&job.spec().min_resources, self.of(queue)) else {
            return Vec::new();
        };
        if facts.jobs.queue(queue).jobs().len() > EXPLAINED_MAX {
            return Vec::new();
        }
        let now = inqueue_now(facts, std::iter::once(queue));
        let used = facts.planned(queue).plus(now.as_ref().unwrap_or(&division.inqueue));
        let used = used.minus_or_zero(&elastic(facts, queue));
        cap_limits(facts, queue, &division.cap, &used, least)
    }

    fn preemptive(&self, facts: Facts<'_>, queue: QueueId, class: &TaskClass) -> bool {
        self.allocatable(facts, &|queue| facts.planned(queue), queue, class)
    }

    /// A task may be evicted while its queue uses more than it deserves of something that the task has, if its queue and all that
    /// contain it keep what they are guaranteed.
    ///
    /// Volcano does not look at guarantees here. What a queue deserves is at least its guarantee, but the last task that goes
    /// may take it below both.
    fn reclaimable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let mut kept = Kept::before(facts, task);
        let mut victims = Vec::new();
        for &victim in candidates {
            let queue = facts.jobs.job(victim.job).spec().queue;
            let Some(division) = self.of(queue) else { continue };
            let amounts = &facts.jobs.task(victim).class.amounts;
            let has_too_much = !kept.of(facts, queue).is_within_for(&division.deserved, amounts);
            if has_too_much && kept.give_up(facts, queue, amounts) {
                victims.push(victim);
            }
        }
        Some(victims)
    }

    fn enqueueable(&self, facts: Facts<'_>, job: JobId) -> Vote {
        let job = facts.jobs.job(job);
        let queue = job.spec().queue;
        let (Some(least), Some(division)) = (&job.spec().min_resources, self.of(queue)) else {
            return Vote::Permit;
        };
        let used = facts.jobs.queue(queue).usage().planned().plus(&division.inqueue);
        let used = used.minus_or_zero(&elastic(facts, queue));
        if division.cap.exceeded(&used, least).is_none() { Vote::Permit } else { Vote::Reject }
    }

    fn enqueued(&mut self, facts: Facts<'_>, job: JobId) {
        let job = facts.jobs.job(job);
        if let (Some(least), Some(division)) =
            (&job.spec().min_resources, self.queues.get_mut(&job.spec().queue))
        {
            division.inqueue.add(least);
        }
    }

    fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        Some(&self.of(queue)?.deserved)
    }
}
