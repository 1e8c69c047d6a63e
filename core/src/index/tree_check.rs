//! What tests, explanations and audits ask of the bucket tree: all of it costs O(nodes).

use super::Slot;
use super::entry::RankTag;
use super::key::Key;
use super::ranks::{Rank, Ranks};
use super::tree::{BucketTree, Direction};

impl<K: Key> BucketTree<K> {
    /// All nodes in order of key, then of rank.
    fn nodes(&self) -> Vec<(K, RankTag)> {
        self.plane.entries()
    }

    /// The leaves in order, each with its nodes in order of registration.
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

    /// Non-empty buckets of a tree with `levels` dimensions, the root included: every prefix of the
    /// coordinates of the nodes.
    pub(super) fn bucket_count(&self, levels: usize) -> usize {
        let keys: Vec<_> = self.nodes().iter().map(|(key, _)| key.coordinate()).collect();
        let below_root = |level: usize| {
            let differ = |pair: &&[super::Coordinate]| pair[0].0[..=level] != pair[1].0[..=level];
            keys.windows(2).filter(differ).count() + usize::from(!keys.is_empty())
        };
        1 + (0..levels).map(below_root).sum::<usize>()
    }

    /// Whether the node in `slot`, of that rank, is in the cell where it is said to be.
    pub(super) fn is_placed(&self, slot: Slot, rank: Rank) -> bool {
        let Some(place) = self.places.get(slot as usize) else { return false };
        place.tag().is_some_and(|tag| tag.rank() == rank && self.stands(place.key, tag))
    }

    /// Checks the structure: order, that what is said of cells and groups covers what is below, that
    /// every node stands where it is said to, and how many there are.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, ranks: &Ranks, nodes: usize) -> Result<(), String> {
        let held = self.plane.len();
        let placed = self.places.iter().filter(|place| place.tag().is_some()).count();
        if held != nodes || placed != nodes {
            return Err(format!("the tree holds {held} nodes, {placed} are placed, {nodes} expected"));
        }
        for (slot, place) in (0..).zip(&self.places) {
            if place.tag().is_some() && !self.is_placed(slot, ranks.of(slot)) {
                return Err(format!("slot {slot} is not in the cell where it is said to stand"));
            }
        }
        if !self.nodes().is_sorted_by(|a, b| a < b) {
            return Err("the nodes are out of order".to_owned());
        }
        self.plane.check(&self.marks)
    }
}
