//! Peers that together make an I/O thread hold much, each of them within its own bounds.

use wharf_net::codec::{Header, decode_body};
use wharf_net::limits::{Bounds, HELD_PART};
use wharf_net::protocol::{Fault, Kind, PlaceRequest, Reason, SESSION_KEPT_BYTES_MAX, UNACKNOWLEDGED_MAX};
use wharf_net::server::Settings;
use wharf_net::session::connections::ConnectionKey;

use crate::harness::bed::Bed;
use crate::harness::{ask, frame, header};

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
    let bounds = Bounds { held_bytes: 4 * PART, ..Bounds::default() };
    let mut bed = Bed::with_settings(Settings { bounds, ..Settings::default() });
    let mut first = Hoarder::connect(&mut bed);
    first.fill(&mut bed, usize::MAX);
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
    // A client that holds less than its part notices nothing.
    let mut modest = Hoarder::connect(&mut bed);
    assert!(modest.ask(&mut bed).is_none());

    bed.lose(second.key);
    first.fill(&mut bed, usize::MAX);
    assert!(first.kept_bytes > with_another, "what a lost connection held counts no more");
}
