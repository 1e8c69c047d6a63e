//! What a view holds of a node and of an allocation.

use std::sync::Arc;

use crate::books::{CustomBook, Reservation, UnhealthyBook};
use crate::ids::{AllocationId, NodeId, Ordinal, OwnerId, PartitionId, StatementId};
use crate::index::Slot;
use crate::limits::GPU_INSTANCES_MAX;
use crate::node::{NodeRegistration, NodeState};
use crate::resource::{
    Amount, CustomAmounts, Demand, GpuAssignment, GpuBooks, GpuRequest, ReservedAmounts, UnitAssignments,
};
use crate::time::Time;

/// No allocation: the end of a node's list.
pub(crate) const NO_ALLOCATION: u32 = u32::MAX;

/// What placements change of a node, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotImage {
    /// Which node; without a meaning where the slot is vacant.
    pub id: NodeId,
    /// Its place in the order of registration.
    pub ordinal: Ordinal,
    /// Counts its changes.
    pub version: u64,
    /// Free cores: less what is reserved for somebody.
    pub cpu: Amount,
    /// Free MiB, likewise.
    pub memory: Amount,
    /// The free part of each GPU instance, likewise; nothing of an unhealthy one.
    pub gpus: GpuBooks,
    /// Live allocations.
    pub allocations: u32,
    /// Where the first of them stands.
    pub(crate) first_allocation: u32,
    /// Wholly free GPUs.
    pub whole_gpus: u16,
    /// The largest free part of one, in 1/10 000.
    pub largest_gpu_part: u16,
    /// How many more allocations the node may hold: 0 or less where it holds as many as it may.
    pub places: i16,
    /// The partition that owns it.
    pub partition: PartitionId,
    /// None: no node has this slot.
    pub state: Option<NodeState>,
}

impl Default for HotImage {
    fn default() -> Self {
        Self {
            id: NodeId(0),
            ordinal: Ordinal(0),
            version: 0,
            cpu: Amount::ZERO,
            memory: Amount::ZERO,
            gpus: GpuBooks::default(),
            allocations: 0,
            first_allocation: NO_ALLOCATION,
            whole_gpus: 0,
            largest_gpu_part: 0,
            places: 0,
            partition: PartitionId(0),
            state: None,
        }
    }
}

/// What is in use beyond the capacity of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortfalls {
    pub(crate) cpu: Amount,
    pub(crate) memory: Amount,
    pub(crate) gpus: [u32; GPU_INSTANCES_MAX],
}

/// What placements seldom change of a node. Replaced as a whole when any of it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdImage {
    /// Names, capacity, labels, taints: replaced only when one of these changes.
    pub registration: Arc<NodeRegistration>,
    /// None: nothing is in use beyond capacity, of what every node has.
    pub(crate) shortfalls: Option<Box<Shortfalls>>,
    /// None: every GPU instance is healthy.
    pub(crate) unhealthy: Option<Box<UnhealthyBook>>,
    /// Sorted by id.
    pub(crate) custom: Box<[CustomBook]>,
    pub(crate) reservation: Option<Box<Reservation>>,
    /// What statements hold here that are not decided, by statement.
    pub holds: Box<[HoldImage]>,
    /// None: nothing is on its way out, and nothing is claimed.
    pub pending: Option<Box<PendingImage>>,
}

/// What is to change on a node by itself: whoever plans a claim
/// ([`Pipeline`](crate::statement::Operation::Pipeline)) plans on this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingImage {
    /// Allocations on their way out, in order of id, and when each ends at the latest; until it ends each is
    /// among the node's allocations.
    pub releasing: Box<[(AllocationId, Time)]>,
    /// Claims of committed statements, in the order in which they are served.
    pub claims: Box<[ClaimImage]>,
}

/// A claim on what is being released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimImage {
    /// The id of its allocation, once all of its own has come free.
    pub id: AllocationId,
    /// What it claims.
    pub demand: Demand,
    /// Which GPU instances.
    pub gpus: GpuAssignment,
    /// Which units of unit-instance kinds.
    pub units: Option<Arc<UnitAssignments>>,
}

/// What a statement that is not decided holds on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldImage {
    /// The statement.
    pub statement: StatementId,
    /// The place of the operation in it.
    pub operation: u16,
    /// What was taken, and of which GPU instances; none: an eviction, which takes nothing, or a claim on
    /// what is being released.
    pub taken: Option<(Demand, GpuAssignment)>,
    /// The allocation that is about to be evicted.
    pub evicts: Option<AllocationId>,
}

impl ColdImage {
    /// For whom the node is reserved, what still is, and until when.
    #[must_use]
    pub fn reservation(&self) -> Option<(OwnerId, &ReservedAmounts, Option<Time>)> {
        self.reservation.as_ref().map(|there| (there.owner, &there.left, there.until))
    }

    /// Which GPU instances are unhealthy, ascending, and why.
    #[must_use]
    pub fn unhealthy(&self) -> &[(u8, Arc<str>)] {
        self.unhealthy.as_ref().map_or(&[], |book| book.reasons())
    }

    /// What is free of each custom kind, in order of id.
    pub fn custom_available(&self) -> impl Iterator<Item = (crate::ids::ResourceId, Amount)> {
        self.custom.iter().map(|book| (book.id, book.available))
    }
}

/// A live allocation, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationImage {
    /// Its id; without a meaning where nothing stands.
    pub id: AllocationId,
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// What it asked of GPUs.
    pub gpu: GpuRequest,
    /// Which instances it holds.
    pub gpus: GpuAssignment,
    /// The slot of its node; none: nothing stands here.
    pub(crate) node: Option<Slot>,
    /// The next one of the node.
    pub(crate) next: u32,
    /// Whether it holds custom kinds.
    pub(crate) has_more: bool,
}

impl Default for AllocationImage {
    fn default() -> Self {
        let incarnation = crate::ids::Incarnation(0);
        let partition = PartitionId(0);
        Self {
            id: AllocationId { incarnation, partition, sequence: 0 },
            cpu: Amount::ZERO,
            memory: Amount::ZERO,
            gpu: GpuRequest::None,
            gpus: GpuAssignment::NONE,
            node: None,
            next: NO_ALLOCATION,
            has_more: false,
        }
    }
}

impl AllocationImage {
    /// With what else it holds.
    pub(crate) fn view(&self, more: Option<&MoreImage>) -> AllocationView {
        let custom = more.and_then(|more| more.custom.clone());
        let demand = Demand { cpu: self.cpu, memory: self.memory, gpu: self.gpu, custom };
        let units = more.and_then(|more| more.units.clone());
        AllocationView { id: self.id, demand, gpus: self.gpus, units }
    }

    /// Whether it is the same allocation, holding the same on the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { next: self.next, ..*other }
    }
}

/// What few allocations hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MoreImage {
    pub(crate) custom: Option<CustomAmounts>,
    pub(crate) units: Option<Arc<UnitAssignments>>,
}

/// A live allocation of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationView {
    /// Its id.
    pub id: AllocationId,
    /// What it holds.
    pub demand: Demand,
    /// Which GPU instances.
    pub gpus: GpuAssignment,
    /// Which units of unit-instance kinds.
    pub units: Option<Arc<UnitAssignments>>,
}
