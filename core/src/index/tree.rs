//! The bucket tree of one attribute order: the nodes in order of coordinate, then of registration.
//!
//! The patent's tree has a vertex per bucket on every level. Here the coordinates define the buckets. A leaf is
//! a range of nodes with one coordinate, and a bucket of an inner level is a range of leaves. See
//! `plane.rs`.

use super::coordinate::{Coordinates, Geometry};
use super::entry::{Entry, Narrow, RANKS_MAX, Wide};
use super::layout::{Layout, highest};
use super::placing::{NOWHERE, Placed, Placing};
use super::plane::{Asked, Plane};
use super::ranks::{Rank, Ranks};
use super::{Coordinate, IndexEntry, Mark, Marks, Meter, ResourceVector, Slot, Structure};
use crate::broken::{Broken, broken};
use crate::limits::DIMENSIONS_MAX;
use crate::memory;

/// The order in which leaves are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The largest coordinate first, dimension by dimension: LeastFit.
    Greatest,
    /// The smallest fitting coordinate first: BestFit.
    Smallest,
}

/// The coordinates and marks that a search requires of a node, as a minimum.
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

/// The entry of a node and its cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<E> {
    pub(super) entry: E,
    /// `NOWHERE` if the node is not in the tree.
    pub(super) cell: u32,
    /// See [`Coordinates::odd`].
    odd: [u16; 2],
}

/// The nodes of one attribute order.
pub(super) struct Bucketed<E: Entry> {
    pub(super) plane: Plane<E>,
    /// By slot.
    places: Vec<Place<E>>,
}

impl<E: Entry> Bucketed<E> {
    fn new(layout: Layout, dimensions: usize, room: usize) -> Self {
        Self { plane: Plane::new(layout, dimensions, room), places: Vec::new() }
    }

    #[inline]
    pub(super) fn place(&self, slot: Slot) -> Option<Place<E>> {
        self.places.get(slot as usize).copied().filter(|place| place.cell != NOWHERE)
    }

    fn insert(&mut self, slot: Slot, rank: Rank, at: &Coordinates, marks: Marks) {
        if self.places.len() <= slot as usize {
            let vacant = Place { entry: E::VACANT, cell: NOWHERE, odd: [0; 2] };
            memory::resize_tight(&mut self.places, slot as usize + 1, vacant);
        }
        assert!(self.places[slot as usize].cell == NOWHERE, "slot {slot} is in the index already");
        assert!((rank as usize) < RANKS_MAX, "ranks are given again before they are so many");
        let layout = self.plane.layout();
        let entry = E::new(layout, at, rank);
        let cell = E::cell(layout, &at.coordinate);
        self.plane.insert(cell, entry, &at.coordinate, marks);
        self.plane.change_odd([0; 2], at.odd);
        self.places[slot as usize] = Place { entry, cell: cell as u32, odd: at.odd };
    }

    fn remove(&mut self, slot: Slot) -> Rank {
        let Some(Place { entry, cell, odd }) = self.place(slot) else {
            panic!("slot {slot} is not in the index")
        };
        let at = entry.coordinate(self.plane.layout(), cell as usize);
        self.plane.remove(cell as usize, entry, &at);
        self.plane.change_odd(odd, [0; 2]);
        self.places[slot as usize].cell = NOWHERE;
        entry.rank()
    }

    /// Moves a node. Returns whether its coordinate changed.
    fn update(&mut self, slot: Slot, at: &Coordinates, marks: &[Marks]) -> bool {
        let rank = self.places[slot as usize].entry.rank();
        let layout = self.plane.layout();
        let cell = E::cell(layout, &at.coordinate) as u32;
        self.move_to(slot, Place { entry: E::new(layout, at, rank), cell, odd: at.odd }, marks)
    }

