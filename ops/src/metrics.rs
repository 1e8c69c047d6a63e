//! Metrics. Each thread records its own; a scrape merges them.
//!
//! Latencies are kept in HDR histograms, one per thread and stage. A scrape merges them and exports
//! quantiles. Each histogram has a lock. Only a scrape contends for it, and only to swap a pointer, so a
//! thread never waits for long. A scrape also sees what an idle thread recorded last. (With hdrhistogram's
//! own recorders, a scrape waits until every thread records again.) Sums and counters of the books come from
//! the shards' status.

mod journal;
pub use journal::JournalFigures;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::audit::Audit;
use hdrhistogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use wharf_core::executor::{BatchRecord, Observer};
use wharf_core::ids::ShardId;
use wharf_core::link::lock;
use wharf_core::planner::{Planner, PlannerMetrics};
use wharf_core::resource::Amount;
use wharf_core::shard::Outcome;
use wharf_core::time::Time;
use wharf_net::access::Denied;
use wharf_net::protocol::{Kind, ReasonCode, ShardStatusBody, StatusReply, StatusRequest};
use wharf_net::server::{Counters, IoObserver, RegistrarHandle, ServerShared};
use wharf_net::session::registrar::{RegistrarReply, RegistrarRequest};

/// Latencies above one minute are recorded as one minute.
const NANOS_MAX: u64 = 60_000_000_000;

/// A stage that a request passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// From the ring entry to the batch, per command.
    RingWait,
    /// One batch in the shard, from draining the rings to the outcomes.
    Step,
    /// From reading a request to its encoded reply.
    Request,
}

impl Stage {
    const ALL: [Self; 3] = [Self::RingWait, Self::Step, Self::Request];

    fn name(self) -> &'static str {
        ["ring_wait", "step", "request"][self as usize]
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("the bounds are those of a histogram")
}

/// The latencies of one stage on one thread.
struct Latencies {
    /// Recorded since the last scrape. Boxed, so that a scrape swaps a pointer instead of copying.
    recent: Mutex<Box<Histogram<u64>>>,
    /// Everything recorded before, and an empty histogram to swap with `recent`. Only scrapes use this.
    before: Mutex<(Histogram<u64>, Box<Histogram<u64>>)>,
}

impl Latencies {
    fn new() -> Arc<Self> {
        let before = Mutex::new((histogram(), Box::new(histogram())));
        Arc::new(Self { recent: Mutex::new(Box::new(histogram())), before })
    }

    fn record(&self, nanos: impl IntoIterator<Item = u64>) {
        let mut recent = lock(&self.recent);
        let mut nanos = nanos.into_iter();
        let Some(mut run) = nanos.next() else { return };
        // Requests that one read brought have equal times. Each run of them is one look at the histogram.
        let mut count = 1;
        for nanos in nanos {
            if nanos == run {
                count += 1;
                continue;
            }
            recent.saturating_record_n(run, count);
            (run, count) = (nanos, 1);
        }
        recent.saturating_record_n(run, count);
    }

    /// Adds everything recorded since the start to `sum`.
    fn add_to(&self, sum: &mut Histogram<u64>) {
        let (before, spare) = &mut *lock(&self.before);
        std::mem::swap(&mut *lock(&self.recent), spare);
        before.add(&**spare).expect("equal bounds");
        spare.reset();
        sum.add(&*before).expect("equal bounds");
    }
}

/// All histograms and counters of one service.
pub struct Metrics {
    /// One per thread of each stage, in the order of [`Stage::ALL`].
    latencies: [Vec<Arc<Latencies>>; 3],
    /// The counters of each planner, and the number of groups that it keeps.
    planners: Vec<Mutex<(PlannerMetrics, u64)>>,
    replies: Mutex<Vec<(Kind, u16, Arc<AtomicU64>)>>,
    journal: OnceLock<JournalFigures>,
    shared: Arc<ServerShared>,
    /// Where refused calls are written.
    audit: Audit,
}

