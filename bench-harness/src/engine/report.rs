//! The figures of a row, its targets, and how both are printed.

use std::fmt;

use serde::Serialize;
use wharf_core::memory::{Per, StructureBytes};
use wharf_core::request::Policy;

use super::rows::{Planned, Target, fallback};
use super::scenario::Kind;

/// The measurements of a row.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Nanoseconds of one place plus one release, in batches.
    pub ns_per_op: f64,
    /// The same for the floor.
    pub floor_ns_per_op: f64,
    /// The same for a bare loop over the cache lines that the engine touches: first each line as soon as the processor
    /// likes, then no line before the one before it was read. Only for the rows whose lines are recorded.
    pub touch_ns_per_op: Option<[f64; 2]>,
    /// The same for the scan, if there is one.
    pub scan_ns_per_op: Option<f64>,
    /// The median of single ops.
    pub p50_ns: u32,
    /// The 99th percentile of single ops.
    pub p99_ns: u32,
    /// The 99th percentile of the floor.
    pub floor_p99_ns: u32,
    /// The mean of single ops whose request was refused, if they are many.
    pub refusal_ns: Option<f64>,
    /// The most vertices and nodes that one request visited.
    pub visited_max: u64,
    /// The mean number of vertices and nodes visited.
    pub visited_mean: f64,
    /// The allocated share of the scarcest resource.
    pub utilisation_percent: f64,
    /// The share of refused requests.
    pub refused_percent: f64,
    /// Live allocations.
    pub live: usize,
    /// The size of a candidate set.
    pub candidates: usize,
    /// The source of the shapes.
    pub shapes: &'static str,
    /// The memory of the shard's structures.
    pub memory: Vec<StructureBytes>,
}

/// The memory of one structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Structure {
    /// The name of the structure.
    pub name: &'static str,
    /// The unit that it grows with: `node`, `allocation`, or neither (`shard`).
    pub per: &'static str,
    /// The total size.
    pub bytes: u64,
    /// The size per node or allocation.
    pub each: f64,
}

/// A target with the measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Held {
    /// The compared quantity.
    pub what: &'static str,
    /// The limit: an upper bound, or a lower bound if `at_least`.
    pub limit: f64,
    /// True if the limit is a lower bound.
    pub at_least: bool,
    /// The measured value.
    pub value: f64,
    /// True if the target is met.
    pub met: bool,
}

/// A target that is not judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotJudged {
    /// The quantity that would be compared.
    pub what: &'static str,
    /// Why it is not judged.
    pub reason: &'static str,
}

/// The number of nodes from which on bytes per node, and visits of half of all nodes, are judged.
pub const JUDGED_NODES_MIN: u32 = 1_000;

/// The number of nodes for which limits relative to the floor, and those of unkind rows, hold.
const REFERENCE_NODES: u32 = 10_000;
/// The most nanoseconds per op of `steady`, by number of nodes.
const STEADY_NS: [(u32, f64); 4] = [(1_000, 300.0), (10_000, 400.0), (100_000, 900.0), (1_000_000, 2_000.0)];
/// The most nanoseconds of the 99th percentile of `steady`, by number of nodes.
const STEADY_P99_NS: [(u32, f64); 1] = [(1_000_000, 20_000.0)];
/// How many times as fast as the scan `steady` is at least, by number of nodes.
const STEADY_TIMES_SCAN: [(u32, f64); 2] = [(10_000, 28.0), (100_000, 220.0)];
/// The most nanoseconds per op of a full cluster, and of one whose nodes are all different.
const UNKIND_NS: f64 = 1_500.0;
/// The most nanoseconds of a refused request, at any size.
const REFUSAL_NS: f64 = 5_000.0;

