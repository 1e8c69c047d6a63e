//! `wharf-bench groups`: the rate of creating and removing gangs over QUIC while many others exist.
//!
//! A whole service runs in this process, as in the demo. One client creates and removes groups, with several
//! in flight. Its answers are recorded and compared with every node's books.

mod existing;
mod load;

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use wharf_core::group::Strategy;
use wharf_core::planner::PlannerMetrics;
use wharf_net::client::{Client, ClientError};
use wharf_ops::daemon::{Daemon, DaemonError};
use wharf_ops::journal::Durability;

use crate::replay::{LatencyNs, rate};
use crate::service;
use load::Load;

/// The strategies by name.
pub const STRATEGIES: [(&str, Strategy); 4] = [
    ("pack", Strategy::Pack),
    ("spread", Strategy::Spread),
    ("strict-pack", Strategy::StrictPack),
    ("strict-spread", Strategy::StrictSpread),
];

/// The measurements: one row per number of bundles and strategy.
#[derive(Clone, Debug)]
pub struct GroupsOptions {
    /// The numbers of bundles per group.
    pub bundles: Vec<u32>,
    /// The strategies.
    pub strategies: Vec<Strategy>,
    /// Groups made and removed per row.
    pub groups: u64,
    /// Groups that exist throughout.
    pub live: u64,
    /// The maximum number of groups in flight.
    pub in_flight: usize,
    /// The number of nodes, 64 cores and 256 GiB each.
    pub nodes: u32,
    /// The number of shards.
    pub shards: u16,
    /// The number of planners.
    pub planners: u16,
    /// The seed of the service and of the group to remove next.
    pub seed: u64,
    /// True if refused groups are counted instead of failing the run.
    pub may_refuse: bool,
}

impl Default for GroupsOptions {
    fn default() -> Self {
        Self {
            bundles: vec![2, 8, 64],
            strategies: STRATEGIES.iter().map(|&(_, strategy)| strategy).collect(),
            groups: 50_000,
            live: 1_000,
            in_flight: 256,
            nodes: 1_000,
            shards: 2,
            planners: 1,
            seed: 1,
            may_refuse: false,
        }
    }
}

