//! Evicts tasks of queues that use more than they deserve, for others.

use std::collections::BTreeMap;

use super::best_effort::Filler;
use super::config::Action;
use super::preempt::Room;
use super::signature::FailedJobs;
use super::spots::Spots;
use super::trial::Cycle;
use super::turns::Turns;
use super::victims::From;
use crate::jobs::{JobId, QueueId};

impl Cycle<'_> {
    /// Lets queues that use less than they deserve take from those that use more.
    ///
    /// Queues take turns, with one job at a time. Nobody is evicted unless the job then has what it needs. Without a rule
    /// that says what queues deserve, nobody is evicted.
    pub(super) fn reclaim_all(&mut self) {
        if !self.tiers().orders_reclaim() {
            return;
        }
        let mut jobs: BTreeMap<QueueId, Vec<JobId>> = BTreeMap::new();
        for (id, queue) in self.jobs.queues() {
            let is_admitted = |job: &JobId| {
                self.jobs.job(*job).phase().is_admitted()
                    && self.jobs.job(*job).asks_for_something()
                    && self.jobs.job(*job).spec().preempts
                    && self.tiers().is_valid(self.facts(), *job)
            };
            let mut waiting: Vec<JobId> = queue.waiting().filter(is_admitted).collect();
            if !waiting.is_empty() {
                waiting.sort_by(|&a, &b| self.compare_jobs(b, a));
                jobs.insert(id, waiting);
            }
        }
        if jobs.is_empty() {
            return;
        }
        let table = self.take_spots();
        let mut failed = FailedJobs::default();
        let mut turns = Turns::new(self, jobs.keys().copied());
        while let Some(queue) = turns.next(self) {
            let next = if self.is_overused(queue) { None } else { jobs.get_mut(&queue).and_then(Vec::pop) };
            if let Some(job) = next {
                let attempt = |cycle: &mut Self| cycle.reclaim_for(job, table.of_others());
                self.try_unless_equal_failed(job, &mut failed, Action::Reclaim, attempt);
            }
            turns.put_back(self, queue, next.is_some());
        }
        self.give_spots_back(table);
    }

    fn reclaim_for(&mut self, job: JobId, spots: Spots<'_>) {
        let savepoint = self.savepoint();
        let has_enough = self.evict_in_domains(job, spots, |cycle| {
            let mut room = Room::default();
            let mut filler = Filler::evicting(job, spots, From::OtherQueues);
            for task in cycle.pending_tasks(job, false) {
                let before = cycle.savepoint();
                let is_of_use = !cycle.passes(&mut filler, task);
                if is_of_use && cycle.place_or_make_room(task, From::OtherQueues, spots, &mut room) {
                    cycle.fill_up(&mut filler);
                }
                if cycle.undo_beyond_a_statement(before) {
                    break;
                }
            }
            cycle.is_pipelined(job)
        });
        self.keep_or_note(has_enough, savepoint, job, Action::Reclaim);
    }
}