    #[inline(always)]
    fn move_to(&mut self, slot: Slot, to: Place<E>, marks: &[Marks]) -> bool {
        let from = std::mem::replace(&mut self.places[slot as usize], to);
        assert!(from.cell != NOWHERE, "slot {slot} is not in the index");
        if (from.odd, to.odd) != ([0; 2], [0; 2]) {
            self.plane.change_odd(from.odd, to.odd);
        }
        self.plane.update((from.cell as usize, from.entry), (to.cell as usize, to.entry), marks)
    }

    #[inline]
    fn coordinates(&self, slot: Slot) -> Option<Coordinates> {
        let Place { entry, cell, odd } = self.place(slot)?;
        let coordinate = entry.coordinate(self.plane.layout(), cell as usize);
        Some(Coordinates { coordinate, within: entry.parts_within(), odd })
    }

    fn nodes(&self) -> impl Iterator<Item = (Slot, Rank, Coordinates)> {
        let node = |slot: Slot| Some((slot, self.place(slot)?.entry.rank(), self.coordinates(slot)?));
        (0..self.places.len() as Slot).filter_map(node)
    }

    /// Returns the leaves in ascending order, each with its nodes in order of registration. Costs O(nodes).
    fn leaves(&self) -> Vec<(Coordinate, Vec<Rank>)> {
        let mut leaves: Vec<(Coordinate, Vec<Rank>)> = Vec::new();
        for (cell, entry) in self.plane.entries() {
            let at = entry.coordinate(self.plane.layout(), cell);
            match leaves.last_mut() {
                Some((last, ranks)) if *last == at => ranks.push(entry.rank()),
                _ => leaves.push((at, vec![entry.rank()])),
            }
        }
        leaves
    }

    fn check(&self, ranks: &Ranks, marks: &[Marks], nodes: usize) -> Result<(), Broken> {
        let held = self.plane.len();
        let placed = self.nodes().count();
        if held != nodes || placed != nodes {
            return Err(broken!("the tree holds {held} nodes, {placed} are placed, {nodes} expected"));
        }
        for (slot, rank, _) in self.nodes() {
            if rank != ranks.of(slot) || !self.is_placed(slot) {
                return Err(broken!("slot {slot} is not in the cell where it should be"));
            }
        }
        let leaves = self.leaves();
        let is_sorted = leaves.is_sorted_by(|a, b| a.0 < b.0);
        if !is_sorted || !leaves.iter().all(|(_, ranks)| ranks.is_sorted_by(|a, b| a < b)) {
            return Err(Broken::new("the nodes are out of order"));
        }
        let odd = self.places.iter().filter(|place| place.cell != NOWHERE).map(|place| place.odd);
        if !self.plane.has_odd(odd) {
            return Err(Broken::new("the counts of odd parts of GPUs are not so"));
        }
        self.plane.check(marks)
    }

    fn is_placed(&self, slot: Slot) -> bool {
        self.place(slot).is_some_and(|place| self.plane.has(place.cell as usize, place.entry))
    }
}

impl Bucketed<Narrow> {
    /// Moves a node. Returns whether its coordinate changed. `None` if that takes a longer way, or if the node is not
    /// in the tree.
    #[inline(always)]
    fn follow(&mut self, slot: Slot, to: Placed, marks: &[Marks]) -> Option<bool> {
        let Placed { entry, cell, odd } = to;
        let place = self.places.get_mut(slot as usize)?;
        let from = *place;
        let is_odd = from.odd != [0; 2] || odd != 0;
        if (from.cell == NOWHERE) | (cell == NOWHERE) | is_odd {
            return None;
        }
        let entry = entry.with_rank(from.entry.rank());
        (place.entry, place.cell) = (entry, cell);
        Some(self.plane.update((from.cell as usize, from.entry), (cell as usize, entry), marks))
    }
}

/// The tree of one attribute order.
pub(super) struct BucketTree {
    /// For each position, the dimension compared there. `None` for the dimensions' own order.
    order: Option<[u8; DIMENSIONS_MAX]>,
    /// Whether entries of one word tell all that decides. See [`Geometry::is_narrow`].
    may_be_narrow: bool,
    dimensions: usize,
    room: usize,
    /// By rank. Empty while no node has a mark.
    marks: Vec<Marks>,
    placing: Placing,
    pub(super) width: Width,
}

