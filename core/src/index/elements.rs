//! The nodes of one leaf, in order of registration.

use std::collections::BTreeMap;

use super::Slot;
use crate::ids::Ordinal;

/// Above this a leaf keeps its nodes in a B-tree: inserting into a sorted array would cost what
/// the leaf holds, and equal nodes all stand in one leaf.
const FEW: usize = 64;

/// Nodes that stand at the same coordinate.
#[derive(Debug)]
pub enum Elements {
    /// Sorted by ordinal.
    Few(Vec<(Ordinal, Slot)>),
    /// The same, for many.
    Many(BTreeMap<Ordinal, Slot>),
}

impl Elements {
    pub(super) fn new() -> Self {
        Self::Few(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn insert(&mut self, ordinal: Ordinal, slot: Slot) {
        match self {
            Self::Few(few) if few.len() < FEW => {
                let at = few.partition_point(|&(o, _)| o < ordinal);
                few.insert(at, (ordinal, slot));
            }
            Self::Few(few) => {
                let mut many: BTreeMap<_, _> = few.drain(..).collect();
                many.insert(ordinal, slot);
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                many.insert(ordinal, slot);
            }
        }
    }

    /// Takes a node out; whether it was there.
    pub(super) fn remove(&mut self, ordinal: Ordinal) -> bool {
        match self {
            Self::Few(few) => match few.binary_search_by_key(&ordinal, |&(o, _)| o) {
                Ok(at) => {
                    few.remove(at);
                    true
                }
                Err(_) => false,
            },
            Self::Many(many) => {
                let removed = many.remove(&ordinal).is_some();
                // Half of the bound, so that one node coming and going does not convert twice.
                if many.len() < FEW / 2 {
                    *self = Self::Few(std::mem::take(many).into_iter().collect());
                }
                removed
            }
        }
    }

    pub(super) fn slot_of(&self, ordinal: Ordinal) -> Option<Slot> {
        match self {
            Self::Few(few) => few.binary_search_by_key(&ordinal, |&(o, _)| o).ok().map(|at| few[at].1),
            Self::Many(many) => many.get(&ordinal).copied(),
        }
    }

    /// The first node in order of registration that `accept` accepts.
    #[inline]
    pub fn first(&self, mut accept: impl FnMut(Slot) -> bool) -> Option<Slot> {
        match self {
            Self::Few(few) => few.iter().map(|&(_, slot)| slot).find(|&slot| accept(slot)),
            Self::Many(many) => many.values().copied().find(|&slot| accept(slot)),
        }
    }
}
