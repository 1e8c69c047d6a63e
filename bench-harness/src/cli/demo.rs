//! `wharf-bench demo`.

use clap::Args;
use wharf_core::request::Policy;
use wharf_ops::cli::say;

use super::replay::progress;
use crate::demo::{DemoOptions, run};

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
}

impl DemoArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self { nodes, requests, in_flight, seed, shards, policy } = self;
        let mut bar = progress(requests, "requests");
        let demo = run(DemoOptions { nodes, requests, in_flight, seed, shards, policy }, bar.as_mut())?;
        drop(bar);
        say(format_args!("{demo}"));
        Ok(())
    }
}
