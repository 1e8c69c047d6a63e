//! Who starves, and since when: jobs below their fair share, and queues below their guarantee (YARN's `FSLeafQueue`).
//!
//! The times are soft state. After a restart they begin again, which delays an eviction and causes none.

use std::collections::BTreeMap;

use super::config::{PluginConfig, PluginKind};
use super::shares::is_below;
use super::trial::Cycle;
use crate::fairness::{Amounts, Share};
use crate::jobs::{JobId, QueueId, QueueSpec};
use crate::planted::{PlantedBug, is_planted};
use crate::resource::Amount;
use crate::time::Time;

/// The part of its fair share below which a job starves if its queue and all that contain it say nothing, in 1/10,000
/// (as in YARN).
const STARVES_BELOW_DEFAULT: u32 = 5_000;

/// A job that starves, with how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starving {
    /// The job.
    pub job: JobId,
    /// What it lacks of the part of its fair share below which it starves.
    pub fair_share: Amounts,
    /// What it gets of what its queue lacks of its guarantee.
    pub guarantee: Amounts,
}

/// What is remembered from cycle to cycle.
#[derive(Default)]
pub(super) struct Starvation {
    below: Below,
    /// The last looks at jobs that starved.
    looks: BTreeMap<JobId, Look>,
    /// The jobs that starved in the last cycle.
    pub(super) found: Vec<Starving>,
}

/// A look at a job that starved. What was planned for it has time to happen before the next one.
#[derive(Clone, Copy)]
struct Look {
    /// When the job is looked at again.
    next: Time,
    /// Whether it starved by its fair share.
    by_share: bool,
    /// Whether its queue starved by its guarantee.
    by_guarantee: bool,
}

impl Look {
    /// Returns whether this look has seen all rules by which the job starves now, and the next one is not due.
    fn suffices(&self, now: Time, by_share: bool, by_guarantee: bool) -> bool {
        self.next > now && self.by_share >= by_share && self.by_guarantee >= by_guarantee
    }
}

/// Since when jobs and queues are below their bounds: the time of the first cycle that found them there.
#[derive(Default)]
struct Below {
    jobs: BTreeMap<JobId, Time>,
    queues: BTreeMap<QueueId, Time>,
}

impl Starvation {
    /// Has a job looked at by the next cycle, because what was planned for it did not happen.
    pub(super) fn look_again(&mut self, job: JobId) {
        self.looks.remove(&job);
    }
}

