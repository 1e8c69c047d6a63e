//! The service's side of the clients: connections with their sessions, and the port of each I/O thread.
//!
//! The production tasks of `net/src/server/` hold sockets and a runtime, so a thin replacement carries the
//! frames here. Everything that decides is production code: frames and bodies, conversion, the session table
//! and ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::registrar::Catalog;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::router::{Port, PortReply, PortRequest, Tag, WaitEnd, WaitRequest};
use wharf_core::shard::Outcome;
use wharf_core::time::Time;
use wharf_net::codec::{FLAG_ERROR, FLAG_REPLY, FrameRef, Header, decode_body, encode_body, encode_frame};
use wharf_net::convert::{
    PlacementDefaults, fault_reply, placed_reply, placement_request, refused_reply, rejection_fault,
};
use wharf_net::protocol::{
    BODY_VERSION, CancelReply, CancelRequest, Fault, Kind, MODE_WAIT_UNTIL, PlaceReply, PlaceRequest, Reason,
    ReleaseReply, ReleaseRequest, SessionToken,
};
use wharf_net::session::{Admission, DetachedSessions, Session};

use super::checkers::waiting::Standing;
use super::facts::Facts;
use super::network::{Network, Towards};

/// A connection of a client.
pub(super) struct Connection {
    pub(super) front: usize,
    pub(super) session: Session,
    /// The port's tag of each waiting request, by sequence.
    waits: BTreeMap<u64, Tag>,
    /// Set when nobody receives the replies any more.
    lost: bool,
}

/// A request in the engine.
pub(super) struct Operation {
    connection: u64,
    sequence: u64,
    kind: Kind,
    /// The placement request, and the nodes that have offered it the whole time.
    placing: Option<(PlacementRequest, Standing)>,
    waits: bool,
}

/// One I/O thread.
pub(super) struct Front {
    pub(super) port: Port,
    operations: BTreeMap<Tag, Operation>,
    last_tag: Tag,
}

/// A frame for the registrar.
pub(super) struct Question {
    pub(super) connection: u64,
    pub(super) sequence: u64,
    pub(super) kind: Kind,
    pub(super) payload: Vec<u8>,
}

/// An event of one message or poll, for the oracle.
pub(super) enum Event {
    /// The engine granted a request of a session.
    Granted(SessionId, u64, Placement),
    /// A question for the registrar.
    Question(Question),
    /// A promise was broken.
    Broken(String),
}

/// All fronts and connections.
pub(super) struct Server {
    pub(super) fronts: Vec<Front>,
    pub(super) connections: BTreeMap<u64, Connection>,
    detached: DetachedSessions,
    last_connection: u64,
    pub(super) events: Vec<Event>,
}

impl Server {
    pub(super) fn new(ports: Vec<Port>, incarnation: Incarnation, last_connection: u64) -> Self {
        let front = |port| Front { port, operations: BTreeMap::new(), last_tag: 0 };
        Self {
            fronts: ports.into_iter().map(front).collect(),
            connections: BTreeMap::new(),
            detached: DetachedSessions::new(incarnation),
            last_connection,
            events: Vec::new(),
        }
    }

    pub(super) fn last_connection(&self) -> u64 {
        self.last_connection
    }

    /// Connects a client, with a new session or with its own. Returns `None` if its session cannot be resumed.
    pub(super) fn connect(
        &mut self,
        front: usize,
        resume: Option<(SessionId, SessionToken)>,
    ) -> Option<(u64, (SessionId, SessionToken))> {
        let number = self.last_connection + 1;
        let session = match resume {
            None => {
                let mut token = [0; 16];
                token[..8].copy_from_slice(&number.to_le_bytes());
                self.detached.open(token)
            }
            Some((id, token)) => self.detached.resume(id, &token)?,
        };
        self.last_connection = number;
        let name = (session.id(), session.token());
        let connection = Connection { front, session, waits: BTreeMap::new(), lost: false };
        self.connections.insert(number, connection);
        Some((number, name))
    }

