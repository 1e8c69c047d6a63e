//! Jobs that wait for a planner, by client. Each client has its turn, however many jobs others have.
//!
//! The order is deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). Costs are known only after a job.
//! So a client that spent more than its quantum is skipped until later turns have paid for it. A job waits
//! for at most one turn of each other client, not for all of their jobs.

use std::collections::VecDeque;

use super::JobTag;
use crate::group::{ClientKey, PlanJob};
use crate::limits::CLIENT_QUANTUM;
use crate::map::FixedMap;
use crate::time::Time;

/// A client of one of the ports: the index of the port and the client's key.
pub(super) type PortClient = (usize, ClientKey);

/// A job that has not begun.
#[derive(Clone, Debug)]
pub struct QueuedJob {
    /// The caller's name for it.
    pub tag: JobTag,
    /// The job.
    pub job: PlanJob,
    /// It is not done unless it has begun by this time.
    pub due: Time,
}

#[derive(Debug, Default)]
struct Client {
    jobs: VecDeque<QueuedJob>,
    /// The units that the client may spend in this turn. Negative: the overdraft.
    left: i64,
    /// The number of groups with an unfinished proof. The client's next job waits for them.
    undecided: u32,
}

/// The jobs of all clients.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    clients: FixedMap<PortClient, Client>,
    /// Clients with jobs or an overdraft, each once. The first one has its turn.
    turns: VecDeque<PortClient>,
    jobs: usize,
}

impl JobQueue {
    fn client(&mut self, client: PortClient) -> &mut Client {
        self.clients.entry(client).or_insert_with(|| {
            self.turns.push_back(client);
            Client::default()
        })
    }

    pub(super) fn push(&mut self, client: PortClient, job: QueuedJob) {
        self.client(client).jobs.push_back(job);
        self.jobs += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs == 0
    }

    /// Removes a job that has not begun. Returns it, if there was one.
    pub(super) fn cancel(&mut self, client: PortClient, tag: JobTag) -> Option<PlanJob> {
        let of_client = self.clients.get_mut(&client)?;
        let at = of_client.jobs.iter().position(|job| job.tag == tag)?;
        self.jobs -= 1;
        of_client.jobs.remove(at).map(|queued| queued.job)
    }

    /// Charges a client for a job.
    pub(super) fn charge(&mut self, client: PortClient, units: u64) {
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        let of_client = self.client(client);
        of_client.left = of_client.left.saturating_sub(units);
    }

    /// Holds back a client's jobs because one of its groups is undecided.
    pub(super) fn hold(&mut self, client: PortClient) {
        self.client(client).undecided += 1;
    }

    /// Ends one hold, because the group is decided or gone.
    pub(super) fn release(&mut self, client: PortClient) {
        let of_client = self.client(client);
        assert!(of_client.undecided > 0, "client {client:?} has no group that is undecided");
        of_client.undecided -= 1;
    }

    /// Returns whether some job could begin.
    pub(super) fn has_ready(&self, may_begin: impl Fn(&PlanJob) -> bool) -> bool {
        let ready = |client: &Client| client.ready().is_some_and(&may_begin);
        !self.is_empty() && self.clients.values().any(ready)
    }

    /// Takes the next job of those that may begin now.
    pub(super) fn next(&mut self, may_begin: impl Fn(&PlanJob) -> bool) -> Option<(PortClient, QueuedJob)> {
        if !self.has_ready(&may_begin) {
            return None;
        }
        loop {
            let client = *self.turns.front().expect("a client with a job has turns");
            let of_client = self.clients.get_mut(&client).expect("clients with turns are kept");
            let ready = of_client.ready().is_some_and(&may_begin);
            if ready && of_client.left >= 0 {
                let job = of_client.jobs.pop_front().expect("just seen");
                self.jobs -= 1;
                return Some((client, job));
            }
            // The turn is over. A client without jobs saves nothing for later.
            self.turns.pop_front();
            of_client.left = (of_client.left + CLIENT_QUANTUM as i64).min(CLIENT_QUANTUM as i64);
            if of_client.jobs.is_empty() && of_client.undecided == 0 && of_client.left >= 0 {
                self.clients.remove(&client);
            } else {
                self.turns.push_back(client);
            }
        }
    }
}

impl Client {
    fn ready(&self) -> Option<&PlanJob> {
        self.jobs.front().filter(|_| self.undecided == 0).map(|queued| &queued.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: PortClient = (0, 1);
    const SMALL: PortClient = (0, 2);

    fn job(tag: JobTag) -> QueuedJob {
        QueuedJob { tag, job: PlanJob::ListGroups(None, None, 1), due: Time::NEVER }
    }

    #[test]
    fn a_job_waits_for_one_turn_of_another_client_however_many_jobs_that_has() {
        for jobs in [1, 100, 4000] {
            let mut queue = JobQueue::default();
            (0..jobs).for_each(|tag| queue.push(FLOOD, job(tag)));
            let (client, _) = queue.next(|_| true).expect("there are jobs");
            queue.charge(client, 50 * CLIENT_QUANTUM);
            queue.push(SMALL, job(9000));
            let (client, next) = queue.next(|_| true).expect("there are jobs");
            assert_eq!((client, next.tag), (SMALL, 9000), "with {jobs} jobs of another client");
        }
    }

    #[test]
    fn clients_get_equal_shares_of_units_however_much_their_jobs_cost() {
        let mut queue = JobQueue::default();
        (0..2000).for_each(|tag| queue.push(FLOOD, job(tag)));
        (2000..9000).for_each(|tag| queue.push(SMALL, job(tag)));
        let mut spent = [0u64; 2];
        for _ in 0..4000 {
            let (client, _) = queue.next(|_| true).expect("there are jobs");
            let cost = if client == FLOOD { 20 * CLIENT_QUANTUM } else { CLIENT_QUANTUM / 100 };
            spent[usize::from(client == SMALL)] += cost;
            queue.charge(client, cost);
        }
        let [flood, small] = spent;
        assert!(flood.abs_diff(small) <= 22 * CLIENT_QUANTUM, "{flood} and {small}");
    }

    #[test]
    fn a_client_alone_is_served_at_once_however_much_it_owes() {
        let mut queue = JobQueue::default();
        for tag in 0..100 {
            queue.push(FLOOD, job(tag));
            assert_eq!(queue.next(|_| true).map(|(_, next)| next.tag), Some(tag));
            queue.charge(FLOOD, 1000 * CLIENT_QUANTUM);
        }
        assert!(queue.is_empty() && queue.next(|_| true).is_none());
    }

    #[test]
    fn jobs_of_a_client_keep_their_order_and_wait_for_what_is_undecided() {
        let mut queue = JobQueue::default();
        (0..3).for_each(|tag| queue.push(SMALL, job(tag)));
        queue.hold(SMALL);
        assert!(queue.next(|_| true).is_none());
        queue.release(SMALL);
        assert!(queue.cancel(SMALL, 1).is_some() && queue.cancel(SMALL, 1).is_none());
        let tags: Vec<JobTag> =
            std::iter::from_fn(|| queue.next(|_| true)).map(|(_, next)| next.tag).collect();
        assert_eq!(tags, [0, 2]);
        assert!(!queue.has_ready(|_| true));
    }
}