pub(super) enum Width {
    Narrow(Bucketed<Narrow>),
    Wide(Bucketed<Wide>),
}

macro_rules! each {
    ($tree:expr, $width:ident => $result:expr) => {
        match $tree {
            Width::Narrow($width) => $result,
            Width::Wide($width) => $result,
        }
    };
}

impl BucketTree {
    /// Creates an empty tree of attribute order `order`.
    pub(super) fn new(geometry: &Geometry, order: usize) -> Self {
        let may_be_narrow = geometry.is_narrow(order);
        let dimensions = geometry.dimension_count();
        let room = geometry.room();
        let width = Width::over(&Coordinate::default(), 0, may_be_narrow, dimensions, room);
        let mut placing = if order == 0 { Placing::new(geometry) } else { Placing::NONE };
        placing.set_layout(width.narrow_layout());
        let order = (order > 0).then(|| geometry.orders()[order]);
        Self { order, may_be_narrow, dimensions, room, marks: Vec::new(), placing, width }
    }

    /// Builds the tree of an attribute order over nodes whose ranks are assigned.
    pub(super) fn built(geometry: &Geometry, order: usize, entries: &[IndexEntry], ranks: &Ranks) -> Self {
        let mut tree = Self::new(geometry, order);
        for (slot, (_, coordinates, marks)) in entries {
            tree.insert(*slot, ranks.of(*slot), coordinates, *marks);
        }
        tree
    }

    /// Returns the coordinates in this attribute order.
    #[inline]
    fn ordered(&self, at: &Coordinates) -> Coordinates {
        match &self.order {
            None => *at,
            Some(places) => at.ordered(places),
        }
    }

    /// Lays the tree out again if it does not cover a coordinate or has too many nodes.
    #[inline]
    fn cover(&mut self, at: &Coordinate) {
        let layout = each!(&self.width, tree => *tree.plane.layout());
        let len = each!(&self.width, tree => tree.plane.len());
        if !layout.covers(at) || layout.is_coarse_for(len + 1) {
            self.lay_out(at);
        }
    }

    /// Lays out a tree that covers all nodes and one more. Costs O(nodes). This happens when the number of nodes
    /// has doubled, or when a coordinate takes a bit more than all before.
    #[cold]
    fn lay_out(&mut self, more: &Coordinate) {
        let nodes: Vec<_> = each!(&self.width, tree => tree.nodes().collect());
        let highest = highest(nodes.iter().map(|(.., at)| at)).highest(more);
        let mut width =
            Width::over(&highest, nodes.len() + 1, self.may_be_narrow, self.dimensions, self.room);
        for (slot, rank, at) in &nodes {
            let marks = self.marks(*rank);
            each!(&mut width, tree => tree.insert(*slot, *rank, at, marks));
        }
        self.placing.set_layout(width.narrow_layout());
        self.width = width;
    }

    fn set_marks(&mut self, rank: Rank, marks: Marks) {
        if self.marks.len() <= rank as usize {
            if marks == Marks::NONE {
                return;
            }
            memory::resize_tight(&mut self.marks, rank as usize + 1, Marks::NONE);
        }
        self.marks[rank as usize] = marks;
    }

    #[inline]
    pub(super) fn marks(&self, rank: Rank) -> Marks {
        self.marks.get(rank as usize).copied().unwrap_or(Marks::NONE)
    }

    /// Adds a node.
    ///
    /// # Panics
    /// When it is already in the tree.
    pub(super) fn insert(&mut self, slot: Slot, rank: Rank, at: &Coordinates, marks: Marks) {
        let at = self.ordered(at);
        self.cover(&at.coordinate);
        self.set_marks(rank, marks);
        each!(&mut self.width, tree => tree.insert(slot, rank, &at, marks));
    }

