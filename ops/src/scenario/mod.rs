//! Scenarios: a cluster, queues and jobs, steps, and what each step must lead to.
//!
//! A scenario is run in virtual time on the engine that serves: a shard keeps the books, cycles plan on a replica of it,
//! and what they plan is committed as statements. So an operator sees what a policy does before it is used.
//! `docs/scenarios.md` describes the format.

mod build;
mod expect;
mod file;
mod reserved;
mod run;

pub use run::Outcome;

use serde_saphyr::Location;

use file::ScenarioFile;

/// A fault in a scenario, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScenarioError {
    /// The line, from 1. 0: not known.
    pub line: u64,
    /// The fault and the remedy.
    pub message: String,
}

impl ScenarioError {
    /// Sets the line, if it is not known.
    fn in_block(self, location: Location) -> Self {
        if self.line == 0 { Self { line: location.line(), ..self } } else { self }
    }

    fn at(location: Location, message: impl Into<String>) -> Self {
        Self { line: location.line(), message: message.into() }
    }
}

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
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        run::run(&self.0)
    }

    /// Checks settings, queues and jobs without running a step.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), ScenarioError> {
        build::World::new(&self.0).map(drop)
    }
}

/// Reads the scenarios of a file: YAML documents, separated by `---`. JSON is YAML too.
///
/// # Errors
/// The first fault in the text, with its line.
pub fn read(text: &str) -> Result<Vec<Scenario>, ScenarioError> {
    // A node may be called `n`, or `on`: only `true` and `false` are booleans, as in YAML 1.2.
    let options = serde_saphyr::options! { strict_booleans: true };
    let files = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        let Some(place) = error.location() else {
            return ScenarioError { line: 0, message: error.to_string() };
        };
        let text = error.to_string();
        let shown = format!(" at line {}, column {}", place.line(), place.column());
        ScenarioError::at(place, text.strip_suffix(&shown).unwrap_or(&text))
    });
    let files: Vec<ScenarioFile> = files?;
    if files.is_empty() {
        let message = "there is no scenario: give one with `name` and `steps`".to_owned();
        return Err(ScenarioError { line: 1, message });
    }
    Ok(files.into_iter().map(Scenario).collect())
}

#[cfg(test)]
mod tests;
