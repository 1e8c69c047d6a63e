//! The state of one connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use wharf_core::group::ClientKey;
use wharf_core::hash::stable_hash;
use wharf_core::journal::JournalPort;
use wharf_core::limits::CANDIDATES_IN_FLIGHT_MAX;
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::state::{Origin, SessionChange};
use wharf_core::time::Time;

use super::events::{EventsOfConnection, EventsWanted};
use super::follow::{Follow, Followed};
use super::held::{Held, Leaves};
use super::hello::Greeting;
use super::input::Input;
use super::placing::{Learning, Submission};
use super::questions::Asker;
use crate::access::{Peer, Rights};
use crate::codec::{FLAG_ERROR, FLAG_REPLY, FrameRef, Header, encode_body, encode_frame, try_encode_frame};
use crate::limits::{LONG_REPLIES_MAX, REPLY_BUFFER_BYTES};
use crate::protocol::{
    BODY_VERSION, CONNECTION_HELD_BYTES_MAX, Fault, Kind, Reason, SESSION_WAITS_BYTES_MAX, VERSION_MIN,
};
use crate::session::shared::Hangup;
use crate::session::{Admission, ReplyBlocks, Session, Weight};

/// Why nothing more is read from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// The peer ended its stream. It does not return.
    Finished,
    /// The connection was lost. The peer may return.
    Lost,
    /// The service stops.
    Stopping,
    /// The time for the hello is over. A connection that is already open goes on.
    Late,
}

/// Replies for a peer.
#[derive(Debug, Default)]
pub struct Output {
    /// The frames.
    pub bytes: Vec<u8>,
    /// The number of replies in them that were not taken before.
    pub replies: u32,
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct WaitEntry {
    /// Its operation.
    pub(super) operation: usize,
    /// The requests in progress that cancel the wait. Cancellation remains the outcome even if the connection is
    /// lost before the reply.
    pub(super) cancels: Vec<Asker>,
}

/// How a wait ended.
#[derive(Debug)]
pub(super) struct WaitEnded {
    /// No reply is sent: the placement waits on at the next connection of the session. If it cannot, because its client
    /// does not acknowledge waits individually, a returning peer sends the request again.
    pub(super) is_forgotten: bool,
    /// The requests that cancelled the wait.
    pub(super) cancels: Vec<Asker>,
}

/// Number of candidates that requests in progress name.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Of requests that do not wait.
    pub(super) at_once: usize,
    /// Of requests that wait.
    pub(super) waiting: usize,
}

impl Candidates {
    pub(super) fn add(&mut self, count: usize, waits: bool) {
        *(if waits { &mut self.waiting } else { &mut self.at_once }) += count;
    }

    pub(super) fn remove(&mut self, count: usize, waits: bool) {
        *(if waits { &mut self.waiting } else { &mut self.at_once }) -= count;
    }
}

/// What a connection waits for before its next frame is executed.
pub(super) enum Stalled {
    /// Its session, which is still at another connection.
    Resume(Greeting),
    /// Room for a request at a planner.
    Submit(Submission),
    /// Turns at the port: as many requests wait for theirs as may.
    Turns,
    /// The registrar, to take its question.
    Ask,
    /// The registrar's answer, after which a request that waits can begin.
    Learn(Asker, Learning),
    /// The peer, to take replies before it gets a page of changes.
    Follow(Followed),
    /// The peer, to take replies before it gets a page of events.
    Events(EventsWanted),
}

/// Whether the outcome of a request is kept, to be sent again if the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// It is not: the request only read.
    Look,
    /// It is not: nothing was done, and the request may be sent again.
    ForNow,
    /// It is, and the recorded effects tell it.
    Told,
    /// It is, and the journal gets it.
    Recorded,
}

impl Kept {
    fn of(only_looks: bool, is_told: bool) -> Self {
        match (only_looks, is_told) {
            (true, _) => Self::Look,
            (false, true) => Self::Told,
            (false, false) => Self::Recorded,
        }
    }

    fn is_unkept(self) -> bool {
        matches!(self, Self::Look | Self::ForNow)
    }
}

/// A peer, and what it may do as of a version of all rights. The default is nobody, with no rights.
#[derive(Default)]
pub(super) struct Known {
    pub(super) peer: Peer,
    pub(super) rights: Arc<Rights>,
    pub(super) version: u64,
}

