//! Following events at the connections of one I/O thread, without sockets, over a source of the test.
//!
//! Faults that these find: a request that is never answered or answered twice, and a page for a peer that takes none.
//! Also an event that is lost or doubled with a connection, and a follower that is counted after it left.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::ids::Incarnation;
use wharf_core::link::lock;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::codec::decode_frame;
use wharf_net::limits::{EVENT_FOLLOWERS_MAX, LONG_REPLIES_MAX};
use wharf_net::protocol::{
    EVENTS_PER_MESSAGE_MAX, EventBody, EventsReply, EventsRequest, FOLLOW_WAIT_MS_MAX, FRAME_BYTES_MAX,
    Fault, Kind, Reason,
};
use wharf_net::session::connections::{ConnectionKey, ConnectionService, InputEnd, Unobserved};
use wharf_net::session::events::{EventFollowerKey, EventSource, EventsAnswer, EventsAsked, EventsKept};
use wharf_net::session::shared::{Hangup, SessionShared, Settings};

use crate::harness::{Frame, hello, request, request_within};

/// A source with this many events, which answers when it is told to.
#[derive(Default)]
struct Source {
    end: Mutex<u64>,
    asked: Mutex<BTreeMap<EventFollowerKey, EventsAsked>>,
    count: Mutex<usize>,
}

impl EventSource for Source {
    fn ask(&self, asked: EventsAsked) {
        *lock(&self.count) += 1;
        lock(&self.asked).insert(asked.follower, asked);
    }

    fn forget(&self, follower: EventFollowerKey) {
        lock(&self.asked).remove(&follower);
    }

    fn kept(&self) -> EventsKept {
        EventsKept { first: 1, end: *lock(&self.end) }
    }
}

impl Source {
    /// Lets events happen, up to before `end`, and answers who asked for them.
    fn advance(&self, end: u64) {
        *lock(&self.end) = end;
        lock(&self.asked).retain(|_, asked| {
            let last = end.min(asked.from + asked.limit as u64);
            let events: Vec<EventBody> = (asked.from..last).map(event).collect();
            if events.is_empty() && asked.waits {
                return true;
            }
            let reply =
                EventsReply { first: 1, end, next: last.max(asked.from), events, ..EventsReply::default() };
            let EventsAsked { follower, ticket, mailbox, .. } = asked;
            let connection = follower.connection;
            mailbox.put(EventsAnswer { ticket: *ticket, connection, page: Ok(reply) });
            false
        });
    }

    fn asked(&self) -> usize {
        lock(&self.asked).len()
    }
}

fn event(position: u64) -> EventBody {
    EventBody { position, external_id: format!("event-{position}"), ..EventBody::default() }
}

struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {}
}

/// The connections of an I/O thread.
struct Bed {
    service: ConnectionService,
    shared: Arc<SessionShared>,
    source: Arc<Source>,
    now: Time,
}

impl Bed {
    fn new(has_source: bool) -> Self {
        let mut engine =
            Engine::open(StoreState::default(), &EngineConfig::default(), vec![Waker::noop().clone()])
                .expect("the numbers are in range");
        let token = Box::new(|| [7; 16]);
        let shared = Arc::new(SessionShared::new([1; 16], Incarnation(1), Settings::default(), token));
        let source = Arc::new(Source { end: Mutex::new(1), ..Source::default() });
        if has_source {
            shared.set_events(Arc::clone(&source) as Arc<dyn EventSource>);
        }
        let port = engine.ports.pop().expect("one port");
        let service =
            ConnectionService::new(port, Arc::clone(&shared), Box::new(Unobserved), Waker::noop().clone());
        Self { service, shared, source, now: Time(1_000_000_000) }
    }

    fn connect(&mut self) -> ConnectionKey {
        let key = self.service.open(Arc::new(NoHangup), wharf_net::access::Peer::default());
        self.service.receive(key, &hello(None), self.now);
        assert_eq!(self.replies(key).len(), 1);
        key
    }

    fn ask(&mut self, key: ConnectionKey, sequence: u64, from: u64, limit: u16, wait_ms: u32) {
        let body = EventsRequest { from, limit, wait_ms };
        self.service.receive(key, &request(Kind::Events, sequence, &body), self.now);
    }

