//! The report of a replay. Only this module of the replay computes with floats; they are printed and decide
//! nothing.
//!
//! | figure | meaning |
//! |---|---|
//! | `seconds` | from the first order to the last reply, releases included; without reading and registration |
//! | `placements_per_second` | decisions: `pods / seconds`, both placed and refused; releases are not counted |
//! | `latency_ns` | of placements, from submission to reply as measured by the driver, closed loop |
//! | `*_allocated_milli` | held by live allocations at the end of the run |
//! | `*_peak_milli` | the maximum held at any time; equal to `*_allocated_milli` if no pod leaves |
//! | `baseline_*` | the same events with a single-threaded linear scan, in the same run |

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use wharf_core::router::Verdict;

use super::{BaselineRun, Decision, Driven, LoadPoint, ReplayOptions, allocation_at};
use crate::target::{BookSum, Books};

/// Units of 1/10,000 in a thousandth.
const UNITS_PER_MILLI: i128 = 10;

/// Latency percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyNs {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The 99.99th percentile.
    pub p9999: u64,
    /// The maximum.
    pub max: u64,
}

/// The result of a replay, as printed by `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Requested placements.
    pub pods: u64,
    /// Pods placed.
    pub placed: u64,
    /// Pods not placed.
    pub unplaced: u64,
    /// Unplaced pods that no node could hold when they arrived, although some node could if it were empty.
    pub unplaced_no_fit_now: u64,
    /// Unplaced pods that no node of the cluster could ever hold.
    pub unplaced_infeasible: u64,
    /// Pods with a constraint on the GPU model.
    pub constrained: u64,
    /// Constrained pods that were placed.
    pub constrained_placed: u64,
    /// The number of nodes of the cluster.
    pub nodes: u64,
    /// The cluster's GPUs, in thousandths of a GPU.
    pub gpu_capacity_milli: u64,
    /// GPUs allocated at the end, in thousandths of a GPU.
    pub gpu_allocated_milli: u64,
    /// The maximum of allocated GPUs, in thousandths of a GPU.
    pub gpu_peak_milli: u64,
    /// The cluster's cpu, in thousandths of a core.
    pub cpu_capacity_milli: u64,
    /// Cpu allocated at the end, in thousandths of a core.
    pub cpu_allocated_milli: u64,
    /// The maximum of allocated cpu, in thousandths of a core.
    pub cpu_peak_milli: u64,
    /// The cluster's memory, in MiB.
    pub memory_capacity_mib: u64,
    /// Memory allocated at the end, in MiB.
    pub memory_allocated_mib: u64,
    /// The duration of the replay.
    pub seconds: f64,
    /// The allocation at the requested arrived loads.
    pub loads: Vec<LoadPoint>,
    /// The duration of registering the nodes.
    pub registration_seconds: f64,
    /// Decisions: pods / seconds.
    pub placements_per_second: f64,
    /// The latency of placements.
    pub latency_ns: LatencyNs,
    /// The name of the policy.
    pub policy: &'static str,
    /// The number of shards.
    pub shards: u16,
    /// The seed.
    pub seed: u64,
    /// The maximum number of orders in flight.
    pub in_flight: usize,
    /// The transport between driver and engine.
    pub transport: &'static str,
    /// True if departures were replayed.
    pub with_departures: bool,
    /// The number of times that a request spilled to another shard, if known.
    pub spilled: Option<u64>,
    /// True if the target audited its invariants and its sums match the replies.
    pub books_checked: bool,
    /// The duration of the linear scan, if it ran.
    pub baseline_seconds: Option<f64>,
    /// The decisions per second of the linear scan, if it ran.
    pub baseline_placements_per_second: Option<f64>,
    /// Resident memory of the server, in bytes; `None` in process.
    pub server_resident_bytes: Option<u64>,
    /// True if the scan placed every pod the same; `None` if that is not expected.
    pub baseline_identical: Option<bool>,
}

fn milli(units: i128) -> u64 {
    u64::try_from(units / UNITS_PER_MILLI).unwrap_or(0)
}

fn mib(units: i128) -> u64 {
    u64::try_from(units / 10_000).unwrap_or(0)
}

/// Returns `count` per second; zero if no time passed.
#[must_use]
pub fn rate(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl LatencyNs {
    /// Returns the percentiles of a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            p9999: histogram.value_at_quantile(0.9999),
            max: histogram.max(),
        }
    }
}

/// The inputs of a report.
pub struct Findings<'a> {
    /// The options of the replay.
    pub options: &'a ReplayOptions,
    /// The trace.
    pub trace: &'a crate::trace::Trace,
    /// The result of the run.
    pub driven: &'a Driven,
    /// The audited books, which match the replies.
    pub books: &'a Books,
    /// The duration of registering the nodes.
    pub registration: Duration,
    /// The transport of the target.
    pub transport: &'static str,
    /// The number of shards of the target.
    pub shards: u16,
    /// The number of spills of the target, if known.
    pub spilled: Option<u64>,
    /// Resident memory of the server, if it is another process.
    pub resident_bytes: Option<u64>,
    /// The scan, and whether it was identical, if that was checked.
    pub baseline: Option<(&'a BaselineRun, Option<bool>)>,
}

