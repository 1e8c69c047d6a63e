//! What queues may use at a time: their caps, and what they deserve.
//!
//! Nodes are not all that a job needs. It must also be allowed to use them when its date comes. So what ends by then is
//! taken off what queues use, and the rules are asked again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::DatedReservation;
use crate::cycle::trial::{Cycle, Place};
use crate::fairness::Amounts;
use crate::jobs::{JobId, QueueId, TaskClass, TaskId, TaskState};
use crate::time::Time;

/// What ends until a time, in a queue and in each that contains it.
#[derive(Clone, Debug, Default)]
pub(super) struct Freed {
    /// Of tasks that run.
    pub(super) held: BTreeMap<QueueId, Amounts>,
    /// Of tasks in their grace period.
    pub(super) released: BTreeMap<QueueId, Amounts>,
}

impl Freed {
    /// Returns nothing for these queues. Others are not counted.
    pub(super) fn of(chain: &[QueueId]) -> Self {
        let none = || chain.iter().map(|&queue| (queue, Amounts::zero())).collect();
        Self { held: none(), released: none() }
    }
}

/// What some tasks need together.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) amounts: Amounts,
    pub(super) classes: Vec<Arc<TaskClass>>,
}

/// What would be needed at a time.
pub(super) struct Wanted<'a> {
    pub(super) job: JobId,
    pub(super) date: Time,
    pub(super) needs: &'a Needs,
    pub(super) freed: &'a Freed,
    /// How long what is reserved must have ended before, in ns.
    pub(super) gap_ns: u64,
    /// What is used in addition.
    pub(super) more: Option<More<'a>>,
}

/// What a queue would use in addition.
#[derive(Clone, Copy)]
pub(super) struct More<'a> {
    queue: QueueId,
    amounts: &'a Amounts,
}

