//! The hello, faults, and the parts shared by other messages.

use wharf_core::limits::CUSTOM_RESOURCES_MAX;

use super::bounded::{NAME, PROSE};
use super::{ACKNOWLEDGED_MAX, Reason, ReasonCode};

/// Tag of the extension by which a client acknowledges waits individually ([`Acknowledged`]). It is
/// ignorable.
///
/// In a hello, it declares that the client does so. In the hello's reply, it declares that the server
/// supports it. The list is empty in both. The lowest unacknowledged sequence of a frame may then pass
/// waiting placements. The client may let it pass a wait once a reply to a later frame shows that the server
/// has the wait. The client must name each answered wait in one request, and repeat that request until it is
/// answered.
pub const EXTENSION_ACKNOWLEDGED: u16 = 16;

/// Tag of the extension that says until when the result of a request is of use ([`Deadline`]). It is ignorable. Known
/// from version 2 on.
pub const EXTENSION_DEADLINE: u16 = 17;

bodies! {
    /// A named resource and an amount.
    pub struct NamedAmount {
        /// The resource kind.
        pub name: String [NAME],
        /// The amount in 1/10,000 of the resource's unit.
        pub amount: i64,
    }

    /// Amounts of each resource, in 1/10,000 of its unit.
    pub struct DemandBody {
        /// Cores.
        pub cpu: i64,
        /// MiB.
        pub memory: i64,
        /// GPU devices: a fraction of one, or whole devices.
        pub gpu: i64,
        /// Custom resources, each name once.
        pub custom: Vec<NamedAmount> [CUSTOM_RESOURCES_MAX],
    }

    /// A key and its value.
    pub struct Pair {
        /// The key.
        pub key: String [NAME],
        /// The value.
        pub value: String [NAME],
    }

    /// [`SessionId`](wharf_core::ids::SessionId) on the wire.
    #[derive(Copy)]
    pub struct WireSession {
        /// The start of the service that opened the session.
        pub incarnation: u32,
        /// The session's number within that start.
        pub number: u64,
    }

    /// [`AllocationId`](wharf_core::ids::AllocationId) on the wire.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct WireAllocation {
        /// The start of the service that granted the allocation.
        pub incarnation: u32,
        /// The allocation's partition.
        pub partition: u16,
        /// The allocation's sequence within the partition.
        pub sequence: u64,
        /// Who the allocation belongs to; 0: the operator.
        pub tenant: u16,
    }

    /// A session to resume.
    #[derive(Copy)]
    pub struct Resume {
        /// The session.
        pub session: WireSession,
        /// The secret from the session's `HelloReply`.
        pub token: SessionToken,
    }

    /// Opens a session. It is the first frame of a connection and has sequence 0.
    pub struct Hello {
        /// The oldest protocol version that the client supports.
        pub version_min: u8,
        /// The newest protocol version that the client supports.
        pub version_max: u8,
        /// The client's name, for logs.
        pub client: String [NAME],
        /// The session to resume after a lost connection.
        pub resume: Option<Resume>,
    }

    /// The limits of the server.
    #[derive(Copy)]
    pub struct Limits {
        /// Maximum length of a frame after its length field, in bytes.
        pub frame_bytes_max: u32,
        /// Maximum number of unanswered requests on this connection. Beyond that, the server stops reading.
        pub in_flight_max: u32,
        /// Maximum distance between the lowest unacknowledged and the newest sequence. Beyond that, requests
        /// are refused.
        pub unacknowledged_max: u32,
        /// Maximum number of placements or releases in one batch.
        pub placements_per_message_max: u32,
        /// Maximum number of nodes in one message.
        pub nodes_per_message_max: u32,
    }

    /// The identity of the server.
    pub struct ServerIdentity {
        /// The id of the store. It is created with the store and survives restarts.
        pub store: [u8; 16],
        /// The number of this start of the service.
        pub incarnation: u32,
        /// Name and version of the software.
        pub software: String [NAME],
    }

    /// Confirms that the session is open.
    pub struct HelloReply {
        /// The protocol version that both sides use from now on.
        pub version: u8,
        /// The server's identity.
        pub server: ServerIdentity,
        /// The server's limits.
        pub limits: Limits,
        /// The session.
        pub session: WireSession,
        /// The token that resumes the session.
        pub token: SessionToken,
        /// True if the session was resumed, as requested.
        pub resumed: bool,
    }

    /// The content of the extension with tag 16, [`EXTENSION_ACKNOWLEDGED`].
    pub struct Acknowledged {
        /// Sequences of waits whose replies the client has.
        pub sequences: Vec<u64> [ACKNOWLEDGED_MAX],
    }

    /// The content of the extension with tag 17, [`EXTENSION_DEADLINE`].
    pub struct Deadline {
        /// The time in ns within which the request must be done, from when the service has read it. What has not begun by
        /// then is refused, and what has begun is finished. How long a request waits for capacity, or for changes, is a
        /// field of its own.
        pub within: u64,
    }

    /// Why a request was not executed. It changed nothing.
    pub struct Fault {
        /// The stable number of the reason.
        pub reason: ReasonCode,
        /// The field that is wrong, for example `gpu` or `labels[2].key`. May be empty.
        pub field: String [PROSE],
        /// The problem and its remedy, for people.
        pub message: String [PROSE],
        /// For `overloaded`: the number of ms after which the request may succeed. Otherwise 0.
        pub retry_after_ms: u32,
    }
}

/// The secret with which a client resumes its session on a new connection.
pub type SessionToken = [u8; 16];

impl Fault {
    /// Returns the fault of a request that was not begun because its deadline had passed.
    pub fn late() -> Self {
        let message = "the deadline of the request passed before its turn came, and nothing was done: give it more time";
        Self::new(Reason::DeadlineExceeded, message)
    }

    /// Returns whether it is that of a request whose deadline had passed.
    pub fn is_late(&self) -> bool {
        self.reason == Reason::DeadlineExceeded.into()
    }

    /// Creates a fault of the request as a whole.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self::of_field(reason, "", message)
    }

    /// Returns the fault of a part of a request as one of the whole request. `part` is the name of the part, such as
    /// `bundles[2]`.
    pub(crate) fn within(mut self, part: impl std::fmt::Display) -> Self {
        let dot = if self.field.is_empty() { "" } else { "." };
        self.field = format!("{part}{dot}{}", self.field);
        self
    }

    /// Creates a fault of one field.
    pub fn of_field(reason: Reason, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), field: field.into(), message: message.into(), retry_after_ms: 0 }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        if !self.field.is_empty() {
            write!(f, " in `{}`", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Fault {}
