//! The books of a replica, as views of its shard show them.

use super::table::{ColdNode, HotNode, Room, has_shortfall};
use super::{Books, Dirty};
use crate::books::{Cause, RareShortfalls, WITHHELD};
use crate::index::Slot;
use crate::node::NodeSpec;
use crate::view::{AllocationView, ColdImage, HotImage};

impl Books {
    /// Adds a node as a view shows it.
    pub(crate) fn put_image(&mut self, slot: Slot, image: &HotImage, cold: &ColdImage) {
        assert!(cold.registration.id == image.id, "the parts of slot {slot} are of two nodes");
        assert!(self.ledger.len() == 0, "a replica has allocations of its own");
        self.nodes.put(slot, books_of(image, cold));
        self.sums.replica_capacity(slot, &cold.registration.spec, 1);
        self.set_entries_image(slot, &cold.entries);
    }

    /// Removes a node that the view no longer shows. Returns what it had.
    pub(crate) fn drop_image(&mut self, slot: Slot) -> NodeSpec {
        self.set_entries_image(slot, &[]);
        let spec = self.nodes.drop_out(slot).registration.spec;
        self.sums.replica_capacity(slot, &spec, -1);
        spec
    }

    /// Replaces the cold part of a node. Returns what the node had before, if `is_respecified`: its names, capacity,
    /// labels or taints changed.
    pub(crate) fn set_cold_image(
        &mut self,
        slot: Slot,
        image: &ColdImage,
        is_respecified: bool,
    ) -> Option<NodeSpec> {
        let (room, hot, cold) = self.nodes.parts_mut(slot);
        assert!(hot.id == image.registration.id, "slot {slot} has another node than its image");
        fill_cold(cold, image);
        flag(hot, cold);
        if !is_respecified {
            return None;
        }
        room.set_capacity(&image.registration.spec);
        let before = std::mem::replace(&mut cold.registration, (*image.registration).clone());
        self.sums.replica_capacity(slot, &before.spec, -1);
        self.sums.replica_capacity(slot, &image.registration.spec, 1);
        Some(before.spec)
    }

    /// Replaces the hot part of a node, and its entries.
    pub(crate) fn set_hot_image(&mut self, slot: Slot, image: &HotImage, cold: &ColdImage) -> Dirty {
        let (room, hot, _) = self.nodes.parts_mut(slot);
        assert!(hot.id == image.id, "slot {slot} has another node than its image");
        fill_hot(room, hot, image);
        if !self.entries(slot).is_empty() || !cold.entries.is_empty() {
            self.set_entries_image(slot, &cold.entries);
        }
        Dirty::changed(slot)
    }

    /// Frees a replica's node of its reservation and of allocations that its view shows.
    pub(crate) fn empty(&mut self, slot: Slot, ended: &[AllocationView]) {
        let hot = self.nodes.hot(slot);
        assert!(ended.len() <= hot.allocations as usize, "node {} has fewer than {}", hot.id, ended.len());
        self.change(slot, WITHHELD, |books| {
            books.leave(slot, |cause| matches!(cause, Cause::Reservation(_)));
            for AllocationView { demand, gpus, units, .. } in ended {
                books.nodes.give(slot, demand, *gpus, units.as_ref());
            }
        });
    }
}

fn books_of(image: &HotImage, image_of_cold: &ColdImage) -> (Room, HotNode, ColdNode) {
    let mut cold = ColdNode {
        registration: (*image_of_cold.registration).clone(),
        short: RareShortfalls::default(),
        custom: Vec::new(),
    };
    fill_cold(&mut cold, image_of_cold);
    let mut hot = HotNode {
        id: image.id,
        gpus: image.gpus,
        version: image.version,
        first_allocation: image.first_allocation,
        allocations: image.allocations,
        partition: image.partition,
        has_custom: false,
        has_shortfall: false,
        withheld: 0,
    };
    flag(&mut hot, &mut cold);
    let mut room = Room::VACANT;
    room.set_capacity(&cold.registration.spec);
    fill_hot(&mut room, &mut hot, image);
    (room, hot, cold)
}

fn fill_cold(cold: &mut ColdNode, image: &ColdImage) {
    cold.short = RareShortfalls::new(image.shortfalls.as_deref());
    cold.custom.clear();
    cold.custom.extend_from_slice(&image.custom);
}

fn flag(hot: &mut HotNode, cold: &mut ColdNode) {
    hot.has_custom = !cold.custom.is_empty();
    hot.has_shortfall = has_shortfall(cold);
}

fn fill_hot(room: &mut Room, hot: &mut HotNode, image: &HotImage) {
    assert!(image.state.is_some(), "node {} is made of the image of a vacant slot", hot.id);
    *room = Room {
        cpu: image.cpu,
        memory: image.memory,
        whole_gpus: image.whole_gpus,
        largest_gpu_part: image.largest_gpu_part,
        places: image.places,
        state: image.state,
        ..*room
    };
    (hot.gpus, hot.version) = (image.gpus, image.version);
    (hot.allocations, hot.first_allocation) = (image.allocations, image.first_allocation);
}