impl Metrics {
    /// Creates the metrics of a service with these numbers of shards, I/O threads and planners.
    #[must_use]
    pub fn new((shards, io_threads, planners): (u16, u16, u16), shared: Arc<ServerShared>) -> Self {
        let histograms = |count: u16| (0..count).map(|_| Latencies::new()).collect();
        Self {
            latencies: [histograms(shards), histograms(shards), histograms(io_threads)],
            planners: (0..planners).map(|_| Mutex::default()).collect(),
            replies: Mutex::new(Vec::new()),
            journal: OnceLock::new(),
            shared,
            audit: Audit::default(),
        }
    }

    /// Sets what is read of the journal. Only the first call has an effect.
    pub fn set_journal(&self, figures: JournalFigures) {
        let _ = self.journal.set(figures);
    }

    /// Returns the recorder of a shard's thread.
    #[must_use]
    pub fn shard_observer(&self, shard: ShardId) -> ShardObserver {
        ShardObserver {
            ring_wait: self.latencies(Stage::RingWait, shard.index()),
            step: self.latencies(Stage::Step, shard.index()),
            drained: Time::default(),
        }
    }

    /// Returns the counters of a planner as of the last [`follow_planner`](Self::follow_planner).
    #[must_use]
    pub fn planner(&self, number: usize) -> PlannerMetrics {
        lock(&self.planners[number]).0
    }

    /// Copies the counters of a planner. Called by the planner's own thread.
    pub fn follow_planner(&self, number: usize, planner: &Planner) {
        *lock(&self.planners[number]) = (*planner.metrics(), planner.group_count() as u64);
    }

    /// Returns the recorder of an I/O thread.
    #[must_use]
    pub fn io_observer(self: &Arc<Self>, thread: usize) -> ReplyObserver {
        ReplyObserver {
            metrics: Arc::clone(self),
            request: self.latencies(Stage::Request, thread),
            counters: Vec::new(),
        }
    }

    fn latencies(&self, stage: Stage, thread: usize) -> Arc<Latencies> {
        Arc::clone(&self.latencies[stage as usize][thread])
    }

    fn merged(&self, stage: Stage) -> Histogram<u64> {
        let mut merged = histogram();
        self.latencies[stage as usize].iter().for_each(|latencies| latencies.add_to(&mut merged));
        merged
    }

    /// Registers a counter for replies of this kind and reason. Each thread gets its own.
    fn reply_counter(&self, kind: Kind, reason: ReasonCode) -> Arc<AtomicU64> {
        let counter = Arc::default();
        let mut replies = lock(&self.replies);
        replies.push((kind, reason.0, Arc::clone(&counter)));
        counter
    }

