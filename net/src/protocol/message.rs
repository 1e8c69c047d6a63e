//! The session's opening, faults, and what every other message is made of.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, Incarnation, PartitionId, SessionId};
use wharf_core::limits::CUSTOM_RESOURCES_MAX;

use super::bounded::{self, field};
use super::{ACKNOWLEDGED_MAX, Reason, ReasonCode};

/// An amount by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedAmount {
    /// The resource kind.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// In 1/10 000 of its unit.
    pub amount: i64,
}

/// Amounts of each resource, in 1/10 000 of its unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandBody {
    /// Cores.
    pub cpu: i64,
    /// MiB.
    pub memory: i64,
    /// GPU devices: less than one, or whole.
    pub gpu: i64,
    /// Custom resources, each name once.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Custom, CUSTOM_RESOURCES_MAX>")]
    pub custom: Vec<NamedAmount>,
}

/// A key and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The key.
    #[serde(deserialize_with = "bounded::name::<_, field::Key>")]
    pub key: String,
    /// The value.
    #[serde(deserialize_with = "bounded::name::<_, field::Value>")]
    pub value: String,
}

/// [`SessionId`] on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSession {
    /// The start of the service that opened it.
    pub incarnation: u32,
    /// Its number within.
    pub number: u64,
}

impl From<SessionId> for WireSession {
    fn from(id: SessionId) -> Self {
        Self { incarnation: id.incarnation.0, number: id.number }
    }
}

impl From<WireSession> for SessionId {
    fn from(wire: WireSession) -> Self {
        Self { incarnation: Incarnation(wire.incarnation), number: wire.number }
    }
}

/// [`AllocationId`] on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WireAllocation {
    /// The start of the service that granted it.
    pub incarnation: u32,
    /// Its partition.
    pub partition: u16,
    /// Its sequence within.
    pub sequence: u64,
}

impl From<AllocationId> for WireAllocation {
    fn from(id: AllocationId) -> Self {
        Self { incarnation: id.incarnation.0, partition: id.partition.0, sequence: id.sequence }
    }
}

impl From<WireAllocation> for AllocationId {
    fn from(wire: WireAllocation) -> Self {
        Self {
            incarnation: Incarnation(wire.incarnation),
            partition: PartitionId(wire.partition),
            sequence: wire.sequence,
        }
    }
}

/// The secret that lets a client resume its session on a new connection.
pub type SessionToken = [u8; 16];

/// A session to go on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Which.
    pub session: WireSession,
    /// The secret that its opening gave.
    pub token: SessionToken,
}

/// Opens a session: the first frame of a connection, with sequence 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest protocol version that the client speaks.
    pub version_min: u8,
    /// The newest.
    pub version_max: u8,
    /// Who it is, for logs.
    #[serde(deserialize_with = "bounded::name::<_, field::Client>")]
    pub client: String,
    /// The session to go on with, after a lost connection.
    pub resume: Option<Resume>,
}

/// What the server will take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Longest frame after its length field, in bytes.
    pub frame_bytes_max: u32,
    /// Unanswered requests of this connection: beyond, the server stops reading.
    pub in_flight_max: u32,
    /// Sequences between the lowest unacknowledged and the newest: beyond, requests are refused.
    pub unacknowledged_max: u32,
    /// Placements or releases of one batch.
    pub placements_per_message_max: u32,
    /// Nodes of one message.
    pub nodes_per_message_max: u32,
}

/// Who answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// The store: made when it was created, the same after every restart.
    pub store: [u8; 16],
    /// This start of the store.
    pub incarnation: u32,
    /// Name and version of the software.
    #[serde(deserialize_with = "bounded::name::<_, field::Software>")]
    pub software: String,
}

/// The session is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version that both speak from now on.
    pub version: u8,
    /// Who answers.
    pub server: ServerIdentity,
    /// What it will take.
    pub limits: Limits,
    /// The session.
    pub session: WireSession,
    /// What resumes it.
    pub token: SessionToken,
    /// Whether it is the one that was to be resumed.
    pub resumed: bool,
}

/// Tag of the extension by which a client acknowledges waits exactly ([`Acknowledged`]). Ignorable.
///
/// In a hello it says that the client does so, in the reply that the server understands it; the
/// list is empty there. Then the lowest unacknowledged sequence of a frame may pass placements
/// that wait, once a reply to something sent later has shown that the server has them; and each
/// wait that was answered is to be named once in a request, until that request is answered.
pub const EXTENSION_ACKNOWLEDGED: u16 = 16;

/// Content of [`EXTENSION_ACKNOWLEDGED`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Placements that waited, whose replies the client has.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Sequences, ACKNOWLEDGED_MAX>")]
    pub sequences: Vec<u64>,
}

/// Something that was not done, and what moved nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The stable number.
    pub reason: ReasonCode,
    /// The field that is wrong (`gpu`, `labels[2].key`), or empty.
    #[serde(deserialize_with = "bounded::prose::<_, field::Field>")]
    pub field: String,
    /// What is wrong and the remedy, for people.
    #[serde(deserialize_with = "bounded::prose::<_, field::Message>")]
    pub message: String,
}

impl Fault {
    /// A fault of the request as a whole.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), field: String::new(), message: message.into() }
    }

    /// A fault of one field.
    pub fn of_field(reason: Reason, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), field: field.into(), message: message.into() }
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
