//! Reservations: made and ended by messages of their own, used by placements that name their owner, and shown
//! with a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::CUSTOM_RESOURCES_MAX;

use super::bounded::{self, field};
use super::{DemandBody, Fault, Name, NamedAmount, ReasonCode};

/// Keeps a node for an owner; where the owner has it already, what is reserved and until when is
/// exchanged. The reply is a [`ReserveReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// For whom: a number that the caller gives, from 1 on.
    pub owner: u64,
    /// How much is reserved.
    pub demand: DemandBody,
    /// How long, in ns of service time from when it is made; 0: until it is ended or used up.
    pub lasts: u64,
}

/// Ends the reservation that an owner has on a node. The reply is a [`ReserveReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReservationRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// For whom it is reserved.
    pub owner: u64,
}

/// It is reserved, or is not any more; or a fault says why not, and nothing moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveReply {
    /// `done` or the fault's.
    pub reason: ReasonCode,
    /// The node's id; 0 where it is not known.
    pub node: u64,
    /// When the reservation ends by itself, in ns of service time; 0: it does not, or ended now.
    pub until: u64,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// The reservation of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationBody {
    /// For whom.
    pub owner: u64,
    /// When it ends by itself, in ns of service time; 0: it does not.
    pub until: u64,
    /// What is reserved still, in 1/10 000 of its unit; the books say how much of it is free.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub left: Vec<NamedAmount>,
    /// How long it lasts still, in ns; 0: it does not end by itself.
    pub lasts: u64,
    /// Resources of which more is reserved than the node has by now: no single request can use all of it there.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub exceeded: Vec<Name>,
}
