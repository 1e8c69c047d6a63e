//! `wharf-bench durability`: what it costs that a reply survives a crash.
//!
//! A whole service runs in this process, as in the demo, at 85 % utilisation. Each row measures one mode and one number of
//! requests in flight. The floor is measured in the same directory: the time of one small write and its sync.

mod floor;
pub use floor::floor_sync_ns;

use std::fmt;
use std::sync::atomic::Ordering;

use serde::Serialize;
use wharf_core::request::Policy;
use wharf_net::client::Client;
use wharf_ops::daemon::Daemon;
use wharf_ops::journal::Durability;

use crate::demo::{Churn, DemoError, churn};
use crate::replay::{LatencyNs, ReplayError, Silent, rate};
use crate::service;
use crate::target::{RemoteTarget, Target};
use crate::trace::TraceNode;
use crate::workload::SyntheticCluster;

/// A mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Its name, as in the settings.
    pub name: &'static str,
    /// When replies leave.
    pub durability: Durability,
}

impl Mode {
    /// A reply leaves at once.
    pub const MEMORY: Self = Self { name: "memory", durability: Durability::Memory };
    /// A reply leaves once it survives the process.
    pub const OS: Self = Self { name: "os", durability: Durability::Os };
    /// A reply leaves once it survives a loss of power.
    pub const SYNC: Self = Self { name: "sync", durability: Durability::Sync };
}

/// The modes, in the order in which they are measured.
pub const MODES: [Mode; 3] = [Mode::MEMORY, Mode::OS, Mode::SYNC];

/// The requests in flight while the cluster is filled.
const FILL_IN_FLIGHT: usize = 256;

/// The measurements: one row per mode and number of requests in flight.
#[derive(Clone, Debug)]
pub struct DurabilityOptions {
    /// The modes.
    pub modes: Vec<Mode>,
    /// The numbers of requests in flight.
    pub in_flight: Vec<usize>,
    /// The requests per row, for each request in flight; at least 20,000 together.
    pub requests: u64,
    /// The number of nodes of the synthetic cluster.
    pub nodes: u32,
    /// The number of shards; by the cores of the machine if `None`.
    pub shards: Option<u16>,
    /// Seed of cluster, workload and service.
    pub seed: u64,
    /// The number of rounds. Each measures all rows, and a row has the medians of its rounds.
    pub rounds: usize,
    /// The directory under which the data directories are made.
    pub directory: std::path::PathBuf,
}

/// The measurement of one mode and one number of requests in flight.
#[derive(Clone, Debug, Serialize)]
pub struct DurabilityRow {
    /// The mode.
    pub mode: &'static str,
    /// The number of requests in flight.
    pub in_flight: usize,
    /// Placements that were granted, per second. As many allocations are released.
    pub placements_per_second: f64,
    /// The time from the submission of a placement to its reply.
    pub latency_ns: LatencyNs,
    /// The bytes of the journal per granted placement, with those of its release. 0 without a journal.
    pub bytes_per_placement: f64,
    /// Requests per group commit. 0 without a journal.
    pub requests_per_commit: f64,
    /// The median time of a write of 256 bytes and its sync, in the same directory.
    pub floor_sync_ns: u64,
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When the service cannot start, or any of its answers is wrong.
pub fn run(
    options: &DurabilityOptions,
    each: impl FnMut(&DurabilityRow),
) -> Result<Vec<DurabilityRow>, DemoError> {
    let mut rounds: Vec<Vec<DurabilityRow>> = Vec::new();
    for _ in 0..options.rounds {
        let mut rows = Vec::new();
        for &mode in &options.modes {
            for &in_flight in &options.in_flight {
                rows.push(measure(options, mode, in_flight)?);
            }
        }
        rounds.push(rows);
    }
    let count = rounds[0].len();
    let rows: Vec<DurabilityRow> = (0..count)
        .map(|at| {
            let mut of_row: Vec<DurabilityRow> = rounds.iter().map(|rows| rows[at].clone()).collect();
            of_row.sort_by(|one, next| one.placements_per_second.total_cmp(&next.placements_per_second));
            of_row.swap_remove(of_row.len() / 2)
        })
        .collect();
    rows.iter().for_each(each);
    Ok(rows)
}

fn measure(options: &DurabilityOptions, mode: Mode, in_flight: usize) -> Result<DurabilityRow, DemoError> {
    let directory = tempfile::tempdir_in(&options.directory).map_err(DemoError::Directory)?;
    let floor_sync_ns = floor_sync_ns(directory.path()).map_err(DemoError::Directory)?;
    let mut config = service::config(directory.path(), options.seed, options.shards);
    config.set_durability(mode.durability);
    let daemon = Daemon::start(config)?;
    let row = drive(&daemon, options, mode, in_flight, floor_sync_ns);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(DemoError::Directory)?.block_on(daemon.stop())?;
    row
}

fn drive(
    daemon: &Daemon,
    options: &DurabilityOptions,
    mode: Mode,
    in_flight: usize,
    floor_sync_ns: u64,
) -> Result<DurabilityRow, DemoError> {
    let cluster =
        SyntheticCluster { nodes: options.nodes, pods: 10_000, seed: options.seed, gpu_spec_percent: 10 };
    let trace = cluster.generate().parse().map_err(ReplayError::from)?;
    let mut target = RemoteTarget::open(|| Client::connect(service::client(daemon, "durability")))?;
    target.register(&trace.nodes.iter().map(TraceNode::spec).collect::<Vec<_>>())?;
    let requests = (options.requests * in_flight as u64).max(20_000);
    let load = Churn {
        requests,
        in_flight,
        seed: options.seed,
        policy: Policy::default(),
        utilisation_percent: 85,
        fill_in_flight: Some(FILL_IN_FLIGHT),
    };
    // Relaxed: statistics; nothing depends on their order.
    let written = || {
        let counters = daemon.journal()?;
        Some((counters.bytes.load(Ordering::Relaxed), counters.appends.load(Ordering::Relaxed)))
    };
    let mut before = None;
    let churn = churn(&mut target, &trace, &load, &mut Silent, &mut || before = written())?;
    let after = written();
    let books = target.audit()?;
    crate::replay::check_books(&trace, &churn.promised, &books)?;
    let (bytes, appends) = match (before, after) {
        (Some(before), Some(after)) => (after.0 - before.0, after.1 - before.1),
        _ => (0, 0),
    };
    let per = |amount: u64, count: u64| if count > 0 { amount as f64 / count as f64 } else { 0.0 };
    Ok(DurabilityRow {
        mode: mode.name,
        in_flight,
        placements_per_second: rate(churn.placed, churn.elapsed).round(),
        latency_ns: LatencyNs::of(&churn.place_latency),
        bytes_per_placement: per(bytes, churn.placed),
        requests_per_commit: per(requests, appends),
        floor_sync_ns,
    })
}

impl DurabilityRow {
    /// The names of the columns, as printed by [`Display`](fmt::Display).
    pub const HEAD: &str =
        "mode    in flight  placements/s      p50 µs      p99 µs  bytes/placement  requests/commit  floor µs";
}

impl fmt::Display for DurabilityRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let Self { mode, in_flight, placements_per_second, latency_ns, bytes_per_placement, .. } = self;
        write!(
            f,
            "{mode:<7} {in_flight:>9} {placements_per_second:>13.0} {:>11.1} {:>11.1} {bytes_per_placement:>16.1} {:>16.1} {:>9.1}",
            micros(latency_ns.p50),
            micros(latency_ns.p99),
            self.requests_per_commit,
            micros(self.floor_sync_ns)
        )
    }
}
