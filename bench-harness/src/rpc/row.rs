//! The figures of a row, and how they are printed.

use std::fmt;

use serde::Serialize;

use super::floor::FrameSizes;
use super::plan::{Callers, Load, RowPlan, Target};
use super::recorder::Segment;
use super::threads::Limits;
use crate::replay::{LatencyNs, rate};

/// The quantiles of a curve, as numbers of nines: 0 is the minimum, 1 is 90 %, 4 is 99.99 %.
const CURVE_NINES_MAX: f64 = 5.0;
/// The points of a curve.
const CURVE_POINTS: u32 = 100;

/// A point of a curve of latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The quantile as a number of nines.
    pub nines: f64,
    /// The latency.
    pub ns: u64,
}

/// A row, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct RpcRow {
    /// The name in `--rows`; empty for a row of the caller's own.
    pub name: &'static str,
    /// `closed`, `open` or `mixed`.
    pub load: &'static str,
    /// For an open loop: `poisson` or `bursty`.
    pub arrivals: Option<&'static str>,
    /// Whether clients show certificates and act for a tenant with limits.
    pub secure: bool,
    /// `memory`, `os` or `sync`.
    pub mode: &'static str,
    /// The policy of all places.
    pub policy: &'static str,
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of connections.
    pub connections: usize,
    /// Frames in flight per connection.
    pub in_flight: usize,
    /// Requests per frame.
    pub batch: usize,
    /// Who sends: `lockstep` or `independent`. Those of an open loop wait for nobody.
    pub callers: Callers,
    /// For an open loop: requests per second that were due.
    pub offered_per_second: Option<f64>,
    /// Requests that were answered during the measurement.
    pub requests: u64,
    /// Requests that no node could hold, of all that were sent.
    pub refused: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// The same for the echo.
    pub floor_per_second: f64,
    /// The quotient of both.
    pub ratio_to_floor: f64,
    /// Of a secure row: requests answered per second by the same service without certificates.
    pub plain_per_second: Option<f64>,
    /// Of a secure row: its rate as a part of that.
    pub ratio_to_plain: Option<f64>,
    /// From the sending of a frame, or from when it was due, to its reply.
    pub latency_ns: LatencyNs,
    /// The same for the echo.
    pub floor_latency_ns: LatencyNs,
    /// Of a secure row: the same for the service without certificates.
    pub plain_latency_ns: Option<LatencyNs>,
    /// Processor time of the service per request, over all threads.
    pub server_cpu_us_per_request: f64,
    /// Of a secure row: the same for the service without certificates.
    pub plain_server_cpu_us_per_request: Option<f64>,
    /// Processor time of the load per request.
    pub client_cpu_us_per_request: f64,
    /// Processor time of the echo per request.
    pub floor_server_cpu_us_per_request: f64,
    /// Processor time of the load of the echo per request.
    pub floor_client_cpu_us_per_request: f64,
    /// Which thread limits the row.
    #[serde(flatten)]
    pub limits: Limits,
    /// The mean length of a request's frame, with its header.
    pub request_bytes: u32,
    /// The mean length of a reply's frame, with its header.
    pub reply_bytes: u32,
    /// Memory of the service per idle connection; only for many connections.
    pub bytes_per_idle_connection: Option<u64>,
    /// The rate of `served-step` of `wharf-bench engine`, per shard and in requests; only for batches.
    pub served_step_per_second: Option<f64>,
    /// The utilisation of the cluster's scarcest resource at the end.
    pub utilisation_percent: f64,
    /// The live allocations at the end. The audited books have as many.
    pub allocations: u64,
    /// What the row is judged by.
    pub target: Option<Target>,
    /// The judged figure, if the run has what it is compared with.
    pub judged: Option<f64>,
    /// Whether the target is met.
    pub is_met: Option<bool>,
    /// Latency by quantile, for plots.
    #[serde(skip)]
    pub curve: Vec<CurvePoint>,
    /// The same for the echo.
    #[serde(skip)]
    pub floor_curve: Vec<CurvePoint>,
}

