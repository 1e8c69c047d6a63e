//! A shard's state as data for checkers: its durable state, and the books of its nodes as callers see them.

use wharf_core::ids::{NodeId, ShardId};
use wharf_core::node::{NodeState, TaintEffect};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{GPU_UNIT, GpuRequest, ResourceKind};
use wharf_core::shard::{Command, NodeBooks, Outcome, Shard};
use wharf_core::state::{AllocationRecord, NodeRecord, PartitionState};
use wharf_core::time::Time;

/// A shard's state at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The state that a stop would keep.
    pub partitions: Vec<PartitionState>,
    /// The books of its nodes, in no particular order.
    pub books: Vec<NodeBooks>,
}

impl Facts {
    /// Returns the current state of `shard`.
    #[must_use]
    pub fn of(shard: &Shard) -> Self {
        Self { partitions: shard.export().partitions, books: shard.books() }
    }

    /// Returns the shard's nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.partitions.iter().flat_map(|partition| &partition.nodes)
    }

    /// Returns one node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes().find(|node| node.registration.id == id)
    }

    /// Returns the books of one node.
    #[must_use]
    pub fn books_of(&self, id: NodeId) -> Option<&NodeBooks> {
        self.books.iter().find(|books| books.node == id)
    }

    /// Returns the shard's allocations.
    pub fn allocations(&self) -> impl Iterator<Item = &AllocationRecord> {
        self.partitions.iter().flat_map(|partition| &partition.allocations)
    }

    /// Returns whether the node takes new work and offers everyone what `request` asks.
    ///
    /// Reservations for the request's owner and custom resources are ignored. So the request may fit although
    /// this returns false.
    #[must_use]
    pub fn offers(&self, id: NodeId, request: &PlacementRequest) -> bool {
        let (Some(node), Some(books)) = (self.node(id), self.books_of(id)) else { return false };
        let demand = &request.demand;
        node_admits(node, request)
            && available(books, ResourceKind::Cpu) >= demand.cpu.units()
            && available(books, ResourceKind::Memory) >= demand.memory.units()
            && offers_gpus(books, demand.gpu)
            && demand.custom().is_empty()
    }
}

/// Returns whether a node takes new work, including that of `request`. Tolerations and fallbacks are ignored.
#[must_use]
pub fn node_admits(node: &NodeRecord, request: &PlacementRequest) -> bool {
    let NodeRecord { registration, state, .. } = node;
    let spec = &registration.spec;
    *state == NodeState::Ready
        && request.selector.as_ref().is_none_or(|selector| selector.holds(&spec.labels))
        && request.candidates.as_ref().is_none_or(|named| named.contains(&registration.id))
        && !spec.taints.as_slice().iter().any(|taint| taint.effect != TaintEffect::PreferNoSchedule)
}

/// Returns the available amount of one resource on a node.
#[must_use]
pub fn available(books: &NodeBooks, kind: ResourceKind) -> i64 {
    books.resources.iter().find(|(known, _)| *known == kind).map_or(0, |(_, book)| book.available)
}

/// Returns the available part of each GPU instance.
pub fn gpus_available(books: &NodeBooks) -> impl Iterator<Item = (u8, u32)> {
    let gpus = books.instances.iter().filter(|(kind, _)| *kind == ResourceKind::Gpu);
    gpus.flat_map(|(_, gpus)| gpus).map(|gpu| (gpu.instance, gpu.available))
}

/// Returns the part of a healthy GPU instance that no allocation holds: it is available or withheld.
#[must_use]
pub fn gpu_not_allocated(books: &NodeBooks, instance: u8) -> u32 {
    let gpus = books.instances.iter().filter(|(kind, _)| *kind == ResourceKind::Gpu);
    let gpu = gpus.flat_map(|(_, gpus)| gpus).find(|gpu| gpu.instance == instance);
    gpu.map_or(0, |gpu| (u32::from(GPU_UNIT) + gpu.shortfall).saturating_sub(gpu.allocated + gpu.unhealthy))
}

fn offers_gpus(books: &NodeBooks, asked: GpuRequest) -> bool {
    let with = |part: u16| gpus_available(books).filter(move |&(_, free)| free >= u32::from(part)).count();
    match asked {
        GpuRequest::None => true,
        GpuRequest::Fraction(part) => with(part) >= 1,
        GpuRequest::Whole(count) => with(GPU_UNIT) >= usize::from(count),
    }
}

/// One command that a shard carried out.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The shard.
    pub shard: ShardId,
    /// The time of the command.
    pub now: Time,
    /// The command.
    pub command: &'a Command,
    /// The outcome.
    pub outcome: &'a Outcome,
    /// The state before the command.
    pub before: &'a Facts,
    /// The state after the command.
    pub after: &'a Facts,
}
