//! Sessions over lost connections: each request has one outcome, and no peer has more under way than it may.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{GroupId, SessionId};
use wharf_core::state::SessionRecord;
use wharf_net::codec::{FLAG_ERROR, decode_body, decode_frame};
use wharf_net::protocol::{FRAME_BYTES_MAX, Fault, GroupReply, Kind, Reason};

use super::{Verdict, ensure};

/// A request: its session and its sequence.
type Request = (SessionId, u64);

/// The first outcome of each request, as it was sent.
#[derive(Default)]
pub struct Outcomes(BTreeMap<Request, Vec<u8>>);

impl Outcomes {
    /// Returns whether `request` has an outcome.
    pub fn has(&self, request: Request) -> bool {
        self.0.contains_key(&request)
    }

    /// Records the frame of an outcome. Returns whether it is the first of its request.
    pub fn record(&mut self, request: Request, frame: &[u8]) -> bool {
        let is_first = !self.has(request);
        self.0.entry(request).or_insert_with(|| frame.to_vec());
        is_first
    }

    /// Checks that the frame of an outcome is the one that was recorded.
    ///
    /// # Errors
    /// Returns both frames if the request had another outcome before.
    pub fn check(&self, request: Request, frame: &[u8]) -> Verdict {
        let first = self.0.get(&request).map(Vec::as_slice);
        ensure(first.is_some_and(|first| is_same_answer(first, frame)), || {
            format!("{request:?} had the outcome {first:?}, and now {frame:?}")
        })
    }
}

/// Returns whether two frames are the same answer. The reply to a request about a group shows the group as it is at that time.
/// So after a crash it is the same if it names the same group, or says that the group is gone.
#[must_use]
pub fn is_same_answer(first: &[u8], again: &[u8]) -> bool {
    let group = |frame: &[u8]| {
        let frame = decode_frame(frame, FRAME_BYTES_MAX).ok().flatten()?;
        let kind = Kind::from_number(frame.header.kind);
        if !matches!(kind, Some(Kind::CreateGroup | Kind::GrowGroup)) || frame.header.flags & FLAG_ERROR != 0
        {
            return None;
        }
        let (reply, _) = decode_body::<GroupReply>(frame.payload).ok()?;
        Some((frame.header.sequence, reply.group.map(|group| group.id), reply.reason))
    };
    first == again
        || match (group(first), group(again)) {
            (Some((of, Some(shown), _)), Some((sequence, now, reason))) => {
                let is_gone = now.is_none() && reason == Reason::UnknownGroup.into();
                of == sequence && (now == Some(shown) || is_gone)
            }
            _ => false,
        }
}

/// Checks that no group was created by two requests.
///
/// # Errors
/// Returns both requests.
pub fn groups_have_one_request(group: GroupId, first: Request, now: Request) -> Verdict {
    ensure(first == now, || format!("group {group} was created by {first:?}, and by {now:?}"))
}

/// Checks that no more requests of a connection are in progress than its server's limit, without waits.
///
/// # Errors
/// Returns both numbers.
pub fn credits_are_kept(in_flight: usize, limit: usize) -> Verdict {
    ensure(in_flight <= limit, || format!("{in_flight} requests are under way, and {limit} may be"))
}

/// Checks that a hello was refused only because the service stops, or because a newer connection resumes its
/// session. Sessions are kept for their clients.
///
/// # Errors
/// Returns the fault.
pub fn sessions_are_kept(fault: &Fault, is_superseded: bool) -> Verdict {
    let is_stopping = fault.reason == Reason::ShuttingDown.into();
    let gives_way = is_superseded && fault.reason == Reason::SessionResumed.into();
    ensure(is_stopping || gives_way, || format!("a hello was refused: {fault}"))
}

/// Checks that a session that a start does not have is one of which no client has an outcome.
///
/// # Errors
/// Returns the session.
pub fn answered_sessions_are_kept(session: SessionId, has_outcomes: bool) -> Verdict {
    ensure(!has_outcomes, || format!("session {session} is gone, and its client has outcomes"))
}

/// Checks that a start after a clean stop has the sessions that the stop wrote.
///
/// # Errors
/// Returns the sessions that differ.
pub fn a_start_keeps_the_sessions(written: &[SessionRecord], read: &[SessionRecord]) -> Verdict {
    ensure(written == read, || {
        let differ = |one: &[SessionRecord], other: &[SessionRecord]| -> Vec<SessionRecord> {
            one.iter().filter(|session| !other.contains(session)).cloned().collect()
        };
        format!("written {:?}, read {:?}", differ(written, read), differ(read, written))
    })
}

/// Checks that a session continues on the newest connection that its client opened for it.
///
/// # Errors
/// Returns both connections.
pub fn newest_connection_is_welcome(welcome: u64, newest: u64) -> Verdict {
    ensure(welcome == newest, || {
        format!("connection {welcome} got the session, although connection {newest} is newer")
    })
}

