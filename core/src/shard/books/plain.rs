//! Placements and releases without extras, which are nearly all. They do what the general ways of [`Books`] do, but read
//! the node and the record once.

use super::table::{HotNode, Room, give_to, take_from};
use super::{Allocation, Books};
use crate::books::PROMISED;
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::journal::{BeginCause, Effect};
use crate::node::NodeState;
use crate::planted::{PlantedBug, is_planted};
use crate::request::{Placement, PlacementRequest};
use crate::resource::{Amount, Demand, GpuAssignment, GpuRequest};
use crate::shard::choose::Choice;
use crate::view::EndCause;

/// What a plain allocation held, and the books of its node.
pub(super) struct Removed<'a> {
    pub(super) node: Slot,
    pub(super) room: &'a mut Room,
    pub(super) hot: &'a mut HotNode,
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    pub(super) gpu: GpuRequest,
    pub(super) gpus: GpuAssignment,
}

impl Books {
    /// Returns whether there is anything other than nodes and allocations that a placement or a release of the usual kind has
    /// to tell, or to ask.
    pub(crate) fn has_rare(&self) -> bool {
        let is_told = self.nodes.has_rare() | self.ledger.has_rare() | self.effects.is_some();
        let is_asked =
            !self.has_only_allocations() | self.adopted.has_names() | !self.reservations.is_empty();
        is_told | is_asked | self.sums.kept.is_read()
    }

    /// Allocates what `request` asks on a node that was chosen for it. Also returns what the node has free then. `None`, and
    /// nothing is taken, if something other than cpu, memory and GPUs is concerned. Without `RARE`, see
    /// [`has_rare`](Self::has_rare).
    #[inline(always)]
    pub(crate) fn place_plain<const RARE: bool>(
        &mut self,
        request: &PlacementRequest,
        choice: &Choice,
    ) -> Option<(Placement, Room)> {
        let &Choice { slot, gpus: None, alternative, is_own: false } = choice else { return None };
        let PlacementRequest { demand, tenant, .. } = request;
        if demand.custom.is_some() {
            return None;
        }
        let (room, hot) = self.nodes.room_and_hot_mut::<RARE>(slot);
        if hot.withheld & PROMISED != 0 {
            return None;
        }
        assert!(room.state == Some(NodeState::Ready), "a node was chosen that takes no new work");
        let gpus = hot.gpus.choose(demand.gpu).expect("the node was checked to fit");
        take_from(room, hot, demand, gpus);
        let left = *room;
        let node = hot.id;
        let incarnation = self.incarnation;
        let unnumbered = AllocationId { incarnation, partition: hot.partition, sequence: 0, tenant: *tenant };
        let allocation = self.ledger.insert_plain::<RARE>(unnumbered, (slot, hot), demand, gpus);
        let taken = [demand.cpu.units(), demand.memory.units(), demand.gpu.units()];
        self.sums.allocate_plain::<RARE>(slot, taken);
        self.sums.placed += 1;
        if RARE && self.effects.is_some() {
            self.note_plain(allocation, slot, demand, gpus);
        }
        Some((Placement { node, allocation, gpus, alternative, units: None }, left))
    }

    #[inline(never)]
    fn note_plain(&mut self, id: AllocationId, node: Slot, demand: &Demand, gpus: GpuAssignment) {
        let demand = demand.clone();
        let allocation = Allocation { id, demand, gpus, units: None, node, is_leased: false };
        self.note_allocated(&allocation, BeginCause::Placed);
    }

    /// Ends an allocation, like [`release`](Self::release). Returns its node, and what it has free then. `None`, and nothing
    /// is given back, if something other than cpu, memory and GPUs is concerned, or if there is no such allocation. Without
    /// `RARE`, see [`has_rare`](Self::has_rare).
    #[inline(always)]
    pub(crate) fn release_plain<const RARE: bool>(&mut self, id: AllocationId) -> Option<(Slot, Room)> {
        if RARE && !self.has_only_allocations() {
            return None;
        }
        let Self { ledger, nodes, .. } = self;
        let places_max = nodes.places_max();
        let removed = ledger.remove_plain::<RARE>(id, |slot| {
            let (room, hot) = nodes.room_and_hot_mut::<RARE>(slot);
            ((hot.withheld == 0) & !hot.has_shortfall).then_some((room, hot))
        })?;
        let Removed { node: slot, room, hot, cpu, memory, gpu, gpus } = removed;
        give_to(room, hot, [cpu, memory], gpus, places_max);
        let free = *room;
        let given = [cpu.units(), memory.units(), gpu.units()].map(i64::wrapping_neg);
        self.sums.allocate_plain::<RARE>(slot, given);
        self.sums.released += 1;
        if RARE {
            if !is_planted(PlantedBug::EffectForgotten) {
                self.note(|| Effect::Ended(id, EndCause::Released));
            }
            self.adopted.forget(id);
        }
        Some((slot, free))
    }
}