impl Cycle<'_> {
    /// Returns the queues with waiting jobs that may starve, in order.
    pub(super) fn impatient_queues(&self) -> Vec<QueueId> {
        let has_patience = |queue: &QueueId| {
            let patience = |of: &QueueSpec| of.fair_share_patience_ns.or(of.guarantee_patience_ns);
            self.jobs.inherited(*queue, patience).is_some()
        };
        let waiting = self.jobs.queues().filter(|(_, queue)| queue.waiting().len() > 0);
        let mut queues: Vec<QueueId> = waiting.map(|(id, _)| id).filter(has_patience).collect();
        queues.sort_by(|&a, &b| self.compare_queues(a, b));
        queues
    }

    /// Returns the jobs of these queues that starve, in the order of the queues and of the jobs in them.
    pub(super) fn starving_jobs(&mut self, queues: &[QueueId]) -> Vec<Starving> {
        let before = std::mem::take(&mut self.starvation.below);
        let mut below = Below::default();
        let mut found = Vec::new();
        let is_used_enough = self.is_used_enough();
        let recheck_ns = self.fair_share_settings().recheck_ns;
        let next = self.now.plus_nanos(self.config.grace_ns).plus_nanos(recheck_ns);
        let now = self.now;
        let mut looks = BTreeMap::new();
        for &queue in queues {
            let of_queue = self.starved_guarantee(queue, &before, &mut below);
            let starving = self.starving_of(queue, &of_queue, &before, &mut below);
            if is_used_enough {
                let by_guarantee = !of_queue.is_zero();
                let look = |of: &Starving| Look { next, by_share: !of.fair_share.is_zero(), by_guarantee };
                looks.extend(starving.iter().map(|of| (of.job, look(of))));
                found.extend(starving);
            }
        }
        self.starvation.below = below;
        self.starvation.looks.retain(|_, look| look.next > now);
        self.starvation.looks.extend(looks);
        found
    }

    fn fair_share_settings(&self) -> &PluginConfig {
        self.config.plugin(PluginKind::FairShare).expect("`starve` has plugin `fair-share`")
    }

    /// Returns whether so much of some resource is in use that evictions are due.
    fn is_used_enough(&self) -> bool {
        let usage = self.jobs.queue(QueueId::ROOT).usage();
        let used = usage.held.plus(&usage.releasing);
        let above = Share::of(i64::from(self.fair_share_settings().utilization_above), Amount::SCALE);
        self.facts().total.iter().any(|(dim, total)| Share::of(used.get(dim), total) > above)
    }

    /// Returns the jobs of a queue that starve. `of_queue` is what the queue has lacked of its guarantee for the length of its
    /// patience. `below` takes the jobs that are below their bounds.
    fn starving_of(
        &self,
        queue: QueueId,
        of_queue: &Amounts,
        before: &Below,
        below: &mut Below,
    ) -> Vec<Starving> {
        let mut found = Vec::new();
        for job in self.jobs_that_want_more(queue) {
            let fair_share = self.starves_for(queue, job, before, below);
            // It is looked at again only after what was planned for it had time to happen, or if it starves by another rule.
            let suffices = |look: &&Look| look.suffices(self.now, !fair_share.is_zero(), !of_queue.is_zero());
            match self.starvation.looks.get(&job).filter(suffices) {
                Some(look) => self.note_due(look.next),
                None => found.push(Starving { job, fair_share, guarantee: Amounts::zero() }),
            }
        }
        self.hand_out_guarantee(of_queue, &mut found);
        found.retain(|starving| !starving.fair_share.is_zero() || !starving.guarantee.is_zero());
        found
    }

    /// Returns what a job has lacked of its fair share for the length of its patience.
    fn starves_for(&self, queue: QueueId, job: JobId, before: &Below, below: &mut Below) -> Amounts {
        let patience = self.jobs.inherited(queue, |spec| spec.fair_share_patience_ns);
        let Some(patience) = patience else { return Amounts::zero() };
        let lacks = self.lacks_of_share(queue, job);
        if lacks.is_zero() {
            return lacks;
        }
        let since = before.jobs.get(&job).copied().unwrap_or(self.now);
        below.jobs.insert(job, since);
        if self.is_over(patience, since) { lacks } else { Amounts::zero() }
    }

    /// Returns whether a patience is over, or notes when it will be.
    fn is_over(&self, patience: u64, since: Time) -> bool {
        let end = since.plus_nanos(patience);
        self.note_due(end);
        end <= self.now || is_planted(PlantedBug::PatienceForgotten)
    }

    /// Returns the admitted jobs of a queue that ask for something and may evict others, in order.
    fn jobs_that_want_more(&self, queue: QueueId) -> Vec<JobId> {
        let wants_more = |job: &JobId| {
            let of = self.jobs.job(*job);
            of.phase().is_admitted()
                && of.spec().preempts
                && !of.usage().pending.is_zero()
                && self.tiers().is_valid(self.facts(), *job)
        };
        let mut jobs: Vec<JobId> = self.jobs.queue(queue).waiting().filter(wants_more).collect();
        jobs.sort_by(|&a, &b| self.compare_jobs(a, b));
        jobs
    }

    /// Returns what a job lacks of the part of its fair share below which it starves.
    fn lacks_of_share(&self, queue: QueueId, job: JobId) -> Amounts {
        let below = self.jobs.inherited(queue, |spec| spec.starves_below).unwrap_or(STARVES_BELOW_DEFAULT);
        let part = |amount: i64| {
            let part = i128::from(amount) * i128::from(below) / i128::from(Amount::SCALE);
            i64::try_from(part).expect("a part is at most the whole")
        };
        let facts = self.facts();
        let share = facts.fair_share(job);
        let usage = self.jobs.job(job).usage();
        let part: Amounts = share.iter().map(|(dim, amount)| (dim, part(amount))).collect();
        let bound = part.min(&usage.demand());
        let used = usage.planned();
        if is_below(self.jobs.queue(queue).spec().ordering, &used, &bound, facts.total) {
            bound.minus_or_zero(&used)
        } else {
            Amounts::zero()
        }
    }

    /// Returns what a queue lacks of its guarantee.
    pub(super) fn lacks_of_guarantee(&self, queue: QueueId) -> Amounts {
        let of = self.jobs.queue(queue);
        of.spec().guarantee.min(&of.usage().demand()).minus_or_zero(&of.usage().planned())
    }

    /// Returns what a queue has lacked of its guarantee for the length of its patience.
    fn starved_guarantee(&self, queue: QueueId, before: &Below, below: &mut Below) -> Amounts {
        let patience = self.jobs.inherited(queue, |spec| spec.guarantee_patience_ns);
        let Some(patience) = patience else { return Amounts::zero() };
        let lacks = self.lacks_of_guarantee(queue);
        if lacks.is_zero() {
            return lacks;
        }
        let since = before.queues.get(&queue).copied().unwrap_or(self.now);
        below.queues.insert(queue, since);
        if self.is_over(patience, since) { lacks } else { Amounts::zero() }
    }

    /// Gives jobs what their queue lacks of its guarantee, each up to what it asks for. What they starve for by their fair
    /// shares counts as given already.
    fn hand_out_guarantee(&self, of_queue: &Amounts, jobs: &mut [Starving]) {
        let mut left = of_queue.clone();
        jobs.iter().for_each(|starving| left = left.minus_or_zero(&starving.fair_share));
        for starving in jobs {
            let pending = &self.jobs.job(starving.job).usage().pending;
            starving.guarantee = pending.minus_or_zero(&starving.fair_share).min(&left);
            left = left.minus_or_zero(&starving.guarantee);
        }
    }
}
