//! `wharf-bench verify`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use wharf_ops::cli::say;

use crate::verify::{Refusals, VerifyOptions, verify};

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The nodes of the trace.
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The pods of the trace.
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// The file that `replay --placements` wrote.
    #[arg(long, value_name = "FILE")]
    placements: PathBuf,
    /// The pods left at their deletion time.
    #[arg(long)]
    with_departures: bool,
    /// When a node that could have held a refused pod is a violation.
    #[arg(long, value_enum, default_value_t = RefusalCheck::None)]
    refusals: RefusalCheck,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RefusalCheck {
    /// Never.
    None,
    /// When the pod arrived; for replays with one order in flight.
    Moment,
    /// At the end; for replays in which no pod leaves.
    End,
}

impl VerifyArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let read = |path: &Path| {
            fs::read_to_string(path)
                .with_context(|| format!("{}: give a text file that can be read", path.display()))
        };
        let refusals = match self.refusals {
            RefusalCheck::None => Refusals::Accepted,
            RefusalCheck::Moment => Refusals::AtTheirMoment,
            RefusalCheck::End => Refusals::AtTheEnd,
        };
        let options = VerifyOptions { refusals, departures: self.with_departures };
        let nodes = read(&self.nodes)?;
        let pods = read(&self.pods)?;
        let placements = read(&self.placements)?;
        let found = verify(&nodes, &pods, &placements, options)
            .with_context(|| format!("{} is not sound", self.placements.display()))?;
        say(format_args!(
            "sound: {} of {} pods placed, {} of {} constrained ones, {} on several GPUs",
            found.placed, found.pods, found.constrained_placed, found.constrained, found.multi_gpu_placed
        ));
        Ok(())
    }
}
