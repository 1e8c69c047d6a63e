//! Placements and groups whose wait is cancelled while a shard or a planner has them, at the connections of one I/O thread,
//! without sockets.
//!
//! Faults that these find: a cancellation that is answered, or recorded, before the outcome of its wait. A crash between
//! the two would let a request wait again whose client was told that it is cancelled. Also a stop that becomes the outcome
//! of a wait that was cancelled before.

use wharf_net::protocol::{CancelReply, GroupReply, PlaceReply, Reason, ReasonCode, Resume};
use wharf_net::session::connections::InputEnd;

use crate::harness::Frame;
use crate::harness::bed::{Bed, NOW, WAIT};

/// Checks that the wait was cancelled, and then that both cancellations say so. `reason` returns the reason of the wait's
/// reply.
#[track_caller]
fn assert_cancelled(replies: &[Frame], reason: impl Fn(&Frame) -> ReasonCode) {
    let sequences: Vec<u64> = replies.iter().map(|reply| reply.header.sequence).collect();
    assert_eq!(sequences, [WAIT, 2, 3]);
    assert_eq!(reason(&replies[0]), Reason::Cancelled.into());
    assert!(replies[1..].iter().all(|reply| reply.body::<CancelReply>().waited));
}

#[test]
fn a_cancellation_is_answered_after_its_wait_and_recorded_with_it() {
    let mut bed = Bed::new();
    let (key, _) = bed.connect(false, None);
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    assert_eq!(bed.write(), Vec::<Vec<u64>>::new(), "the shard has not answered yet");
    assert!(bed.replies(key).is_empty());
    bed.run_shard();
    assert_eq!(bed.write(), [[WAIT, 2, 3]]);
    assert_cancelled(&bed.replies(key), |reply| reply.body::<PlaceReply>().reason);
    bed.cancel(key, 4);
    bed.write();
    let late = bed.replies(key);
    assert!(!late[0].body::<CancelReply>().waited, "it waits no more");
}

#[test]
fn a_cancellation_keeps_its_outcome_when_its_connection_is_lost_before() {
    let mut bed = Bed::new();
    let (key, opened) = bed.connect(false, None);
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    bed.service.end_input(key, InputEnd::Lost, NOW);
    bed.service.written(key, 0, 0, true, NOW);
    assert!(!bed.service.is_settled(key), "three requests are under way");
    bed.run_shard();
    assert!(bed.service.is_settled(key));
    bed.service.close(key, false, NOW);
    let (key, _) = bed.connect(false, Some(Resume { session: opened.session, token: opened.token }));
    bed.place(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    bed.write();
    assert_cancelled(&bed.replies(key), |reply| reply.body::<PlaceReply>().reason);
}

/// The planner takes the group and its cancellation in one round, after the service was told to stop.
#[test]
fn a_group_that_was_cancelled_before_a_stop_stays_cancelled() {
    let mut bed = Bed::new();
    let (key, _) = bed.connect(false, None);
    bed.create_group(key);
    bed.cancel(key, 2);
    bed.cancel(key, 3);
    bed.service.end_input(key, InputEnd::Stopping, bed.now);
    assert_eq!(bed.write(), Vec::<Vec<u64>>::new(), "the planner has not answered yet");
    bed.run_planner();
    assert_eq!(bed.write(), [[WAIT, 2, 3]]);
    assert_cancelled(&bed.replies(key), |reply| reply.body::<GroupReply>().reason);
}
