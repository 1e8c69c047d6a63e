//! `wharf-bench idle`: what a service costs while its clients ask for nothing.
//!
//! The service is a process of its own with a full cluster. Clients connect, open their sessions, and stay silent but for
//! what keeps their connections alive. Each row has a service of its own, so that no row has the memory of another one.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio::task::LocalSet;
use wharf_core::request::Policy;

use super::OTHER_CONNECTIONS;
use super::drive::{close, connect};
use super::filled::{Filled, FilledOptions};
use super::row::rounded;
use crate::durability::Mode;
use crate::engine::scenario::Kind;
use crate::engine::shapes::Shapes;

/// The number of clients for which the cost is judged.
const JUDGED_CONNECTIONS: u32 = 100;
/// The most processor time with that number of clients, in percent of one core.
const CPU_PERCENT_MAX: f64 = 1.0;
/// The clients share so many sockets, so that all I/O threads have some of them.
const SOCKETS: usize = 64;

/// The measurements.
#[derive(Clone, Debug)]
pub struct IdleOptions {
    /// The numbers of clients.
    pub connections: Vec<u32>,
    /// The number of shards.
    pub shards: u16,
    /// The I/O threads of the service. `None`: as a service has by default.
    pub io_threads: Option<u16>,
    /// When replies leave.
    pub mode: Mode,
    /// The number of nodes.
    pub nodes: u32,
    /// The time for which each row is measured.
    pub seconds: Duration,
    /// The time before memory and processor time are read, first without clients and then with them.
    pub settle: Duration,
    /// The seed of nodes and requests.
    pub seed: u64,
    /// The directory under which data directories are made.
    pub directory: PathBuf,
}

/// A row, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct IdleRow {
    /// The number of clients.
    pub connections: u32,
    /// `memory`, `os` or `sync`.
    pub mode: &'static str,
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The time of the measurement, in seconds.
    pub seconds: f64,
    /// The processor time of all threads of the service, in percent of one core.
    pub cpu_percent: f64,
    /// How often threads of the service woke up, per second.
    pub wakeups_per_second: f64,
    /// The memory of the service with its clients.
    pub resident_bytes: u64,
    /// By how much the clients have raised it, per client. `None` without clients.
    pub bytes_per_connection: Option<u64>,
    /// Whether the processor time is as low as it should be, for the number of clients that is judged.
    pub is_met: Option<bool>,
}

/// What was read of the service.
struct Measured {
    elapsed: Duration,
    cpu_seconds: f64,
    sleeps: u64,
    /// The memory before there were clients.
    resident_before: u64,
    resident: u64,
}

impl IdleRow {
    fn new(options: &IdleOptions, connections: u32, measured: &Measured) -> Self {
        let seconds = measured.elapsed.as_secs_f64();
        let cpu_percent = rounded(measured.cpu_seconds * 100.0 / seconds, 2);
        let grown = measured.resident.saturating_sub(measured.resident_before);
        Self {
            connections,
            mode: options.mode.name,
            shards: options.shards,
            nodes: options.nodes,
            seconds: rounded(seconds, 3),
            cpu_percent,
            wakeups_per_second: rounded(measured.sleeps as f64 / seconds, 1),
            resident_bytes: measured.resident,
            bytes_per_connection: grown.checked_div(u64::from(connections)),
            is_met: (connections == JUDGED_CONNECTIONS).then_some(cpu_percent <= CPU_PERCENT_MAX),
        }
    }
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When a process cannot start, a connection is lost, or the books are not what was promised.
pub fn run_idle(options: &IdleOptions, mut each: impl FnMut(&IdleRow)) -> anyhow::Result<Vec<IdleRow>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for &connections in &options.connections {
        let measured = LocalSet::new().block_on(&runtime, measure(options, connections))?;
        let row = IdleRow::new(options, connections, &measured);
        each(&row);
        rows.push(row);
    }
    Ok(rows)
}

