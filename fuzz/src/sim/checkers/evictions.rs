//! Evictions of cycles: who gives way, and for whom. They are judged by what a cycle has planned, before any shard
//! answers.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::fairness::{Amounts, Dim, dominant_share};
use wharf_core::jobs::{JobId, Jobs, QueueId, QueueOrdering, Task, TaskId, TaskState};
use wharf_core::time::Time;

use super::queues::STARVES_BELOW;
use super::run_times::has_overrun;
use super::{Verdict, ensure};

/// What a cycle has planned.
pub struct Planned<'a> {
    /// The jobs as its plans leave them.
    pub jobs: &'a Jobs,
    /// The time of the cycle.
    pub now: Time,
    /// The capacity of all nodes.
    pub total: Amounts,
    /// What a queue deserves.
    pub deserved: &'a dyn Fn(QueueId) -> Amounts,
    /// The fair share of a job.
    pub fair_share: &'a dyn Fn(JobId) -> Amounts,
}

impl Planned<'_> {
    fn tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.jobs.jobs().flat_map(|(id, job)| {
            (0..).zip(job.tasks()).map(move |(index, task)| (TaskId { job: id, index }, task))
        })
    }

    fn queue_of(&self, task: TaskId) -> QueueId {
        self.jobs.job(task.job).spec().queue
    }

    /// Returns whether the cycle has given a task its place. No shard has granted it yet.
    fn is_new(&self, task: &Task) -> bool {
        let has_place = matches!(task.state, TaskState::Allocated | TaskState::Pipelined);
        has_place && task.allocation.is_none() && task.since == self.now
    }

    /// Returns the tasks that the cycle evicts for others. Those of jobs that are over, or restart, were evicted for that.
    pub fn victims(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        let is_victim = move |&(id, task): &(TaskId, &Task)| {
            let phase = self.jobs.job(id.job).phase();
            let is_evicted = task.state == TaskState::Releasing && task.since == self.now;
            is_evicted && !has_overrun(task) && phase.is_admitted() && !phase.is_end()
        };
        self.tasks().filter(is_victim)
    }

    /// Returns the other jobs that have new claims on the node of a victim.
    fn takers(&self, victim: TaskId) -> BTreeSet<JobId> {
        let node = self.jobs.task(victim).node;
        let is_taker = |(id, task): &(TaskId, &Task)| {
            id.job != victim.job
                && task.state == TaskState::Pipelined
                && task.node == node
                && self.is_new(task)
        };
        self.tasks().filter(is_taker).map(|(id, _)| id.job).collect()
    }

    /// Returns the queues from which only others have taken, each with its victims.
    fn givers(&self) -> BTreeMap<QueueId, Vec<&Task>> {
        let mut givers: BTreeMap<QueueId, Vec<&Task>> = BTreeMap::new();
        let mut unsure = BTreeSet::new();
        for (id, task) in self.victims() {
            let queue = self.queue_of(id);
            let is_for_its_own = |job: &JobId| self.jobs.job(*job).spec().queue == queue;
            if self.takers(id).iter().any(is_for_its_own) {
                unsure.insert(queue);
            }
            givers.entry(queue).or_default().push(task);
        }
        givers.retain(|queue, _| !unsure.contains(queue));
        givers
    }

    /// Returns whether `used` is less than `bound`, as a queue measures it.
    fn is_below(&self, queue: QueueId, used: &Amounts, bound: &Amounts) -> bool {
        match self.jobs.queue(queue).spec().ordering {
            QueueOrdering::Fair => used.get(Dim::MEMORY) < bound.get(Dim::MEMORY),
            _ => dominant_share(used, &self.total) < dominant_share(bound, &self.total),
        }
    }

    /// Returns what the cycle has given to some jobs.
    fn given(&self, counts: impl Fn(JobId) -> bool) -> Amounts {
        let mut sum = Amounts::zero();
        let new = self.tasks().filter(|(id, task)| counts(id.job) && self.is_new(task));
        new.for_each(|(_, task)| sum.add(&task.class.amounts));
        sum
    }
}

/// Checks that queues from which others reclaim keep their guarantees, and had more than they deserve: each task was taken
/// while its queue had too much of a kind that the task has, or deserves nothing of all that it has.
///
/// # Errors
/// Returns the queue.
pub fn only_what_is_spare_is_reclaimed(planned: &Planned<'_>) -> Verdict {
    for (queue, victims) in planned.givers() {
        let of = planned.jobs.queue(queue);
        let kept = of.usage().planned();
        let told = || format!("queue `{}` gives {victims:?}, and keeps {kept:?}", of.spec().name);
        ensure(of.spec().guarantee.is_within(&kept), || format!("{} of its guarantee", told()))?;
        let deserved = (planned.deserved)(queue);
        // One of them was the last.
        let may_be_last = |victim: &&Task| {
            let amounts = &victim.class.amounts;
            let mut kinds = amounts.iter().filter(|&(dim, _)| deserved.get(dim) > 0).peekable();
            kinds.peek().is_none() || kinds.any(|(dim, amount)| kept.get(dim) + amount > deserved.get(dim))
        };
        ensure(victims.iter().any(may_be_last), || format!("{} of {deserved:?}", told()))?;
    }
    Ok(())
}

