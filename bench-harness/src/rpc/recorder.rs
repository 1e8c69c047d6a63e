//! What a load records between the end of its warm-up and its own end.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wharf_core::link::lock;

use super::threads::Threads;
use crate::process::Process;

/// The longest latency that is told from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const OVER: u8 = 2;

/// How long a load is driven, and how long it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// The time before the measurement.
    pub(super) warm_up: Duration,
    /// The time of the measurement.
    pub(super) measured: Duration,
}

/// One measurement, or the sum of several.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Requests that were answered.
    pub(super) requests: u64,
    /// The time of the measurement.
    pub(super) elapsed: Duration,
    /// The processor time of the server, in seconds.
    pub(super) server_cpu: f64,
    /// The processor time of this process, in seconds.
    pub(super) client_cpu: f64,
    /// The threads of the server, with their times.
    pub(super) server_threads: Threads,
    /// The threads of this process.
    pub(super) client_threads: Threads,
    /// The latency of each frame, in ns.
    pub(super) latency: Histogram<u64>,
}

impl Segment {
    pub(super) fn empty() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
        Self {
            requests: 0,
            elapsed: Duration::ZERO,
            server_cpu: 0.0,
            client_cpu: 0.0,
            server_threads: Threads::default(),
            client_threads: Threads::default(),
            latency,
        }
    }

    /// Adds another segment of the same load.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.elapsed += other.elapsed;
        self.server_cpu += other.server_cpu;
        self.client_cpu += other.client_cpu;
        self.server_threads.add(&other.server_threads);
        self.client_threads.add(&other.client_threads);
        self.latency.add(&other.latency).expect("both have the same bounds");
    }
}

struct Recorded {
    latency: Histogram<u64>,
    requests: u64,
}

/// Records the answers of one segment. All parts of a load share it.
pub(super) struct Recorder {
    phase: AtomicU8,
    recorded: Mutex<Recorded>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        let Segment { latency, requests, .. } = Segment::empty();
        Self { phase: AtomicU8::new(WARMING_UP), recorded: Mutex::new(Recorded { latency, requests }) }
    }

    /// Returns whether the load sends nothing more.
    pub(super) fn is_over(&self) -> bool {
        // Relaxed: it only signals the end.
        self.phase.load(Ordering::Relaxed) == OVER
    }

    /// Begins to record answers, each of `requests` requests, which came at `now`.
    pub(super) fn batch(&self, now: Instant, requests: u64) -> Batch<'_> {
        // Relaxed: an answer at the border of a phase may count to either side.
        let measures = self.phase.load(Ordering::Relaxed) == MEASURING;
        Batch { recorded: measures.then(|| lock(&self.recorded)), now, requests }
    }

    /// Lets the load warm up, then measures it. The load ends when this does.
    pub(super) async fn measure(&self, times: Times, server: Process) -> anyhow::Result<Segment> {
        tokio::time::sleep(times.warm_up).await;
        let threads_before = (Threads::of(server)?, Threads::of(Process::This)?);
        let server_before = server.cpu_seconds()?;
        let client_before = Process::This.cpu_seconds()?;
        let begun = Instant::now();
        // Relaxed: see above.
        self.phase.store(MEASURING, Ordering::Relaxed);
        tokio::time::sleep(times.measured).await;
        self.phase.store(OVER, Ordering::Relaxed);
        let elapsed = begun.elapsed();
        let server_cpu = server.cpu_seconds()? - server_before;
        let client_cpu = Process::This.cpu_seconds()? - client_before;
        let server_threads = Threads::of(server)?.since(&threads_before.0);
        let client_threads = Threads::of(Process::This)?.since(&threads_before.1);
        let recorded = lock(&self.recorded);
        Ok(Segment {
            requests: recorded.requests,
            elapsed,
            server_cpu,
            client_cpu,
            server_threads,
            client_threads,
            latency: recorded.latency.clone(),
        })
    }
}

/// Answers that came together.
pub(super) struct Batch<'a> {
    recorded: Option<MutexGuard<'a, Recorded>>,
    now: Instant,
    requests: u64,
}

impl Batch<'_> {
    /// Records the answer to a frame that was sent, or was to be sent, at `since`.
    pub(super) fn record(&mut self, since: Instant) {
        if let Some(recorded) = &mut self.recorded {
            let nanos = self.now.saturating_duration_since(since).as_nanos() as u64;
            recorded.latency.saturating_record(nanos);
            recorded.requests += self.requests;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_of_the_measurement_count() {
        let recorder = Recorder::new();
        let since = Instant::now();
        let answer = || recorder.batch(since + Duration::from_micros(5), 64).record(since);
        answer();
        recorder.phase.store(MEASURING, Ordering::Relaxed);
        answer();
        answer();
        recorder.phase.store(OVER, Ordering::Relaxed);
        answer();
        let recorded = lock(&recorder.recorded);
        assert_eq!((recorded.requests, recorded.latency.len()), (128, 2));
        assert!(recorded.latency.max() >= 5_000 && recorded.latency.max() < 5_100);
    }

    #[test]
    fn segments_of_one_load_are_summed() {
        let mut sum = Segment::empty();
        let mut one = Segment::empty();
        one.requests = 3;
        one.elapsed = Duration::from_secs(1);
        one.latency.saturating_record(7);
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.requests, sum.elapsed, sum.latency.len()), (6, Duration::from_secs(2), 2));
    }
}
