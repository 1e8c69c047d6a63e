//! The bucket tree: the nodes in order of coordinate, then of registration.
//!
//! The patent's tree has a vertex per bucket on every level. Here the keys define the buckets: a leaf is a
//! range of nodes with one key, and a bucket of an inner level is a range of leaves.
//!
//! A lexicographic walk is slow where nodes fail only in a later dimension, such as nodes with the smallest
//! cpu but no GPU. The third and the fourth coordinate, in four steps each, therefore give every node a
//! *class*. The levels above the nodes record which of their members may serve each class. See `plane.rs`.

use super::coordinate::{Coordinates, Steps};
use super::entry::{RankTag, UpperBounds};
use super::hints::{Available, Hints, REFUSED_MIN, Shape};
use super::key::Key;
use super::plane::Plane;
use super::ranks::{Rank, Ranks};
use super::walk::Search;
use super::{Coordinate, Mark, Marks, ResourceVector, Slot, Visits};

/// The order in which leaves are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The largest coordinate first, dimension by dimension: LeastFit.
    Greatest,
    /// The smallest fitting coordinate first: BestFit.
    Smallest,
}

/// The coordinate and marks that a search requires of a leaf, as a minimum.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The coordinates of the request.
    pub(super) coordinates: Coordinates,
    /// The marks that a node must have.
    pub(super) marks: Marks,
}

impl Wanted {
    /// Returns the coordinate of the request.
    pub(super) fn lower(&self) -> &Coordinate {
        &self.coordinates.coordinate
    }
}

/// The entry of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<K> {
    pub(super) key: K,
    /// `None` if the node is not in the tree. Otherwise the tag plus one. A tag is never the highest number.
    tag: Option<std::num::NonZeroU32>,
}

impl<K: Key> Place<K> {
    const NOWHERE: Self = Self { key: K::ZERO, tag: None };

    fn at(key: K, tag: RankTag) -> Self {
        let tag = std::num::NonZeroU32::new(tag.bits().wrapping_add(1));
        assert!(tag.is_some(), "fewer nodes than ranks");
        Self { key, tag }
    }

    #[inline]
    pub(super) fn tag(&self) -> Option<RankTag> {
        self.tag.map(|tag| RankTag::from_bits(tag.get() - 1))
    }
}

/// The tree over one attribute order.
pub(super) struct BucketTree<K> {
    pub(super) plane: Plane<K>,
    pub(super) places: Vec<Place<K>>,
    /// By rank. Empty while no node has a mark.
    pub(super) marks: Vec<Marks>,
    hints: Hints<K>,
}

impl<K: Key> BucketTree<K> {
    /// Creates an empty tree whose runs are split at `room`.
    pub(super) fn new(room: usize, steps: [Steps; 2]) -> Self {
        let plane = Plane::new(room, steps);
        Self { plane, places: Vec::new(), marks: Vec::new(), hints: Hints::new() }
    }

    /// Returns the key and the tag of a node, if it is in the tree.
    #[inline]
    pub(super) fn entry(&self, slot: Slot) -> Option<(K, RankTag)> {
        let place = self.places.get(slot as usize)?;
        place.tag().map(|tag| (place.key, tag))
    }

    #[inline]
    pub(super) fn marks(&self, rank: Rank) -> Marks {
        self.marks.get(rank as usize).copied().unwrap_or(Marks::NONE)
    }

    /// Returns an upper bound per dimension of all nodes' coordinates.
    pub(super) fn highest(&mut self) -> Coordinate {
        self.plane.highest().coordinate()
    }

