//! Adoption of allocations made elsewhere, single resources of a node, and a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, RESOURCE_KINDS_MAX, UNIT_INSTANCES_MAX};

use super::bounded::{self, field};
use super::extension::{element, malformed, read_extension};
use super::{EXTENSION_WAITING, NamedAmount, PlaceReply, PlacedBody, ReservationBody, StatusReply};
use crate::codec::{BodyError, encode_body};

/// Tag of the extension of a placement's reply that names the units of unit-instance kinds
/// ([`PlacedUnits`]). Ignorable: the allocation holds them whether or not a client reads it.
pub const EXTENSION_UNITS: u16 = 1;

/// Most instances of one node in its books: of every custom kind, and GPUs.
const INSTANCES_MAX: usize = UNIT_INSTANCES_MAX * CUSTOM_RESOURCES_MAX * 2 + GPU_INSTANCES_MAX;

/// Units of one unit-instance kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedUnits {
    /// The kind.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// Unit ids, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Instances, UNIT_INSTANCES_MAX>")]
    pub instances: Vec<u8>,
    /// How much of each, in 1/10 000; not read in requests.
    pub part: u16,
}

/// The units of one placement of a reply: content of [`EXTENSION_UNITS`], a list of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedUnits {
    /// Which placement of a batch; 0 where there is one.
    pub place: u32,
    /// Per unit-instance kind that was asked for.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Units, CUSTOM_RESOURCES_MAX>")]
    pub units: Vec<NamedUnits>,
}

/// Appends the content of [`EXTENSION_UNITS`] for a reply of these placements to `out`; nothing
/// where none has units, which is nearly always.
pub fn units_extension<'a>(places: impl IntoIterator<Item = &'a PlaceReply>, out: &mut Vec<u8>) {
    write_units(places.into_iter().map(|reply| reply.placed.as_ref()), out);
}

/// As [`units_extension`], of whatever was placed, by place in the reply.
pub(super) fn write_units<'a>(places: impl Iterator<Item = Option<&'a PlacedBody>>, out: &mut Vec<u8>) {
    let placed = (0u32..).zip(places).filter_map(|(place, placed)| {
        let units = placed.filter(|placed| !placed.units.is_empty())?.units.clone();
        Some(PlacedUnits { place, units })
    });
    let placed: Vec<PlacedUnits> = placed.collect();
    if !placed.is_empty() {
        encode_body(&placed, out);
    }
}

/// Puts the units that the extensions of a reply name into its placements; `rest` is what follows
/// the body.
///
/// # Errors
/// When the extension cannot be read, or speaks of placements that the reply does not have: the peer's fault.
pub fn read_units<'a>(
    rest: &[u8],
    places: impl IntoIterator<Item = &'a mut PlaceReply>,
) -> Result<(), BodyError> {
    take_units(rest, places.into_iter().map(|reply| reply.placed.as_mut()))
}

/// As [`read_units`], into whatever was placed, by place in the reply.
pub(super) fn take_units<'a>(
    rest: &[u8],
    places: impl Iterator<Item = Option<&'a mut PlacedBody>>,
) -> Result<(), BodyError> {
    let Some(listed) = read_extension::<Vec<PlacedUnits>>(rest, EXTENSION_UNITS)? else { return Ok(()) };
    let mut places: Vec<Option<&mut PlacedBody>> = places.collect();
    for PlacedUnits { place, units } in listed {
        match element(&mut places, place as usize, EXTENSION_UNITS)? {
            Some(placed) => placed.units = units,
            None => return Err(malformed(EXTENSION_UNITS, format_args!("nothing was placed at {place}"))),
        }
    }
    Ok(())
}

/// Puts what the extensions of a status hold into it; `rest` is what follows the body.
///
/// # Errors
/// When the extension cannot be read: the peer's fault.
pub fn read_waiting(rest: &[u8], status: &mut StatusReply) -> Result<(), BodyError> {
    status.waiting = read_extension(rest, EXTENSION_WAITING)?.unwrap_or_default();
    Ok(())
}

/// Records an allocation that was made elsewhere, also above capacity. The reply is a
/// [`PlaceReply`](super::PlaceReply).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// Cores, in 1/10 000.
    pub cpu: i64,
    /// MiB, in 1/10 000.
    pub memory: i64,
    /// GPU devices, in 1/10 000: less than one, or whole.
    pub gpu: i64,
    /// Custom resources.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Custom, CUSTOM_RESOURCES_MAX>")]
    pub custom: Vec<NamedAmount>,
    /// The GPU instances; chosen by the service if none are named.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u8>,
    /// Units of unit-instance kinds; chosen by the service for kinds that are not named.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Units, CUSTOM_RESOURCES_MAX>")]
    pub units: Vec<NamedUnits>,
    /// The name that its maker gave it, or empty: adopted again on this node under this name with
    /// the same demand, it is answered and not recorded again.
    #[serde(deserialize_with = "bounded::name::<_, field::ExternalId>")]
    pub external_id: String,
}

