//! The service's side of the clients: the production state machines of the I/O threads, and what they sent.
//!
//! Bytes go in and out without sockets. The server's oracle records the first outcome of each request. Every
//! later reply to the same request must be the same.

mod access;
mod groups;
mod sent;
mod timed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::request::PlacementRequest;
use wharf_core::router::Port;
use wharf_core::state::{KeptOutcome, SessionRecord};
use wharf_core::time::Time;
use wharf_net::access::Peer;
use wharf_net::codec::{Extension, FrameRef, Header, decode_body, decode_frame, encode_body, encode_frame};
use wharf_net::convert::placement_request;
use wharf_net::protocol::{
    Acknowledged, BODY_VERSION, EXTENSION_ACKNOWLEDGED, FRAME_BYTES_MAX, Hello, Kind, PlaceRequest, Resume,
    SessionToken, VERSION_MAX, VERSION_MIN,
};
use wharf_net::session::connections::{Asker, ConnectionKey, ConnectionService, InputEnd};
use wharf_net::session::registrar::{self, RegistrarReply};
use wharf_net::session::shared::{Hangup, SessionShared, Settings};

use super::checkers::deadlines::ReleaseDeadlines;
use super::checkers::outcomes::Replies;
use super::checkers::sessions::{Outcomes, credits_are_kept, newest_connection_is_welcome};
use super::checkers::waiting::Offers;
use super::facts::Facts;
use super::network::Network;
use access::access;
pub(super) use access::{AGENT, OPERATOR, USERS};
use groups::SessionGroups;
pub(super) use groups::is_of_session;
use timed::Reads;

/// The number of questions that are passed on to the registrar at once.
const QUESTIONS_MAX: usize = 64;

/// Connections that the service asked to close, by number.
#[derive(Clone, Default)]
struct HungUp(Arc<Mutex<Vec<u64>>>);