    /// Returns the replies that were sent, without taking note that the peer has them.
    fn sent(&mut self, key: ConnectionKey) -> (Vec<Frame>, u32, usize) {
        let output = self.service.take_output(key);
        let mut rest = &output.bytes[..];
        let mut frames = Vec::new();
        while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX).expect("frames") {
            let (bytes, left) = rest.split_at(frame.bytes);
            frames.push(Frame {
                header: frame.header,
                payload: frame.payload.to_vec(),
                bytes: bytes.to_vec(),
            });
            rest = left;
        }
        (frames, output.replies, output.bytes.len())
    }

    /// Returns the replies that the peer took.
    fn replies(&mut self, key: ConnectionKey) -> Vec<Frame> {
        let (frames, replies, bytes) = self.sent(key);
        self.service.written(key, replies, bytes, false, self.now);
        frames
    }

    /// Lets the thread run, and returns the only page for a connection, with its sequence.
    fn page(&mut self, key: ConnectionKey) -> (u64, EventsReply) {
        self.service.poll(self.now);
        let mut frames = self.replies(key);
        assert_eq!(frames.len(), 1);
        let frame = frames.remove(0);
        (frame.header.sequence, frame.body())
    }

    fn is_silent(&mut self, key: ConnectionKey) -> bool {
        self.service.poll(self.now);
        self.replies(key).is_empty()
    }

    fn close(&mut self, key: ConnectionKey) {
        self.service.end_input(key, InputEnd::Lost, self.now);
        self.service.written(key, 0, 0, true, self.now);
        assert!(self.service.is_settled(key), "nothing of a lost connection is under way");
        self.service.close(key, false, self.now);
    }
}

fn positions(reply: &EventsReply) -> Vec<u64> {
    reply.events.iter().map(|event| event.position).collect()
}

#[test]
fn a_request_waits_is_replaced_and_ends_at_its_deadline() {
    let mut bed = Bed::new(true);
    let key = bed.connect();
    bed.ask(key, 1, 1, 0, 5000);
    assert!(bed.is_silent(key));
    // The later request replaces the earlier one, which is answered without events.
    bed.ask(key, 2, 1, 2, 5000);
    let (sequence, reply) = bed.page(key);
    assert_eq!((sequence, reply.next, reply.events.len()), (1, 1, 0));
    assert_eq!(bed.source.asked(), 1);
    bed.source.advance(4);
    let (sequence, reply) = bed.page(key);
    assert_eq!((sequence, positions(&reply), reply.next, reply.end), (2, vec![1, 2], 3, 4));
    assert_eq!(reply.events[1], event(2));
    // A deadline ends the wait, and what comes later is not lost.
    bed.ask(key, 3, 4, 0, 5000);
    assert_eq!(bed.service.next_deadline(), Some(Time(bed.now.0 + 5_000_000_000)));
    bed.now = Time(bed.now.0 + 5_000_000_000);
    let (sequence, reply) = bed.page(key);
    assert_eq!((sequence, reply.next, reply.events.len()), (3, 4, 0));
    assert_eq!((bed.source.asked(), bed.service.next_deadline()), (0, None));
    bed.ask(key, 4, 4, 0, 5000);
    bed.source.advance(6);
    assert_eq!(positions(&bed.page(key).1), [4, 5]);
    // The end of the service ends the wait too.
    bed.ask(key, 5, 6, 0, FOLLOW_WAIT_MS_MAX);
    bed.service.end_input(key, InputEnd::Stopping, bed.now);
    assert_eq!(bed.page(key).0, 5);
    assert_eq!(bed.source.asked(), 0);
}

#[test]
fn a_peer_that_takes_no_replies_gets_no_further_page() {
    let mut bed = Bed::new(true);
    let key = bed.connect();
    bed.source.advance(1000);
    let mut next = 1;
    let mut untaken = (0, 0);
    for sequence in 1..100 {
        bed.ask(key, sequence, 1, 1, 0);
        bed.source.advance(1000);
        bed.service.poll(bed.now);
        let (frames, replies, bytes) = bed.sent(key);
        next += frames.len();
        untaken = (untaken.0 + replies, untaken.1 + bytes);
    }
    assert_eq!(next, 1 + LONG_REPLIES_MAX as usize);
    assert_eq!(*lock(&bed.source.count), LONG_REPLIES_MAX as usize);
    // It takes them, and gets the rest.
    bed.service.written(key, untaken.0, untaken.1, false, bed.now);
    let mut sequences = Vec::new();
    while next < 100 {
        bed.source.advance(1000);
        bed.service.poll(bed.now);
        let frames = bed.replies(key);
        assert!(!frames.is_empty(), "it goes on after {next} pages");
        next += frames.len();
        sequences.extend(frames.iter().map(|frame| frame.header.sequence));
    }
    assert!(sequences.is_sorted());
}

