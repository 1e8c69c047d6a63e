//! `wharf-bench idle`.

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use super::positive_seconds;
use crate::durability::{MODES, Mode};
use crate::rpc::{IdleHeading, IdleOptions, run_idle};

/// The nodes of a quick run.
const QUICK_NODES: u32 = 200;
/// The most clients of a quick run.
const QUICK_CONNECTIONS: u32 = 8;

// A later argument counts: `wharf-bench figures --quick` adds its own.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct IdleArgs {
    /// The numbers of idle clients, one row each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 100, 1000], value_parser = value_parser!(u32).range(0..=4000))]
    connections: Vec<u32>,
    /// The number of shards.
    #[arg(long, default_value_t = 2)]
    shards: u16,
    /// The I/O threads of the service [default: as a service has by default].
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=16))]
    io_threads: Option<u16>,
    /// The mode of the service.
    #[arg(long, default_value = Mode::SYNC.name, value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.name)))]
    mode: String,
    /// The number of nodes.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The time for which each row is measured.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// The time before memory and processor time are read, first without clients and then with them.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    settle: f64,
    /// The seed of nodes and requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The directory under which data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Measure a few milliseconds with 200 nodes, and at most 8 clients. Shows the columns but measures nothing.
    #[arg(long)]
    quick: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl IdleArgs {
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        if self.quick {
            self.nodes = QUICK_NODES;
            self.seconds = 0.2;
            self.settle = 0.05;
            self.connections.iter_mut().for_each(|count| *count = (*count).min(QUICK_CONNECTIONS));
        }
        let mode = MODES.into_iter().find(|mode| mode.name == self.mode);
        let options = IdleOptions {
            connections: self.connections,
            shards: self.shards,
            io_threads: self.io_threads,
            mode: mode.context("the parser knows the modes")?,
            nodes: self.nodes,
            seconds: positive_seconds("seconds", self.seconds)?,
            settle: positive_seconds("settle", self.settle)?,
            seed: self.seed,
            directory: self.directory.unwrap_or_else(std::env::temp_dir),
        };
        if !self.json {
            let &IdleOptions { nodes, shards, mode, .. } = &options;
            say(format_args!("{nodes} nodes, 85 % full, {shards} shards, {} mode", mode.name));
            say(format_args!("{IdleHeading}"));
        }
        let rows = run_idle(&options, |row| {
            if !self.json {
                say(format_args!("{row}"));
            }
        })?;
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
        }
        Ok(())
    }
}