impl HungUp {
    fn push(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct SimHangup {
    number: u64,
    hung_up: HungUp,
}

impl Hangup for SimHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {
        self.hung_up.push(self.number);
    }
}

/// A connection as its I/O thread knows it.
struct Link {
    front: usize,
    key: ConnectionKey,
    /// The session that its hello resumes.
    resumes: Option<SessionId>,
    /// The service has given it its session. The reply that says so may wait for the journal.
    is_accepted: bool,
    /// The session that it was told.
    session: Option<SessionId>,
    /// Replies that were sent and that the peer has not taken: their number and bytes.
    untaken: (u32, usize),
    /// The peer is gone: the next reply that is written to it fails.
    is_deaf: bool,
    /// The service knows that nobody receives the replies any more.
    is_lost: bool,
}

/// An event of one input, for the world.
pub(super) enum Event {
    /// A connection got its session.
    Welcome(u64, (SessionId, SessionToken)),
    /// The service closed a connection, because its session continues on another one.
    Closed(u64),
    /// A request of a session was granted.
    Granted(SessionId, u64, wharf_core::ids::AllocationId),
    /// A promise was broken: the checker's name and its finding.
    Broken(&'static str, String),
}

/// What the hello of a client says.
pub(super) struct Greeting {
    /// It acknowledges waits individually.
    pub(super) is_exact: bool,
    /// The name in its certificate.
    pub(super) name: &'static str,
    /// The session that it resumes.
    pub(super) resume: Option<(SessionId, SessionToken)>,
}

/// A question for the registrar, and the I/O thread that asks.
pub(super) type Question = (usize, Asker, registrar::Question);

/// All I/O threads and connections.
pub(super) struct Server {
    pub(super) fronts: Vec<ConnectionService>,
    /// The time until which the thread of each front sleeps, if it sleeps and nothing has woken it.
    asleep_until: Vec<Option<Time>>,
    links: BTreeMap<u64, Link>,
    last_connection: u64,
    hung_up: HungUp,
    /// The newest connection that asked for each session.
    newest: BTreeMap<SessionId, u64>,
    in_flight_max: usize,
    shared: Arc<SessionShared>,
    outcomes: Outcomes,
    /// The replies that may leave, with a journal.
    pub(super) replies: Replies,
    /// Placements that are asked and not answered, and the nodes that have offered them the whole time.
    placing: BTreeMap<(SessionId, u64), (PlacementRequest, Offers)>,
    /// Placements that waited in an earlier start, and wait on.
    waited_before: BTreeSet<(SessionId, u64)>,
    /// The groups of clients, and their requests about groups.
    pub(super) groups: SessionGroups,
    /// Requests that earlier starts decided. Their replies tell nothing of this start.
    decided_before: BTreeSet<(SessionId, u64)>,
    /// When releases must be done.
    pub(super) releases: ReleaseDeadlines,
    reads: Reads,
    /// Peers take replies only when they are let.
    pub(super) is_slow: bool,
    pub(super) questions: Vec<Question>,
    pub(super) events: Vec<Event>,
}

/// The sessions that a start restores, and its time.
pub(super) struct KeptSessions {
    pub(super) sessions: Vec<SessionRecord>,
    pub(super) now: Time,
}

impl Server {
    pub(super) fn new(
        ports: Vec<Port>,
        incarnation: Incarnation,
        last_connection: u64,
        in_flight_max: u32,
        kept: KeptSessions,
    ) -> Self {
        let settings = Settings { in_flight_max, ..Settings::default() };
        let tokens = Mutex::new(0u64);
        let make_token = move || {
            let mut last = tokens.lock().unwrap_or_else(PoisonError::into_inner);
            *last += 1;
            let mut token = SessionToken::default();
            token[..8].copy_from_slice(&last.to_le_bytes());
            token
        };
        let shared = Arc::new(SessionShared::new([7; 16], incarnation, settings, Box::new(make_token)));
        let decided = |record: &SessionRecord| {
            let id = record.id;
            let undecided = KeptOutcome::Parts(Vec::new());
            let decided = record.outcomes.iter().filter(|(_, kept)| kept.outcome != undecided);
            decided.map(|(&sequence, _)| (id, sequence)).collect::<Vec<_>>()
        };
        let decided_before: BTreeSet<_> = kept.sessions.iter().flat_map(decided).collect();
        let waits = |record: &SessionRecord| {
            let id = record.id;
            let waits = record.outcomes.iter().filter(|(_, kept)| kept.wait.is_some());
            waits.map(|(&sequence, _)| (id, sequence)).collect::<Vec<_>>()
        };
        let waited_before = kept.sessions.iter().flat_map(waits);
        let waited_before = waited_before.filter(|request| !decided_before.contains(request)).collect();
        let now = kept.now;
        shared.set_access(&access());
        shared.restore_sessions(kept.sessions, now);
        let reads = Reads::default();
        let front = |port| {
            let waker = Waker::noop().clone();
            ConnectionService::new(port, Arc::clone(&shared), Box::new(reads.clone()), waker)
        };
        let mut server = Self {
            shared: Arc::clone(&shared),
            asleep_until: vec![None; ports.len()],
            fronts: ports.into_iter().map(front).collect(),
            links: BTreeMap::new(),
            last_connection,
            hung_up: HungUp::default(),
            newest: BTreeMap::new(),
            in_flight_max: in_flight_max as usize,
            outcomes: Outcomes::default(),
            replies: Replies::default(),
            placing: BTreeMap::new(),
            waited_before,
            groups: SessionGroups::default(),
            decided_before,
            releases: ReleaseDeadlines::default(),
            reads,
            is_slow: false,
            questions: Vec::new(),
            events: Vec::new(),
        };
        server.open_restored(now);
        server
    }

    /// Opens connections without a peer for sessions whose placements wait, at one front after the other.
    fn open_restored(&mut self, now: Time) {
        for front in (0..self.fronts.len()).cycle() {
            let number = self.last_connection + 1;
            let hangup: Arc<dyn Hangup> = Arc::new(SimHangup { number, hung_up: self.hung_up.clone() });
            let Some(key) = self.fronts[front].open_restored(&hangup, now) else { return };
            self.last_connection = number;
            let session = self.fronts[front].session_id(key);
            // Without planners, groups wait for the next start, and nothing is in progress.
            if self.fronts[front].is_settled(key) && self.fronts[front].take_output(key).bytes.is_empty() {
                self.fronts[front].close(key, false, now);
                continue;
            }
            let link = Link {
                front,
                key,
                resumes: None,
                is_accepted: true,
                session,
                untaken: (0, 0),
                is_deaf: true,
                is_lost: true,
            };
            self.links.insert(number, link);
        }
    }

    /// Returns the sessions that a stop stores.
    pub(super) fn session_records(&self) -> Vec<SessionRecord> {
        self.shared.session_records()
    }

