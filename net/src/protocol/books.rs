//! Adoptions, changes of single resources of a node, and a node's books.

use wharf_core::limits::{CUSTOM_RESOURCES_MAX, GPU_INSTANCES_MAX, RESOURCE_KINDS_MAX, UNIT_INSTANCES_MAX};

use super::bounded::{NAME, PROSE};
use super::{DemandBody, NamedAmount, ReservationBody};

/// Maximum number of instances in one node's books: those of all custom kinds, and GPUs.
const INSTANCES_MAX: usize = UNIT_INSTANCES_MAX * CUSTOM_RESOURCES_MAX * 2 + GPU_INSTANCES_MAX;

bodies! {
    /// Units of one unit-instance resource.
    pub struct NamedUnits {
        /// The resource kind.
        pub name: String [NAME],
        /// Unit ids, ascending.
        pub instances: Vec<u8> [UNIT_INSTANCES_MAX],
        /// The part of each unit, in 1/10,000. Ignored in requests.
        pub part: u16,
    }

    /// Adopts an allocation that another system made, even above capacity. The reply is a
    /// [`PlaceReply`](super::PlaceReply).
    pub struct AdoptRequest {
        /// The node's name.
        pub node: String [NAME],
        /// The amounts that the allocation holds.
        pub demand: DemandBody,
        /// The GPU instances. If none are named, the service chooses them.
        pub gpus: Vec<u8> [GPU_INSTANCES_MAX],
        /// Units of unit-instance resources. For kinds that are not named, the service chooses the units.
        pub units: Vec<NamedUnits> [CUSTOM_RESOURCES_MAX],
        /// The name that the allocation's maker gave it, or empty. Adopting it again on this node with the
        /// same name and demand returns the existing allocation.
        pub external_id: String [NAME],
        /// Who the allocation belongs to; 0: the operator.
        pub tenant: u16,
    }

    /// Replaces the capacity of some resources of a node, all or none. The reply is a
    /// [`NodesReply`](super::NodesReply) of one node. The next report of the node's agent overwrites the
    /// change.
    pub struct SetResourcesRequest {
        /// The node's name.
        pub node: String [NAME],
        /// `cpu`, `memory`, `gpu` or a custom kind that the service knows, each with its new total. A total
        /// of 0 removes the resource. Usage beyond the total is a shortfall.
        pub resources: Vec<NamedAmount> [CUSTOM_RESOURCES_MAX + 3],
    }

    /// Asks for the books of a node.
    pub struct NodeBooksRequest {
        /// The node's name.
        pub node: String [NAME],
    }

    /// The books of one resource of a node, in 1/10,000 of its unit: `available + allocated + held +
    /// releasing + reserved + unhealthy = total + shortfall`.
    pub struct BookBody {
        /// `cpu`, `memory`, `gpu` or a custom name.
        pub name: String [NAME],
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
    pub struct InstanceBody {
        /// `gpu` or a custom name.
        pub name: String [NAME],
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
        pub reason: String [PROSE],
    }

    /// The books of a node.
    pub struct NodeBooksReply {
        /// The node's id.
        pub node: u64,
        /// The number of live allocations.
        pub allocations: u32,
        /// The books of each resource.
        pub resources: Vec<BookBody> [RESOURCE_KINDS_MAX + 3],
        /// The instances of each resource that has any.
        pub instances: Vec<InstanceBody> [INSTANCES_MAX],
        /// The node's reservation, if any.
        pub reservation: Option<ReservationBody>,
    }
}