/// The measurements of a row.
pub(super) struct Measured {
    pub(super) plan: RowPlan,
    pub(super) policy: &'static str,
    pub(super) shards: u16,
    pub(super) nodes: u32,
    pub(super) offered_per_second: Option<f64>,
    pub(super) service: Segment,
    pub(super) floor: Segment,
    /// Of a secure row: the same service without certificates.
    pub(super) plain: Option<Segment>,
    pub(super) sizes: FrameSizes,
    pub(super) refused: u64,
    pub(super) bytes_per_idle_connection: Option<u64>,
    pub(super) served_step_per_second: Option<f64>,
    pub(super) utilisation_percent: f64,
    pub(super) allocations: u64,
}

/// Returns a number with at most this many decimal places.
pub(super) fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}

/// Returns a part in percent of the whole, with two decimal places.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    rounded(part as f64 * 100.0 / whole.max(1) as f64, 2)
}

fn per_request(seconds: f64, requests: u64) -> f64 {
    rounded(seconds * 1e6 / requests.max(1) as f64, 3)
}

fn curve(segment: &Segment) -> Vec<CurvePoint> {
    let frames = segment.latency.len().max(1) as f64;
    (0..=CURVE_POINTS)
        .map(|point| CURVE_NINES_MAX * f64::from(point) / f64::from(CURVE_POINTS))
        // Beyond the number of frames there is nothing but the maximum.
        .take_while(|nines| *nines <= frames.log10())
        .map(|nines| CurvePoint { nines, ns: segment.latency.value_at_quantile(1.0 - 0.1f64.powf(nines)) })
        .collect()
}

impl RpcRow {
    /// Makes the row of a measurement. `earlier` are the rows before it, which it may be compared with.
    pub(super) fn new(measured: Measured, earlier: &[(RowPlan, Self)]) -> Self {
        let Measured { plan, service, floor, plain, sizes, .. } = &measured;
        let plain = plain.as_ref();
        let per_second = |segment: &Segment| rate(segment.requests, segment.elapsed);
        let requests_per_second = per_second(service);
        let floor_per_second = per_second(floor);
        let plain_per_second = plain.map(per_second);
        let arrivals = match plan.load {
            Load::Open { arrivals, .. } => Some(arrivals.name()),
            Load::Closed | Load::Mixed => None,
        };
        let row = Self {
            name: plan.name,
            load: plan.load.name(),
            arrivals,
            secure: plain.is_some(),
            mode: plan.mode.name,
            policy: measured.policy,
            shards: measured.shards,
            nodes: measured.nodes,
            connections: plan.connections,
            in_flight: plan.in_flight,
            batch: plan.batch,
            callers: plan.callers,
            offered_per_second: measured.offered_per_second.map(f64::round),
            requests: service.requests,
            refused: measured.refused,
            requests_per_second: requests_per_second.round(),
            floor_per_second: floor_per_second.round(),
            ratio_to_floor: quotient(requests_per_second, floor_per_second),
            plain_per_second: plain_per_second.map(f64::round),
            ratio_to_plain: plain_per_second.map(|plain| quotient(requests_per_second, plain)),
            latency_ns: LatencyNs::of(&service.latency),
            floor_latency_ns: LatencyNs::of(&floor.latency),
            plain_latency_ns: plain.map(|plain| LatencyNs::of(&plain.latency)),
            server_cpu_us_per_request: per_request(service.server_cpu, service.requests),
            plain_server_cpu_us_per_request: plain.map(|plain| per_request(plain.server_cpu, plain.requests)),
            client_cpu_us_per_request: per_request(service.client_cpu, service.requests),
            floor_server_cpu_us_per_request: per_request(floor.server_cpu, floor.requests),
            floor_client_cpu_us_per_request: per_request(floor.client_cpu, floor.requests),
            limits: Limits::of(&service.server_threads, &service.client_threads, service.elapsed),
            request_bytes: sizes.request,
            reply_bytes: sizes.reply,
            bytes_per_idle_connection: measured.bytes_per_idle_connection,
            served_step_per_second: measured.served_step_per_second.map(f64::round),
            utilisation_percent: rounded(measured.utilisation_percent, 2),
            allocations: measured.allocations,
            target: plan.target,
            judged: None,
            is_met: None,
            curve: curve(service),
            floor_curve: curve(floor),
        };
        let memory = earlier.iter().rev().find(|(of, other)| {
            of.mode == crate::durability::Mode::MEMORY && plan.is_as(of) && other.shards == row.shards
        });
        row.held_against(memory.map(|(_, memory)| memory))
    }

