//! `wharf-bench contention`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use wharf_core::limits::PLANNERS_MAX;
use wharf_core::statement::{CommitMode, ConflictDetection};
use wharf_ops::cli::say;

use crate::contention::real::{self, RealRow};
use crate::contention::run::run;
use crate::contention::{Point, Row, Settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GranularityArg {
    /// An operation that is no longer possible is a conflict.
    Fine,
    /// A node that has changed is a conflict.
    Coarse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// A job whose statement conflicts is planned again as a whole.
    AllOrNothing,
    /// Only the conflicting operations are planned again.
    Incremental,
}

#[derive(Debug, Args)]
pub(super) struct ContentionArgs {
    /// The numbers of planners.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32], value_parser = clap::value_parser!(u16).range(1..=i64::from(PLANNERS_MAX)))]
    planners: Vec<u16>,
    /// The rule for conflicts.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [GranularityArg::Fine, GranularityArg::Coarse])]
    conflict_detection: Vec<GranularityArg>,
    /// The handling of the rest of a statement with a conflict.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ModeArg::AllOrNothing, ModeArg::Incremental])]
    mode: Vec<ModeArg>,
    /// Decision times per job, in ms of virtual time.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [10, 100, 1000], value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    decision_ms: Vec<u32>,
    /// Decision times per task, in ms of virtual time.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [5], value_parser = clap::value_parser!(u32).range(0..=100_000))]
    task_ms: Vec<u32>,
    /// Jobs per second over all planners, about ten tasks each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 8, 32], value_parser = clap::value_parser!(u32).range(1..=5_000))]
    load: Vec<u32>,
    /// The number of nodes, 32 cores each.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// The number of shards.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// The share of the cpu that is in use throughout the run, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=95))]
    full: u8,
    /// The virtual time of each row, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// The seed of all random draws. The same seed gives the same rows.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure the engine's planners on threads in real time instead: groups of 8 bundles, created and
    /// removed.
    #[arg(long)]
    real: bool,
    /// With --real: the approximate duration of each row.
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    millis: u64,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl ContentionArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if u32::from(self.shards) > self.nodes {
            anyhow::bail!(
                "{} shards over {} nodes: give at least one node per shard",
                self.shards,
                self.nodes
            );
        }
        if self.real {
            return self.run_real();
        }
        let settings = self.settings();
        let mut rows = Vec::new();
        if !self.json {
            say(format_args!("{HEADER}"));
        }
        for point in self.points() {
            let row = run(&settings, point);
            if self.json {
                rows.push(row);
            } else {
                print(&row);
            }
        }
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let Self { nodes, shards, full, seconds, seed, .. } = *self;
        Settings { nodes, shards, full_percent: full, seconds, seed }
    }

    fn granularities(&self) -> impl Iterator<Item = ConflictDetection> {
        self.conflict_detection.iter().map(|conflict_detection| match conflict_detection {
            GranularityArg::Fine => ConflictDetection::Fine,
            GranularityArg::Coarse => ConflictDetection::Coarse,
        })
    }

    fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &decision_ms in &self.decision_ms {
            for (&task_ms, &load) in
                self.task_ms.iter().flat_map(|task| self.load.iter().map(move |load| (task, load)))
            {
                for &planners in &self.planners {
                    for conflict_detection in self.granularities() {
                        for mode in &self.mode {
                            let mode = match mode {
                                ModeArg::AllOrNothing => CommitMode::AllOrNothing,
                                ModeArg::Incremental => CommitMode::Incremental,
                            };
                            points.push(Point {
                                planners,
                                conflict_detection,
                                mode,
                                decision_ms,
                                task_ms,
                                load,
                            });
                        }
                    }
                }
            }
        }
        points
    }

    fn run_real(&self) -> anyhow::Result<()> {
        let settings = self.settings();
        let limit = Duration::from_millis(self.millis);
        let mut rows: Vec<RealRow> = Vec::new();
        for &planners in &self.planners {
            for conflict_detection in self.granularities() {
                rows.push(real::run(&settings, planners, conflict_detection, limit)?);
            }
        }
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!(
            "planners  shards  conflict_detection  conflict fraction  wasted  attempts  groups/s  refused"
        ));
        for row in &rows {
            say(format_args!(
                "{:>8} {:>7}  {:<11} {:>18.4} {:>7.4} {:>9.3} {:>9.0} {:>8}",
                row.planners,
                row.shards,
                row.conflict_detection,
                row.conflict_fraction,
                row.wasted_fraction,
                row.attempts_per_statement,
                row.statements_per_second,
                row.refused
            ));
        }
        Ok(())
    }
}

const HEADER: &str = "decision ms  task ms  load/s  planners  conflict_detection  mode            conflict fraction  wasted  attempts  busyness  statements/s  waiting";

fn print(row: &Row) {
    say(format_args!(
        "{:>11} {:>8} {:>7} {:>9}  {:<11}  {:<14} {:>18.4} {:>7.4} {:>9.3} {:>9.3} {:>13.3} {:>8}",
        row.decision_ms,
        row.task_ms,
        row.load,
        row.planners,
        row.conflict_detection,
        row.mode,
        row.conflict_fraction,
        row.wasted_fraction,
        row.attempts_per_statement,
        row.busyness,
        row.statements_per_second,
        row.waiting
    ));
}
