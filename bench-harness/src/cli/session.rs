//! `wharf-bench session`.

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use wharf_ops::cli::say;

use crate::session::{ROWS, SessionOptions, SessionRow, run};

#[derive(Debug, Args)]
pub(super) struct SessionArgs {
    /// The rows to measure [default: all].
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(ROWS))]
    rows: Vec<String>,
    /// Divide all sizes by this number, for a quick look.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    scale: u32,
    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

impl SessionArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let all = SessionOptions::default();
        let rows = if self.rows.is_empty() { all.rows } else { self.rows };
        let options = SessionOptions { rows, scale: self.scale };
        if self.json {
            let rows = run(&options, |_| {})?;
            say(format_args!("{}", serde_json::to_string_pretty(&rows)?));
            return Ok(());
        }
        say(format_args!("{}", SessionRow::HEAD));
        run(&options, |row| say(format_args!("{row}")))?;
        Ok(())
    }
}
