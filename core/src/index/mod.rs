//! DistBuckets: a tree of buckets over the resource space.
//!
//! Each schedulable node stands in the leaf of its *coordinate*, `ceil(available / θ)` per
//! indexed dimension. A request has a coordinate of the same kind, and `available >= asked`
//! implies `coordinate(available) >= coordinate(asked)`: the index never hides a node that
//! fits. It may offer one that does not (a coordinate is coarse), so whoever searches passes an
//! `accept` that checks a node exactly.
//!
//! Two structures hold the same nodes:
//! - the [tree] in attribute order, for LeastFit and BestFit;
//! - the [ordinal tree](mod@ordinal) in order of registration, for FirstFit, NextFit and Random,
//!   built when the first of these policies is asked for.
//!
//! Source: the DistBuckets patent text; its worked figures are golden tests
//! (`core/tests/golden_distbuckets.rs`). That each policy answers as a linear scan does is
//! checked by `fuzz/tests/index_against_oracle.rs`.

mod coordinate;
pub use coordinate::{Coordinate, Dimension, Geometry, GeometryError, ResourceVector};
mod elements;
mod marks;
pub use marks::{Mark, Marks};
pub mod ordinal;
pub mod tree;

use std::ops::ControlFlow;

use crate::ids::Ordinal;
use crate::limits::RANDOM_DRAWS_MAX;
use crate::planted::{PlantedBug, is_planted};
use crate::request::Policy;
use crate::rng::Rng;
use ordinal::OrdinalTree;
use tree::{BucketTree, Direction, Standing, Wanted};

/// A node's place in its shard's node table.
pub type Slot = u32;

/// A node that stands in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    ordinal: Ordinal,
    coordinate: Coordinate,
    marks: Marks,
}

impl Entry {
    fn standing(&self, slot: Slot) -> Standing {
        Standing { slot, ordinal: self.ordinal, marks: self.marks }
    }
}

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
    /// Where the last NextFit search stopped.
    pub next_fit: Ordinal,
    /// The draws of Random.
    pub rng: Rng,
}

/// The index of one shard.
pub struct DistBuckets {
    geometry: Geometry,
    tree: BucketTree,
    /// Built at the first search that needs it, dropped when a node returns out of order.
    ordinals: Option<OrdinalTree>,
    entries: Vec<Option<Entry>>,
    len: usize,
}

impl DistBuckets {
    /// An empty index over `geometry`.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let tree = BucketTree::new(geometry.dimension_count());
        Self { geometry, tree, ordinals: None, entries: Vec::new(), len: 0 }
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

