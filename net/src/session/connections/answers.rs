//! Replies to requests, and what the journal gets of them.

use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::operation::Complete;
use super::{Asker, ConnectionService};
use crate::codec::{RELEASED, write_grant};
use crate::convert::{JobsAnswer, placed_reply, plain_grant};
use crate::protocol::{Fault, PlaceReply, Reason, Reply};

impl ConnectionService {
    /// Sends the reply to a request.
    pub(super) fn answer<R: Reply>(&mut self, asker: Asker, reply: &R, now: Time) {
        self.reply(asker, reply, false, now);
    }

    /// Sends the reply to a request. The journal gets the reply unless the recorded effects tell it already.
    pub(super) fn reply<R: Reply>(&mut self, asker: Asker, reply: &R, is_told: bool, now: Time) {
        let Asker { connection: key, kind, sequence, started, .. } = asker;
        let change = self.connections[key].reply(kind, sequence, reply, is_told);
        self.changes.extend(change);
        self.observer.handle_reply(kind, reply.reason(), now.nanos_since(started));
        reply.part_reasons().into_iter().for_each(|reason| self.observer.handle_part(kind, reason));
        self.touch(key);
    }

    /// Notes that a placement was granted, or a release confirmed. `change` is what the journal gets of the reply.
    fn note_done(&mut self, asker: Asker, change: Option<SessionChange>, now: Time) {
        self.changes.extend(change);
        self.observer.handle_reply(asker.kind, Reason::Done.into(), now.nanos_since(asker.started));
        self.touch(asker.connection);
    }

    pub(super) fn answer_fault(&mut self, asker: Asker, fault: &Fault, now: Time) {
        let Asker { connection: key, kind, sequence, started, .. } = asker;
        let change = self.connections[key].reply_fault(kind.number(), sequence, fault);
        self.changes.extend(change);
        self.observer.handle_reply(kind, fault.reason, now.nanos_since(started));
        self.touch(key);
    }

    pub(super) fn answer_complete(&mut self, asker: Asker, complete: &Complete, now: Time) {
        match complete {
            Complete::Granted(placement) => {
                let Asker { connection: key, kind, sequence, .. } = asker;
                let catalog = self.port.catalog();
                let Some(grant) = plain_grant(placement, catalog) else {
                    let reply = placed_reply(placement, catalog);
                    return self.reply(asker, &reply, is_told(&reply), now);
                };
                // As for any grant: the recorded effect has no name of a node that was removed since.
                let is_told = !grant.node_name.is_empty();
                let connection = &mut self.connections[key];
                let write = |out: &mut Vec<u8>| write_grant(&grant, out);
                let change = connection.reply_plain(kind, sequence, write, is_told);
                self.note_done(asker, change, now);
            }
            Complete::Released => {
                let Asker { connection: key, kind, sequence, .. } = asker;
                let connection = &mut self.connections[key];
                let write = |out: &mut Vec<u8>| out.extend_from_slice(&RELEASED);
                let change = connection.reply_plain(kind, sequence, write, true);
                self.note_done(asker, change, now);
            }
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
            Complete::Jobs(reply) => self.answer_jobs(asker, reply, now),
        }
    }

    pub(super) fn answer_jobs(&mut self, asker: Asker, reply: &JobsAnswer, now: Time) {
        match reply {
            JobsAnswer::Queue(reply) => self.answer(asker, reply, now),
            JobsAnswer::Queues(reply) => self.answer(asker, reply, now),
            JobsAnswer::Job(reply) => self.answer(asker, reply, now),
            JobsAnswer::Status(reply) => self.answer(asker, reply, now),
            JobsAnswer::Jobs(reply) => self.answer(asker, reply, now),
            JobsAnswer::Reported(reply) => self.answer(asker, reply, now),
            JobsAnswer::Explained(reply) => self.answer(asker, &**reply, now),
            JobsAnswer::Plan(reply) => self.answer(asker, reply, now),
            JobsAnswer::Fault(fault) => self.answer_fault(asker, fault, now),
        }
    }
}

/// Returns whether the effect that the shard recorded tells this reply. It does not if the node was removed before the
/// reply was made: the reply lacks its name then.
fn is_told(reply: &PlaceReply) -> bool {
    reply.placed.as_ref().is_some_and(|placed| !placed.node_name.is_empty())
}