    /// Judges the row by its target. `memory` is the same row in that mode.
    fn held_against(mut self, memory: Option<&Self>) -> Self {
        let Some(target) = self.target else { return self };
        let floor = self.floor_latency_ns;
        let own = self.latency_ns;
        self.judged = match target {
            Target::MedianToFloor(_) => Some(quotient(own.p50 as f64, floor.p50 as f64)),
            Target::TailToFloor(_) => {
                let tail = |own: u64, floor: u64| quotient(own as f64, floor as f64);
                Some(tail(own.p99, floor.p99).max(tail(own.p9999, floor.p9999)))
            }
            Target::RateToFloor(_) => Some(self.ratio_to_floor),
            Target::RateToMemory(_) => {
                memory.map(|memory| quotient(self.requests_per_second, memory.requests_per_second))
            }
            Target::RateToServedStep(_) => {
                self.served_step_per_second.map(|step| quotient(self.requests_per_second, step))
            }
        };
        self.is_met = self.judged.map(|judged| match target {
            Target::MedianToFloor(most) | Target::TailToFloor(most) => judged <= most,
            Target::RateToFloor(least) | Target::RateToMemory(least) | Target::RateToServedStep(least) => {
                judged >= least
            }
        });
        self
    }

    /// Returns the load in few words.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { mode, connections, in_flight, batch, .. } = self;
        let mode = if self.secure { format!("{mode}, secure") } else { (*mode).to_owned() };
        match (self.arrivals, self.offered_per_second) {
            (Some(arrivals), Some(offered)) => format!("{arrivals} {:.0}k/s {mode}", offered / 1e3),
            _ => {
                let who = self.callers.name();
                let load = if self.load == "mixed" { "mixed " } else { "" };
                format!("{load}{connections} × {in_flight} × {batch} {who} {mode}")
            }
        }
    }
}

/// Returns a quotient with three decimal places; 0 if there is nothing to divide by.
pub(super) fn quotient(one: f64, other: f64) -> f64 {
    if other > 0.0 { rounded(one / other, 3) } else { 0.0 }
}

/// The heading of the table.
pub struct Heading;

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "load (connections × in flight × batch)    requests/s    floor/s  ratio     p50 µs  (floor)     p99 µs  \
             (floor)  p99.99 µs  (floor)  server µs  client µs  × plain  fullest thread                        target",
        )
    }
}

