//! Replies to requests, and what the journal gets of them.

use wharf_core::group::PlanReply;
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::request::Placement;
use wharf_core::router::PortReply;
use wharf_core::shard::{Outcome, Released};
use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::operation::{Complete, Operation, Parts};
use super::waits::is_taken_back;
use super::{Asker, ConnectionService};
use crate::codec::{write_grant, write_released};
use crate::convert::{JobsAnswer, placed_reply, plain_grant};
use crate::protocol::{Fault, PlaceReply, Reason, Reply};
use crate::session::shared::Counters;

impl ConnectionService {
    /// Handles the engine's reply to one part of an operation.
    pub(super) fn handle_reply(&mut self, at: usize, part: usize, reply: PortReply, now: Time) {
        // Nearly all replies are grants and releases. Nothing is built of them but the bytes of their frames.
        match (&self.operations[at].parts, &reply) {
            (Parts::Place(_), PortReply::Place(Ok(placement))) => {
                let asker = self.end_at_once(at);
                self.answer_granted(asker, placement, now);
            }
            (Parts::Release, PortReply::One(Outcome::Release(Ok(Released { inside: None, .. })))) => {
                let asker = self.end_at_once(at);
                self.answer_released(asker, now);
            }
            _ => self.handle_any_reply(at, part, reply, now),
        }
    }

    /// Ends an operation of one part that did not wait. Returns who asked.
    fn end_at_once(&mut self, at: usize) -> Asker {
        let Operation { asker, .. } = self.leave(at);
        let is_lost = self.connections[asker.connection].is_lost;
        if !(is_lost && is_planted(PlantedBug::RoomOfLostConnectionKept)) {
            self.turns.give_back(1);
        }
        asker
    }

    /// Handles any reply of the engine to one part of an operation.
    fn handle_any_reply(&mut self, at: usize, part: usize, reply: PortReply, now: Time) {
        let operation = &mut self.operations[at];
        let key = operation.asker.connection;
        match operation.parts {
            Parts::Wait(..) => {}
            Parts::WaitGroup(..) | Parts::WaitInQueue(..) => {
                self.group_room += 1;
                self.connections[key].groups_waiting -= 1;
            }
            ref parts if parts.planner_room() > 0 => self.plan_room.give_back(parts.planner_room()),
            _ if self.connections[key].is_lost && is_planted(PlantedBug::RoomOfLostConnectionKept) => {}
            _ => self.turns.give_back(1),
        }
        if matches!(&reply, PortReply::Plan(plan) if matches!(**plan, PlanReply::Late)) {
            let Operation { asker, .. } = self.leave(at);
            return self.shed_late(asker, now);
        }
        let is_taken_back = is_taken_back(&reply);
        // As long as no shard is asked, a placement into a group has not begun.
        let was_asking = matches!(&operation.parts, Parts::IntoGroup(into) if into.is_asking());
        let due = if was_asking { operation.asker.due } else { Time::NEVER };
        let Some(complete) = operation.handle_part(part, reply, &mut self.port) else {
            if let Parts::IntoGroup(_) = operation.parts {
                self.wait_for_next(at, due, now);
            }
            return;
        };
        let Operation { asker, parts } = self.leave(at);
        self.touch(key);
        if parts.waits() {
            self.answer_wait(asker, &complete, is_taken_back, now);
        } else {
            self.answer_complete(asker, &complete, now);
        }
    }

    /// Sends the reply to a request.
    pub(super) fn answer<R: Reply>(&mut self, asker: Asker, reply: &R, now: Time) {
        self.reply(asker, reply, false, now);
    }

    /// Sends the reply to a request. The journal gets the reply unless the recorded effects tell it already.
    pub(super) fn reply<R: Reply>(&mut self, asker: Asker, reply: &R, is_told: bool, now: Time) {
        let Asker { connection: key, kind, sequence, started, .. } = asker;
        if let Some(fault) = reply.forbidden() {
            self.note_denied(key, kind, fault);
        }
        let change = self.connections[key].reply(kind, sequence, reply, is_told, &mut self.blocks);
        self.changes.extend(change);
        self.observer.handle_reply(kind, reply.reason(), now.nanos_since(started));
        reply.part_reasons().into_iter().for_each(|reason| self.observer.handle_part(kind, reason));
        self.touch(key);
    }

    /// Notes that a placement was granted, or a release confirmed. `change` is what the journal gets of the reply.
    fn note_done(&mut self, asker: Asker, change: Option<SessionChange>, now: Time) {
        if let Some(change) = change {
            self.changes.push(change);
        }
        self.observer.handle_reply(asker.kind, Reason::Done.into(), now.nanos_since(asker.started));
        self.touch(asker.connection);
    }

    pub(super) fn answer_fault(&mut self, asker: Asker, fault: &Fault, now: Time) {
        let Asker { connection: key, kind, sequence, started, .. } = asker;
        if fault.is_late() {
            Counters::count(&self.shared.counters.shed);
        }
        if fault.reason == Reason::Forbidden.into() {
            self.note_denied(key, kind, fault);
        }
        let change = self.connections[key].reply_fault(kind.number(), sequence, fault, &mut self.blocks);
        self.changes.extend(change);
        self.observer.handle_reply(kind, fault.reason, now.nanos_since(started));
        self.touch(key);
    }

    fn answer_granted(&mut self, asker: Asker, placement: &Placement, now: Time) {
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
        let change = connection.reply_plain(kind, sequence, write, is_told, &mut self.blocks);
        self.note_done(asker, change, now);
    }

    /// Answers a release of what was no bundle.
    fn answer_released(&mut self, asker: Asker, now: Time) {
        let Asker { connection: key, kind, sequence, .. } = asker;
        let connection = &mut self.connections[key];
        let change = connection.reply_plain(kind, sequence, write_released, true, &mut self.blocks);
        self.note_done(asker, change, now);
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
            Complete::Jobs(reply) => self.answer_jobs(asker, reply, now),
            Complete::Explained(reply) => self.answer(asker, &**reply, now),
        }
    }

    pub(super) fn answer_jobs(&mut self, asker: Asker, reply: &JobsAnswer, now: Time) {
        match reply {
            JobsAnswer::Queue(reply) => self.answer(asker, reply, now),
            JobsAnswer::Queues(reply) => self.answer(asker, reply, now),
            JobsAnswer::Class(reply) => self.answer(asker, reply, now),
            JobsAnswer::Classes(reply) => self.answer(asker, reply, now),
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
