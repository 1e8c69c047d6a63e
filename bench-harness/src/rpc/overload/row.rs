//! The figures of a load, and how they are printed.

use std::fmt;

use serde::Serialize;

use super::super::offer::Outcomes;
use super::super::row::{percent, rounded};
use super::{GREEDY, LOADS, Load, Measured, OverloadOptions, Slices};
use crate::median::median;
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
    /// The goodput as a part of that of the closed loop before and after it, in the median slice. Of `half` and `greedy`:
    /// of both clients.
    pub ratio_to_maximum: f64,
    /// The same in the slice where it was the least. Of `closed`: the slice with the lowest rate, as a part of its mean.
    pub ratio_least: f64,
    /// The same where it was the most.
    pub ratio_most: f64,
    /// Placements, in percent of what was answered with a result. The others are releases, which cost less.
    pub placements_percent: f64,
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

fn row(options: &OverloadOptions, load: &'static str, outcomes: &Outcomes, ratios: &[f64]) -> OverloadRow {
    let mut sorted = ratios.to_vec();
    let middle = median(&mut sorted);
    let of_sorted = |ratio: Option<&f64>| rounded(ratio.copied().unwrap_or_default(), 3);
    let answered = outcomes.answered;
    OverloadRow {
        load,
        multiple: None,
        policy: options.policy.name(),
        shards: options.shards,
        nodes: options.nodes,
        deadline_ms: options.deadline.as_secs_f64() * 1e3,
        offered_per_second: outcomes.offered_per_second().round(),
        goodput_per_second: outcomes.good_per_second().round(),
        ratio_to_maximum: rounded(middle, 3),
        ratio_least: of_sorted(sorted.first()),
        ratio_most: of_sorted(sorted.last()),
        placements_percent: percent(answered.placements, answered.placements + answered.releases),
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

fn pair(options: &OverloadOptions, load: &'static str, slices: &Slices) -> OverloadRow {
    let Slices { modest, other, ratios } = slices;
    let goodput = modest.good_per_second() + other.good_per_second();
    OverloadRow {
        goodput_per_second: goodput.round(),
        modest_latency_ns: Some(LatencyNs::of(&modest.latency)),
        modest_failed_percent: Some(percent(modest.late + modest.shed, modest.offered)),
        ..row(options, load, other, ratios)
    }
}

/// Makes the rows of a run.
pub(super) fn rows(options: &OverloadOptions, measured: &Measured) -> Vec<OverloadRow> {
    let Measured { maximum, maxima, loads } = measured;
    let mean = maximum.good_per_second().max(1.0);
    let of_mean: Vec<f64> = maxima.iter().map(|rate| rate / mean).collect();
    let closed = row(options, "closed", maximum, &of_mean);
    // It is what the others are parts of.
    let mut rows = vec![OverloadRow { ratio_to_maximum: 1.0, ..closed }];
    let p99 = |row: &OverloadRow| row.modest_latency_ns.as_ref().map_or(0, |latency| latency.p99);
    let mut half_p99 = 0;
    for (load, slices) in LOADS.into_iter().zip(loads) {
        rows.push(match load {
            Load::Open(multiple) => {
                let row = row(options, "open", &slices.other, &slices.ratios);
                let is_met = (multiple > 1.0).then_some(row.ratio_to_maximum >= GOODPUT_MIN);
                OverloadRow { multiple: Some(multiple), is_met, ..row }
            }
            Load::Half => {
                let row = pair(options, "half", slices);
                half_p99 = p99(&row);
                row
            }
            Load::Greedy => {
                let row = pair(options, "greedy", slices);
                let ratio = rounded(p99(&row) as f64 / half_p99.max(1) as f64, 3);
                let is_met = Some(ratio <= MODEST_RATIO_MAX);
                OverloadRow { multiple: Some(GREEDY), modest_ratio: Some(ratio), is_met, ..row }
            }
        });
    }
    rows
}

/// The heading of the table.
pub struct OverloadHeading;

impl fmt::Display for OverloadHeading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "load          offered/s  goodput/s  of maximum   (least – most)  places %   late %   shed %  busy %     p50 ms     p99 ms  modest p50 ms  \
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
            "{load:<12} {:>10.0} {:>10.0} {:>11.2} {:>8.2} – {:<5.2} {:>9.1} {:>8.2} {:>8.2} {:>7.1} {:>10.2} {:>10.2}",
            self.offered_per_second,
            self.goodput_per_second,
            self.ratio_to_maximum,
            self.ratio_least,
            self.ratio_most,
            self.placements_percent,
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

    use super::super::super::work::Answered;
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

    fn slices(modest: Option<Outcomes>, other: Outcomes, ratios: &[f64]) -> Slices {
        Slices { modest: modest.unwrap_or_else(Outcomes::new), other, ratios: ratios.to_vec() }
    }

    #[test]
    fn rows_are_judged_by_goodput_and_by_the_modest_client() {
        let open = |offered, good, ratios: &[f64]| slices(None, outcomes(offered, good, 1), ratios);
        let pair =
            |latency, ratios: &[f64]| slices(Some(outcomes(10, 10, latency)), outcomes(500, 80, 9), ratios);
        let answered = Answered { placements: 3, releases: 1 };
        let measured = Measured {
            maximum: Outcomes { answered, ..outcomes(100, 100, 1) },
            maxima: vec![90.0, 110.0],
            loads: vec![
                open(100, 70, &[0.7]),
                open(200, 95, &[0.89, 0.1, 1.2]),
                open(1000, 95, &[0.95, 0.85]),
                pair(1_000, &[0.9]),
                pair(2_900, &[0.9]),
            ],
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
        let ratios = |row: &OverloadRow| (row.ratio_least, row.ratio_to_maximum, row.ratio_most);
        assert_eq!(ratios(&rows[0]), (0.9, 1.0, 1.1));
        assert_eq!((ratios(&rows[2]), ratios(&rows[3])), ((0.1, 0.89, 1.2), (0.85, 0.9, 0.95)));
        assert_eq!((rows[5].goodput_per_second, rows[5].ratio_to_maximum), (90.0, 0.9));
        assert_eq!((rows[0].placements_percent, rows[3].shed_percent), (75.0, 90.5));
        let shown = rows[5].to_string();
        assert!(shown.contains("met: 2.90") && rows[2].to_string().contains("missed: 0.89"), "{shown}");
    }

    #[test]
    fn a_slice_is_compared_with_what_is_around_it() {
        let mut around = outcomes(100, 100, 1);
        around.add(&outcomes(300, 300, 1));
        let mut slices = Slices::new();
        slices.add(Some(&outcomes(20, 20, 1)), &outcomes(900, 130, 1), &around);
        slices.add(None, &outcomes(900, 100, 1), &outcomes(50, 50, 1));
        assert_eq!(slices.ratios, [0.75, 2.0]);
        assert_eq!((slices.modest.good, slices.other.good), (20, 230));
    }
}
