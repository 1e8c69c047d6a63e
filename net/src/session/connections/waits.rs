//! Waiting requests: how they begin, end early, go on, and are answered. They are placements, and groups that are created or
//! grow.
//!
//! A request waits on when its connection is lost, if its client acknowledges waits individually. The lost connection
//! stays until nothing waits there. If its client returns, or the service stops, it is *recalled*: the waits leave the
//! engine, and the session goes with them to the next connection. If the client stays away for too long, the session ends,
//! and the waits with it. A start gives each session that has waits a connection without a peer.

use std::sync::Arc;

use wharf_core::group::{NoGroup, PlanReply};
use wharf_core::jobs::NotCharged;
use wharf_core::limits::{CANDIDATES_WAITING_MAX, CONNECTION_WAITING_MAX, PORT_CANDIDATES_WAITING_MAX};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::router::{PortReply, PortRequest, WaitEnd, WaitRequest};
use wharf_core::state::{SessionChange, SessionEnd, WaitOutcome, WaitRecord};
use wharf_core::time::Time;

use super::connection::Connection;
use super::input::body_fault;
use super::operation::{Complete, Operation, Parts};
use super::recovered::deed_reply;
use super::{Asker, ConnectionKey, ConnectionService};
use crate::codec::decode_body;
use crate::protocol::{CancelReply, Fault, Kind, PlaceReply, PlaceRequest, Reason, ReasonCode, Reply};
use crate::session::Session;
use crate::session::shared::Hangup;
use crate::session::tags::tag;
use crate::session::waits_by_id::KnownWait;

impl ConnectionService {
    /// Starts a wait of the placement `request`. Waiting requests take no room from other requests, neither at the connection
    /// nor at the port.
    pub(super) fn begin_wait(&mut self, asker: Asker, wait: WaitRequest, request: Arc<[u8]>) {
        let Asker { connection: key, sequence, started: now, .. } = asker;
        if !wait.is_resumed {
            let named = wait.request.candidates.as_ref().map_or(0, |ids| ids.len());
            let room = self.check_wait_room(key, named);
            if let Err(fault) = room.and_then(|()| self.connections[key].take_wait_room(sequence)) {
                return self.answer(asker, &PlaceReply::from(fault), now);
            }
        }
        let parts = Parts::Wait(wait.request.candidates.clone());
        let operation = self.enter(Operation { asker, parts });
        self.connections[key].begins_wait(sequence, operation);
        let record = WaitRecord { since: wait.since, kind: asker.kind.number(), request };
        self.note_wait(asker, record, wait.is_resumed);
        self.has_new_deadline = true;
        self.submit(operation, 0, PortRequest::Wait(Box::new(wait)), now);
    }

    /// Notes that a request waits. A client may acknowledge later requests while it does, and send it again after a restart.
    /// One that is resumed was noted before, but not where explanations look for it.
    pub(super) fn note_wait(&mut self, asker: Asker, wait: WaitRecord, is_resumed: bool) {
        let connection = &mut self.connections[asker.connection];
        let session = connection.session();
        let known = KnownWait { tenant: session.tenant(), record: wait.clone() };
        self.shared.waits.insert(session.id(), asker.sequence, known);
        if is_resumed {
            return;
        }
        session.keep_wait(asker.sequence, &wait);
        if let Some(origin) = connection.origin(asker.kind, asker.sequence)
            && origin.is_wait
        {
            self.changes.push(SessionChange::Waits(origin, wait));
        }
    }

    /// Goes on with the requests that waited at the last connection of the session, or in an earlier start.
    pub(super) fn resume_waits(&mut self, key: ConnectionKey, now: Time) {
        let has_planners = self.port.planner_count() > 0;
        // Without planners, groups are kept for a start that has some, or until their clients ask again.
        for sequence in self.connections[key].session().interrupted_waits(has_planners) {
            let (wait, mut done) = self.connections[key].session().resume_wait(sequence);
            let kind = Kind::from_number(wait.kind).expect("only requests of known kinds wait");
            let asker = Asker { connection: key, kind, sequence, started: now, due: Time::NEVER };
            if let Some((_, deed)) = done.pop() {
                // It was placed, and nobody was told.
                let reply = deed_reply(deed, self.port.catalog());
                self.answer(asker, &reply, now);
            } else if let Err(fault) = self.resume_wait(asker, &wait) {
                self.answer_fault(asker, &fault, now);
            }
        }
    }

    /// Goes on with a request that waited.
    ///
    /// # Errors
    /// Returns a fault if the request cannot be read.
    fn resume_wait(&mut self, asker: Asker, wait: &WaitRecord) -> Result<(), Fault> {
        if asker.kind != Kind::Place {
            return self.resume_group(asker, wait);
        }
        let (request, _) = decode_body::<PlaceRequest>(&wait.request).map_err(body_fault)?;
        if request.queue.is_empty() {
            self.wait_for_place(asker, request, Some(wait.since));
        } else {
            self.wait_in_queue(asker, request, Some(wait.since));
        }
        Ok(())
    }

    /// Opens a connection without a peer for a session whose requests waited in the last start. Returns `None` if there is
    /// no further one. Call it before the first poll, until it returns `None`.
    pub fn open_restored(&mut self, hangup: &Arc<dyn Hangup>, now: Time) -> Option<ConnectionKey> {
        let session = self.shared.sessions.take_waiting(hangup)?;
        let connection = Connection::restored(Arc::clone(hangup), self.port.journal().cloned(), session);
        let key = self.connections.insert(connection);
        self.resume_waits(key, now);
        self.count_bytes(key);
        self.wait_for_client(key, now);
        self.settle(now);
        Some(key)
    }

