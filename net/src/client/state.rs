//! What the handles of a client and the task of its connection share.

use super::ClientError;
use super::pending::{Destination, PendingCalls, RawReply};
use crate::codec::{Extension, FrameError, Header, acknowledge_in_frame, encode_body, try_encode_frame};
use crate::limits::CLIENT_OUT_BYTES_MAX;
use crate::protocol::{
    Acknowledged, BODY_VERSION, Deadline, EXTENSION_ACKNOWLEDGED, EXTENSION_DEADLINE, Message, Reason,
};

/// Calls in progress, and what is to be written.
pub(super) struct State {
    pub(super) calls: PendingCalls,
    pub(super) out: Vec<u8>,
    /// Why the client has ended, if it has.
    pub(super) ended: Option<ClientError>,
}

/// What replies that came together change.
pub(super) struct Answered {
    /// The calls that are answered.
    pub(super) calls: Vec<(Destination, RawReply)>,
    /// The number of them that counted as in flight.
    pub(super) permits: usize,
    /// Whether requests are to be written again.
    pub(super) is_sent_again: bool,
}

impl State {
    pub(super) fn new(exact: bool) -> Self {
        Self { calls: PendingCalls::new(exact), out: Vec::new(), ended: None }
    }

    /// Enters a call and what is to be written for it. Returns its sequence.
    ///
    /// # Errors
    /// If the request is too long. Nothing is entered then.
    pub(super) fn enter<M: Message>(
        &mut self,
        request: &M::Request,
        deadline: Option<&Deadline>,
        destination: Destination,
    ) -> Result<u64, ClientError> {
        let header = Header {
            kind: M::KIND.number(),
            version: BODY_VERSION,
            sequence: self.calls.next_sequence(),
            lowest_unacknowledged: self.calls.lowest_unacknowledged(),
            ..Header::default()
        };
        let acknowledged = self.calls.to_acknowledge();
        let begin = self.out.len();
        let said = encode_call::<M>(header, acknowledged.as_ref(), deadline, request, &mut self.out)
            .map_err(ClientError::TooLong)?;
        if said && let Some(acknowledged) = &acknowledged {
            self.calls.said(acknowledged);
        }
        self.calls.enter(destination, self.out[begin..].into());
        Ok(header.sequence)
    }

    /// Takes replies, each with its sequence.
    pub(super) fn take_replies(&mut self, replies: &mut Vec<(u64, RawReply)>) -> Answered {
        let calls = Vec::with_capacity(replies.len());
        let mut answered = Answered { calls, permits: 0, is_sent_again: false };
        for (sequence, reply) in replies.drain(..) {
            if is_out_of_window(&reply) && self.send_again(sequence) {
                answered.is_sent_again = true;
                continue;
            }
            // After a resumption, a reply may arrive twice. Take it once.
            if let Some(call) = self.calls.leave(sequence) {
                answered.permits += usize::from(!call.waits());
                answered.calls.push((call.destination, reply));
            }
        }
        answered
    }

    /// Sends a request again that the server refused because too many outcomes were unacknowledged. The frame
    /// now carries the current mark. Returns false if the request is not in progress.
    fn send_again(&mut self, sequence: u64) -> bool {
        let lowest = self.calls.lowest_unacknowledged();
        let Some(frame) = self.calls.send_again(sequence) else { return false };
        acknowledge_in_frame(frame, lowest);
        self.out.extend_from_slice(frame);
        true
    }

    /// Has all calls in progress written again, in order.
    pub(super) fn send_all_again(&mut self) {
        self.out.clear();
        for frame in self.calls.send_all_again() {
            self.out.extend_from_slice(frame);
        }
    }

    /// Takes what is to be written. What comes next is likely as long, so it gets as much room.
    pub(super) fn take_out(&mut self) -> Vec<u8> {
        if self.out.is_empty() {
            return Vec::new();
        }
        let next = Vec::with_capacity(self.out.len().min(CLIENT_OUT_BYTES_MAX));
        std::mem::replace(&mut self.out, next)
    }
}

/// Returns whether the server refused a request because too many outcomes were unacknowledged.
fn is_out_of_window(reply: &RawReply) -> bool {
    matches!(reply, Err(ClientError::Fault(fault)) if fault.reason == Reason::SequenceOutOfWindow.into())
}

/// Appends a call to `out`. Returns whether it carries `acknowledged`, which is left out if the frame would be too long
/// with it.
///
/// # Errors
/// If the frame is too long without it. `out` is then unchanged.
fn encode_call<M: Message>(
    header: Header,
    acknowledged: Option<&Acknowledged>,
    deadline: Option<&Deadline>,
    request: &M::Request,
    out: &mut Vec<u8>,
) -> Result<bool, FrameError> {
    let mut within = Vec::new();
    let deadline = deadline.map(|deadline| {
        encode_body(deadline, &mut within);
        Extension { tag: EXTENSION_DEADLINE, bytes: &within }
    });
    if let Some(acknowledged) = acknowledged {
        let mut bytes = Vec::new();
        encode_body(acknowledged, &mut bytes);
        let acknowledged = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &bytes };
        let all: Vec<_> = [acknowledged].into_iter().chain(deadline).collect();
        if try_encode_frame(header, &all, out, |out| M::write_request(request, out)).is_ok() {
            return Ok(true);
        }
    }
    try_encode_frame(header, deadline.as_slice(), out, |out| M::write_request(request, out))?;
    Ok(false)
}
