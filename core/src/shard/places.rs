//! The limit on allocations per node. Each allocation takes memory, even if it asks for nothing.
//!
//! Every allocation counts, including held and claimed ones and those inside bundles. A node at the limit is
//! removed from the index, so that searches do not walk over full nodes. Its room also says so
//! (`Room::places`), for checks of single nodes.

use super::Shard;
use crate::index::Slot;

impl Shard {
    /// Updates the index for a node. The index contains the nodes that are ready and below the limit, at what
    /// they have available.
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

    /// Sets the maximum number of allocations per node, including claims and allocations inside bundles.
    ///
    /// # Panics
    /// If there are nodes already, or the number is out of range.
    pub fn set_allocations_per_node_max(&mut self, most: u16) {
        self.nodes.set_places_max(most);
    }

    /// Returns the maximum number of allocations per node.
    pub(crate) fn allocations_per_node_max(&self) -> u16 {
        self.nodes.places_max() as u16
    }
}
