//! The record of a run, line by line. It is always hashed, and kept as text on demand.
//!
//! The same seed on the same commit gives the same lines, byte for byte. So equal hashes mean equal runs.

use std::fmt::{Arguments, Write};

use wharf_core::hash::{StateHash, StateHasher};
use wharf_core::time::Time;

/// The lines of a run.
pub struct Trace {
    hasher: StateHasher,
    text: Option<String>,
    line: String,
    step: u64,
    now: Time,
}

impl Trace {
    /// Creates an empty trace. It keeps the text if `keeps` is true.
    #[must_use]
    pub fn new(keeps: bool) -> Self {
        let text = keeps.then(String::new);
        Self { hasher: StateHasher::new("trace"), text, line: String::new(), step: 0, now: Time(0) }
    }

    /// Begins the next step at `now`.
    pub fn begin(&mut self, now: Time) {
        self.step += 1;
        self.now = now;
    }

    /// Returns the number of the current step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Writes one line.
    pub fn line(&mut self, what: Arguments<'_>) {
        self.line.clear();
        let _ = write!(self.line, "{} @{} {what}", self.step, self.now.0);
        self.hasher.text(&self.line);
        if let Some(text) = &mut self.text {
            text.push_str(&self.line);
            text.push('\n');
        }
    }

    /// Returns the hash of all lines so far.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        self.hasher.finish()
    }

    /// Returns all lines so far, if they are kept.
    pub fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }
}
