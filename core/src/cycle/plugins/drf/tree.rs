//! Queues by their weighted dominant shares along the tree (Volcano's plugin `drf` with a hierarchy).
//!
//! The order follows what queues use now, scaled at each level ([`TreeShare`]). Who may reclaim follows what each queue
//! deserves of the cluster by the same fairness. That depends on the demand only. So a queue that gives never falls below
//! what would let it take, and evictions end.

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use super::super::{EXPLAINED_MAX, siblings};
use super::Facts;
use crate::fairness::{Amounts, Dim, DrfClaim, Share, TreeShare, dominant_share, drf_division};
use crate::jobs::{QueueId, TaskId};

#[derive(Default)]
pub(super) struct Tree {
    /// What each queue deserves, by id.
    deserved: Vec<Amounts>,
    shares: RefCell<Shares>,
}

/// The shares of queues, as far as they were asked for.
#[derive(Default)]
struct Shares {
    by_queue: BTreeMap<QueueId, Known>,
    /// The kinds of which nothing is free any longer, as of the last change that was seen.
    used_up: Vec<Dim>,
    seen: Option<u64>,
    /// The number of times that these kinds became others.
    version: u64,
}

/// A share, and the state for which it holds.
struct Known {
    share: TreeShare,
    changed: u64,
    version: u64,
}

impl Shares {
    /// Finds the kinds that are used up, if anything has changed.
    fn follow(&mut self, facts: Facts<'_>) {
        let root = facts.jobs.queue(QueueId::ROOT);
        if self.seen == Some(root.changed()) {
            return;
        }
        self.seen = Some(root.changed());
        let planned = root.usage().planned();
        let is_used_up = |&(dim, whole): &(Dim, i64)| planned.get(dim) >= whole;
        let used_up: Vec<Dim> = facts.total.iter().filter(is_used_up).map(|(dim, _)| dim).collect();
        if used_up != self.used_up {
            self.used_up = used_up;
            self.version += 1;
        }
    }

    /// Brings the share of a queue, and of those below it, up to date.
    fn update(&mut self, facts: Facts<'_>, queue: QueueId) {
        let of = facts.jobs.queue(queue);
        let changed = of.changed();
        let version = self.version;
        let is_known = |known: &Known| known.changed == changed && known.version == version;
        if self.by_queue.get(&queue).is_some_and(is_known) {
            return;
        }
        let share = if of.is_leaf() {
            TreeShare::leaf(&of.usage().planned(), facts.total, !self.is_served(facts, queue))
        } else {
            of.children().iter().for_each(|&child| self.update(facts, child));
            let child =
                |&child: &QueueId| (&self.by_queue[&child].share, facts.jobs.queue(child).spec().weight);
            TreeShare::of_children(&of.children().iter().map(child).collect::<Vec<_>>())
        };
        self.by_queue.insert(queue, Known { share, changed, version });
    }

    /// Returns whether something can be given to a queue: it has an admitted job that asks for nothing that is used up. A
    /// queue with too many jobs to look at counts as one of these.
    fn is_served(&self, facts: Facts<'_>, queue: QueueId) -> bool {
        let mut looked_at = 0;
        facts.jobs.queue(queue).waiting().any(|job| {
            looked_at += 1;
            let job = facts.jobs.job(job);
            let lacks = |&dim: &Dim| job.usage().pending.get(dim) > 0;
            looked_at > EXPLAINED_MAX || job.phase().is_admitted() && !self.used_up.iter().any(lacks)
        })
    }
}

impl Tree {
    /// Divides the cluster among the queues below the root, and what each of them deserves among those below it.
    pub(super) fn open(&mut self, facts: Facts<'_>) {
        *self.shares.get_mut() = Shares::default();
        let queues: Vec<_> = facts.jobs.queues().collect();
        let mut demands = vec![Amounts::zero(); queues.len()];
        // Children come after their parents.
        for (id, queue) in queues.iter().rev() {
            let at = id.0 as usize;
            if queue.is_leaf() {
                demands[at] = queue.usage().demand();
            }
            demands[at] = queue.spec().capability.cut(&demands[at]);
            if *id != QueueId::ROOT {
                let demand = demands[at].clone();
                demands[queue.spec().parent.0 as usize].add(&demand);
            }
        }
        self.deserved = vec![Amounts::zero(); queues.len()];
        self.deserved[0] = facts.total.clone();
        for (id, queue) in &queues {
            let spec = |child: &QueueId| facts.jobs.queue(*child).spec();
            let claim = |child: &QueueId| DrfClaim {
                weight: spec(child).weight,
                demand: demands[child.0 as usize].clone(),
            };
            let claims: Vec<DrfClaim> = queue.children().iter().map(claim).collect();
            let divided = drf_division(&self.deserved[id.0 as usize], facts.total, &claims);
            for (child, (claim, divided)) in queue.children().iter().zip(claims.iter().zip(divided)) {
                self.deserved[child.0 as usize] = divided.max(&spec(child).guarantee.min(&claim.demand));
            }
        }
    }

    pub(super) fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        self.deserved.get(queue.0 as usize)
    }

    /// Returns a number that is another one after the shares of many queues have changed at once.
    pub(super) fn version(&self, facts: Facts<'_>) -> u64 {
        let mut shares = self.shares.borrow_mut();
        shares.follow(facts);
        shares.version
    }

    /// Queues of a higher priority come first, then those that are not saturated, then those with the smaller share for
    /// their weight. Queues of two parents are ordered as those above them that have one parent.
    pub(super) fn compare(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let Some((a, b)) = siblings(facts, a, b) else { return Ordering::Equal };
        let [mine, theirs] = [a, b].map(|queue| facts.jobs.queue(queue).spec());
        Reverse(mine.priority).cmp(&Reverse(theirs.priority)).then_with(|| {
            let mut shares = self.shares.borrow_mut();
            shares.follow(facts);
            [a, b].into_iter().for_each(|queue| shares.update(facts, queue));
            let [a, b] = [a, b].map(|queue| &shares.by_queue[&queue].share);
            let by_share = || a.share().cmp_weighted(mine.weight, &b.share(), theirs.weight);
            a.is_saturated().cmp(&b.is_saturated()).then_with(by_share)
        })
    }

    /// Returns the dominant share of what a queue deserves.
    fn fair(&self, facts: Facts<'_>, queue: QueueId) -> Share {
        self.deserved(queue).map_or(Share::ZERO, |deserved| dominant_share(deserved, facts.total))
    }

    /// Returns those tasks that may be evicted for one of another queue. Its queue has less than it deserves, and gets no
    /// more than that. The queues that give keep what they deserve.
    pub(super) fn victims(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Vec<TaskId> {
        let jobs = facts.jobs;
        let queue = jobs.job(task.job).spec().queue;
        let fair = self.fair(facts, queue);
        let now = facts.planned(queue);
        let then = now.plus(&jobs.task(task).class.amounts);
        if dominant_share(&now, facts.total) >= fair || dominant_share(&then, facts.total) > fair {
            return Vec::new();
        }
        let mut left: BTreeMap<QueueId, Amounts> = BTreeMap::new();
        let mut victims = Vec::new();
        for &victim in candidates {
            let queue = jobs.job(victim.job).spec().queue;
            let kept = left.entry(queue).or_insert_with(|| facts.planned(queue));
            let without = kept.minus_or_zero(&jobs.task(victim).class.amounts);
            if dominant_share(&without, facts.total) >= self.fair(facts, queue) {
                *kept = without;
                victims.push(victim);
            }
        }
        victims
    }
}
