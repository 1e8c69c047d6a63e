//! Jobs that wait for a planner, by tenant and client. Each tenant has its turn, however many clients it has, and each of its
//! clients, however many jobs others have.
//!
//! Both go [in rounds](crate::rounds), by the work units of jobs.

use std::collections::VecDeque;

use super::JobTag;
use crate::group::{ClientKey, PlanJob};
use crate::ids::TenantId;
use crate::limits::CLIENT_QUANTUM;
use crate::rounds::Rounds;
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
    /// The number of groups with an unfinished proof. The client's next job waits for them.
    undecided: u32,
}

/// Rounds of clients, or of tenants.
type InTurn<K, V> = Rounds<K, V, { CLIENT_QUANTUM as i64 }>;

/// The clients of a tenant.
type Clients = InTurn<PortClient, Client>;

/// The jobs of all clients.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    tenants: InTurn<TenantId, Clients>,
    jobs: usize,
}

impl JobQueue {
    fn client(&mut self, client: PortClient) -> &mut Client {
        self.tenants.entry(client.1.tenant).entry(client)
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
        let of_client = self.tenants.get_mut(&client.1.tenant)?.get_mut(&client)?;
        let at = of_client.jobs.iter().position(|job| job.tag == tag)?;
        self.jobs -= 1;
        of_client.jobs.remove(at).map(|queued| queued.job)
    }

    /// Charges a client, and its tenant, for a job.
    pub(super) fn charge(&mut self, client: PortClient, units: u64) {
        self.tenants.charge(client.1.tenant, units);
        self.tenants.entry(client.1.tenant).charge(client, units);
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
        !self.is_empty() && self.tenants.values().any(|clients| some_ready(clients, &may_begin))
    }

    /// Takes the next job of those that may begin now.
    pub(super) fn next(&mut self, may_begin: impl Fn(&PlanJob) -> bool) -> Option<(PortClient, QueuedJob)> {
        if !self.has_ready(&may_begin) {
            return None;
        }
        loop {
            let (_, clients, may_spend) = self.tenants.first().expect("a tenant with a job has turns");
            if may_spend && some_ready(clients, &may_begin) {
                self.jobs -= 1;
                return Some(next_of(clients, may_begin));
            }
            if may_spend {
                // Nothing of it may begin, and nobody else ends the turns of its clients.
                (0..clients.len()).for_each(|_| clients.end_turn(Client::is_idle));
            }
            self.tenants.end_turn(Clients::is_empty);
        }
    }
}

fn some_ready(clients: &Clients, may_begin: impl Fn(&PlanJob) -> bool) -> bool {
    clients.values().any(|client| client.ready().is_some_and(&may_begin))
}

/// Takes the next job of those that may begin now. There is one.
fn next_of(clients: &mut Clients, may_begin: impl Fn(&PlanJob) -> bool) -> (PortClient, QueuedJob) {
    loop {
        let (client, of_client, may_spend) = clients.first().expect("a client with a job has turns");
        if may_spend && of_client.ready().is_some_and(&may_begin) {
            return (client, of_client.jobs.pop_front().expect("just seen"));
        }
        clients.end_turn(Client::is_idle);
    }
}

impl Client {
    fn ready(&self) -> Option<&PlanJob> {
        self.jobs.front().filter(|_| self.undecided == 0).map(|queued| &queued.job)
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.undecided == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: PortClient = (0, ClientKey::of_operator(1));
    const SMALL: PortClient = (0, ClientKey::of_operator(2));

    fn client_of(tenant: u16, number: u64) -> PortClient {
        (0, ClientKey { tenant: TenantId(tenant), number })
    }

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

    #[test]
    fn tenants_get_equal_shares_of_units_however_many_clients_they_have() {
        let mut queue = JobQueue::default();
        for number in 0..1000 {
            (0..4).for_each(|tag| queue.push(client_of(1, number), job(tag)));
        }
        (0..4000).for_each(|tag| queue.push(client_of(2, 0), job(tag)));
        let mut spent = [0u64; 2];
        let mut of_crowd = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let (client, _) = queue.next(|_| true).expect("there are jobs");
            let is_crowd = client.1.tenant == TenantId(1);
            of_crowd.extend(is_crowd.then_some(client));
            let cost = if is_crowd { 2 * CLIENT_QUANTUM } else { CLIENT_QUANTUM / 2 };
            spent[usize::from(is_crowd)] += cost;
            queue.charge(client, cost);
        }
        assert!(spent[0].abs_diff(spent[1]) <= 4 * CLIENT_QUANTUM, "{spent:?}");
        // Within a tenant, its clients have their turns.
        assert_eq!(of_crowd.len() as u64, spent[1] / CLIENT_QUANTUM / 2);
        // A third one waits for one turn of each.
        queue.push(client_of(3, 0), job(9000));
        let waits = (0..5).position(|_| {
            let (client, next) = queue.next(|_| true).expect("there are jobs");
            queue.charge(client, CLIENT_QUANTUM);
            next.tag == 9000
        });
        assert!(waits.is_some());
    }

    #[test]
    fn nothing_is_kept_of_clients_that_have_paid() {
        let mut queue = JobQueue::default();
        for number in 0..1000 {
            for tenant in 1..3 {
                queue.push(client_of(tenant, number), job(number));
                let (client, _) = queue.next(|_| true).expect("there is a job");
                queue.charge(client, 3 * CLIENT_QUANTUM);
            }
        }
        let kept = |queue: &JobQueue| queue.tenants.values().map(Clients::len).sum::<usize>();
        assert!(kept(&queue) < 20, "{} clients", kept(&queue));
        // They are forgotten too if it is another tenant that goes on asking.
        for tag in 0..100 {
            queue.push(client_of(3, 0), job(tag));
            let (client, _) = queue.next(|_| true).expect("there is a job");
            queue.charge(client, 2 * CLIENT_QUANTUM);
        }
        assert_eq!((kept(&queue), queue.tenants.len()), (1, 1));
    }
}