/// Exchanges the capacity of some resources of a node, all or none. The reply is a
/// [`NodesReply`](super::NodesReply) of one node. The next report of the node's agent overwrites it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResourcesRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// `cpu`, `memory`, `gpu` or a custom kind that the service knows, each with its new total; 0
    /// takes it away. What is in use beyond it is a shortfall.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub resources: Vec<NamedAmount>,
}

/// Asks for the books of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBooksRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
}

/// The books of one resource of a node, in 1/10 000:
/// `available + allocated + held + releasing + reserved + unhealthy = total + shortfall`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookBody {
    /// `cpu`, `memory`, `gpu` or a custom name.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// Capacity.
    pub total: i64,
    /// Free for new work.
    pub available: i64,
    /// Held by live allocations.
    pub allocated: i64,
    /// Held by undecided statements.
    pub held: i64,
    /// Held by allocations that are on their way out.
    pub releasing: i64,
    /// Promised out of what is releasing.
    pub pipelined: i64,
    /// Set aside for a reservation.
    pub reserved: i64,
    /// There, and not usable.
    pub unhealthy: i64,
    /// In use beyond capacity.
    pub shortfall: i64,
    /// Asked for by waiting requests whose home the node is.
    pub load: i64,
}

/// One instance of a GPU or of a unit-instance kind, in 1/10 000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceBody {
    /// `gpu` or a custom name.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// Its id on the node.
    pub instance: u8,
    /// Its free part.
    pub available: u32,
    /// What allocations hold of it.
    pub allocated: u32,
    /// What of that is beyond the whole instance.
    pub shortfall: u32,
    /// What is free of it and not offered because it is unhealthy. As `reason`, it stands in the
    /// extension [`EXTENSION_UNHEALTHY`] of the frame, not in the body.
    #[serde(skip)]
    pub unhealthy: u32,
    /// Why it is unhealthy, as its agent said; empty if it is not.
    #[serde(skip)]
    pub reason: String,
}

/// Tag of the extension of a reply to `NodeBooks` that says which instances are unhealthy
/// ([`UnhealthyInstances`]). Ignorable.
pub const EXTENSION_UNHEALTHY: u16 = 3;

/// One unhealthy instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnhealthyInstance {
    /// Its place in the list of the reply.
    pub at: u32,
    /// What is free of it and not offered.
    pub unhealthy: u32,
    /// Why.
    #[serde(deserialize_with = "bounded::prose::<_, field::Reason>")]
    pub reason: String,
}

/// Content of [`EXTENSION_UNHEALTHY`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnhealthyInstances {
    /// In the order of the reply.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Unhealthy, GPU_INSTANCES_MAX>")]
    pub instances: Vec<UnhealthyInstance>,
}

/// Appends the content of [`EXTENSION_UNHEALTHY`] for `reply` to `out`; nothing where all are healthy.
pub fn unhealthy_extension(reply: &NodeBooksReply, out: &mut Vec<u8>) {
    let listed = (0u32..).zip(&reply.instances).filter(|(_, instance)| !instance.reason.is_empty());
    let unhealthy = listed.map(|(at, InstanceBody { unhealthy, reason, .. })| {
        let (unhealthy, reason) = (*unhealthy, reason.clone());
        UnhealthyInstance { at, unhealthy, reason }
    });
    let instances: Vec<_> = unhealthy.collect();
    if !instances.is_empty() {
        encode_body(&UnhealthyInstances { instances }, out);
    }
}

/// Puts what the extensions of a node's books hold into them; `rest` is what follows the body.
///
/// # Errors
/// When the extension cannot be read, or speaks of instances that the books do not have: the peer's fault.
pub fn read_unhealthy(rest: &[u8], reply: &mut NodeBooksReply) -> Result<(), BodyError> {
    let listed: UnhealthyInstances = read_extension(rest, EXTENSION_UNHEALTHY)?.unwrap_or_default();
    for UnhealthyInstance { at, unhealthy, reason } in listed.instances {
        let instance = element(&mut reply.instances, at as usize, EXTENSION_UNHEALTHY)?;
        (instance.unhealthy, instance.reason) = (unhealthy, reason);
    }
    Ok(())
}

/// The books of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBooksReply {
    /// Its id.
    pub node: u64,
    /// Live allocations.
    pub allocations: u32,
    /// Per resource.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { RESOURCE_KINDS_MAX + 3 }>")]
    pub resources: Vec<BookBody>,
    /// The instances, per resource that has any.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Instances, INSTANCES_MAX>")]
    pub instances: Vec<InstanceBody>,
    /// For whom it is reserved. It stands in the extension
    /// [`EXTENSION_RESERVATION`](super::EXTENSION_RESERVATION) of the frame.
    #[serde(skip)]
    pub reservation: Option<ReservationBody>,
}
