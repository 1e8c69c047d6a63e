//! Texts in YAML or JSON, whose faults name their line.

use serde::de::DeserializeOwned;
use serde_saphyr::Location;

/// A fault in a text, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct LineError {
    /// The line, from 1. 0: not known.
    pub line: u64,
    /// The fault and the remedy.
    pub message: String,
}

impl LineError {
    /// Sets the line, if it is not known.
    pub(crate) fn in_block(self, location: Location) -> Self {
        if self.line == 0 { Self { line: location.line(), ..self } } else { self }
    }

    pub(crate) fn at(location: Location, message: impl Into<String>) -> Self {
        Self { line: location.line(), message: message.into() }
    }
}

/// Reads the documents of a text in YAML, separated by `---`. JSON is YAML too.
///
/// # Errors
/// The first fault in the text, with its line.
pub(crate) fn documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, LineError> {
    // A node may be called `n`, or `on`: only `true` and `false` are booleans, as in YAML 1.2.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        let Some(place) = error.location() else {
            return LineError { line: 0, message: error.to_string() };
        };
        let text = error.to_string();
        let shown = format!(" at line {}, column {}", place.line(), place.column());
        LineError::at(place, text.strip_suffix(&shown).unwrap_or(&text))
    })
}
