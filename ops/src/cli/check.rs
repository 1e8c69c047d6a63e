//! `wharf check`: scenarios, files of queues and jobs, and settings.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Ended, job_bodies, print, read_text, scenario};
use crate::config::{Config, Overrides};
use crate::file_error::FileError;
use crate::line_error::{LineError, documents};
use crate::scenario::check_jobs;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Files of scenarios or of queues and jobs (YAML or JSON), settings (TOML), or directories of scenarios.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The keys that tell what a document describes.
#[derive(Debug, Deserialize)]
struct Shape {
    steps: Option<IgnoredAny>,
    name: Option<IgnoredAny>,
    nodes: Option<IgnoredAny>,
    queues: Option<IgnoredAny>,
    jobs: Option<IgnoredAny>,
}

impl Shape {
    /// Returns whether it has queues and jobs alone, as they are submitted.
    fn is_submitted(&self) -> bool {
        let is_scenario = self.steps.is_some() || self.name.is_some() || self.nodes.is_some();
        !is_scenario && (self.queues.is_some() || self.jobs.is_some())
    }
}

/// Runs `wharf check`.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Ended> {
    for file in scenario::files(&args.paths)? {
        let what = check(&file)?;
        print::say(format_args!("{}: {what}", file.display()));
    }
    Ok(Ended::Done)
}

/// Checks a file. Returns what it has, all of which is right.
fn check(file: &Path) -> anyhow::Result<String> {
    if file.extension().is_some_and(|extension| extension == "toml") {
        let overrides = Overrides { file: Some(file.to_owned()), ..Overrides::default() };
        Config::load(&overrides)?.check_files(&overrides)?;
        return Ok("settings are right".to_owned());
    }
    let text = read_text(file)?;
    let in_file = |error: LineError| FileError::new(file, error);
    let shapes: Vec<Shape> = documents(&text).map_err(in_file)?;
    if !shapes.is_empty() && shapes.iter().all(Shape::is_submitted) {
        // What only scenarios may say is refused as it is at submission.
        job_bodies::check(&text).map_err(in_file)?;
        let checked = check_jobs(&text).map_err(in_file)?;
        return Ok(format!("{} queues and {} jobs are right", checked.queues, checked.jobs));
    }
    let scenarios = scenario::read(file)?;
    for scenario in &scenarios {
        scenario.check().map_err(|error| scenario::in_file(file, scenario, error))?;
    }
    Ok(format!("{} scenarios: settings, queues and jobs are right", scenarios.len()))
}