/// A connection.
pub(super) struct Connection {
    pub(super) hangup: Arc<dyn Hangup>,
    pub(super) peer: Peer,
    /// What the peer may do, as of `rights_version`.
    pub(super) rights: Arc<Rights>,
    /// The version of the rights of all peers that `rights` are from.
    pub(super) rights_version: u64,
    /// The requests in progress that are counted for the tenant.
    counted_in_flight: u64,
    /// The bytes that are counted for all connections of the I/O thread.
    counted_bytes: usize,
    /// The session, from the hello on.
    pub(super) session: Option<Session>,
    /// The version of the protocol that both sides speak, from the hello on.
    pub(super) version: u8,
    pub(super) input: Input,
    pub(super) input_end: Option<InputEnd>,
    /// `input` may have complete frames, which are executed before more is read.
    pub(super) has_frames: bool,
    /// Nothing more is read. The connection ends once everything is answered.
    pub(super) is_ending: bool,
    /// The fault of the peer for which the connection ends.
    pub(super) fault: Option<Fault>,
    /// The peer is gone without ending the stream, and may return.
    pub(super) is_lost: bool,
    /// Another connection wants the session, or the service stops: nothing waits here.
    pub(super) is_recalled: bool,
    /// The time at which the session ends because the peer of this lost connection stays away.
    pub(super) ends_at: Option<Time>,
    /// That time has come.
    pub(super) is_expired: bool,
    /// The peer accepts no more replies.
    is_broken: bool,
    pub(super) stalled: Option<Stalled>,
    /// Encoded replies that may leave.
    pub(super) out: Vec<u8>,
    /// Number of replies in `out`.
    replies: u32,
    /// Replies that wait until what they tell of is durable.
    held: Held,
    /// Number of replies in `out`, held, or being written.
    unwritten: u32,
    /// Bytes of those replies.
    unwritten_bytes: usize,
    /// Maximum number of unanswered requests.
    pub(super) in_flight_max: u32,
    /// Waiting requests, by sequence.
    pub(super) waits: BTreeMap<u64, WaitEntry>,
    pub(super) groups_waiting: u32,
    pub(super) candidates: Candidates,
    /// The follower state, if the connection follows changes.
    pub(super) follow: Option<Follow>,
    /// What it has asked, if the connection follows events.
    pub(super) events: Option<EventsOfConnection>,
    /// It is listed in the service's `touched`.
    pub(super) is_touched: bool,
    /// It is listed in the service's `holding`.
    pub(super) is_listed: bool,
    /// It is listed in the service's `fresh`.
    pub(super) is_fresh: bool,
}

impl Connection {
    pub(super) fn new(hangup: Arc<dyn Hangup>, journal: Option<JournalPort>, peer: Known) -> Self {
        let Known { peer, rights, version: rights_version } = peer;
        Self {
            hangup,
            peer,
            rights,
            rights_version,
            counted_in_flight: 0,
            counted_bytes: 0,
            session: None,
            version: VERSION_MIN,
            input: Input::default(),
            input_end: None,
            has_frames: false,
            is_ending: false,
            fault: None,
            is_lost: false,
            is_recalled: false,
            ends_at: None,
            is_expired: false,
            is_broken: false,
            stalled: None,
            out: Vec::new(),
            replies: 0,
            held: Held::new(journal),
            unwritten: 0,
            unwritten_bytes: 0,
            in_flight_max: 1,
            waits: BTreeMap::new(),
            groups_waiting: 0,
            candidates: Candidates::default(),
            follow: None,
            events: None,
            is_touched: false,
            is_listed: false,
            is_fresh: false,
        }
    }

    /// Creates the connection of a session that an earlier start had. It has no peer.
    pub(super) fn restored(hangup: Arc<dyn Hangup>, journal: Option<JournalPort>, session: Session) -> Self {
        Self {
            session: Some(session),
            input_end: Some(InputEnd::Lost),
            is_ending: true,
            is_lost: true,
            ..Self::new(hangup, journal, Known::default())
        }
    }