    /// Goes on with the outcomes of the start before: a request has the same one over all starts. Placements wait on.
    pub(super) fn continue_outcomes(&mut self, before: &mut Self, facts: &[Facts]) {
        self.outcomes = std::mem::take(&mut before.outcomes);
        self.replies = std::mem::take(&mut before.replies);
        self.groups = std::mem::take(&mut before.groups);
        for (request, (placement, _)) in std::mem::take(&mut before.placing) {
            if self.waited_before.contains(&request) {
                let offers = Offers::new(&placement, facts.iter());
                self.placing.insert(request, (placement, offers));
            }
        }
    }

    pub(super) fn last_connection(&self) -> u64 {
        self.last_connection
    }

    /// Connects a client, and says hello for it: with a new session, or with its own. Returns the connection.
    pub(super) fn connect(
        &mut self,
        front: usize,
        Greeting { is_exact, name, resume }: Greeting,
        network: &mut Network,
        now: Time,
    ) -> u64 {
        self.last_connection += 1;
        let number = self.last_connection;
        let hangup = Arc::new(SimHangup { number, hung_up: self.hung_up.clone() });
        let key =
            self.fronts[front].open(hangup, Peer { names: vec![name.to_owned()], address: String::new() });
        let resumes = resume.map(|(session, _)| session);
        let link = Link {
            front,
            key,
            resumes,
            is_accepted: false,
            session: None,
            untaken: (0, 0),
            is_deaf: false,
            is_lost: false,
        };
        self.links.insert(number, link);
        self.newest.extend(resumes.map(|session| (session, number)));
        let resume = resume.map(|(session, token)| Resume { session: session.into(), token });
        let hello =
            Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: "sim".to_owned(), resume };
        let header = Header { kind: Kind::Hello.number(), version: BODY_VERSION, ..Header::default() };
        let mut none = Vec::new();
        encode_body(&Acknowledged::default(), &mut none);
        let exactly = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none };
        let extensions = if is_exact { std::slice::from_ref(&exactly) } else { &[] };
        let mut frame = Vec::new();
        encode_frame(header, extensions, &mut frame, |out| encode_body(&hello, out));
        self.receive(number, &frame, network, now);
        number
    }

    /// Gives the service bytes of a connection.
    pub(super) fn receive(&mut self, number: u64, bytes: &[u8], network: &mut Network, now: Time) {
        let Some(link) = self.links.get(&number).filter(|link| !link.is_lost) else { return };
        self.fronts[link.front].receive(link.key, bytes, now);
        self.pump(network, now);
    }

    /// Notes a placement whose frame is about to arrive, unless it was answered or is known.
    pub(super) fn expect_placement(&mut self, number: u64, frame: &FrameRef<'_>, facts: &[Facts]) {
        let sequence = frame.header.sequence;
        let Some(link) = self.links.get(&number) else { return };
        let Some(session) = link.session else { return };
        let request = (session, sequence);
        let is_decided = self.decided_before.contains(&request) || self.outcomes.has(request);
        if is_decided || self.placing.contains_key(&request) {
            return;
        }
        let defaults = self.fronts[link.front].placement_defaults(link.key);
        let port = &mut self.fronts[link.front].port;
        let (wire, _) = decode_body::<PlaceRequest>(frame.payload).expect("our own body");
        // The keeper of jobs may refuse what another statement of its own takes meanwhile.
        if !wire.queue.is_empty() {
            return;
        }
        if let Ok(placement) = placement_request(wire, port.catalog(), defaults) {
            let offers = Offers::new(&placement, facts.iter());
            self.placing.insert(request, (placement, offers));
        }
    }

    /// Notes a request about groups whose frame is about to arrive, unless it was answered.
    pub(super) fn expect_group(&mut self, number: u64, frame: &FrameRef<'_>) {
        let Some(link) = self.links.get(&number) else { return };
        let Some(session) = link.session else { return };
        let request = (session, frame.header.sequence);
        if self.decided_before.contains(&request) || self.outcomes.has(request) {
            return;
        }
        let defaults = self.fronts[link.front].placement_defaults(link.key);
        let port = &mut self.fronts[link.front].port;
        self.groups.expect(request, frame, port.catalog(), defaults);
    }

    /// The service notices that a connection is lost, unless it knows already.
    pub(super) fn lose(&mut self, number: u64, network: &mut Network, now: Time) {
        if self.links.get(&number).is_some_and(|link| !link.is_lost) {
            self.end(number, InputEnd::Lost, network, now);
        }
    }

