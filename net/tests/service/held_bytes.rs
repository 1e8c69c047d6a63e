//! Peers that together make an I/O thread hold much, each of them within its own bounds.

use std::sync::atomic::Ordering;

use wharf_net::codec::{Header, decode_body};
use wharf_net::limits::{Bounds, HELD_PART};
use wharf_net::protocol::{
    Fault, Kind, MODE_WAIT_UNTIL, PlaceRequest, Reason, SESSION_KEPT_BYTES_MAX, UNACKNOWLEDGED_MAX,
};
use wharf_net::server::Settings;
use wharf_net::session::connections::ConnectionKey;

use crate::harness::bed::Bed;
use crate::harness::{ask, frame, header, request};

/// What a session may keep while all hold too much.
const PART: usize = SESSION_KEPT_BYTES_MAX / HELD_PART;

/// A client that acknowledges nothing unless it is told to.
struct Hoarder {
    key: ConnectionKey,
    next: u64,
    acknowledged: u64,
    kept_bytes: usize,
}

impl Hoarder {
    fn connect(bed: &mut Bed) -> Self {
        Self { key: bed.connect(true, None).0, next: 1, acknowledged: 1, kept_bytes: 0 }
    }

    /// Asks for a placement in a queue of a service without queues, for a long reply. Returns the fault if it is not executed.
    fn ask(&mut self, bed: &mut Bed) -> Option<Fault> {
        let header = Header { lowest_unacknowledged: self.acknowledged, ..header(Kind::Place, self.next) };
        let place = PlaceRequest { queue: "none".into(), ..ask(1, 0, 0) };
        bed.service.receive(self.key, &frame(header, &place), bed.now);
        bed.write();
        let reply = bed.replies(self.key).remove(0);
        let fault: Fault = decode_body(&reply.payload).expect("there are no queues").0;
        if fault.reason == Reason::SequenceOutOfWindow.into() {
            return Some(fault);
        }
        self.next += 1;
        self.kept_bytes += reply.bytes.len();
        None
    }

    /// Asks until it may keep no more, or has `bytes`.
    fn fill(&mut self, bed: &mut Bed, bytes: usize) {
        while self.kept_bytes < bytes {
            assert!(self.next < u64::from(UNACKNOWLEDGED_MAX), "only bytes are to be in the way");
            if self.ask(bed).is_some() {
                return;
            }
        }
    }

    fn acknowledge(&mut self) {
        (self.acknowledged, self.kept_bytes) = (self.next, 0);
    }
}

#[test]
fn while_all_hold_too_much_each_may_hold_a_part() {
    let mut bed = with_bound(4 * PART);
    let mut first = Hoarder::connect(&mut bed);
    first.fill(&mut bed, PART);
    assert_eq!(times_full(&bed), 0);
    first.fill(&mut bed, usize::MAX);
    assert_eq!(times_full(&bed), 1, "the next requests do not count again");
    let alone = first.kept_bytes;
    assert!(alone > 3 * PART / 2 && alone < 4 * PART, "{alone} bytes alone");
    first.acknowledge();
    assert!(first.ask(&mut bed).is_none(), "an acknowledgement makes room");

    let mut second = Hoarder::connect(&mut bed);
    second.fill(&mut bed, 3 * PART / 2);
    first.fill(&mut bed, usize::MAX);
    let with_another = first.kept_bytes;
    assert!(with_another >= PART && with_another < alone, "{with_another} bytes next to another");
    let refused = second.ask(&mut bed).expect("it has more than its part");
    assert!(refused.message.contains("acknowledge"), "{refused:?}");
    assert_eq!(times_full(&bed), 2);
    // A client that holds less than its part notices nothing.
    let mut modest = Hoarder::connect(&mut bed);
    assert!(modest.ask(&mut bed).is_none());

    bed.lose(second.key);
    first.fill(&mut bed, usize::MAX);
    assert!(first.kept_bytes > with_another, "what a lost connection held counts no more");
}

/// Returns how often the metrics say that all held too much.
fn times_full(bed: &Bed) -> u64 {
    bed.shared.counters.held_full.load(Ordering::Relaxed)
}

/// Sends placements in one chunk.
fn send_places(bed: &mut Bed, key: ConnectionKey, count: u64, place: &PlaceRequest) {
    let frames: Vec<u8> = (1..=count).flat_map(|sequence| request(Kind::Place, sequence, place)).collect();
    bed.service.receive(key, &frames, bed.now);
}

fn with_bound(held_bytes: usize) -> Bed {
    let bounds = Bounds { held_bytes, ..Bounds::default() };
    Bed::with_settings(Settings { bounds, ..Settings::default() })
}

#[test]
fn a_connection_that_holds_its_part_is_paused_and_goes_on() {
    const PLACES: u64 = 150;
    let mut bed = with_bound(0);
    let (key, _) = bed.connect(true, None);
    send_places(&mut bed, key, PLACES, &ask(1, 0, 0));
    assert!(!bed.service.wants_input(key), "possible replies take more than its part");
    let mut replies = 0;
    for _ in 0..PLACES {
        bed.run_shard();
        bed.service.poll(bed.now);
        bed.write();
        replies += bed.replies(key).len() as u64;
    }
    assert_eq!(replies, PLACES);
    assert!(bed.service.wants_input(key));
}

#[test]
fn what_waits_counts_as_soon_as_it_is_asked() {
    for waits in [0, 100] {
        let mut bed = with_bound(3 * PART / 2);
        let (silent, _) = bed.connect(true, None);
        let deadline = bed.now.0 + 1_000_000_000;
        let wait = PlaceRequest { mode: MODE_WAIT_UNTIL, deadline, ..ask(1, 0, 0) };
        let (other, _) = bed.connect(true, None);
        send_places(&mut bed, silent, waits, &wait);
        send_places(&mut bed, other, 100, &ask(1, 0, 0));
        assert_eq!(bed.service.wants_input(other), waits == 0, "{waits} wait at another connection");
    }
}
