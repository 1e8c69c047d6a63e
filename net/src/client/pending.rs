//! Calls under way, in order of sequence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::ClientError;

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
}

/// Calls by sequence: a window that starts at the lowest unacknowledged one.
pub(super) struct PendingCalls {
    base: u64,
    calls: VecDeque<Option<Call>>,
}

impl PendingCalls {
    pub(super) fn new() -> Self {
        Self { base: 1, calls: VecDeque::new() }
    }

    /// All sequences below are answered.
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
        self.calls.push_back(Some(Call { destination, frame }));
    }

    /// The frame of a call under way.
    pub(super) fn frame_mut(&mut self, sequence: u64) -> Option<&mut [u8]> {
        let offset = usize::try_from(sequence.checked_sub(self.base)?).ok()?;
        Some(&mut self.calls.get_mut(offset)?.as_mut()?.frame)
    }

    /// The frames of all calls under way, in order.
    pub(super) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.calls.iter().flatten().map(|call| &*call.frame)
    }

    /// Takes the call of a sequence out, when it is under way.
    pub(super) fn leave(&mut self, sequence: u64) -> Option<Call> {
        let offset = usize::try_from(sequence.checked_sub(self.base)?).ok()?;
        let call = self.calls.get_mut(offset)?.take();
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.base += 1;
        }
        call
    }

    /// Takes all calls out.
    pub(super) fn leave_all(&mut self) -> Vec<Call> {
        self.base = self.next_sequence();
        self.calls.drain(..).flatten().collect()
    }
}
