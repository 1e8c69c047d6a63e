//! The messages of the protocol.
//!
//! Bodies are plain structs of sized integers, texts and lists. They contain no Rust enums: every number that
//! selects a meaning is a constant and never changes. Each kind has one body for its request and one for its
//! reply.

#[macro_use]
pub(crate) mod bounded;
mod agent;
pub use agent::*;
mod books;
pub use books::*;
mod event;
pub use event::*;
mod explain;
pub use explain::*;
mod export;
pub use export::*;
mod follow;
pub use follow::*;
mod group;
pub use group::*;
mod ids;
mod job;
pub use job::*;
mod kind;
pub(crate) use kind::ReplySize;
pub use kind::{Kind, Message, MessageVisitor, kinds};
mod lease;
pub use lease::*;
mod message;
pub use message::*;
mod node;
pub use node::*;
mod place;
pub use place::*;
mod plan;
pub use plan::*;
mod preference;
pub use preference::*;
mod priority_class;
pub use priority_class::*;
mod reason;
pub use reason::{Reason, ReasonCode};
mod reply;
pub(crate) use reply::Reply;
mod reservation;
pub use reservation::*;
mod statement;
pub use statement::*;
mod status;
pub use status::*;

/// The protocol's name in the TLS handshake.
pub const ALPN: &[u8] = b"wharf/1";
/// The oldest protocol version that this code supports.
pub const VERSION_MIN: u8 = 1;
/// The newest protocol version that this code supports.
pub const VERSION_MAX: u8 = 2;
/// The first version with deadlines of requests: [`EXTENSION_DEADLINE`] and
/// [`Reason::DeadlineExceeded`].
pub const VERSION_OF_DEADLINES: u8 = 2;
/// The version of every body. Each frame's header carries it. A body of another version is refused.
pub const BODY_VERSION: u8 = 1;
/// The default UDP port.
pub const PORT_DEFAULT: u16 = 7411;

/// Maximum length of a frame after its length field, in bytes.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of extensions of one frame.
pub const EXTENSIONS_MAX: usize = 16;
/// Default maximum number of unanswered requests on one connection.
pub const IN_FLIGHT_DEFAULT: u32 = 1024;
/// Maximum distance of a sequence from the lowest unacknowledged one. A client that acknowledges nothing is
/// refused beyond it.
pub const UNACKNOWLEDGED_MAX: u32 = 8192;

/// Maximum number of waits per session that the client's mark has passed. Beyond that, the oldest wait in the
/// window keeps the window from moving.
pub const APART_MAX: usize = 8192;
/// Maximum number of sequences in one [`Acknowledged`].
pub const ACKNOWLEDGED_MAX: usize = 1024;

/// Maximum bytes of a session's kept outcomes, plus those that its requests in progress may produce. Beyond
/// that, only the lowest unacknowledged request is executed until the client acknowledges replies.
pub const SESSION_KEPT_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of a session's waiting requests, of their possible replies, and of the unacknowledged
/// replies to waits. Beyond that, a request to wait is refused.
pub const SESSION_WAITS_BYTES_MAX: usize = 32 << 20;
/// Maximum bytes of requests in progress, of their possible replies, and of replies that the peer has not
/// taken. Beyond that, the server stops reading the connection.
pub const CONNECTION_HELD_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes written to a connection that its peer has not acknowledged (QUIC's send window).
pub const SEND_WINDOW_BYTES: usize = 4 << 20;
/// Maximum number of node pages built at once, over all connections. Each may take a frame's length at every
/// shard.
pub const LISTS_UNDER_WAY_MAX: usize = 8;
/// Maximum bytes of outcomes kept by all sessions without a connection.
pub const DETACHED_KEPT_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(IN_FLIGHT_DEFAULT < UNACKNOWLEDGED_MAX);
// A request with the most candidates fits a frame, even if every id has its longest encoding.
const _: () = assert!(wharf_core::limits::CANDIDATES_MAX * 9 + (256 << 10) <= FRAME_BYTES_MAX as usize);
// The longest reply fits a session, and the fullest session fits the room for detached sessions.
const _: () = assert!(FRAME_BYTES_MAX as usize <= SESSION_KEPT_BYTES_MAX);
const _: () = assert!(
    SESSION_KEPT_BYTES_MAX + SESSION_WAITS_BYTES_MAX + 2 * FRAME_BYTES_MAX as usize
        <= DETACHED_KEPT_BYTES_MAX
);
const _: () = assert!(2 * (FRAME_BYTES_MAX as usize) <= CONNECTION_HELD_BYTES_MAX);
