//! Clients that offer requests at a rate, each with a deadline, and what became of them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use wharf_core::link::lock;
use wharf_net::client::{Client, ClientConfig, ClientError, Completion, Completions};
use wharf_net::protocol::Reason;

use super::arrivals::{Arrivals, Pacer, Schedule};
use super::drive::{Driver, InFlight, close, connect};
use super::recorder::Segment;
use super::work::{Answered, Mix};

/// Requests at a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) per_second: f64,
    /// The time within which a result counts.
    pub(super) deadline: Duration,
    /// Requests carry the deadline, so that the service refuses what would be late.
    pub(super) is_told: bool,
    pub(super) seed: u64,
}

/// The time in which requests count that are due. An offer begins before it, and ends with it.
#[derive(Debug, Default)]
pub(super) struct Window(OnceLock<(Instant, Instant)>);

impl Window {
    /// Sets begin and length, once.
    pub(super) fn set(&self, begin: Instant, time: Duration) {
        let set = self.0.set((begin, begin + time));
        assert!(set.is_ok(), "a window is set once");
    }

    fn is_over(&self, due: Instant) -> bool {
        self.0.get().is_some_and(|&(_, end)| due >= end)
    }

    /// A request that is answered before the window is set was due before it.
    fn counts(&self, due: Instant) -> bool {
        self.0.get().is_some_and(|&(begin, end)| (begin..end).contains(&due))
    }

    fn length(&self) -> Duration {
        self.0.get().map_or(Duration::ZERO, |&(begin, end)| end - begin)
    }
}

/// What became of requests.
#[derive(Clone, Debug)]
pub(super) struct Outcomes {
    /// Requests that were due during the measurement.
    pub(super) offered: u64,
    /// Those answered with a result within their deadline.
    pub(super) good: u64,
    /// Those answered with a result, but late.
    pub(super) late: u64,
    /// Those that the service refused.
    pub(super) shed: u64,
    pub(super) elapsed: Duration,
    /// The processor time of the shards' threads during the measurement, per thread.
    pub(super) shard_seconds: f64,
    /// What was answered with a result, also before the measurement. The caller that drives the load sets it.
    pub(super) answered: Answered,
    /// From when requests were due to their results, in ns.
    pub(super) latency: Histogram<u64>,
}

impl Outcomes {
    pub(super) fn new() -> Self {
        let Segment { latency, .. } = Segment::empty();
        let elapsed = Duration::ZERO;
        let answered = Answered::default();
        Self { offered: 0, good: 0, late: 0, shed: 0, elapsed, shard_seconds: 0.0, answered, latency }
    }

    /// Returns the outcomes of a load without deadlines.
    pub(super) fn of_segment(segment: &Segment) -> Self {
        let &Segment { requests, elapsed, .. } = segment;
        let latency = segment.latency.clone();
        Self { offered: requests, good: requests, elapsed, latency, ..Self::new() }
    }

    /// Adds the outcomes of another turn of the same load.
    pub(super) fn add(&mut self, other: &Self) {
        self.elapsed += other.elapsed;
        self.shard_seconds += other.shard_seconds;
        self.answered.add(other.answered);
        self.add_of_connection(other);
    }

    /// Adds the outcomes of another connection, at the same time.
    fn add_of_connection(&mut self, other: &Self) {
        self.offered += other.offered;
        self.good += other.good;
        self.late += other.late;
        self.shed += other.shed;
        self.latency.add(&other.latency).expect("both have the same bounds");
    }

    pub(super) fn good_per_second(&self) -> f64 {
        crate::replay::rate(self.good, self.elapsed)
    }

    /// Returns the part of the time in which the shards' threads had a processor.
    pub(super) fn shards_busy(&self) -> f64 {
        self.shard_seconds / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub(super) fn offered_per_second(&self) -> f64 {
        crate::replay::rate(self.offered, self.elapsed)
    }
}

/// Requests that are offered.
pub(super) struct Offered {
    connected: oneshot::Receiver<()>,
    thread: JoinHandle<anyhow::Result<Outcomes>>,
}

impl Offered {
    /// Waits until all connections are made. If one is not, [`join`](Self::join) says why.
    pub(super) async fn connected(&mut self) {
        let _ = (&mut self.connected).await;
    }

    /// Waits until the window is over and all requests are answered.
    pub(super) fn join(self) -> anyhow::Result<Outcomes> {
        self.thread.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))?
    }
}

