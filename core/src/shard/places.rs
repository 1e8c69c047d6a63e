//! How many allocations a node may hold: each takes memory, also one that asks for nothing.
//!
//! Every allocation counts, with what is held, what is claimed and what is placed into bundles. A node that holds as
//! many as it may is out of the index, so that searches do not walk over full nodes; its room says so too
//! (`Room::places`), for checks of single nodes.

use super::Shard;
use crate::index::Slot;

impl Shard {
    /// The index holds the nodes that take work, at what they have available: those that are ready and hold fewer
    /// allocations than they may.
    #[inline]
    pub(super) fn follow_index(&mut self, slot: Slot) {
        match (self.index.contains(slot), self.nodes.takes_work(slot)) {
            (true, true) => self.index.update(slot, &self.nodes.available(slot)),
            (true, false) => self.index.remove(slot),
            (false, true) => {
                let ordinal = self.nodes.ordinal(slot);
                let marks = self.marks_of(slot);
                self.index.insert(slot, ordinal, &self.nodes.available(slot), marks);
            }
            (false, false) => {}
        }
    }

    /// Sets how many allocations a node may hold, what is placed into bundles there and what is claimed included.
    ///
    /// # Panics
    /// When nodes are there already, or the number is out of range.
    pub fn set_allocations_per_node_max(&mut self, most: u16) {
        self.nodes.set_places_max(most);
    }

    /// How many allocations a node may hold.
    pub(crate) fn allocations_per_node_max(&self) -> u16 {
        self.nodes.places_max() as u16
    }
}