    /// The peer of a connection with a session takes no more replies. The service notices when it writes one.
    pub(super) fn deafen(&mut self, number: u64, network: &mut Network, now: Time) {
        if let Some(link) = self.links.get_mut(&number).filter(|link| link.session.is_some()) {
            link.is_deaf = true;
            self.take_replies(number, network, now);
        }
    }

    /// The client of a connection ends its stream. It has all its replies.
    pub(super) fn finish(&mut self, number: u64, network: &mut Network, now: Time) {
        self.take_replies(number, network, now);
        self.end(number, InputEnd::Finished, network, now);
    }

    /// Stops the service. Waiting requests end, and their clients are told.
    pub(super) fn stop(&mut self, network: &mut Network, now: Time) {
        for number in self.numbers() {
            self.take_replies(number, network, now);
            self.end(number, InputEnd::Stopping, network, now);
            self.recall(number, network, now);
        }
    }

    /// Lets a lost connection end, whatever waits there.
    fn recall(&mut self, number: u64, network: &mut Network, now: Time) {
        if let Some(link) = self.links.get(&number) {
            self.fronts[link.front].recall(link.key, now);
            self.pump(network, now);
        }
    }

    /// Returns the number of connections.
    pub(super) fn connections(&self) -> usize {
        self.links.len()
    }

    fn end(&mut self, number: u64, end: InputEnd, network: &mut Network, now: Time) {
        let Some(link) = self.links.get_mut(&number) else { return };
        self.fronts[link.front].end_input(link.key, end, now);
        link.is_lost |= end == InputEnd::Lost;
        if link.is_lost {
            self.write(number, now);
        }
        self.pump(network, now);
    }

