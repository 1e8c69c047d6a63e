//! DistBuckets: a tree of buckets over the resource space.
//!
//! Each schedulable node stands in the leaf of its *coordinate*, `ceil(available / θ)` per
//! indexed dimension. A request has a coordinate of the same kind, and `available >= asked`
//! implies `coordinate(available) >= coordinate(asked)`: the index never hides a node that
//! fits. It may offer one that does not (a coordinate is coarse), so whoever searches passes an
//! `accept` that checks a node exactly.
//!
//! Two kinds of structure hold the same nodes:
//! - a [tree] per attribute order, for LeastFit and BestFit;
//! - the [ordinal tree](mod@ordinal) in order of registration, for FirstFit, NextFit and Random,
//!   built when the first of these policies is asked for.
//!
//! Source: the DistBuckets patent text; its worked figures are golden tests
//! (`core/tests/engine/golden_distbuckets.rs`). That each policy answers as a linear scan does is
//! checked by `fuzz/tests/index_against_oracle.rs`.

mod cell;
mod classes;
mod coordinate;
mod entry;
pub use coordinate::{Coordinate, Dimension, Geometry, GeometryError, ResourceVector};
mod geometry;
mod grid;
mod hints;
pub use hints::Shape;
mod key;
mod marks;
pub use marks::{Mark, Marks};
mod order;
pub mod ordinal;
mod plane;
mod ranks;
mod sorted;
pub mod tree;
mod tree_check;
mod walk;
mod weights;
pub use weights::Weights;

use crate::ids::Ordinal;
use crate::limits::{DIMENSIONS_MAX, RANDOM_DRAWS_MAX, RANDOM_DRAWS_MIN, RANDOM_DRAWS_PART};
use crate::planted::{PlantedBug, is_planted};
use crate::request::Policy;
use crate::rng::Rng;
use coordinate::Coordinates;
use order::OrderTree;
use ordinal::OrdinalTree;
use ranks::Ranks;
use tree::{Direction, Wanted};

/// A node's place in its shard's node table.
pub type Slot = u32;

/// What one search cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// Vertices of a tree that were entered.
    pub vertices: u64,
    /// Nodes that were checked exactly.
    pub nodes: u64,
}

/// Which nodes a search may answer with.
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// Whatever `accept` accepts.
    All,
    /// Only nodes with this mark, which are too many to be walked: buckets without any are
    /// skipped.
    Marked(Mark),
    /// Only these slots, few enough to be walked one by one.
    Walk(&'a [Slot]),
}

/// The state that a policy carries from one search to the next: part of the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// Where the last NextFit or Spread search stopped.
    pub next_fit: Ordinal,
    /// The draws of Random.
    pub rng: Rng,
}

/// The index of one shard.
pub struct DistBuckets {
    geometry: Geometry,
    /// One tree per attribute order; all but the first are built when they are first asked for.
    trees: Vec<Option<OrderTree>>,
    ranks: Ranks,
    /// Built at the first search that needs it, dropped when a node returns out of order.
    ordinals: Option<OrdinalTree>,
    len: usize,
}

