//! Replies to requests, and what the journal gets of them.

use wharf_core::time::Time;

use super::operation::Complete;
use super::{Asker, ConnectionService};
use crate::protocol::{Fault, PlaceReply, Reply};

impl ConnectionService {
    /// Sends the reply to a request.
    pub(super) fn answer<R: Reply>(&mut self, asker: Asker, reply: &R, now: Time) {
        self.reply(asker, reply, false, now);
    }

    /// Sends the reply to a request. The journal gets the reply unless the recorded effects tell it already.
    pub(super) fn reply<R: Reply>(&mut self, asker: Asker, reply: &R, is_told: bool, now: Time) {
        let Asker { connection: key, kind, sequence, started } = asker;
        let change = self.connections[key].reply(kind, sequence, reply, is_told);
        self.changes.extend(change);
        self.observer.handle_reply(kind, reply.reason(), now.nanos_since(started));
        reply.part_reasons().into_iter().for_each(|reason| self.observer.handle_part(kind, reason));
        self.touch(key);
    }

    pub(super) fn answer_fault(&mut self, asker: Asker, fault: &Fault, now: Time) {
        let Asker { connection: key, kind, sequence, started } = asker;
        let change = self.connections[key].reply_fault(kind.number(), sequence, fault);
        self.changes.extend(change);
        self.observer.handle_reply(kind, fault.reason, now.nanos_since(started));
        self.touch(key);
    }

    pub(super) fn answer_complete(&mut self, asker: Asker, complete: &Complete, now: Time) {
        match complete {
            Complete::Place(reply) => self.reply(asker, reply, is_told(reply), now),
            Complete::Release(reply) => self.reply(asker, reply, reply.fault.is_none(), now),
            Complete::PlaceBatch(reply) => {
                let is_told = reply.replies.iter().all(is_told);
                self.reply(asker, reply, is_told, now);
            }
            Complete::ReleaseBatch(reply) => {
                let is_told = reply.replies.iter().all(|reply| reply.fault.is_none());
                self.reply(asker, reply, is_told, now);
            }
            Complete::Group(reply) => self.answer(asker, &**reply, now),
            Complete::Removed(reply) => self.answer(asker, reply, now),
            Complete::Groups(reply) => self.answer(asker, reply, now),
            Complete::Statement(reply) => self.answer(asker, reply, now),
            Complete::Renewed(reply) => self.answer(asker, reply, now),
        }
    }
}

/// Returns whether the effect that the shard recorded tells this reply. It does not if the node was removed before the
/// reply was made: the reply lacks its name then.
fn is_told(reply: &PlaceReply) -> bool {
    reply.placed.as_ref().is_some_and(|placed| !placed.node_name.is_empty())
}
