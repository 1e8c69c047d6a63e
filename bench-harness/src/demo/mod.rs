//! The demo: a whole service on loopback, a synthetic cluster, places and releases over QUIC, and a summary
//! at the end. A good first run.

mod churn;
pub use churn::{Churn, ChurnReport, churn};

use std::fmt;
use std::time::{Duration, Instant};

use wharf_core::request::Policy;
use wharf_net::client::Client;
use wharf_ops::daemon::{Daemon, DaemonError};

use crate::durability::Mode;
use crate::replay::{LatencyNs, Progress, ReplayError, rate};
use crate::service;
use crate::target::{Books, RemoteTarget, Target, TargetError};
use crate::trace::TraceNode;
use crate::workload::SyntheticCluster;

/// The size of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The number of nodes of the synthetic cluster.
    pub nodes: u32,
    /// The total number of requests, places and releases.
    pub requests: u64,
    /// The maximum number of requests in flight.
    pub in_flight: usize,
    /// Seed of cluster, workload and service.
    pub seed: u64,
    /// The number of shards; by the cores of the machine if `None`.
    pub shards: Option<u16>,
    /// The policy of all places.
    pub policy: Policy,
    /// When replies leave.
    pub durability: Mode,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            nodes: 1000,
            requests: 100_000,
            in_flight: 256,
            seed: 1,
            shards: None,
            policy: Policy::default(),
            durability: Mode::SYNC,
        }
    }
}

/// A demo that failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The temporary data directory cannot be created.
    #[error("a temporary directory for the service's data cannot be made")]
    Directory(#[source] std::io::Error),
    /// The service failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The load or the books failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The service could not be reached.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// The result of the demo.
#[derive(Debug)]
pub struct Demo {
    options: DemoOptions,
    shards: u16,
    registration: Duration,
    churn: ChurnReport,
    books: Books,
    resident_bytes: Option<u64>,
}

/// Runs the demo.
///
/// # Errors
/// When the service cannot start, or any of its answers is wrong.
pub fn run(options: DemoOptions, progress: &mut dyn Progress) -> Result<Demo, DemoError> {
    let directory = tempfile::tempdir().map_err(DemoError::Directory)?;
    let mut config = service::config(directory.path(), options.seed, options.shards);
    config.set_durability(options.durability.durability);
    let daemon = Daemon::start(config)?;
    let demo = drive(&daemon, options, progress);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(DemoError::Directory)?.block_on(daemon.stop())?;
    demo
}

fn drive(daemon: &Daemon, options: DemoOptions, progress: &mut dyn Progress) -> Result<Demo, DemoError> {
    let cluster =
        SyntheticCluster { nodes: options.nodes, pods: 10_000, seed: options.seed, gpu_spec_percent: 10 };
    let trace = cluster.generate().parse().map_err(ReplayError::from)?;
    let mut target = RemoteTarget::open(|| Client::connect(service::client(daemon, "demo")))?;
    let registering = Instant::now();
    target.register(&trace.nodes.iter().map(TraceNode::spec).collect::<Vec<_>>())?;
    let registration = registering.elapsed();
    let load = Churn {
        requests: options.requests,
        in_flight: options.in_flight,
        seed: options.seed,
        policy: options.policy,
        utilisation_percent: 85,
        fill_in_flight: None,
    };
    let churn = churn(&mut target, &trace, &load, progress, &mut || {})?;
    let books = target.audit()?;
    crate::replay::check_books(&trace, &churn.promised, &books)?;
    let shards = target.shards();
    let resident_bytes = target.resident_bytes();
    Ok(Demo { options, shards, registration, churn, books, resident_bytes })
}

impl fmt::Display for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, churn, books, .. } = self;
        let share = |allocated: i128, capacity: i128| {
            if capacity > 0 { allocated as f64 * 100.0 / capacity as f64 } else { 0.0 }
        };
        writeln!(
            f,
            "a service of {} shard(s) over QUIC on loopback, {}, durability {}, {} requests in flight",
            self.shards,
            options.policy.name(),
            options.durability.name,
            options.in_flight
        )?;
        writeln!(
            f,
            "nodes        {:>12} registered in {:.3} s",
            books.nodes,
            self.registration.as_secs_f64()
        )?;
        writeln!(
            f,
            "requests     {:>12} ({} placed, {} refused, {} released)",
            churn.placed + churn.refused + churn.released,
            churn.placed,
            churn.refused,
            churn.released
        )?;
        let requests = churn.placed + churn.refused + churn.released;
        writeln!(
            f,
            "rate         {:>12.0} requests/s over {:.3} s",
            rate(requests, churn.elapsed),
            churn.elapsed.as_secs_f64()
        )?;
        for (what, histogram) in [("place", &churn.place_latency), ("release", &churn.release_latency)] {
            let LatencyNs { p50, p99, p999, max, .. } = LatencyNs::of(histogram);
            let micros = |nanos: u64| nanos as f64 / 1000.0;
            writeln!(
                f,
                "{what:<12} {:>12.1} µs p50, {:.1} p99, {:.1} p99.9, {:.1} max",
                micros(p50),
                micros(p99),
                micros(p999),
                micros(max)
            )?;
        }
        for (what, book) in [("GPUs", books.gpu), ("cores", books.cpu), ("memory", books.memory)] {
            writeln!(f, "{what:<12} {:>11.2} % allocated", share(book.allocated, book.capacity))?;
        }
        if let Some(bytes) = self.resident_bytes {
            writeln!(f, "memory used  {:>12} MiB, service and load together", bytes >> 20)?;
        }
        write!(
            f,
            "books        {:>12}: {} live allocations, every invariant holds, sums equal what was promised",
            "checked", books.allocations
        )
    }
}
