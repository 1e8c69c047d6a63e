//! The connections of one I/O thread without I/O: bytes in, bytes out, time as an argument.
//!
//! A [`ConnectionService`] owns the thread's port and everything that its connections and their requests need.
//! The server's tasks (`net/src/server/`) carry bytes, questions for the registrar and wake-ups. The simulator
//! runs the same service with faults.
//!
//! | input | method |
//! |---|---|
//! | a connection with its stream | [`open`](ConnectionService::open) |
//! | bytes of the stream | [`receive`](ConnectionService::receive) |
//! | the end of the stream | [`end_input`](ConnectionService::end_input) |
//! | replies that the peer took | [`written`](ConnectionService::written) |
//! | an answer of the registrar | [`handle_answer`](ConnectionService::handle_answer) |
//! | a wake-up, or a deadline | [`poll`](ConnectionService::poll) |
//!
//! | output | method |
//! |---|---|
//! | replies | [`take_output`](ConnectionService::take_output) |
//! | questions for the registrar | [`next_question`](ConnectionService::next_question) |
//! | connections with a new state | [`take_touched`](ConnectionService::take_touched) |
//! | the next deadline | [`next_deadline`](ConnectionService::next_deadline) |
//!
//! A request that finds no room at the port waits for its turn, and its connection goes on with the next frame
//! as long as not too many wait there. A request that finds no room at a planner or at the registrar stalls its
//! connection: no later frame is executed before it. Connections that wait for planners go on in turn of their tenants.

mod answers;
mod connection;
mod counted;
mod events;
mod explaining;
mod follow;
mod held;
mod hello;
mod input;
mod into_group;
mod job_requests;
mod lost;
mod observer;
mod operation;
mod overload;
mod placing;
mod planning;
mod questions;
mod record;
mod recovered;
mod renewing;
mod requests;
mod rights;
mod room;
mod selectors;
mod turns;
mod waits;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use arc_swap::{ArcSwap, Cache};
use slab::Slab;
use wharf_core::ids::SessionId;
use wharf_core::limits::{
    PLACEMENTS_PER_MESSAGE_MAX, PLANS_IN_FLIGHT_MAX, PORT_GROUPS_WAITING_MAX, PORT_IN_FLIGHT_MAX,
};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::router::{Port, PortReply, PortRequest, Tag, WaitEnd};
use wharf_core::state::SessionChange;
use wharf_core::time::Time;

use super::shared::{Counters, Hangup, SessionShared, Settings};
use super::tags::{split_tag, tag};
use crate::access::Peer;
use crate::protocol::{Fault, Reason};
use crate::session::ReplyBlocks;
use crate::session::registrar::Question;
use connection::{Connection, Known, Stalled};
pub use connection::{InputEnd, Output};
use events::EventFollowers;
pub(super) use follow::Departed;
pub use hello::HELLO_PATIENCE;
pub(crate) use hello::late_hello;
use lost::Lost;
pub use observer::{IoObserver, Unobserved};
use operation::Operation;
use placing::PortPart;
pub use questions::Asker;
use room::Room;
pub use room::RoomTaken;
use selectors::KnownSelectors;
use turns::Turns;

/// Identifies a connection at its service, until [`ConnectionService::close`].
pub type ConnectionKey = usize;

/// Maximum number of planner jobs in progress at one I/O thread, without waiting groups.
const PLAN_ROOM: usize = PLANS_IN_FLIGHT_MAX - PORT_GROUPS_WAITING_MAX;
// The largest batch has room.
const _: () = assert!(PLACEMENTS_PER_MESSAGE_MAX <= PLAN_ROOM);

