//! The tree of buckets: the nodes in order of coordinate, then of registration.
//!
//! The patent's tree has a vertex per bucket of every level. Here the buckets are where the keys
//! say they are: a leaf is a stretch of nodes with one key, a bucket of an inner level a stretch of
//! leaves.
//!
//! Nodes that fail only in a later dimension are what a lexicographic walk stumbles over: the
//! smallest cpu first, and no GPU there. So the third and the fourth coordinate, four steps of each,
//! give every node a *class*, and what stands above the nodes says per class who may serve it. See
//! `plane.rs`.

use super::coordinate::{Coordinates, Steps};
use super::entry::{RankTag, UpperBounds};
use super::hints::{Available, Hints, REFUSED_MIN, Shape};
use super::key::Key;
use super::plane::Plane;
use super::ranks::{Rank, Ranks};
use super::walk::Search;
use super::{Coordinate, Mark, Marks, ResourceVector, Slot, Visits};

/// Which leaves come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The largest coordinate first, dimension by dimension: LeastFit.
    Greatest,
    /// The smallest fitting coordinate first: BestFit.
    Smallest,
}

/// What a search asks of a leaf: at least this coordinate, and these marks below.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Where the request stands.
    pub(super) stand: Coordinates,
    /// What a node must be marked with.
    pub(super) marks: Marks,
}

impl Wanted {
    /// The coordinate of the request.
    pub(super) fn lower(&self) -> &Coordinate {
        &self.stand.coordinate
    }
}

/// Where a node stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<K> {
    pub(super) key: K,
    /// None: it does not stand in the tree. One more than its tag, which is never the highest.
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
    /// By rank; empty while nobody has any.
    pub(super) marks: Vec<Marks>,
    hints: Hints<K>,
}

impl<K: Key> BucketTree<K> {
    /// An empty tree whose runs are cut at `room`.
    pub(super) fn new(room: usize, steps: [Steps; 2]) -> Self {
        let plane = Plane::new(room, steps);
        Self { plane, places: Vec::new(), marks: Vec::new(), hints: Hints::new() }
    }

    /// The key and the tag of a node, if it stands in the tree.
    #[inline]
    pub(super) fn entry(&self, slot: Slot) -> Option<(K, RankTag)> {
        let place = self.places.get(slot as usize)?;
        place.tag().map(|tag| (place.key, tag))
    }

    #[inline]
    pub(super) fn marks(&self, rank: Rank) -> Marks {
        self.marks.get(rank as usize).copied().unwrap_or(Marks::NONE)
    }

    /// Per dimension at least the largest coordinate of any node.
    pub(super) fn highest(&mut self) -> Coordinate {
        self.plane.highest().coordinate()
    }

    /// Puts a node in.
    ///
    /// # Panics
    /// When it stands in the tree already.
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
        assert!(self.places[slot as usize].tag.is_none(), "slot {slot} stands in the index already");
        self.set_marks(tag.rank(), marks);
        self.stand(slot, key, tag, marks, available);
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
    fn stand(&mut self, slot: Slot, key: K, tag: RankTag, marks: Marks, available: Option<Available>) {
        self.plane.insert(key, tag, marks, &self.marks);
        self.places[slot as usize] = Place::at(key, tag);
        self.hints.note_arrival(key, tag.rank(), available);
    }

    /// A node that stays where it stands has other books: it may be accepted where it was not.
    #[inline]
    pub(super) fn touch(&mut self, slot: Slot, available: &ResourceVector) {
        if let Some((key, tag)) = self.entry(slot) {
            self.hints.note_arrival(key, tag.rank(), Some(available.into()));
        }
    }

    /// Takes a node out.
    ///
    /// # Panics
    /// When it does not stand in the tree.
    pub(super) fn remove(&mut self, slot: Slot) {
        let rank = self.leave(slot);
        self.places[slot as usize] = Place::NOWHERE;
        self.set_marks(rank, Marks::NONE);
    }

    #[inline]
    fn leave(&mut self, slot: Slot) -> Rank {
        let Some((key, tag)) = self.entry(slot) else { panic!("slot {slot} does not stand in the index") };
        assert!(self.plane.remove(key, tag), "slot {slot} is not where it is said to stand");
        tag.rank()
    }

    /// Moves a node to `key`; `below` as [`RankTag`] has it.
    #[inline]
    pub(super) fn update(&mut self, slot: Slot, key: K, below: u8, available: &ResourceVector) {
        let rank = self.leave(slot);
        self.stand(slot, key, RankTag::new(rank, below), self.marks(rank), Some(available.into()));
    }

    /// Exchanges the marks of a node.
    pub(super) fn mark(&mut self, slot: Slot, marks: Marks) {
        let Some((key, tag)) = self.entry(slot) else { panic!("slot {slot} does not stand in the index") };
        self.set_marks(tag.rank(), marks);
        self.plane.mark(key, tag, marks);
        self.hints.note_arrival(key, tag.rank(), None);
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others.
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

    /// The first accepted node of the first leaf that holds one. `shape` tells what is accepted,
    /// where it is the same each time.
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

    /// Bytes that its structures hold.
    pub(super) fn bytes(&self) -> usize {
        self.plane.bytes()
            + self.places.capacity() * size_of::<Place<K>>()
            + self.marks.capacity() * size_of::<Marks>()
            + self.hints.bytes()
    }

    /// Whether a node stands where its key says.
    pub(super) fn stands(&self, key: K, tag: RankTag) -> bool {
        self.plane.holds(key, tag)
    }
}
