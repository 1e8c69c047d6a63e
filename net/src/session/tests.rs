//! Tests of sessions: what they keep, for how long, and within which bounds.

use wharf_core::ids::Incarnation;
use wharf_core::state::KeptOutcome;
use wharf_core::time::Time;

use super::*;
use crate::limits::DETACHED_SESSIONS_MAX;
use crate::protocol::DETACHED_KEPT_BYTES_MAX;
use crate::protocol::{FRAME_BYTES_MAX, Kind};

fn session() -> Session {
    Session::new(SessionId { incarnation: Incarnation(1), number: 1 }, [7; 16])
}

#[test]
fn a_request_is_done_once_and_answered_the_same() {
    let mut session = session();
    assert_eq!(session.admit(1, 0), Admission::New);
    assert_eq!(session.admit(1, 0), Admission::UnderWay);
    session.answer(1, b"yes", &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Answered(b"yes"));
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Stale);
    assert_eq!(session.admit(0, 0), Admission::Stale);
}

#[test]
fn sequences_may_be_skipped_and_answered_in_any_order() {
    let mut session = session();
    assert_eq!(session.admit(3, 0), Admission::New);
    assert_eq!(session.admit(1, 0), Admission::New);
    session.answer(3, b"three", &mut ReplyBlocks::default());
    assert_eq!(session.in_flight(), 1);
    // The mark stops at a request in progress.
    session.acknowledge(4, &mut ReplyBlocks::default());
    assert_eq!(session.admit(3, 0), Admission::Answered(b"three"));
    session.answer(1, b"one", &mut ReplyBlocks::default());
    session.acknowledge(4, &mut ReplyBlocks::default());
    assert_eq!(session.admit(3, 0), Admission::Stale);
}

#[test]
fn the_window_bounds_what_a_client_can_make_the_server_keep() {
    let mut session = session();
    assert_eq!(session.admit(u64::from(UNACKNOWLEDGED_MAX), 0), Admission::New);
    assert_eq!(session.admit(u64::from(UNACKNOWLEDGED_MAX) + 1, 0), Admission::OutOfWindow);
    assert_eq!(session.admit(u64::MAX, 0), Admission::OutOfWindow);
}

/// Returns a session whose client acknowledges waits individually, with a wait at sequence 1.
fn with_wait() -> Session {
    let mut session = session();
    session.acknowledges_exactly();
    assert_eq!(session.admit(1, 0), Admission::New);
    session.wait(1);
    session
}

#[test]
fn a_wait_is_kept_apart_while_the_window_moves_on() {
    let mut session = with_wait();
    for sequence in 2..100_000 {
        session.acknowledge(sequence, &mut ReplyBlocks::default());
        assert_eq!(session.admit(sequence, 0), Admission::New);
        session.answer(sequence, b"done", &mut ReplyBlocks::default());
    }
    assert_eq!((session.entries.len(), session.apart.len(), session.in_flight()), (1, 1, 1));
    assert_eq!(session.admit(1, 0), Admission::UnderWay);
    // The answered wait is kept at any mark until it is acknowledged individually.
    session.answer(1, b"placed", &mut ReplyBlocks::default());
    session.acknowledge(100_000, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Answered(b"placed"));
    session.acknowledge_wait(1);
    assert_eq!(session.admit(1, 0), Admission::Stale);
    assert_eq!((session.all_kept_bytes(), session.apart.len()), (0, 0));
}

#[test]
fn an_answered_wait_is_not_forgotten_by_a_mark_that_was_said_before() {
    let mut session = with_wait();
    session.answer(1, b"placed", &mut ReplyBlocks::default());
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Answered(b"placed"));
    session.acknowledge_wait(1);
    assert_eq!(session.admit(1, 0), Admission::Stale);
    // A wait acknowledged before the mark passes it is dropped like other entries.
    let mut session = with_wait();
    session.answer(1, b"placed", &mut ReplyBlocks::default());
    session.acknowledge_wait(1);
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Stale);
    assert_eq!(session.all_kept_bytes(), 0);
}

