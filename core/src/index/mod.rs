//! DistBuckets: a tree of buckets over the resource space.
//!
//! Each schedulable node is in the leaf of its *coordinate*, `ceil(available / θ)` per indexed dimension. A
//! request has a coordinate of the same kind. `available >= asked` implies `coordinate(available) >=
//! coordinate(asked)`, so the index never hides a node that fits. Coordinates are coarse, so the index may
//! offer a node that does not fit. The caller passes an `accept` function that checks a node exactly.
//!
//! Two kinds of structures contain the same nodes:
//! - a [tree] per attribute order, for LeastFit and BestFit;
//! - the [ordinal tree](mod@ordinal) in order of registration, for FirstFit, NextFit and Random. It is built
//!   when one of these policies is first requested.
//!
//! Source: the text of the DistBuckets patent. Its examples are golden tests
//! (`core/tests/engine/golden_distbuckets.rs`). `fuzz/tests/index_against_oracle.rs` checks that each policy
//! answers like a linear scan.

mod cell;
mod cell_search;
mod classes;
mod coordinate;
mod entry;
pub use coordinate::{Coordinate, Dimension, Geometry, GeometryError, ResourceVector};
mod geometry;
mod lacking;
mod layout;
mod lines;
pub use lines::{IndexLines, LineRead, Lines};
mod marks;
pub use marks::{Mark, Marks};
mod meter;
pub use meter::{Meter, Structure, Visits};
pub mod ordinal;
mod placing;
mod plane;
mod ranks;
mod select;
pub mod tree;
mod weights;
pub use weights::Weights;

use crate::broken::{Broken, broken};
use crate::ids::Ordinal;
use crate::request::Policy;
use crate::rng::Rng;
use coordinate::Coordinates;
use ordinal::OrdinalTree;
use ranks::Ranks;
use tree::{BucketTree, Direction};

/// The index of a node in its shard's node table.
pub type Slot = u32;

/// What the index knows of a node.
type IndexEntry = (Slot, (Ordinal, Coordinates, Marks));

/// The nodes that a search may return.
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// All nodes that `accept` accepts.
    All,
    /// Only nodes with this mark. There are too many to walk, so buckets without the mark are skipped.
    Marked(Mark),
    /// Only these slots. They are few enough to be walked one by one.
    Walk(&'a [Slot]),
}

/// The state that a policy carries from one search to the next. It is part of the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// The ordinal of the node that the last NextFit or Spread search chose.
    pub next_fit: Ordinal,
    /// The generator for Random.
    pub rng: Rng,
}

/// The index of one shard.
pub struct DistBuckets {
    geometry: Geometry,
    /// The tree of the first attribute order.
    first: BucketTree,
    /// The trees of the other orders. Each is built when it is first requested.
    others: Vec<Option<BucketTree>>,
    ranks: Ranks,
    /// Built at the first search that needs it. Dropped when a node returns out of order.
    ordinals: Option<OrdinalTree>,
    len: usize,
}

