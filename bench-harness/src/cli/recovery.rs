//! `wharf-bench recovery`.

use anyhow::Context;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use super::of_service::ServiceArgs;
use crate::recovery::{Contents, RecoveryOptions, Step, run, run_here};

// A later argument counts: `wharf-bench figures --quick` adds its own.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
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
    /// The number of client sessions.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// The number of outcomes that clients do not acknowledge before the service is killed.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    unacknowledged: u64,
    /// The number of shards of the service that is killed [default: that of the start].
    #[arg(long, value_name = "SHARDS")]
    built_shards: Option<u16>,
    #[command(flatten)]
    service: ServiceArgs,
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
        for &tail_records in &self.tail_records {
            let row = run(&self.options(tail_records))?;
            self.service.say_line(&row);
            rows.push(row);
        }
        self.service.say_rows(&rows)
    }

    fn options(&self, tail_records: u64) -> RecoveryOptions {
        let &Self { nodes, allocations, in_flight, sessions, unacknowledged, built_shards, .. } = self;
        let ServiceArgs { shards, seed, rounds, .. } = self.service;
        RecoveryOptions {
            contents: Contents {
                nodes,
                allocations,
                tail_records,
                in_flight,
                sessions,
                unacknowledged,
                seed,
            },
            shards,
            built_shards,
            rounds: usize::from(rounds),
            directory: self.service.directory(),
        }
    }
}
