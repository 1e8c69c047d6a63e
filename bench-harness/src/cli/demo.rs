//! `wharf-bench demo`.

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::replay::progress;
use crate::demo::{DemoOptions, run};
use crate::durability::{MODES, Mode};

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The number of nodes of the synthetic cluster.
    #[arg(long, default_value_t = DemoOptions::default().nodes)]
    nodes: u32,
    /// The total number of requests, places and releases.
    #[arg(long, default_value_t = DemoOptions::default().requests)]
    requests: u64,
    /// The maximum number of requests in flight.
    #[arg(long, value_name = "W", default_value_t = DemoOptions::default().in_flight)]
    in_flight: usize,
    /// The seed of cluster, workload and service.
    #[arg(long, default_value_t = DemoOptions::default().seed)]
    seed: u64,
    /// The number of shards [default: by the cores of this machine].
    #[arg(long)]
    shards: Option<u16>,
    /// The policy of all places. `least-fit` and `best-fit` decide fastest.
    #[arg(long, default_value_t = DemoOptions::default().policy)]
    policy: Policy,
    /// When replies leave: at once, or once they survive the process or a loss of power.
    #[arg(long, default_value = Mode::SYNC.name, value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.name)))]
    durability: String,
}

impl DemoArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self { nodes, requests, in_flight, seed, shards, policy, durability } = self;
        let durability = MODES.into_iter().find(|mode| mode.name == durability);
        let durability = durability.context("the parser knows the modes")?;
        let mut bar = progress(requests, "requests");
        let options = DemoOptions { nodes, requests, in_flight, seed, shards, policy, durability };
        let demo = run(options, bar.as_mut())?;
        drop(bar);
        say(format_args!("{demo}"));
        Ok(())
    }
}