impl fmt::Display for RpcRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let Self { latency_ns: own, floor_latency_ns: floor, .. } = self;
        write!(
            f,
            "{:<40} {:>11.0} {:>10.0} {:>6.2} {:>10.1} {:>8.1} {:>10.1} {:>8.1} {:>10.1} {:>8.1} {:>10.2} {:>10.2} {:>8}  {:<36}  ",
            self.describe(),
            self.requests_per_second,
            self.floor_per_second,
            self.ratio_to_floor,
            micros(own.p50),
            micros(floor.p50),
            micros(own.p99),
            micros(floor.p99),
            micros(own.p9999),
            micros(floor.p9999),
            self.server_cpu_us_per_request,
            self.client_cpu_us_per_request,
            self.ratio_to_plain.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
            self.limits.to_string(),
        )?;
        let Some(target) = self.target else { return f.write_str("–") };
        match self.is_met {
            Some(true) => f.write_str("met: ")?,
            Some(false) => f.write_str("missed: ")?,
            None => f.write_str("not judged: ")?,
        }
        if let Some(judged) = self.judged {
            write!(f, "{judged:.2}, ")?;
        }
        write!(f, "{target}")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MedianToFloor(most) => write!(f, "p50 at most {most} × floor"),
            Self::TailToFloor(most) => write!(f, "p99 and p99.99 at most {most} × floor"),
            Self::RateToFloor(least) => write!(f, "at least {least} × floor"),
            Self::RateToMemory(least) => write!(f, "at least {least} × memory mode"),
            Self::RateToServedStep(least) => write!(f, "at least {least} × served-step"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::durability::Mode;
    use crate::rpc::plan::ROWS;

    /// Returns a segment of one second.
    fn segment(requests: u64, latencies: &[u64]) -> Segment {
        let mut segment = Segment { requests, elapsed: Duration::from_secs(1), ..Segment::empty() };
        latencies.iter().for_each(|&nanos| segment.latency.saturating_record(nanos));
        segment.server_cpu = 0.5;
        segment
    }

    fn measured(name: &str, service: Segment, floor: Segment) -> Measured {
        let plan = ROWS.into_iter().find(|row| row.name == name).unwrap();
        Measured {
            plan,
            plain: None,
            policy: "least-fit",
            shards: 2,
            nodes: 10,
            offered_per_second: None,
            service,
            floor,
            sizes: FrameSizes { request: 64, reply: 32 },
            refused: 0,
            bytes_per_idle_connection: None,
            served_step_per_second: Some(1000.0),
            utilisation_percent: 85.0,
            allocations: 1,
        }
    }

    fn judged(name: &str, requests: u64, latencies: &[u64]) -> RpcRow {
        let floor = segment(1000, &[100; 10]);
        RpcRow::new(measured(name, segment(requests, latencies), floor), &[])
    }

    #[test]
    fn a_row_is_judged_by_what_its_target_says() {
        let cases = [
            ("one", judged("one", 10, &[199; 3]), Some(true)),
            ("one", judged("one", 10, &[220; 3]), Some(false)),
            ("few", judged("few", 500, &[100]), Some(true)),
            ("few", judged("few", 499, &[100]), Some(false)),
            ("batches", judged("batches", 600, &[100]), Some(true)),
            ("poisson", judged("poisson", 10, &[100, 100, 400]), Some(false)),
            ("mixed", judged("mixed", 10, &[100]), None),
            ("many-sync", judged("many-sync", 10, &[100]), None),
        ];
        for (name, row, is_met) in cases {
            assert_eq!(row.is_met, is_met, "{name}: {row}");
        }
    }

    #[test]
    fn a_durable_row_is_compared_with_the_same_row_in_memory() {
        let floor = || segment(1000, &[100]);
        let plan = |name: &str| *ROWS.iter().find(|row| row.name == name).unwrap();
        let callers = RpcRow::new(measured("many-callers", segment(900, &[1]), floor()), &[]);
        let memory = RpcRow::new(measured("many", segment(300, &[1]), floor()), &[]);
        let earlier = [(plan("many-callers"), callers), (plan("many"), memory)];
        let sync = RpcRow::new(measured("many-sync", segment(150, &[1]), floor()), &earlier);
        assert_eq!((sync.judged, sync.is_met, sync.mode), (Some(0.5), Some(true), Mode::SYNC.name));
    }

    #[test]
    fn a_secure_row_is_compared_with_the_same_row_without_certificates() {
        let own = measured("many", segment(900, &[10]), segment(1000, &[1]));
        let plain = segment(1000, &[9]);
        let row = RpcRow::new(Measured { plain: Some(plain), ..own }, &[]);
        let row = serde_json::to_value(row).unwrap();
        let of = |field: &str| row[field].as_f64();
        assert_eq!((of("plain_per_second"), of("ratio_to_plain")), (Some(1000.0), Some(0.9)));
        assert_eq!(
            (of("plain_server_cpu_us_per_request"), row["secure"].as_bool()),
            (Some(500.0), Some(true))
        );
        assert_eq!(row["plain_latency_ns"]["p50"], 9);
        let open = serde_json::to_value(judged("many", 10, &[1])).unwrap();
        assert!(open["secure"] == false && open["ratio_to_plain"].is_null(), "{open}");
    }

    #[test]
    fn processor_time_is_that_of_one_request() {
        let row = judged("few", 1000, &[100]);
        assert_eq!(row.server_cpu_us_per_request, 500.0);
        assert_eq!((row.requests_per_second, row.ratio_to_floor), (1000.0, 1.0));
    }

    #[test]
    fn a_curve_ends_where_there_are_no_more_frames() {
        let row = judged("few", 10, &[5; 1000]);
        let last = row.curve.last().unwrap();
        assert!((2.9..=3.0).contains(&last.nines) && last.ns == 5, "{last:?}");
    }
}
