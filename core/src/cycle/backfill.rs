//! Places tasks that ask for nothing.
//!
//! A gang may need some of them. Then these are placed [together with all else that it needs](super::best_effort), or nothing
//! is: by whatever action places the others, or here if it has those. What comes in addition is placed one by one.

use std::sync::Arc;

use super::best_effort::Filler;
use super::signature::FailedTogether;
use super::topology::Sight;
use super::trial::Cycle;
use crate::jobs::{JobId, PendingReason, QueueId};

impl Cycle<'_> {
    /// Places the pending tasks that ask for nothing. They need no turn: they take nothing from anyone.
    pub(super) fn backfill(&mut self) {
        let queues: Vec<QueueId> = self.jobs.queues().map(|(id, _)| id).collect();
        let mut failed = FailedTogether::new();
        for queue in queues {
            let mut jobs: Vec<JobId> = self.jobs.queue(queue).waiting().collect();
            jobs.retain(|&job| {
                let of = self.jobs.job(job);
                !job.is_placeholder() && of.phase().is_admitted() && of.pending_best_effort() > 0
            });
            jobs.sort_by(|&a, &b| self.compare_jobs(a, b));
            for job in jobs {
                let is_valid = self.tiers().is_valid(self.facts(), job);
                if is_valid && (self.has_enough(job) || self.complete_gang(job, &mut failed)) {
                    self.backfill_job(queue, job);
                }
            }
        }
    }

    /// Places tasks that ask for nothing, of a job that has what it needs, each by itself.
    fn backfill_job(&mut self, queue: QueueId, job: JobId) {
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

    /// Places what a gang needs of tasks that ask for nothing, if it lacks nothing else. Returns whether it did.
    fn complete_gang(&mut self, job: JobId, failed: &mut FailedTogether) -> bool {
        if !self.may_have_enough(job) {
            return false;
        }
        let signature = self.signature(job);
        if let Some(&equal) = signature.as_ref().and_then(|signature| failed.get(signature)) {
            self.tries.note_as(job, equal);
            return false;
        }
        let savepoint = self.savepoint();
        self.tries.begin();
        let has_enough = if self.has_topology(job) {
            self.complete_in_domains(job)
        } else {
            self.fill_up(&mut Filler::new(job, Sight::Later)) || self.has_enough(job)
        };
        self.note_try(job);
        let is_kept = self.keep_if(has_enough, savepoint);
        if !is_kept {
            failed.extend(signature.map(|signature| (signature, job)));
        }
        is_kept
    }
}