impl Cycle<'_> {
    /// Returns a queue and all that contain it.
    pub(super) fn chain_of(&self, queue: QueueId) -> Vec<QueueId> {
        self.jobs.chain(queue).collect()
    }

    /// Counts the end of a task.
    pub(super) fn count_end(&self, task: TaskId, freed: &mut Freed) {
        let of = self.jobs.task(task);
        let sums = if of.state == TaskState::Releasing { &mut freed.released } else { &mut freed.held };
        for queue in self.jobs.chain(self.queue_of(task.job)) {
            if let Some(sum) = sums.get_mut(&queue) {
                sum.add(&of.class.amounts);
            }
        }
    }

    /// Returns the tasks in their grace period, each with its node and its end.
    pub(super) fn releasing_tasks(&self) -> Vec<(Time, TaskId, Place)> {
        let mut releasing = Vec::new();
        for node in self.jobs.releasing_nodes() {
            let Some(place) = self.locate(node) else { continue };
            let tasks = self.jobs.on_node(node).iter().copied();
            let tasks = tasks.filter(|&task| self.jobs.task(task).state == TaskState::Releasing);
            releasing.extend(tasks.map(|task| (self.end_on(task, place), task, place)));
        }
        releasing
    }

    /// Returns what ends until a date, in the queues that contain a job.
    pub(super) fn freed_by(&mut self, queue: QueueId, date: Time) -> Freed {
        let mut freed = Freed::of(&self.chain_of(queue));
        let mut looks = 0;
        for (end, task) in self.jobs.ends(None).take_while(|&(end, _)| end <= date) {
            looks += 1;
            if end > self.now {
                self.count_end(task, &mut freed);
            }
        }
        for &(_, task) in self.dated.fresh_ends.iter().take_while(|&&(end, _)| end <= date) {
            self.count_end(task, &mut freed);
        }
        for (_, task, _) in self.releasing_tasks().into_iter().filter(|&(end, ..)| end <= date) {
            self.count_end(task, &mut freed);
        }
        self.dated.look(looks);
        freed
    }

    /// Returns whether caps and rules allow the queue of a job what it needs at a time.
    pub(super) fn may_have(&self, wanted: &Wanted<'_>) -> bool {
        let queue = self.queue_of(wanted.job);
        let mut more: BTreeMap<QueueId, Amounts> = BTreeMap::new();
        let mut add = |of: QueueId, amounts: &Amounts| {
            self.jobs.chain(of).for_each(|of| more.entry(of).or_default().add(amounts));
        };
        let covers = |other: &&DatedReservation| other.covers(wanted.date, wanted.gap_ns);
        let others = self.dated.binding(wanted.job, queue).filter(covers);
        others.for_each(|other| add(other.queue, &other.needs.amounts));
        if let Some(More { queue, amounts }) = wanted.more {
            add(queue, amounts);
        }
        let zero = Amounts::zero();
        let used = |of: QueueId| {
            let held = self.facts().planned(of).minus_or_zero(wanted.freed.held.get(&of).unwrap_or(&zero));
            held.plus(more.get(&of).unwrap_or(&zero))
        };
        let needs = &wanted.needs.amounts;
        let is_within_caps = self.jobs.chain(queue).all(|of| {
            let released = wanted.freed.released.get(&of).unwrap_or(&zero);
            let queue = self.jobs.queue(of);
            let all = used(of).plus(&queue.usage().releasing.minus_or_zero(released));
            queue.spec().capability.exceeded(&all, needs).is_none()
        });
        is_within_caps
            && wanted.needs.classes.iter().all(|class| {
                // The last task of the class comes after all others.
                let others = needs.minus_or_zero(&class.amounts);
                let then = |of: QueueId| used(of).plus(&others);
                self.tiers().will_be_allocatable(self.facts(), &then, queue, class)
            })
    }

    pub(super) fn needs_of(&self, tasks: &[TaskId]) -> Needs {
        let mut needs = Needs { amounts: Amounts::zero(), classes: Vec::new() };
        for &task in tasks {
            let class = &self.jobs.task(task).class;
            needs.amounts.add(&class.amounts);
            if !needs.classes.iter().any(|known| Arc::ptr_eq(known, class)) {
                needs.classes.push(Arc::clone(class));
            }
        }
        needs
    }

    /// Returns whether the queues of reserved jobs may still have what these need at their dates, with one more task that
    /// is placed now and ends at a time.
    pub(super) fn leaves_shares_with(&mut self, task: TaskId, end: Time) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        self.leaves_shares(task.job, &class.amounts, self.now, end)
    }

    /// Returns whether the queues of reserved jobs that bind another job may still have what these need at their dates, if
    /// the other one has some amounts in addition from one time to another.
    pub(super) fn leaves_shares(&mut self, job: JobId, amounts: &Amounts, from: Time, until: Time) -> bool {
        let queue = self.queue_of(job);
        let chain = self.chain_of(queue);
        let shares = |of: &DatedReservation| {
            self.jobs.chain(of.queue).any(|of| of != QueueId::ROOT && chain.contains(&of))
        };
        // What begins before is looked at as of the time when the other job begins.
        let begins = |of: &DatedReservation| {
            let date = of.date.max(self.now);
            from <= date && date < until
        };
        let binding = self.dated.binding(job, queue).filter(|of| begins(of) && shares(of));
        let jobs: Vec<JobId> = binding.map(|of| of.job).collect();
        jobs.into_iter().all(|job| self.leaves_share(job, More { queue, amounts }))
    }

    fn leaves_share(&mut self, job: JobId, more: More<'_>) -> bool {
        let of = self.dated.reservations.get_mut(&job).expect("a reservation that binds is there");
        let date = of.date;
        let needs = Arc::clone(&of.needs);
        let known = of.freed.take();
        let freed = known.unwrap_or_else(|| self.freed_by(self.queue_of(job), date));
        let more = Some(more);
        let may_have = self.may_have(&Wanted { job, date, needs: &needs, freed: &freed, gap_ns: 0, more });
        self.dated.reservations.get_mut(&job).expect("nothing was given up").freed = Some(freed);
        may_have
    }
}