    /// Removes a node.
    ///
    /// # Panics
    /// When it is not in the tree.
    pub(super) fn remove(&mut self, slot: Slot) {
        let rank = each!(&mut self.width, tree => tree.remove(slot));
        self.set_marks(rank, Marks::NONE);
    }

    /// Moves a node of the first attribute order. Returns whether its coordinate changed. `None` if that takes
    /// [`update_any`](Self::update_any), or if it is not in the tree.
    #[inline(always)]
    pub(super) fn update(&mut self, slot: Slot, available: &ResourceVector) -> Option<bool> {
        let Width::Narrow(tree) = &mut self.width else { return None };
        tree.follow(slot, self.placing.place(available), &self.marks)
    }

    /// Moves a node in any order, width and geometry. Returns whether its coordinate changed.
    #[inline(never)]
    pub(super) fn update_any(&mut self, slot: Slot, at: &Coordinates) -> bool {
        let at = self.ordered(at);
        let is_covered = each!(&self.width, tree => tree.plane.layout().covers(&at.coordinate));
        if !is_covered {
            self.lay_out(&at.coordinate);
        }
        each!(&mut self.width, tree => tree.update(slot, &at, &self.marks))
    }

    /// Prefetches the memory that an update of a node will read.
    #[inline]
    pub(super) fn prefetch(&self, slot: Slot) -> usize {
        each!(&self.width, tree => {
            tree.place(slot).map_or(0, |place| tree.plane.prefetch(place.cell as usize, place.entry))
        })
    }

    /// Replaces the marks of a node.
    pub(super) fn mark(&mut self, slot: Slot, marks: Marks) {
        let rank = each!(&mut self.width, tree => {
            let Some(place) = tree.place(slot) else { panic!("slot {slot} is not in the index") };
            tree.plane.mark(place.cell as usize, place.entry, marks);
            place.entry.rank()
        });
        self.set_marks(rank, marks);
    }

