//! The measurement passes of a row, and their order.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use wharf_core::request::Policy;

use super::driver::{EngineDriver, Singles};
use super::floor_driver::FloorDriver;
use super::report::{Measured, Row};
use super::rows::{Planned, ROWS, Target};
use super::scan::ScanDriver;
use super::scenario::Kind;
use super::shapes::Shapes;
use super::touch::Trace;
use crate::median::median;

/// The amount of measurement per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// About this long for each of engine and floor; single ops and scan take a part of it.
    Time(Duration),
    /// This number of ops per pass.
    Ops(usize),
}

/// The minimum number of segments to take a median of.
const SEGMENTS_MIN: usize = 5;
/// The approximate duration of a segment of the engine.
const SEGMENT: Duration = Duration::from_millis(20);
/// The maximum number of ops per segment.
const SEGMENT_OPS_MAX: usize = 32_768;
/// The maximum number of timed ops of the scan if it computes a fragmentation-aware policy.
const SCANS_BY_DEFINITION: usize = 32;
/// The maximum number of timed single ops.
const SINGLES_MAX: usize = 100_000;
/// The number of refused single ops from which on their mean is told.
const REFUSALS_MIN: usize = 20;
/// The number of ops whose cache lines are recorded: as many as there are nodes, within this range.
const TRACED: std::ops::RangeInclusive<usize> = 16_384..=131_072;

/// The plan of passes of one row.
struct Passes {
    budget: Budget,
    segment: usize,
}

impl Passes {
    /// Runs the engine to its steady state and determines the length of a segment.
    fn warm_up(budget: Budget, engine: &mut EngineDriver<'_>) -> Self {
        let segment = match budget {
            Budget::Ops(ops) => ops.div_ceil(SEGMENTS_MIN),
            Budget::Time(_) => {
                let mut ops = 0;
                let mut elapsed = Duration::ZERO;
                while elapsed < SEGMENT && ops < SEGMENT_OPS_MAX {
                    let (done, took) = engine.run(256);
                    (ops, elapsed) = (ops + done, elapsed + took);
                }
                let each = elapsed.as_nanos() / ops as u128 + 1;
                ((SEGMENT.as_nanos() / each) as usize).clamp(64, SEGMENT_OPS_MAX)
            }
        };
        Self { budget, segment }
    }

    /// Alternates between engine and floor. Returns the median nanoseconds per op of each.
    fn in_turns(&self, engine: &mut EngineDriver<'_>, floor: &mut FloorDriver) -> (f64, f64) {
        let mut of_engine = Vec::new();
        let mut of_floor = Vec::new();
        let mut spent = Duration::ZERO;
        let floor_segment = match self.budget {
            Budget::Ops(_) => self.segment,
            Budget::Time(_) => SEGMENT_OPS_MAX,
        };
        loop {
            let (ops, took) = floor.run(floor_segment);
            of_floor.push(took.as_nanos() as f64 / ops as f64);
            let (ops, took) = engine.run(self.segment);
            of_engine.push(took.as_nanos() as f64 / ops as f64);
            spent += took;
            let enough = match self.budget {
                Budget::Ops(_) => true,
                Budget::Time(limit) => spent >= limit,
            };
            if enough && of_engine.len() >= SEGMENTS_MIN {
                return (median(&mut of_engine), median(&mut of_floor));
            }
        }
    }

    fn singles(&self, engine: &mut EngineDriver<'_>) -> Singles {
        let mut singles = Singles::default();
        match self.budget {
            Budget::Ops(ops) => engine.run_singly(ops, &mut singles),
            Budget::Time(limit) => {
                let started = Instant::now();
                while started.elapsed() < limit && singles.nanos.len() < SINGLES_MAX {
                    engine.run_singly(64, &mut singles);
                }
            }
        }
        singles
    }

    /// Times the scan. A fragmentation-aware policy is computed by its definition and takes milliseconds per
    /// op, so only a few ops are timed.
    fn scan(&self, policy: Policy, scan: &mut ScanDriver<'_>) -> f64 {
        let most = if policy.is_fragmentation_aware() { SCANS_BY_DEFINITION } else { usize::MAX };
        let (ops, elapsed) = match self.budget {
            Budget::Ops(ops) => scan.run(ops.min(most), Duration::MAX),
            Budget::Time(limit) => scan.run(most, limit / 2),
        };
        elapsed.as_nanos() as f64 / ops as f64
    }
}

