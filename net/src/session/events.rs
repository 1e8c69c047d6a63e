//! Where the events come from, as the connections of an I/O thread see it.
//!
//! Reading events may take long: old ones are on disk. So an I/O thread asks an [`EventSource`] for a page and goes on.
//! The source puts the page into the [`EventMailbox`] of the I/O thread and rings its bell. A question that asks for
//! what has not happened yet stays with the source until it has.

use std::fmt;
use std::sync::{Arc, Mutex};

use wharf_core::link::{Doorbell, lock};
use wharf_core::time::Time;

use crate::protocol::{EventsReply, Fault};

/// A follower of events: an I/O thread, and a connection of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventFollowerKey {
    /// The number of the I/O thread.
    pub thread: u64,
    /// The connection.
    pub connection: usize,
}

/// A question for a page of events.
#[derive(Clone)]
pub struct EventsAsked {
    /// Who asks. A later question of the same follower replaces this one.
    pub follower: EventFollowerKey,
    /// Names the question in its answer.
    pub ticket: u64,
    /// The position of the first event, or 0 for the next position.
    pub from: u64,
    /// Maximum number of events.
    pub limit: usize,
    /// The question is answered with [`Fault::late`] unless the source has looked for events by this time.
    pub due: Time,
    /// The question waits until there is an event.
    pub waits: bool,
    /// Gets the answer.
    pub mailbox: Arc<EventMailbox>,
}

/// The positions that a source has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsKept {
    /// The oldest event that is kept.
    pub first: u64,
    /// The position after the newest durable event.
    pub end: u64,
}

/// A source of events. It answers from a thread of its own.
pub trait EventSource: Send + Sync {
    /// Asks for a page. The answer comes into the mailbox, at most one.
    fn ask(&self, asked: EventsAsked);

    /// Ends the question of a follower, if it has one. An answer may be in the mailbox already.
    fn forget(&self, follower: EventFollowerKey);

    /// Returns the positions that are there now.
    fn kept(&self) -> EventsKept;
}

impl fmt::Debug for dyn EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSource({:?})", self.kept())
    }
}

/// An answer of a source.
pub struct EventsAnswer {
    /// The question.
    pub ticket: u64,
    /// The connection that asked.
    pub connection: usize,
    /// The page, or why there is none.
    pub page: Result<EventsReply, Fault>,
}

/// The answers for one I/O thread. Each follower has at most one question, so there are few.
pub struct EventMailbox {
    answers: Mutex<Vec<EventsAnswer>>,
    bell: Arc<Doorbell>,
}

impl EventMailbox {
    /// Creates the mailbox of a thread with this bell.
    #[must_use]
    pub fn new(bell: Arc<Doorbell>) -> Self {
        Self { answers: Mutex::default(), bell }
    }

    /// Puts an answer in.
    pub fn put(&self, answer: EventsAnswer) {
        lock(&self.answers).push(answer);
        self.bell.ring();
    }

    /// Returns whether there is no answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.answers).is_empty()
    }

    /// Takes all answers.
    pub fn take(&self) -> Vec<EventsAnswer> {
        std::mem::take(&mut *lock(&self.answers))
    }
}