/// One row of the report. The fields are those of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    name: &'static str,
    policy: &'static str,
    nodes: u32,
    ns_per_op: f64,
    floor_ns_per_op: f64,
    ratio_to_floor: f64,
    touch_ns_per_op: Option<f64>,
    touch_chain_ns_per_op: Option<f64>,
    scan_ns_per_op: Option<f64>,
    ratio_to_scan: Option<f64>,
    p50_ns: u32,
    p99_ns: u32,
    floor_p99_ns: u32,
    refusal_ns: Option<f64>,
    visited_max: u64,
    visited_mean: f64,
    bytes_per_node: Option<f64>,
    bytes_per_allocation: Option<f64>,
    utilisation_percent: f64,
    refused_percent: f64,
    live_allocations: usize,
    candidates: usize,
    shapes: &'static str,
    fallback: &'static str,
    targets: Vec<Held>,
    /// The missed targets in words. `None`: all are met.
    missed_targets: Option<String>,
    not_judged: Vec<NotJudged>,
    memory: Vec<Structure>,
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Row {
    /// Returns the nanoseconds of one place plus one release, in batches.
    #[must_use]
    pub fn ns_per_op(&self) -> f64 {
        self.ns_per_op
    }

    /// Creates the row of a measurement, not compared with any target yet.
    #[must_use]
    pub fn new(planned: &Planned, measured: Measured) -> Self {
        let Measured { ns_per_op, floor_ns_per_op, scan_ns_per_op, .. } = measured;
        let structure = |structure: &StructureBytes| {
            let (per, count) = match structure.per {
                Per::Node => ("node", planned.nodes as usize),
                Per::Allocation => ("allocation", measured.live),
                // No requests wait in these rows.
                Per::Waiting => ("waiting request", 0),
                Per::Shard => ("shard", 1),
            };
            let each = rounded(structure.bytes as f64 / count.max(1) as f64);
            Structure { name: structure.name, per, bytes: structure.bytes, each }
        };
        let memory: Vec<Structure> = measured.memory.iter().map(structure).collect();
        let each = |per: &str| {
            let of_kind = memory.iter().filter(|structure| structure.per == per);
            Some(rounded(of_kind.map(|structure| structure.each).sum()))
        };
        Self {
            name: planned.row.name,
            policy: planned.policy.name(),
            nodes: planned.nodes,
            ns_per_op: rounded(ns_per_op),
            floor_ns_per_op: rounded(floor_ns_per_op),
            ratio_to_floor: rounded(ns_per_op / floor_ns_per_op),
            touch_ns_per_op: measured.touch_ns_per_op.map(|[free, _]| rounded(free)),
            touch_chain_ns_per_op: measured.touch_ns_per_op.map(|[_, chained]| rounded(chained)),
            scan_ns_per_op: scan_ns_per_op.map(rounded),
            ratio_to_scan: scan_ns_per_op.map(|scan| rounded(scan / ns_per_op)),
            p50_ns: measured.p50_ns,
            p99_ns: measured.p99_ns,
            floor_p99_ns: measured.floor_p99_ns,
            refusal_ns: measured.refusal_ns.map(rounded),
            visited_max: measured.visited_max,
            visited_mean: rounded(measured.visited_mean),
            bytes_per_node: each("node"),
            bytes_per_allocation: each("allocation"),
            utilisation_percent: measured.utilisation_percent,
            refused_percent: rounded(measured.refused_percent),
            live_allocations: measured.live,
            candidates: measured.candidates,
            shapes: measured.shapes,
            fallback: fallback(planned.policy),
            targets: Vec::new(),
            missed_targets: None,
            not_judged: Vec::new(),
            memory,
        }
    }

    fn at_most(&mut self, what: &'static str, limit: f64, value: f64) {
        self.targets.push(Held { what, limit: rounded(limit), at_least: false, value, met: value <= limit });
    }

    fn at_least(&mut self, what: &'static str, limit: f64, value: f64) {
        self.targets.push(Held { what, limit, at_least: true, value, met: value >= limit });
    }

    fn leave(&mut self, what: &'static str, reason: &'static str) {
        self.not_judged.push(NotJudged { what, reason });
    }

    fn is_small(&self) -> bool {
        self.nodes < JUDGED_NODES_MIN
    }

    /// Compares the row with its targets. `steady` is the reference row.
    pub fn hold_against(&mut self, planned: &Planned, steady: &Self) {
        match planned.row.target {
            Target::Steady => {
                let limit_for = |limits: &[(u32, f64)]| {
                    limits.iter().find(|&&(nodes, _)| nodes == self.nodes).map(|&(_, limit)| limit)
                };
                let ns = limit_for(&STEADY_NS);
                let p99 = limit_for(&STEADY_P99_NS);
                let times = limit_for(&STEADY_TIMES_SCAN);
                if let Some(limit) = ns {
                    self.at_most("ns", limit, self.ns_per_op);
                }
                if let Some(limit) = p99 {
                    self.at_most("ns of p99", limit, f64::from(self.p99_ns));
                }
                if self.nodes == REFERENCE_NODES {
                    let limit = if planned.policy == Policy::LeastFit { 8.0 } else { 12.0 };
                    self.at_most("times the floor", limit, self.ratio_to_floor);
                }
                if let (Some(limit), Some(ratio)) = (times, self.ratio_to_scan) {
                    self.at_least("times as fast as the scan", limit, ratio);
                }
            }
            Target::Unkind => {
                let limit = 10.0 * f64::from(steady.p99_ns);
                self.at_most("ns of p99, ten times that of steady", limit, f64::from(self.p99_ns));
                let has_limit = matches!(planned.row.kind, Kind::Full | Kind::AllDifferent);
                if has_limit && self.nodes == REFERENCE_NODES {
                    self.at_most("ns", UNKIND_NS, self.ns_per_op);
                }
            }
            Target::Candidates if self.is_small() && planned.row.kind == Kind::CandidatesHalf => {
                self.leave(
                    "visits, by the smaller of set and search",
                    "a few refusals that look at every candidate make up the mean of fewer than 1,000 nodes",
                );
            }
            Target::Candidates => {
                // In a search over all nodes, one in `nodes / set` visited nodes is a candidate.
                let set = self.candidates as f64;
                let search = steady.visited_mean * f64::from(self.nodes) / set.max(1.0);
                let limit = 4.0 * set.min(search) + 16.0;
                self.at_most("visits, by the smaller of set and search", limit, self.visited_mean);
            }
            Target::Served => {
                self.at_most("ns, 1.6 times steady", 1.6 * steady.ns_per_op, self.ns_per_op);
            }
            Target::Fragmentation => self.at_most("ns", 20_000.0, self.ns_per_op),
        }
        if self.is_small() {
            self.leave("bytes per node", "tables of fixed size dominate below 1,000 nodes");
        } else if let Some(bytes) = self.bytes_per_node {
            self.at_most("bytes per node", 768.0, bytes);
        }
        // With few allocations, most of the memory belongs to the shard, not to each allocation.
        if let Some(bytes) =
            self.bytes_per_allocation.filter(|_| self.live_allocations >= self.nodes as usize)
        {
            self.at_most("bytes per allocation", 80.0, bytes);
        }
        if let Some(ns) = self.refusal_ns {
            self.at_most("ns of a refusal with its release", REFUSAL_NS, ns);
        }
        self.missed_targets = Some(self.missed()).filter(|missed| !missed.is_empty());
    }

    /// Returns the number of nodes of the cluster.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the memory of each structure.
    #[must_use]
    pub fn memory(&self) -> MemoryTable<'_> {
        MemoryTable(self)
    }

    /// Returns whether the row has any target.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Describes which targets are met, missed or not judged.
    #[must_use]
    pub fn verdict(&self) -> String {
        let mut parts = Vec::new();
        if self.is_judged() {
            parts.push(if self.is_met() { "met".to_owned() } else { format!("missed: {}", self.missed()) });
        }
        parts.extend(
            self.not_judged.iter().map(|NotJudged { what, reason }| format!("not judged: {what} ({reason})")),
        );
        parts.join("; ")
    }

    /// Returns whether every target is met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.targets.iter().all(|held| held.met)
    }

    /// Describes the missed targets; empty if all are met.
    #[must_use]
    pub fn missed(&self) -> String {
        let missed = self.targets.iter().filter(|held| !held.met).map(|held| {
            let bound = if held.at_least { "at least" } else { "at most" };
            let [value, limit] = apart(held.value, held.limit);
            format!("{value} {}, {bound} {limit}", held.what)
        });
        missed.collect::<Vec<_>>().join("; ")
    }
}

