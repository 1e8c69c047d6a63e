//! The peers of a bed: what each sent, and what it was told. This is the oracle: every request has one reply.

use std::collections::{BTreeMap, BTreeSet};

use wharf_net::codec::{FLAG_ERROR, FLAG_REPLY, FrameRef, decode_body, decode_frame, split_extensions};
use wharf_net::protocol::{
    FRAME_BYTES_MAX, Fault, GroupReply, HelloReply, JobReply, Kind, Message, MessageVisitor, PlaceBatchReply,
    PlaceReply, PlaceRequest, Reason, SessionToken, WireSession,
};
use wharf_net::session::connections::{ConnectionKey, InputEnd};

use super::bed::Bed;
use crate::bodies::Known;
use crate::finding::{Finding, found};
use crate::sim::checkers::Verdict;
use crate::sim::checkers::sessions::credits_are_kept;

/// The number of ids of each sort that are remembered.
const KNOWN_MAX: usize = 32;

/// What a run came to. A test asserts that runs get somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedCounts {
    /// Replies to requests.
    pub replies: u64,
    /// Replies that are no faults.
    pub done: u64,
    /// Placements that were granted.
    pub placed: u64,
    /// Groups that replies show.
    pub groups: u64,
    /// Placements in queues that were granted.
    pub in_queues: u64,
    /// Placements in queues that a cap refused.
    pub over_caps: u64,
    /// Jobs that were submitted.
    pub jobs: u64,
    /// Sessions that were resumed.
    pub resumed: u64,
}

/// A session, and the secret that resumes it.
pub(super) type Ticket = (WireSession, SessionToken);

/// One connection and its peer.
#[derive(Default)]
pub(super) struct Peer {
    /// The key at the service, until the connection is closed.
    pub(super) key: Option<ConnectionKey>,
    /// Bytes on their way to the service.
    pub(super) queued: Vec<u8>,
    /// Bytes that the service has, without the frames that were counted.
    received: Vec<u8>,
    /// What the service has is no frame.
    is_unreadable: bool,
    /// The hello was counted.
    has_greeted: bool,
    /// It acknowledges waits individually.
    pub(super) is_exact: bool,
    /// The frames after the hello, by sequence.
    asked: BTreeMap<u64, u32>,
    /// The sequences of those that place in a queue.
    in_queues: BTreeSet<u64>,
    /// The replies after that to the hello, by sequence.
    answered: BTreeMap<u64, u32>,
    pub(super) session: Option<Ticket>,
    pub(super) end: Option<InputEnd>,
    /// It takes no more replies: the next write fails.
    pub(super) is_deaf: bool,
    /// A write failed.
    has_failed: bool,
    /// Replies that were sent and that it has not taken: their number and bytes.
    untaken: (u32, usize),
    /// The next sequence.
    pub(super) next: u64,
    /// A frame that it may send again.
    pub(super) last: Vec<u8>,
}

impl Peer {
    pub(super) fn new(key: ConnectionKey, queued: Vec<u8>, is_exact: bool, next: u64) -> Self {
        Self { key: Some(key), queued, is_exact, next, ..Self::default() }
    }

    /// Returns the lowest sequence without a reply.
    pub(super) fn mark(&self) -> u64 {
        let open = self.asked.keys().find(|&sequence| *sequence > 0 && !self.answered.contains_key(sequence));
        open.copied().unwrap_or(self.next)
    }

    /// Counts the frames that the service has received whole.
    fn count_frames(&mut self) {
        let mut at = 0;
        while !self.is_unreadable {
            match decode_frame(&self.received[at..], FRAME_BYTES_MAX) {
                // It is not read, and nothing after it.
                Ok(Some(frame)) if frame.header.check_request().is_err() => self.is_unreadable = true,
                Ok(Some(frame)) => {
                    at += frame.bytes;
                    if std::mem::replace(&mut self.has_greeted, true) {
                        *self.asked.entry(frame.header.sequence).or_default() += 1;
                        if names_queue(&frame) {
                            self.in_queues.insert(frame.header.sequence);
                        }
                    }
                }
                Ok(None) => break,
                Err(_) => self.is_unreadable = true,
            }
        }
        self.received.drain(..at);
    }
}

/// All peers, in order of their connections.
#[derive(Default)]
pub(super) struct Peers {
    pub(super) all: Vec<Peer>,
    pub(super) known: Known,
    /// The sessions that can be resumed.
    pub(super) tickets: Vec<Ticket>,
    pub(super) counts: ServedCounts,
}