    /// Sets `mark` on the nodes for which `member` returns true, and clears it on all others.
    pub(super) fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        let nodes: Vec<_> = each!(&self.width, tree => tree.nodes().collect());
        for (slot, rank, _) in nodes {
            let marks = self.marks(rank).with(mark, member(slot));
            if self.marks(rank) != marks {
                self.mark(slot, marks);
            }
        }
    }

    /// Returns the first accepted node of the first leaf that has one.
    #[inline(always)]
    pub(super) fn first<M: Meter>(
        &mut self,
        direction: Direction,
        (vector, marks): (&ResourceVector, Marks),
        (geometry, ranks): (&Geometry, &Ranks),
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        if let Width::Narrow(tree) = &mut self.width
            && let Placed { entry, cell, .. } = self.placing.place(vector)
            && cell != NOWHERE
        {
            let asked = Asked { cell: cell as usize, entry, marks, of: &self.marks };
            return tree.plane.first(direction, &asked, ranks, visits, accept);
        }
        self.first_in_any(direction, (vector, marks), (geometry, ranks), visits, accept)
    }

    /// The same in any order, width and geometry.
    #[inline(never)]
    fn first_in_any<M: Meter>(
        &mut self,
        direction: Direction,
        (vector, marks): (&ResourceVector, Marks),
        (geometry, ranks): (&Geometry, &Ranks),
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        let at = self.ordered(&geometry.coordinates(vector));
        let of = &self.marks;
        each!(&mut self.width, tree => {
            let asked = tree.plane.asked(&at, marks, of)?;
            tree.plane.first(direction, &asked, ranks, visits, accept)
        })
    }

    /// Returns the coordinates of a node in this attribute order, if it is in the tree. Parts of steps may be
    /// larger than those of the node.
    #[inline]
    pub(super) fn coordinates(&self, slot: Slot) -> Option<Coordinates> {
        each!(&self.width, tree => tree.coordinates(slot))
    }

    /// Tells that the place of a node is read.
    #[inline(always)]
    pub(super) fn tell_place(&self, slot: Slot, visits: &mut impl Meter) {
        match &self.width {
            Width::Narrow(_) => visits.item::<Place<Narrow>>(Structure::Places, slot as usize),
            Width::Wide(_) => visits.item::<Place<Wide>>(Structure::Places, slot as usize),
        }
    }

    /// Returns whether a node is in the tree.
    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        each!(&self.width, tree => tree.place(slot).is_some())
    }

    /// Returns one more than the highest slot that was ever used here.
    pub(super) fn slots(&self) -> Slot {
        each!(&self.width, tree => tree.places.len() as Slot)
    }

    /// Returns an upper bound per dimension of all nodes' coordinates.
    pub(super) fn highest(&mut self) -> Coordinate {
        each!(&mut self.width, tree => tree.plane.highest())
    }

    /// Returns the number of non-empty buckets of a tree with `levels` dimensions, including the root. This is
    /// the number of distinct prefixes of the nodes' coordinates. Costs O(nodes).
    pub(super) fn bucket_count(&self, levels: usize) -> usize {
        let leaves = each!(&self.width, tree => tree.leaves());
        let below_root = |level: usize| {
            let differ = |pair: &&[(Coordinate, Vec<Rank>)]| pair[0].0.0[..=level] != pair[1].0.0[..=level];
            leaves.windows(2).filter(differ).count() + usize::from(!leaves.is_empty())
        };
        1 + (0..levels).map(below_root).sum::<usize>()
    }

    /// Returns the leaves in the direction of a search, each with its nodes. Costs O(nodes).
    pub(super) fn leaves(&self, direction: Direction, ranks: &Ranks) -> Vec<(Coordinate, Vec<Slot>)> {
        let mut leaves: Vec<_> = each!(&self.width, tree => tree.leaves())
            .into_iter()
            .map(|(at, nodes)| (at, nodes.into_iter().map(|rank| ranks.slot(rank)).collect()))
            .collect();
        if direction == Direction::Greatest {
            leaves.reverse();
        }
        leaves
    }

    pub(super) fn bytes(&self) -> usize {
        let marks = self.marks.capacity() * size_of::<Marks>();
        let narrow = size_of::<Place<Narrow>>();
        let wide = size_of::<Place<Wide>>();
        marks
            + match &self.width {
                Width::Narrow(tree) => tree.plane.bytes() + tree.places.capacity() * narrow,
                Width::Wide(tree) => tree.plane.bytes() + tree.places.capacity() * wide,
            }
    }

    /// Returns whether the node in `slot` has this rank and is in the cell of its entry.
    pub(super) fn has_entry(&self, slot: Slot, rank: Rank) -> bool {
        each!(&self.width, tree => {
            tree.place(slot).is_some_and(|place| place.entry.rank() == rank) && tree.is_placed(slot)
        })
    }

    /// Checks the order of the nodes, the bounds of cells, the cell of each node, and the number of nodes.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub(super) fn check(&self, ranks: &Ranks, nodes: usize) -> Result<(), Broken> {
        each!(&self.width, tree => tree.check(ranks, &self.marks, nodes))
    }
}

impl Width {
    /// Returns the layout if entries have one word.
    fn narrow_layout(&self) -> Option<&Layout> {
        match self {
            Self::Narrow(tree) => Some(tree.plane.layout()),
            Self::Wide(_) => None,
        }
    }

    /// Creates an empty tree for coordinates up to `highest`.
    fn over(highest: &Coordinate, nodes: usize, may_be_narrow: bool, dimensions: usize, room: usize) -> Self {
        match Layout::exact(highest, nodes).filter(|_| may_be_narrow) {
            Some(layout) => Self::Narrow(Bucketed::new(layout, dimensions, room)),
            None => Self::Wide(Bucketed::new(Layout::coarse(highest, nodes), dimensions, room)),
        }
    }
}
