//! What a node has available, and whether a demand fits.

use super::table::NodeTable;
use crate::books::CustomBook;
use crate::ids::{NodeId, ResourceId};
use crate::index::{ResourceVector, Slot};
use crate::node::NodeSpec;
use crate::request::PlacementRequest;
use crate::resource::{Amount, Demand, GpuBooks, GpuRequest};

impl NodeTable {
    /// Returns the slots of the named candidates that are registered here.
    #[inline(always)]
    pub(crate) fn named(&self, request: &PlacementRequest) -> Option<Vec<Slot>> {
        request.candidates.as_ref().map(|ids| self.slots_of(ids))
    }

    #[inline(never)]
    fn slots_of(&self, ids: &[NodeId]) -> Vec<Slot> {
        ids.iter().filter_map(|&id| self.slot(id)).collect()
    }

    /// Returns the availability of a node, as the index uses it.
    #[inline]
    pub(crate) fn available(&self, slot: Slot) -> ResourceVector {
        let vector = self.available_plain(slot);
        if self.indexed().is_empty() { vector } else { self.with_custom(slot, vector) }
    }

    /// The same without custom kinds.
    #[inline(always)]
    pub(crate) fn available_plain(&self, slot: Slot) -> ResourceVector {
        self.room(slot).available()
    }

    /// Adds the availability of the indexed custom kinds to `vector`.
    #[cold]
    fn with_custom(&self, slot: Slot, vector: ResourceVector) -> ResourceVector {
        custom_values(self.indexed(), vector, |id, amount| self.custom_room(slot, id, amount))
    }

    /// Returns what the node would have available if it were empty.
    pub(crate) fn capacity(&self, slot: Slot) -> ResourceVector {
        self.capacity_of(&self.cold(slot).registration.spec)
    }

    /// Returns what an empty node of this capacity would have available.
    pub(crate) fn capacity_of(&self, spec: &NodeSpec) -> ResourceVector {
        let gpus = GpuBooks::with_devices(spec.gpus);
        let mut vector = ResourceVector::available(spec.cpu, spec.memory, &gpus);
        for (place, &id) in vector.custom.iter_mut().zip(self.indexed()) {
            *place = spec.custom_total(id);
        }
        vector
    }

    /// Returns whether `demand` fits what the node has available now. This is the only check of resources.
    #[inline(always)]
    pub(crate) fn fits(&self, slot: Slot, demand: &Demand) -> bool {
        self.room(slot).covers(demand) && (demand.custom.is_none() || self.fits_custom(slot, demand))
    }

    #[inline(never)]
    fn fits_custom(&self, slot: Slot, demand: &Demand) -> bool {
        demand.custom().iter().all(|&(id, amount)| amount <= self.custom_room(slot, id, amount))
    }

    /// Returns the room that a request for `amount` of a custom kind is compared with.
    pub(crate) fn custom_room(&self, slot: Slot, id: ResourceId, amount: Amount) -> Amount {
        self.book(slot, id).map_or(Amount::ZERO, |book| book.room_for(amount))
    }

    /// Returns the book of a custom kind, if the node has one.
    pub(crate) fn book(&self, slot: Slot, id: ResourceId) -> Option<&CustomBook> {
        if !self.hot(slot).has_custom {
            return None;
        }
        let custom = &self.cold(slot).custom;
        custom.binary_search_by_key(&id, |book| book.id).ok().map(|at| &custom[at])
    }

    /// Returns whether the node could hold `demand` if it were empty.
    pub(crate) fn could_fit(&self, slot: Slot, demand: &Demand) -> bool {
        let spec = &self.cold(slot).registration.spec;
        let gpus = match demand.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(_) => spec.gpus >= 1,
            GpuRequest::Whole(count) => spec.gpus >= count,
        };
        demand.cpu <= spec.cpu
            && demand.memory <= spec.memory
            && gpus
            && demand.custom().iter().all(|&(id, amount)| amount <= spec.custom_total(id))
    }
}

/// Adds the availability of the indexed custom kinds to `vector`. `room_for` returns the room that a request
/// for an amount of a kind is compared with.
pub(crate) fn custom_values(
    indexed: &[ResourceId],
    mut vector: ResourceVector,
    room_for: impl Fn(ResourceId, Amount) -> Amount,
) -> ResourceVector {
    for (place, &id) in vector.custom.iter_mut().zip(indexed) {
        *place = room_for(id, Amount::whole(1));
        if place.is_zero() && id.is_unit_instance() {
            // No unit is fully free: use the largest free part.
            *place = room_for(id, Amount::ZERO);
        }
    }
    vector
}
