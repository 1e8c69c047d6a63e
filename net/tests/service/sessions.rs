//! Sessions through their public interface. Acknowledged outcomes are forgotten. Detached sessions are
//! evicted in the order in which they were last attached.

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::time::Time;
use wharf_net::limits::DETACHED_SESSIONS_MAX;
use wharf_net::protocol::{SESSION_WAITS_BYTES_MAX, UNACKNOWLEDGED_MAX};
use wharf_net::session::{Admission, DetachedSessions, ReplyBlocks, Session};

fn session() -> Session {
    let mut session = Session::new(SessionId { incarnation: Incarnation(1), number: 1 }, [7; 16]);
    session.acknowledges_exactly();
    session
}

/// Returns a session whose wait of sequence 1 lost its connection.
fn interrupted() -> Session {
    let mut session = session();
    assert_eq!(session.admit(1, 0), Admission::New);
    session.wait(1);
    session.answer_unkept(1);
    session
}

#[test]
fn an_interrupted_wait_that_is_acknowledged_is_not_done_again() {
    for mark in [1, 2, 50] {
        let mut session = interrupted();
        session.acknowledge(mark, &mut ReplyBlocks::default());
        session.acknowledge_wait(1);
        session.acknowledge(2, &mut ReplyBlocks::default());
        assert_eq!(session.admit(1, 0), Admission::Stale, "the mark was {mark}");
    }
}

#[test]
fn an_interrupted_wait_that_is_asked_again_waits_and_is_kept() {
    let mut session = interrupted();
    assert_eq!(session.admit(1, 0), Admission::New);
    assert_eq!(session.in_flight(), 1);
    // It waits as before, so the mark may pass it.
    session.acknowledge(2, &mut ReplyBlocks::default());
    assert_eq!(session.admit(u64::from(UNACKNOWLEDGED_MAX) + 1, 0), Admission::New);
    session.answer(1, b"placed", &mut ReplyBlocks::default());
    assert_eq!(session.admit(1, 0), Admission::Answered(b"placed"));
    assert_eq!(session.in_flight(), 1);
}

#[test]
fn what_an_acknowledged_wait_kept_makes_room() {
    let mut session = session();
    for sequence in 1..=2 {
        assert_eq!(session.admit(sequence, 0), Admission::New);
    }
    session.wait(2);
    session.answer(2, &vec![0; SESSION_WAITS_BYTES_MAX + 1], &mut ReplyBlocks::default());
    assert_eq!(session.admit(3, 0), Admission::New);
    assert!(!session.can_wait(3), "outcomes of waits have a bound of their own");
    session.acknowledge_wait(2);
    assert!(session.can_wait(3));
}

#[test]
fn what_is_no_wait_cannot_be_acknowledged_as_one() {
    let mut session = session();
    assert_eq!(session.admit(1, 0), Admission::New);
    session.acknowledge_wait(1);
    assert_eq!(session.admit(1, 0), Admission::UnderWay);
    session.answer(1, b"yes", &mut ReplyBlocks::default());
    session.acknowledge_wait(1);
    assert_eq!(session.admit(1, 0), Admission::Answered(b"yes"));
    session.acknowledge_wait(9);
    assert_eq!(session.admit(9, 0), Admission::New, "nothing was known of it");
}

#[test]
fn a_session_that_comes_and_goes_pushes_nobody_out() {
    let mut detached = DetachedSessions::new(Incarnation(1));
    let other = detached.open([1; 16]);
    let id = other.id();
    detached.detach(other, Time::default());
    let mut mine = detached.open([2; 16]);
    for _ in 0..2 * DETACHED_SESSIONS_MAX {
        let id = mine.id();
        detached.detach(mine, Time::default());
        mine = detached.resume(id, &[2; 16]).expect("it was just there");
    }
    assert!(detached.resume(id, &[1; 16]).is_some(), "two sessions are not too many");
}

#[test]
fn the_session_that_was_away_for_longest_goes_first() {
    let mut detached = DetachedSessions::new(Incarnation(1));
    let [first, second] = [0; 2].map(|_| {
        let session = detached.open([1; 16]);
        let id = session.id();
        detached.detach(session, Time::default());
        id
    });
    assert_ne!(first, second);
    // The older session was attached again, so now the other one has been away longest.
    let again = detached.resume(first, &[1; 16]).expect("kept");
    detached.detach(again, Time::default());
    for _ in 0..DETACHED_SESSIONS_MAX - 1 {
        let session = detached.open([1; 16]);
        detached.detach(session, Time::default());
    }
    assert!(detached.resume(second, &[1; 16]).is_none());
    assert!(detached.resume(first, &[1; 16]).is_some());
}