    /// Lets a connection end: its client resumes the session on another one, or the service stops. Requests that wait there go
    /// on at the next connection.
    pub fn recall(&mut self, key: ConnectionKey, now: Time) {
        let connection = &mut self.connections[key];
        connection.is_recalled = true;
        if connection.is_lost && !is_planted(PlantedBug::RecalledWaitGoesOn) {
            self.end_waits_of(key, WaitEnd::Cancelled, now);
        }
        self.settle(now);
    }

    /// Ends the waits of a connection whose peer is gone, except those that go on without it.
    pub(super) fn lose_waits(&mut self, key: ConnectionKey, now: Time) {
        if self.connections[key].is_recalled {
            return self.end_waits_of(key, WaitEnd::Cancelled, now);
        }
        let connection = &self.connections[key];
        let session = connection.session.as_ref().expect("what waits has a session");
        let waits = connection.waits.iter().filter(|&(&sequence, _)| !session.keeps_wait(sequence));
        let operations: Vec<usize> = waits.map(|(_, entry)| entry.operation).collect();
        for operation in operations {
            self.end_wait(operation, WaitEnd::Cancelled, now);
        }
        self.wait_for_client(key, now);
    }

    /// Bounds the time that a lost connection with waits stays, and the number of these.
    fn wait_for_client(&mut self, key: ConnectionKey, now: Time) {
        if self.connections[key].waits.is_empty() {
            return;
        }
        self.end_lost_at(key, now.plus_nanos(self.shared.session_kept_nanos()));
        if self.lost.len() > self.shared.bounds().lost_connections
            && let Some((due, first, tenant)) = self.lost.first_of_most()
        {
            self.lost.remove(due, first, tenant);
            self.end_lost_at(first, now);
        }
    }

    fn end_lost_at(&mut self, key: ConnectionKey, due: Time) {
        let connection = &mut self.connections[key];
        connection.ends_at = Some(due);
        let tenant = connection.session().tenant();
        self.lost.insert(due, key, tenant);
        self.has_new_deadline = true;
    }

    /// Ends the waits of lost connections whose clients stayed away for too long. Their sessions end with them.
    pub(super) fn expire_lost(&mut self, now: Time) {
        while let Some((due, key)) = self.lost.first()
            && due <= now
        {
            let connection = &mut self.connections[key];
            connection.ends_at = None;
            connection.is_expired = true;
            let tenant = connection.session().tenant();
            self.lost.remove(due, key, tenant);
            self.recall(key, now);
        }
    }

    /// Ends the session of a lost connection whose client stayed away for too long.
    pub(super) fn end_expired(&mut self, session: &Session) {
        self.shared.sessions.close(session);
        self.note_ended([session.id()], SessionEnd::Expired);
    }

    /// Notes how a wait ended that was not placed.
    pub(super) fn note_unplaced(&mut self, asker: Asker, reason: ReasonCode) {
        if reason.is_done() || self.port.journal().is_none() {
            return;
        }
        let outcome = match reason.known() {
            // The wait did not end by itself. Its client asks again.
            Some(Reason::ShuttingDown) => return,
            Some(Reason::Cancelled) => WaitOutcome::Cancelled,
            // A placement is told so at its deadline only, and a group at once.
            Some(Reason::Infeasible) if asker.kind == Kind::Place => WaitOutcome::Expired,
            Some(Reason::NoFitNow | Reason::Conflicted | Reason::OverCap) => WaitOutcome::Expired,
            _ => WaitOutcome::Refused,
        };
        let session = self.connections[asker.connection].session().id();
        self.changes.push(SessionChange::WaitEnded(session, asker.sequence, outcome));
    }

    /// Answers a request that must not wait. One that is resumed waited until now.
    pub(super) fn refuse_wait<R: Reply>(&mut self, asker: Asker, reply: &R, is_resumed: bool) {
        if is_resumed {
            self.note_unplaced(asker, reply.reason());
        }
        self.answer(asker, reply, asker.started);
    }

    /// Checks whether another request that names `named` candidates may wait.
    pub(super) fn check_wait_room(&self, key: ConnectionKey, named: usize) -> Result<(), Fault> {
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
        let connection = &mut self.connections[asker.connection];
        self.shared.waits.remove(connection.session().id(), asker.sequence);
        let ended = connection.ends_wait(asker.sequence, is_taken_back);
        if !ended.is_forgotten {
            let reason = match complete {
                Complete::Place(reply) => Some(reply.reason),
                Complete::Group(reply) => Some(reply.reason),
                _ => None,
            };
            reason.into_iter().for_each(|reason| self.note_unplaced(asker, reason));
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
        if let Parts::WaitGroup(ended) | Parts::WaitInQueue(_, ended) = &mut self.operations[operation].parts
        {
            // The first reason stays: who was cancelled stays so when the service stops. The planner is told once. It answers
            // when it has taken the group back or placed it.
            if ended.is_none() {
                *ended = Some(why);
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
        PortReply::Place(Err(not_placed)) => {
            matches!(not_placed.ended, Some(WaitEnd::Cancelled | WaitEnd::Stopped))
        }
        PortReply::Plan(reply) => matches!(
            **reply,
            PlanReply::Group(Err(NoGroup::Cancelled)) | PlanReply::Placed(Err(NotCharged::Cancelled))
        ),
        _ => false,
    }
}