/// Checks, at rest, that no request waits whose client was told that its wait has ended.
///
/// # Errors
/// Returns a request that waits.
pub fn cancels_are_kept(waiting: &BTreeSet<u64>, cancelled: &BTreeSet<u64>) -> Verdict {
    let both = waiting.intersection(cancelled).next();
    ensure(both.is_none(), || format!("request {both:?} waits, although its wait was cancelled"))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::sim::server::framed;
    use wharf_core::ids::Incarnation;
    use wharf_core::ids::TenantId;
    use wharf_net::codec::Header;
    use wharf_net::protocol::{GROUP_DEGRADED, GROUP_PLACED, GroupBody, WireGroup};

    #[test]
    pub fn a_hello_that_is_refused() {
        assert_eq!(sessions_are_kept(&Fault::new(Reason::ShuttingDown, "later"), false), Ok(()));
        assert!(sessions_are_kept(&Fault::new(Reason::UnknownSession, "forgotten"), true).is_err());
        let resumed = Fault::new(Reason::SessionResumed, "on a newer connection");
        assert_eq!(sessions_are_kept(&resumed, true), Ok(()));
        assert!(sessions_are_kept(&resumed, false).is_err());
    }

    #[test]
    pub fn a_session_that_a_start_lost() {
        let session = SessionId { incarnation: Incarnation(1), number: 1 };
        assert_eq!(answered_sessions_are_kept(session, false), Ok(()));
        assert!(answered_sessions_are_kept(session, true).is_err());
    }

    #[test]
    pub fn a_session_that_a_start_reads_differently() {
        let id = SessionId { incarnation: Incarnation(1), number: 1 };
        let session = SessionRecord { id, token: [0; 16], mark: 1, outcomes: BTreeMap::new() };
        let other = SessionRecord { mark: 2, ..session.clone() };
        let written = [session];
        assert_eq!(a_start_keeps_the_sessions(&written, &written), Ok(()));
        assert!(a_start_keeps_the_sessions(&written, &[other]).is_err());
        assert!(a_start_keeps_the_sessions(&written, &[]).is_err());
        assert!(a_start_keeps_the_sessions(&[], &written).is_err());
    }

    #[test]
    pub fn a_session_that_goes_to_an_older_connection() {
        assert_eq!(newest_connection_is_welcome(6, 6), Ok(()));
        assert!(newest_connection_is_welcome(5, 6).is_err());
    }

    #[test]
    pub fn an_outcome_that_changes() {
        let session = SessionId { incarnation: Incarnation(1), number: 1 };
        let mut outcomes = Outcomes::default();
        assert!(outcomes.record((session, 1), b"done"));
        assert!(!outcomes.record((session, 1), b"refused"));
        assert!(outcomes.record((session, 2), b"refused"));
        assert_eq!(outcomes.check((session, 1), b"done"), Ok(()));
        assert!(outcomes.check((session, 1), b"refused").is_err());
        assert!(outcomes.has((session, 2)) && !outcomes.has((session, 3)));
    }

    #[test]
    pub fn a_group_of_two_requests() {
        let session = SessionId { incarnation: Incarnation(1), number: 1 };
        let group = GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR };
        assert_eq!(groups_have_one_request(group, (session, 1), (session, 1)), Ok(()));
        assert!(groups_have_one_request(group, (session, 1), (session, 2)).is_err());
    }

    #[test]
    fn an_answer_that_shows_its_group_later() {
        let frame = |kind: Kind, sequence, reply: &GroupReply| {
            let header = Header { kind: kind.number(), sequence, ..Header::default() };
            framed(header, reply)
        };
        let shows = |number, state| {
            let id = WireGroup { incarnation: 1, number, tenant: 0 };
            GroupReply {
                group: Some(GroupBody { id, state, ..GroupBody::default() }),
                ..GroupReply::default()
            }
        };
        let gone = GroupReply { reason: Reason::UnknownGroup.into(), ..GroupReply::default() };
        let refused = GroupReply { reason: Reason::NoFitNow.into(), ..GroupReply::default() };
        let first = frame(Kind::CreateGroup, 1, &shows(1, GROUP_PLACED));
        assert!(is_same_answer(&first, &frame(Kind::CreateGroup, 1, &shows(1, GROUP_DEGRADED))));
        assert!(is_same_answer(&first, &frame(Kind::CreateGroup, 1, &gone)));
        for other in [shows(2, GROUP_PLACED), refused] {
            assert!(!is_same_answer(&first, &frame(Kind::CreateGroup, 1, &other)));
            assert!(!is_same_answer(&frame(Kind::CreateGroup, 1, &other), &first));
        }
        assert!(!is_same_answer(&first, &frame(Kind::CreateGroup, 2, &shows(1, GROUP_PLACED))));
        let shown = frame(Kind::GroupStatus, 1, &shows(1, GROUP_PLACED));
        assert!(!is_same_answer(&shown, &frame(Kind::GroupStatus, 1, &shows(1, GROUP_DEGRADED))));
    }

    #[test]
    pub fn a_wait_that_outlives_its_cancellation() {
        let waiting = BTreeSet::from([1, 2]);
        assert_eq!(cancels_are_kept(&waiting, &BTreeSet::from([3])), Ok(()));
        assert!(cancels_are_kept(&waiting, &BTreeSet::from([2, 3])).is_err());
    }

    #[test]
    pub fn a_request_beyond_the_limit() {
        assert_eq!(credits_are_kept(4, 4), Ok(()));
        assert!(credits_are_kept(5, 4).is_err());
    }
}
