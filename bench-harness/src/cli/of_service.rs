//! The arguments that `wharf-bench durability` and `wharf-bench recovery` share: both run whole services with data
//! directories.

use std::path::PathBuf;

use clap::{Args, value_parser};
use serde::Serialize;
use wharf_ops::cli::say;

#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    /// The number of shards [default: by the cores of this machine].
    #[arg(long)]
    pub(super) shards: Option<u16>,
    /// The seed of nodes and requests.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// The number of rounds. A row is the one in the middle.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=99))]
    pub(super) rounds: u16,
    /// The directory under which the data directories are made [default: that of temporary files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl ServiceArgs {
    /// Returns the directory under which the data directories are made.
    pub(super) fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Prints a line of the table, unless JSON is asked for.
    pub(super) fn say_line(&self, line: impl std::fmt::Display) {
        if !self.json {
            say(format_args!("{line}"));
        }
    }

    /// Prints all rows as JSON, if that is asked for.
    pub(super) fn say_rows<R: Serialize>(&self, rows: &[R]) -> anyhow::Result<()> {
        if self.json {
            say(format_args!("{}", serde_json::to_string_pretty(rows)?));
        }
        Ok(())
    }
}
