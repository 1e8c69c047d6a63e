//! `wharf-bench figures`.

use std::path::PathBuf;

use clap::Args;
use wharf_ops::cli::say;

use super::Usage;
use crate::figures::{Origin, SECTIONS, Section, write};

#[derive(Debug, Args)]
pub(super) struct FiguresArgs {
    /// Tables by name, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The page to write the tables to [default: each table's own, README.md or docs/benchmarks.md].
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// The commit to name in the tables [default: that of the working directory]. For a copy without its repository.
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
    /// Run every command with only a few operations. Shows the columns but measures nothing.
    #[arg(long)]
    quick: bool,
}

impl FiguresArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let names = || SECTIONS.iter().map(|section| section.name).collect::<Vec<_>>().join(", ");
        if let Some(unknown) = self.only.iter().find(|name| SECTIONS.iter().all(|of| of.name != **name)) {
            return Err(Usage(format!("`{unknown}` is not a table: give one of {}", names())).into());
        }
        let chosen =
            |section: &&Section| self.only.is_empty() || self.only.iter().any(|name| name == section.name);
        let sections: Vec<&Section> = SECTIONS.iter().filter(chosen).collect();
        let origin = Origin::of_this_run(self.quick, self.commit);
        write(self.page.as_deref(), &sections, self.quick, &origin, |name| say(format_args!("{name}")))?;
        say(format_args!("{} tables written", sections.len()));
        Ok(())
    }
}