/// The connections of one I/O thread, and their requests.
pub struct ConnectionService {
    /// The port to the shards.
    pub port: Port,
    shared: Arc<SessionShared>,
    settings: Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>,
    selectors: KnownSelectors,
    observer: Box<dyn IoObserver>,
    /// Wakes the thread.
    waker: Waker,
    connections: Slab<Connection>,
    operations: Slab<Operation>,
    /// The requests at the port, and those that wait for their turn.
    turns: Turns<PortPart>,
    /// Room for planner jobs in the port.
    plan_room: Room,
    /// Number of groups that may still wait.
    group_room: isize,
    /// Candidates of the requests that wait at the port.
    candidates_waiting: usize,
    /// Bytes that are held for all connections, each as it was counted last.
    held_bytes: usize,
    /// From this number on, each may hold only a part.
    held_bytes_max: usize,
    /// It was counted that they hold too much, and this is not over.
    is_full_noted: bool,
    /// For the replies that sessions keep.
    blocks: ReplyBlocks,
    /// Questions that the registrar has not taken yet, in order of arrival.
    asking: VecDeque<(Asker, Question)>,
    /// Connections whose session is still at another connection.
    resuming: Vec<ConnectionKey>,
    /// The number of sessions that had left their connection when these were tried.
    sessions_left: u64,
    /// Connections that may continue with their input.
    ready: VecDeque<ConnectionKey>,
    /// Connections that follow changes.
    followers: Vec<ConnectionKey>,
    events: EventFollowers,
    /// A deadline was added since the last [`take_new_deadline`](Self::take_new_deadline).
    has_new_deadline: bool,
    /// The time at which a session that this thread knows of may end because its client stays away.
    next_expiry: Option<Time>,
    /// Lost connections with waits, by the time at which their sessions end.
    lost: Lost,
    /// The times until which views of ended followers are kept.
    departures: VecDeque<Time>,
    /// Connections whose state changed since the last [`take_touched`](Self::take_touched).
    touched: Vec<ConnectionKey>,
    /// Changes of sessions that are not in the journal yet.
    changes: Vec<SessionChange>,
    /// Connections that have replies without a position of the journal.
    fresh: Vec<ConnectionKey>,
    /// Connections whose replies wait for the journal.
    holding: Vec<ConnectionKey>,
    /// The position of the journal up to which replies were released.
    released_to: u64,
    /// The storage of the journal was full at the last release, so no reply that only reads is held.
    is_full: bool,
    /// The port's spillbacks that are already counted.
    spillbacks: u64,
    /// Buffer that is reused from poll to poll.
    replies: Vec<(Tag, PortReply)>,
}

impl ConnectionService {
    /// Creates a service without connections. `waker` wakes its thread.
    #[must_use]
    pub fn new(port: Port, shared: Arc<SessionShared>, observer: Box<dyn IoObserver>, waker: Waker) -> Self {
        let held_bytes_max = shared.bounds().held_bytes;
        Self {
            events: EventFollowers::new(&shared, port.bell()),
            next_expiry: shared.next_expiry(),
            port,
            settings: Cache::new(Arc::clone(&shared.settings)),
            selectors: KnownSelectors::default(),
            shared,
            observer,
            waker,
            connections: Slab::new(),
            operations: Slab::new(),
            turns: Turns::new(PORT_IN_FLIGHT_MAX),
            plan_room: Room::new(PLAN_ROOM),
            group_room: PORT_GROUPS_WAITING_MAX as isize,
            candidates_waiting: 0,
            held_bytes: 0,
            held_bytes_max,
            is_full_noted: false,
            blocks: ReplyBlocks::default(),
            asking: VecDeque::new(),
            resuming: Vec::new(),
            sessions_left: 0,
            ready: VecDeque::new(),
            followers: Vec::new(),
            has_new_deadline: false,
            lost: Lost::default(),
            departures: VecDeque::new(),
            touched: Vec::new(),
            changes: Vec::new(),
            fresh: Vec::new(),
            holding: Vec::new(),
            released_to: 0,
            is_full: false,
            spillbacks: 0,
            replies: Vec::new(),
        }
    }

    /// Opens a connection whose peer is expected to say hello.
    pub fn open(&mut self, hangup: Arc<dyn Hangup>, peer: Peer) -> ConnectionKey {
        let version = self.shared.access_version();
        let rights = self.shared.rights(&peer.names);
        let known = Known { peer, rights, version };
        self.connections.insert(Connection::new(hangup, self.port.journal().cloned(), known))
    }

    /// Handles bytes that the peer of `key` sent.
    pub fn receive(&mut self, key: ConnectionKey, bytes: &[u8], now: Time) {
        self.receive_chunks(key, &[bytes], now);
    }

    /// Handles chunks of bytes that the peer of `key` sent and that are there together. Shards are woken once for all.
    pub fn receive_chunks<B: AsRef<[u8]>>(&mut self, key: ConnectionKey, chunks: &[B], now: Time) {
        self.connections[key].input.extend(chunks);
        self.set_tight(key);
        self.go_on(key, now);
        self.connections[key].count_in_flight();
        self.count_bytes(key);
        self.settle(now);
    }

    /// Handles the end of what the peer of `key` sends. Frames received before are still executed if the peer has
    /// its session.
    pub fn end_input(&mut self, key: ConnectionKey, end: InputEnd, now: Time) {
        let connection = &mut self.connections[key];
        let is_open = connection.session.is_some();
        if is_open && end == InputEnd::Late {
            return;
        }
        connection.input_end.get_or_insert(end);
        if is_open {
            if end != InputEnd::Finished {
                // It would keep the connection busy until its deadline.
                self.end_follow(key, now);
            }
            self.go_on(key, now);
        } else {
            self.leave_before_hello(key, end);
        }
        self.settle(now);
    }

