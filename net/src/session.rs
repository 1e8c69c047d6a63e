//! What a server remembers of a client session (the RIFL scheme: Lee et al., "Implementing
//! linearizability at large scale and low latency", SOSP 2015).
//!
//! A request is `(session, sequence)`. Its outcome is kept until the client acknowledges it by
//! the lowest unacknowledged sequence that every frame carries. A repeated request is answered
//! with the kept outcome and is not done again; one below the mark is refused.
//!
//! A placement that waits may be outstanding for hours while thousands of requests come and go. A
//! client that says in its hello that it acknowledges waits exactly
//! ([`EXTENSION_ACKNOWLEDGED`](crate::protocol::EXTENSION_ACKNOWLEDGED)) lets its mark pass them: a wait that the mark passes stands *apart*, outside the window, from its
//! beginning to the acknowledgement that names it. What is said of it is kept as long; a wait that
//! a lost connection interrupted may be asked again, whatever the mark is.
//!
//! State without I/O: a connection task owns one at a time, and hands it to the next connection
//! of the same client through [`DetachedSessions`].

use std::collections::{BTreeMap, VecDeque};

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::planted::{PlantedBug, is_planted};

use crate::protocol::{
    APART_MAX, DETACHED_KEPT_BYTES_MAX, SESSION_KEPT_BYTES_MAX, SessionToken, UNACKNOWLEDGED_MAX,
};

/// One sequence of a session.
#[derive(Debug)]
enum Entry {
    /// Skipped so far, or answered and not kept.
    Vacant,
    /// Under way.
    InFlight,
    /// Answered; the encoded reply.
    Answered(Box<[u8]>),
    /// Under way, waiting; to be acknowledged exactly once it is answered.
    Waiting,
    /// It waited when its connection was lost: asked again, it waits anew.
    Interrupted,
    /// A wait that was answered.
    WaitAnswered(Box<[u8]>),
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    /// Do it.
    New,
    /// It is under way: its reply will come.
    UnderWay,
    /// It was answered: say it again.
    Answered(&'a [u8]),
    /// It was acknowledged: its outcome is forgotten, and it is not done again.
    Stale,
    /// Too far ahead, or too much is kept: to be acknowledged first.
    OutOfWindow,
}

/// The state of one client session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    token: SessionToken,
    /// Everything below is acknowledged.
    base: u64,
    /// From `base` on.
    entries: VecDeque<Entry>,
    /// Waits below `base`.
    apart: BTreeMap<u64, Entry>,
    /// Whether the client acknowledges waits exactly.
    exact: bool,
    in_flight: usize,
    /// Bytes of the outcomes in `entries` and `apart`.
    kept_bytes: usize,
}

impl Session {
    /// A new session, its first sequence being 1.
    #[must_use]
    pub fn new(id: SessionId, token: SessionToken) -> Self {
        Self {
            id,
            token,
            base: 1,
            entries: VecDeque::new(),
            apart: BTreeMap::new(),
            exact: false,
            in_flight: 0,
            kept_bytes: 0,
        }
    }

    /// Which.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// What resumes it.
    #[must_use]
    pub fn token(&self) -> SessionToken {
        self.token
    }

    /// Requests under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The client acknowledges waits exactly: its mark may pass them.
    pub fn acknowledges_exactly(&mut self) {
        self.exact = true;
    }

    /// Forgets the outcomes below `lowest_unacknowledged`. A request under way is never
    /// forgotten: a mark beyond it is a fault of the client, and moves only up to it, unless it
    /// is a wait that is acknowledged exactly.
    pub fn acknowledge(&mut self, lowest_unacknowledged: u64) {
        let lowest_unacknowledged =
            lowest_unacknowledged + u64::from(is_planted(PlantedBug::OutcomeForgottenEarly));
        while self.base < lowest_unacknowledged {
            match self.entries.front() {
                Some(Entry::InFlight) => return,
                Some(Entry::Waiting | Entry::Interrupted | Entry::WaitAnswered(_)) => {
                    if self.apart.len() >= APART_MAX {
                        return;
                    }
                    let wait = self.entries.pop_front().expect("it was looked at");
                    self.apart.insert(self.base, wait);
                    self.base += 1;
                }
                Some(entry) => {
                    if let Entry::Answered(reply) = entry {
                        self.kept_bytes -= reply.len();
                    }
                    self.entries.pop_front();
                    self.base += 1;
                }
                None => self.base = lowest_unacknowledged,
            }
        }
    }

