//! The turns of the jobs of a queue: the first job by order is next.
//!
//! What a job is given changes its own place, and if users are ordered by what they use, that of all jobs of its user. So
//! each user has a heap of jobs, and the users one by their first jobs. Both stay in order if the user of the job that is
//! served is taken out and put back.

use std::collections::BTreeMap;

use super::heap::Heap;
use super::trial::Cycle;
use crate::jobs::JobId;

/// The jobs of a queue that still have turns.
pub(super) struct JobTurns {
    /// By user. If users do not matter, all jobs are those of one.
    jobs: Vec<Heap<JobId>>,
    /// The users with jobs.
    users: Heap<usize>,
    /// The user of the last turn.
    served: Option<usize>,
}

impl JobTurns {
    /// Creates the turns of these jobs.
    pub(super) fn new(cycle: &Cycle<'_>, jobs: impl Iterator<Item = JobId>) -> Self {
        let orders_users = cycle.tiers().orders_users();
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut turns = Self { jobs: Vec::new(), users: Heap::new(), served: None };
        for job in jobs {
            let user = cycle.jobs.job(job).spec().user.as_deref().filter(|_| orders_users);
            let next = turns.jobs.len();
            let number = *numbers.entry(user.unwrap_or_default()).or_insert(next);
            if number == next {
                turns.jobs.push(Heap::new());
            }
            turns.jobs[number].push(job, |&a, &b| cycle.compare_jobs(a, b));
        }
        (0..turns.jobs.len()).for_each(|user| turns.put_user(cycle, user));
        turns
    }

    /// Puts a user with jobs in its place.
    fn put_user(&mut self, cycle: &Cycle<'_>, user: usize) {
        let Self { jobs, users, .. } = self;
        users.push(user, |&a, &b| compare(cycle, jobs, a, b));
    }

    /// Returns the job whose turn it is. It and the others of its user have no other turn until it is
    /// [put back](Self::put_back).
    pub(super) fn next(&mut self, cycle: &Cycle<'_>) -> Option<JobId> {
        assert!(self.served.is_none(), "the job of the last turn was not put back");
        let Self { jobs, users, served } = self;
        let user = users.pop(|&a, &b| compare(cycle, jobs, a, b))?;
        *served = Some(user);
        jobs[user].pop(|&a, &b| cycle.compare_jobs(a, b))
    }

    /// Puts the job of the last turn back if it has more turns, and the others of its user.
    pub(super) fn put_back(&mut self, cycle: &Cycle<'_>, job: JobId, has_more: bool) {
        let user = self.served.take().expect("a job was served");
        if has_more {
            self.jobs[user].push(job, |&a, &b| cycle.compare_jobs(a, b));
        }
        if !self.jobs[user].is_empty() {
            self.put_user(cycle, user);
        }
    }
}

/// Compares users by their first jobs.
fn compare(cycle: &Cycle<'_>, jobs: &[Heap<JobId>], a: usize, b: usize) -> std::cmp::Ordering {
    let first = |user: usize| *jobs[user].first().expect("only users with jobs have turns");
    cycle.compare_jobs(first(a), first(b))
}
