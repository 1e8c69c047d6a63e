//! The images of nodes and allocations in a view.

use std::sync::Arc;

use crate::books::{Cause, CustomBook, Entry, Shortfalls};
use crate::ids::{AllocationId, NodeId, Ordinal, OwnerId, PartitionId, StatementId, TenantId};
use crate::index::Slot;
use crate::node::{NodeRegistration, NodeState};
use crate::resource::{
    Amount, CustomAmounts, Demand, GpuAssignment, GpuBooks, GpuRequest, ReservedAmounts, UnitAssignments,
};
use crate::time::Time;

/// The end of a node's list of allocations.
pub(crate) const NO_ALLOCATION: u32 = u32::MAX;

/// The part of a node's image that placements change, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotImage {
    /// The id of the node. Meaningless if the slot is vacant.
    pub id: NodeId,
    /// The node's position in the order of registration.
    pub ordinal: Ordinal,
    /// A counter of the node's changes.
    pub version: u64,
    /// Free cores, excluding reserved capacity.
    pub cpu: Amount,
    /// Free memory in MiB, excluding reserved capacity.
    pub memory: Amount,
    /// The free part of each GPU instance, excluding reserved capacity. 0 for an unhealthy instance.
    pub gpus: GpuBooks,
    /// The number of live allocations.
    pub allocations: u32,
    /// The place of the first of them in the ledger.
    pub(crate) first_allocation: u32,
    /// The number of wholly free GPUs.
    pub whole_gpus: u16,
    /// The largest free part of one GPU, in 1/10 000.
    pub largest_gpu_part: u16,
    /// How many more allocations the node may hold. 0 or less if it is full.
    pub places: i16,
    /// The partition that owns the node.
    pub partition: PartitionId,
    /// The state of the node. `None`: the slot is vacant.
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

/// The part of a node's image that placements seldom change. It is replaced as a whole when any of it
/// changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdImage {
    /// Names, capacity, labels and taints. Replaced only when one of these changes.
    pub registration: Arc<NodeRegistration>,
    /// Shortfalls of cpu, memory and GPUs. `None`: there are none.
    pub(crate) shortfalls: Option<Box<Shortfalls>>,
    /// Sorted by id.
    pub(crate) custom: Box<[CustomBook]>,
    /// The withheld amounts, except those of claims.
    pub(crate) entries: Box<[Entry]>,
    /// What undecided statements hold here, by statement.
    pub holds: Box<[HoldImage]>,
    /// `None`: nothing is releasing and nothing is claimed.
    pub pending: Option<Box<PendingImage>>,
}

/// The changes that are due on a node: releasing allocations and claims. A plan for a claim
/// ([`Pipeline`](crate::statement::Operation::Pipeline)) is based on this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingImage {
    /// The releasing allocations in order of id, and the time at which each ends at the latest. Until then,
    /// each is among the node's allocations.
    pub releasing: Box<[(AllocationId, Time)]>,
    /// The claims of committed statements, in the order in which they are served: each as the allocation that it becomes
    /// once all its capacity has come free.
    pub claims: Box<[AllocationView]>,
}

/// What an undecided statement holds on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldImage {
    /// The statement.
    pub statement: StatementId,
    /// The index of the operation in the statement.
    pub operation: u16,
    /// The amounts and GPU instances taken. `None`: an eviction, which takes nothing, or a claim on capacity
    /// that is being released.
    pub taken: Option<(Demand, GpuAssignment)>,
    /// The allocation that is about to be evicted.
    pub evicts: Option<AllocationId>,
}

impl ColdImage {
    /// Returns the owner of the node's reservation, the amounts still reserved, and the time at which it
    /// ends.
    #[must_use]
    pub fn reservation(&self) -> Option<(OwnerId, &ReservedAmounts, Option<Time>)> {
        self.entries.iter().find_map(|entry| match &entry.cause {
            Cause::Reservation(there) => Some((there.owner, &there.left, there.until)),
            _ => None,
        })
    }

    /// Returns the unhealthy GPU instances, ascending, with reasons.
    #[must_use]
    pub fn unhealthy(&self) -> &[(u8, Arc<str>)] {
        match self.entries.first() {
            Some(Entry { cause: Cause::Unhealthy(instances), .. }) => instances,
            _ => &[],
        }
    }

    /// Returns the free amount of each custom kind, in order of id.
    pub fn custom_available(&self) -> impl Iterator<Item = (crate::ids::ResourceId, Amount)> {
        self.custom.iter().map(|book| (book.id, book.available))
    }
}

/// A live allocation, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationImage {
    /// The id. Meaningless if the place is vacant.
    pub id: AllocationId,
    /// Cores.
    pub cpu: Amount,
    /// Memory in MiB.
    pub memory: Amount,
    /// The GPU request.
    pub gpu: GpuRequest,
    /// The GPU instances that it holds.
    pub gpus: GpuAssignment,
    /// The slot of its node. `None`: the place is vacant.
    pub(crate) node: Option<Slot>,
    /// The next allocation of the node.
    pub(crate) next: u32,
    /// Set if it holds custom kinds.
    pub(crate) has_more: bool,
}

impl Default for AllocationImage {
    fn default() -> Self {
        let incarnation = crate::ids::Incarnation(0);
        let partition = PartitionId(0);
        Self {
            id: AllocationId { incarnation, partition, sequence: 0, tenant: TenantId::OPERATOR },
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
    /// Combines the image with its custom kinds.
    pub(crate) fn view(&self, more: Option<&MoreImage>) -> AllocationView {
        let custom = more.and_then(|more| more.custom.clone());
        let demand = Demand { cpu: self.cpu, memory: self.memory, gpu: self.gpu, custom };
        let units = more.and_then(|more| more.units.clone());
        AllocationView { id: self.id, demand, gpus: self.gpus, units }
    }

    /// Returns whether it is the same allocation and holds the same on the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { next: self.next, ..*other }
    }
}

/// The part of an allocation that few allocations have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MoreImage {
    pub(crate) custom: Option<CustomAmounts>,
    pub(crate) units: Option<Arc<UnitAssignments>>,
}

/// A live allocation of a view, or a claim on capacity that is being released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationView {
    /// The id.
    pub id: AllocationId,
    /// The demand that it holds.
    pub demand: Demand,
    /// The GPU instances.
    pub gpus: GpuAssignment,
    /// The units of unit-instance kinds.
    pub units: Option<Arc<UnitAssignments>>,
}
