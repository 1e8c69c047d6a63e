//! Ranks: the order of registration in 32 bits. The nodes of a leaf are sorted by these small numbers instead
//! of by wide ordinals.

use super::{Meter, Structure};
use crate::ids::Ordinal;
use crate::index::Slot;
use crate::memory;

/// The position of a node in the order of registration among the nodes that the index knows.
pub(super) type Rank = u32;

/// No rank.
const NONE: Rank = Rank::MAX;

/// The assignment of ranks to slots.
///
/// A node that leaves keeps its rank until all ranks are reassigned, so a node that returns (after draining)
/// gets its old position.
#[derive(Default)]
pub(super) struct Ranks {
    slots: Vec<Slot>,
    ordinals: Vec<Ordinal>,
    by_slot: Vec<Rank>,
}

impl Ranks {
    #[inline]
    pub(super) fn slot(&self, rank: Rank) -> Slot {
        self.slots[rank as usize]
    }

    /// Returns the same in a search.
    #[inline(always)]
    pub(super) fn slot_for(&self, rank: Rank, visits: &mut impl Meter) -> Slot {
        visits.item::<Slot>(Structure::Ranks, rank as usize);
        self.slot(rank)
    }

    #[inline]
    pub(super) fn of(&self, slot: Slot) -> Rank {
        self.by_slot[slot as usize]
    }

    pub(super) fn ordinal(&self, slot: Slot) -> Ordinal {
        self.ordinals[self.of(slot) as usize]
    }

    /// Returns the ordinal of a node that has a rank.
    pub(super) fn ordinal_if(&self, slot: Slot) -> Option<Ordinal> {
        self.by_slot.get(slot as usize).and_then(|&rank| self.ordinals.get(rank as usize)).copied()
    }

    /// Tells that the rank of a node is read.
    #[inline(always)]
    pub(super) fn tell(&self, slot: Slot, visits: &mut impl Meter) {
        visits.item::<Rank>(Structure::RanksBySlot, slot as usize);
    }

    /// Returns the number of assigned ranks, including those of nodes that left.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Assigns a rank to a node if no other node has to move: its old rank, or a new one after all others.
    pub(super) fn give(&mut self, slot: Slot, ordinal: Ordinal) -> Option<Rank> {
        if self.by_slot.len() <= slot as usize {
            memory::resize_tight(&mut self.by_slot, slot as usize + 1, NONE);
        }
        let old = self.by_slot[slot as usize];
        if old != NONE && self.ordinals[old as usize] == ordinal {
            return Some(old);
        }
        if self.ordinals.last().is_some_and(|&last| last >= ordinal) {
            return None;
        }
        let rank = Rank::try_from(self.slots.len()).expect("fewer nodes than u32 can count");
        memory::push_tight(&mut self.slots, slot);
        memory::push_tight(&mut self.ordinals, ordinal);
        self.by_slot[slot as usize] = rank;
        Some(rank)
    }

    /// Assigns new ranks to exactly these nodes.
    pub(super) fn renumber(&mut self, mut nodes: Vec<(Ordinal, Slot)>) {
        nodes.sort_unstable();
        self.by_slot.fill(NONE);
        self.slots.clear();
        self.ordinals.clear();
        for (ordinal, slot) in nodes {
            let rank = self.give(slot, ordinal);
            assert!(rank.is_some(), "slot {slot} shares its ordinal {} with another", ordinal.0);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.ordinals.capacity() * size_of::<Ordinal>()
            + self.by_slot.capacity() * size_of::<Rank>()
    }
}
