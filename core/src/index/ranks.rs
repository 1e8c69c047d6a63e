//! Ranks: the order of registration in 32 bits, so that the nodes of a leaf are a sorted run of
//! small numbers instead of one of wide ordinals.

use crate::ids::Ordinal;
use crate::index::Slot;

/// The place of a node in the order of registration among those that the index knows.
pub(super) type Rank = u32;

/// No rank.
const NONE: Rank = Rank::MAX;

/// Who has which rank. A node that leaves keeps its rank until the ranks are given anew, so that
/// one that returns (undrained) stands where it stood.
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

    #[inline]
    pub(super) fn of(&self, slot: Slot) -> Rank {
        self.by_slot[slot as usize]
    }

    pub(super) fn ordinal(&self, slot: Slot) -> Ordinal {
        self.ordinals[self.of(slot) as usize]
    }

    /// The ordinal of a node that has a rank.
    pub(super) fn ordinal_if(&self, slot: Slot) -> Option<Ordinal> {
        self.by_slot.get(slot as usize).and_then(|&rank| self.ordinals.get(rank as usize)).copied()
    }

    /// How many are given, to nodes that left too.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The rank for a node, when there is one without moving others: its old one, or one after all
    /// that are given.
    pub(super) fn give(&mut self, slot: Slot, ordinal: Ordinal) -> Option<Rank> {
        if self.by_slot.len() <= slot as usize {
            self.by_slot.resize(slot as usize + 1, NONE);
        }
        let old = self.by_slot[slot as usize];
        if old != NONE && self.ordinals[old as usize] == ordinal {
            return Some(old);
        }
        if self.ordinals.last().is_some_and(|&last| last >= ordinal) {
            return None;
        }
        let rank = Rank::try_from(self.slots.len()).expect("fewer nodes than u32 can count");
        self.slots.push(slot);
        self.ordinals.push(ordinal);
        self.by_slot[slot as usize] = rank;
        Some(rank)
    }

    /// Gives ranks anew to exactly these nodes.
    pub(super) fn anew(&mut self, mut nodes: Vec<(Ordinal, Slot)>) {
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
