//! Waiting placements: how they begin, end early, and are answered. Waiting groups end the same way.

use wharf_core::group::{NoGroup, PlanReply};
use wharf_core::limits::{CANDIDATES_WAITING_MAX, CONNECTION_WAITING_MAX, PORT_CANDIDATES_WAITING_MAX};
use wharf_core::router::{PortReply, PortRequest, WaitEnd, WaitRequest};
use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::operation::{Complete, Operation, Parts};
use super::{Asker, ConnectionKey, ConnectionService};
use crate::protocol::{CancelReply, Fault, PlaceReply, Reason};
use crate::session::tags::tag;

impl ConnectionService {
    /// Starts a wait. Waiting requests take no room from other requests, neither at the connection nor at the
    /// port.
    pub(super) fn begin_wait(&mut self, asker: Asker, wait: WaitRequest) {
        let Asker { connection: key, sequence, started: now, .. } = asker;
        let named = wait.request.candidates.as_ref().map_or(0, |ids| ids.len());
        let room = self.check_wait_room(key, named);
        if let Err(fault) = room.and_then(|()| self.connections[key].take_wait_room(sequence)) {
            return self.answer(asker, &PlaceReply::from(fault), now);
        }
        let parts = Parts::Wait(wait.request.candidates.clone());
        let operation = self.enter(Operation { asker, parts });
        self.connections[key].begins_wait(sequence, operation);
        self.note_wait(asker);
        self.has_new_deadline = true;
        self.submit(operation, 0, PortRequest::Wait(Box::new(wait)), now);
    }

    /// Notes that a request waits. A client may acknowledge later requests while it does, and send it again after a restart.
    pub(super) fn note_wait(&mut self, asker: Asker) {
        let origin = self.connections[asker.connection].origin(asker.kind, asker.sequence);
        let wait = origin.filter(|origin| origin.is_wait);
        self.changes.extend(wait.map(SessionChange::Waits));
    }

    /// Checks whether another request that names `named` candidates may wait.
    fn check_wait_room(&self, key: ConnectionKey, named: usize) -> Result<(), Fault> {
        let connection = &self.connections[key];
        let has_room_for_named = connection.candidates.waiting + named <= CANDIDATES_WAITING_MAX
            && self.candidates_waiting + named <= PORT_CANDIDATES_WAITING_MAX;
        let message = if connection.waits.len() >= CONNECTION_WAITING_MAX {
            format!(
                "{CONNECTION_WAITING_MAX} requests wait at this connection: cancel some, or ask again later"
            )
        } else if named > 0 && !has_room_for_named {
            "as many candidates as can be held are named by requests that wait: name fewer, or ask again later, or without waiting".to_owned()
        } else if !self.port.can_wait() {
            "as many requests wait at this I/O thread of the service as can: ask again later, or without waiting"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Fault::of_field(Reason::LimitExceeded, "mode", message))
    }

    /// Cancels the wait of the request at `sequence`. The cancellation is answered when the wait has ended. A shard may
    /// place the request at this moment, and a crash before that outcome must leave both requests without an answer.
    pub(super) fn cancel_wait(&mut self, asker: Asker, sequence: u64) {
        let Asker { connection: key, started: now, .. } = asker;
        let Some(entry) = self.connections[key].waits.get_mut(&sequence) else {
            return self.answer(asker, &CancelReply { waited: false }, now);
        };
        entry.cancels.push(asker);
        let operation = entry.operation;
        self.end_wait(operation, WaitEnd::Cancelled, now);
    }

    /// Answers a request that waited, and then the requests that cancelled the wait. The journal gets these answers
    /// together.
    pub(super) fn answer_wait(&mut self, asker: Asker, complete: &Complete, is_taken_back: bool, now: Time) {
        let ended = self.connections[asker.connection].ends_wait(asker.sequence, is_taken_back);
        if !ended.is_forgotten {
            self.answer_complete(asker, complete, now);
        }
        for cancel in ended.cancels {
            self.answer(cancel, &CancelReply { waited: true }, now);
        }
    }

    /// Ends all waits of a connection that is no longer read.
    pub(super) fn end_waits_of(&mut self, key: ConnectionKey, why: WaitEnd, now: Time) {
        let waits = &self.connections[key].waits;
        let operations: Vec<usize> = waits.values().map(|entry| entry.operation).collect();
        for operation in operations {
            self.end_wait(operation, why, now);
        }
    }

    fn end_wait(&mut self, operation: usize, why: WaitEnd, now: Time) {
        if let Parts::WaitGroup(ended) = &mut self.operations[operation].parts {
            // Tell the planner only once. It answers when it has taken the group back or placed it.
            if ended.replace(why).is_none() {
                self.port.cancel_plan(tag(operation, 0));
            }
            return;
        }
        if let Some((_, reply)) = self.port.end_wait(tag(operation, 0), why, now) {
            self.handle_reply(operation, 0, reply, now);
        }
    }
}

/// Returns whether a waiting request was ended early and this is its answer. For a group that was removed
/// meanwhile, the removal is the outcome instead.
pub(super) fn is_taken_back(reply: &PortReply) -> bool {
    match reply {
        PortReply::Place(Err(not_placed)) => not_placed.ended == Some(WaitEnd::Cancelled),
        PortReply::Plan(reply) => matches!(**reply, PlanReply::Group(Err(NoGroup::Cancelled))),
        _ => false,
    }
}
