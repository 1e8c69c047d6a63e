//! Admits the frames of a connection and dispatches its new requests.

use std::sync::Arc;

use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::input::{Asked, body_fault, read_body};
use super::questions::Asker;
use super::{ConnectionKey, ConnectionService};
use crate::codec::{FLAG_EXTENSIONS, FrameRef, Header, decode_body, read_place, read_release};
use crate::protocol::{
    BODY_VERSION, CancelRequest, Fault, Kind, Reason, ReleaseRequest, RenewRequest, VERSION_MAX,
};
use crate::session::Parts;
use crate::session::shared::Counters;

impl ConnectionService {
    /// Handles one frame.
    pub(super) fn handle_frame(&mut self, key: ConnectionKey, frame: &FrameRef<'_>, now: Time) {
        if self.connections[key].session.is_none() {
            return self.handle_hello(key, frame, now);
        }
        let header = frame.header;
        if header.kind == Kind::Hello.number() {
            let message = "this session is open already: continue it, or connect again";
            let fault = Fault::new(Reason::SecondHello, message);
            return self.refuse_frame(key, header.kind, header.sequence, &fault);
        }
        let connection = &mut self.connections[key];
        connection.session().acknowledge(header.lowest_unacknowledged, &mut self.blocks);
        match connection.admit(frame) {
            Ok(true) => self.execute(key, frame, now),
            Ok(false) => self.touch(key),
            Err(fault) => self.refuse_frame(key, header.kind, header.sequence, &fault),
        }
    }

    fn execute(&mut self, key: ConnectionKey, frame: &FrameRef<'_>, now: Time) {
        let header = frame.header;
        let handled = match self.handle_plain(key, frame, now) {
            Some(handled) => handled,
            None => self.handle_with_extensions(key, frame, now),
        };
        if let Err(fault) = handled {
            let counters = &self.shared.counters;
            Counters::count(if fault.is_late() { &counters.shed } else { &counters.frames_refused });
            if fault.reason == Reason::Forbidden.into()
                && let Some(kind) = Kind::from_number(header.kind)
            {
                self.note_denied(key, kind, &fault);
            }
            let Self { connections, blocks, .. } = self;
            let change = connections[key].reply_fault(header.kind, header.sequence, &fault, blocks);
            self.changes.extend(change);
            self.touch(key);
            if let Some(kind) = Kind::from_number(header.kind) {
                self.observer.handle_reply(kind, fault.reason, 0);
            }
        }
    }

    /// Executes a new request that is a plain placement or release, as most are. Returns `None` if it is anything else, or if
    /// an earlier start has begun it. A returned fault is its reply.
    fn handle_plain(
        &mut self,
        key: ConnectionKey,
        frame: &FrameRef<'_>,
        now: Time,
    ) -> Option<Result<(), Fault>> {
        let Header { kind, version, flags, sequence, .. } = frame.header;
        let is_bare = version == BODY_VERSION && flags & FLAG_EXTENSIONS == 0;
        if !is_bare || self.connections[key].session().has_recovered() {
            return None;
        }
        let asker = |kind| Asker { connection: key, kind, sequence, started: now, due: Time::NEVER };
        if kind == Kind::Place.number() {
            let request = read_place(frame.payload)?;
            let selector = match request.selectors {
                [] => None,
                selectors => Some(Arc::clone(self.selectors.get(selectors)?)),
            };
            let asker = asker(Kind::Place);
            Some(self.authorize(asker).and_then(|()| {
                if self.connections[key].rights.bound().is_none() {
                    self.handle_plain_place(asker, &request, selector);
                    return Ok(());
                }
                let (request, _) = decode_body(frame.payload).map_err(body_fault)?;
                self.handle_place(asker, request, &[]);
                Ok(())
            }))
        } else if kind == Kind::Release.number() {
            let allocation = read_release(frame.payload)?;
            let asker = asker(Kind::Release);
            let checked = self.authorize(asker);
            let checked = checked.and_then(|()| self.check_scoped(asker, ReleaseRequest { allocation }));
            Some(checked.map(|request| self.handle_release(asker, &request)))
        } else {
            None
        }
    }