    /// Returns the session of an open connection.
    pub(super) fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("requests are executed after the hello")
    }

    /// Returns the key by which planners take turns between clients: the tenant, and the session over all its connections.
    pub(super) fn client(&mut self) -> ClientKey {
        let session = self.session();
        ClientKey { tenant: session.tenant(), number: session.id().number }
    }

    /// Returns the number of requests in progress.
    pub(super) fn in_flight(&self) -> usize {
        self.session.as_ref().map_or(0, Session::in_flight)
    }

    /// Returns the number of requests in progress that do not wait.
    fn in_flight_at_once(&self) -> u64 {
        self.in_flight().saturating_sub(self.waits.len()) as u64
    }

    /// Returns the number of requests in progress that are not counted for the tenant yet.
    pub(super) fn uncounted(&self) -> u64 {
        self.in_flight_at_once().saturating_sub(self.counted_in_flight)
    }

    /// Counts the requests in progress for the tenant, if there is one.
    pub(super) fn count_in_flight(&mut self) {
        if let Some(tenant) = &self.rights.tenant {
            let now = self.in_flight_at_once();
            if now != self.counted_in_flight {
                tenant.usage.set_in_flight(self.counted_in_flight, now);
                self.counted_in_flight = now;
            }
        }
    }

    /// Returns the bytes of all that the service holds for the peer, and those that were returned before.
    pub(super) fn count_bytes(&mut self) -> (usize, usize) {
        let now = self.session.as_ref().map_or(0, Session::held_bytes) + self.unwritten_bytes;
        (now, std::mem::replace(&mut self.counted_bytes, now))
    }

    /// Sets whether the peer may make the service hold only a part of what it otherwise may.
    pub(super) fn set_tight(&mut self, is_tight: bool) {
        if let Some(session) = &mut self.session {
            session.set_tight(is_tight);
        }
    }

    /// Replaces what the peer may do.
    pub(super) fn set_rights(&mut self, rights: Arc<Rights>, version: u64) {
        if let Some(tenant) = &self.rights.tenant {
            tenant.usage.set_in_flight(std::mem::take(&mut self.counted_in_flight), 0);
        }
        (self.rights, self.rights_version) = (rights, version);
        self.count_in_flight();
    }

    /// Answers `sequence` with `body`. Keeps the reply until it is acknowledged, unless the request is
    /// read-only, in one of `blocks`. Returns the kept reply if it must be recorded: there is a journal, and the recorded
    /// effects do not tell it (`is_told`).
    pub(super) fn reply<T: Serialize>(
        &mut self,
        kind: Kind,
        sequence: u64,
        body: &T,
        is_told: bool,
        blocks: &mut ReplyBlocks,
    ) -> Option<SessionChange> {
        self.reply_plain(kind, sequence, |out| encode_body(body, out), is_told, blocks)
    }

    /// Answers `sequence` with a body that `encode` writes, as [`reply`](Self::reply).
    pub(super) fn reply_plain(
        &mut self,
        kind: Kind,
        sequence: u64,
        encode: impl FnOnce(&mut Vec<u8>),
        is_told: bool,
        blocks: &mut ReplyBlocks,
    ) -> Option<SessionChange> {
        let kept = Kept::of(kind.only_looks(), is_told);
        self.reply_encoded(kind.number(), 0, sequence, encode, kept, blocks)
    }

    /// Answers `sequence` with a fault, as [`reply`](Self::reply). A fault after which the request may be sent again is not
    /// kept.
    pub(super) fn reply_fault(
        &mut self,
        kind: u16,
        sequence: u64,
        fault: &Fault,
        blocks: &mut ReplyBlocks,
    ) -> Option<SessionChange> {
        let only_looks = Kind::from_number(kind).is_some_and(Kind::only_looks);
        let is_for_now = fault.reason.known().is_some_and(Reason::is_for_now);
        let kept = if is_for_now { Kept::ForNow } else { Kept::of(only_looks, false) };
        self.reply_encoded(kind, FLAG_ERROR, sequence, |out| encode_body(fault, out), kept, blocks)
    }

    fn reply_encoded(
        &mut self,
        kind: u16,
        flags: u8,
        sequence: u64,
        encode: impl FnOnce(&mut Vec<u8>),
        kept: Kept,
        blocks: &mut ReplyBlocks,
    ) -> Option<SessionChange> {
        let flags = flags | FLAG_REPLY;
        let header = Header { kind, flags, version: BODY_VERSION, sequence, ..Header::default() };
        if self.out.capacity() == 0 {
            // Else it grows in steps, each of which takes memory.
            self.out.reserve(REPLY_BUFFER_BYTES);
        }
        let start = self.out.len();
        let encoded = try_encode_frame(header, &[], &mut self.out, encode);
        if let Err(error) = encoded {
            // Lists and batches are cut to fit. Any other reply that is too long becomes a fault instead of a
            // panic.
            let fault = Fault::new(Reason::LimitExceeded, format!("the reply does not fit: {error}"));
            let header = Header { flags: header.flags | FLAG_ERROR, ..header };
            encode_frame(header, &[], &mut self.out, |out| encode_body(&fault, out));
        }
        let session = self.session.as_mut().expect("requests are executed after the hello");
        let is_dropped = self.is_broken && is_planted(PlantedBug::OutcomeOfBrokenConnectionDropped);
        let mut change = None;
        if kept.is_unkept() || is_dropped {
            session.answer_unkept(sequence);
        } else {
            let reply = &self.out[start..];
            if self.held.has_journal() && kept == Kept::Recorded {
                let origin = session.origin(sequence).expect("it is in progress");
                change = Some(SessionChange::Answered(origin, reply.into()));
            }
            session.answer(sequence, reply, blocks);
        }
        let leaves = if kind == Kind::Events.number() || kept == Kept::ForNow {
            Leaves::AtOnce
        } else {
            Leaves::of(kept == Kept::Look)
        };
        self.count_unwritten(start, leaves);
        change
    }

    /// Returns the origin of what a request in progress does. `None` without a journal, and for requests that change
    /// nothing.
    pub(super) fn origin(&mut self, kind: Kind, sequence: u64) -> Option<Origin> {
        if !self.held.has_journal() || kind.only_looks() {
            return None;
        }
        self.session().origin(sequence)
    }

    /// Counts one more reply, which `out` has from `start` on. A peer that takes no replies gets none. A reply that
    /// tells of what is not durable yet is held.
    fn count_unwritten(&mut self, start: usize, leaves: Leaves) {
        if self.is_broken {
            return self.out.truncate(start);
        }
        self.unwritten += 1;
        self.unwritten_bytes += self.out.len() - start;
        if !self.held.hold(&mut self.out, start, leaves) {
            self.replies += 1;
        }
    }

    /// Returns whether there are replies whose position of the journal is not known yet.
    pub(super) fn has_fresh(&self) -> bool {
        self.held.has_fresh()
    }

    /// Sets the position of the journal that the last replies wait for.
    pub(super) fn assign(&mut self, position: u64) {
        self.held.assign(position);
    }

    /// Returns whether replies wait until what they tell of is durable.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the held replies that have a position of the journal, with it.
    pub(super) fn held(&self) -> Vec<(u64, Vec<u8>)> {
        self.held.assigned()
    }

    /// Lets the replies leave that tell of nothing after this position of the journal. Returns whether there were any.
    pub(super) fn release(&mut self, durable: u64) -> bool {
        let released = self.held.release(durable, &mut self.out);
        self.replies += released;
        released > 0
    }

    /// Lets the replies leave that need not wait while the storage is full. Returns whether there were any.
    pub(super) fn release_looks(&mut self) -> bool {
        let released = self.held.release_looks(&mut self.out);
        self.replies += released;
        released > 0
    }

    /// Sends a frame that is not the outcome of a request of the session. It promises nothing durable, so it need not wait
    /// while the storage is full.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        let start = self.out.len();
        self.out.extend_from_slice(bytes);
        self.count_unwritten(start, Leaves::DurableOrFull);
    }

    /// Returns whether a request is new and must be executed. The kept outcome of an answered request is sent again.
    ///
    /// # Errors
    /// Fails if the outcome was acknowledged and dropped, if another request had the sequence, or if the sequence is too
    /// far ahead.
    pub(super) fn admit(&mut self, frame: &FrameRef<'_>) -> Result<bool, Fault> {
        let Header { kind, sequence, .. } = frame.header;
        let weight = Weight::of(kind, frame.bytes);
        let session = self.session.as_mut().expect("the hello came before");
        match session.admit_weighed(sequence, fingerprint(frame), weight) {
            Admission::New => Ok(true),
            Admission::UnderWay => Ok(false),
            Admission::Answered(reply) => {
                let start = self.out.len();
                self.out.extend_from_slice(reply);
                self.count_unwritten(start, Leaves::Durable);
                Ok(false)
            }
            Admission::Stale => {
                let message = format!(
                    "sequence {sequence} was acknowledged (or is 0): it is not done again; sequences count from 1"
                );
                Err(Fault::new(Reason::StaleSequence, message))
            }
            Admission::Reused => {
                let message = format!(
                    "sequence {sequence} belongs to another request: a request that is sent again has the same kind and the same bytes after its header; give a new request the next sequence"
                );
                Err(Fault::new(Reason::SequenceReused, message))
            }
            Admission::OutOfWindow => {
                let message = format!(
                    "sequence {sequence} is too far ahead of what is acknowledged, or the replies kept since are too long: acknowledge replies, then ask again"
                );
                Err(Fault::new(Reason::SequenceOutOfWindow, message))
            }
        }
    }

    pub(super) fn take_output(&mut self, empty: Vec<u8>) -> Output {
        Output { bytes: std::mem::replace(&mut self.out, empty), replies: std::mem::take(&mut self.replies) }
    }

    /// Drops the held replies. The peer gets no more.
    pub(super) fn abandon_held(&mut self) {
        self.held.clear();
        self.is_listed = false;
        self.is_broken = true;
    }

    /// Counts down what the peer took. Replies that it has not taken limit what it may ask.
    pub(super) fn written(&mut self, replies: u32, bytes: usize, failed: bool) {
        self.unwritten -= replies;
        self.unwritten_bytes -= bytes;
        self.is_broken |= failed;
    }

    /// Returns whether the peer has taken so few replies that it gets no long one yet.
    pub(super) fn has_unwritten(&self) -> bool {
        self.unwritten >= LONG_REPLIES_MAX && !self.is_broken
    }

    /// Returns whether the next frame may be executed.
    pub(super) fn takes_frames(&self) -> bool {
        self.stalled.is_none() && !self.is_ending && !self.is_busy()
    }

    /// Returns whether the peer has asked as much as it may without taking replies.
    fn is_busy(&self) -> bool {
        let Some(session) = &self.session else { return false };
        let in_flight = session.in_flight() - self.waits.len();
        let unanswered = in_flight + self.unwritten as usize;
        let held = session.under_way_bytes() + self.unwritten_bytes;
        let is_full = unanswered >= self.in_flight_max as usize
            || self.candidates.at_once >= CANDIDATES_IN_FLIGHT_MAX
            || held >= session.bound(CONNECTION_HELD_BYTES_MAX)
            || session.is_full_of_promises();
        !self.is_broken && is_full && !is_planted(PlantedBug::CreditsIgnored)
    }

    /// Records that a request waits from now on as `operation`.
    pub(super) fn begins_wait(&mut self, sequence: u64, operation: usize) {
        self.waits.insert(sequence, WaitEntry { operation, cancels: Vec::new() });
        self.session().wait(sequence);
    }

    /// Ends the wait of a request. `is_taken_back` says that the wait was ended early and has no other
    /// outcome. A wait that its client cancelled, or a group that was removed, gets that as its outcome.
    pub(super) fn ends_wait(&mut self, sequence: u64, is_taken_back: bool) -> WaitEnded {
        let entry = self.waits.remove(&sequence);
        let cancels = entry.map(|entry| entry.cancels).unwrap_or_default();
        let is_stopping = self.input_end == Some(InputEnd::Stopping);
        let goes_on = self.is_lost || (is_stopping && self.session().keeps_wait(sequence));
        let is_forgotten = goes_on && is_taken_back && cancels.is_empty();
        if is_forgotten {
            self.session().answer_unkept(sequence);
        }
        WaitEnded { is_forgotten, cancels }
    }

    /// Weighs the request of `sequence` as one whose reply is the status of a group of `bundles` bundles.
    pub(super) fn expects_group(&mut self, sequence: u64, weight: Weight, bundles: usize) {
        self.session().weigh(sequence, weight.of_group(bundles));
    }

    /// Checks whether the session's waits leave room for the request of `sequence`.
    pub(super) fn take_wait_room(&mut self, sequence: u64) -> Result<(), Fault> {
        if self.session().can_wait(sequence) {
            return Ok(());
        }
        let most = self.session().bound(SESSION_WAITS_BYTES_MAX);
        let message = format!(
            "what waits at this session, and the replies that were not acknowledged of what waited, may take \
             {most} bytes together: acknowledge replies, cancel some waits, or ask again later"
        );
        Err(Fault::of_field(Reason::LimitExceeded, "mode", message))
    }
}

/// Returns the hash by which a repeated request is told from another one with the same sequence. It covers the kind and
/// everything after the header.
fn fingerprint(frame: &FrameRef<'_>) -> u32 {
    let hash = stable_hash(frame.payload) ^ u64::from(frame.header.kind).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash ^ hash >> 32) as u32
}