    /// Breaks a connection. Its waiting requests are cancelled, and the client asks again on the next
    /// connection.
    pub(super) fn disconnect(&mut self, number: u64, network: &mut Network, now: Time) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.lost = true;
        self.end_waits_of(number, WaitEnd::Cancelled, network, now);
        self.detach_idle();
    }

    /// Stops the service. Waiting requests end, and their clients are told.
    pub(super) fn stop(&mut self, network: &mut Network, now: Time) {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            self.end_waits_of(number, WaitEnd::Stopped, network, now);
        }
    }

    fn end_waits_of(&mut self, number: u64, end: WaitEnd, network: &mut Network, now: Time) {
        let Some(connection) = self.connections.get(&number) else { return };
        let front = connection.front;
        for tag in connection.waits.values().copied().collect::<Vec<_>>() {
            self.end_wait(front, tag, end, network, now);
        }
    }

    fn end_wait(&mut self, front: usize, tag: Tag, end: WaitEnd, network: &mut Network, now: Time) {
        if let Some((tag, reply)) = self.fronts[front].port.end_wait(tag, end, now) {
            self.handle_reply(front, tag, reply, network);
        }
    }

    /// Keeps sessions for their clients once the connection is lost and no request is in flight.
    fn detach_idle(&mut self) {
        let idle = self.connections.iter().filter(|(_, c)| c.lost && c.session.in_flight() == 0);
        let idle: Vec<u64> = idle.map(|(&number, _)| number).collect();
        for number in idle {
            if let Some(connection) = self.connections.remove(&number) {
                self.detached.detach(connection.session);
            }
        }
    }

    /// Handles a frame of a client.
    pub(super) fn handle_frame(
        &mut self,
        number: u64,
        frame: &FrameRef<'_>,
        facts: &[Facts],
        network: &mut Network,
        now: Time,
    ) {
        let Some(connection) = self.connections.get_mut(&number).filter(|connection| !connection.lost) else {
            return;
        };
        let Header { sequence, kind, lowest_unacknowledged, .. } = frame.header;
        connection.session.acknowledge(lowest_unacknowledged);
        let refused = match connection.session.admit(sequence) {
            Admission::New => None,
            Admission::UnderWay => return,
            Admission::Answered(reply) => {
                network.send(number, Towards::Client, reply.to_vec());
                return;
            }
            Admission::Stale => Some(Reason::StaleSequence),
            Admission::OutOfWindow => Some(Reason::SequenceOutOfWindow),
        };
        if let Some(reason) = refused {
            let fault = Fault::new(reason, "not done again");
            let flags = FLAG_REPLY | FLAG_ERROR;
            let header = Header { kind, flags, version: BODY_VERSION, sequence, lowest_unacknowledged: 0 };
            network.send(number, Towards::Client, framed(header, &fault));
            return;
        }
        let kind = Kind::from_number(kind).expect("clients here send known kinds");
        match kind {
            Kind::Place => self.handle_place(number, sequence, frame.payload, facts, network, now),
            Kind::Release => {
                let (request, _) = decode_body::<ReleaseRequest>(frame.payload).expect("our own body");
                let request = PortRequest::Release(request.allocation.into());
                self.submit(number, sequence, kind, None, request, network, now);
            }
            Kind::CancelWait => {
                let (request, _) = decode_body::<CancelRequest>(frame.payload).expect("our own body");
                let connection = &self.connections[&number];
                let front = connection.front;
                let tag = connection.waits.get(&request.sequence).copied();
                if let Some(tag) = tag {
                    self.end_wait(front, tag, WaitEnd::Cancelled, network, now);
                }
                self.reply(number, sequence, kind, &CancelReply { waited: tag.is_some() }, network);
            }
            _ => {
                let payload = frame.payload.to_vec();
                self.events.push(Event::Question(Question { connection: number, sequence, kind, payload }));
            }
        }
    }

    fn handle_place(
        &mut self,
        number: u64,
        sequence: u64,
        payload: &[u8],
        facts: &[Facts],
        network: &mut Network,
        now: Time,
    ) {
        let (wire, _) = decode_body::<PlaceRequest>(payload).expect("our own body");
        let mode = wire.mode;
        let until = wire.deadline;
        let priority = wire.priority;
        let connection = &self.connections[&number];
        let port = &mut self.fronts[connection.front].port;
        let defaults = PlacementDefaults { orders: port.order_count() as u8, ..PlacementDefaults::default() };
        let request = match placement_request(wire, port.catalog(), defaults) {
            Ok(request) => request,
            Err(reply) => {
                return self.reply(number, sequence, Kind::Place, &*reply, network);
            }
        };
        let standing = Standing::new(&request, facts.iter());
        let asked = if mode == MODE_WAIT_UNTIL {
            let until = if until == 0 { Time(u64::MAX) } else { Time(until) };
            PortRequest::Wait(Box::new(WaitRequest { request: request.clone(), priority, until }))
        } else {
            PortRequest::Place(request.clone())
        };
        self.submit(number, sequence, Kind::Place, Some((request, standing)), asked, network, now);
    }

    #[allow(clippy::too_many_arguments, reason = "who asks, what, and where the answer goes")]
    fn submit(
        &mut self,
        number: u64,
        sequence: u64,
        kind: Kind,
        placing: Option<(PlacementRequest, Standing)>,
        request: PortRequest,
        network: &mut Network,
        now: Time,
    ) {
        let connection = self.connections.get_mut(&number).expect("a frame came through it");
        let at = connection.front;
        let front = &mut self.fronts[at];
        front.last_tag += 1;
        let tag = front.last_tag;
        let waits = matches!(request, PortRequest::Wait(_));
        if waits {
            connection.waits.insert(sequence, tag);
            connection.session.wait(sequence);
        }
        front.operations.insert(tag, Operation { connection: number, sequence, kind, placing, waits });
        let at_once = front.port.submit(tag, request, now).expect("few requests are under way");
        front.port.flush();
        if let Some(reply) = at_once {
            self.handle_reply(at, tag, reply, network);
        }
    }

    /// Returns whether the thread of a front sleeps although there is work for it. That means a wake-up was
    /// lost.
    pub(super) fn oversleeps(&mut self, at: usize) -> bool {
        let port = &mut self.fronts[at].port;
        port.bell().is_asleep() && !port.is_idle()
    }

    /// Runs the thread of a front: it looks at its rings and deadlines, and sleeps if there is nothing to do.
    /// Returns the number of answers.
    pub(super) fn poll(&mut self, at: usize, network: &mut Network, now: Time) -> usize {
        let front = &mut self.fronts[at];
        let mut replies = Vec::new();
        let taken = front.port.poll(now, |tag, reply| replies.push((tag, reply)));
        front.port.end_waits(now, |tag, reply| replies.push((tag, reply)));
        front.port.flush();
        let moved = taken + replies.len();
        if moved == 0 {
            let port = &mut front.port;
            let bell = Arc::clone(port.bell());
            let _asleep = bell.sleep_if(|| port.is_idle());
        }
        for (tag, reply) in replies {
            self.handle_reply(at, tag, reply, network);
        }
        self.detach_idle();
        moved
    }

    fn handle_reply(&mut self, at: usize, tag: Tag, reply: PortReply, network: &mut Network) {
        let front = &mut self.fronts[at];
        let operation = front.operations.remove(&tag).expect("a reply is to an operation under way");
        let catalog = Arc::clone(front.port.catalog());
        let Operation { connection, sequence, kind, placing, waits } = operation;
        let session = self.connections[&connection].session.id();
        if let PortReply::Placed(placement) = &reply {
            self.events.push(Event::Granted(session, sequence, placement.clone()));
        }
        let refused = matches!(reply, PortReply::Refused(..) | PortReply::WaitEnded(WaitEnd::Expired, ..));
        if let Some((request, standing)) = placing.as_ref().filter(|_| refused) {
            self.events.extend(standing.check_refused(request).err().map(Event::Broken));
        }
        if kind == Kind::Release {
            return self.reply(connection, sequence, kind, &release_reply(reply), network);
        }
        let reply = place_reply(reply, &catalog);
        let connection_state = self.connections.get_mut(&connection).expect("it outlives its operations");
        if waits {
            connection_state.waits.remove(&sequence);
            if connection_state.lost && reply.reason == Reason::Cancelled.into() {
                connection_state.session.answer_unkept(sequence);
                return self.detach_idle();
            }
        }
        self.reply(connection, sequence, kind, &reply, network);
    }

    /// Keeps the answer, and sends it if the connection is not lost.
    pub(super) fn reply<T: serde::Serialize>(
        &mut self,
        number: u64,
        sequence: u64,
        kind: Kind,
        body: &T,
        network: &mut Network,
    ) {
        self.reply_flagged(number, sequence, (kind, 0), body, network);
    }

    /// Replies with a fault.
    pub(super) fn reply_fault(
        &mut self,
        number: u64,
        sequence: u64,
        kind: Kind,
        fault: &Fault,
        network: &mut Network,
    ) {
        self.reply_flagged(number, sequence, (kind, FLAG_ERROR), fault, network);
    }

    fn reply_flagged<T: serde::Serialize>(
        &mut self,
        number: u64,
        sequence: u64,
        (kind, flags): (Kind, u8),
        body: &T,
        network: &mut Network,
    ) {
        let connection = self.connections.get_mut(&number).expect("it outlives its operations");
        let header = Header {
            kind: kind.number(),
            flags: flags | FLAG_REPLY,
            version: BODY_VERSION,
            sequence,
            lowest_unacknowledged: 0,
        };
        let frame = framed(header, body);
        connection.session.answer(sequence, &frame);
        if !connection.lost {
            network.send(number, Towards::Client, frame);
        }
        self.detach_idle();
    }

    /// Records that a shard changed.
    pub(super) fn shard_changed(&mut self, before: &Facts, now: &Facts) {
        for operation in self.fronts.iter_mut().flat_map(|front| front.operations.values_mut()) {
            if let Some((request, standing)) = &mut operation.placing {
                standing.shard_changed(request, before, now);
            }
        }
    }

    /// Returns the requests that wait at the ports.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &PlacementRequest> {
        let operations = self.fronts.iter().flat_map(|front| front.operations.values());
        let waiting = operations.filter(|operation| operation.waits);
        waiting.filter_map(|operation| operation.placing.as_ref().map(|(request, _)| request))
    }

    /// Returns the number of requests in flight that do not wait.
    pub(super) fn under_way(&self) -> usize {
        let operations = self.fronts.iter().flat_map(|front| front.operations.values());
        operations.filter(|operation| !operation.waits).count()
    }
}

