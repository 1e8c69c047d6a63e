//! Who is told of replies.

use wharf_core::ids::SessionId;
use wharf_core::time::Time;

use crate::access::Denied;
use crate::protocol::{Kind, ReasonCode};

/// Observes the replies of one I/O thread, on that thread.
pub trait IoObserver {
    /// Called when a request is answered, `nanos` nanoseconds after it was read. A reply with several parts
    /// is `done` as a whole. [`handle_part`](Self::handle_part) reports each part.
    fn handle_reply(&mut self, _kind: Kind, _reason: ReasonCode, _nanos: u64) {}

    /// Called for each part of a batch or of a node command.
    fn handle_part(&mut self, _kind: Kind, _reason: ReasonCode) {}

    /// Called when a request is read that has a deadline, which counts from `read` on. A checker uses it.
    fn handle_timed(&mut self, _session: SessionId, _sequence: u64, _read: Time) {}

    /// Called for each call that is refused because its peer has no right to it.
    fn handle_denied(&mut self, _denied: &Denied<'_>) {}
}

/// An observer that does nothing.
pub struct Unobserved;

impl IoObserver for Unobserved {}
