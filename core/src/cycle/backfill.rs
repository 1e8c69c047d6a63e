//! Places tasks that ask for nothing.

use std::sync::Arc;

use super::trial::Cycle;
use crate::jobs::{JobId, PendingReason, QueueId};

impl Cycle<'_> {
    /// Places the pending tasks that ask for nothing, each by itself. They need no turn: they take nothing from anyone.
    pub(super) fn backfill(&mut self) {
        let queues: Vec<QueueId> = self.jobs.queues().map(|(id, _)| id).collect();
        for queue in queues {
            let mut jobs: Vec<JobId> = self.jobs.queue(queue).waiting().collect();
            jobs.retain(|&job| {
                let of = self.jobs.job(job);
                of.phase().is_admitted() && of.pending_best_effort() > 0
            });
            jobs.sort_by(|&a, &b| self.compare_jobs(a, b));
            for job in jobs {
                if !self.tiers().is_valid(self.facts(), job) {
                    continue;
                }
                for task in self.pending_tasks(job, true) {
                    // They take no amounts, and count as allocations.
                    let class = Arc::clone(&self.jobs.task(task).class);
                    if self.cap_in_the_way(queue, &class, true).is_some() {
                        self.tries.note(job, PendingReason::Cap);
                        break;
                    }
                    let savepoint = self.savepoint();
                    let is_placed = self.allocate_one(task);
                    self.keep_if(is_placed, savepoint);
                    if !is_placed {
                        self.tries.note(job, PendingReason::NoNode);
                    }
                }
            }
        }
    }
}