impl DistBuckets {
    /// Creates an empty index over `geometry`.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let first = BucketTree::new(&geometry, 0);
        let others = geometry.orders()[1..].iter().map(|_| None).collect();
        Self { geometry, first, others, ranks: Ranks::default(), ordinals: None, len: 0 }
    }

    /// Returns the geometry, which maps values to coordinates.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the number of nodes in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the index contains no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of non-empty buckets of the first attribute order, including the root. Costs
    /// O(leaves).
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.first.bucket_count(self.geometry.dimension_count())
    }

    /// Returns the coordinate of `slot`, if it is in the index.
    #[must_use]
    pub fn coordinate(&self, slot: Slot) -> Option<Coordinate> {
        self.first.coordinates(slot).map(|at| at.coordinate)
    }

    /// Returns whether `slot` is in the index.
    #[inline]
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.first.contains(slot)
    }

    /// Returns an upper bound per dimension of all nodes' coordinates.
    ///
    /// No request above it can be placed here. The call first tightens a few bounds that are too high.
    #[must_use]
    pub fn highest(&mut self) -> Coordinate {
        self.first.highest()
    }

    /// Returns the marks of `slot`, if it is in the index.
    #[must_use]
    pub fn marks(&self, slot: Slot) -> Option<Marks> {
        self.coordinate(slot)?;
        Some(self.first.marks(self.ranks.of(slot)))
    }

    /// Returns the bytes taken by the index.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let trees: usize = self.trees().map(|(_, tree)| tree.bytes()).sum();
        trees + self.ranks.bytes() + self.ordinals.as_ref().map_or(0, OrdinalTree::bytes)
    }

    /// Returns the trees that are built, each with its order.
    fn trees(&self) -> impl Iterator<Item = (usize, &BucketTree)> {
        let others = (1..).zip(&self.others).filter_map(|(order, tree)| Some((order, tree.as_ref()?)));
        std::iter::once((0, &self.first)).chain(others)
    }

    fn trees_mut(&mut self) -> impl Iterator<Item = &mut BucketTree> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().flatten())
    }

    /// Returns what the index knows of a node: ordinal, coordinates, marks.
    fn entry(&self, slot: Slot) -> Option<(Ordinal, Coordinates, Marks)> {
        let coordinates = self.first.coordinates(slot)?;
        Some((self.ranks.ordinal(slot), coordinates, self.first.marks(self.ranks.of(slot))))
    }

    /// Returns the nodes in the index, in order of slot.
    fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        (0..self.first.slots()).filter_map(|slot| Some((slot, self.entry(slot)?)))
    }

    /// Adds a node.
    ///
    /// # Panics
    /// When `slot` is already in the index.
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, available: &ResourceVector, marks: Marks) {
        let coordinates = self.geometry.coordinates(available);
        let many_left = self.ranks.len() > 2 * self.len + 1024;
        let rank = if many_left { None } else { self.ranks.give(slot, ordinal) };
        if rank.is_none() {
            self.renumber_ranks(slot, ordinal);
        }
        let rank = self.ranks.of(slot);
        self.len += 1;
        for tree in std::iter::once(&mut self.first).chain(self.others.iter_mut().flatten()) {
            tree.insert(slot, rank, &coordinates, marks);
        }
        if let Some(ordinals) = &mut self.ordinals
            && !ordinals.insert(slot, ordinal, &coordinates.coordinate, marks)
        {
            self.ordinals = None;
        }
    }

    /// Replaces the geometry by one that differs only in granularity. `available` returns what a node has
    /// available. Costs O(nodes).
    pub fn regrain(&mut self, geometry: Geometry, available: impl Fn(Slot) -> ResourceVector) {
        let moved =
            |(slot, (ordinal, _, marks))| (slot, (ordinal, geometry.coordinates(&available(slot)), marks));
        let entries: Vec<_> = self.entries().map(moved).collect();
        self.geometry = geometry;
        self.rebuild(&entries);
        self.ordinals = None;
    }

    /// Builds all trees again.
    fn rebuild(&mut self, entries: &[IndexEntry]) {
        self.first = BucketTree::built(&self.geometry, 0, entries, &self.ranks);
        for (order, tree) in (1..).zip(&mut self.others) {
            if let Some(tree) = tree {
                *tree = BucketTree::built(&self.geometry, order, entries, &self.ranks);
            }
        }
    }

    /// Assigns new ranks to all nodes and to `slot`, which is about to be added and does not belong at the
    /// end.
    ///
    /// Costs O(nodes). This happens when a node returns out of order, or when most ranks belong to removed
    /// nodes.
    fn renumber_ranks(&mut self, slot: Slot, ordinal: Ordinal) {
        let entries: Vec<_> = self.entries().collect();
        let standing = entries.iter().map(|&(slot, (ordinal, ..))| (ordinal, slot));
        self.ranks.renumber(standing.chain([(ordinal, slot)]).collect());
        self.rebuild(&entries);
    }

    /// Removes a node.
    ///
    /// # Panics
    /// When `slot` is not in the index.
    pub fn remove(&mut self, slot: Slot) {
        self.len -= 1;
        for tree in self.trees_mut() {
            tree.remove(slot);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.remove(slot);
        }
    }

    /// Moves a node to the bucket of its new availability.
    ///
    /// # Panics
    /// When `slot` is not in the index.
    pub fn update(&mut self, slot: Slot, available: &ResourceVector) {
        if !self.follow::<true>(slot, available) {
            self.update_any(slot, *available);
        }
    }

    /// Returns whether there is more than the first tree.
    pub(crate) fn has_more_trees(&self) -> bool {
        !self.others.is_empty() | self.ordinals.is_some()
    }

    /// Does the same in the usual case. Otherwise, also if `slot` is not in the index, returns false. Without `RARE`, there
    /// is no more than the first tree.
    #[inline(always)]
    pub(crate) fn follow<const RARE: bool>(&mut self, slot: Slot, available: &ResourceVector) -> bool {
        let Some(moves) = self.first.update(slot, available) else { return false };
        if RARE && self.has_more_trees() {
            self.follow_in_others(slot, moves);
        }
        true
    }

    /// Follows in all structures but the first tree, in which the node was just moved.
    #[inline(never)]
    fn follow_in_others(&mut self, slot: Slot, moves: bool) {
        let at = self.first.coordinates(slot).expect("it was just moved");
        self.update_others(slot, &at, moves);
    }

    /// The same as `update`, for any geometry.
    #[inline(never)]
    pub(crate) fn update_any(&mut self, slot: Slot, available: ResourceVector) {
        let at = self.geometry.coordinates(&available);
        let moves = self.first.update_any(slot, &at);
        self.update_others(slot, &at, moves);
    }

    /// Moves a node in all structures but the first tree. `moves` says whether its coordinate changed there.
    #[inline(never)]
    fn update_others(&mut self, slot: Slot, at: &Coordinates, moves: bool) {
        for tree in self.others.iter_mut().flatten() {
            tree.update_any(slot, at);
        }
        if let Some(ordinals) = self.ordinals.as_mut().filter(|_| moves) {
            ordinals.update(slot, &at.coordinate);
        }
    }

    /// Prefetches the memory that an [`update`](Self::update) of a node will read.
    #[inline]
    pub(crate) fn prefetch(&self, slot: Slot) -> usize {
        self.first.prefetch(slot)
    }

    /// Replaces the marks of a node.
    ///
    /// # Panics
    /// When `slot` is not in the index.
    pub fn mark(&mut self, slot: Slot, marks: Marks) {
        let known = self.marks(slot).unwrap_or_else(|| panic!("slot {slot} is not in the index"));
        if known == marks {
            return;
        }
        for tree in self.trees_mut() {
            tree.mark(slot, marks);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.mark(slot, marks);
        }
    }

    /// Sets `mark` on the nodes for which `member` returns true, and clears it on all others. Costs O(nodes).
    pub fn assign(&mut self, mark: Mark, member: impl Fn(Slot) -> bool) {
        for tree in self.trees_mut() {
            tree.assign(mark, &member);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.assign(mark, &member);
        }
    }

    /// Returns the node that `policy` chooses among those that `accept` accepts.
    ///
    /// LeastFit and BestFit order by coordinate, then by ordinal. FirstFit, NextFit and Spread order by
    /// ordinal. Random draws uniformly. `accept` must reject nodes that have less than `asked` of anything.
    /// It is only called for nodes whose coordinate suffices, or that `candidates` names.
    ///
    /// # Panics
    /// With the hybrid policy, whose order a shard keeps outside the index.
    pub fn select(
        &mut self,
        policy: Policy,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        state: &mut PolicyState,
        visits: &mut impl Meter,
        accept: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        self.select_in_order(0, policy, asked, candidates, state, visits, accept)
    }

    /// The same as [`select`](Self::select), but LeastFit and BestFit compare coordinates in attribute order
    /// `order` of the geometry.
    ///
    /// # Panics
    /// When the geometry has no such order.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what a search is given, each of another kind")]
    pub fn select_in_order<M: Meter>(
        &mut self,
        order: usize,
        policy: Policy,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        state: &mut PolicyState,
        visits: &mut M,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let mut accept = |slot: Slot, visits: &mut M| {
            visits.node(slot);
            accept(slot)
        };
        let marks = match candidates {
            Candidates::Walk(slots) => {
                return self.select_walking(order, policy, slots, state, visits, accept);
            }
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        match policy {
            Policy::LeastFit => {
                return self.first(order, Direction::Greatest, (asked, marks), visits, &mut accept);
            }
            // The index alone does not know the typical requests. Packing is the closest policy.
            Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
                return self.first(order, Direction::Smallest, (asked, marks), visits, &mut accept);
            }
            _ => {}
        }
        self.select_by_ordinal(policy, (asked, marks), state, visits, accept)
    }

    /// Returns whether any node is accepted. The largest nodes are examined first.
    pub fn any<M: Meter>(
        &mut self,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        visits: &mut M,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> bool {
        let mut accept = |slot: Slot, visits: &mut M| {
            visits.node(slot);
            accept(slot)
        };
        let marks = match candidates {
            Candidates::Walk(slots) => {
                let is_known = |slot: Slot, visits: &mut M| {
                    self.first.tell_place(slot, visits);
                    self.coordinate(slot).is_some()
                };
                return slots.iter().any(|&slot| is_known(slot, visits) && accept(slot, visits));
            }
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        self.first(0, Direction::Greatest, (asked, marks), visits, &mut accept).is_some()
    }

    /// Returns the first accepted node of the first leaf that has one.
    #[inline]
    fn first<M: Meter>(
        &mut self,
        order: usize,
        direction: Direction,
        wanted: (&ResourceVector, Marks),
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        if order == 0 {
            return self.first.first(direction, wanted, (&self.geometry, &self.ranks), visits, accept);
        }
        self.first_in_other(order, direction, wanted, visits, accept)
    }

    /// The same in an attribute order that is not the first. Its tree is built at the first search.
    #[inline(never)]
    fn first_in_other<M: Meter>(
        &mut self,
        order: usize,
        direction: Direction,
        wanted: (&ResourceVector, Marks),
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        if self.others[order - 1].is_none() {
            let entries: Vec<_> = self.entries().collect();
            self.others[order - 1] = Some(BucketTree::built(&self.geometry, order, &entries, &self.ranks));
        }
        let tree = self.others[order - 1].as_mut().expect("built above");
        tree.first(direction, wanted, (&self.geometry, &self.ranks), visits, accept)
    }

    /// Returns the leaves that a search in this direction yields, for tests and explanations.
    ///
    /// These are the leaves in the fittable area of `asked` with a node for which `member` returns true.
    /// Costs O(leaves).
    pub fn leaves(
        &self,
        direction: Direction,
        asked: &ResourceVector,
        mut member: impl FnMut(Slot) -> bool,
    ) -> Vec<Coordinate> {
        let lower = self.geometry.coordinate(asked);
        let leaves = self.first.leaves(direction, &self.ranks);
        let yielded = leaves
            .into_iter()
            .filter(|(at, slots)| at.reaches(&lower) && slots.iter().any(|&slot| member(slot)));
        yielded.map(|(at, _)| at).collect()
    }

    /// Checks that all trees have the node in `slot` in the bucket of its coordinate, if any tree has it.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub(crate) fn check_slot(&self, slot: Slot) -> Result<(), Broken> {
        let Some((_, coordinates, marks)) = self.entry(slot) else { return Ok(()) };
        for (order, tree) in self.trees() {
            let rank = self.ranks.of(slot);
            if !tree.has_entry(slot, rank)
                || tree.coordinates(slot).map(|at| at.coordinate)
                    != Some(self.geometry.ordered(order, &coordinates.coordinate))
                || tree.marks(rank) != marks
                || self.ranks.slot(rank) != slot
            {
                return Err(broken!("slot {slot} is at another place in attribute order {order}"));
            }
        }
        Ok(())
    }

    /// Checks that all trees contain exactly the same nodes, each in the bucket of its coordinate.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub fn check(&self) -> Result<(), Broken> {
        self.check_rest(|_| false)
    }

    /// Checks the same. `is_checked` says for which slots [`check_slot`](Self::check_slot) has been called.
    pub(crate) fn check_rest(&self, is_checked: impl Fn(Slot) -> bool) -> Result<(), Broken> {
        for (_, tree) in self.trees() {
            tree.check(&self.ranks, self.len)?;
        }
        for (slot, _) in self.entries().filter(|&(slot, _)| !is_checked(slot)) {
            self.check_slot(slot)?;
        }
        let known = |slot| {
            self.entry(slot).map(|(ordinal, coordinates, marks)| (ordinal, coordinates.coordinate, marks))
        };
        self.ordinals.as_ref().map_or(Ok(()), |ordinals| ordinals.check(self.len, known))
    }
}