    /// Returns whether the service takes more bytes of `key` now.
    #[must_use]
    pub fn wants_input(&self, key: ConnectionKey) -> bool {
        let connection = &self.connections[key];
        connection.input_end.is_none() && !connection.has_frames && connection.takes_frames()
    }

    /// Returns the number of the frame that the peer of `key` has begun.
    #[must_use]
    pub fn begun_frame(&self, key: ConnectionKey) -> Option<u64> {
        self.connections[key].input.begun()
    }

    /// Returns whether nothing more is read from the peer of `key`.
    #[must_use]
    pub fn is_input_over(&self, key: ConnectionKey) -> bool {
        let connection = &self.connections[key];
        connection.input_end.is_some() || connection.is_ending
    }

    /// Returns whether the peer of `key` has said hello and has its session.
    #[must_use]
    pub fn is_open(&self, key: ConnectionKey) -> bool {
        self.connections[key].session.is_some()
    }

    /// Returns whether there are replies to be sent to the peer of `key`.
    #[must_use]
    pub fn has_output(&self, key: ConnectionKey) -> bool {
        !self.connections[key].out.is_empty()
    }

    /// Returns the bytes of the replies to be sent to the peer of `key`.
    #[must_use]
    pub fn output_bytes(&self, key: ConnectionKey) -> usize {
        self.connections[key].out.len()
    }

    /// Takes the replies to be sent to the peer of `key`. Report them with [`written`](Self::written).
    pub fn take_output(&mut self, key: ConnectionKey) -> Output {
        self.take_output_into(key, Vec::new())
    }

    /// Takes the replies as [`take_output`](Self::take_output) does. The next replies go into `empty`, whose memory is used
    /// again.
    pub fn take_output_into(&mut self, key: ConnectionKey, empty: Vec<u8>) -> Output {
        self.connections[key].take_output(empty)
    }

    /// Handles that the peer of `key` took `replies` replies of `bytes` bytes, or takes no more if `failed`. Nothing
    /// more is read from a peer that takes no replies.
    pub fn written(&mut self, key: ConnectionKey, replies: u32, bytes: usize, failed: bool, now: Time) {
        let connection = &mut self.connections[key];
        connection.written(replies, bytes, failed);
        if failed && connection.session.is_some() && !is_planted(PlantedBug::FailedWriteIgnored) {
            connection.input_end.get_or_insert(InputEnd::Lost);
            self.end_follow(key, now);
        }
        self.resume_follow(key, now);
        self.go_on(key, now);
        self.touch(key);
        self.settle(now);
    }

    /// Returns whether everything that `key` asked is answered and taken for output.
    #[must_use]
    pub fn is_done(&self, key: ConnectionKey) -> bool {
        self.is_settled(key) && !self.has_output(key) && !self.connections[key].is_holding()
    }

    /// Returns whether nothing of `key` is in progress any more, so that it can be closed.
    #[must_use]
    pub fn is_settled(&self, key: ConnectionKey) -> bool {
        let connection = &self.connections[key];
        connection.is_ending && connection.in_flight() == 0
    }

    /// Removes a connection. Its session is kept for the next connection of its client, unless the client ended
    /// it and `took_all`. Returns the fault for which the connection ends.
    ///
    /// # Panics
    /// Panics if something of the connection is still in progress.
    pub fn close(&mut self, key: ConnectionKey, took_all: bool, now: Time) -> Option<Fault> {
        assert!(self.is_settled(key), "a connection is closed with requests under way");
        self.depart(key, now);
        let mut connection = self.connections.remove(key);
        connection.count_in_flight();
        self.held_bytes -= connection.count_bytes().1;
        if let Some(due) = connection.ends_at {
            let tenant = connection.session.as_ref().expect("what waited has a session").tenant();
            self.lost.remove(due, key, tenant);
        }
        self.touched.retain(|&touched| touched != key);
        self.holding.retain(|&holding| holding != key);
        assert!(!connection.is_fresh, "each input ends with what it has for the journal");
        if let Some(session) = connection.session {
            // The peer ended the stream and has every reply, so it will not return.
            let returns =
                connection.input_end != Some(InputEnd::Finished) || connection.fault.is_some() || !took_all;
            if connection.is_expired {
                self.end_expired(&session);
            } else {
                self.leave_session(session, returns, now);
            }
        }
        self.record(now);
        connection.fault
    }

