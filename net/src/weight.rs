//! What a request takes of the bounds in bytes: its own length, and an upper bound on its reply.

use crate::protocol::{FRAME_BYTES_MAX, Kind, ReplySize};

/// Bytes of the longest reply about one thing, without what repeats the request: a node's name, the counts of a
/// refusal, a message.
const SINGLE_BYTES: usize = 1024;
/// Bytes of such a reply per byte of its request: names that it repeats may be spelt out in a message.
const SINGLE_FACTOR: usize = 8;
/// Bytes of the longest such reply of all: 64 counts and 32 kinds with their names, and a message.
const SINGLE_BYTES_MAX: usize = 32 << 10;
/// Bytes of a part of a batch's reply, per byte of the request. A part of a request has at least a few bytes.
const BATCH_FACTOR: usize = 128;
/// Bytes of the longest reply about what is reserved on a node: the names of all of its kinds.
const RESERVATION_BYTES: usize = 16 << 10;
/// Bytes of a group's status without its bundles: its refusal and conflicts.
const GROUP_BYTES: usize = 24 << 10;
/// Bytes of one bundle of a group's status.
const BUNDLE_BYTES: usize = 384;

/// What a request under way takes and may bring, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Length of its frame.
    pub request: u32,
    /// Upper bound on the length of its reply.
    pub reply: u32,
    /// Whether the reply is kept until it is acknowledged.
    pub is_kept: bool,
    /// Whether it waits, and so counts with the waits of its session.
    pub(crate) waits: bool,
}

/// Bytes of a reply about one thing that was asked in so many bytes.
fn single_bytes(request: usize) -> usize {
    (SINGLE_BYTES + SINGLE_FACTOR * request).min(SINGLE_BYTES_MAX)
}

fn clamp(bytes: usize) -> u32 {
    u32::try_from(bytes).map_or(FRAME_BYTES_MAX, |bytes| bytes.min(FRAME_BYTES_MAX))
}

impl Weight {
    /// The weight of a request of `kind` whose frame has `bytes`.
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

    /// The same for a request whose reply is the status of a group of so many bundles.
    #[must_use]
    pub fn of_group(self, bundles: usize) -> Self {
        let single = single_bytes(self.request as usize);
        Self { reply: clamp(GROUP_BYTES + single + BUNDLE_BYTES * bundles), ..self }
    }

    /// All of it.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.request as usize + self.reply as usize
    }

    /// What its outcome may add to what the session keeps.
    #[must_use]
    pub fn kept_bytes(self) -> usize {
        if self.is_kept { self.reply as usize } else { 0 }
    }
}