/// Checks that queues, also those above others, keep what they are guaranteed of all that only others have taken from them.
///
/// # Errors
/// Returns the queue.
pub fn reclaim_leaves_guarantees(planned: &Planned<'_>) -> Verdict {
    for (id, queue) in planned.jobs.queues() {
        let guarantee = &queue.spec().guarantee;
        let is_below = |job: JobId| planned.jobs.chain(planned.jobs.job(job).spec().queue).any(|of| of == id);
        let victims: Vec<(TaskId, &Task)> =
            planned.victims().filter(|(task, _)| is_below(task.job)).collect();
        // What one of its own jobs has taken may be left of it.
        let is_for_its_own = |task: TaskId| planned.takers(task).into_iter().any(is_below);
        if guarantee.is_zero() || victims.iter().any(|&(task, _)| is_for_its_own(task)) {
            continue;
        }
        let kept = queue.usage().planned();
        for (task, victim) in victims {
            let keeps = |(dim, _): (Dim, i64)| kept.get(dim) >= guarantee.get(dim);
            ensure(victim.class.amounts.iter().all(keeps), || {
                format!("queue `{}` gives {task}, and keeps {kept:?} of {guarantee:?}", queue.spec().name)
            })?;
        }
    }
    Ok(())
}

/// Checks that jobs from which others take by their fair shares keep their own, and queues from which others take their
/// guarantees.
///
/// # Errors
/// Returns the job or queue.
pub fn evictions_leave_fair_shares(planned: &Planned<'_>) -> Verdict {
    for (id, victim) in planned.victims() {
        let kept = planned.jobs.job(id.job).usage().planned();
        let share = (planned.fair_share)(id.job);
        ensure(!planned.is_below(planned.queue_of(id), &kept, &share), || {
            format!("job {} gives {victim:?}, and keeps {kept:?} of its share {share:?}", id.job)
        })?;
    }
    for (queue, victims) in planned.givers() {
        let of = planned.jobs.queue(queue);
        let kept = of.usage().planned();
        let least = of.spec().guarantee.min(&of.usage().demand());
        let has_too_little = |victim: &&Task| {
            let mut kinds = victim.class.amounts.iter();
            kinds.any(|(dim, _)| kept.get(dim) < least.get(dim))
        };
        ensure(!victims.iter().any(has_too_little), || {
            format!("queue `{}` gives {victims:?}, and keeps {kept:?} of {least:?}", of.spec().name)
        })?;
    }
    Ok(())
}

/// Checks that tasks are evicted for jobs that starve only: those that may preempt, have less than a part of their fair share
/// or are in queues with less than their guarantee, and have waited for as long as their patience. `started` is the time of
/// the first cycle that could have seen them.
///
/// # Errors
/// Returns the task, and for whom it was evicted.
pub fn only_for_the_starving(planned: &Planned<'_>, started: Time) -> Verdict {
    for (id, victim) in planned.victims() {
        let takers = planned.takers(id);
        ensure(takers.iter().any(|&taker| starves(planned, taker, started)), || {
            let takers: Vec<_> = takers.iter().map(|&job| (job, (planned.fair_share)(job))).collect();
            format!("task {id} gives way to {takers:?}, of which none starves: {victim:?}")
        })?;
    }
    Ok(())
}

fn starves(planned: &Planned<'_>, job: JobId, started: Time) -> bool {
    let Planned { jobs, now, .. } = *planned;
    let of = jobs.job(job);
    let queue = jobs.queue(of.spec().queue);
    let waited = now.nanos_since(of.spec().created.max(started));
    let is_over = |patience: Option<u64>| patience.is_some_and(|patience| waited >= patience);
    let less = |sum: Amounts, given: Amounts| sum.minus_or_zero(&given);
    let of_job = less(of.usage().planned(), planned.given(|other| other == job));
    let part = |(dim, amount): (Dim, i64)| (dim, amount * i64::from(STARVES_BELOW) / 10_000);
    let bound: Amounts = (planned.fair_share)(job).iter().map(part).collect();
    let bound = bound.min(&of.usage().demand());
    let below_share =
        is_over(queue.spec().fair_share_patience_ns) && planned.is_below(of.spec().queue, &of_job, &bound);
    let in_queue = |other: JobId| jobs.job(other).spec().queue == of.spec().queue;
    let of_queue = less(queue.usage().planned(), planned.given(in_queue));
    let least = queue.spec().guarantee.min(&queue.usage().demand());
    let below_guarantee = is_over(queue.spec().guarantee_patience_ns) && !least.is_within(&of_queue);
    of.spec().preempts && (below_share || below_guarantee)
}

/// Checks that evictions end: at rest, under a fixed demand, the last cycles have evicted nobody.
///
/// # Errors
/// Says that they go on.
pub fn evictions_end(before: u64, after: u64) -> Verdict {
    ensure(before == after, || format!("{} tasks were evicted for others by the last cycles", after - before))
}
