//! `wharf-bench rpc`.

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::positive_seconds;
use crate::durability::{MODES, Mode};
use crate::engine::shapes::Shapes;
use crate::figures::Origin;
use crate::rpc::{
    Arrivals, Callers, Heading, Load, ROWS, Rate, RowPlan, RpcOptions, Serve, run, serve_here, write_report,
};

// A later argument counts: `wharf-bench figures --quick` adds its own.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct RpcArgs {
    /// Rows by name, separated by commas [default: all, unless a load is given].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(ROWS.map(|row| row.name)))]
    rows: Vec<String>,
    /// Rows of your own instead: one for each combination of the next options.
    #[arg(long, value_parser = ["closed", "open", "mixed"], conflicts_with = "rows")]
    load: Option<String>,
    /// The modes.
    #[arg(long, value_delimiter = ',', default_values_t = ["memory".to_owned()], requires = "load", value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.name)))]
    mode: Vec<String>,
    /// The numbers of connections.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], requires = "load", value_parser = value_parser!(u32).range(1..=4000))]
    connections: Vec<u32>,
    /// The numbers of frames in flight per connection.
    #[arg(long, value_name = "W", value_delimiter = ',', default_values_t = [256], requires = "load", value_parser = value_parser!(u32).range(1..=1024))]
    in_flight: Vec<u32>,
    /// The numbers of requests per frame; only for closed and open loops.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1], requires = "load", value_parser = value_parser!(u32).range(1..=1024))]
    batch: Vec<u32>,
    /// Who sends: one task per connection, or one per frame in flight; not for open loops.
    #[arg(long, value_delimiter = ',', default_values_t = ["lockstep".to_owned()], requires = "load", value_parser = PossibleValuesParser::new(Callers::ALL.map(Callers::name)))]
    callers: Vec<String>,
    /// The rules for arrivals of open loops.
    #[arg(long, value_delimiter = ',', default_values_t = ["poisson".to_owned()], requires = "load", value_parser = PossibleValuesParser::new(Arrivals::ALL.map(Arrivals::name)))]
    arrivals: Vec<String>,
    /// The rates of open loops, in requests per second; instead of --percent.
    #[arg(long, value_name = "R", value_delimiter = ',', requires = "load", value_parser = value_parser!(u32).range(1..))]
    rate: Vec<u32>,
    /// The rates of open loops, in percent of the best closed loop with one connection; also of those among the rows.
    #[arg(long, value_name = "P", value_delimiter = ',', default_values_t = [50], value_parser = value_parser!(u32).range(1..=1000))]
    percent: Vec<u32>,
    /// The number of requests of a burst.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// As in production: clients show certificates and act for a tenant with limits, and there is an audit log. Each row
    /// takes turns with the same row without that.
    #[arg(long)]
    secure: bool,
    /// The numbers of shards; all rows for each.
    #[arg(long, value_delimiter = ',', default_values_t = [2])]
    shards: Vec<u16>,
    /// The I/O threads of the service [default: as a service has by default].
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=16))]
    io_threads: Option<u16>,
    /// The threads of the load, each with a socket of its own. Only one I/O thread serves a socket.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=16))]
    load_threads: u16,
    /// The number of nodes.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=4_000_000))]
    nodes: u32,
    /// The policy of all places.
    #[arg(long, default_value = "least-fit")]
    policy: Policy,
    /// The time for which each row is measured, and its floor.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// The time before each measurement.
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    warm_up: f64,
    /// The turns of floor and service that a row consists of.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// The seed of nodes, requests and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pod list in openb's columns to draw request shapes from [default: the trace in ../shared/data/openb if
    /// it exists, else a similar synthetic list].
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    /// The directory under which data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Measure a few milliseconds with 200 nodes, and at most 16 connections. Shows the columns but measures nothing.
    #[arg(long)]
    quick: bool,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
    /// Write a report with plots to this file. It needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Serve in this process: the command starts itself with it.
    #[arg(long, hide = true)]
    serve: Option<String>,
}