impl DistBuckets {
    /// An empty index over `geometry`.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let mut trees: Vec<_> = geometry.orders().iter().map(|_| None).collect();
        trees[0] = Some(OrderTree::new(&geometry, 0));
        Self { geometry, trees, ranks: Ranks::default(), ordinals: None, len: 0 }
    }

    /// How values become coordinates.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How many nodes stand in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no node stands in the index.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Non-empty buckets of the first attribute order, the root included: O(leaves).
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.first_tree().bucket_count(self.geometry.dimension_count())
    }

    /// The coordinate that `slot` stands at, if it stands in the index.
    #[must_use]
    pub fn coordinate(&self, slot: Slot) -> Option<Coordinate> {
        self.first_tree().coordinate(slot)
    }

    /// Whether `slot` is in the index.
    #[inline]
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.first_tree().contains(slot)
    }

    /// At least the largest coordinate of any node per dimension: no request above it can be
    /// placed here. What is known to be too much on the highest level is put right first.
    #[must_use]
    pub fn highest(&mut self) -> Coordinate {
        self.trees[0].as_mut().expect("the first tree is built with the index").highest()
    }

    /// The marks of `slot`, if it stands in the index.
    #[must_use]
    pub fn marks(&self, slot: Slot) -> Option<Marks> {
        self.coordinate(slot)?;
        Some(self.first_tree().marks(self.ranks.of(slot)))
    }

    /// Bytes that its structures hold.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let trees: usize = self.trees.iter().flatten().map(OrderTree::bytes).sum();
        trees + self.ranks.bytes() + self.ordinals.as_ref().map_or(0, OrdinalTree::bytes)
    }

    #[inline]
    fn first_tree(&self) -> &OrderTree {
        self.trees[0].as_ref().expect("the first tree is built with the index")
    }

    /// What the index knows of a node: ordinal, where it stands, marks.
    fn entry(&self, slot: Slot) -> Option<(Ordinal, Coordinates, Marks)> {
        let stand = self.first_tree().stand(slot)?;
        Some((self.ranks.ordinal(slot), stand, self.first_tree().marks(self.ranks.of(slot))))
    }

    /// Nodes that stand in the index, in order of slot.
    fn entries(&self) -> impl Iterator<Item = (Slot, (Ordinal, Coordinates, Marks))> {
        (0..self.first_tree().slots()).filter_map(|slot| Some((slot, self.entry(slot)?)))
    }

    /// Puts a node in.
    ///
    /// # Panics
    /// When `slot` already stands in the index.
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, available: &ResourceVector, marks: Marks) {
        let stand = self.geometry.stand(available);
        let many_left = self.ranks.len() > 2 * self.len + 1024;
        let rank = if many_left { None } else { self.ranks.give(slot, ordinal) };
        if rank.is_none() {
            self.rank_anew(slot, ordinal);
        }
        let rank = self.ranks.of(slot);
        self.len += 1;
        for tree in self.trees.iter_mut().flatten() {
            tree.insert(slot, rank, &stand, marks);
        }
        if let Some(ordinals) = &mut self.ordinals
            && !ordinals.insert(slot, ordinal, &stand.coordinate, marks)
        {
            self.ordinals = None;
        }
    }

    /// Exchanges the geometry for one that differs in granularity alone; `available` tells what a
    /// node has. O(nodes).
    pub fn regrain(&mut self, geometry: Geometry, available: impl Fn(Slot) -> ResourceVector) {
        let moved = |(slot, (ordinal, _, marks))| (slot, (ordinal, geometry.stand(&available(slot)), marks));
        let entries: Vec<_> = self.entries().map(moved).collect();
        self.geometry = geometry;
        for (order, tree) in self.trees.iter_mut().enumerate() {
            if tree.is_some() {
                *tree = Some(OrderTree::build(&self.geometry, order, &entries, &self.ranks));
            }
        }
        self.ordinals = None;
    }

    /// Gives ranks anew to all nodes and `slot`, which is about to be put in and has no place after
    /// all others: O(nodes), when a node returns out of order or most ranks are of nodes that left.
    fn rank_anew(&mut self, slot: Slot, ordinal: Ordinal) {
        let entries: Vec<_> = self.entries().collect();
        let standing = entries.iter().map(|&(slot, (ordinal, ..))| (ordinal, slot));
        self.ranks.anew(standing.chain([(ordinal, slot)]).collect());
        for (order, tree) in self.trees.iter_mut().enumerate() {
            if tree.is_some() {
                *tree = Some(OrderTree::build(&self.geometry, order, &entries, &self.ranks));
            }
        }
    }

    /// Takes a node out.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    pub fn remove(&mut self, slot: Slot) {
        self.len -= 1;
        for tree in self.trees.iter_mut().flatten() {
            tree.remove(slot);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.remove(slot);
        }
    }

    /// Moves a node to the bucket of its new availability.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    #[inline]
    pub fn update(&mut self, slot: Slot, available: &ResourceVector) {
        let stand = self.geometry.stand(available);
        let [Some(first), others @ ..] = &mut self.trees[..] else {
            panic!("the first tree is built with the index");
        };
        let moves = first.update(slot, &stand, available);
        for tree in others.iter_mut().flatten() {
            tree.update(slot, &stand, available);
        }
        if !moves {
            return;
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.update(slot, &stand.coordinate);
        }
    }

    /// Reads what an [`update`](Self::update) of a node will read of where it stands.
    #[inline]
    pub(crate) fn prefetch(&self, slot: Slot) -> usize {
        self.trees[0].as_ref().map_or(0, |tree| tree.prefetch(slot))
    }

    /// Exchanges the marks of a node.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    pub fn mark(&mut self, slot: Slot, marks: Marks) {
        let known = self.marks(slot).unwrap_or_else(|| panic!("slot {slot} does not stand in the index"));
        if known == marks {
            return;
        }
        for tree in self.trees.iter_mut().flatten() {
            tree.mark(slot, marks);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.mark(slot, marks);
        }
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others: O(nodes).
    pub fn assign(&mut self, mark: Mark, member: impl Fn(Slot) -> bool) {
        for tree in self.trees.iter_mut().flatten() {
            tree.assign(mark, &member);
        }
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.assign(mark, &member);
        }
    }

    /// The node that `policy` chooses among those that `accept` accepts, if any does.
    ///
    /// LeastFit and BestFit order by coordinate, then by ordinal; FirstFit and NextFit by
    /// ordinal, Spread too; Random draws uniformly. `accept` must refuse what lacks any of `asked`, and is
    /// called only for nodes whose coordinate suffices (or that `candidates` names).
    ///
    /// # Panics
    /// With the hybrid policy, whose order a shard keeps beside the index.
    pub fn select(
        &mut self,
        policy: Policy,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        state: &mut PolicyState,
        visits: &mut Visits,
        accept: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        self.select_shape(None, 0, policy, asked, candidates, state, visits, accept)
    }

    /// As [`select`](Self::select), where LeastFit and BestFit compare coordinates in attribute
    /// order number `order` of the geometry. `shape` tells what `accept` accepts, where that is the
    /// same for every search of equal shape and changes only with an [`update`](Self::update),
    /// [`insert`](Self::insert) or [`mark`](Self::mark) of the node: such searches go on where the
    /// last one found the first.
    ///
    /// # Panics
    /// When the geometry has no such order.
    #[expect(clippy::too_many_arguments, reason = "what a search is given, each of another kind")]
    pub fn select_shape(
        &mut self,
        shape: Option<&Shape>,
        order: usize,
        policy: Policy,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        state: &mut PolicyState,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let mut accept = |slot: Slot, visits: &mut Visits| {
            visits.nodes += 1;
            accept(slot)
        };
        let marks = match candidates {
            Candidates::Walk(slots) => {
                return self.select_walking(order, policy, slots, state, visits, accept);
            }
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        let wanted = Wanted { stand: self.geometry.stand(asked), marks };
        match policy {
            Policy::LeastFit => self.first(order, Direction::Greatest, &wanted, shape, visits, &mut accept),
            // By itself the index does not know of typical requests: nearest to them is to pack.
            Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
                self.first(order, Direction::Smallest, &wanted, shape, visits, &mut accept)
            }
            Policy::FirstFit => self.ordinals().first_from(Ordinal(0), &wanted, visits, accept),
            Policy::NextFit => {
                let start = Ordinal(state.next_fit.0 + u64::from(is_planted(PlantedBug::NextFitOneLate)));
                let ordinals = self.ordinals();
                let found = ordinals
                    .first_from(start, &wanted, visits, &mut accept)
                    .or_else(|| ordinals.first_from(Ordinal(0), &wanted, visits, &mut accept));
                self.stopped_at(found, state)
            }
            Policy::Spread => {
                let start = Ordinal(state.next_fit.0 + 1);
                let ordinals = self.ordinals();
                let found = ordinals
                    .first_from(start, &wanted, visits, &mut accept)
                    .or_else(|| ordinals.first_from(Ordinal(0), &wanted, visits, &mut accept));
                self.stopped_at(found, state)
            }
            Policy::Hybrid => unreachable!("the hybrid policy has an order of its own"),
            Policy::Random => self.drawn(&wanted, state, visits, &mut accept),
        }
    }

    /// Any node that is accepted, each with equal probability. Draws from all nodes find one soon
    /// unless few are accepted; these are then listed, as far as their coordinates suffice.
    fn drawn(
        &mut self,
        wanted: &Wanted,
        state: &mut PolicyState,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let ordinals = self.ordinals();
        if ordinals.is_empty() {
            return None;
        }
        // A function of the nodes alone: a shard that was rebuilt draws as its twin does.
        let draws = (ordinals.len() / RANDOM_DRAWS_PART).clamp(RANDOM_DRAWS_MIN, RANDOM_DRAWS_MAX);
        for draw in 0..draws {
            // More draws are worth their while only where any node is accepted.
            if draw == RANDOM_DRAWS_MIN {
                self.first(0, Direction::Greatest, wanted, None, visits, accept)?;
            }
            let ordinals = self.ordinals();
            let slot = ordinals.nth(state.rng.below(ordinals.len() as u64));
            if accept(slot, visits) {
                return Some(slot);
            }
        }
        let mut fitting = Vec::new();
        let none = self.first(0, Direction::Smallest, wanted, None, visits, &mut |slot, visits| {
            if accept(slot, visits) {
                fitting.push(slot);
            }
            false
        });
        debug_assert!(none.is_none());
        fitting.sort_unstable_by_key(|&slot| self.ranks.of(slot));
        (!fitting.is_empty()).then(|| fitting[state.rng.below(fitting.len() as u64) as usize])
    }

    /// Whether any node is accepted: the largest are looked at first.
    pub fn any(
        &mut self,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> bool {
        let marks = match candidates {
            Candidates::Walk(slots) => {
                return slots.iter().any(|&slot| self.coordinate(slot).is_some() && accept(slot));
            }
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        let wanted = Wanted { stand: self.geometry.stand(asked), marks };
        self.first(0, Direction::Greatest, &wanted, None, visits, &mut |slot, _| accept(slot)).is_some()
    }

    /// The first accepted node of the first leaf that holds one.
    #[inline]
    fn first(
        &mut self,
        order: usize,
        direction: Direction,
        wanted: &Wanted,
        shape: Option<&Shape>,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        if self.trees[order].is_none() {
            let entries: Vec<_> = self.entries().collect();
            self.trees[order] = Some(OrderTree::build(&self.geometry, order, &entries, &self.ranks));
        }
        let tree = self.trees[order].as_mut().expect("built above");
        tree.first(direction, wanted, shape, &self.ranks, visits, accept)
    }

    /// As [`select_shape`](Self::select_shape), over named slots: checked exactly is only what comes
    /// before the best found so far.
    fn select_walking(
        &self,
        order: usize,
        policy: Policy,
        slots: &[Slot],
        state: &mut PolicyState,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let standing = |slot: Slot| Some((self.ranks.ordinal_if(slot)?, self.coordinate(slot)?));
        if policy == Policy::Random {
            let fitting = slots.iter().filter_map(|&slot| Some((standing(slot)?.0, slot)));
            let mut fitting: Vec<_> = fitting.filter(|&(_, slot)| accept(slot, visits)).collect();
            fitting.sort_unstable();
            return (!fitting.is_empty()).then(|| fitting[state.rng.below(fitting.len() as u64) as usize].1);
        }
        let turn = |behind: bool| Coordinate([u16::from(behind); DIMENSIONS_MAX]);
        let mut best: Option<((Coordinate, Ordinal), Slot)> = None;
        for &slot in slots {
            let Some((ordinal, coordinate)) = standing(slot) else { continue };
            let first = match policy {
                Policy::LeastFit => Coordinate(self.geometry.ordered(order, &coordinate).0.map(|c| !c)),
                Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
                    self.geometry.ordered(order, &coordinate)
                }
                Policy::NextFit => turn(ordinal < state.next_fit),
                Policy::Spread => turn(ordinal <= state.next_fit),
                Policy::FirstFit | Policy::Random => turn(false),
                Policy::Hybrid => unreachable!("the hybrid policy has an order of its own"),
            };
            if best.is_some_and(|(best, _)| best < (first, ordinal)) {
                visits.vertices += 1;
            } else if accept(slot, visits) {
                best = Some(((first, ordinal), slot));
            }
        }
        let found = best.map(|(_, slot)| slot);
        if matches!(policy, Policy::NextFit | Policy::Spread) { self.stopped_at(found, state) } else { found }
    }

    fn stopped_at(&self, found: Option<Slot>, state: &mut PolicyState) -> Option<Slot> {
        if let Some(slot) = found {
            state.next_fit = self.ranks.ordinal(slot);
        }
        found
    }

    fn ordinals(&mut self) -> &OrdinalTree {
        if self.ordinals.is_none() {
            let mut sorted: Vec<(Ordinal, Slot, Coordinate, Marks)> = self
                .entries()
                .map(|(slot, (ordinal, at, marks))| (ordinal, slot, at.coordinate, marks))
                .collect();
            sorted.sort_unstable_by_key(|&(ordinal, ..)| ordinal);
            self.ordinals = Some(OrdinalTree::build(&sorted));
        }
        self.ordinals.as_ref().expect("built above")
    }

    /// The leaves that a search in this direction yields, for tests and explanations: those in
    /// the fittable area of `asked` that hold a node which `member` names. O(leaves).
    pub fn leaves(
        &self,
        direction: Direction,
        asked: &ResourceVector,
        mut member: impl FnMut(Slot) -> bool,
    ) -> Vec<Coordinate> {
        let lower = self.geometry.coordinate(asked);
        let leaves = self.first_tree().leaves(direction, &self.ranks);
        let yielded = leaves
            .into_iter()
            .filter(|(at, slots)| at.reaches(&lower) && slots.iter().any(|&slot| member(slot)));
        yielded.map(|(at, _)| at).collect()
    }

    /// Checks that all trees hold the node in `slot` in the bucket of its coordinate, if any does.
    ///
    /// # Errors
    /// What disagrees.
    pub(crate) fn check_slot(&self, slot: Slot) -> Result<(), String> {
        let Some((_, stand, marks)) = self.entry(slot) else { return Ok(()) };
        for (order, tree) in self.trees.iter().enumerate() {
            let Some(tree) = tree else { continue };
            let rank = self.ranks.of(slot);
            if !tree.stands(slot, rank)
                || tree.coordinate(slot) != Some(self.geometry.ordered(order, &stand.coordinate))
                || tree.marks(rank) != marks
                || self.ranks.slot(rank) != slot
            {
                return Err(format!("slot {slot} stands elsewhere in attribute order {order}"));
            }
        }
        Ok(())
    }

    /// Checks that all trees hold exactly the same nodes, each in the bucket of its coordinate.
    ///
    /// # Errors
    /// What disagrees.
    pub fn check(&self) -> Result<(), String> {
        for tree in self.trees.iter().flatten() {
            tree.check(&self.ranks, self.len)?;
        }
        for (slot, _) in self.entries() {
            self.check_slot(slot)?;
        }
        let known = |slot| self.entry(slot).map(|(ordinal, stand, marks)| (ordinal, stand.coordinate, marks));
        self.ordinals.as_ref().map_or(Ok(()), |ordinals| ordinals.check(self.len, known))
    }
}