#[test]
fn an_interrupted_wait_may_be_asked_again_whatever_the_mark_is() {
    let mut session = with_wait();
    session.answer_unkept(1);
    session.acknowledge(50, &mut ReplyBlocks::default());
    assert_eq!((session.in_flight(), session.admit(1, 0)), (0, Admission::New));
    session.acknowledge_wait(1);
    assert_eq!(session.admit(1, 0), Admission::UnderWay, "what is under way cannot be acknowledged");
    session.answer(1, b"placed", &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Answered(b"placed"));
}

/// The client had the reply of an earlier start, and acknowledges it to this one.
#[test]
fn a_wait_of_an_earlier_start_is_acknowledged() {
    let deed = wharf_core::state::Deed::Released(None);
    let outcome = KeptOutcome::Parts(vec![(0, deed)]);
    let kept = OutcomeRecord { fingerprint: 0, is_wait: true, wait: None, outcome };
    let outcomes = [(1, kept)].into();
    let id = SessionId { incarnation: Incarnation(1), number: 1 };
    let mut session = Session::restore(SessionRecord { id, token: [7; 16], mark: 2, outcomes });
    assert_eq!(session.apart.len(), 1);
    assert!(session.acknowledge_wait(1));
    assert_eq!(session.apart.len(), 0);
    assert_eq!(session.admit(1, 0), Admission::Stale);
}

#[test]
fn waits_apart_are_bounded_and_others_are_as_they_were() {
    let mut session = session();
    session.acknowledges_exactly();
    for sequence in 1..=APART_MAX as u64 + 1 {
        session.acknowledge(sequence, &mut ReplyBlocks::default());
        assert_eq!(session.admit(sequence, 0), Admission::New);
        session.wait(sequence);
    }
    let end = APART_MAX as u64 + u64::from(UNACKNOWLEDGED_MAX);
    session.acknowledge(end, &mut ReplyBlocks::default());
    assert_eq!(session.base, APART_MAX as u64 + 1, "the last one pins the window");
    assert_eq!(session.admit(end + 1, 0), Admission::OutOfWindow);
    // A client that does not acknowledge waits individually has no waits apart.
    let mut session = self::session();
    assert_eq!(session.admit(1, 0), Admission::New);
    session.wait(1);
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::UnderWay);
    assert_eq!(session.base, 1);
}

#[test]
fn sessions_are_resumed_by_their_token_and_pushed_out_in_order() {
    let mut detached = DetachedSessions::new(Incarnation(1));
    let first = detached.open([1; 16]);
    let id = first.id();
    detached.detach(first, Time::default());
    assert!(detached.resume(id, &[2; 16]).is_none());
    let first = detached.resume(id, &[1; 16]).unwrap();
    assert!(detached.resume(id, &[1; 16]).is_none());
    detached.detach(first, Time::default());
    for _ in 0..DETACHED_SESSIONS_MAX {
        let other = detached.open([1; 16]);
        detached.detach(other, Time::default());
    }
    assert!(detached.resume(id, &[1; 16]).is_none());
}

#[test]
fn what_only_looks_is_not_kept_and_done_again() {
    let mut session = session();
    assert_eq!(session.admit(1, 0), Admission::New);
    assert_eq!(session.admit(1, 0), Admission::UnderWay);
    session.answer_unkept(1);
    assert_eq!((session.in_flight(), session.kept_bytes), (0, 0));
    assert_eq!(session.admit(1, 0), Admission::New);
    session.answer_unkept(1);
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Stale);
}