    /// Forgets the outcome of the wait of `sequence`, whose reply the client has.
    pub fn acknowledge_wait(&mut self, sequence: u64) {
        let Some(entry) = self.entry_mut(sequence) else { return };
        match entry {
            Entry::WaitAnswered(reply) => {
                let bytes = reply.len();
                *entry = Entry::Vacant;
                self.kept_bytes -= bytes;
            }
            Entry::Interrupted => *entry = Entry::Vacant,
            // A fault of the client: there is nothing that it could have.
            _ => return,
        }
        self.apart.remove(&sequence);
    }

    fn entry_mut(&mut self, sequence: u64) -> Option<&mut Entry> {
        match sequence.checked_sub(self.base) {
            Some(offset) => self.entries.get_mut(usize::try_from(offset).ok()?),
            None => self.apart.get_mut(&sequence),
        }
    }

    /// The request of `sequence`, which is under way, waits from now on.
    pub fn wait(&mut self, sequence: u64) {
        if self.exact
            && let Some(entry @ Entry::InFlight) = self.entry_mut(sequence)
        {
            *entry = Entry::Waiting;
        }
    }

    /// What to do with the request of `sequence`; a new one is under way from now on.
    pub fn admit(&mut self, sequence: u64) -> Admission<'_> {
        let Some(offset) = sequence.checked_sub(self.base) else {
            let apart = self.apart.get_mut(&sequence);
            return apart.map_or(Admission::Stale, |entry| entry.admit(&mut self.in_flight));
        };
        if offset >= u64::from(UNACKNOWLEDGED_MAX) {
            return Admission::OutOfWindow;
        }
        let offset = offset as usize;
        // The lowest unacknowledged request is always done: what is kept above it cannot be
        // acknowledged before.
        let full = offset > 0 && self.kept_bytes >= SESSION_KEPT_BYTES_MAX;
        if full && matches!(self.entries.get(offset), None | Some(Entry::Vacant)) {
            return Admission::OutOfWindow;
        }
        while self.entries.len() <= offset {
            self.entries.push_back(Entry::Vacant);
        }
        self.entries[offset].admit(&mut self.in_flight)
    }

    /// Keeps the outcome of a request under way.
    ///
    /// # Panics
    /// When that sequence is not under way: an outcome without its request.
    pub fn answer(&mut self, sequence: u64, reply: &[u8]) {
        let entry = self.leave(sequence);
        *entry = match entry {
            Entry::Waiting => Entry::WaitAnswered(reply.into()),
            _ => Entry::Answered(reply.into()),
        };
        self.kept_bytes += reply.len();
    }

    /// Ends a request under way without keeping its outcome: repeated, it is done again. For
    /// requests that only look, and for waits whose connection is lost.
    ///
    /// # Panics
    /// As [`answer`](Self::answer).
    pub fn answer_unkept(&mut self, sequence: u64) {
        let entry = self.leave(sequence);
        *entry = if matches!(entry, Entry::Waiting) { Entry::Interrupted } else { Entry::Vacant };
    }

    /// The entry of a request that is under way, and will not be from now on.
    fn leave(&mut self, sequence: u64) -> &mut Entry {
        let Self { id, base, entries, apart, in_flight, .. } = self;
        let entry = match sequence.checked_sub(*base) {
            Some(offset) => usize::try_from(offset).ok().and_then(|offset| entries.get_mut(offset)),
            None => apart.get_mut(&sequence),
        };
        match entry {
            Some(entry @ (Entry::InFlight | Entry::Waiting)) => {
                *in_flight -= 1;
                entry
            }
            other => panic!("sequence {sequence} of session {id} is {other:?}, not under way"),
        }
    }
}

impl Entry {
    fn admit(&mut self, in_flight: &mut usize) -> Admission<'_> {
        let begun = match self {
            Self::Vacant => Self::InFlight,
            Self::Interrupted => Self::Waiting,
            Self::InFlight | Self::Waiting => return Admission::UnderWay,
            Self::Answered(reply) | Self::WaitAnswered(reply) => return Admission::Answered(reply),
        };
        *self = begun;
        *in_flight += 1;
        Admission::New
    }
}

/// Sessions whose connection is gone, until their clients come back or others push them out.
#[derive(Debug)]
pub struct DetachedSessions {
    incarnation: Incarnation,
    opened: u64,
    sessions: BTreeMap<SessionId, Session>,
    /// In the order in which they were detached.
    order: VecDeque<SessionId>,
    /// Bytes of the outcomes that they keep.
    kept_bytes: usize,
}

/// Sessions that are kept for their clients to come back.
pub const DETACHED_SESSIONS_MAX: usize = 1024;

