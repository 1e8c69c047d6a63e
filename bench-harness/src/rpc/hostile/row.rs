//! The figures next to a crowd, and how they are printed.

use std::fmt;

use serde::Serialize;

use super::{HostileOptions, Measured};
use crate::replay::LatencyNs;
use crate::rpc::row::{percent, quotient, rounded};

/// The name of the row without a crowd.
pub(super) const ALONE: &str = "alone";

/// A row, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct HostileRow {
    /// `alone`, or what the peers of the crowd do.
    pub crowd: &'static str,
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The peers of the crowd that are there at a time.
    pub peers: u32,
    /// What the crowd did per second: rounds of computing, connections that it began, streams that it opened, hellos, frames
    /// or requests for lists that it sent. `None` without one.
    pub acts_per_second: Option<f64>,
    /// Requests of the client that were due, per second.
    pub offered_per_second: f64,
    /// Those that were answered with a result in time, per second.
    pub goodput_per_second: f64,
    /// The time within which a result is in time, in ms.
    pub deadline_ms: f64,
    /// Those that were not, in percent.
    pub late_percent: f64,
    /// From when a request was due to its result.
    pub latency_ns: LatencyNs,
    /// The 99th percentile as a multiple of that of the row without a crowd.
    pub p99_ratio: Option<f64>,
    /// The processor time of all threads of the service, in percent of one core.
    pub server_cpu_percent: f64,
    /// The same of the crowd. `None` without one.
    pub crowd_cpu_percent: Option<f64>,
    /// The most memory that the service had, from its start on.
    pub peak_bytes: u64,
}

impl HostileRow {
    /// Makes the row of a measurement. `alone` is the row without a crowd.
    pub(super) fn new(
        options: &HostileOptions,
        crowd: &'static str,
        measured: &Measured,
        alone: Option<&Self>,
    ) -> Self {
        let Measured { outcomes, server_cpu_seconds, crowd_cpu_seconds, peak_bytes, acts_per_second } =
            measured;
        let cpu_percent = |seconds: f64| rounded(seconds * 100.0 / options.seconds.as_secs_f64(), 1);
        let latency_ns = LatencyNs::of(&outcomes.latency);
        Self {
            crowd,
            shards: options.shards,
            nodes: options.nodes,
            peers: options.peers,
            acts_per_second: acts_per_second.map(f64::round),
            offered_per_second: outcomes.offered_per_second().round(),
            goodput_per_second: outcomes.good_per_second().round(),
            deadline_ms: options.deadline.as_secs_f64() * 1e3,
            late_percent: percent(outcomes.offered - outcomes.good, outcomes.offered),
            latency_ns,
            p99_ratio: alone.map(|alone| quotient(latency_ns.p99 as f64, alone.latency_ns.p99 as f64)),
            server_cpu_percent: cpu_percent(*server_cpu_seconds),
            crowd_cpu_percent: crowd_cpu_seconds.map(cpu_percent),
            peak_bytes: *peak_bytes,
        }
    }
}

/// The heading of the table.
pub struct HostileHeading;

impl fmt::Display for HostileHeading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "crowd             acts/s  offered/s  goodput/s   late %     p50 ms     p99 ms  p99.99 ms  × alone  \
             service cpu %  crowd cpu %   peak MiB",
        )
    }
}

impl fmt::Display for HostileRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let or_dash = |number: Option<f64>, places: usize| {
            number.map_or_else(|| "–".to_owned(), |number| format!("{number:.places$}"))
        };
        write!(
            f,
            "{:<14} {:>9} {:>10.0} {:>10.0} {:>8.2} {:>10.3} {:>10.3} {:>10.3} {:>8} {:>14.1} {:>12} {:>10.1}",
            self.crowd,
            or_dash(self.acts_per_second, 0),
            self.offered_per_second,
            self.goodput_per_second,
            self.late_percent,
            millis(self.latency_ns.p50),
            millis(self.latency_ns.p99),
            millis(self.latency_ns.p9999),
            or_dash(self.p99_ratio, 2),
            self.server_cpu_percent,
            or_dash(self.crowd_cpu_percent, 1),
            self.peak_bytes as f64 / f64::from(1 << 20),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::CrowdKind;
    use super::*;
    use crate::rpc::offer::Outcomes;

    fn options() -> HostileOptions {
        HostileOptions {
            crowds: vec![CrowdKind::Streams],
            per_second: 100.0,
            deadline: Duration::from_millis(50),
            peers: 4,
            connects_per_second: 10,
            threads: 1,
            shards: 1,
            io_threads: None,
            handshakes_per_second: None,
            nodes: 10,
            seconds: Duration::from_secs(2),
            warm_up: Duration::ZERO,
            seed: 1,
            directory: PathBuf::new(),
        }
    }

    fn measured(good: u64, latency: u64, acts_per_second: Option<f64>) -> Measured {
        let elapsed = Duration::from_secs(2);
        let mut outcomes = Outcomes { offered: 200, good, elapsed, ..Outcomes::new() };
        outcomes.latency.saturating_record(latency);
        let crowd_cpu_seconds = acts_per_second.map(|_| 3.0);
        Measured {
            outcomes,
            server_cpu_seconds: 0.5,
            crowd_cpu_seconds,
            peak_bytes: 3 << 20,
            acts_per_second,
        }
    }

    #[test]
    fn a_row_is_compared_with_the_client_alone() {
        let alone = HostileRow::new(&options(), ALONE, &measured(200, 1_000, None), None);
        assert_eq!((alone.p99_ratio, alone.acts_per_second), (None, None));
        assert_eq!((alone.offered_per_second, alone.goodput_per_second), (100.0, 100.0));
        let next_to = measured(150, 2_000, Some(9.6));
        let row = HostileRow::new(&options(), CrowdKind::Streams.name(), &next_to, Some(&alone));
        assert_eq!((row.p99_ratio, row.acts_per_second), (Some(2.0), Some(10.0)));
        assert_eq!((row.goodput_per_second, row.late_percent), (75.0, 25.0));
        assert_eq!((row.server_cpu_percent, row.crowd_cpu_percent), (25.0, Some(150.0)));
        assert_eq!((row.peak_bytes, alone.crowd_cpu_percent), (3 << 20, None));
        let shown = row.to_string();
        assert!(shown.starts_with("streams") && shown.contains(" 2.00 "), "{shown}");
        assert!(alone.to_string().contains('–'), "{alone}");
    }
}