#[test]
fn kept_bytes_are_bounded_until_the_client_acknowledges() {
    let mut session = session();
    let reply = vec![0; SESSION_KEPT_BYTES_MAX / 2];
    for sequence in 2..=4 {
        assert_eq!(session.admit(sequence, 0), Admission::New);
    }
    session.answer(2, &reply, &mut ReplyBlocks::default());
    session.answer(3, &reply, &mut ReplyBlocks::default());
    // Requests in progress and answered requests stay. New requests must wait.
    assert_eq!(session.admit(4, 0), Admission::UnderWay);
    assert_eq!(session.admit(2, 0), Admission::Answered(&reply));
    assert_eq!(session.admit(5, 0), Admission::OutOfWindow);
    // The lowest request is executed. Otherwise nothing could be acknowledged.
    assert_eq!(session.admit(1, 0), Admission::New);
    session.answer(1, b"one", &mut ReplyBlocks::default());
    assert_eq!(session.admit(5, 0), Admission::OutOfWindow);
    session.acknowledge(3, &mut ReplyBlocks::default());
    assert_eq!(session.admit(5, 0), Admission::New);
}

#[test]
fn what_is_under_way_counts_with_what_it_may_bring() {
    let mut session = session();
    let weight = Weight::of(Kind::PlaceBatch.number(), 64 << 10);
    assert_eq!(weight.bytes(), FRAME_BYTES_MAX as usize + (64 << 10));
    let mut admitted = 0;
    let mut answered = 0;
    for sequence in 1..=1000 {
        match session.admit(sequence, 0) {
            Admission::New => session.weigh(sequence, weight),
            refused => {
                assert_eq!(refused, Admission::OutOfWindow);
                break;
            }
        }
        admitted = sequence;
    }
    assert!(session.is_full_of_promises());
    for sequence in 1..=admitted {
        session.answer(sequence, &vec![0; FRAME_BYTES_MAX as usize], &mut ReplyBlocks::default());
        answered += FRAME_BYTES_MAX as usize;
    }
    assert_eq!((session.kept_bytes, session.promised_bytes, session.under_way_bytes), (answered, 0, 0));
    assert!(answered <= SESSION_KEPT_BYTES_MAX, "{admitted} outcomes take {answered} bytes");
    assert!(!session.is_full_of_promises(), "only an acknowledgement makes room now");
}

#[test]
fn waits_have_room_of_their_own_until_they_are_acknowledged() {
    let mut session = session();
    session.acknowledges_exactly();
    let weight = Weight::of(Kind::CreateGroup.number(), 1000);
    let mut waiting = 0;
    loop {
        assert_eq!(session.admit(waiting + 1, 0), Admission::New);
        session.weigh(waiting + 1, weight);
        if !session.can_wait(waiting + 1) {
            break;
        }
        waiting += 1;
        session.wait(waiting);
        session.acknowledge(waiting + 1, &mut ReplyBlocks::default());
    }
    assert_eq!(waiting, (SESSION_WAITS_BYTES_MAX / weight.bytes()) as u64);
    session.answer(waiting + 1, b"too many wait", &mut ReplyBlocks::default());
    assert_eq!((session.under_way_bytes, session.promised_bytes), (0, 0));
    for sequence in 1..=waiting {
        session.answer(sequence, &vec![0; weight.kept_bytes()], &mut ReplyBlocks::default());
    }
    assert!(session.waits_bytes <= SESSION_WAITS_BYTES_MAX);
    // Answered waits count until they are acknowledged individually.
    let next = waiting + 2;
    assert_eq!(session.admit(next, 0), Admission::New);
    session.weigh(next, Weight { request: 2 << 20, ..weight });
    assert!(!session.can_wait(next));
    for sequence in 1..=waiting {
        assert!(session.acknowledge_wait(sequence));
    }
    assert_eq!(session.waits_bytes, 0);
    assert!(session.can_wait(next));
}

