//! What happened in a run, line by line: hashed always, kept as text on demand.
//!
//! The same seed on the same commit gives the same lines, byte for byte; so the hash tells whether two
//! runs were the same run.

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
    /// An empty one, that keeps the text where `keeps` says so.
    #[must_use]
    pub fn new(keeps: bool) -> Self {
        let text = keeps.then(String::new);
        Self { hasher: StateHasher::new("trace"), text, line: String::new(), step: 0, now: Time(0) }
    }

    /// The next step begins, at `now`.
    pub fn begin(&mut self, now: Time) {
        self.step += 1;
        self.now = now;
    }

    /// The step under way.
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

    /// Of all lines so far.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        self.hasher.finish()
    }

    /// All lines so far, where they are kept.
    pub fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }
}
