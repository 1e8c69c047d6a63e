//! The figures of a load, and how they are printed.

use std::fmt;

use serde::Serialize;

use super::super::offer::Outcomes;
use super::super::row::{percent, rounded};
use super::{GREEDY, MULTIPLES, Measured, OverloadOptions, Pair};
use crate::replay::LatencyNs;

/// The least goodput beyond the maximum, as a part of it.
const GOODPUT_MIN: f64 = 0.9;
/// The most by which a greedy client may raise the 99th percentile of a modest one.
const MODEST_RATIO_MAX: f64 = 3.0;

/// A row, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct OverloadRow {
    /// `closed`, `open`, `half` or `greedy`.
    pub load: &'static str,
    /// What was offered, as a multiple of the maximum. Of `half` and `greedy`: by the client that is not modest.
    pub multiple: Option<f64>,
    /// The policy of all places.
    pub policy: &'static str,
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The time within which a request had to be done, in ms.
    pub deadline_ms: f64,
    /// Requests that were due, per second.
    pub offered_per_second: f64,
    /// Requests answered with a result within their deadline, per second.
    pub goodput_per_second: f64,
    /// The goodput as a part of that of the closed loop. Of `half` and `greedy`: of both clients.
    pub ratio_to_maximum: f64,
    /// Requests answered with a result, but late, in percent of what was offered.
    pub late_percent: f64,
    /// Requests that the service refused, in percent of what was offered.
    pub shed_percent: f64,
    /// The time for which a thread of a shard had a processor, in percent: 100 if the shards are the limit.
    pub shards_busy_percent: f64,
    /// From when a request was due to its result. Of `half` and `greedy`: of the client that is not modest.
    pub latency_ns: LatencyNs,
    /// The same for the modest client.
    pub modest_latency_ns: Option<LatencyNs>,
    /// Requests of the modest client that were refused or late, in percent.
    pub modest_failed_percent: Option<f64>,
    /// The 99th percentile of the modest client, as a multiple of that of `half`.
    pub modest_ratio: Option<f64>,
    /// Whether the row is as it should be, if it is judged.
    pub is_met: Option<bool>,
}

fn row(options: &OverloadOptions, load: &'static str, outcomes: &Outcomes, maximum: f64) -> OverloadRow {
    OverloadRow {
        load,
        multiple: None,
        policy: options.policy.name(),
        shards: options.shards,
        nodes: options.nodes,
        deadline_ms: options.deadline.as_secs_f64() * 1e3,
        offered_per_second: outcomes.offered_per_second().round(),
        goodput_per_second: outcomes.good_per_second().round(),
        ratio_to_maximum: rounded(outcomes.good_per_second() / maximum.max(1.0), 3),
        late_percent: percent(outcomes.late, outcomes.offered),
        shed_percent: percent(outcomes.shed, outcomes.offered),
        shards_busy_percent: rounded(100.0 * outcomes.shards_busy(), 1),
        latency_ns: LatencyNs::of(&outcomes.latency),
        modest_latency_ns: None,
        modest_failed_percent: None,
        modest_ratio: None,
        is_met: None,
    }
}

fn pair(options: &OverloadOptions, load: &'static str, pair: &Pair, maximum: f64) -> OverloadRow {
    let Pair { modest, other } = pair;
    let goodput = modest.good_per_second() + other.good_per_second();
    OverloadRow {
        goodput_per_second: goodput.round(),
        ratio_to_maximum: rounded(goodput / maximum.max(1.0), 3),
        modest_latency_ns: Some(LatencyNs::of(&modest.latency)),
        modest_failed_percent: Some(percent(modest.late + modest.shed, modest.offered)),
        ..row(options, load, other, maximum)
    }
}

