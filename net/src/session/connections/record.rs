//! What connections put into the journal, and the replies that wait for it.
//!
//! Each input ends with [`record`](ConnectionService::record). It puts the changes of sessions into the journal as one unit,
//! and then says up to which position the replies of this input wait. So a reply never leaves before its outcome is
//! durable.

use tracing::info;
use wharf_core::ids::SessionId;
use wharf_core::journal::{Changes, Unit};
use wharf_core::state::{Origin, SessionChange, SessionEnd};
use wharf_core::time::Time;

use super::ConnectionService;
use super::operation::Parts;
use crate::session::Session;

impl ConnectionService {
    /// Puts the changes of sessions into the journal, and lets the replies of this input wait for it.
    pub(super) fn record(&mut self, now: Time) {
        let Some(journal) = self.port.journal() else {
            self.changes.clear();
            return;
        };
        if !self.changes.is_empty() {
            journal.put(Unit::new(now, Changes::Sessions(std::mem::take(&mut self.changes))));
        }
        if self.fresh.is_empty() {
            return;
        }
        let position = journal.position();
        let durable = journal.durable();
        let mut holds = false;
        let mut fresh = std::mem::take(&mut self.fresh);
        for key in fresh.drain(..) {
            let connection = &mut self.connections[key];
            connection.is_fresh = false;
            connection.assign(position);
            // Those that wait for earlier positions leave now too, if they can.
            let is_released = connection.release(durable);
            if connection.is_holding() && !connection.is_listed {
                connection.is_listed = true;
                self.holding.push(key);
            }
            holds |= connection.is_holding();
            if is_released {
                self.touch(key);
            }
        }
        // Its buffer is used again.
        self.fresh = fresh;
        // The thread may sleep. Its bell is rung when more is durable than what was released so far, or the storage is full.
        let journal = self.port.journal().expect("looked at before");
        if holds && (!journal.wait_for(self.released_to + 1) || journal.is_full() != self.is_full) {
            self.port.bell().ring();
        }
    }

    /// Returns the origin of what a part of an operation does.
    pub(super) fn origin(&mut self, operation: usize, part: usize) -> Option<Origin> {
        self.port.journal()?;
        let operation = &self.operations[operation];
        // The question for the bundles of a group changes nothing.
        if matches!(&operation.parts, Parts::IntoGroup(into) if into.is_asking()) {
            return None;
        }
        let asker = operation.asker;
        let origin = self.connections[asker.connection].origin(asker.kind, asker.sequence)?;
        Some(Origin { part: u16::try_from(part).expect("a request has few parts"), ..origin })
    }

    /// Notes that sessions have ended.
    pub(super) fn note_ended(&mut self, ended: impl IntoIterator<Item = SessionId>, why: SessionEnd) {
        self.changes.extend(ended.into_iter().map(|id| SessionChange::Ended(id, why)));
    }

    /// Keeps the session of a connection that ended if its client may return, and forgets it otherwise.
    pub(super) fn leave_session(&mut self, session: Session, returns: bool, now: Time) {
        if !returns {
            self.shared.sessions.close(&session);
            self.note_ended([session.id()], SessionEnd::Closed);
            return;
        }
        let dropped = self.shared.sessions.detach(session, now);
        self.note_ended(dropped, SessionEnd::Evicted);
        // Each thread sees to the sessions that it detached, and at its start to those of earlier starts. So no thread
        // has to wake another for a session.
        let due = now.plus_nanos(self.shared.session_kept_nanos());
        if self.next_expiry.is_none_or(|next| due < next) {
            self.next_expiry = Some(due);
            self.has_new_deadline = true;
        }
    }

    /// Ends the sessions whose clients have stayed away for too long.
    pub(super) fn expire_sessions(&mut self, now: Time) {
        if self.next_expiry.is_none_or(|due| now < due) {
            return;
        }
        let ended = self.shared.expire_sessions(now);
        if !ended.is_empty() {
            info!(sessions = ended.len(), "sessions ended because their clients stayed away");
        }
        self.note_ended(ended, SessionEnd::Expired);
        self.next_expiry = self.shared.next_expiry();
    }
}