impl Report {
    /// Creates the report of a run.
    #[must_use]
    pub fn new(findings: &Findings<'_>) -> Self {
        let Findings { options, trace, driven, books, .. } = findings;
        let count = |matches: &dyn Fn(&Decision) -> bool| {
            driven.decisions.iter().filter(|decision| matches(decision)).count() as u64
        };
        let is_placed = |decision: &Decision| matches!(decision, Decision::Placed { .. });
        let constrained = || trace.pods.iter().zip(&driven.decisions).filter(|(p, _)| p.selector.is_some());
        let pods = driven.decisions.len() as u64;
        let placed = count(&is_placed);
        let baseline = findings.baseline.as_ref();
        Self {
            pods,
            placed,
            unplaced: pods - placed,
            unplaced_no_fit_now: count(&|d| *d == Decision::Refused(Verdict::NoFitNow)),
            unplaced_infeasible: count(&|d| *d == Decision::Refused(Verdict::Infeasible)),
            constrained: constrained().count() as u64,
            constrained_placed: constrained().filter(|(_, d)| is_placed(d)).count() as u64,
            nodes: books.nodes,
            gpu_capacity_milli: milli(books.gpu.capacity),
            gpu_allocated_milli: milli(books.gpu.allocated),
            gpu_peak_milli: milli(driven.peak.gpu),
            cpu_capacity_milli: milli(books.cpu.capacity),
            cpu_allocated_milli: milli(books.cpu.allocated),
            cpu_peak_milli: milli(driven.peak.cpu),
            memory_capacity_mib: mib(books.memory.capacity),
            memory_allocated_mib: mib(books.memory.allocated),
            seconds: driven.elapsed.as_secs_f64(),
            loads: allocation_at(findings.trace, &driven.decisions, &options.report_at),
            registration_seconds: findings.registration.as_secs_f64(),
            placements_per_second: rate(pods, driven.elapsed),
            latency_ns: LatencyNs::of(&driven.latency),
            policy: options.policy.name(),
            shards: findings.shards,
            seed: options.seed,
            in_flight: options.in_flight,
            transport: findings.transport,
            with_departures: options.departures,
            spilled: findings.spilled,
            books_checked: true,
            server_resident_bytes: findings.resident_bytes,
            baseline_seconds: baseline.map(|(run, _)| run.elapsed.as_secs_f64()),
            baseline_placements_per_second: baseline.map(|(run, _)| rate(pods, run.elapsed)),
            baseline_identical: baseline.and_then(|&(_, identical)| identical),
        }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 * 100.0 / whole as f64 } else { 0.0 }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

impl Report {
    fn write_utilisation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            ("GPUs", self.gpu_allocated_milli, self.gpu_peak_milli, self.gpu_capacity_milli),
            ("cores", self.cpu_allocated_milli, self.cpu_peak_milli, self.cpu_capacity_milli),
        ];
        for (what, allocated, peak, capacity) in lines {
            let in_units = |milli: u64| milli as f64 / 1000.0;
            write!(
                f,
                "\n{what:<12} {:>12.2} of {:.0} allocated ({:.2} %)",
                in_units(allocated),
                in_units(capacity),
                percent(allocated, capacity)
            )?;
            if self.with_departures {
                write!(f, ", at the peak {:.2} ({:.2} %)", in_units(peak), percent(peak, capacity))?;
            }
        }
        Ok(())
    }

    fn write_baseline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(seconds), Some(scan_rate)) = (self.baseline_seconds, self.baseline_placements_per_second)
        else {
            return Ok(());
        };
        let identical = match self.baseline_identical {
            Some(true) => "; every pod placed the same",
            Some(false) => "; pods placed otherwise",
            None => "",
        };
        write!(f, "\nlinear scan  {scan_rate:>12.0} /s over {seconds:.3} s{identical}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {} shard(s), {}, {} in flight, seed {}",
            self.policy, self.shards, self.transport, self.in_flight, self.seed
        )?;
        write!(f, "\nnodes        {:>12}", self.nodes)?;
        write!(f, "\npods         {:>12}", self.pods)?;
        write!(f, "\nplaced       {:>12} ({:.2} %)", self.placed, percent(self.placed, self.pods))?;
        write!(
            f,
            "\nunplaced     {:>12} ({} no fit now, {} infeasible)",
            self.unplaced, self.unplaced_no_fit_now, self.unplaced_infeasible
        )?;
        if self.constrained > 0 {
            write!(f, "\nconstrained  {:>12} of {} placed", self.constrained_placed, self.constrained)?;
        }
        self.write_utilisation(f)?;
        for load in &self.loads {
            let percent = load.gpu_allocated_percent;
            write!(f, "\nat {:>3} %     {percent:>12.2} % of GPUs allocated", load.arrived_percent)?;
            match load.pods {
                Some(pods) => write!(f, ", {pods} pods arrived")?,
                None => write!(f, " at the end: the trace brings less than that load")?,
            }
        }
        write!(f, "\nrate         {:>12.0} /s over {:.3} s", self.placements_per_second, self.seconds)?;
        let LatencyNs { p50, p99, p999, max, .. } = self.latency_ns;
        write!(
            f,
            "\nlatency      {:>12.1} µs p50, {:.1} p99, {:.1} p99.9, {:.1} max",
            micros(p50),
            micros(p99),
            micros(p999),
            micros(max)
        )?;
        self.write_baseline(f)?;
        if let Some(bytes) = self.server_resident_bytes {
            write!(f, "\nserver       {:>12} MiB resident", bytes >> 20)?;
        }
        if let Some(spilled) = self.spilled {
            write!(f, "\nspilled      {spilled:>12}")?;
        }
        write!(f, "\nbooks        {:>12}", if self.books_checked { "checked" } else { "NOT checked" })
    }
}

/// Returns the sums of the books with their names.
pub(super) fn sums(books: &Books) -> [(&'static str, BookSum); 3] {
    [("cpu", books.cpu), ("memory", books.memory), ("gpu", books.gpu)]
}
