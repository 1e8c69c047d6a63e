//! Jobs are admitted for somewhat more than the cluster has, so that the next ones wait ready.

use super::{Facts, Plugin, inqueue, inqueue_now};
use crate::cycle::limit::Limit;
use crate::cycle::plugin::Vote;
use crate::fairness::Amounts;
use crate::jobs::{Capped, JobId, QueueId, QueueRule};

pub(super) struct Overcommit {
    percent: u32,
    inqueue: Amounts,
}

impl Overcommit {
    pub(super) fn new(percent: u32) -> Self {
        Self { percent, inqueue: Amounts::zero() }
    }

    /// Returns the most for which jobs are admitted.
    fn most(&self, facts: Facts<'_>) -> Amounts {
        let most = |amount: i64| {
            let most = i128::from(amount) * i128::from(self.percent) / 100;
            i64::try_from(most).unwrap_or(i64::MAX)
        };
        facts.total.iter().map(|(dim, amount)| (dim, most(amount))).collect()
    }
}

impl Plugin for Overcommit {
    fn open(&mut self, facts: Facts<'_>) {
        self.inqueue = Amounts::zero();
        facts.jobs.queues().for_each(|(id, _)| self.inqueue.add(&inqueue(facts, id)));
    }

    fn enqueueable(&self, facts: Facts<'_>, job: JobId) -> Vote {
        let Some(least) = &facts.jobs.job(job).spec().min_resources else { return Vote::Permit };
        let most = self.most(facts);
        let used = facts.jobs.queue(QueueId::ROOT).usage().planned().plus(&self.inqueue);
        if used.plus(least).is_within_for(&most, least) { Vote::Permit } else { Vote::Reject }
    }

    fn admission_limits(&self, facts: Facts<'_>, job: JobId) -> Vec<Limit> {
        let Some(least) = &facts.jobs.job(job).spec().min_resources else { return Vec::new() };
        let most = self.most(facts);
        let all = inqueue_now(facts, facts.jobs.queues().map(|(id, _)| id));
        let used = facts.planned(QueueId::ROOT).plus(all.as_ref().unwrap_or(&self.inqueue));
        let limit = |(dim, asked)| Limit {
            rule: QueueRule::Overcommit,
            queue: QueueId::ROOT,
            of: Capped::Resource(dim),
            bound: most.get(dim),
            used: used.get(dim),
            asked,
        };
        least.iter().map(limit).filter(|limit| limit.excess() > 0).collect()
    }

    fn enqueued(&mut self, facts: Facts<'_>, job: JobId) {
        if let Some(least) = &facts.jobs.job(job).spec().min_resources {
            self.inqueue.add(least);
        }
    }
}
