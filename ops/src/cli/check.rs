//! `wharf check`: scenarios, files of priority classes, queues and jobs, files for plans of nodes, and settings.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;
use wharf_core::cycle::CycleConfig;

use super::{Ended, job_bodies, plan, print, read_text, scenario};
use crate::config::{Config, Overrides};
use crate::default_queue;
use crate::file_error::FileError;
use crate::job_file::JobsFile;
use crate::line_error::{LineError, documents};
use crate::scenario::{check_jobs, check_plan, unused_by};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Files of scenarios, of priority classes, queues and jobs, or for `wharf plan` (YAML or JSON), settings (TOML), or directories of
    /// scenarios. With one file of settings, it is also told what queues say that these settings do not use, and
    /// whether the default queue of the settings takes anything.
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
    priority_classes: Option<IgnoredAny>,
    autoscaling: Option<IgnoredAny>,
    plan: Option<IgnoredAny>,
}

impl Shape {
    fn is_scenario(&self) -> bool {
        self.steps.is_some() || self.name.is_some()
    }

    /// Returns whether it is what `wharf plan` reads.
    fn is_plan(&self) -> bool {
        !self.is_scenario() && (self.autoscaling.is_some() || self.plan.is_some())
    }

    /// Returns whether it has priority classes, queues and jobs alone, as they are submitted.
    fn is_submitted(&self) -> bool {
        let is_other = self.is_scenario() || self.is_plan() || self.nodes.is_some();
        let lists = [&self.queues, &self.jobs, &self.priority_classes];
        !is_other && lists.into_iter().any(Option::is_some)
    }
}

/// What is right in a file, and what in it does not matter.
struct Checked {
    what: String,
    unused: Vec<LineError>,
    /// Documents with queues.
    queues: Vec<JobsFile>,
}

impl Checked {
    fn new(what: impl Into<String>, unused: Vec<LineError>) -> Self {
        Self { what: what.into(), unused, queues: Vec::new() }
    }
}

/// Runs `wharf check`.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Ended> {
    let files = scenario::files(&args.paths)?;
    let settings = settings(&files)?;
    let rules = settings.as_ref().and_then(|(_, config)| config.engine.jobs.as_ref()).map(|jobs| &jobs.cycle);
    let mut submitted = Vec::new();
    for file in &files {
        let Checked { what, unused, queues } = check(file, rules)?;
        print::say(format_args!("{}: {what}", file.display()));
        for LineError { line, message } in unused {
            print::say(format_args!("{}: line {line}: warning: {message}", file.display()));
        }
        submitted.extend(queues);
    }
    if let Some((file, config)) = settings
        && let Some(queue) = config.access.default_queue
        && let Some(fault) = default_queue::fault_in_files(&queue, &submitted)
    {
        print::say(format_args!("{}: warning: by the files of queues, {fault}", file.display()));
    }
    Ok(Ended::Done)
}

fn is_settings(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "toml")
}

fn overrides(file: &Path) -> Overrides {
    Overrides { file: Some(file.to_owned()), ..Overrides::default() }
}

/// Returns the one file of settings, and what it says, if there is one.
fn settings(files: &[PathBuf]) -> anyhow::Result<Option<(&Path, Config)>> {
    let mut of_settings = files.iter().filter(|file| is_settings(file));
    match (of_settings.next(), of_settings.next()) {
        (Some(one), None) => Ok(Some((one, Config::load(&overrides(one))?))),
        _ => Ok(None),
    }
}

/// Checks a file. Returns what it has, all of which is right. Queues without rules of their own have those that are
/// given.
fn check(file: &Path, rules: Option<&CycleConfig>) -> anyhow::Result<Checked> {
    if is_settings(file) {
        let overrides = overrides(file);
        Config::load(&overrides)?.check_files(&overrides)?;
        return Ok(Checked::new("settings are right", Vec::new()));
    }
    let text = read_text(file)?;
    let in_file = |error: LineError| FileError::new(file, error);
    let shapes: Vec<Shape> = documents(&text).map_err(in_file)?;
    if !shapes.is_empty() && shapes.iter().all(Shape::is_submitted) {
        // What only scenarios may say is refused as it is at submission.
        job_bodies::check(&text).map_err(in_file)?;
        let checked = check_jobs(&text).map_err(in_file)?;
        let classes = match checked.classes {
            0 => String::new(),
            classes => format!("{classes} priority classes, "),
        };
        let what = format!("{classes}{} queues and {} jobs are right", checked.queues, checked.jobs);
        let unused = rules.map(|rules| unused_by(&text, rules)).transpose().map_err(in_file)?;
        let queues = documents(&text).map_err(in_file)?;
        return Ok(Checked { queues, ..Checked::new(what, unused.unwrap_or_default()) });
    }
    if shapes.iter().any(Shape::is_plan) {
        let plan = plan::read(file)?;
        if plan.nodes.is_empty() && plan.queues.is_empty() && plan.jobs.is_empty() {
            plan::body(&plan).map_err(in_file)?;
        }
        let unused = check_plan(&plan).map_err(in_file)?;
        let types = plan.autoscaling.value.node_types.len();
        return Ok(Checked::new(format!("a plan of nodes of {types} types is right"), unused));
    }
    let scenarios = scenario::read(file)?;
    let mut unused = Vec::new();
    for scenario in &scenarios {
        unused.extend(scenario.check().map_err(|error| scenario::in_file(file, scenario, error))?);
    }
    let what = format!("{} scenarios: settings, queues and jobs are right", scenarios.len());
    Ok(Checked::new(what, unused))
}