/// Offers requests from a thread of its own, over this number of connections, until the window is over.
pub(super) fn offer(
    config: &ClientConfig,
    driver: &Driver,
    offer: Offer,
    connections: usize,
    window: &Arc<Window>,
) -> Offered {
    let config = config.clone();
    let driver = driver.clone();
    let window = Arc::clone(window);
    let (tell_connected, connected) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, async {
            let clients = connect(&config, connections, 1).await?;
            // Nobody may wait for it.
            let _ = tell_connected.send(());
            let schedule = Schedule::new(Arrivals::Poisson, offer.per_second.max(1.0), 1, offer.seed);
            let mut tasks = JoinSet::new();
            for (number, client) in clients.iter().enumerate() {
                let connection = Connection {
                    driver: driver.clone(),
                    client: if offer.is_told { client.within(offer.deadline) } else { client.clone() },
                    deadline: offer.deadline,
                    window: Arc::clone(&window),
                };
                tasks.spawn_local(connection.open(schedule.part(number, connections)));
            }
            let mut outcomes = Outcomes::new();
            while let Some(ended) = tasks.join_next().await {
                outcomes.add_of_connection(&ended.context("a task of the load panicked")??);
            }
            outcomes.elapsed = window.length();
            close(clients).await?;
            Ok(outcomes)
        })
    });
    Offered { connected, thread }
}

/// A connection of a load.
struct Connection {
    driver: Driver,
    client: Client,
    deadline: Duration,
    window: Arc<Window>,
}

impl Connection {
    /// Sends requests when they are due, whether earlier ones are answered or not.
    async fn open(self, schedule: Schedule) -> anyhow::Result<Outcomes> {
        let completions = Arc::<Completions>::default();
        let in_flight = Mutex::new(InFlight::default());
        let outcomes = Mutex::new(Outcomes::new());
        let sending = async {
            let mut pacer = Pacer::new(schedule)?;
            loop {
                let due = pacer.arrival().await?;
                if self.window.is_over(due) {
                    return anyhow::Ok(());
                }
                let asked = lock(&self.driver.work).next(Mix::Pairs(1));
                let tag = lock(&in_flight).enter(asked.clone(), due);
                self.driver.submit(&self.client, &asked, &completions, tag).await?;
            }
        };
        let taking = async {
            let mut taken = Vec::new();
            loop {
                completions.take(&mut taken).await;
                self.take(&mut taken, &mut lock(&in_flight), &mut lock(&outcomes))?;
            }
        };
        tokio::select! {
            sent = sending => sent?,
            failed = taking => return failed,
        }
        let mut taken = Vec::new();
        let mut in_flight = in_flight.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        while in_flight.count() > 0 {
            completions.take(&mut taken).await;
            self.take(&mut taken, &mut in_flight, &mut outcomes)?;
        }
        Ok(outcomes)
    }

    /// Takes replies that came together.
    fn take(
        &self,
        taken: &mut Vec<Completion>,
        in_flight: &mut InFlight,
        outcomes: &mut Outcomes,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        for Completion { tag, reply } in taken.drain(..) {
            let (asked, due) = in_flight.leave(tag)?;
            let counts = self.window.counts(due);
            outcomes.offered += u64::from(counts);
            match reply {
                Ok(raw) => {
                    self.driver.answered(&asked, &raw)?;
                    let took = now.saturating_duration_since(due);
                    if counts {
                        let is_late = took > self.deadline;
                        outcomes.late += u64::from(is_late);
                        outcomes.good += u64::from(!is_late);
                        outcomes.latency.saturating_record(took.as_nanos() as u64);
                    }
                }
                Err(ClientError::Fault(fault))
                    if matches!(
                        fault.reason.known(),
                        Some(Reason::Overloaded | Reason::DeadlineExceeded)
                    ) =>
                {
                    lock(&self.driver.work).not_done(asked);
                    outcomes.shed += u64::from(counts);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_that_are_due_within_the_window() {
        let window = Window::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!window.counts(now) && !window.is_over(now + 9 * second), "it is not set");
        window.set(now + second, second);
        let counts = [0, 1, 2].map(|seconds| window.counts(now + seconds * second));
        let is_over = [0, 1, 2].map(|seconds| window.is_over(now + seconds * second));
        assert_eq!((counts, is_over), ([false, true, false], [false, false, true]));
        assert_eq!(window.length(), second);
    }

    #[test]
    fn turns_are_summed_and_connections_are_at_the_same_time() {
        let second = Duration::from_secs(1);
        let one = Outcomes { offered: 10, good: 6, late: 1, shed: 3, elapsed: second, ..Outcomes::new() };
        let mut both = Outcomes { elapsed: second, shard_seconds: 0.75, ..Outcomes::new() };
        both.add_of_connection(&one);
        both.add_of_connection(&one);
        assert_eq!((both.good_per_second(), both.offered_per_second()), (12.0, 20.0));
        let mut turns = Outcomes::new();
        turns.add(&both);
        turns.add(&both);
        assert_eq!((turns.good_per_second(), turns.late, turns.shed), (12.0, 4, 12));
        assert_eq!(turns.shards_busy(), 0.75);
    }
}
