//! The command line of `wharf-bench`.

mod contention;
mod demo;
mod durability;
mod engine;
mod figures;
mod generate;
mod groups;
mod hostile;
mod idle;
mod of_service;
mod overload;
mod recovery;
mod replay;
mod rpc;
mod scaling;
mod session;
mod verify;
mod views;

use std::time::Duration;

use clap::{Parser, Subcommand};

/// Wrong usage that clap cannot detect. The exit status is 2, as for clap's own errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Returns the value of an option that is a number of seconds.
fn positive_seconds(option: &str, seconds: f64) -> Result<Duration, Usage> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| Usage(format!("--{option} {seconds}: give a positive number of seconds")))
}

/// Measures Wharfinger: runs a demo, replays cluster traces, generates synthetic ones, checks placements.
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
    /// Start a service on loopback, load it over QUIC, and check its books; needs no arguments.
    Demo(demo::DemoArgs),
    /// Replay a cluster trace to an engine and report rate, latency, utilisation and books.
    Replay(replay::ReplayArgs),
    /// Measure one step of a shard against a floor and a linear scan: speed, visits, memory.
    Engine(engine::EngineArgs),
    /// Measure the cost of publishing views, the cost of readers to the shard, and the memory that they keep.
    Views(views::ViewsArgs),
    /// Measure conflicts between planners by decision time and load, in virtual time (Omega's figure).
    Contention(contention::ContentionArgs),
    /// Measure how fast groups are created and removed over QUIC while many others exist.
    Groups(groups::GroupsArgs),
    /// Measure what it costs that a reply survives a crash, by mode and requests in flight.
    Durability(durability::DurabilityArgs),
    /// Measure how long a start takes after the service was killed, by the size of the store.
    Recovery(recovery::RecoveryArgs),
    /// Measure requests over QUIC next to a bare QUIC echo: closed and open loops, latency, processor time.
    Rpc(Box<rpc::RpcArgs>),
    /// Measure how many requests the engine decides by the number of its shards.
    Scaling(scaling::ScalingArgs),
    /// Measure scheduling cycles: what runs, what waits, what changed, gangs, preemption.
    Session(session::SessionArgs),
    /// Measure goodput and fairness when clients ask for more than the engine can do.
    Overload(overload::OverloadArgs),
    /// Measure what a service costs while its clients ask for nothing: processor time and memory.
    Idle(idle::IdleArgs),
    /// Measure the latency of a well-behaved client next to crowds of hostile peers.
    Hostile(hostile::HostileArgs),
    /// Run the measurements and write the tables of docs/benchmarks.md with commit, machine and date.
    Figures(figures::FiguresArgs),
    /// Write a synthetic cluster and workload in the columns of the openb trace.
    Generate(generate::GenerateArgs),
    /// Check a placements file against its trace, with code that is independent of the engine.
    Verify(verify::VerifyArgs),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// When the command fails. The error says what went wrong and what to do.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Demo(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::Engine(args) => args.run(),
            Command::Views(args) => args.run(),
            Command::Contention(args) => args.run(),
            Command::Groups(args) => args.run(),
            Command::Durability(args) => args.run(),
            Command::Recovery(args) => args.run(),
            Command::Rpc(args) => args.run(),
            Command::Scaling(args) => args.run(),
            Command::Session(args) => args.run(),
            Command::Overload(args) => args.run(),
            Command::Idle(args) => args.run(),
            Command::Hostile(args) => args.run(),
            Command::Figures(args) => args.run(),
            Command::Generate(args) => args.run(),
            Command::Verify(args) => args.run(),
        }
    }
}
