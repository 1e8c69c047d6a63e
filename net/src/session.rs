//! The state that a server keeps for a client session. The scheme is RIFL (Lee et al., "Implementing
//! linearizability at large scale and low latency", SOSP 2015).
//!
//! A request is identified by `(session, sequence)`. Every frame carries the client's *mark*: the lowest
//! sequence that it has not acknowledged. The session keeps an outcome until the mark passes it. A repeated
//! request gets the kept outcome and is not executed again. A request below the mark is refused.
//!
//! A waiting placement may be outstanding for hours while thousands of requests come and go. A client can
//! declare in its hello that it acknowledges waits individually
//! ([`EXTENSION_ACKNOWLEDGED`](crate::protocol::EXTENSION_ACKNOWLEDGED)). Its mark may then pass waits. The
//! session keeps a passed wait *apart*, outside the window, until the client acknowledges it individually. Such a
//! wait goes on while its client is away, and after a restart (`waiting.rs`).
//!
//! Memory is bounded at all times. A request in progress counts with the largest reply that it may produce
//! ([`Weight`]), so the kept outcomes never exceed their limit.
//!
//! This module does no I/O. A session belongs to one connection at a time. [`DetachedSessions`] passes the
//! session on to the next connection of the same client.

pub mod connections;
mod detached;
pub use detached::DetachedSessions;
pub mod events;
mod kept;
pub use kept::ReplyBlocks;
pub mod registrar;
pub mod shared;
mod slot;
pub(crate) mod tags;
mod waiting;
mod waits_by_id;

use std::collections::{BTreeMap, VecDeque};

use wharf_core::ids::{SessionId, TenantId};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::state::{Deed, Origin, OutcomeRecord, SessionRecord, WaitRecord};

use crate::limits::HELD_PART;
use crate::protocol::{
    APART_MAX, SESSION_KEPT_BYTES_MAX, SESSION_WAITS_BYTES_MAX, SessionToken, UNACKNOWLEDGED_MAX,
};
pub use crate::weight::Weight;
use kept::KeptReply;

/// The state of one sequence of a session.
#[derive(Debug)]
enum Entry {
    /// Skipped so far, or answered without keeping the reply.
    Vacant,
    /// A wait that the client acknowledged. It is not executed again.
    Acknowledged,
    /// In progress.
    InFlight(Weight),
    /// Answered. Holds the encoded reply.
    Answered(KeptReply),
    /// In progress and waiting. The client will acknowledge it individually.
    Waiting(Weight),
    /// A wait that left its connection. It waits again at the next one, or if the client sends it again.
    Interrupted,
    /// An answered wait. Holds the encoded reply.
    WaitAnswered(Box<[u8]>),
    /// An earlier start began it and did these parts, which are not done again.
    Recovered(Box<[(u16, Deed)]>),
    /// The same of a wait that is acknowledged individually.
    WaitRecovered(Box<[(u16, Deed)]>),
}

/// What an earlier start did of a request, by part.
pub type Parts = Vec<(u16, Deed)>;

/// A sequence of a session.
#[derive(Debug)]
struct Slot {
    /// Hash of the request. 0 if there is none.
    fingerprint: u32,
    entry: Entry,
}

impl Slot {
    const VACANT: Self = Self { fingerprint: 0, entry: Entry::Vacant };
}

// A window has one for each request that was not acknowledged, and each request writes it three times.
const _: () = assert!(size_of::<Slot>() == 32);

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    /// Execute the request.
    New,
    /// The request is in progress. Its reply will follow.
    UnderWay,
    /// The request was answered. Send this reply again.
    Answered(&'a [u8]),
    /// Another request had this sequence.
    Reused,
    /// The request was acknowledged and its outcome dropped. It is not executed again.
    Stale,
    /// The sequence is too far ahead, or too many bytes are kept. The client must acknowledge replies first.
    OutOfWindow,
}

/// The state of one client session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    token: SessionToken,
    /// All sequences below this one are acknowledged.
    base: u64,
    /// The entries from `base` on.
    entries: VecDeque<Slot>,
    /// Waits with a sequence below `base`.
    apart: BTreeMap<u64, Slot>,
    /// The placements that wait, and those that waited and whose reply is not recorded whole.
    waits: BTreeMap<u64, WaitRecord>,
    /// What an earlier start did of requests that are executed again.
    recovered: BTreeMap<u64, Parts>,
    /// True if the client acknowledges waits individually.
    exact: bool,
    in_flight: usize,
    /// Bytes of the kept outcomes, without those of waits.
    kept_bytes: usize,
    /// Bytes that requests in progress may add to `kept_bytes`.
    promised_bytes: usize,
    /// Bytes of the requests in progress and of their replies, without waits.
    under_way_bytes: usize,
    /// Bytes of the waits and of their replies, including kept outcomes of answered waits.
    waits_bytes: usize,
    /// It may hold only a part of what it otherwise may, because all sessions together hold too much.
    is_tight: bool,
}

