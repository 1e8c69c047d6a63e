//! Scenarios: a cluster, queues and jobs, steps, and what each step must lead to.
//!
//! A scenario is run in virtual time on the engine that serves: a shard keeps the books, cycles plan on a replica of it,
//! and what they plan is committed as statements. So an operator sees what a policy does before it is used.
//! `docs/scenarios.md` describes the format.

mod build;
mod expect;
mod file;
mod jobs_only;
mod plan;
mod reason;
mod reserved;
mod run;

pub(crate) use jobs_only::unused_by;
pub use jobs_only::{Checked, check_jobs};
pub use run::Outcome;

use wharf_net::protocol::PlanNodesReply;

use crate::line_error::{LineError, documents};
use crate::plan_file::PlanFile;
use crate::unused::unused;
use file::ScenarioFile;

/// One scenario.
#[derive(Debug)]
pub struct Scenario(ScenarioFile);

impl Scenario {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the public test or document whose case it follows.
    #[must_use]
    pub fn follows(&self) -> Option<&str> {
        self.0.follows.as_deref()
    }

    /// Returns where the service differs on purpose from what it follows.
    #[must_use]
    pub fn differs(&self) -> Option<&str> {
        self.0.differs.as_deref()
    }

    /// Runs the scenario. The outcome lists what differed from what was expected.
    ///
    /// # Errors
    /// A fault in the scenario itself: a name that refers to nothing, settings or jobs that are refused.
    pub fn run(&self) -> Result<Outcome, LineError> {
        run::run(&self.0)
    }

    /// Checks settings, queues and jobs without running a step. Returns what queues and jobs say that the settings do not use,
    /// each with its line.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<Vec<LineError>, LineError> {
        let world = build::World::new(&self.0)?;
        let added = || self.0.steps.iter().filter_map(|step| step.add.as_ref());
        let queues = self.0.queues.iter().chain(added().flat_map(|add| &add.queues));
        let jobs = self.0.jobs.iter().chain(added().flat_map(|add| &add.jobs));
        Ok(unused(queues, jobs, world.cluster.scheduler().config()))
    }
}

/// Plans nodes for what a file describes, without a service. Returns the names of the types, and the plan as a service
/// would answer it.
///
/// # Errors
/// The first fault in the file.
pub(crate) fn plan(file: &PlanFile) -> Result<(Vec<String>, PlanNodesReply), LineError> {
    plan::offline(file)
}

/// Checks what a file asks for, without a service, and without a plan of what it asks for. Nodes that it names and
/// does not have count as ones that the service has. Returns what queues and jobs say that its settings do not use, each with
/// its line.
///
/// # Errors
/// The first fault.
pub(crate) fn check_plan(file: &PlanFile) -> Result<Vec<LineError>, LineError> {
    let world = plan::check_file(file)?;
    Ok(unused(&file.queues, &file.jobs, world.cluster.scheduler().config()))
}

/// Reads the scenarios of a file: YAML documents, separated by `---`. JSON is YAML too.
///
/// # Errors
/// The first fault in the text, with its line.
pub fn read(text: &str) -> Result<Vec<Scenario>, LineError> {
    let files: Vec<ScenarioFile> = documents(text)?;
    if files.is_empty() {
        let message = "there is no scenario: give one with `name` and `steps`".to_owned();
        return Err(LineError { line: 1, message });
    }
    Ok(files.into_iter().map(Scenario).collect())
}

#[cfg(test)]
mod tests;
