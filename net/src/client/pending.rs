//! Calls in progress, in order of sequence.
//!
//! Waiting placements may take hours. They do not hold the window back: once the server is known to have a
//! wait, the lowest unacknowledged sequence passes it. The reply to a later frame on the same connection
//! proves that. A server takes requests in order and refuses at once what it does not take.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use wharf_core::link::lock;

use super::ClientError;
use crate::protocol::{ACKNOWLEDGED_MAX, Acknowledged};

/// The encoded body of a reply, or why there is none.
pub(super) type RawReply = Result<Bytes, ClientError>;

/// The destination of a reply.
pub(super) enum Destination {
    Future(oneshot::Sender<RawReply>),
    /// For a request that waits, which does not count as in progress.
    Waiting(oneshot::Sender<RawReply>),
    Queue(Arc<Completions>, u64),
}

/// Hands replies to their callers, in order. Those that follow each other into one queue are put there at once.
pub(super) fn deliver(replies: impl IntoIterator<Item = (Destination, RawReply)>) {
    let mut run: Option<Arc<Completions>> = None;
    let mut together = Vec::new();
    for (destination, reply) in replies {
        match destination {
            // The caller may have stopped waiting.
            Destination::Future(sender) | Destination::Waiting(sender) => drop(sender.send(reply)),
            Destination::Queue(queue, tag) => {
                if let Some(before) = run.take_if(|run| !Arc::ptr_eq(run, &queue)) {
                    before.push_all(&mut together);
                }
                together.push(Completion { tag, reply });
                run.get_or_insert(queue);
            }
        }
    }
    if let Some(queue) = run {
        queue.push_all(&mut together);
    }
}

/// One reply taken from a [`Completions`] queue.
pub struct Completion {
    /// The tag given with the request.
    pub tag: u64,
    /// The encoded body. Read it with [`read_reply`](crate::protocol::Message::read_reply) of the request's kind. It shares
    /// memory with the replies that came with it, up to 64 KiB, so do not keep it for long.
    pub reply: Result<Bytes, ClientError>,
}

/// A queue of replies for a caller that drives many requests. It holds at most one reply per submitted
/// request, and the connection's in-flight limit bounds those.
#[derive(Default)]
pub struct Completions {
    queue: Mutex<Vec<Completion>>,
    filled: Notify,
}

impl Completions {
    fn push_all(&self, replies: &mut Vec<Completion>) {
        lock(&self.queue).append(replies);
        self.filled.notify_one();
    }

    /// Waits for a reply, then takes all available replies in order of arrival.
    pub async fn take(&self, into: &mut Vec<Completion>) {
        loop {
            let filled = self.filled.notified();
            {
                let mut queue = lock(&self.queue);
                if !queue.is_empty() {
                    into.append(&mut queue);
                    return;
                }
            }
            filled.await;
        }
    }
}

/// A call, from its sending to its reply.
pub(super) struct Call {
    pub(super) destination: Destination,
    /// The whole frame. It is sent again when the session is resumed on a new connection.
    frame: Box<[u8]>,
    /// The position of the last sending in the order of all sendings.
    sent: u64,
}

impl Call {
    pub(super) fn waits(&self) -> bool {
        matches!(self.destination, Destination::Waiting(_))
    }
}

/// Calls by sequence: a window that starts at the lowest unacknowledged one, and waits below it.
pub(super) struct PendingCalls {
    base: u64,
    calls: VecDeque<Option<Call>>,
    /// Waits that the server has, with sequences below `base`.
    apart: BTreeMap<u64, Call>,
    /// True if the server lets waits be acknowledged individually.
    exact: bool,
    /// Answered waits that are not acknowledged yet.
    answered: Vec<u64>,
    /// The number of calls sent so far, including repetitions.
    sent: u64,
    /// The largest `sent` of all answered calls.
    heard: u64,
}

impl PendingCalls {
    pub(super) fn new(exact: bool) -> Self {
        Self {
            base: 1,
            calls: VecDeque::new(),
            apart: BTreeMap::new(),
            exact,
            answered: Vec::new(),
            sent: 0,
            heard: 0,
        }
    }

    /// Returns the mark: all lower sequences are answered or wait at the server.
    pub(super) fn lowest_unacknowledged(&self) -> u64 {
        self.base
    }

    /// Returns the distance of the next sequence from the lowest unacknowledged one.
    pub(super) fn window(&self) -> usize {
        self.calls.len()
    }

    /// Returns the sequence of the next call.
    pub(super) fn next_sequence(&self) -> u64 {
        self.base + self.calls.len() as u64
    }

    /// Enters the call of the next sequence with its frame.
    pub(super) fn enter(&mut self, destination: Destination, frame: Box<[u8]>) {
        self.sent += 1;
        self.calls.push_back(Some(Call { destination, frame, sent: self.sent }));
    }

    /// Returns the waits that the next call should acknowledge. Call [`said`](Self::said) once a frame
    /// carries them.
    pub(super) fn to_acknowledge(&self) -> Option<Acknowledged> {
        let few = self.answered.len().min(ACKNOWLEDGED_MAX);
        (few > 0).then(|| Acknowledged { sequences: self.answered[..few].to_vec() })
    }

    /// Records that the next call carries these acknowledgements. It is sent again until it is answered.
    pub(super) fn said(&mut self, acknowledged: &Acknowledged) {
        self.answered.drain(..acknowledged.sequences.len());
    }

    /// Returns the frame of a call in progress, to send it again.
    pub(super) fn send_again(&mut self, sequence: u64) -> Option<&mut [u8]> {
        let call = match sequence.checked_sub(self.base) {
            Some(offset) => self.calls.get_mut(usize::try_from(offset).ok()?)?.as_mut()?,
            None => self.apart.get_mut(&sequence)?,
        };
        self.sent += 1;
        call.sent = self.sent;
        Some(&mut call.frame)
    }

    /// Returns the frames of all calls in progress, in order, to send them again.
    pub(super) fn send_all_again(&mut self) -> impl Iterator<Item = &[u8]> {
        let Self { calls, apart, sent, .. } = self;
        apart.values_mut().chain(calls.iter_mut().flatten()).map(|call| {
            *sent += 1;
            call.sent = *sent;
            &*call.frame
        })
    }

    /// Removes the call of a sequence if it is in progress.
    pub(super) fn leave(&mut self, sequence: u64) -> Option<Call> {
        let call = match sequence.checked_sub(self.base) {
            Some(offset) => self.calls.get_mut(usize::try_from(offset).ok()?)?.take(),
            None => self.apart.remove(&sequence),
        }?;
        self.heard = self.heard.max(call.sent);
        if self.exact && call.waits() {
            self.answered.push(sequence);
        }
        self.advance();
        Some(call)
    }

    /// Moves the window up to the first call that is in progress and not known to wait at the server.
    fn advance(&mut self) {
        while let Some(first) = self.calls.front() {
            let held = first.as_ref().is_some_and(|call| !call.waits() || call.sent >= self.heard);
            if held || (first.is_some() && !self.exact) {
                return;
            }
            if let Some(Some(wait)) = self.calls.pop_front() {
                self.apart.insert(self.base, wait);
            }
            self.base += 1;
        }
    }

    /// Removes all calls.
    pub(super) fn leave_all(&mut self) -> Vec<Call> {
        self.base = self.next_sequence();
        let apart = std::mem::take(&mut self.apart).into_values();
        apart.chain(self.calls.drain(..).flatten()).collect()
    }
}
