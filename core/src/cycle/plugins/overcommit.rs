//! Jobs are admitted for somewhat more than the cluster has, so that the next ones wait ready.

use super::{Facts, Plugin, inqueue};
use crate::cycle::plugin::Vote;
use crate::fairness::Amounts;
use crate::jobs::{JobId, QueueId};

pub(super) struct Overcommit {
    percent: u32,
    inqueue: Amounts,
}

impl Overcommit {
    pub(super) fn new(percent: u32) -> Self {
        Self { percent, inqueue: Amounts::zero() }
    }
}

impl Plugin for Overcommit {
    fn open(&mut self, facts: Facts<'_>) {
        self.inqueue = Amounts::zero();
        facts.jobs.queues().for_each(|(id, _)| self.inqueue.add(&inqueue(facts, id)));
    }

    fn enqueueable(&self, facts: Facts<'_>, job: JobId) -> Vote {
        let Some(least) = &facts.jobs.job(job).spec().min_resources else { return Vote::Permit };
        let most = |amount: i64| {
            let most = i128::from(amount) * i128::from(self.percent) / 100;
            i64::try_from(most).unwrap_or(i64::MAX)
        };
        let most: Amounts = facts.total.iter().map(|(dim, amount)| (dim, most(amount))).collect();
        let used = facts.jobs.queue(QueueId::ROOT).usage().planned().plus(&self.inqueue);
        if used.plus(least).is_within_for(&most, least) { Vote::Permit } else { Vote::Reject }
    }

    fn enqueued(&mut self, facts: Facts<'_>, job: JobId) {
        if let Some(least) = &facts.jobs.job(job).spec().min_resources {
            self.inqueue.add(least);
        }
    }
}
