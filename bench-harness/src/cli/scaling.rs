//! `wharf-bench scaling`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use wharf_core::limits::SHARDS_MAX;
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::Usage;
use crate::engine::shapes::Shapes;
use crate::scaling::{ScalingOptions, ScalingRow, run};

/// Arguments of `wharf-bench scaling`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct ScalingArgs {
    /// The numbers of shards.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12], value_parser = value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: Vec<u16>,
    /// The number of drivers [default: as many as shards, but no more than cores are left].
    #[arg(long, value_parser = value_parser!(u16).range(1..=32))]
    drivers: Option<u16>,
    /// The number of nodes of all shards together.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The policy of all places.
    #[arg(long, default_value = "least-fit")]
    policy: Policy,
    /// The requests in flight per driver.
    #[arg(long, value_name = "W", default_value_t = 512, value_parser = value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    /// The time for which each row is measured.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// The seed of nodes, requests and routing.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pod list in openb's columns to draw request shapes from [default: the trace in ../shared/data/openb if
    /// it exists, else a similar synthetic list].
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl ScalingArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let seconds = Duration::try_from_secs_f64(self.seconds).ok().filter(|time| !time.is_zero());
        let seconds = seconds
            .ok_or_else(|| Usage(format!("--seconds {}: give a positive number of seconds", self.seconds)))?;
        let options = ScalingOptions {
            shards: self.shards,
            drivers: self.drivers,
            nodes: self.nodes,
            policy: self.policy,
            in_flight: self.in_flight as usize,
            seconds,
            seed: self.seed,
            shapes: Shapes::load(self.shapes.as_deref(), self.seed)?,
        };
        if self.json {
            let rows = run(&options, |_| {})?;
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        let ScalingOptions { nodes, policy, .. } = &options;
        say(format_args!("{nodes} nodes, 85 % full, {}", policy.name()));
        say(format_args!("{}", ScalingRow::HEAD));
        run(&options, |row| say(format_args!("{row}")))?;
        say(format_args!("the books were audited after each row"));
        Ok(())
    }
}
