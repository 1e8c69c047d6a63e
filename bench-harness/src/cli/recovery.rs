//! `wharf-bench recovery`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use crate::recovery::{Contents, RecoveryOptions, RecoveryRow, Step, run, run_here};

#[derive(Debug, Args)]
pub(super) struct RecoveryArgs {
    /// The number of nodes.
    #[arg(long, default_value_t = 5_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The number of live allocations.
    #[arg(long, default_value_t = 140_000)]
    allocations: u64,
    /// The numbers of records in the journal after the checkpoint, one row for each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 100_000])]
    tail_records: Vec<u64>,
    /// The requests in flight while the tail is written: those of one append.
    #[arg(long, value_name = "W", default_value_t = 32, value_parser = value_parser!(u64).range(2..=1024))]
    in_flight: u64,
    /// The number of shards [default: by the cores of this machine].
    #[arg(long)]
    shards: Option<u16>,
    /// The seed of nodes and requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of starts per row. The row has the one in the middle.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// The directory under which the data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
    /// Run one step in this process: the command starts itself with it.
    #[arg(long, hide = true)]
    step: Option<String>,
}

impl RecoveryArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if let Some(step) = &self.step {
            let step: Step = serde_json::from_str(step).context("a step is JSON")?;
            say(format_args!("{}", run_here(&step)?));
            return Ok(());
        }
        let mut rows = Vec::new();
        if !self.json {
            say(format_args!("{}", RecoveryRow::HEAD));
        }
        for &tail_records in &self.tail_records {
            let row = run(&self.options(tail_records))?;
            if !self.json {
                say(format_args!("{row}"));
            }
            rows.push(row);
        }
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
        }
        Ok(())
    }

    fn options(&self, tail_records: u64) -> RecoveryOptions {
        let &Self { nodes, allocations, in_flight, shards, seed, rounds, .. } = self;
        RecoveryOptions {
            contents: Contents { nodes, allocations, tail_records, in_flight, seed },
            shards,
            rounds: usize::from(rounds),
            directory: self.directory.clone().unwrap_or_else(std::env::temp_dir),
        }
    }
}