pub(super) fn framed<T: serde::Serialize>(header: Header, body: &T) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_frame(header, &[], &mut frame, |out| encode_body(body, out));
    frame
}

fn place_reply(reply: PortReply, catalog: &Catalog) -> PlaceReply {
    match reply {
        PortReply::Placed(placement) => placed_reply(&placement, catalog),
        PortReply::Refused(verdict, refusal) | PortReply::WaitEnded(WaitEnd::Expired, verdict, refusal) => {
            refused_reply(verdict, &refusal, catalog)
        }
        PortReply::WaitEnded(WaitEnd::Cancelled, verdict, refusal) => {
            let reply = refused_reply(verdict, &refusal, catalog);
            PlaceReply { reason: Reason::Cancelled.into(), ..reply }
        }
        PortReply::WaitEnded(WaitEnd::Stopped, ..) => {
            fault_reply(Fault::new(Reason::ShuttingDown, "the service stops: ask again"))
        }
        other => unreachable!("a placement is placed or refused, not {other:?}"),
    }
}

fn release_reply(reply: PortReply) -> ReleaseReply {
    match reply {
        PortReply::One(Outcome::Released(_)) => ReleaseReply::default(),
        PortReply::One(Outcome::Rejected(rejection)) => {
            let fault = rejection_fault(&rejection);
            ReleaseReply { reason: fault.reason, fault: Some(fault), inside_ended: None }
        }
        other => unreachable!("a release is done or rejected, not {other:?}"),
    }
}