    /// Executes any new request, and takes what its extensions acknowledge. A returned fault is its reply.
    fn handle_with_extensions(
        &mut self,
        key: ConnectionKey,
        frame: &FrameRef<'_>,
        now: Time,
    ) -> Result<(), Fault> {
        let mut asked = Asked::new(*frame, self.connections[key].version, now);
        let handled = self.handle_request(key, &mut asked, now);
        if let Some(read) = asked.timed_from()
            && let Some(session) = self.session_id(key)
        {
            self.observer.handle_timed(session, frame.header.sequence, read);
        }
        for sequence in asked.acknowledged.take().iter().flat_map(|acknowledged| &acknowledged.sequences) {
            self.acknowledge_wait(key, *sequence);
        }
        handled
    }

    /// Executes a new request. A returned fault is its reply.
    fn handle_request(&mut self, key: ConnectionKey, asked: &mut Asked<'_>, now: Time) -> Result<(), Fault> {
        let number = asked.frame.header.kind;
        let kind = Kind::from_number(number).ok_or_else(|| {
            Fault::new(
                Reason::UnknownKind,
                format!("message kind {number} is unknown to version {VERSION_MAX}"),
            )
        })?;
        let sequence = asked.frame.header.sequence;
        let asker = Asker { connection: key, kind, sequence, started: now, due: Time::NEVER };
        // What was interrupted goes on with the rights of now: the settings may give it a queue since.
        self.check_rights(asker)?;
        let done = self.connections[key].session().take_recovered(sequence);
        if !done.is_empty() {
            asked.has_begun = true;
            // It was counted when it was asked for first.
            return self.handle_recovered(asker, asked, done);
        }
        self.count_request(asker)?;
        match kind {
            Kind::Hello => unreachable!("a second hello was refused before"),
            Kind::Place => {
                let request = self.read_scoped(asker, asked)?;
                let selectors = asked.plain().and_then(read_place).map(|plain| plain.selectors);
                self.handle_place(asked.timed(asker), request, selectors.unwrap_or_default());
            }
            Kind::PlaceBatch => {
                let batch = self.read_scoped(asker, asked)?;
                self.handle_place_batch(asked.timed(asker), batch, Parts::new());
            }
            Kind::Release => {
                let request: ReleaseRequest = self.read_scoped(asker, asked)?;
                self.handle_release(asked.timed(asker), &request);
            }
            Kind::ReleaseBatch => {
                let batch = self.read_scoped(asker, asked)?;
                self.handle_release_batch(asked.timed(asker), &batch, Parts::new());
            }
            Kind::Renew => {
                let request: RenewRequest = self.read_scoped(asker, asked)?;
                self.check_session(asker.connection, request.session)?;
                return self.handle_renew(asked.timed(asker), &request);
            }
            Kind::CancelWait => {
                let request: CancelRequest = read_body(asked)?;
                self.cancel_wait(asker, request.sequence);
            }
            Kind::CreateGroup
            | Kind::GrowGroup
            | Kind::ShrinkGroup
            | Kind::RemoveGroup
            | Kind::GroupStatus
            | Kind::ListGroups
            | Kind::PlaceInto
            | Kind::SubmitStatement => return self.handle_planning(asker, asked),
            Kind::ExplainWait => self.handle_explain_wait(asker, asked)?,
            Kind::SetQueue
            | Kind::RemoveQueue
            | Kind::ListQueues
            | Kind::SetPriorityClass
            | Kind::RemovePriorityClass
            | Kind::ListPriorityClasses
            | Kind::SubmitJob
            | Kind::CancelJob
            | Kind::JobStatus
            | Kind::ListJobs
            | Kind::ReportTasks
            | Kind::ExplainJob
            | Kind::PlanNodes => return self.handle_jobs(asker, asked),
            Kind::Follow => {
                let request = read_body(asked)?;
                return self.handle_follow(asked.timed(asker), &request);
            }
            Kind::Events => {
                let request = read_body(asked)?;
                return self.handle_events(asked.timed(asker), &request);
            }
            Kind::AddNodes
            | Kind::UpdateNodes
            | Kind::DrainNodes
            | Kind::RemoveNodes
            | Kind::ListNodes
            | Kind::Status
            | Kind::Report
            | Kind::Heartbeat
            | Kind::Adopt
            | Kind::SetResources
            | Kind::NodeBooks
            | Kind::Reserve
            | Kind::Export
            | Kind::EndReservation => return self.handle_question(asker, asked),
        }
        Ok(())
    }

    /// Drops the outcome of a wait, which the client has.
    fn acknowledge_wait(&mut self, key: ConnectionKey, sequence: u64) {
        let session = self.connections[key].session();
        if session.acknowledge_wait(sequence) {
            let id = session.id();
            self.changes.push(SessionChange::WaitAcknowledged(id, sequence));
        }
    }
}