async fn measure(options: &IdleOptions, connections: u32) -> anyhow::Result<Measured> {
    let filled = Filled::start(&FilledOptions {
        kind: Kind::Steady,
        shapes: &Shapes::synthetic(options.seed),
        policy: Policy::LeastFit,
        nodes: options.nodes,
        shards: options.shards,
        io_threads: options.io_threads,
        handshakes_per_second: None,
        mode: options.mode,
        connections: connections + OTHER_CONNECTIONS,
        seed: options.seed,
        directory: &options.directory,
        command: "idle",
    })
    .await?;
    let process = filled.process();
    tokio::time::sleep(options.settle).await;
    let resident_before = process.resident_bytes()?;
    let clients = connect(&filled.config, connections as usize, SOCKETS).await?;
    tokio::time::sleep(options.settle).await;
    let begun = Instant::now();
    let cpu_before = process.cpu_seconds()?;
    let sleeps_before = process.sleeps()?;
    tokio::time::sleep(options.seconds).await;
    let measured = Measured {
        elapsed: begun.elapsed(),
        cpu_seconds: process.cpu_seconds()? - cpu_before,
        // A thread may have ended meanwhile.
        sleeps: process.sleeps()?.saturating_sub(sleeps_before),
        resident_before,
        resident: process.resident_bytes()?,
    };
    close(clients).await?;
    let client = filled.connect().await?;
    filled.audit(&client).await.with_context(|| format!("after {connections} idle clients"))?;
    client.close().await;
    filled.stop()?;
    Ok(measured)
}

/// The heading of the table.
pub struct IdleHeading;

impl fmt::Display for IdleHeading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("clients   cpu %  wake-ups/s  resident MiB  bytes per client  target")
    }
}

impl fmt::Display for IdleRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resident = self.resident_bytes as f64 / f64::from(1 << 20);
        let per_client = self.bytes_per_connection.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string());
        write!(
            f,
            "{:>7} {:>7.2} {:>11.1} {resident:>13.1} {per_client:>17}  ",
            self.connections, self.cpu_percent, self.wakeups_per_second
        )?;
        let Some(is_met) = self.is_met else { return f.write_str("–") };
        f.write_str(if is_met { "met: " } else { "missed: " })?;
        write!(f, "at most {CPU_PERCENT_MAX} % of one core")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(connections: u32, cpu_seconds: f64) -> IdleRow {
        let options = IdleOptions {
            connections: Vec::new(),
            shards: 2,
            io_threads: None,
            mode: Mode::SYNC,
            nodes: 10,
            seconds: Duration::from_secs(10),
            settle: Duration::ZERO,
            seed: 1,
            directory: PathBuf::new(),
        };
        let elapsed = Duration::from_secs(10);
        let measured =
            Measured { elapsed, cpu_seconds, sleeps: 50, resident_before: 1_000, resident: 21_000 };
        IdleRow::new(&options, connections, &measured)
    }

    #[test]
    fn the_cost_is_judged_for_one_number_of_clients() {
        assert_eq!(row(100, 0.1).is_met, Some(true));
        assert_eq!(row(100, 0.11).is_met, Some(false));
        assert_eq!([row(0, 1.0).is_met, row(1000, 1.0).is_met], [None, None]);
        assert!(row(100, 0.11).to_string().contains("missed: at most 1 %"));
    }

    #[test]
    fn cost_is_that_of_one_second_and_memory_that_of_one_client() {
        let row = row(100, 0.1);
        assert_eq!((row.cpu_percent, row.wakeups_per_second), (1.0, 5.0));
        assert_eq!((row.resident_bytes, row.bytes_per_connection), (21_000, Some(200)));
    }

    #[test]
    fn without_clients_there_is_no_memory_of_a_client() {
        let row = row(0, 0.0);
        assert_eq!(row.bytes_per_connection, None);
        assert!(row.to_string().contains('–'), "{row}");
    }
}
