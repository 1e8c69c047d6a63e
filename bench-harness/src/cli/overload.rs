//! `wharf-bench overload`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::positive_seconds;
use crate::rpc::{OverloadHeading, OverloadOptions, run_overload};

/// Arguments of `wharf-bench overload`.
#[derive(Debug, Args)]
pub(super) struct OverloadArgs {
    /// The number of nodes. Each request weighs all of them.
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The policy of all places.
    #[arg(long, default_value = "fgd")]
    policy: Policy,
    /// The number of shards.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// The connections of a client that offers much. A modest one has one.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// The time within which a request must be done, in ms.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = value_parser!(u32).range(1..))]
    deadline_ms: u32,
    /// The time for which each load is measured, over all of its slices.
    #[arg(long, value_name = "S", default_value_t = 9.0)]
    seconds: f64,
    /// The time before each slice.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    warm_up: f64,
    /// The slices of each load. Each has a slice of `closed` before and after it, and the median of the slices counts.
    #[arg(long, default_value_t = 9, value_parser = value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// The seed of nodes, requests and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The directory under which the data directory is made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Measure a few milliseconds with 200 nodes. Shows the columns but measures nothing.
    #[arg(long)]
    quick: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl OverloadArgs {
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        if self.quick {
            self.nodes = 200;
            self.seconds = 0.2;
            self.warm_up = 0.05;
            self.rounds = 1;
        }
        let options = OverloadOptions {
            shards: self.shards,
            nodes: self.nodes,
            policy: self.policy,
            connections: self.connections as usize,
            deadline: Duration::from_millis(u64::from(self.deadline_ms)),
            seconds: positive_seconds("seconds", self.seconds)?,
            warm_up: positive_seconds("warm-up", self.warm_up)?,
            rounds: self.rounds,
            seed: self.seed,
            directory: self.directory.clone().unwrap_or_else(std::env::temp_dir),
        };
        let rows = run_overload(&options)?;
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        let &OverloadOptions { nodes, shards, policy, .. } = &options;
        say(format_args!(
            "{nodes} nodes, {shards} shards, 85 % full, {}; each request has a shape of its own, and {} ms time",
            policy.name(),
            self.deadline_ms
        ));
        say(format_args!("{OverloadHeading}"));
        rows.iter().for_each(|row| say(format_args!("{row}")));
        let judged = rows.iter().filter(|row| row.is_met.is_some()).count();
        let met = rows.iter().filter(|row| row.is_met == Some(true)).count();
        say(format_args!("{met} of {judged} rows meet their targets; the books were audited at the end"));
        Ok(())
    }
}