/// A measurement that failed.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// The temporary data directory or the runtime cannot be created.
    #[error("a temporary directory or an event loop for the service cannot be made")]
    Environment(#[from] std::io::Error),
    /// The service failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The connection failed.
    #[error("the service did not answer as it should")]
    Client(#[from] ClientError),
    /// A number is out of range.
    #[error("{0}")]
    Range(String),
    /// A group was refused, and refusals are not permitted.
    #[error("a group was refused ({0}): give more --nodes, fewer --live groups, or --may-refuse")]
    Refused(String),
    /// An answer or the books are not as promised.
    #[error("{0}")]
    Wrong(String),
}

/// The measurement of one number of bundles and one strategy.
#[derive(Clone, Debug, Serialize)]
pub struct GroupsRow {
    /// Bundles of each group.
    pub bundles: u32,
    /// The strategy.
    pub strategy: &'static str,
    /// Groups that existed throughout.
    pub live_groups: u64,
    /// Groups that were created and removed.
    pub groups: u64,
    /// Groups that were created and removed, per second.
    pub groups_per_second: f64,
    /// The median time from a group's submission to its answer.
    pub p50_ns: u64,
    /// The 99th percentile of that time.
    pub p99_ns: u64,
    /// CPU time of service and load per group, in ns, if the system reports it. Unlike the rate, it hardly
    /// depends on other work on the machine.
    pub cpu_ns: Option<u64>,
    /// Groups that were refused.
    pub refused: u64,
    /// The share of statements in which something conflicted.
    pub conflict_fraction: f64,
    /// The number of shards.
    pub shards: u16,
    /// The number of planners.
    pub planners: u16,
    /// The maximum number of groups in flight.
    pub in_flight: usize,
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When the service fails, refuses a group, or its books do not match its answers.
pub fn run(options: &GroupsOptions, mut each: impl FnMut(&GroupsRow)) -> Result<Vec<GroupsRow>, GroupsError> {
    let directory = tempfile::tempdir()?;
    let mut config = service::config(directory.path(), options.seed, Some(options.shards));
    config.engine.planners = options.planners;
    // The rate of planners, not of the disk.
    config.set_durability(Durability::Memory);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let daemon = Daemon::start(config)?;
    let rows = runtime.block_on(drive(&daemon, options, &mut each));
    runtime.block_on(daemon.stop())?;
    rows
}

async fn drive(
    daemon: &Daemon,
    options: &GroupsOptions,
    each: &mut impl FnMut(&GroupsRow),
) -> Result<Vec<GroupsRow>, GroupsError> {
    let client = Client::connect(service::client(daemon, "groups")).await?;
    let most = client.hello().limits.in_flight_max as usize;
    if options.in_flight == 0 || options.in_flight > most {
        let message = format!("{} groups under way: give 1 to {most}", options.in_flight);
        return Err(GroupsError::Range(message));
    }
    let mut load = Load::new(client, options);
    load.register(options.nodes).await?;
    let mut rows = Vec::new();
    for &bundles in &options.bundles {
        for &strategy in &options.strategies {
            let row = measure(daemon, &mut load, (bundles, strategy), options).await?;
            each(&row);
            rows.push(row);
        }
    }
    load.close().await;
    Ok(rows)
}

/// Returns the sum of the metrics of all planners so far.
fn planned(daemon: &Daemon, planners: u16) -> PlannerMetrics {
    let each = (0..usize::from(planners)).map(|number| daemon.metrics.planner(number));
    each.fold(PlannerMetrics::default(), |sum, one| PlannerMetrics {
        statements: sum.statements + one.statements,
        committed: sum.committed + one.committed,
        conflicted: sum.conflicted + one.conflicted,
        expired: sum.expired + one.expired,
        attempts: sum.attempts + one.attempts,
        placings: sum.placings + one.placings,
        operations: sum.operations + one.operations,
        granted: sum.granted + one.granted,
        ..sum
    })
}

/// Returns the CPU time of all threads of this process in ns, if the system reports it.
fn cpu_nanos() -> Option<u64> {
    let of_thread = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    std::fs::read_dir("/proc/self/task").ok()?.map(of_thread).sum()
}

async fn measure(
    daemon: &Daemon,
    load: &mut Load,
    (bundles, strategy): (u32, Strategy),
    options: &GroupsOptions,
) -> Result<GroupsRow, GroupsError> {
    load.begin(bundles, strategy);
    load.fill(options.live).await?;
    // Warms up with the measured kind of work, because filling is different work.
    load.churn(options.groups / 10).await?;
    let before = planned(daemon, options.planners);
    let cpu_before = cpu_nanos();
    let churn = load.churn(options.groups).await?;
    let after = planned(daemon, options.planners);
    let cpu_after = cpu_nanos();
    load.audit().await?;
    load.remove_all().await?;
    load.audit().await?;
    let name = STRATEGIES.iter().find(|(_, known)| *known == strategy).expect("every strategy has a name").0;
    let latency = LatencyNs::of(&churn.latency);
    let statements = (after.statements - before.statements).max(1);
    Ok(GroupsRow {
        bundles,
        strategy: name,
        live_groups: options.live,
        groups: churn.done,
        groups_per_second: rate(churn.done, churn.elapsed).round(),
        p50_ns: latency.p50,
        p99_ns: latency.p99,
        cpu_ns: cpu_after.zip(cpu_before).map(|(after, before)| (after - before) / churn.done.max(1)),
        refused: churn.refused,
        conflict_fraction: (after.conflicted - before.conflicted) as f64 / statements as f64,
        shards: options.shards,
        planners: options.planners,
        in_flight: options.in_flight,
    })
}

impl GroupsRow {
    /// The names of the columns, as printed by [`Display`](fmt::Display).
    pub const HEAD: &str = "bundles  strategy       live  groups/s      p50 µs      p99 µs  cpu µs  refused  conflicts  shards  planners  in flight";
}

impl fmt::Display for GroupsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1e6;
        let Self { bundles, strategy, live_groups, groups_per_second, p50_ns, p99_ns, .. } = self;
        let cpu = self.cpu_ns.map_or_else(|| "-".to_owned(), |nanos| format!("{:.1}", micros(nanos)));
        let p50 = micros(*p50_ns);
        let p99 = micros(*p99_ns);
        let conflicts = self.conflict_fraction * 100.0;
        write!(
            f,
            "{bundles:>7}  {strategy:<13} {live_groups:>5} {groups_per_second:>9.0} {p50:>11.1} {p99:>11.1} {cpu:>7} {:>8} {conflicts:>8.2} % {:>7} {:>9} {:>10}",
            self.refused, self.shards, self.planners, self.in_flight
        )
    }
}
