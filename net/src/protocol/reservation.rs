//! Reservations: made and ended by messages of their own, named by placements of body version 3,
//! and shown with a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, PLACEMENTS_PER_MESSAGE_MAX};

use super::bounded::{self, field};
use super::{Fault, NamedAmount, NodeBooksReply, PlaceRequest, PlaceRequestV2, ReasonCode};
use crate::codec::{FLAG_EXTENSIONS, Header, decode_body, split_extensions};

/// The body version of placements that name the owner of reservations. Their replies are those of
/// [version 2](super::PLACE_VERSION_PREFERENCES).
pub const PLACE_VERSION_OWNER: u8 = 3;

/// Tag of the extension of a node's books that holds its [`ReservationBody`]. Ignorable.
pub const EXTENSION_RESERVATION: u16 = 4;

/// A placement, version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequestV3 {
    /// As in version 2.
    pub request: PlaceRequestV2,
    /// Whose reservations it may use; 0: nobody's.
    pub owner: u64,
}

impl From<PlaceRequestV2> for PlaceRequestV3 {
    fn from(request: PlaceRequestV2) -> Self {
        Self { request, owner: 0 }
    }
}

impl From<PlaceRequest> for PlaceRequestV3 {
    fn from(request: PlaceRequest) -> Self {
        PlaceRequestV2::from(request).into()
    }
}

/// Several placements, version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceBatchV3 {
    /// Decided in this order, each on its own.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Requests, PLACEMENTS_PER_MESSAGE_MAX>")]
    pub requests: Vec<PlaceRequestV3>,
}

/// Keeps a node for an owner; where the owner has it already, what is reserved and until when is
/// exchanged. The reply is a [`ReserveReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// For whom: a number that the caller gives, from 1 on.
    pub owner: u64,
    /// Cores, in 1/10 000.
    pub cpu: i64,
    /// MiB, in 1/10 000.
    pub memory: i64,
    /// GPU devices, in 1/10 000: less than one, or whole.
    pub gpu: i64,
    /// Custom resources.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Custom, CUSTOM_RESOURCES_MAX>")]
    pub custom: Vec<NamedAmount>,
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
    /// What is reserved still, in 1/10 000 of its unit; what of it is free stands in the books.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub left: Vec<NamedAmount>,
}

/// Puts what the extensions of a node's books hold into them; `rest` is what follows the body.
pub fn read_reservation(rest: &[u8], books: &mut NodeBooksReply) {
    let header = Header { flags: FLAG_EXTENSIONS, ..Header::default() };
    let extensions =
        if rest.is_empty() { Vec::new() } else { split_extensions(&header, rest).unwrap_or_default() };
    let reservation = extensions.iter().find(|extension| extension.tag == EXTENSION_RESERVATION);
    if let Some(Ok((reservation, _))) = reservation.map(|extension| decode_body(extension.bytes)) {
        books.reservation = Some(reservation);
    }
}