impl DetachedSessions {
    /// None yet.
    #[must_use]
    pub fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, opened: 0, sessions: BTreeMap::new(), order: VecDeque::new(), kept_bytes: 0 }
    }

    /// A new session.
    pub fn open(&mut self, token: SessionToken) -> Session {
        self.opened += 1;
        Session::new(SessionId { incarnation: self.incarnation, number: self.opened }, token)
    }

    /// Keeps a session whose connection is gone; the oldest go where it would be too many, or
    /// their outcomes too long.
    ///
    /// # Panics
    /// When it has requests under way: their outcomes would be lost.
    pub fn detach(&mut self, session: Session) {
        assert!(session.in_flight == 0, "session {} is detached with requests under way", session.id);
        self.kept_bytes += session.kept_bytes;
        self.order.push_back(session.id);
        self.sessions.insert(session.id, session);
        while self.order.len() > DETACHED_SESSIONS_MAX || self.kept_bytes > DETACHED_KEPT_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.take(oldest);
        }
    }

    fn take(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        self.kept_bytes -= session.kept_bytes;
        Some(session)
    }

    /// Takes a session up again, if it is kept and the token is its own.
    pub fn resume(&mut self, id: SessionId, token: &SessionToken) -> Option<Session> {
        if self.sessions.get(&id)?.token != *token {
            return None;
        }
        self.order.retain(|&kept| kept != id);
        self.take(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new(SessionId { incarnation: Incarnation(1), number: 1 }, [7; 16])
    }

    #[test]
    fn a_request_is_done_once_and_answered_the_same() {
        let mut session = session();
        assert_eq!(session.admit(1), Admission::New);
        assert_eq!(session.admit(1), Admission::UnderWay);
        session.answer(1, b"yes");
        assert_eq!(session.admit(1), Admission::Answered(b"yes"));
        session.acknowledge(2);
        assert_eq!(session.admit(1), Admission::Stale);
        assert_eq!(session.admit(0), Admission::Stale);
    }

    #[test]
    fn sequences_may_be_skipped_and_answered_in_any_order() {
        let mut session = session();
        assert_eq!(session.admit(3), Admission::New);
        assert_eq!(session.admit(1), Admission::New);
        session.answer(3, b"three");
        assert_eq!(session.in_flight(), 1);
        // The mark stops at what is under way.
        session.acknowledge(4);
        assert_eq!(session.admit(3), Admission::Answered(b"three"));
        session.answer(1, b"one");
        session.acknowledge(4);
        assert_eq!(session.admit(3), Admission::Stale);
    }

    #[test]
    fn the_window_bounds_what_a_client_can_make_the_server_keep() {
        let mut session = session();
        assert_eq!(session.admit(u64::from(UNACKNOWLEDGED_MAX)), Admission::New);
        assert_eq!(session.admit(u64::from(UNACKNOWLEDGED_MAX) + 1), Admission::OutOfWindow);
        assert_eq!(session.admit(u64::MAX), Admission::OutOfWindow);
    }

    /// A session whose client acknowledges waits exactly, with a wait at sequence 1.
    fn with_wait() -> Session {
        let mut session = session();
        session.acknowledges_exactly();
        assert_eq!(session.admit(1), Admission::New);
        session.wait(1);
        session
    }

    #[test]
    fn a_wait_stands_apart_while_the_window_moves_on() {
        let mut session = with_wait();
        for sequence in 2..100_000 {
            session.acknowledge(sequence);
            assert_eq!(session.admit(sequence), Admission::New);
            session.answer(sequence, b"done");
        }
        assert_eq!((session.entries.len(), session.apart.len(), session.in_flight()), (1, 1, 1));
        assert_eq!(session.admit(1), Admission::UnderWay);
        // Answered, it is kept until it is named, whatever the mark is.
        session.answer(1, b"placed");
        session.acknowledge(100_000);
        assert_eq!(session.admit(1), Admission::Answered(b"placed"));
        session.acknowledge_wait(1);
        assert_eq!(session.admit(1), Admission::Stale);
        assert_eq!((session.kept_bytes, session.apart.len()), (0, 0));
    }

    #[test]
    fn an_answered_wait_is_not_forgotten_by_a_mark_that_was_said_before() {
        let mut session = with_wait();
        session.answer(1, b"placed");
        session.acknowledge(2);
        assert_eq!(session.admit(1), Admission::Answered(b"placed"));
        session.acknowledge_wait(1);
        assert_eq!(session.admit(1), Admission::Stale);
        // Named before the mark passes it, it is forgotten with the others.
        let mut session = with_wait();
        session.answer(1, b"placed");
        session.acknowledge_wait(1);
        session.acknowledge(2);
        assert_eq!(session.admit(1), Admission::Stale);
        assert_eq!(session.kept_bytes, 0);
    }

    #[test]
    fn an_interrupted_wait_may_be_asked_again_whatever_the_mark_is() {
        let mut session = with_wait();
        session.answer_unkept(1);
        session.acknowledge(50);
        assert_eq!((session.in_flight(), session.admit(1)), (0, Admission::New));
        session.acknowledge_wait(1);
        assert_eq!(session.admit(1), Admission::UnderWay, "what is under way cannot be acknowledged");
        session.answer(1, b"placed");
        assert_eq!(session.admit(1), Admission::Answered(b"placed"));
    }

    #[test]
    fn waits_apart_are_bounded_and_others_are_as_they_were() {
        let mut session = session();
        session.acknowledges_exactly();
        for sequence in 1..=APART_MAX as u64 + 1 {
            session.acknowledge(sequence);
            assert_eq!(session.admit(sequence), Admission::New);
            session.wait(sequence);
        }
        let end = APART_MAX as u64 + u64::from(UNACKNOWLEDGED_MAX);
        session.acknowledge(end);
        assert_eq!(session.base, APART_MAX as u64 + 1, "the last one pins the window");
        assert_eq!(session.admit(end + 1), Admission::OutOfWindow);
        // A client that does not acknowledge waits exactly has none apart.
        let mut session = self::session();
        assert_eq!(session.admit(1), Admission::New);
        session.wait(1);
        session.acknowledge(2);
        assert_eq!(session.admit(1), Admission::UnderWay);
        assert_eq!(session.base, 1);
    }

    #[test]
    fn sessions_are_resumed_by_their_token_and_pushed_out_in_order() {
        let mut detached = DetachedSessions::new(Incarnation(1));
        let first = detached.open([1; 16]);
        let id = first.id();
        detached.detach(first);
        assert!(detached.resume(id, &[2; 16]).is_none());
        let first = detached.resume(id, &[1; 16]).unwrap();
        assert!(detached.resume(id, &[1; 16]).is_none());
        detached.detach(first);
        for _ in 0..DETACHED_SESSIONS_MAX {
            let other = detached.open([3; 16]);
            detached.detach(other);
        }
        assert!(detached.resume(id, &[1; 16]).is_none());
    }

    #[test]
    fn what_only_looks_is_not_kept_and_done_again() {
        let mut session = session();
        assert_eq!(session.admit(1), Admission::New);
        assert_eq!(session.admit(1), Admission::UnderWay);
        session.answer_unkept(1);
        assert_eq!((session.in_flight(), session.kept_bytes), (0, 0));
        assert_eq!(session.admit(1), Admission::New);
        session.answer_unkept(1);
        session.acknowledge(2);
        assert_eq!(session.admit(1), Admission::Stale);
    }

    #[test]
    fn kept_bytes_are_bounded_until_the_client_acknowledges() {
        let mut session = session();
        let reply = vec![0; SESSION_KEPT_BYTES_MAX / 2];
        for sequence in 2..=4 {
            assert_eq!(session.admit(sequence), Admission::New);
        }
        session.answer(2, &reply);
        session.answer(3, &reply);
        // What is under way or answered stays so; what is new must wait.
        assert_eq!(session.admit(4), Admission::UnderWay);
        assert_eq!(session.admit(2), Admission::Answered(&reply));
        assert_eq!(session.admit(5), Admission::OutOfWindow);
        // The lowest is done: without it, nothing could be acknowledged.
        assert_eq!(session.admit(1), Admission::New);
        session.answer(1, b"one");
        assert_eq!(session.admit(5), Admission::OutOfWindow);
        session.acknowledge(3);
        assert_eq!(session.admit(5), Admission::New);
    }

    #[test]
    fn detached_sessions_are_pushed_out_by_the_bytes_that_they_keep() {
        let mut detached = DetachedSessions::new(Incarnation(1));
        let mut full = || {
            let mut session = detached.open([1; 16]);
            assert_eq!(session.admit(1), Admission::New);
            session.answer(1, &vec![0; SESSION_KEPT_BYTES_MAX]);
            let id = session.id();
            detached.detach(session);
            id
        };
        let fit = DETACHED_KEPT_BYTES_MAX / SESSION_KEPT_BYTES_MAX;
        let ids: Vec<SessionId> = (0..=fit).map(|_| full()).collect();
        assert!(detached.resume(ids[0], &[1; 16]).is_none(), "the oldest went");
        for &id in &ids[1..] {
            assert!(detached.resume(id, &[1; 16]).is_some());
        }
        assert_eq!(detached.kept_bytes, 0);
    }

    #[test]
    #[should_panic(expected = "not under way")]
    fn an_outcome_without_its_request_stops_the_process() {
        session().answer(1, b"");
    }
}