/// Returns the median nanoseconds per op of a bare loop over the lines of a trace, first without and then with each
/// access waiting for the one before it.
fn touched(trace: &Trace) -> [f64; 2] {
    let mut replay = trace.replay();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..SEGMENTS_MIN {
        let elapsed = [replay.run(), replay.run_in_a_chain()];
        times.iter_mut().zip(elapsed).for_each(|(times, elapsed)| times.push(replay.per_op(elapsed)));
    }
    times.each_mut().map(|times| median(times))
}

/// Returns the value below which `per_mille` thousandths of the values lie.
fn quantile(values: &mut [u32], per_mille: usize) -> u32 {
    values.sort_unstable();
    values[(values.len() * per_mille / 1000).min(values.len() - 1)]
}

/// Returns the mean, or `None` of too few values.
fn mean_of_many(values: &[u32]) -> Option<f64> {
    let sum: u64 = values.iter().map(|&value| u64::from(value)).sum();
    (values.len() >= REFUSALS_MIN).then(|| sum as f64 / values.len() as f64)
}

fn measure(planned: &Planned, shapes: &Shapes, budget: Budget, seed: u64, with_scan: bool) -> Row {
    let Planned { row, nodes, policy } = *planned;
    let scenario = row.kind.scenario(nodes, policy, shapes, seed);
    let steady = (row.kind != Kind::Steady).then(|| Kind::Steady.scenario(nodes, policy, shapes, seed));
    let mut floor = FloorDriver::new(steady.as_ref().unwrap_or(&scenario), policy, seed);
    drop(steady);
    let mut engine = EngineDriver::new(&scenario, seed);
    if row.target == Target::Served {
        engine.serve();
    }
    let passes = Passes::warm_up(budget, &mut engine);
    let (ns_per_op, floor_ns_per_op) = passes.in_turns(&mut engine, &mut floor);
    let mut singles = passes.singles(&mut engine);
    let mut floor_singles = floor.run_singly(singles.nanos.len());
    let (ops, refused) = engine.ops();
    let scan_ns_per_op =
        with_scan.then(|| passes.scan(policy, &mut ScanDriver::new(&scenario, &engine, seed)));
    let memory = engine.shard().memory();
    let utilisation_percent = engine.utilisation_mean() as f64 / 100.0;
    let live = engine.live().len() + scenario.held.len();
    // Last, because it goes on with the engine.
    let traced = match budget {
        Budget::Ops(ops) => ops,
        Budget::Time(_) => (nodes as usize).clamp(*TRACED.start(), *TRACED.end()),
    };
    let is_traced = with_scan && row.has_touch();
    let trace = is_traced.then(|| engine.trace(traced)).flatten();
    Row::new(
        planned,
        Measured {
            ns_per_op,
            floor_ns_per_op,
            touch_ns_per_op: trace.as_ref().map(touched),
            scan_ns_per_op,
            p50_ns: quantile(&mut singles.nanos, 500),
            p99_ns: quantile(&mut singles.nanos, 990),
            floor_p99_ns: quantile(&mut floor_singles, 990),
            refusal_ns: mean_of_many(&singles.refused_nanos),
            visited_max: singles.visited_max,
            visited_mean: singles.visited as f64 / singles.nanos.len() as f64,
            utilisation_percent,
            refused_percent: refused as f64 * 100.0 / ops as f64,
            live,
            candidates: scenario.candidates,
            shapes: shapes.source,
            memory,
        },
    )
}

/// Measures `plan` and passes each finished row to `done`.
pub fn measure_all(
    plan: &[Planned],
    shapes: &Shapes,
    budget: Budget,
    seed: u64,
    mut done: impl FnMut(&Row),
) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    // The `steady` rows of this run by nodes and policy, which other rows are compared with.
    let mut references: HashMap<(u32, &'static str), Row> = HashMap::new();
    for planned in plan {
        let mut row = measure(planned, shapes, budget, seed, true);
        if planned.row.target == Target::Steady {
            references.insert((planned.nodes, planned.policy.name()), row.clone());
            row.hold_against(planned, &row.clone());
        } else {
            // FirstFit, NextFit and Random have no steady row and are compared with that of BestFit.
            let spreads = planned.policy == Policy::LeastFit;
            let policy = if spreads { Policy::LeastFit } else { Policy::BestFit };
            let reference = references.entry((planned.nodes, policy.name())).or_insert_with(|| {
                measure(&Planned { row: ROWS[0], policy, ..*planned }, shapes, budget, seed, false)
            });
            row.hold_against(planned, reference);
        }
        done(&row);
        rows.push(row);
    }
    rows
}
