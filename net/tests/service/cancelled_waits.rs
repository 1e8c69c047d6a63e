//! Placements whose wait is cancelled while a shard has them, at the connections of one I/O thread, without sockets.
//!
//! Faults that these find: a cancellation that is answered, or recorded, before the outcome of its wait. A crash between
//! the two would let a request wait again whose client was told that it is cancelled.

use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{self, ShardRunner};
use wharf_core::ids::Incarnation;
use wharf_core::journal::{Changes, JournalFeed, Unit};
use wharf_core::link::Clock;
use wharf_core::state::{SessionChange, StoreState};
use wharf_core::time::Time;
use wharf_net::codec::decode_frame;
use wharf_net::protocol::{
    CancelReply, CancelRequest, FRAME_BYTES_MAX, HelloReply, Kind, MODE_WAIT_UNTIL, PlaceReply, PlaceRequest,
    Reason, Resume,
};
use wharf_net::session::connections::{ConnectionKey, ConnectionService, InputEnd, Unobserved};
use wharf_net::session::shared::{Hangup, SessionShared, Settings};

use crate::harness::{Frame, ask, hello, request};

const NOW: Time = Time(1_000_000_000);

/// The sequence of the placement that waits.
const WAIT: u64 = 1;

struct Now;

impl Clock for Now {
    fn now(&self) -> Time {
        NOW
    }
}

struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {}
}

/// The connections of an I/O thread, and a shard without nodes that runs when it is told to.
struct Bed {
    service: ConnectionService,
    shard: ShardRunner,
    journal: JournalFeed,
}

impl Bed {
    fn new() -> Self {
        let config = EngineConfig { journal: true, ..EngineConfig::default() };
        let wakers = vec![Waker::noop().clone(); 2];
        let mut engine = Engine::open(StoreState::default(), &config, wakers).expect("the numbers are in range");
        let shared = SessionShared::new([1; 16], Incarnation(1), Settings::default(), Box::new(|| [7; 16]));
        let port = engine.ports.pop().expect("one for each waker");
        let waker = Waker::noop().clone();
        Self {
            service: ConnectionService::new(port, Arc::new(shared), Box::new(Unobserved), waker),
            shard: engine.runners.pop().expect("one shard"),
            journal: engine.journal.take().expect("the engine notes effects"),
        }
    }

    /// Connects, and says hello.
    fn connect(&mut self, resume: Option<Resume>) -> (ConnectionKey, HelloReply) {
        let key = self.service.open(Arc::new(NoHangup));
        self.service.receive(key, &hello(resume), NOW);
        self.write();
        let replies = self.replies(key);
        (key, replies[0].body())
    }

    fn place(&mut self, key: ConnectionKey) {
        let deadline = NOW.0 + 1_000_000_000;
        let place = PlaceRequest { mode: MODE_WAIT_UNTIL, deadline, ..ask(1, 0, 0) };
        self.service.receive(key, &request(Kind::Place, WAIT, &place), NOW);
    }

    fn cancel(&mut self, key: ConnectionKey, sequence: u64) {
        let cancel = CancelRequest { sequence: WAIT };
        self.service.receive(key, &request(Kind::CancelWait, sequence, &cancel), NOW);
    }

    fn run_shard(&mut self) {
        self.shard.run_batch(&Now, &mut executor::Unobserved);
        self.service.poll(NOW);
    }

    /// Lets everything become durable. Returns the requests that each unit answers, by sequence.
    fn write(&mut self) -> Vec<Vec<u64>> {
        let mut units = Vec::new();
        self.journal.take(&mut units);
        self.journal.set_durable(self.journal.position());
        self.service.poll(NOW);
        units.iter().map(answered).filter(|answered| !answered.is_empty()).collect()
    }

    /// Returns the replies that the peer took.
    fn replies(&mut self, key: ConnectionKey) -> Vec<Frame> {
        let output = self.service.take_output(key);
        let mut rest = &output.bytes[..];
        let mut frames = Vec::new();
        while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX).expect("frames") {
            let (bytes, left) = rest.split_at(frame.bytes);
            let payload = frame.payload.to_vec();
            frames.push(Frame { header: frame.header, payload, bytes: bytes.to_vec() });
            rest = left;
        }
        self.service.written(key, output.replies, output.bytes.len(), false, NOW);
        frames
    }
}

fn answered(unit: &Unit) -> Vec<u64> {
    let Changes::Sessions(changes) = &unit.changes else { return Vec::new() };
    let answered = changes.iter().filter_map(|change| match change {
        SessionChange::Answered(origin, _) => Some(origin.sequence),
        _ => None,
    });
    answered.collect()
}

/// Checks that the wait was cancelled, and then that both cancellations say so.
#[track_caller]
fn assert_cancelled(replies: &[Frame]) {
    let sequences: Vec<u64> = replies.iter().map(|reply| reply.header.sequence).collect();
    assert_eq!(sequences, [WAIT, 2, 3]);
    assert_eq!(replies[0].body::<PlaceReply>().reason, Reason::Cancelled.into());
    assert!(replies[1..].iter().all(|reply| reply.body::<CancelReply>().waited));
}

#[test]
fn a_cancellation_is_answered_after_its_wait_and_recorded_with_it() {
    let mut bed = Bed::new();
    let (key, _) = bed.connect(None);
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    assert_eq!(bed.write(), [[]; 0], "the shard has not answered yet");
    assert!(bed.replies(key).is_empty());
    bed.run_shard();
    assert_eq!(bed.write(), [[WAIT, 2, 3]]);
    assert_cancelled(&bed.replies(key));
    bed.cancel(key, 4);
    bed.write();
    let late = bed.replies(key);
    assert!(!late[0].body::<CancelReply>().waited, "it waits no more");
}

#[test]
fn a_cancellation_keeps_its_outcome_when_its_connection_is_lost_before() {
    let mut bed = Bed::new();
    let (key, opened) = bed.connect(None);
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    bed.service.end_input(key, InputEnd::Lost, NOW);
    bed.service.written(key, 0, 0, true, NOW);
    assert!(!bed.service.is_settled(key), "three requests are under way");
    bed.run_shard();
    assert!(bed.service.is_settled(key));
    bed.service.close(key, false, NOW);
    let (key, _) = bed.connect(Some(Resume { session: opened.session, token: opened.token }));
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    bed.write();
    assert_cancelled(&bed.replies(key));
}