/// Formats two values with the fewest decimals that tell them apart, but small ones with some.
fn apart(value: f64, other: f64) -> [String; 2] {
    let decimals = |value: f64| match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let least = decimals(value);
    let with = |decimals: usize| format!("{value:.decimals$}");
    let same = |decimals: &usize| with(*decimals) == format!("{other:.0$}", *decimals);
    let decimals = (least..2).find(|decimals| !same(decimals)).unwrap_or(2);
    let is_whole = other.fract() == 0.0;
    [with(decimals), if is_whole { format!("{other:.0}") } else { format!("{other:.decimals$}") }]
}

/// The heading of the table.
pub struct Heading;

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<26} {:>9} {:>10} {:>9} {:>8} {:>7} {:>6} {:>6} {:>11} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6}  target",
            "row",
            "nodes",
            "policy",
            "ns/op",
            "floor",
            "x floor",
            "touch",
            "chain",
            "scan",
            "x scan",
            "p99 ns",
            "visits",
            "used %",
            "ref. %",
            "B/node",
            "B/all."
        )
    }
}

/// Formats a figure, or a dash if there is none.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<26} {:>9} {:>10} {:>9.0} {:>8.0} {:>7.2} {:>6} {:>6} {:>11} {:>8} {:>8} {:>8} {:>6.1} {:>6.1} {:>6} {:>6}  {}",
            self.name,
            self.nodes,
            self.policy,
            self.ns_per_op,
            self.floor_ns_per_op,
            self.ratio_to_floor,
            figure(self.touch_ns_per_op),
            figure(self.touch_chain_ns_per_op),
            figure(self.scan_ns_per_op),
            figure(self.ratio_to_scan),
            self.p99_ns,
            self.visited_max,
            self.utilisation_percent,
            self.refused_percent,
            figure(self.bytes_per_node),
            figure(self.bytes_per_allocation),
            self.verdict()
        )
    }
}

