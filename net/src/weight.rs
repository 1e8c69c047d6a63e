//! The weight of a request in bytes: its own length plus an upper bound on its reply.

use crate::limits::SINGLE_BYTES_MAX;
use crate::protocol::{FRAME_BYTES_MAX, Kind, ReplySize};

/// Bytes of the longest reply about one thing, without the parts that repeat the request: a node's name, the
/// counts of a refusal, a message.
const SINGLE_BYTES: usize = 1024;
/// Additional bytes of such a reply per byte of its request. A message may spell out names of the request.
const SINGLE_FACTOR: usize = 8;
/// Bytes of a batch's reply per byte of the request. Each part of a request has at least a few bytes.
const BATCH_FACTOR: usize = 128;
/// Bytes of the longest reply about a reservation: the names of all its resource kinds.
const RESERVATION_BYTES: usize = 16 << 10;
/// Bytes of a group's status without its bundles: its refusal and conflicts.
const GROUP_BYTES: usize = 24 << 10;
/// Bytes of one bundle in a group's status.
const BUNDLE_BYTES: usize = 384;

/// The bytes that a request in progress takes and may produce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Length of the request's frame.
    pub request: u32,
    /// Upper bound on the length of the reply.
    pub reply: u32,
    /// True if the reply is kept until it is acknowledged.
    pub is_kept: bool,
    /// True if the request waits, and so counts among the waits of its session.
    pub(crate) waits: bool,
}

/// Returns a bound on the reply about one thing, for a request of `request` bytes.
fn single_bytes(request: usize) -> usize {
    (SINGLE_BYTES + SINGLE_FACTOR * request).min(SINGLE_BYTES_MAX)
}

fn clamp(bytes: usize) -> u32 {
    u32::try_from(bytes).map_or(FRAME_BYTES_MAX, |bytes| bytes.min(FRAME_BYTES_MAX))
}

impl Weight {
    /// Returns the weight of a request of `kind` whose frame has `bytes` bytes.
    #[must_use]
    pub fn of(kind: u16, bytes: usize) -> Self {
        let known = Kind::from_number(kind);
        let single = single_bytes(bytes);
        let reply = match known.map_or(ReplySize::Single, Kind::reply_size) {
            ReplySize::Single => single,
            ReplySize::Reservation => RESERVATION_BYTES + single,
            ReplySize::Batch => SINGLE_BYTES + BATCH_FACTOR * bytes,
            ReplySize::Frame => FRAME_BYTES_MAX as usize,
        };
        let is_kept = !known.is_some_and(Kind::only_looks);
        Self { request: clamp(bytes), reply: clamp(reply), is_kept, waits: false }
    }

    /// Returns the weight with a reply bound for the status of a group of `bundles` bundles.
    #[must_use]
    pub fn of_group(self, bundles: usize) -> Self {
        let single = single_bytes(self.request as usize);
        Self { reply: clamp(GROUP_BYTES + single + BUNDLE_BYTES * bundles), ..self }
    }

    /// Returns the bytes of the request and its reply.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.request as usize + self.reply as usize
    }

    /// Returns the bytes that the outcome may add to the session's kept outcomes.
    #[must_use]
    pub fn kept_bytes(self) -> usize {
        if self.is_kept { self.reply as usize } else { 0 }
    }
}
