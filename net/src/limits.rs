//! The bounds of a server that are not part of the wire format. `net/src/protocol/` has those of the wire
//! format, `core/src/limits.rs` those of the engine.

use std::time::Duration;

use wharf_core::limits::PORT_GROUPS_WAITING_MAX;

use crate::protocol::FRAME_BYTES_MAX;

/// Maximum number of connections of a server, including those in their handshake.
pub const CONNECTIONS_MAX: usize = 4096;
/// Maximum number of connections at which a peer may begin a handshake without a proof of its address. Beyond that, and
/// beyond half of what its address may have, it must answer a retry packet first.
pub const CONNECTIONS_UNPROVEN_MAX: usize = CONNECTIONS_MAX / 2;
/// Default of the time that a peer has for its handshake.
pub const HANDSHAKE_PATIENCE_DEFAULT: Duration = Duration::from_secs(10);
/// Default of the number of handshakes that an I/O thread begins per second: about a quarter of its time.
pub const HANDSHAKES_PER_SECOND_DEFAULT: u32 = 1000;
/// Maximum of that number.
pub const HANDSHAKES_PER_SECOND_MAX: u32 = 1_000_000;
/// Maximum number of handshakes of an I/O thread that have begun and are not complete: as many as begin in a second by default.
/// Each has keys and buffers, of up to 128 KiB. Beyond that, the oldest of the network with the most ends for the next one.
pub const HANDSHAKES_BEGUN_MAX: usize = 1024;
/// The time that a handshake has in any case: enough for a packet that is lost and sent again.
pub const HANDSHAKE_LEAST: Duration = Duration::from_secs(1);
/// The bytes that are kept of what a peer sends while it waits for its handshake.
pub const INCOMING_BYTES_MAX: u64 = 16 << 10;
/// Those of all peers that wait at an I/O thread.
pub const INCOMING_TOTAL_BYTES_MAX: u64 = 8 << 20;
/// Default of the time after which a connection whose peer is silent is lost.
pub const IDLE_PATIENCE_DEFAULT: Duration = Duration::from_secs(30);
/// Default of the time that a peer has to complete a frame that it has begun, or to take some of the replies that are written.
pub const STREAM_PATIENCE_DEFAULT: Duration = Duration::from_secs(30);
/// Maximum number of characters of what a planner found, in an explanation of a group that waits.
pub const FOUND_CHARS_MAX: usize = 1000;
/// Default maximum number of connections from one address: a quarter of all.
pub const CONNECTIONS_PER_ADDRESS_DEFAULT: u32 = CONNECTIONS_MAX as u32 / 4;
/// Maximum number of sessions kept without a connection. After a restart, those of all connections are among them.
pub const DETACHED_SESSIONS_MAX: usize = CONNECTIONS_MAX + 1024;
/// Maximum number of lost connections of an I/O thread whose requests wait. Beyond that, the session that is the first to end of
/// the tenant with the most of them ends now.
pub const LOST_CONNECTIONS_MAX: usize = DETACHED_SESSIONS_MAX;
/// Maximum number of bytes that all sessions with a connection at an I/O thread hold together at their full bounds: requests and
/// replies, waits, and kept outcomes. While they hold more, each may have [`HELD_PART`] of what it otherwise may.
pub const HELD_BYTES_MAX: usize = 1 << 30;
/// The part that a session may have while all hold too much: 1 in this number. It leaves room for some 80 placements in flight,
/// and for the replies of a thousand.
pub const HELD_PART: usize = 64;
/// Maximum number of free blocks of 128 bytes that an I/O thread has for the replies that sessions keep: 512 KiB.
pub const REPLY_BLOCKS_FREE_MAX: usize = 4096;
/// Bytes that a buffer of replies begins with.
pub const REPLY_BUFFER_BYTES: usize = 256;
/// Default of the time after which a session without a connection ends.
pub const SESSION_KEPT_FOR_DEFAULT: Duration = Duration::from_secs(3600);

/// Bounds that would cost much to reach. A service has those of this module, and tests may have lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// See [`HANDSHAKES_BEGUN_MAX`]. From 1 on.
    pub handshakes_begun: usize,
    /// See [`INCOMING_BYTES_MAX`]. Counts from the start of an I/O thread on.
    pub incoming_bytes: u64,
    /// See [`INCOMING_TOTAL_BYTES_MAX`]. Counts from the start of an I/O thread on.
    pub incoming_total_bytes: u64,
    /// See [`LOST_CONNECTIONS_MAX`].
    pub lost_connections: usize,
    /// See [`HELD_BYTES_MAX`]. Counts from the start of an I/O thread on.
    pub held_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            handshakes_begun: HANDSHAKES_BEGUN_MAX,
            incoming_bytes: INCOMING_BYTES_MAX,
            incoming_total_bytes: INCOMING_TOTAL_BYTES_MAX,
            lost_connections: LOST_CONNECTIONS_MAX,
            held_bytes: HELD_BYTES_MAX,
        }
    }
}

