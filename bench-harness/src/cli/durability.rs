//! `wharf-bench durability`.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::of_service::ServiceArgs;
use crate::durability::{DurabilityOptions, DurabilityRow, MODES, Mode, run};

#[derive(Debug, Args)]
pub(super) struct DurabilityArgs {
    /// The modes, rows for each [default: all].
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.name)))]
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
    #[command(flatten)]
    service: ServiceArgs,
}

impl DurabilityArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let asked = |mode: &Mode| self.mode.is_empty() || self.mode.iter().any(|name| name == mode.name);
        let ServiceArgs { shards, seed, rounds, .. } = self.service;
        let options = DurabilityOptions {
            modes: MODES.into_iter().filter(asked).collect(),
            in_flight: self.in_flight,
            requests: self.requests,
            nodes: self.nodes,
            shards,
            seed,
            rounds: usize::from(rounds),
            directory: self.service.directory(),
        };
        self.service.say_line(DurabilityRow::HEAD);
        let rows = run(&options, |row| self.service.say_line(row))?;
        self.service.say_rows(&rows)
    }
}
