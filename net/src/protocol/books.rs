//! Adoption of allocations made elsewhere, single resources of a node, and a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, RESOURCE_KINDS_MAX, UNIT_INSTANCES_MAX};

use super::bounded::{self, field};
use super::{DemandBody, NamedAmount, ReservationBody};

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

/// Records an allocation that was made elsewhere, also above capacity. The reply is a
/// [`PlaceReply`](super::PlaceReply).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptRequest {
    /// The node, by name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// What the allocation holds.
    pub demand: DemandBody,
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
    /// What is free of it and not offered because it is unhealthy.
    pub unhealthy: u32,
    /// Why it is unhealthy, as its agent said; empty if it is not.
    #[serde(deserialize_with = "bounded::prose::<_, field::Reason>")]
    pub reason: String,
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
    /// For whom it is reserved.
    pub reservation: Option<ReservationBody>,
}
