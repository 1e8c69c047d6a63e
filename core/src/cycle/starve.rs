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
use crate::jobs::TaskId;

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
        let mut left = Left::of(one);
        let savepoint = self.savepoint();
        let mut rooms = Rooms::default();
        let from = From::Starved { own_queue: !one.fair_share.is_zero() };
        let mut filler = Filler::evicting(one.job, spots, from);
        for task in self.pending_tasks(one.job, false) {
            let class = Arc::clone(&self.jobs.task(task).class);
            if !left.all.has_room_for(&class.amounts)
                || self.passes(&mut filler, task)
                || !self.place_starving(task, &left, spots, &mut rooms)
            {
                continue;
            }
            left.take(&class.amounts);
            self.fill_up(&mut filler);
            let has_enough = self.is_pipelined(one.job);
            if has_enough && !self.keep_if(true, savepoint) {
                return;
            }
        }
        let has_enough = self.is_pipelined(one.job);
        self.keep_or_note(has_enough, savepoint, one.job, Action::Starve);
    }

    /// Gives a task of a starving job a node or a claim. Evictions within its queue give the queue nothing of its guarantee. So
    /// other queues come first while it lacks something of that, and its own gives only what the job lacks of its fair share.
    fn place_starving(&mut self, task: TaskId, left: &Left, spots: Spots<'_>, rooms: &mut Rooms) -> bool {
        let of_share = left.of_share.has_room_for(&self.jobs.task(task).class.amounts);
        let own_too = of_share && self.lacks_of_guarantee(self.queue_of(task.job)).is_zero();
        let mut place = |own_queue: bool, room: &mut Room| {
            self.place_or_make_room(task, From::Starved { own_queue }, spots, room)
        };
        if own_too {
            return place(true, &mut rooms.any);
        }
        place(false, &mut rooms.others) || (of_share && place(true, &mut rooms.any))
    }
}

/// What is known about room for a starving job: in all queues, and in other queues than its own.
#[derive(Default)]
struct Rooms {
    any: Room,
    others: Room,
}

/// What is left of what a job starves for.
struct Left {
    all: Bound,
    /// The part of it that is the job's fair share.
    of_share: Bound,
}

impl Left {
    fn of(one: &Starving) -> Self {
        Self {
            all: Bound::new(one.fair_share.plus(&one.guarantee)),
            of_share: Bound::new(one.fair_share.clone()),
        }
    }

    fn take(&mut self, amounts: &Amounts) {
        for bound in [&mut self.all, &mut self.of_share] {
            bound.left = bound.left.minus_or_zero(amounts);
        }
    }
}

/// What is left of some kinds. Others are not bounded.
struct Bound {
    left: Amounts,
    kinds: Vec<Dim>,
}

impl Bound {
    fn new(left: Amounts) -> Self {
        Self { kinds: left.iter().map(|(dim, _)| dim).collect(), left }
    }

    /// Returns whether a task fits in what is left, and takes something of it.
    fn has_room_for(&self, amounts: &Amounts) -> bool {
        self.kinds.iter().any(|&dim| amounts.get(dim) > 0)
            && self.kinds.iter().all(|&dim| amounts.get(dim) <= self.left.get(dim))
    }
}