/// Makes the rows of a run.
pub(super) fn rows(options: &OverloadOptions, measured: &Measured) -> Vec<OverloadRow> {
    let maximum = measured.maximum.good_per_second();
    let mut rows = vec![row(options, "closed", &measured.maximum, maximum)];
    for (outcomes, multiple) in measured.open.iter().zip(MULTIPLES) {
        let row = row(options, "open", outcomes, maximum);
        let is_met = (multiple > 1.0).then_some(row.ratio_to_maximum >= GOODPUT_MIN);
        rows.push(OverloadRow { multiple: Some(multiple), is_met, ..row });
    }
    let half = pair(options, "half", &measured.half, maximum);
    let greedy = pair(options, "greedy", &measured.greedy, maximum);
    let p99 = |row: &OverloadRow| row.modest_latency_ns.as_ref().map_or(0, |latency| latency.p99);
    let ratio = rounded(p99(&greedy) as f64 / p99(&half).max(1) as f64, 3);
    let is_met = Some(ratio <= MODEST_RATIO_MAX);
    rows.push(half);
    rows.push(OverloadRow { multiple: Some(GREEDY), modest_ratio: Some(ratio), is_met, ..greedy });
    rows
}

/// The heading of the table.
pub struct OverloadHeading;

impl fmt::Display for OverloadHeading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "load          offered/s  goodput/s  of maximum   late %   shed %  busy %     p50 ms     p99 ms  modest p50 ms  \
             modest p99 ms  modest failed %  target",
        )
    }
}

impl fmt::Display for OverloadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let load = match self.multiple {
            Some(multiple) => format!("{} {multiple} ×", self.load),
            None => self.load.to_owned(),
        };
        write!(
            f,
            "{load:<12} {:>10.0} {:>10.0} {:>11.2} {:>8.2} {:>8.2} {:>7.1} {:>10.2} {:>10.2}",
            self.offered_per_second,
            self.goodput_per_second,
            self.ratio_to_maximum,
            self.late_percent,
            self.shed_percent,
            self.shards_busy_percent,
            millis(self.latency_ns.p50),
            millis(self.latency_ns.p99),
        )?;
        match &self.modest_latency_ns {
            Some(modest) => write!(
                f,
                " {:>14.2} {:>14.2} {:>16.2}  ",
                millis(modest.p50),
                millis(modest.p99),
                self.modest_failed_percent.unwrap_or(0.0)
            )?,
            None => write!(f, " {:>14} {:>14} {:>16}  ", "–", "–", "–")?,
        }
        let Some(is_met) = self.is_met else { return f.write_str("–") };
        f.write_str(if is_met { "met: " } else { "missed: " })?;
        match self.modest_ratio {
            Some(ratio) => write!(f, "{ratio:.2}, p99 at most {MODEST_RATIO_MAX} × that of half"),
            None => write!(f, "{:.2}, at least {GOODPUT_MIN} of the maximum", self.ratio_to_maximum),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use wharf_core::request::Policy;

    use super::*;

    fn options() -> OverloadOptions {
        OverloadOptions {
            shards: 1,
            nodes: 10,
            policy: Policy::Fgd,
            connections: 1,
            deadline: Duration::from_millis(50),
            seconds: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            rounds: 1,
            seed: 1,
            directory: PathBuf::new(),
        }
    }

    fn outcomes(offered: u64, good: u64, latency: u64) -> Outcomes {
        let elapsed = Duration::from_secs(1);
        let mut outcomes = Outcomes { offered, good, shed: offered - good, elapsed, ..Outcomes::new() };
        outcomes.latency.saturating_record(latency);
        outcomes
    }

    #[test]
    fn rows_are_judged_by_goodput_and_by_the_modest_client() {
        let pair = |latency| Pair { modest: outcomes(10, 10, latency), other: outcomes(500, 80, 9) };
        let measured = Measured {
            maximum: outcomes(100, 100, 1),
            open: vec![outcomes(100, 70, 1), outcomes(200, 89, 1), outcomes(1000, 95, 1)],
            half: pair(1_000),
            greedy: pair(2_900),
        };
        let rows = rows(&options(), &measured);
        let loads: Vec<_> = rows.iter().map(|row| (row.load, row.multiple, row.is_met)).collect();
        let expected = [
            ("closed", None, None),
            ("open", Some(1.0), None),
            ("open", Some(2.0), Some(false)),
            ("open", Some(10.0), Some(true)),
            ("half", None, None),
            ("greedy", Some(10.0), Some(true)),
        ];
        assert_eq!(loads, expected);
        assert_eq!((rows[5].goodput_per_second, rows[5].ratio_to_maximum), (90.0, 0.9));
        assert_eq!(rows[3].shed_percent, 90.5);
        let shown = rows[5].to_string();
        assert!(shown.contains("met: 2.90") && rows[2].to_string().contains("missed: 0.89"), "{shown}");
    }
}
