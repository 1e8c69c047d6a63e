//! `wharf-bench durability`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use crate::durability::{DurabilityOptions, DurabilityRow, MODES, run};

#[derive(Debug, Args)]
pub(super) struct DurabilityArgs {
    /// The modes, rows for each [default: all].
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(MODES.map(|(name, _)| name)))]
    mode: Vec<String>,
    /// The numbers of requests in flight, one row for each.
    #[arg(long, value_name = "W", value_delimiter = ',', default_values_t = [1, 32, 1024])]
    in_flight: Vec<usize>,
    /// The number of requests per row for each request in flight; a row has at least 20,000.
    #[arg(long, default_value_t = 400)]
    requests: u64,
    /// The number of nodes of the synthetic cluster.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// The number of shards [default: by the cores of this machine].
    #[arg(long)]
    shards: Option<u16>,
    /// The seed of cluster, workload and service.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of rounds. A row is the median of its rounds by rate.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// The directory under which the data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl DurabilityArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let asked = |name: &&str| self.mode.is_empty() || self.mode.iter().any(|mode| mode == name);
        let options = DurabilityOptions {
            modes: MODES.iter().map(|&(name, _)| name).filter(asked).collect(),
            in_flight: self.in_flight,
            requests: self.requests,
            nodes: self.nodes,
            shards: self.shards,
            seed: self.seed,
            rounds: usize::from(self.rounds),
            directory: self.directory.unwrap_or_else(std::env::temp_dir),
        };
        if self.json {
            let rows = run(&options, |_| {})?;
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!("{}", DurabilityRow::HEAD));
        run(&options, |row| say(format_args!("{row}")))?;
        Ok(())
    }
}
