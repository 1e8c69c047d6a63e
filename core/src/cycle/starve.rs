//! Evicts tasks for jobs that starve (YARN's preemption by timeouts).

use std::sync::Arc;

use super::best_effort::Filler;
use super::config::Action;
use super::preempt::Room;
use super::shares::JobShares;
use super::spots::Spots;
use super::starvation::{Starvation, Starving};
use super::trial::Cycle;
use super::victims::From;
use crate::fairness::{Amounts, Dim};

impl Cycle<'_> {
    /// Lets jobs that starve take from jobs that have more than their fair shares.
    pub(super) fn starve_all(&mut self) {
        let queues = self.impatient_queues();
        if queues.is_empty() {
            *self.starvation = Starvation::default();
            return;
        }
        self.shares = Some(JobShares::new(self.jobs, self.facts().total));
        let starving = self.starving_jobs(&queues);
        if !starving.is_empty() {
            let table = self.take_spots();
            let spots = table.of_others();
            for one in &starving {
                self.plan_in_domains(one.job, spots, |cycle| cycle.starve_for(one, spots));
            }
            self.give_spots_back(table);
        }
        self.shares = None;
        self.starvation.found = starving;
    }

    /// Makes room for as many tasks of a job as fit in what it starves for. Each one that the job does not need to have
    /// together with others is a statement of its own, so there may be more than one statement holds.
    fn starve_for(&mut self, one: &Starving, spots: Spots<'_>) {
        // Evictions within a queue give it nothing of its guarantee.
        let from = From::Starved { own_queue: !one.fair_share.is_zero() };
        let mut left = one.fair_share.plus(&one.guarantee);
        let kinds: Vec<Dim> = left.iter().map(|(dim, _)| dim).collect();
        let savepoint = self.savepoint();
        let mut room = Room::default();
        let mut filler = Filler::evicting(one.job, spots, from);
        for task in self.pending_tasks(one.job, false) {
            let class = Arc::clone(&self.jobs.task(task).class);
            if !helps(&class.amounts, &left, &kinds)
                || self.passes(&mut filler, task)
                || !self.place_or_make_room(task, from, spots, &mut room)
            {
                continue;
            }
            left = left.minus_or_zero(&class.amounts);
            self.fill_up(&mut filler);
            let has_enough = self.is_pipelined(one.job);
            if has_enough && !self.keep_if(true, savepoint) {
                return;
            }
        }
        let has_enough = self.is_pipelined(one.job);
        self.keep_or_note(has_enough, savepoint, one.job, Action::Starve);
    }
}

/// Returns whether a task fits in what is left of some kinds, and takes something of them. Other kinds are not bounded.
fn helps(amounts: &Amounts, left: &Amounts, kinds: &[Dim]) -> bool {
    kinds.iter().any(|&dim| amounts.get(dim) > 0)
        && kinds.iter().all(|&dim| amounts.get(dim) <= left.get(dim))
}
