//! Calls under way, in order of sequence.
//!
//! Placements that wait, perhaps for hours, do not hold the window back: once the server is known
//! to have one, the lowest unacknowledged sequence passes it. It is known by the reply to anything
//! that was sent later on the same connection, for a server takes requests in order and says at
//! once which it does not take.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::ClientError;
use crate::protocol::{ACKNOWLEDGED_MAX, Acknowledged};

/// The encoded body of a reply, or why there is none.
pub(super) type RawReply = Result<Vec<u8>, ClientError>;

/// Where a reply goes.
pub(super) enum Destination {
    Future(oneshot::Sender<RawReply>),
    /// Of a request that waits, which does not count among those under way.
    Waiting(oneshot::Sender<RawReply>),
    Queue(Arc<Completions>, u64),
}

impl Destination {
    pub(super) fn deliver(self, reply: RawReply) {
        match self {
            // A caller that stopped waiting does not want it.
            Self::Future(sender) | Self::Waiting(sender) => drop(sender.send(reply)),
            Self::Queue(queue, tag) => queue.push(tag, reply),
        }
    }
}

/// One reply taken from a [`Completions`] queue.
pub struct Completion {
    /// As given with the request.
    pub tag: u64,
    /// The encoded body, to be read by [`decode_body`](crate::codec::decode_body).
    pub reply: Result<Vec<u8>, ClientError>,
}

/// A queue of replies for a caller that drives many requests. It holds at most the replies to
/// the requests that were given it, which the connection's in-flight limit bounds.
#[derive(Default)]
pub struct Completions {
    queue: Mutex<Vec<Completion>>,
    filled: Notify,
}

impl Completions {
    fn push(&self, tag: u64, reply: RawReply) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(Completion { tag, reply });
        self.filled.notify_one();
    }

    /// Waits until there is a reply, then takes all that are there, in order of arrival.
    pub async fn take(&self, into: &mut Vec<Completion>) {
        loop {
            let filled = self.filled.notified();
            {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// The whole frame: sent again when the session is resumed on a new connection.
    frame: Box<[u8]>,
    /// When it was sent last, in the order of sending.
    sent: u64,
}

impl Call {
    fn waits(&self) -> bool {
        matches!(self.destination, Destination::Waiting(_))
    }
}

/// Calls by sequence: a window that starts at the lowest unacknowledged one, and waits below it.
pub(super) struct PendingCalls {
    base: u64,
    calls: VecDeque<Option<Call>>,
    /// Waits that the server has; their sequences are below `base`.
    apart: BTreeMap<u64, Call>,
    /// Whether the server lets waits stand apart, and has them acknowledged exactly.
    exact: bool,
    /// Waits that were answered, to be acknowledged.
    answered: Vec<u64>,
    /// Calls sent so far.
    sent: u64,
    /// Of the calls that were answered, the one sent last.
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

    /// All sequences below are answered, or wait at the server.
    pub(super) fn lowest_unacknowledged(&self) -> u64 {
        self.base
    }

    /// How far the next sequence is ahead of the lowest unacknowledged.
    pub(super) fn window(&self) -> usize {
        self.calls.len()
    }

    /// The sequence of the next call.
    pub(super) fn next_sequence(&self) -> u64 {
        self.base + self.calls.len() as u64
    }

    /// Enters the call of the next sequence, with its frame.
    pub(super) fn enter(&mut self, destination: Destination, frame: Box<[u8]>) {
        self.sent += 1;
        self.calls.push_back(Some(Call { destination, frame, sent: self.sent }));
    }

    /// What the next call has to acknowledge besides; [`said`](Self::said) once it does.
    pub(super) fn to_acknowledge(&self) -> Option<Acknowledged> {
        let few = self.answered.len().min(ACKNOWLEDGED_MAX);
        (few > 0).then(|| Acknowledged { sequences: self.answered[..few].to_vec() })
    }

    /// The call that is entered next says this: it is sent again until it is answered.
    pub(super) fn said(&mut self, acknowledged: &Acknowledged) {
        self.answered.drain(..acknowledged.sequences.len());
    }

    /// The frame of a call under way, which is sent again.
    pub(super) fn send_again(&mut self, sequence: u64) -> Option<&mut [u8]> {
        let call = match sequence.checked_sub(self.base) {
            Some(offset) => self.calls.get_mut(usize::try_from(offset).ok()?)?.as_mut()?,
            None => self.apart.get_mut(&sequence)?,
        };
        self.sent += 1;
        call.sent = self.sent;
        Some(&mut call.frame)
    }

    /// The frames of all calls under way, in order, which are sent again.
    pub(super) fn send_all_again(&mut self) -> impl Iterator<Item = &[u8]> {
        let Self { calls, apart, sent, .. } = self;
        apart.values_mut().chain(calls.iter_mut().flatten()).map(|call| {
            *sent += 1;
            call.sent = *sent;
            &*call.frame
        })
    }

    /// Takes the call of a sequence out, when it is under way.
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

    /// Moves the window up to the first call that is under way and does not wait at the server.
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

    /// Takes all calls out.
    pub(super) fn leave_all(&mut self) -> Vec<Call> {
        self.base = self.next_sequence();
        let apart = std::mem::take(&mut self.apart).into_values();
        apart.chain(self.calls.drain(..).flatten()).collect()
    }
}
