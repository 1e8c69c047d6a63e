//! Functions of the bucket tree for tests, explanations and audits. All of them cost O(nodes).

use super::Slot;
use super::entry::RankTag;
use super::key::Key;
use super::ranks::{Rank, Ranks};
use super::tree::{BucketTree, Direction};
use crate::broken::{Broken, broken};

impl<K: Key> BucketTree<K> {
    /// Returns all nodes in order of key, then of rank.
    fn nodes(&self) -> Vec<(K, RankTag)> {
        self.plane.entries()
    }

    /// Returns the leaves in order, each with its nodes in order of registration.
    pub(super) fn leaves(&self, direction: Direction) -> Vec<(K, Vec<Rank>)> {
        let mut leaves: Vec<(K, Vec<Rank>)> = Vec::new();
        for (key, tag) in self.nodes() {
            match leaves.last_mut() {
                Some((last, ranks)) if *last == key => ranks.push(tag.rank()),
                _ => leaves.push((key, vec![tag.rank()])),
            }
        }
        if direction == Direction::Greatest {
            leaves.reverse();
        }
        leaves
    }

    /// Returns the number of non-empty buckets of a tree with `levels` dimensions, including the root. This
    /// is the number of distinct prefixes of the nodes' coordinates.
    pub(super) fn bucket_count(&self, levels: usize) -> usize {
        let keys: Vec<_> = self.nodes().iter().map(|(key, _)| key.coordinate()).collect();
        let below_root = |level: usize| {
            let differ = |pair: &&[super::Coordinate]| pair[0].0[..=level] != pair[1].0[..=level];
            keys.windows(2).filter(differ).count() + usize::from(!keys.is_empty())
        };
        1 + (0..levels).map(below_root).sum::<usize>()
    }

    /// Returns whether the node in `slot`, with this rank, is in the cell that its entry refers to.
    pub(super) fn is_placed(&self, slot: Slot, rank: Rank) -> bool {
        let Some(place) = self.places.get(slot as usize) else { return false };
        place.tag().is_some_and(|tag| tag.rank() == rank && self.has_entry(place.key, tag))
    }

    /// Checks the structure: the order of the nodes, the bounds of cells and groups, the cell of every node,
    /// and the number of nodes.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub(super) fn check(&self, ranks: &Ranks, nodes: usize) -> Result<(), Broken> {
        let held = self.plane.len();
        let placed = self.places.iter().filter(|place| place.tag().is_some()).count();
        if held != nodes || placed != nodes {
            return Err(broken!("the tree holds {held} nodes, {placed} are placed, {nodes} expected"));
        }
        for (slot, place) in (0..).zip(&self.places) {
            if place.tag().is_some() && !self.is_placed(slot, ranks.of(slot)) {
                return Err(broken!("slot {slot} is not in the cell where it should be"));
            }
        }
        if !self.nodes().is_sorted_by(|a, b| a < b) {
            return Err(Broken::new("the nodes are out of order"));
        }
        self.plane.check(&self.marks)
    }
}