    /// Non-empty buckets, the root included.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.tree.bucket_count()
    }

    /// The coordinate that `slot` stands at, if it stands in the index.
    #[must_use]
    pub fn coordinate(&self, slot: Slot) -> Option<Coordinate> {
        self.entry(slot).map(|entry| entry.coordinate)
    }

    /// The largest coordinate of any node per dimension: no request above it can be placed here.
    #[must_use]
    pub fn highest(&self) -> Coordinate {
        self.tree.highest()
    }

    /// The marks of `slot`, if it stands in the index.
    #[must_use]
    pub fn marks(&self, slot: Slot) -> Option<Marks> {
        self.entry(slot).map(|entry| entry.marks)
    }

    fn entry(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot as usize)?.as_ref()
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        let entry = self.entries.get_mut(slot as usize).and_then(Option::as_mut);
        entry.unwrap_or_else(|| panic!("slot {slot} does not stand in the index"))
    }

    /// Puts a node in.
    ///
    /// # Panics
    /// When `slot` already stands in the index.
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, available: &ResourceVector, marks: Marks) {
        let coordinate = self.geometry.coordinate(available);
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, None);
        }
        let place = &mut self.entries[slot as usize];
        assert!(place.is_none(), "slot {slot} stands in the index already");
        *place = Some(Entry { ordinal, coordinate, marks });
        self.len += 1;
        self.tree.insert(Standing { slot, ordinal, marks }, &coordinate);
        if let Some(ordinals) = &mut self.ordinals
            && !ordinals.insert(slot, ordinal, &coordinate, marks)
        {
            self.ordinals = None;
        }
    }

    /// Takes a node out.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    pub fn remove(&mut self, slot: Slot) {
        let entry = *self.entry_mut(slot);
        self.entries[slot as usize] = None;
        self.len -= 1;
        self.tree.remove(entry.standing(slot), &entry.coordinate);
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.remove(slot);
        }
    }

    /// Moves a node to the bucket of its new availability.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    pub fn update(&mut self, slot: Slot, available: &ResourceVector) {
        let coordinate = self.geometry.coordinate(available);
        let entry = self.entry_mut(slot);
        if entry.coordinate == coordinate {
            return;
        }
        let from = std::mem::replace(&mut entry.coordinate, coordinate);
        let node = entry.standing(slot);
        self.tree.update(node, &from, &coordinate);
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.update(slot, &coordinate);
        }
    }

    /// Exchanges the marks of a node.
    ///
    /// # Panics
    /// When `slot` does not stand in the index.
    pub fn mark(&mut self, slot: Slot, marks: Marks) {
        let entry = self.entry_mut(slot);
        if entry.marks == marks {
            return;
        }
        entry.marks = marks;
        let entry = *entry;
        self.tree.mark(entry.standing(slot), &entry.coordinate);
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.mark(slot, marks);
        }
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others: O(nodes).
    pub fn assign(&mut self, mark: Mark, member: impl Fn(Slot) -> bool) {
        for (slot, entry) in (0..).zip(&mut self.entries) {
            if let Some(entry) = entry {
                entry.marks = entry.marks.with(mark, member(slot));
            }
        }
        self.tree.assign(mark, &member);
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.assign(mark, &member);
        }
    }

    /// The node that `policy` chooses among those that `accept` accepts, if any does.
    ///
    /// LeastFit and BestFit order by coordinate, then by ordinal; FirstFit and NextFit by
    /// ordinal; Random draws uniformly. `accept` must refuse what lacks any of `asked`, and is
    /// called only for nodes whose coordinate suffices (or that `candidates` names).
    pub fn select(
        &mut self,
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
            Candidates::Walk(slots) => return self.select_walking(policy, slots, state, visits, accept),
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        let wanted = Wanted { lower: self.geometry.coordinate(asked), marks };
        match policy {
            Policy::LeastFit => self.first_leaf(Direction::Greatest, &wanted, visits, accept),
            Policy::BestFit => self.first_leaf(Direction::Smallest, &wanted, visits, accept),
            Policy::FirstFit => self.ordinals().first_from(Ordinal(0), &wanted, visits, accept),
            Policy::NextFit => {
                let start = Ordinal(state.next_fit.0 + u64::from(is_planted(PlantedBug::NextFitOneLate)));
                let ordinals = self.ordinals();
                let found = ordinals
                    .first_from(start, &wanted, visits, &mut accept)
                    .or_else(|| ordinals.first_from(Ordinal(0), &wanted, visits, &mut accept));
                self.stopped_at(found, state)
            }
            Policy::Random => {
                let ordinals = self.ordinals();
                if ordinals.is_empty() {
                    return None;
                }
                for _ in 0..RANDOM_DRAWS_MAX {
                    let slot = ordinals.nth(state.rng.below(ordinals.len() as u64));
                    visits.vertices += 1;
                    if accept(slot, visits) {
                        return Some(slot);
                    }
                }
                let fitting = ordinals.all(&wanted, visits, accept);
                draw(&fitting, &mut state.rng)
            }
        }
    }

    /// Whether any node is accepted: the largest are looked at first.
    pub fn any(
        &self,
        asked: &ResourceVector,
        candidates: Candidates<'_>,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot) -> bool,
    ) -> bool {
        let marks = match candidates {
            Candidates::Walk(slots) => {
                return slots.iter().any(|&slot| self.entry(slot).is_some() && accept(slot));
            }
            Candidates::Marked(mark) => Marks::only(mark),
            Candidates::All => Marks::NONE,
        };
        let wanted = Wanted { lower: self.geometry.coordinate(asked), marks };
        self.first_leaf(Direction::Greatest, &wanted, visits, |slot, _| accept(slot)).is_some()
    }

    /// The first accepted node of the first leaf that holds one.
    fn first_leaf(
        &self,
        direction: Direction,
        wanted: &Wanted,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        self.tree.visit_leaves(direction, wanted, visits, |elements, visits| {
            elements
                .first(wanted.marks, |slot| accept(slot, visits))
                .map_or(ControlFlow::Continue(()), ControlFlow::Break)
        })
    }

    /// As [`select`](Self::select), over few named slots.
    fn select_walking(
        &self,
        policy: Policy,
        slots: &[Slot],
        state: &mut PolicyState,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let mut fitting: Vec<(Entry, Slot)> = slots
            .iter()
            .filter_map(|&slot| Some((*self.entry(slot)?, slot)))
            .filter(|&(_, slot)| accept(slot, visits))
            .collect();
        fitting.sort_unstable_by_key(|(entry, _)| entry.ordinal);
        let by_coordinate = |(entry, _): &&(Entry, Slot)| entry.coordinate;
        let found = match policy {
            // Of equal elements `max_by_key` returns the last and `min_by_key` the first.
            Policy::LeastFit => fitting.iter().rev().max_by_key(by_coordinate),
            Policy::BestFit => fitting.iter().min_by_key(by_coordinate),
            Policy::FirstFit => fitting.first(),
            Policy::NextFit => {
                fitting.iter().find(|(entry, _)| entry.ordinal >= state.next_fit).or_else(|| fitting.first())
            }
            Policy::Random if fitting.is_empty() => None,
            Policy::Random => fitting.get(state.rng.below(fitting.len() as u64) as usize),
        };
        let found = found.map(|&(_, slot)| slot);
        if policy == Policy::NextFit { self.stopped_at(found, state) } else { found }
    }

    fn stopped_at(&self, found: Option<Slot>, state: &mut PolicyState) -> Option<Slot> {
        if let Some(entry) = found.and_then(|slot| self.entry(slot)) {
            state.next_fit = entry.ordinal;
        }
        found
    }

    fn ordinals(&mut self) -> &OrdinalTree {
        let entries = &self.entries;
        self.ordinals.get_or_insert_with(|| {
            let mut sorted: Vec<(Ordinal, Slot, Coordinate, Marks)> = (0..)
                .zip(entries)
                .filter_map(|(slot, entry)| entry.map(|e| (e.ordinal, slot, e.coordinate, e.marks)))
                .collect();
            sorted.sort_unstable_by_key(|&(ordinal, ..)| ordinal);
            OrdinalTree::build(&sorted)
        })
    }

    /// The leaves that a search in this direction yields, for tests and explanations: those in
    /// the fittable area of `asked` that hold a node which `member` names.
    pub fn leaves(
        &self,
        direction: Direction,
        asked: &ResourceVector,
        mut member: impl FnMut(Slot) -> bool,
    ) -> Vec<Coordinate> {
        let wanted = Wanted { lower: self.geometry.coordinate(asked), marks: Marks::NONE };
        let mut leaves = Vec::new();
        let _: Option<()> =
            self.tree.visit_leaves(direction, &wanted, &mut Visits::default(), |elements, _| {
                if let Some(slot) = elements.first(Marks::NONE, &mut member) {
                    leaves.extend(self.coordinate(slot));
                }
                ControlFlow::Continue(())
            });
        leaves
    }

    /// Checks that both trees hold exactly the entries, each in the bucket of its coordinate.
    ///
    /// # Errors
    /// What disagrees.
    pub fn check(&self) -> Result<(), String> {
        let mut held = 0usize;
        for (slot, entry) in (0..).zip(&self.entries) {
            let Some(entry) = entry else { continue };
            held += 1;
            if !self.tree.holds(entry.standing(slot), &entry.coordinate) {
                return Err(format!("slot {slot} is not as marked in the bucket of {:?}", entry.coordinate));
            }
        }
        if held != self.len {
            return Err(format!("{held} entries, {} counted", self.len));
        }
        self.tree.check(held)?;
        self.ordinals.as_ref().map_or(Ok(()), |ordinals| {
            ordinals.check(held, |slot| self.entry(slot).map(|e| (e.ordinal, e.coordinate, e.marks)))
        })
    }
}

fn draw(slots: &[Slot], rng: &mut Rng) -> Option<Slot> {
    (!slots.is_empty()).then(|| slots[rng.below(slots.len() as u64) as usize])
}
