//! Admits jobs to their queues.

use std::collections::BTreeMap;

use super::trial::Cycle;
use super::turns::Turns;
use crate::jobs::{JobId, JobPhase, PendingReason, QueueId};

impl Cycle<'_> {
    /// Admits all jobs, because there is no action that would.
    pub(super) fn admit_all(&mut self) {
        let queues = self.jobs.queues().flat_map(|(_, queue)| queue.waiting());
        let pending: Vec<JobId> =
            queues.filter(|&job| self.jobs.job(job).phase() == JobPhase::Pending).collect();
        for job in pending {
            self.jobs.set_phase(job, JobPhase::Inqueue);
            self.report.admitted += 1;
        }
    }

    /// Admits the jobs that their queues have room for, in the order of queues and jobs. A job that states no least
    /// amount is admitted at once.
    pub(super) fn enqueue(&mut self) {
        let mut jobs: BTreeMap<QueueId, Vec<JobId>> = BTreeMap::new();
        for (id, queue) in self.jobs.queues() {
            let of_phase = |job: &JobId| self.jobs.job(*job).phase() == JobPhase::Pending;
            let mut waiting: Vec<JobId> = queue.waiting().filter(of_phase).collect();
            if !waiting.is_empty() {
                waiting.sort_by(|&a, &b| self.compare_jobs(b, a));
                jobs.insert(id, waiting);
            }
        }
        let mut turns = Turns::new(self, jobs.keys().copied());
        while let Some(queue) = turns.next(self) {
            let next = jobs.get_mut(&queue).and_then(Vec::pop);
            if let Some(job) = next {
                let states_least = self.jobs.job(job).spec().min_resources.is_some();
                if !states_least || self.tiers().is_enqueueable(self.facts(), job) {
                    self.tell_enqueued(job);
                    self.jobs.set_phase(job, JobPhase::Inqueue);
                    self.report.admitted += 1;
                } else {
                    self.tries.note(job, PendingReason::NotAdmitted);
                }
            }
            turns.put_back(self, queue, next.is_some());
        }
    }
}
