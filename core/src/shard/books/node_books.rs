//! The books of one node as callers see them, and updates of single resources.

use std::sync::Arc;

use super::Books;
use super::held::InUse;
use crate::books::{PROMISED, UNHEALTHY};
use crate::ids::NodeId;
use crate::index::Slot;
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, GPU_UNIT, ResourceKind};
use crate::state::ReservationRecord;

/// The books of one resource on one node, in 1/10,000 units.
///
/// `available + allocated + held + releasing + reserved + unhealthy = total + shortfall`
/// ([`balances`](Self::balances)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Capacity.
    pub total: i64,
    /// Free for new work.
    pub available: i64,
    /// Held by live allocations that are not being evicted.
    pub allocated: i64,
    /// Held by undecided statements.
    pub held: i64,
    /// Held by releasing allocations, which were evicted and have grace left.
    pub releasing: i64,
    /// Claimed from free and releasing capacity. The free part of it is counted in `reserved`.
    pub pipelined: i64,
    /// Free but withheld, for claims and for the owner of a reservation.
    pub reserved: i64,
    /// Free but not offered, because the instance is unhealthy.
    pub unhealthy: i64,
    /// In use beyond capacity. The next releases reduce it first.
    pub shortfall: i64,
    /// Requested by waiting requests whose home is this node. The home is a node of the first shard asked that
    /// could hold the request if the node were empty. It is usually a large node.
    pub load: i64,
}

impl Book {
    /// Returns whether the identity of the books holds.
    #[must_use]
    pub fn balances(&self) -> bool {
        let used = self.allocated + self.held + self.releasing;
        self.available + used + self.reserved + self.unhealthy == self.total + self.shortfall
    }
}

/// One instance of a GPU or of a unit-instance kind, in 1/10,000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceBook {
    /// Its id on the node.
    pub instance: u8,
    /// The free part. Zero for an unhealthy instance.
    pub available: u32,
    /// The part held by statements and by allocations, including releasing ones.
    pub allocated: u32,
    /// The amount of `allocated` that exceeds the whole instance.
    pub shortfall: u32,
    /// Free but not offered, because the instance is unhealthy:
    /// `available + allocated + unhealthy = whole + shortfall`.
    pub unhealthy: u32,
    /// The reason given by the agent, if the instance is unhealthy.
    pub reason: Option<Arc<str>>,
}

/// The books of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBooks {
    /// The node.
    pub node: NodeId,
    /// The number of live allocations.
    pub allocations: u32,
    /// The books per resource: cpu, memory, GPU, then every custom kind that the node has or that allocations
    /// hold.
    pub resources: Vec<(ResourceKind, Book)>,
    /// The reservation of the node, if any.
    pub reservation: Option<ReservationRecord>,
    /// The instances per kind: those that the node has or that allocations hold.
    pub instances: Vec<(ResourceKind, Vec<InstanceBook>)>,
}

impl Books {
    /// Returns the books of one node, without the load of waiting requests. `in_use` is what is in use on it.
    pub(crate) fn node_books(&self, slot: Slot, in_use: &InUse) -> NodeBooks {
        let room = self.nodes.room(slot);
        let hot = self.nodes.hot(slot);
        let cold = self.nodes.cold(slot);
        let held = &in_use.all;
        let spec = &cold.registration.spec;
        let reserved = self.withheld(slot, PROMISED);
        let unhealthy = self.withheld(slot, UNHEALTHY);
        let claimed = self.claimed(slot);
        let book = |kind, total: Amount, available: Amount, shortfall: Amount| Book {
            total: total.units(),
            available: available.units(),
            allocated: in_use.allocated.amount(kind),
            held: in_use.held.amount(kind),
            releasing: in_use.releasing.amount(kind),
            pipelined: claimed.amount(kind),
            shortfall: shortfall.units(),
            ..Book::default()
        };
        let gpu_short = Amount::from_parts(cold.short.gpus.iter().copied());
        let gpu_free = Amount::from_parts((0..GPU_INSTANCES_MAX as u8).map(|i| u32::from(hot.gpus.free(i))));
        let gpu_total = Amount::from_parts((0..spec.gpus).map(|_| u32::from(GPU_UNIT)));
        let mut resources = vec![
            (ResourceKind::Cpu, book(ResourceKind::Cpu, spec.cpu, room.cpu, cold.short.cpu)),
            (ResourceKind::Memory, book(ResourceKind::Memory, spec.memory, room.memory, cold.short.memory)),
            (
                ResourceKind::Gpu,
                Book {
                    unhealthy: unhealthy.gpu_total(),
                    ..book(ResourceKind::Gpu, gpu_total, gpu_free, gpu_short)
                },
            ),
        ];
        let reason = |instance| {
            let said = self.unhealthy(slot).iter().find(|&&(known, _)| known == instance);
            said.map(|(_, reason)| Arc::clone(reason))
        };
        let known = [reserved.cpu.units(), reserved.memory.units(), reserved.gpu_total()];
        for ((_, book), reserved) in resources.iter_mut().zip(known) {
            book.reserved = reserved;
        }
        let gpus = (0..GPU_INSTANCES_MAX as u8).map(|instance| InstanceBook {
            instance,
            available: u32::from(hot.gpus.free(instance)),
            allocated: held.gpus[usize::from(instance)],
            shortfall: cold.short.gpus[usize::from(instance)],
            unhealthy: unhealthy.gpus[usize::from(instance)],
            reason: reason(instance),
        });
        let gpus: Vec<_> = gpus.filter(|gpu| gpu.instance < spec.gpus || gpu.allocated > 0).collect();
        let mut instances = Vec::new();
        if !gpus.is_empty() {
            instances.push((ResourceKind::Gpu, gpus));
        }
        for custom in &cold.custom {
            let kind = ResourceKind::Custom(custom.id);
            let reserved = reserved.of(custom.id).units();
            let of_kind = book(kind, custom.total, custom.available, custom.shortfall);
            resources.push((kind, Book { reserved, ..of_kind }));
            let Some(units) = &custom.units else { continue };
            let units = units.iter().map(|(instance, free, shortfall)| InstanceBook {
                instance,
                available: u32::from(free),
                allocated: held.of_unit(custom.id, instance),
                shortfall,
                unhealthy: 0,
                reason: None,
            });
            instances.push((kind, units.collect()));
        }
        let reservation = self.reservation_view(slot);
        NodeBooks { node: hot.id, allocations: hot.allocations, resources, reservation, instances }
    }
}
