//! The command line of `wharf-bench`.

mod contention;
mod demo;
mod engine;
mod figures;
mod generate;
mod groups;
mod replay;
mod verify;
mod views;

use clap::{Parser, Subcommand};

/// Wrong usage that clap cannot see: exit status 2, as clap's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Measures Wharfinger: shows it at work, replays cluster traces, makes synthetic ones, checks placements.
#[derive(Debug, Parser)]
#[command(
    name = "wharf-bench",
    version,
    about,
    after_help = "Exit status: 0 done; 1 a check failed, or an input cannot be used; 2 wrong usage."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a service on loopback, load it over QUIC, and check its books: works as it is.
    Demo(demo::DemoArgs),
    /// Feed a cluster trace to an engine and report rate, latency, utilisation and books.
    Replay(replay::ReplayArgs),
    /// Measure one step of a shard beside a floor and a linear scan: speed, visits, memory.
    Engine(engine::EngineArgs),
    /// Measure what publishing views costs, what readers cost the shard, and what they keep.
    Views(views::ViewsArgs),
    /// Measure conflicts between planners over decision time and load, in virtual time (Omega's figure).
    Contention(contention::ContentionArgs),
    /// Measure how fast groups are made and removed over QUIC, beside many that stand.
    Groups(groups::GroupsArgs),
    /// Measure, and write the tables of docs/benchmarks.md with commit, machine and date.
    Figures(figures::FiguresArgs),
    /// Write a synthetic cluster and workload in the columns of the openb trace.
    Generate(generate::GenerateArgs),
    /// Check a placements file against its trace, with code that shares nothing with the engine.
    Verify(verify::VerifyArgs),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// What went wrong and what to do.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Demo(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::Engine(args) => args.run(),
            Command::Views(args) => args.run(),
            Command::Contention(args) => args.run(),
            Command::Groups(args) => args.run(),
            Command::Figures(args) => args.run(),
            Command::Generate(args) => args.run(),
            Command::Verify(args) => args.run(),
        }
    }
}
