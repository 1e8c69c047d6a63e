//! `wharf scenario`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Ended, print, read_text};
use crate::file_error::FileError;
use crate::line_error::LineError;
use crate::scenario::{self, Outcome, Scenario};

#[derive(Debug, Subcommand)]
pub(super) enum ScenarioCommand {
    /// Run scenarios in virtual time on the engine that serves, and print what differs from what they expect.
    Run(RunArgs),
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Files of scenarios (YAML or JSON), or directories of such files.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print one JSON object per scenario.
    #[arg(long)]
    json: bool,
    /// Print only what differs, and the sum.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

/// Runs `wharf scenario`.
pub(super) fn run(command: ScenarioCommand) -> anyhow::Result<Ended> {
    let ScenarioCommand::Run(args) = command;
    let mut sum = Sum::default();
    for file in files(&args.paths)? {
        for scenario in read(&file)? {
            let outcome = scenario.run().map_err(|error| in_file(&file, &scenario, error))?;
            sum.add(&outcome);
            if args.json {
                print::say(format_args!("{}", outcome_view(&file, &scenario, &outcome)));
            } else {
                say_outcome(&file, &scenario, &outcome, args.quiet);
            }
        }
    }
    if !args.json {
        print::say(format_args!(
            "{} scenarios, {} as expected, {} different, {} checks",
            sum.scenarios,
            sum.scenarios - sum.different,
            sum.different,
            sum.checks
        ));
    }
    Ok(if sum.different == 0 { Ended::Done } else { Ended::Refused })
}

#[derive(Default)]
struct Sum {
    scenarios: usize,
    different: usize,
    checks: usize,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.scenarios += 1;
        self.different += usize::from(!outcome.differences.is_empty());
        self.checks += outcome.checks;
    }
}

fn say_outcome(file: &Path, scenario: &Scenario, outcome: &Outcome, quiet: bool) {
    if outcome.differences.is_empty() {
        if !quiet {
            print::say(format_args!("ok    {}: {}", file.display(), scenario.name()));
        }
        return;
    }
    print::say(format_args!("DIFFERS {}: {}", file.display(), scenario.name()));
    for difference in &outcome.differences {
        print::say(format_args!("      {difference}"));
    }
}

fn outcome_view(file: &Path, scenario: &Scenario, outcome: &Outcome) -> Value {
    json!({
        "file": file.display().to_string(),
        "name": scenario.name(),
        "follows": scenario.follows(),
        "differs": scenario.differs(),
        "as_expected": outcome.differences.is_empty(),
        "differences": outcome.differences,
        "checks": outcome.checks,
        "evictions": outcome.evictions,
    })
}

/// Returns the files, and those in directories in order of name.
pub(super) fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| FileError::new(path, error))?;
        let mut inside = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| FileError::new(path, error))?.path();
            let is_scenario = entry.extension().is_some_and(|of| of == "yaml" || of == "yml" || of == "json");
            if is_scenario || entry.is_dir() {
                inside.push(entry);
            }
        }
        inside.sort();
        if !inside.is_empty() {
            files.extend(self::files(&inside)?);
        }
    }
    if files.is_empty() {
        return Err(FileError::new(&paths[0], "no file that ends in .yaml, .yml or .json is there").into());
    }
    Ok(files)
}

pub(super) fn read(file: &Path) -> anyhow::Result<Vec<Scenario>> {
    let text = read_text(file)?;
    scenario::read(&text).map_err(|error| FileError::new(file, error).into())
}

pub(super) fn in_file(file: &Path, scenario: &Scenario, error: LineError) -> anyhow::Error {
    FileError::new(file, format!("scenario `{}`: {error}", scenario.name())).into()
}