    /// Adds a node.
    ///
    /// # Panics
    /// When it is already in the tree.
    pub(super) fn insert(
        &mut self,
        slot: Slot,
        key: K,
        tag: RankTag,
        marks: Marks,
        available: Option<Available>,
    ) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, Place::NOWHERE);
        }
        assert!(self.places[slot as usize].tag.is_none(), "slot {slot} is in the index already");
        self.set_marks(tag.rank(), marks);
        self.enter(slot, key, tag, marks, available);
    }

    fn set_marks(&mut self, rank: Rank, marks: Marks) {
        if self.marks.len() <= rank as usize {
            if marks == Marks::NONE {
                return;
            }
            self.marks.resize(rank as usize + 1, Marks::NONE);
        }
        self.marks[rank as usize] = marks;
    }

    #[inline]
    fn enter(&mut self, slot: Slot, key: K, tag: RankTag, marks: Marks, available: Option<Available>) {
        self.plane.insert(key, tag, marks, &self.marks);
        self.places[slot as usize] = Place::at(key, tag);
        self.hints.note_arrival(key, tag.rank(), available);
    }

    /// Records that a node's books changed but its key did not. A search that rejected it before may now
    /// accept it.
    #[inline]
    pub(super) fn touch(&mut self, slot: Slot, available: &ResourceVector) {
        if let Some((key, tag)) = self.entry(slot) {
            self.hints.note_arrival(key, tag.rank(), Some(available.into()));
        }
    }

    /// Removes a node.
    ///
    /// # Panics
    /// When it is not in the tree.
    pub(super) fn remove(&mut self, slot: Slot) {
        let rank = self.leave(slot);
        self.places[slot as usize] = Place::NOWHERE;
        self.set_marks(rank, Marks::NONE);
    }

    #[inline]
    fn leave(&mut self, slot: Slot) -> Rank {
        let Some((key, tag)) = self.entry(slot) else { panic!("slot {slot} is not in the index") };
        assert!(self.plane.remove(key, tag), "slot {slot} is not where it should be");
        tag.rank()
    }

    /// Moves a node to `key`. `below` is as in [`RankTag`].
    #[inline]
    pub(super) fn update(&mut self, slot: Slot, key: K, below: u8, available: &ResourceVector) {
        let rank = self.leave(slot);
        self.enter(slot, key, RankTag::new(rank, below), self.marks(rank), Some(available.into()));
    }

    /// Replaces the marks of a node.
    pub(super) fn mark(&mut self, slot: Slot, marks: Marks) {
        let Some((key, tag)) = self.entry(slot) else { panic!("slot {slot} is not in the index") };
        self.set_marks(tag.rank(), marks);
        self.plane.mark(key, tag, marks);
        self.hints.note_arrival(key, tag.rank(), None);
    }

    /// Sets `mark` on the nodes for which `member` returns true, and clears it on all others.
    pub(super) fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        for slot in 0..self.places.len() as Slot {
            let Some((_, tag)) = self.entry(slot) else { continue };
            let rank = tag.rank();
            let known = self.marks(rank);
            let marks = self.marks(rank).with(mark, member(slot));
            if known != marks {
                self.mark(slot, marks);
            }
        }
    }

    /// Returns the first accepted node of the first leaf that has one. `shape` identifies what is accepted,
    /// if that is the same for each search.
    #[inline]
    pub(super) fn first(
        &mut self,
        direction: Direction,
        asked: UpperBounds<K>,
        shape: Option<&Shape>,
        ranks: &Ranks,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let looked_at = visits.nodes;
        let begin = shape.and_then(|shape| self.hints.begin(shape, direction));
        let mut search = Search {
            direction,
            asked,
            class: self.plane.class(asked.high),
            ranks,
            marks: &self.marks,
            begin,
            visits: &mut *visits,
        };
        let best = self.plane.search(&mut search, accept);
        if let Some(shape) = shape {
            let refused = visits.nodes - looked_at;
            if refused > REFUSED_MIN {
                let found = best.map(|best| (best.key, best.rank));
                self.hints.keep((shape, direction, asked.high), refused, found);
            }
        }
        best.map(|best| best.slot)
    }

    /// Returns the bytes taken by the tree.
    pub(super) fn bytes(&self) -> usize {
        self.plane.bytes()
            + self.places.capacity() * size_of::<Place<K>>()
            + self.marks.capacity() * size_of::<Marks>()
            + self.hints.bytes()
    }

    /// Returns whether an entry is in the cell of its key.
    pub(super) fn has_entry(&self, key: K, tag: RankTag) -> bool {
        self.plane.holds(key, tag)
    }
}
