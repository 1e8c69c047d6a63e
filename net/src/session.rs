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
//! Memory is bounded at all times, not only when a request comes: a request under way counts with all that its
//! reply may bring ([`Weight`]), so outcomes never take more than was left for them.
//!
//! State without I/O: a connection task owns one at a time, and hands it to the next connection
//! of the same client through [`DetachedSessions`].

pub mod registrar;
pub(crate) mod tags;

use std::collections::{BTreeMap, VecDeque};

use wharf_core::ids::{Incarnation, SessionId};
use wharf_core::planted::{PlantedBug, is_planted};

use crate::protocol::{
    APART_MAX, DETACHED_KEPT_BYTES_MAX, SESSION_KEPT_BYTES_MAX, SESSION_WAITS_BYTES_MAX, SessionToken,
    UNACKNOWLEDGED_MAX,
};
pub use crate::weight::Weight;

/// One sequence of a session.
#[derive(Debug)]
enum Entry {
    /// Skipped so far, or answered and not kept.
    Vacant,
    /// Under way.
    InFlight(Weight),
    /// Answered; the encoded reply.
    Answered(Box<[u8]>),
    /// Under way, waiting; to be acknowledged exactly once it is answered.
    Waiting(Weight),
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
    /// Bytes of the outcomes that are kept, without those of waits.
    kept_bytes: usize,
    /// Bytes that the requests under way may add to `kept_bytes`.
    promised_bytes: usize,
    /// Bytes of the requests under way and of their replies, without those that wait.
    under_way_bytes: usize,
    /// The same of those that wait, and the outcomes of waits that are kept.
    waits_bytes: usize,
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
            promised_bytes: 0,
            under_way_bytes: 0,
            waits_bytes: 0,
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

    /// Bytes of the requests under way and of the replies that they may bring, without those that wait.
    #[must_use]
    pub fn under_way_bytes(&self) -> usize {
        self.under_way_bytes
    }

    /// Bytes of the outcomes that are kept, those of waits included.
    fn all_kept_bytes(&self) -> usize {
        self.kept_bytes + self.waits_bytes
    }

