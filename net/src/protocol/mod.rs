//! Protocol version 1: what is said.
//!
//! Bodies are plain structs of sized integers, texts and lists; there is no Rust enum among
//! them, so every number that selects a meaning is written out and never changes it. Each kind has
//! one body for its request and one for its reply.

mod agent;
pub use agent::*;
mod books;
pub use books::*;
mod follow;
pub use follow::*;
mod group;
pub use group::*;
mod kind;
pub(crate) use kind::ReplySize;
pub use kind::{Kind, Message, MessageVisitor, kinds};
mod message;
pub use message::*;
mod node;
pub use node::*;
mod place;
pub use place::*;
mod preference;
pub use preference::*;
mod reason;
pub use reason::{Reason, ReasonCode};
mod reservation;
pub use reservation::*;
mod statement;
pub use statement::*;
mod status;
pub use status::*;
pub(crate) mod bounded;

/// The protocol's name in the TLS handshake.
pub const ALPN: &[u8] = b"wharf/1";
/// The oldest protocol version that this code speaks.
pub const VERSION_MIN: u8 = 1;
/// The newest protocol version that this code speaks.
pub const VERSION_MAX: u8 = 1;
/// The version of every body. A frame's header names it; a body of another version is refused.
pub const BODY_VERSION: u8 = 1;
/// The UDP port when none is given.
pub const PORT_DEFAULT: u16 = 7411;

/// Longest frame after its length field, in bytes, whatever it holds.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Most extensions of one frame.
pub const EXTENSIONS_MAX: usize = 16;
/// Requests that a client may have unanswered on one connection, unless configured otherwise.
pub const IN_FLIGHT_DEFAULT: u32 = 1024;
/// Answered requests whose outcome a session keeps until the client acknowledges them; a client
/// that acknowledges nothing is refused beyond.
pub const UNACKNOWLEDGED_MAX: u32 = 8192;

/// Waits of a session that its client's mark passed: beyond, the oldest that is not among them pins
/// the window.
pub const APART_MAX: usize = 8192;
/// Sequences of one [`Acknowledged`].
pub const ACKNOWLEDGED_MAX: usize = 1024;

/// Bytes of outcomes that a session keeps and of those that its requests under way may bring. Beyond,
/// its client must acknowledge before anything but its lowest unacknowledged request is done.
pub const SESSION_KEPT_BYTES_MAX: usize = 8 << 20;
/// Bytes of the requests that wait at a session, of the outcomes that they may bring, and of the outcomes of
/// waits that its client has not acknowledged. Beyond, a request to wait is refused.
pub const SESSION_WAITS_BYTES_MAX: usize = 32 << 20;
/// Bytes of requests under way, of the replies that they may bring, and of replies that the peer has not taken.
/// Beyond, a connection is not read on.
pub const CONNECTION_HELD_BYTES_MAX: usize = 8 << 20;
/// Bytes that were written to a connection and that its peer has not acknowledged (QUIC's send window).
pub const SEND_WINDOW_BYTES: usize = 4 << 20;
/// Pages of nodes that are made at once, over all connections: each may take a frame's length at every shard.
pub const LISTS_UNDER_WAY_MAX: usize = 8;
/// Bytes of outcomes that all sessions without a connection keep together.
pub const DETACHED_KEPT_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(IN_FLIGHT_DEFAULT < UNACKNOWLEDGED_MAX);
// A request that names the most candidates fits a frame, each id being as long as ids can be.
const _: () = assert!(wharf_core::limits::CANDIDATES_MAX * 9 + (256 << 10) <= FRAME_BYTES_MAX as usize);
// The longest reply fits a session, and the fullest session fits what is kept of all.
const _: () = assert!(FRAME_BYTES_MAX as usize <= SESSION_KEPT_BYTES_MAX);
const _: () = assert!(
    SESSION_KEPT_BYTES_MAX + SESSION_WAITS_BYTES_MAX + 2 * FRAME_BYTES_MAX as usize
        <= DETACHED_KEPT_BYTES_MAX
);
const _: () = assert!(2 * (FRAME_BYTES_MAX as usize) <= CONNECTION_HELD_BYTES_MAX);
