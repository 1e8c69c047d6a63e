//! `wharf-bench hostile`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use super::positive_seconds;
use crate::rpc::{CrowdKind, CrowdPlan, HostileHeading, HostileOptions, crowd_here, run_hostile};

// A later argument counts: `wharf-bench figures --quick` adds its own.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct HostileArgs {
    /// The crowds by what their peers do, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(CrowdKind::ALL.map(CrowdKind::name)))]
    crowds: Vec<String>,
    /// The requests per second of the well-behaved client.
    #[arg(long, value_name = "R", default_value_t = 5000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// The time within which its requests should be done, in ms. The service is not told.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = value_parser!(u32).range(1..))]
    deadline_ms: u32,
    /// The peers of a crowd that are there at a time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=4000))]
    peers: u32,
    /// The most connections per second that a crowd begins.
    #[arg(long, value_name = "R", default_value_t = 4000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    connects: u32,
    /// The threads of a crowd.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=64))]
    crowd_threads: u16,
    /// The number of shards.
    #[arg(long, default_value_t = 2)]
    shards: u16,
    /// The I/O threads of the service [default: as a service has by default].
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=16))]
    io_threads: Option<u16>,
    /// The handshakes that an I/O thread of the service begins per second [default: as a service does by default].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    handshakes: Option<u32>,
    /// The number of nodes.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The time for which each row is measured.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// The time before each measurement, from when the crowd is there.
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    warm_up: f64,
    /// The seed of nodes, requests and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The directory under which data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Measure a few milliseconds with 200 nodes and 6 peers. Shows the columns but measures nothing.
    #[arg(long)]
    quick: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
    /// Be a crowd in this process: the command starts itself with it.
    #[arg(long, hide = true)]
    crowd: Option<String>,
}

impl HostileArgs {
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        if let Some(plan) = &self.crowd {
            let plan: CrowdPlan = serde_json::from_str(plan).context("what a crowd does is JSON")?;
            return crowd_here(plan);
        }
        if self.quick {
            self.nodes = 200;
            self.rate = 500;
            self.peers = 6;
            self.connects = 200;
            self.seconds = 0.4;
            self.warm_up = 0.05;
        }
        let asked =
            |kind: &CrowdKind| self.crowds.is_empty() || self.crowds.iter().any(|name| name == kind.name());
        let options = HostileOptions {
            crowds: CrowdKind::ALL.into_iter().filter(asked).collect(),
            per_second: f64::from(self.rate),
            deadline: Duration::from_millis(u64::from(self.deadline_ms)),
            peers: self.peers,
            connects_per_second: self.connects,
            threads: self.crowd_threads,
            shards: self.shards,
            io_threads: self.io_threads,
            handshakes_per_second: self.handshakes,
            nodes: self.nodes,
            seconds: positive_seconds("seconds", self.seconds)?,
            warm_up: positive_seconds("warm-up", self.warm_up)?,
            seed: self.seed,
            directory: self.directory.clone().unwrap_or_else(std::env::temp_dir),
        };
        if !self.json {
            let &HostileOptions { nodes, shards, peers, threads, .. } = &options;
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            say(format_args!(
                "{nodes} nodes, 85 % full, {shards} shards; {peers} peers in {threads} threads; service, crowd and \
                 client share {cores} cores"
            ));
            say(format_args!("{HostileHeading}"));
        }
        let rows = run_hostile(&options, |row| {
            if !self.json {
                say(format_args!("{row}"));
            }
        })?;
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!("the books were audited after each row"));
        Ok(())
    }
}