impl RpcArgs {
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        if let Some(serve) = &self.serve {
            let serve: Serve = serde_json::from_str(serve).context("what is to be served is JSON")?;
            return serve_here(&serve);
        }
        if self.quick {
            self.nodes = 200;
            self.seconds = 0.1;
            self.warm_up = 0.02;
            self.rounds = 1;
        }
        let options = RpcOptions {
            rows: self.plan(),
            secure: self.secure,
            shards: self.shards.clone(),
            io_threads: self.io_threads,
            load_threads: self.load_threads,
            nodes: self.nodes,
            policy: self.policy,
            seconds: positive_seconds("seconds", self.seconds)?,
            warm_up: positive_seconds("warm-up", self.warm_up)?,
            rounds: self.rounds,
            burst: self.burst,
            seed: self.seed,
            shapes: Shapes::load(self.shapes.as_deref(), self.seed)?,
            directory: self.directory.clone().unwrap_or_else(std::env::temp_dir),
        };
        if !self.json {
            let &RpcOptions { nodes, policy, .. } = &options;
            let source = options.shapes.source;
            say(format_args!("{nodes} nodes, 85 % full, {}; request shapes: {source}", policy.name()));
            say(format_args!("{Heading}"));
        }
        let rows = run(&options, |row| {
            if !self.json {
                say(format_args!("{row}"));
            }
        })?;
        if let Some(file) = &self.html {
            write_report(file, &rows, &Origin::of_this_run(self.quick, None))?;
        }
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        let judged = rows.iter().filter(|row| row.is_met.is_some()).count();
        let met = rows.iter().filter(|row| row.is_met == Some(true)).count();
        say(format_args!("{met} of {judged} rows meet their targets; the books were audited after each row"));
        Ok(())
    }

    /// Returns the rows to measure.
    fn plan(&self) -> Vec<RowPlan> {
        let mut rows = match self.load.as_deref() {
            Some(load) => self.own_rows(load),
            None => {
                let asked =
                    |row: &RowPlan| self.rows.is_empty() || self.rows.iter().any(|name| name == row.name);
                ROWS.into_iter().filter(asked).flat_map(|row| self.at_rates(row)).collect()
            }
        };
        if self.quick {
            rows.iter_mut().for_each(|row| row.connections = row.connections.min(16));
        }
        rows
    }

    /// Returns a row of an open loop once per rate; others once.
    fn at_rates(&self, row: RowPlan) -> Vec<RowPlan> {
        let Load::Open { arrivals, .. } = row.load else { return vec![row] };
        let percent = self.percent.iter().map(|&percent| Rate::PercentOfClosed(f64::from(percent)));
        let absolute = self.rate.iter().map(|&rate| Rate::PerSecond(f64::from(rate)));
        let rates: Vec<Rate> = if self.rate.is_empty() { percent.collect() } else { absolute.collect() };
        rates.into_iter().map(|rate| RowPlan { load: Load::Open { arrivals, rate }, ..row }).collect()
    }

    fn own_rows(&self, load: &str) -> Vec<RowPlan> {
        let named = |names: &[String], name: &str| names.iter().any(|given| given == name);
        let modes: Vec<Mode> = MODES.into_iter().filter(|mode| named(&self.mode, mode.name)).collect();
        let arrivals = Arrivals::ALL.into_iter().filter(|arrivals| named(&self.arrivals, arrivals.name()));
        let loads: Vec<Load> = match load {
            "open" => arrivals.map(|arrivals| Load::Open { arrivals, rate: Rate::PerSecond(1.0) }).collect(),
            "mixed" => vec![Load::Mixed],
            _ => vec![Load::Closed],
        };
        let callers = |load: &Load| {
            let is_open = matches!(load, Load::Open { .. });
            let asked = move |callers: &Callers| match is_open {
                true => *callers == Callers::Lockstep,
                false => named(&self.callers, callers.name()),
            };
            Callers::ALL.into_iter().filter(asked)
        };
        let batches = if load == "mixed" { &[1][..] } else { &self.batch[..] };
        let mut rows = Vec::new();
        for &mode in &modes {
            for load in &loads {
                for callers in callers(load) {
                    for &connections in &self.connections {
                        for &in_flight in &self.in_flight {
                            for &batch in batches {
                                let row = RowPlan {
                                    name: "",
                                    load: *load,
                                    mode,
                                    connections: connections as usize,
                                    in_flight: in_flight as usize,
                                    batch: batch as usize,
                                    callers,
                                    target: None,
                                };
                                rows.extend(self.at_rates(row));
                            }
                        }
                    }
                }
            }
        }
        rows
    }
}
