//! Adoptions, changes of single resources of a node, and a node's books.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, RESOURCE_KINDS_MAX, UNIT_INSTANCES_MAX};

use super::bounded::{self, field};
use super::{DemandBody, NamedAmount, ReservationBody};

/// Maximum number of instances in one node's books: those of all custom kinds, and GPUs.
const INSTANCES_MAX: usize = UNIT_INSTANCES_MAX * CUSTOM_RESOURCES_MAX * 2 + GPU_INSTANCES_MAX;

/// Units of one unit-instance resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedUnits {
    /// The resource kind.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// Unit ids, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Instances, UNIT_INSTANCES_MAX>")]
    pub instances: Vec<u8>,
    /// The part of each unit, in 1/10,000. Ignored in requests.
    pub part: u16,
}

/// Adopts an allocation that another system made, even above capacity. The reply is a
/// [`PlaceReply`](super::PlaceReply).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptRequest {
    /// The node's name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// The amounts that the allocation holds.
    pub demand: DemandBody,
    /// The GPU instances. If none are named, the service chooses them.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Gpus, GPU_INSTANCES_MAX>")]
    pub gpus: Vec<u8>,
    /// Units of unit-instance resources. For kinds that are not named, the service chooses the units.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Units, CUSTOM_RESOURCES_MAX>")]
    pub units: Vec<NamedUnits>,
    /// The name that the allocation's maker gave it, or empty. Adopting it again on this node with the same
    /// name and demand returns the existing allocation.
    #[serde(deserialize_with = "bounded::name::<_, field::ExternalId>")]
    pub external_id: String,
}

/// Replaces the capacity of some resources of a node, all or none. The reply is a
/// [`NodesReply`](super::NodesReply) of one node. The next report of the node's agent overwrites the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResourcesRequest {
    /// The node's name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
    /// `cpu`, `memory`, `gpu` or a custom kind that the service knows, each with its new total. A total of 0
    /// removes the resource. Usage beyond the total is a shortfall.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { CUSTOM_RESOURCES_MAX + 3 }>")]
    pub resources: Vec<NamedAmount>,
}

/// Asks for the books of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBooksRequest {
    /// The node's name.
    #[serde(deserialize_with = "bounded::name::<_, field::NodeName>")]
    pub node: String,
}

/// The books of one resource of a node, in 1/10,000 of its unit: `available + allocated + held + releasing +
/// reserved + unhealthy = total + shortfall`.
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
    /// Held by releasing allocations.
    pub releasing: i64,
    /// Claimed from releasing capacity.
    pub pipelined: i64,
    /// Withheld for a reservation.
    pub reserved: i64,
    /// Present, but unhealthy.
    pub unhealthy: i64,
    /// In use beyond capacity.
    pub shortfall: i64,
    /// Demand of the waiting requests whose home is this node.
    pub load: i64,
}

/// One instance of a GPU or of a unit-instance resource, in 1/10,000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceBody {
    /// `gpu` or a custom name.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// The instance's id on the node.
    pub instance: u8,
    /// The free part.
    pub available: u32,
    /// The part that allocations hold.
    pub allocated: u32,
    /// The part of `allocated` beyond the whole instance.
    pub shortfall: u32,
    /// The free part that is withheld because the instance is unhealthy.
    pub unhealthy: u32,
    /// Why the instance is unhealthy, as its agent reported. Empty if it is healthy.
    #[serde(deserialize_with = "bounded::prose::<_, field::Reason>")]
    pub reason: String,
}

/// The books of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBooksReply {
    /// The node's id.
    pub node: u64,
    /// The number of live allocations.
    pub allocations: u32,
    /// The books of each resource.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { RESOURCE_KINDS_MAX + 3 }>")]
    pub resources: Vec<BookBody>,
    /// The instances of each resource that has any.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Instances, INSTANCES_MAX>")]
    pub instances: Vec<InstanceBody>,
    /// The node's reservation, if any.
    pub reservation: Option<ReservationBody>,
}
