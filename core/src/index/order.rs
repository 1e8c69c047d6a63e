//! The tree of one attribute order: a bucket tree with keys of the width that the dimensions need.

use super::coordinate::{Coordinates, Geometry};
use super::entry::{RankTag, UpperBounds};
use super::hints::Shape;
use super::key::Key;
use super::ranks::{Rank, Ranks};
use super::tree::{BucketTree, Direction, Wanted};
use super::{Coordinate, Mark, Marks, ResourceVector, Slot, Visits};
use crate::broken::Broken;
use crate::ids::Ordinal;
use crate::limits::DIMENSIONS_MAX;

/// The bucket tree of one attribute order.
pub(super) struct OrderTree {
    /// For each position, the dimension compared there. `None` for the dimensions' own order.
    order: Option<[u8; DIMENSIONS_MAX]>,
    tree: Width,
}

enum Width {
    /// Up to four dimensions.
    Narrow(BucketTree<u64>),
    Wide(BucketTree<u128>),
}

macro_rules! each {
    ($width:expr, $tree:ident => $result:expr) => {
        match $width {
            Width::Narrow($tree) => $result,
            Width::Wide($tree) => $result,
        }
    };
}

impl OrderTree {
    pub(super) fn new(geometry: &Geometry, order: usize) -> Self {
        let room = geometry.room();
        let narrow = geometry.dimension_count() <= <u64 as Key>::FIELDS;
        let steps = geometry.steps(order);
        let tree = if narrow {
            Width::Narrow(BucketTree::new(room, steps))
        } else {
            Width::Wide(BucketTree::new(room, steps))
        };
        Self { order: (order > 0).then(|| geometry.orders()[order]), tree }
    }

    /// Builds the tree of `entries`, whose ranks are assigned.
    pub(super) fn build(
        geometry: &Geometry,
        order: usize,
        entries: &[(Slot, (Ordinal, Coordinates, Marks))],
        ranks: &Ranks,
    ) -> Self {
        let mut tree = Self::new(geometry, order);
        for (slot, (_, coordinates, marks)) in entries {
            tree.insert(*slot, ranks.of(*slot), coordinates, *marks);
        }
        tree
    }

    /// Returns the key, and one bit per field whose value is not a whole number of steps.
    #[inline]
    fn key<K: Key>(order: Option<&[u8; DIMENSIONS_MAX]>, coordinates: &Coordinates) -> (K, u8) {
        match order {
            None => (K::pack(&coordinates.coordinate), coordinates.below),
            Some(places) => {
                let fields = places.map(|place| coordinates.coordinate.0[usize::from(place)]);
                let bits = (0..).zip(places).map(|(field, place)| (coordinates.below >> place & 1) << field);
                (K::pack(&Coordinate(fields)), bits.fold(0, |bits, bit| bits | bit))
            }
        }
    }

    pub(super) fn insert(&mut self, slot: Slot, rank: Rank, coordinates: &Coordinates, marks: Marks) {
        let order = self.order.as_ref();
        each!(&mut self.tree, tree => {
            let (key, below) = Self::key(order, coordinates);
            tree.insert(slot, key, RankTag::new(rank, below), marks, None);
        });
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        each!(&mut self.tree, tree => tree.remove(slot));
    }

    /// Moves a node. Returns whether its coordinate changed.
    #[inline]
    pub(super) fn update(
        &mut self,
        slot: Slot,
        coordinates: &Coordinates,
        available: &ResourceVector,
    ) -> bool {
        let order = self.order.as_ref();
        each!(&mut self.tree, tree => {
            let (key, below) = Self::key(order, coordinates);
            let Some((known, tag)) = tree.entry(slot) else {
                panic!("slot {slot} is not in the index")
            };
            if (known, tag.below()) == (key, below) {
                tree.touch(slot, available);
            } else {
                tree.update(slot, key, below, available);
            }
            known != key
        })
    }

    /// Prefetches the memory that an update of a node will read.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot) -> usize {
        each!(&self.tree, tree => tree.entry(slot).map_or(0, |(key, tag)| tree.plane.prefetch(key, tag)))
    }

    pub(super) fn mark(&mut self, slot: Slot, marks: Marks) {
        each!(&mut self.tree, tree => tree.mark(slot, marks));
    }

    pub(super) fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        each!(&mut self.tree, tree => tree.assign(mark, member));
    }

    /// Returns the first accepted node of the first leaf that has one.
    #[inline]
    pub(super) fn first(
        &mut self,
        direction: Direction,
        wanted: &Wanted,
        shape: Option<&Shape>,
        ranks: &Ranks,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let order = self.order.as_ref();
        each!(&mut self.tree, tree => {
            let (key, below) = Self::key(order, &wanted.coordinates);
            let asked = UpperBounds::of(key, RankTag::new(0, below), wanted.marks);
            tree.first(direction, asked, shape, ranks, visits, accept)
        })
    }

    /// Returns the coordinate of a node, in this attribute order.
    #[inline]
    pub(super) fn coordinate(&self, slot: Slot) -> Option<Coordinate> {
        each!(&self.tree, tree => tree.entry(slot).map(|(key, _)| key.coordinate()))
    }

    /// Returns whether a node is in the tree.
    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        each!(&self.tree, tree => tree.entry(slot).is_some())
    }

    /// The same as [`coordinate`](Self::coordinate), for the first order, with the bits of `below`.
    pub(super) fn coordinates(&self, slot: Slot) -> Option<Coordinates> {
        debug_assert!(self.order.is_none(), "the first order is that of the dimensions");
        each!(&self.tree, tree => tree.entry(slot).map(|(key, tag)| Coordinates {
            coordinate: key.coordinate(),
            below: tag.below(),
        }))
    }

    pub(super) fn marks(&self, rank: Rank) -> Marks {
        each!(&self.tree, tree => tree.marks(rank))
    }

    /// Returns one more than the highest slot that was ever used here.
    pub(super) fn slots(&self) -> Slot {
        each!(&self.tree, tree => tree.places.len() as Slot)
    }

    pub(super) fn highest(&mut self) -> Coordinate {
        each!(&mut self.tree, tree => tree.highest())
    }

    pub(super) fn bucket_count(&self, levels: usize) -> usize {
        each!(&self.tree, tree => tree.bucket_count(levels))
    }

    pub(super) fn leaves(&self, direction: Direction, ranks: &Ranks) -> Vec<(Coordinate, Vec<Slot>)> {
        each!(&self.tree, tree => tree
            .leaves(direction)
            .into_iter()
            .map(|(key, nodes)| (key.coordinate(), nodes.iter().map(|&rank| ranks.slot(rank)).collect()))
            .collect())
    }

    pub(super) fn bytes(&self) -> usize {
        each!(&self.tree, tree => tree.bytes())
    }

    /// Returns whether the node in `slot`, with this rank, is in the cell that its entry refers to.
    pub(super) fn has_entry(&self, slot: Slot, rank: Rank) -> bool {
        each!(&self.tree, tree => tree.is_placed(slot, rank))
    }

    pub(super) fn check(&self, ranks: &Ranks, nodes: usize) -> Result<(), Broken> {
        each!(&self.tree, tree => tree.check(ranks, nodes))
    }
}
