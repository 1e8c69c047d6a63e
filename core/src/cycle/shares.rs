//! The fair shares of queues and of the jobs in them, by YARN's computation.

use std::cell::OnceCell;

use crate::fairness::{Amounts, Dim, FairShare, dominant_share, fair_shares};
use crate::jobs::{JobId, Jobs, Queue, QueueId, QueueOrdering};

/// Returns the fair share of each queue of a kind: the queues of a parent divide its share by weight, each between its
/// guarantee and its capability. `active` leaves out queues that use nothing and ask for nothing.
pub(super) fn of_queues(jobs: &Jobs, total: &Amounts, dim: Dim, active: bool) -> Vec<i64> {
    let queues: Vec<_> = jobs.queues().collect();
    let mut shares = vec![0; queues.len()];
    shares[0] = total.get(dim);
    for (id, queue) in &queues {
        // What is being released is still in use.
        let takes_part = |child: &&QueueId| !active || !jobs.queue(**child).usage().demand().is_zero();
        let children: Vec<QueueId> = queue.children().iter().filter(takes_part).copied().collect();
        let bounds = |child: &QueueId| {
            let spec = jobs.queue(*child).spec();
            let most = spec.capability.get(dim).unwrap_or(i64::MAX);
            FairShare { weight: spec.weight, least: spec.guarantee.get(dim), most }
        };
        let bounds: Vec<FairShare> = children.iter().map(bounds).collect();
        let divided = fair_shares(shares[id.0 as usize], &bounds);
        for (child, share) in children.iter().zip(divided) {
            shares[child.0 as usize] = share;
        }
    }
    shares
}

/// Returns the resource by which a policy compares usage: `None` for the dominant one.
pub(super) fn measure(ordering: QueueOrdering) -> Option<Dim> {
    match ordering {
        QueueOrdering::Fair => Some(Dim::MEMORY),
        QueueOrdering::Drf | QueueOrdering::Fifo => None,
    }
}

/// Returns whether a job that uses `usage` has less than `bound`, by the measure of its queue's policy.
pub(super) fn is_below(ordering: QueueOrdering, usage: &Amounts, bound: &Amounts, total: &Amounts) -> bool {
    match measure(ordering) {
        Some(dim) => usage.get(dim) < bound.get(dim),
        None => dominant_share(usage, total) < dominant_share(bound, total),
    }
}

/// The fair shares of all jobs.
///
/// The jobs of a queue that use something or ask for something have equal parts of its share. In a `fifo` queue, the
/// first one has all of it. A job that a queue has not admitted has none.
pub(super) struct JobShares {
    /// The shares of all queues, of each kind.
    kinds: Vec<(Dim, Vec<i64>)>,
    /// How queues divide their shares: counted when it is asked for, because a queue may have many jobs.
    queues: Vec<OnceCell<Division>>,
}

/// The shares of the jobs of one queue.
struct Division {
    each: Amounts,
    /// The only job that has a share, in a `fifo` queue.
    first: Option<JobId>,
}

impl JobShares {
    pub(super) fn new(jobs: &Jobs, total: &Amounts) -> Self {
        let kinds = total.iter().map(|(dim, _)| (dim, of_queues(jobs, total, dim, true))).collect();
        Self { kinds, queues: jobs.queues().map(|_| OnceCell::new()).collect() }
    }

    /// Returns the fair share of a job.
    pub(super) fn of(&self, jobs: &Jobs, job: JobId) -> Amounts {
        let queue = jobs.job(job).spec().queue;
        let at = queue.0 as usize;
        let division = self.queues[at].get_or_init(|| {
            let share = self.kinds.iter().map(|(dim, shares)| (*dim, shares[at])).collect();
            Division::new(jobs, jobs.queue(queue), &share)
        });
        let has_share = division.first.is_none_or(|first| first == job) && takes_part(jobs, job);
        if has_share { division.each.clone() } else { Amounts::zero() }
    }
}

impl Division {
    fn new(jobs: &Jobs, queue: &Queue, share: &Amounts) -> Self {
        let active = || queue.all_jobs().filter(|&job| takes_part(jobs, job));
        match queue.spec().ordering {
            QueueOrdering::Fifo => {
                let turn = |job: &JobId| {
                    let spec = jobs.job(*job).spec();
                    (std::cmp::Reverse(spec.priority), spec.created, *job)
                };
                Self { each: share.clone(), first: active().min_by_key(turn) }
            }
            ordering => {
                let count =
                    i64::try_from(active().count().max(1)).expect("fewer jobs than memory has places");
                let counts = |dim: Dim| measure(ordering).is_none_or(|only| only == dim);
                let kinds = share.iter().filter(|&(dim, _)| counts(dim));
                Self { each: kinds.map(|(dim, amount)| (dim, amount / count)).collect(), first: None }
            }
        }
    }
}

/// Returns whether a job has a part of its queue's share.
fn takes_part(jobs: &Jobs, job: JobId) -> bool {
    let job = jobs.job(job);
    job.phase().is_admitted() && !job.usage().demand().is_zero()
}