    /// Returns the numbers of all connections.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.links.keys().copied().collect()
    }

    /// The peer of a connection takes the replies that were sent to it.
    pub(super) fn take_replies(&mut self, number: u64, network: &mut Network, now: Time) {
        self.write(number, now);
        self.pump(network, now);
    }

    /// The writing of what was sent on a connection ends. It fails if the peer is gone. Replies to other lost
    /// connections are still taken, so that the oracle sees their outcomes.
    fn write(&mut self, number: u64, now: Time) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let (replies, bytes) = std::mem::take(&mut link.untaken);
        if replies > 0 {
            link.is_lost |= link.is_deaf;
            self.fronts[link.front].written(link.key, replies, bytes, link.is_deaf, now);
        }
    }

    /// Returns whether the thread of a front sleeps although there is work for it. That means a wake-up was
    /// lost.
    pub(super) fn oversleeps(&mut self, at: usize) -> bool {
        let front = &mut self.fronts[at];
        let deadline = front.next_deadline().unwrap_or(Time(u64::MAX));
        let port = &mut front.port;
        let sleeps_past = self.asleep_until[at].is_some_and(|until| deadline < until);
        port.bell().is_asleep() && (sleeps_past || !port.is_idle())
    }

    /// Runs the thread of a front: it looks at its rings and deadlines, and sleeps if there is nothing to do.
    /// Returns the number of things that moved.
    pub(super) fn poll(&mut self, at: usize, network: &mut Network, now: Time) -> usize {
        let is_due = self.fronts[at].next_deadline().is_some_and(|deadline| deadline <= now);
        let has_moved = self.fronts[at].poll(now) || is_due;
        let closed = self.close_hung_up(at, network, now);
        let moved = usize::from(has_moved) + closed + self.pump(network, now);
        let front = &mut self.fronts[at];
        self.asleep_until[at] = None;
        if moved == 0 && front.try_sleep() {
            self.asleep_until[at] = Some(front.next_deadline().unwrap_or(Time(u64::MAX)));
        }
        moved
    }

    /// The thread of a front notices which of its connections were closed by any thread. Returns their number.
    fn close_hung_up(&mut self, at: usize, network: &mut Network, now: Time) -> usize {
        let mut closed = 0;
        for number in self.hung_up.take() {
            match self.links.get_mut(&number) {
                Some(link) if link.front != at => self.hung_up.push(number),
                Some(link) => {
                    closed += 1;
                    link.is_deaf = true;
                    let was_lost = link.is_lost;
                    self.fronts[at].recall(link.key, now);
                    if !was_lost {
                        self.events.push(Event::Closed(number));
                        self.end(number, InputEnd::Lost, network, now);
                    }
                }
                None => {}
            }
        }
        closed
    }

    /// Gives the registrar's answer to the thread that asked.
    pub(super) fn answer(
        &mut self,
        front: usize,
        asker: Asker,
        answer: RegistrarReply,
        network: &mut Network,
        now: Time,
    ) {
        self.fronts[front].handle_answer(asker, answer, now);
        self.pump(network, now);
    }

    /// Carries everything that the services put out. Returns the number of things that moved.
    fn pump(&mut self, network: &mut Network, now: Time) -> usize {
        let mut moved = 0;
        loop {
            let before = moved;
            for front in 0..self.fronts.len() {
                while let Some(key) = self.fronts[front].take_touched() {
                    let mut links = self.links.iter();
                    let link = links.find(|(_, link)| (link.front, link.key) == (front, key));
                    let Some(number) = link.map(|(&number, _)| number) else { continue };
                    moved += self.carry(number, network, now);
                }
                if self.fronts[front].take_new_deadline() {
                    self.asleep_until[front] = None;
                }
                while self.questions.len() < QUESTIONS_MAX && self.fronts[front].has_question() {
                    moved += 1;
                    // None: those that there were are too late, and were refused.
                    let next = self.fronts[front].next_question(now);
                    self.questions.extend(next.map(|(asker, request)| (front, asker, request)));
                }
            }
            if moved == before {
                self.note_held();
                return moved;
            }
        }
    }

    /// Checks the first time that a connection has a session. A newer connection may come before its reply leaves.
    fn check_accepted(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number).filter(|link| !link.is_accepted) else { return };
        let Some(session) = self.fronts[link.front].session_id(link.key) else { return };
        link.is_accepted = true;
        let newest = *self.newest.entry(session).or_insert(number);
        let kept = newest_connection_is_welcome(number, newest);
        self.events.extend(kept.err().map(|found| Event::Broken("newest_connection_is_welcome", found)));
    }

    /// Carries the replies of one connection, and closes it if it has ended.
    fn carry(&mut self, number: u64, network: &mut Network, now: Time) -> usize {
        self.check_accepted(number);
        let Some(link) = self.links.get_mut(&number) else { return 0 };
        let service = &mut self.fronts[link.front];
        // What a lost connection had sent is executed without waiting for replies to be taken.
        if !link.is_lost {
            let kept = credits_are_kept(service.in_flight(link.key), self.in_flight_max);
            self.events.extend(kept.err().map(|found| Event::Broken("credits_are_kept", found)));
        }
        let output = service.take_output(link.key);
        let bytes = output.bytes.len();
        link.untaken = (link.untaken.0 + output.replies, link.untaken.1 + bytes);
        if link.is_lost || link.is_deaf || !self.is_slow {
            self.write(number, now);
        }
        let link = &self.links[&number];
        let service = &mut self.fronts[link.front];
        if bytes == 0 && service.is_settled(link.key) {
            service.close(link.key, !link.is_lost, now);
            self.links.remove(&number);
            return 1;
        }
        let mut rest = &output.bytes[..];
        while let Ok(Some(frame)) = decode_frame(rest, FRAME_BYTES_MAX) {
            let (sent, left) = rest.split_at(frame.bytes);
            rest = left;
            self.check_late(number, &frame, now);
            self.handle_sent(number, &frame, sent, network);
        }
        assert!(rest.is_empty(), "the service sends whole frames");
        output.replies as usize
    }

    /// Records that a shard changed.
    pub(super) fn shard_changed(&mut self, before: &Facts, now: &Facts) {
        for (request, offers) in self.placing.values_mut() {
            offers.shard_changed(request, before, now);
        }
    }

    /// Returns the placements that are not answered.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &PlacementRequest> {
        self.placing.values().map(|(request, _)| request)
    }

    /// Returns a placement that is not answered.
    pub(super) fn placing(&self, session: SessionId, sequence: u64) -> Option<&PlacementRequest> {
        self.placing.get(&(session, sequence)).map(|(request, _)| request)
    }

    /// Returns the number of requests in the engine that do not wait.
    pub(super) fn under_way(&self) -> usize {
        self.fronts.iter().map(|front| front.in_engine().0).sum()
    }

    /// Returns the number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.fronts.iter().map(|front| front.in_engine().1).sum()
    }
}

pub(super) fn framed<T: serde::Serialize>(header: Header, body: &T) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_frame(header, &[], &mut frame, |out| encode_body(body, out));
    frame
}
