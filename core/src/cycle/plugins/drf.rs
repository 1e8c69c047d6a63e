//! Jobs with a smaller dominant share come first, and preempt those that keep a larger one (Dominant Resource
//! Fairness, Ghodsi et al., NSDI 2011). With a hierarchy, the same holds for queues (`tree`).

mod tree;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Facts, Plugin};
use crate::fairness::{Amounts, Share, dominant_share};
use crate::jobs::{JobId, QueueId, TaskId};
use tree::Tree;

#[derive(Default)]
pub(super) struct Drf {
    /// The queues, if they are ordered by shares, too.
    tree: Option<Tree>,
}

impl Drf {
    pub(super) fn new(is_hierarchical: bool) -> Self {
        Self { tree: is_hierarchical.then(Tree::default) }
    }
}

fn share(facts: Facts<'_>, job: JobId) -> Share {
    dominant_share(&facts.jobs.job(job).usage().planned(), facts.total)
}

impl Plugin for Drf {
    fn open(&mut self, facts: Facts<'_>) {
        if let Some(tree) = &mut self.tree {
            tree.open(facts);
        }
    }

    fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        self.tree.as_ref().map_or(Ordering::Equal, |tree| tree.compare(facts, a, b))
    }

    fn order_version(&self, facts: Facts<'_>) -> u64 {
        self.tree.as_ref().map_or(0, |tree| tree.version(facts))
    }

    /// Jobs of different queues are ordered as their queues first.
    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let [mine, theirs] = [a, b].map(|job| facts.jobs.job(job).spec().queue);
        self.queue_order(facts, mine, theirs).then_with(|| share(facts, a).cmp(&share(facts, b)))
    }

    /// A task may be evicted if its job keeps a larger share without it than the preemptor's job has with its task.
    /// A share that would be equal is not enough: otherwise, two jobs could evict each other in turns.
    fn preemptable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let jobs = facts.jobs;
        let then = jobs.job(task.job).usage().planned().plus(&jobs.task(task).class.amounts);
        let mine = dominant_share(&then, facts.total);
        let mut left: BTreeMap<JobId, Amounts> = BTreeMap::new();
        let mut victims = Vec::new();
        for &victim in candidates {
            let kept = left.entry(victim.job).or_insert_with(|| jobs.job(victim.job).usage().planned());
            let without = kept.minus_or_zero(&jobs.task(victim).class.amounts);
            if mine < dominant_share(&without, facts.total) {
                *kept = without;
                victims.push(victim);
            }
        }
        Some(victims)
    }

    fn reclaimable(&self, facts: Facts<'_>, task: TaskId, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        Some(self.tree.as_ref()?.victims(facts, task, candidates))
    }

    fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        self.tree.as_ref()?.deserved(queue)
    }
}