    /// Moves the service on: takes replies of the engine, ends what is due, and resumes what can go on. Returns
    /// whether anything moved.
    pub fn poll(&mut self, now: Time) -> bool {
        let told = self.handle_news(now);
        let taken = self.poll_port(now);
        // The first connection that holds again is looked at, even if the storage is full all the time.
        self.is_full &= !self.holding.is_empty();
        let released = !self.holding.is_empty() && self.release();
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.expire(now);
            self.expire_lost(now);
            self.expire_sessions(now);
        }
        if !self.resuming.is_empty() && self.shared.sessions.sessions_left() != self.sessions_left {
            self.resume_sessions(now);
        }
        self.settle(now);
        taken > 0 || told || released
    }

    /// Returns the time at which [`poll`](Self::poll) must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let follow = self.next_follow_deadline();
        let departure = self.departures.front().copied();
        let lost = self.lost.first().map(|(due, _)| due);
        [self.port.next_deadline(), follow, departure, lost, self.next_expiry].into_iter().flatten().min()
    }

    /// Returns whether an input has added a deadline. A thread that sleeps until an earlier answer of
    /// [`next_deadline`](Self::next_deadline) must be woken.
    pub fn take_new_deadline(&mut self) -> bool {
        std::mem::take(&mut self.has_new_deadline) && !is_planted(PlantedBug::NewDeadlineUntold)
    }

    /// Puts the thread to sleep if the port has nothing for it. Returns false if it must poll again.
    pub fn try_sleep(&mut self) -> bool {
        let bell = Arc::clone(self.port.bell());
        bell.sleep_if(|| {
            let waits = match self.port.journal() {
                // Registered first: a journal that becomes full later rings.
                Some(journal) if !self.holding.is_empty() => {
                    journal.wait_for(self.released_to + 1) && journal.is_full() == self.is_full
                }
                _ => true,
            };
            waits && self.port.is_idle() && self.events.is_idle()
        })
    }

    /// Returns the number of requests in the engine: those that do not wait, and those that do.
    #[must_use]
    pub fn in_engine(&self) -> (usize, usize) {
        let waiting = self.operations.iter().filter(|(_, operation)| operation.waits()).count();
        (self.operations.len() - waiting, waiting)
    }

    /// Returns the session of `key`, once its peer has said hello.
    #[must_use]
    pub fn session_id(&self, key: ConnectionKey) -> Option<SessionId> {
        self.connections[key].session.as_ref().map(super::Session::id)
    }

    /// Returns the number of requests of `key` in progress, without those that wait.
    #[must_use]
    pub fn in_flight(&self, key: ConnectionKey) -> usize {
        let connection = &self.connections[key];
        connection.in_flight() - connection.waits.len()
    }

    /// Takes a connection whose state changed: it has output, takes input again, or ends.
    pub fn take_touched(&mut self) -> Option<ConnectionKey> {
        let key = self.touched.pop()?;
        self.connections[key].is_touched = false;
        Some(key)
    }

    /// Executes the frames of `key` that were received, until one stalls.
    fn go_on(&mut self, key: ConnectionKey, now: Time) {
        // The frames borrow from the input while the rest of the connection changes.
        let mut input = std::mem::take(&mut self.connections[key].input);
        let mut is_over = false;
        while !is_over && self.connections[key].takes_frames() {
            match input.next() {
                Ok(Some(frame)) => self.handle_frame(key, &frame, now),
                Ok(None) => {
                    is_over = true;
                    let connection = &self.connections[key];
                    if connection.input_end.is_some() && connection.session.is_some() {
                        let fault = connection.input_end.and_then(|end| input.check_end(end));
                        self.end_reading(key, fault, now);
                    }
                }
                Err(error) => {
                    is_over = true;
                    self.handle_unreadable(key, input::frame_fault(error), now);
                }
            }
        }
        let connection = &mut self.connections[key];
        input.trim();
        connection.input = input;
        connection.has_frames = !is_over;
    }

    /// Lets everything go on that has room now, until nothing more can.
    fn settle(&mut self, now: Time) {
        loop {
            if let Some(turn) = self.turns.next(now) {
                self.take_turn(turn, now);
            } else if let Some(key) = self.plan_room.next() {
                self.submit_stalled(key, now);
            } else if let Some(key) = self.ready.pop_front() {
                self.go_on(key, now);
                self.touch(key);
            } else {
                break;
            }
        }
        self.turns.measure(now);
        self.record(now);
        self.port.flush();
    }

    /// Ends the reading of a connection: what cannot wait on ends, and the rest is still answered.
    fn end_reading(&mut self, key: ConnectionKey, fault: Option<Fault>, now: Time) {
        let connection = &mut self.connections[key];
        if let Some(fault) = &fault {
            connection.say(&input::fault_frame(0, 0, fault));
        }
        let is_stopping = connection.input_end == Some(InputEnd::Stopping);
        connection.is_lost = !matches!(connection.input_end, Some(InputEnd::Finished | InputEnd::Stopping));
        connection.fault = fault;
        connection.is_ending = true;
        if connection.is_lost {
            self.lose_waits(key, now);
        } else {
            self.end_waits_of(key, if is_stopping { WaitEnd::Stopped } else { WaitEnd::Cancelled }, now);
        }
        self.end_follow(key, now);
        self.touch(key);
    }

    /// Handles bytes that are no frame: what follows cannot be told apart.
    fn handle_unreadable(&mut self, key: ConnectionKey, fault: Fault, now: Time) {
        if self.connections[key].session.is_none() {
            self.refuse_hello(key, fault);
        } else {
            self.end_reading(key, Some(fault), now);
        }
    }

    fn poll_port(&mut self, now: Time) -> usize {
        let mut replies = std::mem::take(&mut self.replies);
        let taken = self.port.poll(now, |tag, reply| replies.push((tag, reply)));
        self.turns.set_window(self.port.window(), self.port.turn_ns());
        // All threads share the counter, so each adds only the growth of its own port.
        let spillbacks = self.port.spillbacks();
        if spillbacks > self.spillbacks {
            // Relaxed: a statistic; nothing depends on its order.
            self.shared.counters.spillbacks.fetch_add(spillbacks - self.spillbacks, Ordering::Relaxed);
            self.spillbacks = spillbacks;
        }
        for (tag, reply) in replies.drain(..) {
            let (operation, part) = split_tag(tag);
            self.handle_reply(operation, part, reply, now);
        }
        self.replies = replies;
        taken
    }

    /// Ends everything whose deadline has passed.
    fn expire(&mut self, now: Time) {
        let mut ended = Vec::new();
        self.port.end_waits(now, |tag, reply| ended.push((tag, reply)));
        for (tag, reply) in ended {
            let (operation, part) = split_tag(tag);
            self.handle_reply(operation, part, reply, now);
        }
        self.expire_follows(now);
        self.expire_departures(now);
    }

    /// Enters an operation. Its parts can be submitted afterwards.
    #[inline]
    fn enter(&mut self, operation: Operation) -> usize {
        let candidates = operation.parts.candidates();
        if candidates > 0 {
            let waits = operation.waits();
            self.connections[operation.asker.connection].candidates.add(candidates, waits);
            self.candidates_waiting += if waits { candidates } else { 0 };
        }
        self.operations.insert(operation)
    }

    /// Removes an operation.
    #[inline]
    fn leave(&mut self, at: usize) -> Operation {
        let operation = self.operations.remove(at);
        let candidates = operation.parts.candidates();
        if candidates > 0 {
            let waits = operation.waits();
            self.connections[operation.asker.connection].candidates.remove(candidates, waits);
            self.candidates_waiting -= if waits { candidates } else { 0 };
        }
        operation
    }

    /// Submits one part. The caller has taken room for it.
    fn submit(&mut self, operation: usize, part: usize, request: PortRequest, now: Time) {
        let origin = self.origin(operation, part);
        let at_once = self.port.submit_for(origin, tag(operation, part), request, now);
        if let Some(reply) = at_once.expect("room was taken before") {
            self.handle_reply(operation, part, reply, now);
        }
    }

    /// Answers a request that is refused before its frame is executed.
    fn refuse_frame(&mut self, key: ConnectionKey, kind: u16, sequence: u64, fault: &Fault) {
        Counters::count(&self.shared.counters.frames_refused);
        self.connections[key].say(&input::fault_frame(kind, sequence, fault));
        self.touch(key);
    }

    /// Stalls `key` until what it waits for is there.
    fn stall(&mut self, key: ConnectionKey, stalled: Stalled) {
        let before = self.connections[key].stalled.replace(stalled);
        assert!(before.is_none(), "a stalled connection executes no frame");
    }
}

/// Returns the fault for waiting requests when the service stops.
fn stopped() -> Fault {
    let message = "the service stops, and what waits does not wait on: ask again once it is back";
    Fault::new(Reason::ShuttingDown, message)
}