#[test]
fn a_tight_session_may_keep_a_part_and_goes_on() {
    let mut session = session();
    session.acknowledges_exactly();
    session.set_tight(true);
    let reply = vec![0; SESSION_KEPT_BYTES_MAX / HELD_PART];
    for sequence in 1..=3 {
        assert_eq!(session.admit(sequence, 0), Admission::New);
    }
    session.answer(2, &reply, &mut ReplyBlocks::default());
    assert_eq!(session.admit(4, 0), Admission::OutOfWindow);
    assert!(session.held_bytes() >= reply.len());
    // What it already holds stays.
    assert_eq!(session.admit(2, 0), Admission::Answered(&reply));
    assert_eq!(session.admit(3, 0), Admission::UnderWay);
    // One may wait in any case, and more within the part.
    session.weigh(1, Weight { request: (SESSION_WAITS_BYTES_MAX / HELD_PART) as u32, ..Weight::default() });
    assert!(session.can_wait(1));
    session.weigh(1, Weight::of(Kind::Place.number(), 100));
    session.wait(1);
    let waits = |session: &mut Session, bytes: usize| {
        session.weigh(3, Weight { request: bytes as u32, ..Weight::of(Kind::Place.number(), 0) });
        session.can_wait(3)
    };
    assert!(waits(&mut session, 1000));
    assert!(!waits(&mut session, SESSION_WAITS_BYTES_MAX / HELD_PART));
    session.set_tight(false);
    assert!(waits(&mut session, SESSION_WAITS_BYTES_MAX / HELD_PART));
    assert_eq!(session.admit(4, 0), Admission::New);
    // An acknowledgement makes room as well.
    session.set_tight(true);
    assert_eq!(session.admit(5, 0), Admission::OutOfWindow);
    session.answer(1, b"one", &mut ReplyBlocks::default());
    session.acknowledge(3, &mut ReplyBlocks::default());
    assert_eq!(session.admit(5, 0), Admission::New);
}

#[test]
fn a_tight_session_may_have_some_placements_in_flight() {
    let mut session = session();
    session.set_tight(true);
    let weight = Weight::of(Kind::Place.number(), 70);
    let mut count = 0;
    while !session.is_full_of_promises() {
        count += 1;
        assert_eq!(session.admit_weighed(count, 0, weight), Admission::New);
    }
    assert!((70..=90).contains(&count), "{count} placements");
}

#[test]
fn detached_sessions_are_pushed_out_by_the_bytes_that_they_keep() {
    let mut detached = DetachedSessions::new(Incarnation(1));
    let mut full = || {
        let mut session = detached.open([1; 16]);
        assert_eq!(session.admit(1, 0), Admission::New);
        session.answer(1, &vec![0; SESSION_KEPT_BYTES_MAX], &mut ReplyBlocks::default());
        let id = session.id();
        detached.detach(session, Time::default());
        id
    };
    let fit = DETACHED_KEPT_BYTES_MAX / SESSION_KEPT_BYTES_MAX;
    // Each session also counts its window, so one fewer fits.
    let ids: Vec<SessionId> = (0..fit).map(|_| full()).collect();
    assert!(detached.resume(ids[0], &[1; 16]).is_none(), "the oldest went");
    for &id in &ids[1..] {
        assert!(detached.resume(id, &[1; 16]).is_some());
    }
    assert_eq!(detached.kept_bytes, 0);
}

#[test]
fn a_tenant_with_many_detached_sessions_drops_its_own() {
    let token_of = |tenant: u8| {
        let mut token = [1; 16];
        token[14..].copy_from_slice(&[tenant, 0]);
        token
    };
    let mut detached = DetachedSessions::new(Incarnation(1));
    let mut keep = |tenant: u8| {
        let session = detached.open(token_of(tenant));
        let id = session.id();
        (id, detached.detach(session, Time::default()))
    };
    let (modest, dropped) = keep(1);
    assert_eq!(dropped, []);
    let many: Vec<(SessionId, Vec<SessionId>)> = (0..=DETACHED_SESSIONS_MAX).map(|_| keep(2)).collect();
    let dropped: Vec<SessionId> = many.iter().flat_map(|(_, dropped)| dropped).copied().collect();
    assert_eq!(dropped, [many[0].0, many[1].0], "its own, the oldest first");
    assert!(detached.resume(modest, &token_of(1)).is_some());
}