/// Marks a token as that of a tenant's session. The last two bytes are the tenant's number; all others are secret.
pub(crate) fn of_tenant(mut token: SessionToken, tenant: TenantId) -> SessionToken {
    let (_, last) = token.split_last_chunk_mut().expect("a token has 16 bytes");
    *last = tenant.0.to_le_bytes();
    token
}

/// Returns whether a token is that of a session of this tenant.
pub(crate) fn is_of_tenant(token: &SessionToken, tenant: TenantId) -> bool {
    of_tenant(*token, tenant) == *token
}

impl Session {
    /// Returns who it acts for. A session keeps its tenant over restarts, because its token does.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        let (_, last) = self.token.split_last_chunk().expect("a token has 16 bytes");
        TenantId(u16::from_le_bytes(*last))
    }

    /// Creates a session whose first sequence is 1.
    #[must_use]
    pub fn new(id: SessionId, token: SessionToken) -> Self {
        Self {
            id,
            token,
            base: 1,
            entries: VecDeque::new(),
            apart: BTreeMap::new(),
            waits: BTreeMap::new(),
            recovered: BTreeMap::new(),
            exact: false,
            in_flight: 0,
            kept_bytes: 0,
            promised_bytes: 0,
            under_way_bytes: 0,
            waits_bytes: 0,
            is_tight: false,
        }
    }

    /// Returns the session's id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the token that resumes the session.
    #[must_use]
    pub fn token(&self) -> SessionToken {
        self.token
    }

    /// Returns the number of requests in progress.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the bytes of the requests in progress and of their possible replies, without waits.
    #[must_use]
    pub fn under_way_bytes(&self) -> usize {
        self.under_way_bytes
    }

    /// Returns the bytes of all that it holds: requests in progress with their possible replies, waits, kept outcomes, and the
    /// window.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.under_way_bytes + self.all_kept_bytes() + self.entries.capacity() * size_of::<Slot>()
    }

    /// Sets whether it may hold only a part of what it otherwise may. What it already holds stays.
    pub fn set_tight(&mut self, is_tight: bool) {
        self.is_tight = is_tight;
    }

    /// Returns what is left of a bound.
    #[inline]
    pub(super) fn bound(&self, bytes: usize) -> usize {
        if self.is_tight { bytes / HELD_PART } else { bytes }
    }

    /// Returns the bytes of all kept outcomes, including those of waits.
    fn all_kept_bytes(&self) -> usize {
        self.kept_bytes + self.waits_bytes
    }

    /// Returns the kept bytes plus those of the window. A client that skips sequences makes the window long
    /// without any outcome.
    fn detached_bytes(&self) -> usize {
        let waits: usize = self.waits.values().map(|wait| wait.request.len()).sum();
        self.all_kept_bytes() + waits + self.entries.capacity() * size_of::<Slot>()
    }

    /// Frees the memory of vacant entries at the end of the window.
    fn trim_window(&mut self) {
        while matches!(self.entries.back(), Some(Slot { entry: Entry::Vacant, .. })) {
            self.entries.pop_back();
        }
        self.entries.shrink_to_fit();
    }

    /// Returns whether requests in progress have reserved all the room for outcomes. Answering them may free
    /// some of it without an acknowledgement.
    #[must_use]
    pub fn is_full_of_promises(&self) -> bool {
        self.promised_bytes > 0 && self.kept_bytes + self.promised_bytes >= self.bound(SESSION_KEPT_BYTES_MAX)
    }

    /// Lets the mark pass waits: the client acknowledges waits individually.
    pub fn acknowledges_exactly(&mut self) {
        self.exact = true;
    }

    /// Drops the outcomes below `lowest_unacknowledged`. A request in progress is never dropped. A mark
    /// beyond such a request is a client error and moves only up to it, unless the request is a wait
    /// acknowledged individually. What the outcomes were kept in goes to `blocks`.
    pub fn acknowledge(&mut self, lowest_unacknowledged: u64, blocks: &mut ReplyBlocks) {
        let lowest_unacknowledged =
            lowest_unacknowledged + u64::from(is_planted(PlantedBug::OutcomeForgottenEarly));
        while self.base < lowest_unacknowledged {
            // Nearly always, it was answered and does not wait.
            if let Some(Slot { entry: Entry::Answered(_), .. }) = self.entries.front() {
                if let Some(Slot { entry: Entry::Answered(reply), .. }) = self.entries.pop_front() {
                    self.kept_bytes -= reply.bytes();
                    blocks.take_back(reply);
                }
                self.base += 1;
                continue;
            }
            match self.entries.front().map(|slot| &slot.entry) {
                Some(Entry::InFlight(_)) if !is_planted(PlantedBug::MarkPassesRequest) => return,
                Some(
                    Entry::Waiting(_) | Entry::Interrupted | Entry::WaitAnswered(_) | Entry::WaitRecovered(_),
                ) => {
                    if self.apart.len() >= APART_MAX {
                        return;
                    }
                    let wait = self.entries.pop_front().expect("it was looked at");
                    self.apart.insert(self.base, wait);
                    self.base += 1;
                }
                Some(_) => {
                    self.entries.pop_front();
                    self.base += 1;
                }
                None => self.base = lowest_unacknowledged,
            }
        }
    }

    /// Drops the outcome of the wait at `sequence`. The client has its reply. Returns whether there was one.
    pub fn acknowledge_wait(&mut self, sequence: u64) -> bool {
        let Some(entry) = self.entry_mut(sequence) else { return false };
        match entry {
            Entry::WaitAnswered(reply) => {
                let bytes = reply.len();
                *entry = Entry::Acknowledged;
                self.waits_bytes -= bytes;
            }
            // The client may have had the reply of an earlier start.
            Entry::Interrupted | Entry::WaitRecovered(_) => *entry = Entry::Acknowledged,
            // The client is wrong: there is no reply that it could have.
            _ => return false,
        }
        self.apart.remove(&sequence);
        self.waits.remove(&sequence);
        true
    }

    fn slot_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        match sequence.checked_sub(self.base) {
            Some(offset) => self.entries.get_mut(usize::try_from(offset).ok()?),
            None => self.apart.get_mut(&sequence),
        }
    }

    fn entry_mut(&mut self, sequence: u64) -> Option<&mut Entry> {
        self.slot_mut(sequence).map(|slot| &mut slot.entry)
    }

    /// Returns the origin of the first part of a request in progress.
    #[must_use]
    pub fn origin(&mut self, sequence: u64) -> Option<Origin> {
        let session = self.id;
        let mark = self.base;
        let Slot { fingerprint, entry } = self.slot_mut(sequence)?;
        let is_wait = matches!(entry, Entry::Waiting(_));
        Some(Origin {
            session,
            sequence,
            mark,
            fingerprint: *fingerprint,
            part: 0,
            is_wait,
            alternative: None,
        })
    }

    /// Returns whether an earlier start did something of a request that is executed again.
    #[inline]
    #[must_use]
    pub fn has_recovered(&self) -> bool {
        !self.recovered.is_empty()
    }

    /// Takes what an earlier start did of a request that is executed again.
    pub fn take_recovered(&mut self, sequence: u64) -> Parts {
        if self.recovered.is_empty() {
            return Parts::new();
        }
        self.recovered.remove(&sequence).unwrap_or_default()
    }

    /// Returns the session as it is stored. Nothing may be in progress.
    #[must_use]
    pub fn record(&self) -> SessionRecord {
        assert!(self.in_flight == 0, "session {} is stored with requests in progress", self.id);
        let window = (self.base..).zip(&self.entries);
        let all = self.apart.iter().map(|(&sequence, slot)| (sequence, slot)).chain(window);
        let record = |(sequence, slot): (u64, &Slot)| {
            let wait = self.waits.get(&sequence).cloned();
            Some((sequence, OutcomeRecord { wait, ..slot.record()? }))
        };
        let outcomes = all.filter_map(record).collect();
        SessionRecord { id: self.id, token: self.token, mark: self.base, outcomes }
    }

    /// Creates a session from its record.
    #[must_use]
    pub fn restore(record: SessionRecord) -> Self {
        let SessionRecord { id, token, mark, outcomes } = record;
        let mut session = Self { base: mark.max(1), ..Self::new(id, token) };
        for (sequence, mut record) in outcomes {
            // The status of a group that was placed is shown when its client asks again. It does not wait any more.
            let wait = record.wait.take().filter(|_| !record.outcome.is_group());
            session.waits.extend(wait.map(|wait| (sequence, wait)));
            let slot = Slot::restore(record);
            match &slot.entry {
                Entry::Answered(reply) => session.kept_bytes += reply.bytes(),
                Entry::WaitAnswered(reply) => session.waits_bytes += reply.len(),
                _ => {}
            }
            let Some(offset) = sequence.checked_sub(session.base) else {
                session.apart.insert(sequence, slot);
                continue;
            };
            // A record is not larger than the window that it was written from.
            let offset = usize::try_from(offset).expect("the window is small");
            assert!(offset < UNACKNOWLEDGED_MAX as usize, "sequence {sequence} is beyond the window");
            session.entries.resize_with(session.entries.len().max(offset + 1), || Slot::VACANT);
            session.entries[offset] = slot;
        }
        session
    }

    /// Sets the weight of the request at `sequence`, which is in progress, until it is answered.
    pub fn weigh(&mut self, sequence: u64, weight: Weight) {
        let Some(entry) = self.entry_mut(sequence) else { return };
        let (Entry::InFlight(known) | Entry::Waiting(known)) = entry else { return };
        let waits = known.waits;
        let before = std::mem::replace(known, Weight { waits, ..weight });
        self.take_off(before);
        self.put_on(Weight { waits, ..weight });
    }

    #[inline]
    fn put_on(&mut self, weight: Weight) {
        if weight.waits {
            self.waits_bytes += weight.bytes();
        } else {
            self.under_way_bytes += weight.bytes();
            self.promised_bytes += weight.kept_bytes();
        }
    }

    #[inline]
    fn take_off(&mut self, weight: Weight) {
        if weight.waits {
            self.waits_bytes -= weight.bytes();
        } else {
            self.under_way_bytes -= weight.bytes();
            self.promised_bytes -= weight.kept_bytes();
        }
    }

    /// Returns whether the request at `sequence`, which is in progress, may wait. It may if it and its
    /// outcome fit into the room for waits.
    #[must_use]
    pub fn can_wait(&mut self, sequence: u64) -> bool {
        let most = self.bound(SESSION_WAITS_BYTES_MAX);
        match self.entry_mut(sequence) {
            // One may wait in any case, so that nobody is kept from it by what others hold.
            Some(&mut Entry::InFlight(weight)) => {
                self.waits_bytes == 0 || self.waits_bytes + weight.bytes() <= most
            }
            // An interrupted wait is already counted.
            _ => self.waits_bytes <= most,
        }
    }

    /// Turns the request at `sequence`, which is in progress, into a wait.
    pub fn wait(&mut self, sequence: u64) {
        let exact = self.exact;
        let Some(entry) = self.entry_mut(sequence) else { return };
        let &mut Entry::InFlight(weight) = entry else { return };
        let waiting = Weight { waits: true, ..weight };
        *entry = if exact { Entry::Waiting(waiting) } else { Entry::InFlight(waiting) };
        self.take_off(weight);
        self.put_on(waiting);
    }

    /// Decides what to do with the request at `sequence`, whose hash is `fingerprint`. A new request is in progress
    /// afterwards.
    pub fn admit(&mut self, sequence: u64, fingerprint: u32) -> Admission<'_> {
        let Some(offset) = sequence.checked_sub(self.base) else {
            let Some(slot) = self.apart.get_mut(&sequence) else { return Admission::Stale };
            self.recovered.extend(slot.take_recovered(fingerprint).map(|parts| (sequence, parts)));
            return slot.admit(fingerprint, &mut self.in_flight);
        };
        if offset >= u64::from(UNACKNOWLEDGED_MAX) {
            return Admission::OutOfWindow;
        }
        let offset = offset as usize;
        // The lowest unacknowledged request is always executed. Until it is answered, the client cannot
        // acknowledge the outcomes kept above it.
        let full = offset > 0 && self.kept_bytes + self.promised_bytes >= self.bound(SESSION_KEPT_BYTES_MAX);
        if full && matches!(self.entries.get(offset), None | Some(Slot { entry: Entry::Vacant, .. })) {
            return Admission::OutOfWindow;
        }
        while self.entries.len() <= offset {
            self.entries.push_back(Slot::VACANT);
        }
        let slot = &mut self.entries[offset];
        self.recovered.extend(slot.take_recovered(fingerprint).map(|parts| (sequence, parts)));
        slot.admit(fingerprint, &mut self.in_flight)
    }

    /// Does what [`admit`](Self::admit) does, and sets the weight of a new request, as [`weigh`](Self::weigh) does.
    #[inline]
    pub fn admit_weighed(&mut self, sequence: u64, fingerprint: u32, weight: Weight) -> Admission<'_> {
        // Nearly always, a request is the next one after those before it. Nothing can be known of it then.
        let is_next = self.entries.len() < UNACKNOWLEDGED_MAX as usize
            && self.base.checked_add(self.entries.len() as u64) == Some(sequence)
            && self.kept_bytes + self.promised_bytes < self.bound(SESSION_KEPT_BYTES_MAX);
        if is_next {
            self.entries.push_back(Slot { fingerprint, entry: Entry::InFlight(weight) });
            self.in_flight += 1;
            self.put_on(weight);
            return Admission::New;
        }
        if matches!(self.admit(sequence, fingerprint), Admission::New) {
            self.weigh(sequence, weight);
            return Admission::New;
        }
        // Nothing has begun, so a second look says the same.
        self.admit(sequence, fingerprint)
    }

    /// Keeps the outcome of a request in progress, in one of `blocks` if it is short.
    ///
    /// # Panics
    /// Panics if the sequence is not in progress.
    pub fn answer(&mut self, sequence: u64, reply: &[u8], blocks: &mut ReplyBlocks) {
        let slot = sequence.checked_sub(self.base).and_then(|offset| self.entries.get_mut(offset as usize));
        if let Some(Slot { entry, .. }) = slot
            && let &mut Entry::InFlight(weight) = entry
            && !weight.waits
            && self.waits.is_empty()
        {
            check_promise(sequence, weight, reply);
            let kept = blocks.keep(reply);
            self.kept_bytes += kept.bytes();
            *entry = Entry::Answered(kept);
            self.take_off(weight);
            self.in_flight -= 1;
            return;
        }
        self.answer_any(sequence, reply, blocks);
    }

    /// Keeps the outcome of any request in progress, also of one that waits.
    fn answer_any(&mut self, sequence: u64, reply: &[u8], blocks: &mut ReplyBlocks) {
        let (is_wait, weight) = self.leave(sequence);
        self.waits.remove(&sequence);
        check_promise(sequence, weight, reply);
        let answered = if is_wait {
            self.waits_bytes += reply.len();
            Entry::WaitAnswered(reply.into())
        } else {
            let kept = blocks.keep(reply);
            self.kept_bytes += kept.bytes();
            Entry::Answered(kept)
        };
        *self.entry_mut(sequence).expect("it was just there") = answered;
    }

    /// Ends a request in progress without keeping its outcome. If it is repeated, it is executed again. Used
    /// for read-only requests and for waits that leave their connection.
    ///
    /// # Panics
    /// Panics if the sequence is not in progress, like [`answer`](Self::answer).
    pub fn answer_unkept(&mut self, sequence: u64) {
        if self.leave(sequence).0 {
            *self.entry_mut(sequence).expect("it was just there") = Entry::Interrupted;
        }
    }

    /// Ends the progress of a request and leaves its entry vacant. Returns whether it was a wait that the client
    /// acknowledges individually, and its weight.
    fn leave(&mut self, sequence: u64) -> (bool, Weight) {
        let id = self.id;
        let entry = self.entry_mut(sequence);
        let (is_wait, weight) = match entry {
            Some(&mut Entry::InFlight(weight)) => (false, weight),
            Some(&mut Entry::Waiting(weight)) => (true, weight),
            other => panic!("sequence {sequence} of session {id} is {other:?}, not under way"),
        };
        *self.entry_mut(sequence).expect("it was just there") = Entry::Vacant;
        self.take_off(weight);
        self.in_flight -= 1;
        (is_wait, weight)
    }
}

/// Checks that a reply is not longer than was promised. Callers that set no weight have a weight of 0.
fn check_promise(sequence: u64, weight: Weight, reply: &[u8]) {
    let length = reply.len();
    let is_kept = weight.bytes() == 0 || length <= weight.reply as usize;
    debug_assert!(is_kept, "the reply to {sequence} has {length} bytes: more than {weight:?}");
}

#[cfg(test)]
mod tests;