/// Neither in the service nor at the source.
#[test]
fn a_page_is_not_asked_for_after_its_deadline() {
    let mut bed = Bed::new(true);
    let key = bed.connect();
    bed.source.advance(1000);
    let body = EventsRequest { from: 1, limit: 1, wait_ms: 0 };
    let within = 10;
    let mut sequence = 0;
    while bed.service.wants_input(key) {
        sequence += 1;
        bed.service.receive(key, &request_within(Kind::Events, sequence, within, &body), bed.now);
        assert!(lock(&bed.source.asked).values().all(|asked| asked.due == bed.now.plus_nanos(within)));
        bed.source.advance(1000);
        bed.service.poll(bed.now);
    }
    let asked = *lock(&bed.source.count);
    assert_eq!(asked, LONG_REPLIES_MAX as usize);
    bed.now = bed.now.plus_nanos(within);
    assert_eq!(bed.replies(key).len(), asked);
    let late = bed.replies(key);
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].header.sequence, sequence);
    late[0].assert_fault(Reason::DeadlineExceeded);
    assert_eq!(*lock(&bed.source.count), asked);
    // The source refuses in the same way, and it counts in the same way.
    bed.ask(key, sequence + 1, 1, 1, 0);
    let EventsAsked { follower, ticket, mailbox, .. } = lock(&bed.source.asked).pop_first().expect("one").1;
    mailbox.put(EventsAnswer { ticket, connection: follower.connection, page: Err(Fault::late()) });
    bed.service.poll(bed.now);
    bed.replies(key)[0].assert_fault(Reason::DeadlineExceeded);
    // Relaxed: one thread.
    assert_eq!(bed.shared.counters.shed.load(Ordering::Relaxed), 2);
}

#[test]
fn a_follower_goes_on_over_lost_connections() {
    let mut bed = Bed::new(true);
    let mut seen = Vec::new();
    let mut end = 1;
    for round in 0..20u64 {
        let key = bed.connect();
        let from = seen.last().map_or(1, |last| last + 1);
        bed.ask(key, 1, from, 3, 5000);
        end += 2;
        bed.source.advance(end);
        bed.service.poll(bed.now);
        if round % 3 == 0 {
            // The page is lost with the connection.
            bed.close(key);
            continue;
        }
        seen.extend(positions(&bed.page(key).1));
        // The connection is lost during a wait.
        bed.ask(key, 2, end + 100, 3, 5000);
        bed.close(key);
        assert_eq!(bed.source.asked(), 0, "the source keeps no question of a lost connection");
    }
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
    assert!(seen.len() > 30, "{seen:?}");
}

#[test]
fn followers_are_bounded_and_wrong_requests_are_refused() {
    let mut bed = Bed::new(true);
    let keys: Vec<ConnectionKey> = (0..EVENT_FOLLOWERS_MAX).map(|_| bed.connect()).collect();
    for &key in &keys {
        bed.ask(key, 1, 1, 0, 5000);
    }
    let late = bed.connect();
    bed.ask(late, 1, 1, 0, 5000);
    bed.replies(late)[0].assert_fault(Reason::LimitExceeded);
    bed.close(keys[0]);
    bed.ask(late, 2, 1, 0, 5000);
    assert!(bed.is_silent(late));
    // Relaxed: one thread uses it.
    let followers = bed.shared.counters.event_followers.load(Ordering::Relaxed);
    assert_eq!(followers, EVENT_FOLLOWERS_MAX as u64);
    bed.source.advance(2);
    assert_eq!(positions(&bed.page(late).1), [1]);
    bed.ask(late, 3, 1, EVENTS_PER_MESSAGE_MAX as u16 + 1, 0);
    assert_eq!(bed.replies(late)[0].assert_fault(Reason::InvalidField).field, "limit");
    bed.ask(late, 4, 1, 0, FOLLOW_WAIT_MS_MAX + 1);
    assert_eq!(bed.replies(late)[0].assert_fault(Reason::InvalidField).field, "wait_ms");

    let mut bed = Bed::new(false);
    let key = bed.connect();
    bed.ask(key, 1, 1, 0, 5000);
    let fault = bed.replies(key)[0].assert_fault(Reason::NotServed);
    assert!(fault.message.contains("durability"), "{fault}");
}
