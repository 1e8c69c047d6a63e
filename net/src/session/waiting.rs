//! Requests of a session that wait. They go on while their client is away, and after a restart.
//!
//! A wait is in the engine at the port of one connection. When the session leaves that connection, the wait leaves the
//! engine. The next connection puts it back, as old as it was. Only clients that acknowledge waits individually have such
//! waits: the mark of others cannot pass them.

use wharf_core::state::WaitRecord;

use super::{Entry, Parts, Session};
use crate::protocol::Kind;
use crate::weight::Weight;

/// Bytes of a frame beyond the body of its request, at most.
const FRAME_BYTES: usize = 64;

/// Returns the weight of a request that waits, by its kind and length.
pub(super) fn weight_of(wait: &WaitRecord) -> Weight {
    Weight::of(wait.kind, wait.request.len() + FRAME_BYTES)
}

impl Session {
    /// Keeps a request that began to wait, unless its client does not acknowledge waits individually.
    pub fn keep_wait(&mut self, sequence: u64, wait: &WaitRecord) {
        if let Some(Entry::Waiting(_)) = self.entry_mut(sequence) {
            self.waits.insert(sequence, wait.clone());
        }
    }

    /// Returns whether the request goes on when the session leaves its connection.
    #[must_use]
    pub fn keeps_wait(&self, sequence: u64) -> bool {
        self.waits.contains_key(&sequence)
    }

    /// Returns whether there are requests that go on at the next connection.
    #[must_use]
    pub fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Returns the requests that go on, by sequence. None of them is in progress. Groups only do `with_groups`.
    #[must_use]
    pub fn interrupted_waits(&mut self, with_groups: bool) -> Vec<u64> {
        let goes_on = |wait: &WaitRecord| with_groups || wait.kind == Kind::Place.number();
        let waits = self.waits.iter().filter(|(_, wait)| goes_on(wait));
        let sequences: Vec<u64> = waits.map(|(&sequence, _)| sequence).collect();
        let is_interrupted = |&sequence: &u64| {
            matches!(self.entry_mut(sequence), Some(Entry::Interrupted | Entry::WaitRecovered(_)))
        };
        sequences.into_iter().filter(is_interrupted).collect()
    }

    /// Puts an interrupted request in progress again. Returns it, and what an earlier start did of it.
    ///
    /// # Panics
    /// Panics if the request is not interrupted.
    pub fn resume_wait(&mut self, sequence: u64) -> (WaitRecord, Parts) {
        let wait = self.waits[&sequence].clone();
        let entry = self.entry_mut(sequence).expect("what waits has an entry");
        let waiting = Entry::Waiting(Weight { waits: true, ..Weight::default() });
        let parts = match std::mem::replace(entry, waiting) {
            Entry::Interrupted => Parts::new(),
            Entry::WaitRecovered(parts) => parts.into(),
            other => panic!("sequence {sequence} is {other:?}, not interrupted"),
        };
        self.in_flight += 1;
        self.weigh(sequence, weight_of(&wait));
        (wait, parts)
    }
}