impl Peers {
    /// Returns the numbers of the connections that are not closed.
    pub(super) fn open(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|&at| self.all[at].key.is_some()).collect()
    }

    /// Gives the service up to `most` queued bytes of a peer, if it takes any now. Returns their number.
    pub(super) fn feed(&mut self, bed: &mut Bed, at: usize, most: usize) -> usize {
        let peer = &mut self.all[at];
        let Some(key) = peer.key else { return 0 };
        if bed.service.is_input_over(key) {
            peer.queued.clear();
        }
        if peer.queued.is_empty() || peer.end.is_some() || !bed.service.wants_input(key) {
            return 0;
        }
        let bytes: Vec<u8> = peer.queued.drain(..most.min(peer.queued.len())).collect();
        peer.received.extend_from_slice(&bytes);
        peer.count_frames();
        bed.service.receive(key, &bytes, bed.now);
        bytes.len()
    }

    /// Ends the input of a peer.
    pub(super) fn end(&mut self, bed: &mut Bed, at: usize, end: InputEnd) {
        let peer = &mut self.all[at];
        let Some(key) = peer.key.filter(|_| peer.end.is_none()) else { return };
        if !bed.service.is_input_over(key) {
            bed.service.end_input(key, end, bed.now);
        }
        // The time for the hello is over without a consequence for a connection that is open.
        if end != InputEnd::Late || bed.service.is_input_over(key) {
            peer.end = Some(end);
        }
    }

    /// Lets connections end that the service has hung up. Returns their number.
    pub(super) fn hang_up(&mut self, bed: &mut Bed) -> usize {
        let numbers = bed.hung_up.take();
        for &number in &numbers {
            let peer = &mut self.all[number];
            peer.is_deaf = true;
            let Some(key) = peer.key else { continue };
            bed.service.recall(key, bed.now);
            self.end(bed, number, InputEnd::Lost);
        }
        numbers.len()
    }

    /// Takes the replies to a peer, and checks them. Returns their number.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn take(&mut self, bed: &mut Bed, at: usize) -> Result<usize, Finding> {
        let peer = &self.all[at];
        let Some(key) = peer.key else { return Ok(0) };
        // What a lost connection had sent is executed without waiting for replies to be taken.
        if peer.end.is_none() && !peer.has_failed {
            credits_are_kept(bed.service.in_flight(key), bed.setup.in_flight_max as usize)?;
        }
        let output = bed.service.take_output(key);
        let mut rest = &output.bytes[..];
        let mut frames = 0;
        while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX).map_err(|error| error.to_string())? {
            rest = &rest[frame.bytes..];
            frames += 1;
            self.check_reply(at, &frame)?;
        }
        if frames != output.replies || !rest.is_empty() {
            return found(format!("{} replies are counted, and {frames} are sent", output.replies));
        }
        let peer = &mut self.all[at];
        peer.untaken = (peer.untaken.0 + output.replies, peer.untaken.1 + output.bytes.len());
        Ok(frames as usize)
    }

    /// Lets a peer take the replies that were sent, or none any more if it is deaf. Returns their number.
    pub(super) fn write(&mut self, bed: &mut Bed, at: usize) -> usize {
        let peer = &mut self.all[at];
        let Some(key) = peer.key else { return 0 };
        let (replies, bytes) = std::mem::take(&mut peer.untaken);
        if bytes > 0 {
            peer.has_failed |= peer.is_deaf;
            bed.service.written(key, replies, bytes, peer.is_deaf, bed.now);
        }
        replies as usize
    }

    /// Closes a connection if nothing of it is in progress.
    pub(super) fn close(&mut self, bed: &mut Bed, at: usize) -> usize {
        let peer = &mut self.all[at];
        let Some(key) = peer.key else { return 0 };
        let service = &mut bed.service;
        let ends = if peer.has_failed {
            service.is_settled(key) && !service.has_output(key)
        } else {
            service.is_done(key)
        };
        if !ends || peer.untaken.1 > 0 {
            return 0;
        }
        service.close(key, !peer.has_failed, bed.now);
        peer.key = None;
        1
    }

    /// Checks one reply, and remembers what it tells.
    fn check_reply(&mut self, at: usize, frame: &FrameRef<'_>) -> Verdict {
        let header = frame.header;
        let what = || format!("the reply {header:?} of connection {at}");
        if header.flags & FLAG_REPLY == 0 {
            return Err(format!("{} is not flagged as one", what()));
        }
        let kind = Kind::from_number(header.kind);
        if header.flags & FLAG_ERROR != 0 {
            let (_, read) = decode_body::<Fault>(frame.payload).map_err(|error| error.to_string())?;
            if read != frame.payload.len() {
                return Err(format!("{} has more than its fault", what()));
            }
        } else {
            let kind = kind.ok_or_else(|| format!("{} is of an unknown kind", what()))?;
            kind.visit(Readable(frame)).map_err(|error| format!("{} cannot be read: {error}", what()))?;
            self.counts.done += u64::from(kind != Kind::Hello);
            self.learn(at, kind, frame)?;
        }
        if kind == Some(Kind::Hello) && header.sequence == 0 {
            return Ok(());
        }
        self.counts.replies += 1;
        let replies = self.all[at].answered.entry(header.sequence).or_default();
        *replies += 1;
        let replies = *replies;
        let asked = self.all[at].asked.get(&header.sequence).copied().unwrap_or(0);
        // The fault for which a connection ends has no sequence.
        let has_more = header.sequence == 0 || self.was_asked_before(at, header.sequence);
        if replies > asked + u32::from(has_more) {
            return Err(format!("{} is number {replies} to {asked} requests", what()));
        }
        Ok(())
    }

    /// Returns whether another connection of the session sent a request of this sequence. Its wait goes on here.
    fn was_asked_before(&self, at: usize, sequence: u64) -> bool {
        let session = self.all[at].session;
        let others =
            self.all.iter().enumerate().filter(|&(other, peer)| other != at && peer.session == session);
        session.is_some() && others.into_iter().any(|(_, peer)| peer.asked.contains_key(&sequence))
    }

    /// Remembers the ids in a reply.
    fn learn(&mut self, at: usize, kind: Kind, frame: &FrameRef<'_>) -> Verdict {
        let payload = frame.payload;
        match kind {
            Kind::Hello => {
                let hello: HelloReply = read(payload)?;
                let ticket = (hello.session, hello.token);
                self.all[at].session = Some(ticket);
                self.counts.resumed += u64::from(hello.resumed);
                keep(&mut self.tickets, ticket);
                keep(&mut self.known.sessions, hello.session);
            }
            Kind::Place | Kind::Adopt | Kind::PlaceInto => {
                let reply: PlaceReply = read(payload)?;
                if kind == Kind::Place && self.all[at].in_queues.contains(&frame.header.sequence) {
                    self.counts.in_queues += u64::from(reply.placed.is_some());
                    self.counts.over_caps += u64::from(reply.reason == Reason::OverCap.into());
                }
                self.learn_placed(&reply);
            }
            Kind::PlaceBatch => {
                let batch: PlaceBatchReply = read(payload)?;
                batch.replies.iter().for_each(|reply| self.learn_placed(reply));
            }
            Kind::CreateGroup | Kind::GrowGroup | Kind::GroupStatus => {
                let reply: GroupReply = read(payload)?;
                self.counts.groups += u64::from(reply.group.is_some());
                reply.group.into_iter().for_each(|group| keep(&mut self.known.groups, group.id));
            }
            Kind::SubmitJob => {
                let reply: JobReply = read(payload)?;
                self.counts.jobs += u64::from(reply.reason.is_done());
            }
            _ => {}
        }
        Ok(())
    }

    fn learn_placed(&mut self, reply: &PlaceReply) {
        if let Some(placed) = &reply.placed {
            self.counts.placed += 1;
            keep(&mut self.known.allocations, placed.allocation);
        }
    }

    /// Checks that every request of a peer that listened to the end has a reply.
    ///
    /// # Errors
    /// The first request without one.
    pub(super) fn check_answered(&self) -> Verdict {
        for (number, peer) in self.all.iter().enumerate() {
            let listened = peer.end == Some(InputEnd::Finished) && !peer.is_deaf && peer.session.is_some();
            // Waits of a peer that sent what is no frame go on without it.
            if !listened || peer.is_unreadable {
                continue;
            }
            let mut asked = peer.asked.keys();
            // No request has sequence 0: its fault looks like that of a hello.
            let is_open = |sequence: &u64| *sequence > 0 && !peer.answered.contains_key(sequence);
            if let Some(sequence) = asked.find(|&sequence| is_open(sequence)) {
                return Err(format!("request {sequence} of connection {number} has no reply"));
            }
        }
        Ok(())
    }
}

/// Returns whether a request is a placement in a queue.
fn names_queue(frame: &FrameRef<'_>) -> bool {
    let is_place = frame.header.kind == Kind::Place.number();
    is_place && decode_body::<PlaceRequest>(frame.payload).is_ok_and(|(request, _)| !request.queue.is_empty())
}

fn keep<T>(list: &mut Vec<T>, one: T) {
    if list.len() >= KNOWN_MAX {
        list.remove(0);
    }
    list.push(one);
}

fn read<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T, Finding> {
    decode_body(payload).map(|(body, _)| body).map_err(|error| error.to_string().into())
}

/// Reads a reply whole.
struct Readable<'a>(&'a FrameRef<'a>);

impl MessageVisitor for Readable<'_> {
    type Output = Verdict;

    fn visit<M: Message>(self) -> Verdict {
        let Self(FrameRef { header, payload, .. }) = self;
        let (_, read) = decode_body::<M::Reply>(payload).map_err(|error| error.to_string())?;
        split_extensions(header, &payload[read..]).map(drop)
    }
}