    /// The same, and the bytes of the window: a client that skips sequences makes it long without an outcome.
    fn detached_bytes(&self) -> usize {
        self.all_kept_bytes() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Gives back memory behind the last request that came.
    fn trim_window(&mut self) {
        while matches!(self.entries.back(), Some(Entry::Vacant)) {
            self.entries.pop_back();
        }
        self.entries.shrink_to_fit();
    }

    /// Whether requests under way have taken all room that outcomes may have: some of it comes back when they
    /// are answered, without an acknowledgement.
    #[must_use]
    pub fn is_full_of_promises(&self) -> bool {
        self.promised_bytes > 0 && self.kept_bytes + self.promised_bytes >= SESSION_KEPT_BYTES_MAX
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
                Some(Entry::InFlight(_)) => return,
                Some(Entry::Waiting(_) | Entry::Interrupted | Entry::WaitAnswered(_)) => {
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
                self.waits_bytes -= bytes;
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

    /// The request of `sequence`, which is under way, takes `weight` until it is answered.
    pub fn weigh(&mut self, sequence: u64, weight: Weight) {
        let Some(entry) = self.entry_mut(sequence) else { return };
        let (Entry::InFlight(known) | Entry::Waiting(known)) = entry else { return };
        let waits = known.waits;
        let before = std::mem::replace(known, Weight { waits, ..weight });
        self.take_off(before);
        self.put_on(Weight { waits, ..weight });
    }

    fn put_on(&mut self, weight: Weight) {
        if weight.waits {
            self.waits_bytes += weight.bytes();
        } else {
            self.under_way_bytes += weight.bytes();
            self.promised_bytes += weight.kept_bytes();
        }
    }

    fn take_off(&mut self, weight: Weight) {
        if weight.waits {
            self.waits_bytes -= weight.bytes();
        } else {
            self.under_way_bytes -= weight.bytes();
            self.promised_bytes -= weight.kept_bytes();
        }
    }

    /// Whether the request of `sequence`, which is under way, may wait: whether there is room for it and for its
    /// outcome among those of all waits.
    #[must_use]
    pub fn can_wait(&mut self, sequence: u64) -> bool {
        match self.entry_mut(sequence) {
            Some(&mut Entry::InFlight(weight)) => {
                self.waits_bytes + weight.bytes() <= SESSION_WAITS_BYTES_MAX
            }
            // One that was interrupted counts already.
            _ => self.waits_bytes <= SESSION_WAITS_BYTES_MAX,
        }
    }

    /// The request of `sequence`, which is under way, waits from now on.
    pub fn wait(&mut self, sequence: u64) {
        let exact = self.exact;
        let Some(entry) = self.entry_mut(sequence) else { return };
        let &mut Entry::InFlight(weight) = entry else { return };
        let waiting = Weight { waits: true, ..weight };
        *entry = if exact { Entry::Waiting(waiting) } else { Entry::InFlight(waiting) };
        self.take_off(weight);
        self.put_on(waiting);
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
        let full = offset > 0 && self.kept_bytes + self.promised_bytes >= SESSION_KEPT_BYTES_MAX;
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
        let (left, weight) = self.leave(sequence);
        // A caller that weighs nothing has weights of 0.
        debug_assert!(
            weight.bytes() == 0 || reply.len() <= weight.reply as usize,
            "the reply to {sequence} has {} bytes: more than {weight:?}",
            reply.len()
        );
        let (entry, sum) = match left {
            Left::Waiting => (Entry::WaitAnswered(reply.into()), &mut self.waits_bytes),
            Left::InFlight => (Entry::Answered(reply.into()), &mut self.kept_bytes),
        };
        *sum += reply.len();
        *self.entry_mut(sequence).expect("it was just there") = entry;
    }

    /// Ends a request under way without keeping its outcome: repeated, it is done again. For
    /// requests that only look, and for waits whose connection is lost.
    ///
    /// # Panics
    /// As [`answer`](Self::answer).
    pub fn answer_unkept(&mut self, sequence: u64) {
        if let (Left::Waiting, _) = self.leave(sequence) {
            *self.entry_mut(sequence).expect("it was just there") = Entry::Interrupted;
        }
    }

    /// A request that is under way will not be from now on: its entry is vacant.
    fn leave(&mut self, sequence: u64) -> (Left, Weight) {
        let id = self.id;
        let entry = self.entry_mut(sequence);
        let (left, weight) = match entry {
            Some(&mut Entry::InFlight(weight)) => (Left::InFlight, weight),
            Some(&mut Entry::Waiting(weight)) => (Left::Waiting, weight),
            other => panic!("sequence {sequence} of session {id} is {other:?}, not under way"),
        };
        *self.entry_mut(sequence).expect("it was just there") = Entry::Vacant;
        self.take_off(weight);
        self.in_flight -= 1;
        (left, weight)
    }
}

/// As what a request was under way.
enum Left {
    InFlight,
    /// As a wait that is acknowledged exactly.
    Waiting,
}

impl Entry {
    fn admit(&mut self, in_flight: &mut usize) -> Admission<'_> {
        let begun = match self {
            Self::Vacant => Self::InFlight(Weight::default()),
            Self::Interrupted => Self::Waiting(Weight { waits: true, ..Weight::default() }),
            Self::InFlight(_) | Self::Waiting(_) => return Admission::UnderWay,
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
    pub fn detach(&mut self, mut session: Session) {
        assert!(session.in_flight == 0, "session {} is detached with requests under way", session.id);
        session.trim_window();
        self.kept_bytes += session.detached_bytes();
        self.order.push_back(session.id);
        self.sessions.insert(session.id, session);
        while self.order.len() > DETACHED_SESSIONS_MAX || self.kept_bytes > DETACHED_KEPT_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.take(oldest);
        }
    }

    fn take(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        self.kept_bytes -= session.detached_bytes();
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
mod tests;
