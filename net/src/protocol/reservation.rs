//! Reservations: made and ended by messages of their own, named by placements of body version 3,
//! and shown with a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{
    CUSTOM_RESOURCES_MAX, NODES_PER_MESSAGE_MAX, PLACEMENTS_PER_MESSAGE_MAX, RESOURCE_KINDS_MAX, SHARDS_MAX,
};

use super::bounded::{self, field};
use super::extension::{element, read_extension};
use super::{
    Fault, ListDetailsReply, Name, NamedAmount, NodeBooksReply, PlaceRequest, PlaceRequestV2, ReasonCode,
    StatusReply,
};
use crate::codec::BodyError;

/// The body version of placements that name the owner of reservations. Their replies are those of
/// [version 2](super::PLACE_VERSION_PREFERENCES).
pub const PLACE_VERSION_OWNER: u8 = 3;

/// Tag of the extension of a node's books that holds its [`ReservationBody`]. Ignorable.
pub const EXTENSION_RESERVATION: u16 = 4;

/// Tag of the extension of a status that holds [`ReservedSums`]. Ignorable.
pub const EXTENSION_RESERVED: u16 = 20;
/// Tag of the extension of a page of nodes, body version 2, that holds [`ReservedNodes`]. Ignorable.
pub const EXTENSION_RESERVED_NODES: u16 = 21;
/// Tag of the extension of a node's books that holds [`ReservationStanding`]. Ignorable.
pub const EXTENSION_RESERVATION_STANDING: u16 = 22;

/// What is reserved over the whole service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedSums {
    /// Reserved nodes, per shard of the status.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Shards, { SHARDS_MAX as usize }>")]
    pub nodes: Vec<u32>,
    /// Per resource of the status: what is free and set aside for reservations, in 1/10 000.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { RESOURCE_KINDS_MAX + 3 }>")]
    pub amounts: Vec<i128>,
}

/// For whom a node of a page is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedNode {
    /// The node's place on the page.
    pub at: u16,
    /// For whom.
    pub owner: u64,
    /// When that ends by itself, in ns of service time; 0: it does not.
    pub until: u64,
}

/// The reserved nodes of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedNodes {
    /// In the order of the page.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Nodes, NODES_PER_MESSAGE_MAX>")]
    pub nodes: Vec<ReservedNode>,
}

/// How a node's reservation stands, beside its [`ReservationBody`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationStanding {
    /// How long it lasts still, in ns; 0: it does not end by itself.
    pub lasts: u64,
    /// Resources of which more is reserved than the node has by now: it cannot be used there in one.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub exceeded: Vec<Name>,
}

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
    /// Each decided on its own: those of higher priority first, and equal ones in this order.
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
    /// How it stands: in the extension [`EXTENSION_RESERVATION_STANDING`] of the frame.
    #[serde(skip)]
    pub standing: ReservationStanding,
}

/// Puts what the extensions of a node's books hold into them; `rest` is what follows the body.
///
/// # Errors
/// When an extension cannot be read: the peer's fault.
pub fn read_reservation(rest: &[u8], books: &mut NodeBooksReply) -> Result<(), BodyError> {
    books.reservation = read_extension(rest, EXTENSION_RESERVATION)?;
    if let Some(reservation) = &mut books.reservation {
        reservation.standing = read_extension(rest, EXTENSION_RESERVATION_STANDING)?.unwrap_or_default();
    }
    Ok(())
}

/// Puts what the extensions of a status say of reservations into it.
///
/// # Errors
/// When the extension cannot be read: the peer's fault.
pub fn read_reserved(rest: &[u8], status: &mut StatusReply) -> Result<(), BodyError> {
    status.reserved = read_extension(rest, EXTENSION_RESERVED)?.unwrap_or_default();
    Ok(())
}

/// Puts what the extensions of a page say of reservations into its nodes.
///
/// # Errors
/// When the extension cannot be read, or speaks of nodes that are not on the page: the peer's fault.
pub fn read_reserved_nodes(rest: &[u8], page: &mut ListDetailsReply) -> Result<(), BodyError> {
    let reserved: ReservedNodes = read_extension(rest, EXTENSION_RESERVED_NODES)?.unwrap_or_default();
    for node in reserved.nodes {
        let listed = element(&mut page.nodes, usize::from(node.at), EXTENSION_RESERVED_NODES)?;
        listed.reserved = Some(node);
    }
    Ok(())
}

/// The reserved nodes of a page, for its extension.
#[must_use]
pub fn reserved_nodes(page: &ListDetailsReply) -> ReservedNodes {
    let places = (0u16..).zip(&page.nodes);
    let reserved = places.filter_map(|(at, node)| node.reserved.map(|there| ReservedNode { at, ..there }));
    ReservedNodes { nodes: reserved.collect() }
}
