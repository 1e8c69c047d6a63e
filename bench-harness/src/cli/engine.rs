//! `wharf-bench engine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::Usage;
use crate::engine::report::{Heading, Row};
use crate::engine::rows::Selection;
use crate::engine::shapes::Shapes;
use crate::engine::{Budget, measure_all};

#[derive(Debug, Args)]
pub(super) struct EngineArgs {
    /// Rows by name, separated by commas [default: all]. The scan of `fgd` computes the policy by its
    /// definition for every node, as its authors' simulator does, and times only a few ops.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<String>,
    /// Numbers of nodes, instead of each row's own; without --rows, only for `steady`.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    nodes: Vec<u32>,
    /// The policy, instead of each row's own; without --rows, only for `steady`.
    #[arg(long)]
    policy: Option<Policy>,
    /// The approximate time that the engine is measured per row.
    #[arg(long, value_name = "S", default_value_t = 0.5, conflicts_with = "ops")]
    seconds: f64,
    /// The number of ops per pass, instead of a time. The same numbers give the same requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ops: Option<u32>,
    /// The seed of nodes, requests and the random policy.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Pod list in openb's columns to draw request shapes from [default: the trace in ../shared/data/openb if
    /// it exists, else a similar synthetic list].
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// Print the memory of each structure for every row, not only for the largest.
    #[arg(long, conflicts_with = "json")]
    memory: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl EngineArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self { rows, nodes, policy, seconds, ops, seed, shapes, memory, json } = self;
        let plan = Selection { rows, nodes, policy }.plan().map_err(Usage)?;
        let shapes = Shapes::load(shapes.as_deref(), seed)?;
        let limit = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|limit| !limit.is_zero())
            .ok_or_else(|| Usage(format!("--seconds {seconds}: give a positive number of seconds")))?;
        let budget = ops.map_or(Budget::Time(limit), |ops| Budget::Ops(ops as usize));
        if json {
            let rows = measure_all(&plan, &shapes, budget, seed, |_| {});
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!("request shapes: {} ({} pods)", shapes.source, shapes.demands.len()));
        say(format_args!("{Heading}"));
        let rows = measure_all(&plan, &shapes, budget, seed, |row| say(format_args!("{row}")));
        let largest = rows.iter().map(Row::nodes).max();
        let first = rows.iter().position(|row| Some(row.nodes()) == largest);
        for (at, row) in rows.iter().enumerate() {
            if memory || Some(at) == first {
                say(format_args!("{}", row.memory()));
            }
        }
        let judged = rows.iter().filter(|row| row.is_judged()).count();
        let met = rows.iter().filter(|row| row.is_judged() && row.is_met()).count();
        say(format_args!("{met} of {judged} rows meet their targets"));
        Ok(())
    }
}
