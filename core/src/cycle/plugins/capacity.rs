//! Queues deserve what they are given, in a hierarchy (Volcano's plugin `capacity`).

use std::cmp::{Ordering, Reverse};

use super::kept::Kept;
use super::{EXPLAINED_MAX, Facts, Plugin, cap_limits, elastic, inqueue, inqueue_now};
use crate::cycle::config::Combination;
use crate::cycle::limit::Limit;
use crate::cycle::plugin::{Used, Vote};
use crate::fairness::{Amounts, Caps, Dim, Share, real_caps};
use crate::jobs::{Capped, JobId, QueueId, QueueRule, TaskClass, TaskId};
use crate::planted::{PlantedBug, is_planted};

pub(super) struct Capacity {
    queues: Vec<Bounds>,
    /// Whether one kind within what the queue deserves suffices for it to reclaim, as in Volcano.
    any_kind_suffices: bool,
}

struct Bounds {
    /// What the queue deserves. Of a kind that is not there, it deserves nothing in particular.
    deserved: Amounts,
    cap: Caps,
    inqueue: Amounts,
}

impl Capacity {
    pub(super) fn new(combination: Combination) -> Self {
        Self { queues: Vec::new(), any_kind_suffices: combination == Combination::Volcano }
    }

    fn of(&self, queue: QueueId) -> &Bounds {
        &self.queues[queue.0 as usize]
    }

    /// Returns what others leave a queue and all that contain it if the cluster has `total` and no capability bounds
    /// them. Where too many queues divide one, nothing is known.
    fn left_to(facts: Facts<'_>, total: &Amounts, queue: QueueId) -> Vec<(QueueId, Caps)> {
        let mut way: Vec<QueueId> = facts.jobs.chain(queue).collect();
        way.reverse();
        let mut caps: Vec<(QueueId, Caps)> = vec![(QueueId::ROOT, total.iter().collect())];
        for pair in way.windows(2) {
            let siblings = facts.jobs.queue(pair[0]).children();
            if siblings.len() > EXPLAINED_MAX {
                break;
            }
            let mut guaranteed = Amounts::zero();
            siblings.iter().for_each(|&id| guaranteed.add(&facts.jobs.queue(id).spec().guarantee));
            let (_, above) = caps.last().expect("the root has a cap");
            let available: Amounts = above.iter().collect();
            let spec = facts.jobs.queue(pair[1]).spec();
            let cap = real_caps(&available, &guaranteed, &spec.guarantee, &Caps::none());
            caps.push((pair[1], cap));
        }
        caps
    }

    /// Returns the largest part that a queue uses of something it deserves. A queue that deserves nothing counts as one
    /// that has all it deserves.
    fn share(&self, facts: Facts<'_>, queue: QueueId) -> Share {
        let used = facts.jobs.queue(queue).usage().planned();
        let deserved = &self.of(queue).deserved;
        deserved.iter().map(|(dim, deserved)| Share::of(used.get(dim), deserved)).max().unwrap_or(Share::ONE)
    }
}

impl Plugin for Capacity {
    fn open(&mut self, facts: Facts<'_>) {
        self.queues.clear();
        for (id, queue) in facts.jobs.queues() {
            let spec = queue.spec();
            let mut bounds =
                Bounds { deserved: Amounts::zero(), cap: Caps::none(), inqueue: inqueue(facts, id) };
            if id == QueueId::ROOT {
                bounds.deserved = facts.total.clone();
                bounds.cap = facts.total.iter().collect();
            } else {
                // Parents come before their children.
                let parent = self.of(spec.parent);
                let mut guaranteed = Amounts::zero();
                let siblings = facts.jobs.queue(spec.parent).children();
                siblings.iter().for_each(|&id| guaranteed.add(&facts.jobs.queue(id).spec().guarantee));
                let available: Amounts = parent.cap.iter().collect();
                bounds.cap = real_caps(&available, &guaranteed, &spec.guarantee, &spec.capability);
                let deserved = spec.deserved.clone().unwrap_or_default();
                bounds.deserved = bounds.cap.cut(&deserved).max(&spec.guarantee);
            }
            self.queues.push(bounds);
        }
    }

    fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let priority = |queue| Reverse(facts.jobs.queue(queue).spec().priority);
        let deserves_nothing = |queue| self.of(queue).deserved.is_zero();
        priority(a)
            .cmp(&priority(b))
            .then_with(|| self.share(facts, a).cmp(&self.share(facts, b)))
            .then_with(|| deserves_nothing(a).cmp(&deserves_nothing(b)))
    }

    /// A queue and all queues that contain it stay within their caps.
    fn allocatable(&self, facts: Facts<'_>, used: Used<'_>, queue: QueueId, class: &TaskClass) -> bool {
        let has_room = |queue: QueueId| self.of(queue).cap.exceeded(&used(queue), &class.amounts).is_none();
        facts.jobs.chain(queue).all(has_room)
    }

    /// Of each kind, the bound of the innermost queue that has one.
    fn limits(&self, facts: Facts<'_>, total: &Amounts, queue: QueueId, asked: &Amounts) -> Vec<Limit> {
        let mut limits: Vec<Limit> = Vec::new();
        for (queue, left) in Self::left_to(facts, total, queue).into_iter().rev() {
            let used = facts.planned(queue);
            for (dim, asked) in asked.iter() {
                let Some(bound) = left.get(dim) else { continue };
                let rule = QueueRule::Guarantees;
                let of = Capped::Resource(dim);
                let limit = Limit { rule, queue, of, bound, used: used.get(dim), asked };
                if limit.excess() > 0 && !limits.iter().any(|known| known.of == of) {
                    limits.push(limit);
                }
            }
        }
        limits
    }

    fn admission_limits(&self, facts: Facts<'_>, job: JobId) -> Vec<Limit> {
        let job = facts.jobs.job(job);
        let Some(least) = &job.spec().min_resources else { return Vec::new() };
        let of_queue = |queue: QueueId| {
            if facts.jobs.queue(queue).jobs().len() > EXPLAINED_MAX {
                return Vec::new();
            }
            let bounds = self.of(queue);
            let now = inqueue_now(facts, std::iter::once(queue));
            let used = facts.planned(queue).plus(now.as_ref().unwrap_or(&bounds.inqueue));
            let used = used.minus_or_zero(&elastic(facts, queue));
            cap_limits(facts, queue, &bounds.cap, &used, least)
        };
        facts.jobs.chain(job.spec().queue).flat_map(of_queue).collect()
    }

    /// A queue may reclaim if it then has no more than it deserves. Kinds of which it deserves nothing do not count, but the
    /// task must ask for one of which it deserves something.
    ///
    /// In Volcano, one kind suffices, whatever the queue has of others. Then two queues can take the same task from each other
    /// in turns: each has more than it deserves of what the task mostly takes, and less of another kind.
    fn preemptive(&self, facts: Facts<'_>, queue: QueueId, class: &TaskClass) -> bool {
        let bounds = self.of(queue);
        let used = facts.jobs.queue(queue).usage().planned();
        let is_deserved = |(dim, amount): (Dim, i64)| used.get(dim) + amount <= bounds.deserved.get(dim);
        let mut kinds = class.amounts.iter().filter(|&(dim, _)| bounds.deserved.get(dim) > 0).peekable();
        let may = if self.any_kind_suffices {
            kinds.any(is_deserved)
        } else {
            kinds.peek().is_some() && kinds.all(is_deserved)
        };
        let may = may || is_planted(PlantedBug::ReclaimBeyondDeserved);
        may && bounds.cap.exceeded(&used, &class.amounts).is_none()
    }

    /// A queue does not give up what it deserves for a task that others may take from it at once.
    ///
    /// So tasks keep their places if, with the other task instead, their queue had less than it deserves of some kind, and more
    /// than it deserves of something that the other asks for. One that asks for nothing that its queue deserves counts as the
    /// latter. Otherwise, the queue would reclaim what it gave up, and with it kinds of which it deserves less.
    fn may_give_up(&self, facts: Facts<'_>, task: TaskId, victims: &[TaskId]) -> bool {
        let asked = &facts.jobs.task(task).class.amounts;
        // Nobody reclaims from a task that has nothing.
        if self.any_kind_suffices || asked.is_zero() {
            return true;
        }
        let queue = facts.jobs.job(task.job).spec().queue;
        let deserved = &self.of(queue).deserved;
        let before = facts.jobs.queue(queue).usage().planned();
        let mut given = Amounts::zero();
        victims.iter().for_each(|&victim| given.add(&facts.jobs.task(victim).class.amounts));
        let after = before.minus_or_zero(&given).plus(asked);
        let least = |dim: Dim| before.get(dim).min(deserved.get(dim));
        let mut relevant = asked.iter().filter(|&(dim, _)| deserved.get(dim) > 0).peekable();
        let is_exposed =
            relevant.peek().is_none() || relevant.any(|(dim, _)| after.get(dim) > deserved.get(dim));
        !is_exposed || given.iter().all(|(dim, _)| after.get(dim) >= least(dim))
    }

    /// A task may be evicted if it has something that the other task asks for, and its queue and all that contain it keep their
    /// guarantees. In addition, its queue must deserve nothing of all that the task has, or use more than it deserves: of something that the
    /// task has and the queue deserves, and of something that the task has and the other asks for.
    ///
    /// In Volcano, the first of these suffices. Then queues can take from each other in turns: each has too much of one kind,
    /// and loses another one, of which it deserves more.
    fn reclaimable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let asked = &facts.jobs.task(task).class.amounts;
        let is_wanted = |dim: Dim| self.any_kind_suffices || asked.get(dim) > 0;
        let mut left = Kept::before(facts, task);
        let mut victims = Vec::new();
        for &victim in candidates {
            let queue = facts.jobs.job(victim.job).spec().queue;
            let amounts = &facts.jobs.task(victim).class.amounts;
            let kept = &*left.of(facts, queue);
            let without = kept.minus_or_zero(amounts);
            let deserved = &self.of(queue).deserved;
            let has_too_much = |(dim, _): (Dim, i64)| kept.get(dim) > deserved.get(dim);
            let mut relevant = amounts.iter().filter(|&(dim, _)| deserved.get(dim) > 0).peekable();
            let is_spare = relevant.peek().is_none()
                || relevant.any(has_too_much)
                    && amounts.iter().filter(|&(dim, _)| is_wanted(dim)).any(has_too_much)
                || is_planted(PlantedBug::DeservedReclaimed);
            let serves = amounts.iter().any(|(dim, _)| asked.get(dim) > 0);
            let keeps_its_own = facts.jobs.queue(queue).spec().guarantee.is_within(&without);
            if serves && is_spare && keeps_its_own && left.give_up(facts, queue, amounts) {
                victims.push(victim);
            }
        }
        Some(victims)
    }

    fn enqueueable(&self, facts: Facts<'_>, job: JobId) -> Vote {
        let job = facts.jobs.job(job);
        let Some(least) = &job.spec().min_resources else { return Vote::Permit };
        let fits = facts.jobs.chain(job.spec().queue).all(|queue| {
            let used = facts.jobs.queue(queue).usage().planned().plus(&self.of(queue).inqueue);
            self.of(queue).cap.exceeded(&used.minus_or_zero(&elastic(facts, queue)), least).is_none()
        });
        if fits { Vote::Permit } else { Vote::Reject }
    }

    fn enqueued(&mut self, facts: Facts<'_>, job: JobId) {
        let job = facts.jobs.job(job);
        let Some(least) = &job.spec().min_resources else { return };
        for queue in facts.jobs.chain(job.spec().queue) {
            self.queues[queue.0 as usize].inqueue.add(least);
        }
    }

    fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        Some(&self.of(queue).deserved)
    }
}
