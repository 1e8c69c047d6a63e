//! The commands of `wharf`.
//!
//! Exit status: 0 done; 1 the service refused or found a fault; 2 wrong usage or settings; 3 no connection, a file that
//! cannot be used, or the service could not start or continue; 74 it could not write its journal to the end.

mod adopt;
mod agent;
mod cert;
mod check;
mod connect;
mod demand;
mod events;
mod events_view;
mod explain;
mod explain_view;
mod explain_wait_view;
mod export;
mod group;
mod group_view;
mod into;
mod job;
mod job_bodies;
mod job_view;
mod journal;
mod node;
mod node_view;
mod place;
mod plan;
mod plan_view;
mod print;
mod priority_class;
mod queue;
mod renew;
mod reserve;
mod scenario;
mod serve;
mod statement;
mod statement_file;
mod status;
mod watch;
mod watch_view;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use connect::ConnectArgs;
pub use print::say;
use wharf_net::client::ClientError;

use crate::config::ConfigError;
use crate::daemon::{DaemonError, EXIT_JOURNAL_FAILED};
use crate::file_error::FileError;

/// A placement service. Control planes ask it where work should run; it answers in microseconds and keeps the
/// books.
#[derive(Debug, Parser)]
#[command(
    name = "wharf",
    version,
    propagate_version = true,
    after_help = "Exit status: 0 done; 1 refused, or a fault found; 2 wrong usage or settings; 3 no connection, \
                  a file that cannot be used, or the service could not start or go on; 74 it could not write its \
                  journal."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve placements; works without configuration.
    Serve(serve::ServeArgs),
    /// Add, update, list, show, drain and remove nodes.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Report this machine to a service as a node, and send heartbeats.
    Agent(Box<agent::AgentArgs>),
    /// Place a request on a node and allocate its resources.
    Place(Box<place::PlaceArgs>),
    /// End allocations.
    Release(place::ReleaseArgs),
    /// Renew leases, so that their allocations do not end by themselves.
    Renew(renew::RenewArgs),
    /// Record an allocation that another system made, even above the node's capacity.
    Adopt(adopt::AdoptArgs),
    /// Reserve a node for an owner, whose work is placed there first; or end a reservation.
    Reserve(reserve::ReserveArgs),
    /// Create, show, list, grow, shrink and remove placement groups.
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Make, change, list and remove queues of jobs.
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Make, change, list and remove priority classes of jobs.
    #[command(subcommand)]
    PriorityClass(priority_class::PriorityClassCommand),
    /// Submit, show, list and cancel jobs, and report their tasks.
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Say why a job, a task, a placement or a group waits, and what would help.
    Explain(explain::ExplainArgs),
    /// Plan the nodes to launch for all that waits and those to remove, and show what would start.
    Plan(plan::PlanArgs),
    /// Commit operations that another scheduler has planned.
    #[command(subcommand)]
    Statement(statement::StatementCommand),
    /// Show the books, per resource and shard.
    Status(status::StatusArgs),
    /// Print changes of nodes, allocations and holds, one per line.
    Watch(watch::WatchArgs),
    /// Check, dump, repair, export and import the books on disk.
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    /// Make certificates for a new cluster: an authority, services and clients.
    #[command(subcommand)]
    Cert(cert::CertCommand),
    /// Print what happened, one event per line, from a position of the journal on.
    Events(events::EventsArgs),
    /// Try queues, jobs and policies in virtual time.
    #[command(subcommand)]
    Scenario(scenario::ScenarioCommand),
    /// Check scenarios, files of priority classes, queues and jobs, and settings, without running anything.
    Check(check::CheckArgs),
}

/// The largest file of scenarios, queues or jobs, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a file of scenarios, queues or jobs.
fn read_text(file: &Path) -> Result<String, FileError> {
    let about = std::fs::metadata(file).map_err(|error| FileError::new(file, error))?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        let message = format!("give a regular file of at most {} MiB", FILE_BYTES_MAX >> 20);
        return Err(FileError::new(file, message));
    }
    std::fs::read_to_string(file).map_err(|error| FileError::new(file, error))
}

/// The outcome of a command.
#[derive(Debug)]
enum Ended {
    Done,
    /// The service refused something; the reply has been printed.
    Refused,
}

/// Runs the command in the process arguments.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Node(command) => connect::block_on(node::run(command)),
        Command::Agent(args) => connect::block_on(agent::run(*args)),
        Command::Place(args) => connect::block_on(place::place(*args)),
        Command::Release(args) => connect::block_on(place::release(args)),
        Command::Renew(args) => connect::block_on(renew::renew(args)),
        Command::Adopt(args) => connect::block_on(adopt::adopt(args)),
        Command::Reserve(args) => connect::block_on(reserve::reserve(args)),
        Command::Group(command) => connect::block_on(group::run(command)),
        Command::Queue(command) => connect::block_on(queue::run(command)),
        Command::PriorityClass(command) => connect::block_on(priority_class::run(command)),
        Command::Job(command) => connect::block_on(job::run(command)),
        Command::Explain(args) => connect::block_on(explain::run(args)),
        Command::Plan(args) => plan::run(args),
        Command::Statement(command) => connect::block_on(statement::run(command)),
        Command::Status(args) => connect::block_on(status::run(args)),
        Command::Watch(args) => connect::block_on(watch::run(args)),
        Command::Journal(command) => journal::run(command),
        Command::Cert(command) => cert::run(command),
        Command::Events(args) => connect::block_on(events::run(args)),
        Command::Scenario(command) => scenario::run(command),
        Command::Check(args) => check::run(&args),
    };
    match ended {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Refused) => ExitCode::from(1),
        Err(error) => {
            eprintln!("wharf: {}", message(&error));
            ExitCode::from(status_of(&error))
        }
    }
}

/// Formats an error with its causes. A cause that the text already contains is left out.
fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn status_of(error: &anyhow::Error) -> u8 {
    if error.is::<connect::Usage>() || error.is::<ConfigError>() {
        2
    } else if matches!(error.downcast_ref(), Some(ClientError::Fault(_))) {
        1
    } else if matches!(error.downcast_ref(), Some(DaemonError::JournalFull { .. })) {
        EXIT_JOURNAL_FAILED
    } else {
        3
    }
}