    /// Returns the metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When the service is shutting down.
    pub async fn scrape(&self, registrar: &RegistrarHandle) -> Result<String, String> {
        let status = RegistrarRequest::Status(StatusRequest { audit: false });
        let answer = registrar.ask(status).await.map_err(|fault| fault.to_string())?;
        let Ok(RegistrarReply::Status(status)) = answer.await else {
            return Err("the service is shutting down".to_owned());
        };
        let mut text = String::new();
        let mut registry = Registry::with_prefix("wharf");
        registry.register_collector(Box::new(Snapshot::new(self, &status)));
        encode(&mut text, &registry).map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// Records the latencies of a shard's thread.
pub struct ShardObserver {
    ring_wait: Arc<Latencies>,
    step: Arc<Latencies>,
    drained: Time,
}

impl Observer for ShardObserver {
    fn handle_batch(&mut self, batch: &BatchRecord<'_>) {
        self.drained = batch.now;
        self.ring_wait.record(batch.enqueued.iter().map(|&enqueued| batch.now.nanos_since(enqueued)));
    }

    fn handle_stepped(&mut self, _outcomes: &[Outcome], finished: Time) {
        self.step.record([finished.nanos_since(self.drained)]);
    }

    fn wants_times(&self) -> bool {
        true
    }
}

/// Records the latencies and replies of an I/O thread.
pub struct ReplyObserver {
    metrics: Arc<Metrics>,
    request: Arc<Latencies>,
    counters: Vec<(Kind, ReasonCode, Arc<AtomicU64>)>,
}

impl ReplyObserver {
    fn count(&mut self, kind: Kind, reason: ReasonCode) {
        let known = self.counters.iter().position(|&(k, r, _)| (k, r) == (kind, reason));
        let at = known.unwrap_or_else(|| {
            self.counters.push((kind, reason, self.metrics.reply_counter(kind, reason)));
            self.counters.len() - 1
        });
        // Relaxed: a statistic; no other memory depends on it.
        self.counters[at].2.fetch_add(1, Ordering::Relaxed);
    }
}

impl IoObserver for ReplyObserver {
    fn handle_reply(&mut self, kind: Kind, reason: ReasonCode, nanos: u64) {
        self.request.record([nanos]);
        // A successful reply with several parts is counted by its parts, each under its own reason.
        if !(kind.has_parts() && reason.is_done()) {
            self.count(kind, reason);
        }
    }

    fn handle_part(&mut self, kind: Kind, reason: ReasonCode) {
        self.count(kind, reason);
    }

    fn handle_denied(&mut self, denied: &Denied<'_>) {
        self.metrics.audit.note(denied);
    }
}

/// One sample with its labels.
type Sample<T> = (Vec<(&'static str, String)>, T);

/// Returns one sample without labels.
fn plain<T>(value: T) -> Vec<Sample<T>> {
    vec![(Vec::new(), value)]
}

/// A counter of a `T`: its name, its help text, and its value.
type Counter<T> = (&'static str, &'static str, fn(&T) -> u64);

fn load(counter: &AtomicU64) -> u64 {
    // Relaxed: a statistic; no other memory depends on it.
    counter.load(Ordering::Relaxed)
}

const SHARD_COUNTERS: [Counter<ShardStatusBody>; 3] = [
    ("placed", "Placements granted", |shard| shard.placed),
    ("refused", "Placements refused, per shard that refused", |shard| shard.refused),
    ("released", "Allocations released", |shard| shard.released),
];

const SERVER_COUNTERS: [Counter<Counters>; 9] = [
    ("shed", "Requests refused because they could not be done before their deadline", |server| {
        load(&server.shed)
    }),
    ("held_full", "Times that the sessions of an I/O thread began to hold more than their total", |server| {
        load(&server.held_full)
    }),
    ("spilled", "Placements that went on to another shard", |server| load(&server.spillbacks)),
    ("connections_opened", "Connections since the start", |server| load(&server.connections_total)),
    ("connections_refused", "Connections refused for want of room, in all or for their address", |server| {
        load(&server.connections_refused)
    }),
    ("frames_refused", "Frames refused for a fault of the peer", |server| load(&server.frames_refused)),
    ("follow_pages", "Pages of changes to followers", |server| load(&server.follow_pages)),
    ("event_pages", "Pages of events to followers", |server| load(&server.event_pages)),
    ("follow_resyncs", "Times that a follower began with nothing, per shard", |server| {
        load(&server.follow_resyncs)
    }),
];

/// Conflicts, useful and wasted work: the metrics of the Omega paper.
const PLANNER_COUNTERS: [Counter<PlannerMetrics>; 12] = [
    ("statements", "Statements that planners sent to shards", |planner| planner.statements),
    ("statements_committed", "Statements committed, at least in part", |planner| planner.committed),
    ("statements_conflicted", "Statements in which something conflicted", |planner| planner.conflicted),
    ("statements_expired", "Statements that shards ended at their deadline", |planner| planner.expired),
    ("attempts", "Statements that placed bundles of groups, or tried to", |planner| planner.attempts),
    ("placings", "Attempts that placed any; attempts over these are attempts per statement", |planner| {
        planner.placings
    }),
    ("operations", "Operations that planners sent to shards", |planner| planner.operations),
    ("operations_granted", "Operations granted; the rest was wasted work", |planner| planner.granted),
    ("cycles", "Scheduling cycles that looked at anything", |planner| planner.cycles),
    ("cycle_nanoseconds", "Time that scheduling cycles took", |planner| planner.cycle_ns),
    ("tasks_placed", "Tasks that cycles gave a node or a claim", |planner| planner.tasks_placed),
    ("tasks_evicted", "Tasks that cycles evicted for others", |planner| planner.tasks_evicted),
];

/// The samples of one metric.
#[derive(Debug)]
enum Samples {
    Gauge(Vec<Sample<f64>>),
    Counter(Vec<Sample<u64>>),
}

/// All metrics of one scrape, each with its name, help text and unit.
#[derive(Debug)]
struct Snapshot(Vec<(&'static str, &'static str, Option<Unit>, Samples)>);

impl Snapshot {
    fn new(metrics: &Metrics, status: &StatusReply) -> Self {
        let counters = &metrics.shared.sessions.counters;
        let mut latencies = Vec::new();
        let mut observations = Vec::new();
        for stage in Stage::ALL {
            let merged = metrics.merged(stage);
            let label =
                |quantile: &str| vec![("stage", stage.name().to_owned()), ("quantile", quantile.to_owned())];
            for (quantile, name) in [(0.5, "0.5"), (0.99, "0.99"), (0.999, "0.999"), (1.0, "1")] {
                latencies.push((label(name), merged.value_at_quantile(quantile) as f64 / 1e9));
            }
            observations.push((vec![("stage", stage.name().to_owned())], merged.len()));
        }
        let planners = metrics.planners.iter().enumerate();
        let planners =
            planners.map(|(number, planner)| (vec![("planner", number.to_string())], *lock(planner)));
        let planners: Vec<Sample<(PlannerMetrics, u64)>> = planners.collect();
        let groups = planners.iter().map(|(label, (_, groups))| (label.clone(), *groups as f64)).collect();
        let pending = |(label, (counts, _)): &Sample<(PlannerMetrics, u64)>| {
            (label.clone(), counts.tasks_pending as f64)
        };
        let pending = planners.iter().map(pending).collect();
        let of_planners = |of: fn(&PlannerMetrics) -> u64| {
            planners.iter().map(|(label, (counts, _))| (label.clone(), of(counts))).collect()
        };
        let replies = lock(&metrics.replies);
        let mut by_label = std::collections::BTreeMap::<_, u64>::new();
        for (kind, reason, counter) in replies.iter() {
            *by_label.entry((kind.name(), ReasonCode(*reason).to_string())).or_default() += load(counter);
        }
        let replies = by_label
            .into_iter()
            .map(|((kind, reason), count)| (vec![("kind", kind.to_owned()), ("reason", reason)], count))
            .collect();
        let gauges = [
            ("nodes", "Registered nodes", node_samples(status)),
            (
                "nodes_reserved",
                "Nodes that are reserved for an owner",
                shard_samples(status, |shard| f64::from(shard.nodes_reserved)),
            ),
            ("allocations", "Live allocations", shard_samples(status, |shard| shard.allocations as f64)),
            ("resource", "The books per resource, in its unit", resource_samples(status)),
            ("groups", "Placement groups, waiting ones included", groups),
            ("tasks_pending", "Tasks that wait in queues, with placements and bundles of groups", pending),
            (
                "handshakes",
                "Connections in their handshake, or waiting for it",
                plain(load(&counters.handshakes) as f64),
            ),
            (
                "handshakes_waiting",
                "Connections that wait for their handshake",
                plain(load(&counters.handshakes_waiting) as f64),
            ),
            ("connections", "Open connections", plain(load(&counters.connections) as f64)),
            ("followers", "Connections that follow changes", plain(load(&counters.followers) as f64)),
            (
                "event_followers",
                "Connections that follow events",
                plain(load(&counters.event_followers) as f64),
            ),
            ("resident_bytes", "Resident memory of the process", plain(status.resident_bytes as f64)),
        ];
        let counters = (SHARD_COUNTERS.iter())
            .map(|&(name, help, of)| (name, help, shard_samples(status, of)))
            .chain(SERVER_COUNTERS.iter().map(|&(name, help, of)| (name, help, plain(of(counters)))))
            .chain(PLANNER_COUNTERS.iter().map(|&(name, help, of)| (name, help, of_planners(of))))
            .chain([
                ("replies", "Replies by kind and reason; of a batch, its parts", replies),
                ("latency_observations", "Observations per stage", observations),
            ]);
        let help = "Latency per stage, quantiles since the start";
        let latencies = ("latency", help, Some(Unit::Seconds), Samples::Gauge(latencies));
        let gauges = gauges.into_iter().map(|(name, help, of)| (name, help, None, Samples::Gauge(of)));
        let counters = counters.map(|(name, help, of)| (name, help, None, Samples::Counter(of)));
        let journal = metrics.journal.get().map_or_else(Vec::new, JournalFigures::metrics);
        Self(gauges.chain(counters).chain([latencies]).chain(journal).collect())
    }
}

fn shard_samples<T>(status: &StatusReply, value: impl Fn(&ShardStatusBody) -> T) -> Vec<Sample<T>> {
    status.shards.iter().map(|shard| (vec![("shard", shard.shard.to_string())], value(shard))).collect()
}

fn node_samples(status: &StatusReply) -> Vec<Sample<f64>> {
    let sample = |shard: u16, state: &str, count: u32| {
        (vec![("shard", shard.to_string()), ("state", state.to_owned())], f64::from(count))
    };
    let samples = status.shards.iter().flat_map(|s| {
        [
            sample(s.shard, "ready", s.nodes_ready),
            sample(s.shard, "draining", s.nodes_draining),
            sample(s.shard, "joining", s.nodes_joining),
            sample(s.shard, "lost", s.nodes_lost),
        ]
    });
    samples.collect()
}

fn resource_samples(status: &StatusReply) -> Vec<Sample<f64>> {
    let units = |amount: i128| amount as f64 / Amount::SCALE as f64;
    let sample = |name: &str, book: &str, amount: i128| {
        (vec![("resource", name.to_owned()), ("book", book.to_owned())], units(amount))
    };
    let books = status.resources.iter().flat_map(|resource| {
        [
            sample(&resource.name, "total", resource.total),
            sample(&resource.name, "allocated", resource.allocated),
            sample(&resource.name, "shortfall", resource.shortfall),
            sample(&resource.name, "unhealthy", resource.unhealthy),
            sample(&resource.name, "reserved", resource.reserved),
        ]
    });
    books.collect()
}

fn encode_samples<T: Copy, M: EncodeMetric>(
    mut encoder: MetricEncoder<'_>,
    samples: &[Sample<T>],
    metric: impl Fn(T) -> M,
) -> fmt::Result {
    if let [(labels, value)] = samples
        && labels.is_empty()
    {
        return metric(*value).encode(encoder);
    }
    samples.iter().try_for_each(|(labels, value)| metric(*value).encode(encoder.encode_family(labels)?))
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, unit, samples) in &self.0 {
            let kind = match samples {
                Samples::Gauge(_) => MetricType::Gauge,
                Samples::Counter(_) => MetricType::Counter,
            };
            let family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            match samples {
                Samples::Gauge(samples) => encode_samples(family, samples, ConstGauge::new)?,
                Samples::Counter(samples) => encode_samples(family, samples, ConstCounter::new)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_sees_what_an_idle_thread_recorded_last_and_forgets_nothing() {
        let latencies = Latencies::new();
        let merged = |latencies: &Latencies| {
            let mut sum = histogram();
            latencies.add_to(&mut sum);
            (sum.len(), sum.max())
        };
        latencies.record([10, 20]);
        assert_eq!(merged(&latencies), (2, 20));
        assert_eq!(merged(&latencies), (2, 20));
        latencies.record([30]);
        assert_eq!(merged(&latencies), (3, 30));
        latencies.record([u64::MAX]);
        assert_eq!(merged(&latencies).0, 4);
        latencies.record([]);
        // Equal values that follow each other are recorded together.
        latencies.record([10, 10, 7, 10, 7, 7]);
        let mut sum = histogram();
        latencies.add_to(&mut sum);
        assert_eq!((sum.len(), sum.count_at(10), sum.count_at(7)), (10, 4, 3));
    }
}