#[test]
fn a_detached_session_that_skipped_sequences_weighs_its_window() {
    let mut detached = DetachedSessions::new(Incarnation(1));
    let last = u64::from(UNACKNOWLEDGED_MAX);
    let sessions = 4 * DETACHED_KEPT_BYTES_MAX / (UNACKNOWLEDGED_MAX as usize * size_of::<Slot>());
    for _ in 0..sessions {
        let mut session = detached.open([1; 16]);
        assert_eq!(session.admit(last, 0), Admission::New);
        session.answer(last, b"released", &mut ReplyBlocks::default());
        detached.detach(session, Time::default());
    }
    assert!(detached.kept_bytes <= DETACHED_KEPT_BYTES_MAX && detached.order.len() <= sessions / 4);
    // A session whose requests were all dropped keeps no window.
    let mut session = detached.open([1; 16]);
    assert_eq!(session.admit(last, 0), Admission::New);
    session.answer_unkept(last);
    let before = detached.kept_bytes;
    detached.detach(session, Time::default());
    assert_eq!(detached.kept_bytes, before);
}

#[test]
#[should_panic(expected = "not under way")]
fn an_outcome_without_its_request_stops_the_process() {
    session().answer(1, b"", &mut ReplyBlocks::default());
}

/// The short ways of most requests leave a session as the ways of any request leave it.
#[test]
fn the_short_ways_do_the_same() {
    use wharf_core::rng::Rng;
    let steps = |seed: u64| {
        let mut rng = Rng::new(seed);
        let mut short = session();
        let mut long = session();
        if seed.is_multiple_of(2) {
            short.acknowledges_exactly();
            long.acknowledges_exactly();
        }
        // One uses blocks again, the other has new ones each time.
        let mut blocks = ReplyBlocks::default();
        let mut next = 1;
        let mut under_way = Vec::new();
        for step in 0..400 {
            match rng.below(8) {
                0..4 => {
                    // Most requests are the next one. Some are sent again, and some skip sequences.
                    let sequence = if rng.below(4) > 0 { next } else { rng.below(next + 8) };
                    next = next.max(sequence + 1);
                    let fingerprint = if rng.below(8) > 0 { sequence as u32 } else { 7 };
                    let weight = Weight::of(Kind::PlaceBatch.number(), 100 + rng.below(40_000) as usize);
                    let admitted = long.admit(sequence, fingerprint);
                    let is_new = admitted == Admission::New;
                    assert_eq!(
                        short.admit_weighed(sequence, fingerprint, weight),
                        admitted,
                        "{seed}: {step}"
                    );
                    if is_new {
                        long.weigh(sequence, weight);
                        under_way.push(sequence);
                    }
                }
                4 => {
                    if let Some(&sequence) = under_way.last() {
                        short.wait(sequence);
                        long.wait(sequence);
                    }
                }
                5 | 6 if !under_way.is_empty() => {
                    let sequence = under_way.swap_remove(rng.below(under_way.len() as u64) as usize);
                    let most = if rng.below(2) == 0 { 1000 } else { 150 };
                    let reply = vec![step as u8; 1 + rng.below(most) as usize];
                    short.answer(sequence, &reply, &mut blocks);
                    long.answer_any(sequence, &reply, &mut ReplyBlocks::default());
                }
                _ => {
                    let mark = rng.below(next + 2);
                    short.acknowledge(mark, &mut blocks);
                    long.acknowledge(mark, &mut ReplyBlocks::default());
                }
            }
            let sums = |of: &Session| {
                let bytes = [of.kept_bytes, of.promised_bytes, of.under_way_bytes, of.waits_bytes];
                (of.base, of.entries.len(), of.apart.len(), of.in_flight, bytes)
            };
            assert_eq!(sums(&short), sums(&long), "{seed}: {step}");
        }
        for &sequence in &under_way {
            short.answer_unkept(sequence);
            long.answer_unkept(sequence);
        }
        assert_eq!(short.record(), long.record(), "{seed}");
        long.in_flight
    };
    assert_eq!((0..64).map(steps).sum::<usize>(), 0);
}