/// The memory of a row, formatted as a table.
pub struct MemoryTable<'a>(&'a Row);

impl fmt::Display for MemoryTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { nodes, live_allocations, policy, name, .. } = self.0;
        write!(f, "memory of {name}, {policy}, {nodes} nodes, {live_allocations} allocations:")?;
        for Structure { name, per, bytes, each } in &self.0.memory {
            write!(f, "\n  {name:<32} {bytes:>14} bytes  {each:>10.1} per {per}")?;
        }
        let of = [("node", self.0.bytes_per_node), ("allocation", self.0.bytes_per_allocation)];
        for (per, bytes) in of {
            write!(f, "\n  {:<32} {:>14}        {:>10} per {per}", "in all", "", figure(bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rows::Selection;

    fn judged(row: &str, nodes: u32, policy: Policy, change: impl FnOnce(&mut Measured)) -> String {
        let rows = vec![row.to_owned()];
        let selection = Selection { rows, nodes: vec![nodes], policy: Some(policy) };
        let planned = selection.plan().expect("the row is known")[0];
        let mut measured = Measured {
            ns_per_op: 250.0,
            floor_ns_per_op: 50.0,
            touch_ns_per_op: None,
            scan_ns_per_op: Some(250.0 * 250.0),
            p50_ns: 200,
            p99_ns: 1_000,
            floor_p99_ns: 100,
            refusal_ns: None,
            visited_max: 10,
            visited_mean: 5.0,
            utilisation_percent: 85.0,
            refused_percent: 0.0,
            live: nodes as usize,
            candidates: 0,
            shapes: "synthetic",
            memory: Vec::new(),
        };
        let steady = Row::new(&planned, measured.clone());
        change(&mut measured);
        let mut row = Row::new(&planned, measured);
        row.hold_against(&planned, &steady);
        assert!(row.is_judged());
        row.missed()
    }

    #[test]
    fn steady_is_judged_by_its_number_of_nodes() {
        for nodes in [1_000, 10_000, 100_000, 1_000_000] {
            assert_eq!(judged("steady", nodes, Policy::LeastFit, |_| {}), "");
        }
        let slow = |ns| move |measured: &mut Measured| measured.ns_per_op = ns;
        assert!(judged("steady", 1_000, Policy::BestFit, slow(301.0)).contains("at most 300"));
        assert!(
            judged("steady", 10_000, Policy::LeastFit, slow(401.0)).contains("times the floor, at most 8")
        );
        assert!(!judged("steady", 10_000, Policy::BestFit, slow(401.0)).contains("floor"));
        assert!(judged("steady", 100_000, Policy::BestFit, slow(901.0)).contains("scan, at least 220"));
        let missed = judged("steady", 1_000_000, Policy::BestFit, |measured| measured.p99_ns = 20_001);
        assert_eq!(missed, "20001 ns of p99, at most 20000");
    }

    #[test]
    fn missed_targets_have_few_decimals_but_differ() {
        let shown = |value, other| apart(value, other).join(" ");
        assert_eq!(shown(44_267.04, 5_000.0), "44267 5000");
        assert_eq!(shown(1013.7, 1_013.456), "1014 1013");
        assert_eq!(shown(768.2, 768.0), "768.2 768");
        assert_eq!(shown(768.04, 768.0), "768.04 768");
        assert_eq!(shown(15.1849, 12.0), "15.2 12");
        assert_eq!(shown(8.0149, 8.0), "8.01 8");
    }

    #[test]
    fn other_rows_are_judged_by_steady_and_by_time() {
        let slow = |ns| move |measured: &mut Measured| measured.ns_per_op = ns;
        assert_eq!(judged("full-99.5", 10_000, Policy::BestFit, slow(1_500.0)), "");
        assert!(judged("full-99.5", 10_000, Policy::BestFit, slow(1_501.0)).contains("at most 1500"));
        assert_eq!(judged("all-equal", 10_000, Policy::BestFit, slow(1_501.0)), "");
        let refuses = |ns| move |measured: &mut Measured| measured.refusal_ns = Some(ns);
        assert_eq!(judged("full-99.5", 10_000, Policy::BestFit, refuses(5_000.0)), "");
        assert!(judged("full-99.5", 10_000, Policy::BestFit, refuses(5_001.0)).contains("at most 5000"));
        assert_eq!(judged("served-step", 10_000, Policy::BestFit, slow(400.0)), "");
        assert!(judged("served-step", 10_000, Policy::BestFit, slow(401.0)).contains("at most 400"));
    }
}
