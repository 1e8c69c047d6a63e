//! `wharf-bench generate`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::workload::SyntheticCluster;

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// The number of nodes.
    #[arg(long)]
    nodes: u32,
    /// The number of pods.
    #[arg(long)]
    pods: u32,
    /// The seed. The same seed gives the same files.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Directory for nodes.csv and pods.csv; created if missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The percentage of GPU pods that accept only certain GPU models.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    gpu_spec_share: u8,
}

impl GenerateArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self { nodes, pods, seed, out, gpu_spec_share } = self;
        let cluster = SyntheticCluster { nodes, pods, seed, gpu_spec_percent: gpu_spec_share };
        let written = cluster.generate().write(&out);
        written.with_context(|| format!("{}: give a directory that can be written", out.display()))?;
        eprintln!("{}: nodes.csv with {nodes} nodes, pods.csv with {pods} pods", out.display());
        Ok(())
    }
}