/// The size of the buffers of a socket that the system is asked for, in bytes: as much as Linux usually permits. A thousand
/// packets of requests take about 1 MiB, because the kernel counts its own overhead in.
pub const SOCKET_BYTES: usize = 4 << 20;

/// Maximum number of chunks of a stream that are taken at once. Most have the bytes of one packet. With many requests in
/// flight, many packets are there together, and shards are woken once for all of them.
pub const CHUNKS_TAKEN_MAX: usize = 32;

/// Maximum number of empty buffers that an I/O thread keeps: those of the writes that are not acknowledged on a fast
/// network.
pub const BUFFERS_KEPT_MAX: usize = 32;
/// Maximum capacity of a kept buffer, in bytes.
pub const BUFFER_KEPT_BYTES_MAX: usize = 256 * 1024;
/// Maximum capacity of the buffer for a connection's input that is kept when all of it was read, in bytes.
pub const INPUT_KEPT_BYTES_MAX: usize = 128 * 1024;
/// From this number of bytes of output on, a connection gets a kept buffer for what follows.
pub const BUSY_OUTPUT_BYTES: usize = 4096;

/// Maximum number of groups waiting at one I/O thread, over all clients.
pub const WAITING_GROUPS_MAX: u32 = PORT_GROUPS_WAITING_MAX as u32;
/// Default maximum number of groups waiting at one connection: a quarter of those of its I/O thread.
pub const WAITING_GROUPS_DEFAULT: u32 = WAITING_GROUPS_MAX / 4;

/// Maximum number of connections of a service that may follow changes.
pub const FOLLOWERS_MAX: u64 = 256;
/// Maximum number of connections of an I/O thread that may follow events.
pub const EVENT_FOLLOWERS_MAX: usize = 64;
/// Maximum number of views kept of ended connections. Beyond that, the oldest are dropped.
pub const DEPARTED_MAX: usize = 512;
/// From this number of unwritten replies on, the peer gets no page of changes.
pub const LONG_REPLIES_MAX: u32 = 8;
/// Maximum number of requests that wait for the registrar.
pub const QUEUE_MAX: usize = 64;

/// Maximum number of requests of one connection that wait for their turn at the port. One with a deadline is refused
/// beyond that; otherwise the connection is not read further.
pub const LINE_REQUESTS_MAX: usize = 256;
/// Maximum number of parts of requests that wait for their turn at a port, over all connections. Beyond that, a connection
/// is full as soon as it has its equal share: of the share of its tenant, by the connections of this that wait. An empty line is
/// never full, so each connection may have one request beyond its share: a batch of up to 1,024 parts.
pub const LINES_PARTS_MAX: usize = 16 * 1024;
/// The number of units of room at planners (one for each part of a request) that a tenant takes in a turn while others wait.
pub const PLAN_ROOM_QUANTUM: i64 = 64;
/// A request without a deadline has its turn as if it were due after this time, in ns.
pub const LINE_PATIENCE_NS: u64 = 1_000_000_000;
/// The number of turns over which their rate is measured.
pub const DRAIN_TURNS: u64 = 256;
/// The part of the time to its deadline that a request may be expected to take: 1 in this number. The rest is for the way
/// back and for what cannot be known.
pub const DEADLINE_SHARE: u64 = 2;
/// Maximum of the time after which a client is told to ask again, in ms.
pub const RETRY_AFTER_MS_MAX: u32 = 10_000;

/// The number of selectors that an I/O thread knows by their bytes. A power of two.
pub const SELECTORS_KNOWN: usize = 64;
/// Maximum bytes of selectors that are known by their bytes.
pub const SELECTORS_BYTES_MAX: usize = 512;

/// Maximum number of bytes that a body may claim while it is read, so that a short frame cannot request much
/// memory. `bincode` counts a number at its full width, even if it is encoded in one byte. A frame of small
/// numbers claims up to eight times its length and must not be refused for that.
pub const CLAIM_BYTES_MAX: usize = 8 * FRAME_BYTES_MAX as usize;
/// Maximum bytes of the nodes of one page. The frame's header and the list's length still fit the frame.
pub const LIST_BYTES_MAX: usize = FRAME_BYTES_MAX as usize - 128;
/// Bytes that the checks and units of one reply may take. The rest of the reply fits the frame with them.
pub const LISTED_BYTES_MAX: usize = FRAME_BYTES_MAX as usize / 2;
/// Upper bound on a reply about one thing: 64 counts and 32 kinds with their names, and a message.
pub const SINGLE_BYTES_MAX: usize = 32 << 10;
/// Maximum length of the reason of an unhealthy instance, in bytes. It is kept per instance and listed.
pub const FAULT_BYTES_MAX: usize = 512;
/// Maximum number of lines per second in the log about connections that failed or ended for a fault of their peers.
pub(crate) const PEER_FAULT_LINES_MAX: u64 = 100;
/// The room that a client keeps for what it writes next, in bytes: as much as it wrote last, and at most this.
pub(crate) const CLIENT_OUT_BYTES_MAX: usize = 64 << 10;
