//! The tree of buckets: one level per dimension, only non-empty buckets, children in order of
//! their coordinate.
//!
//! Each child entry carries the highest coordinates below it in every dimension and the marks of
//! the nodes below, so that a search skips a subtree that has nothing in some later dimension, or
//! no candidate, without entering it: a plain lexicographic walk would visit every cpu bucket for
//! a request that asks for GPUs.

use std::ops::ControlFlow;

use super::elements::Element;
use super::{Coordinate, Mark, Marks, Slot, Visits};
use crate::ids::Ordinal;
use crate::limits::DIMENSIONS_MAX;
use crate::planted::{PlantedBug, is_planted};

pub use super::elements::Elements;

/// An inner bucket by its place in `inner`, or on the last level a leaf by its place in `leaves`.
type VertexId = u32;
const ROOT: VertexId = 0;

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
    /// The coordinate of the request.
    pub lower: Coordinate,
    /// What a node must be marked with.
    pub marks: Marks,
}

/// A node as the tree knows it.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its slot.
    pub slot: Slot,
    /// Its place among the nodes of a leaf.
    pub ordinal: Ordinal,
    /// Its marks.
    pub marks: Marks,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    /// The maximum below, per dimension.
    highest: Coordinate,
    /// The marks below.
    marks: Marks,
    vertex: VertexId,
    /// The coordinate in the parent's dimension.
    step: u16,
}

const _: () = assert!(size_of::<Child>() == 32, "two children share a cache line");

impl Child {
    #[inline]
    fn may_hold(&self, wanted: &Wanted) -> bool {
        self.highest.reaches(&wanted.lower) && self.marks.hold(wanted.marks)
    }
}

/// The way from the root to a leaf: the vertex of each level and the place of its child in it.
type Path = [(VertexId, usize); DIMENSIONS_MAX];

/// The tree over one attribute order.
pub struct BucketTree {
    levels: usize,
    inner: Vec<Vec<Child>>,
    leaves: Vec<Elements>,
    /// Buckets that are linked nowhere; they keep their memory for the next one.
    free_inner: Vec<VertexId>,
    free_leaves: Vec<VertexId>,
}

impl BucketTree {
    /// An empty tree of `levels` dimensions.
    #[must_use]
    pub fn new(levels: usize) -> Self {
        let (inner, leaves) = (vec![Vec::new()], Vec::new());
        Self { levels, inner, leaves, free_inner: Vec::new(), free_leaves: Vec::new() }
    }

    /// Non-empty buckets, the root included.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.inner.len() + self.leaves.len() - self.free_inner.len() - self.free_leaves.len()
    }

    /// The maximum over all nodes, per dimension.
    #[must_use]
    pub fn highest(&self) -> Coordinate {
        self.children(ROOT).iter().fold(Coordinate::default(), |all, child| all.highest(&child.highest))
    }

    #[inline]
    fn children(&self, vertex: VertexId) -> &[Child] {
        &self.inner[vertex as usize]
    }

    /// An empty bucket for the level below `level`.
    fn allocate(&mut self, level: usize) -> VertexId {
        let number = |len: usize| VertexId::try_from(len).expect("fewer buckets than u32 can count");
        if level + 1 == self.levels {
            self.free_leaves.pop().unwrap_or_else(|| {
                self.leaves.push(Elements::new());
                number(self.leaves.len() - 1)
            })
        } else {
            self.free_inner.pop().unwrap_or_else(|| {
                self.inner.push(Vec::new());
                number(self.inner.len() - 1)
            })
        }
    }

    /// Puts a node into the leaf of `at`.
    pub fn insert(&mut self, node: Standing, at: &Coordinate) {
        self.insert_below(ROOT, 0, node, at);
    }

    fn insert_below(&mut self, vertex: VertexId, level: usize, node: Standing, at: &Coordinate) {
        let mut vertex = vertex;
        for level in level..self.levels {
            let step = at.0[level];
            let children = &mut self.inner[vertex as usize];
            let position = children.partition_point(|child| child.step < step);
            vertex = match children.get_mut(position) {
                Some(child) if child.step == step => {
                    if !is_planted(PlantedBug::IndexStaleMaximum) {
                        child.highest = child.highest.highest(at);
                    }
                    child.marks = child.marks.or(node.marks);
                    child.vertex
                }
                _ => {
                    let below = self.allocate(level);
                    let child = Child { highest: *at, marks: node.marks, vertex: below, step };
                    self.inner[vertex as usize].insert(position, child);
                    below
                }
            };
        }
        let Standing { slot, ordinal, marks } = node;
        self.leaves[vertex as usize].insert(Element { ordinal, marks, slot });
    }

    /// The way to the leaf of `at`, and the leaf.
    fn path(&self, at: &Coordinate) -> Option<(Path, VertexId)> {
        let mut path = [(ROOT, 0); DIMENSIONS_MAX];
        let mut vertex = ROOT;
        for (place, step) in path.iter_mut().zip(at.0).take(self.levels) {
            let children = self.children(vertex);
            let position = children.partition_point(|child| child.step < step);
            let child = children.get(position).filter(|child| child.step == step)?;
            *place = (vertex, position);
            vertex = child.vertex;
        }
        Some((path, vertex))
    }

    /// Takes a node out of the leaf of `at`; buckets that become empty go.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, node: Standing, at: &Coordinate) {
        let Some((path, leaf)) = self.path(at) else {
            panic!("slot {}: no bucket for {at:?}", node.slot);
        };
        self.remove_until(0, &path, leaf, node, at);
    }

    /// Takes a node out of `leaf` and follows up in the vertices of `path` from level `top` on.
    fn remove_until(&mut self, top: usize, path: &Path, leaf: VertexId, node: Standing, at: &Coordinate) {
        let elements = &mut self.leaves[leaf as usize];
        assert!(elements.remove(node.ordinal), "slot {} is not in the leaf of {at:?}", node.slot);
        let mut level = self.levels;
        let mut emptied = elements.is_empty();
        while emptied && level > top {
            level -= 1;
            let (vertex, position) = path[level];
            let children = &mut self.inner[vertex as usize];
            let gone = children.remove(position);
            emptied = children.is_empty() && vertex != ROOT;
            let free = if level + 1 == self.levels { &mut self.free_leaves } else { &mut self.free_inner };
            free.push(gone.vertex);
        }
        // In a leaf all nodes have one coordinate: only marks can sink there.
        let mut sinks = if level == self.levels { node.marks != Marks::NONE } else { true };
        while sinks && level > top {
            level -= 1;
            sinks = self.settle(path[level], level, at, node.marks);
        }
    }

    /// Brings what the child at `place` carries up to date, after a node at `at` with `marks` went
    /// from below it; whether that changed.
    fn settle(&mut self, place: (VertexId, usize), level: usize, at: &Coordinate, marks: Marks) -> bool {
        let (vertex, position) = place;
        let known = self.inner[vertex as usize][position];
        let mut now = known;
        if marks != Marks::NONE {
            let held = self.marks_below(&known, level, marks);
            now.marks = known.marks.without(marks).or(held);
        }
        // All nodes below share the coordinates down to this level: those cannot sink.
        let mut beyond = *at;
        beyond.0[..=level].fill(0);
        now.highest = self.highest_below(&known, level, &known.highest.where_equal(&beyond));
        self.inner[vertex as usize][position] = now;
        now.highest != known.highest || now.marks != known.marks
    }

    /// Which of `asked` the nodes below `child`, of a vertex on `level`, have together.
    fn marks_below(&self, child: &Child, level: usize, asked: Marks) -> Marks {
        if level + 1 == self.levels {
            return self.leaves[child.vertex as usize].marks_among(asked);
        }
        let below = self.children(child.vertex).iter().map(|below| below.marks);
        Marks::among(below, asked)
    }

    /// The maximum below `child`, of a vertex on `level`, where only the dimensions that `at_risk`
    /// names may be lower than what the child carries: the sum stops when it finds those held
    /// up, and begins where the next dimension is largest.
    fn highest_below(&self, child: &Child, level: usize, at_risk: &Coordinate) -> Coordinate {
        if level + 1 == self.levels || *at_risk == Coordinate::default() {
            return child.highest;
        }
        let mut highest = Coordinate::default();
        for below in self.children(child.vertex).iter().rev() {
            highest = highest.highest(&below.highest);
            if highest.reaches(at_risk) {
                return child.highest;
            }
        }
        highest
    }

    /// Moves a node from the leaf of `from` to that of `to`. Buckets that hold both are not left:
    /// most moves change the later dimensions only, or little in the first.
    ///
    /// # Panics
    /// When it is not there.
    pub fn update(&mut self, node: Standing, from: &Coordinate, to: &Coordinate) {
        let shared = (0..self.levels).take_while(|&level| from.0[level] == to.0[level]).count();
        assert!(shared < self.levels, "slot {} moves to where it stands", node.slot);
        let Some((path, leaf)) = self.path(from) else {
            panic!("slot {}: no bucket for {from:?}", node.slot);
        };
        self.remove_until(shared, &path, leaf, node, from);
        self.insert_below(path[shared].0, shared, node, to);
        // Above, the marks are what they were, and a maximum sinks only where `from` held it up
        // and `to` does not.
        let lost = from.where_above(to);
        for level in (0..shared).rev() {
            let (vertex, position) = path[level];
            let known = self.inner[vertex as usize][position];
            let mut now = known;
            if !is_planted(PlantedBug::IndexStaleMaximum) {
                now.highest = known.highest.highest(to);
            }
            now.highest = self.highest_below(&now, level, &known.highest.where_equal(&lost));
            if now.highest == known.highest {
                return;
            }
            self.inner[vertex as usize][position] = now;
        }
    }

    /// Exchanges the marks of a node.
    ///
    /// # Panics
    /// When it is not there.
    pub fn mark(&mut self, node: Standing, at: &Coordinate) {
        let Some((path, leaf)) = self.path(at) else {
            panic!("slot {}: no bucket for {at:?}", node.slot);
        };
        let found = self.leaves[leaf as usize].mark(node.ordinal, node.marks);
        assert!(found, "slot {} is not in the leaf of {at:?}", node.slot);
        for level in (0..self.levels).rev() {
            let (vertex, position) = path[level];
            let marks = self.marks_below(&self.inner[vertex as usize][position], level, Marks::ALL);
            self.inner[vertex as usize][position].marks = marks;
        }
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others.
    pub fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        for elements in &mut self.leaves {
            elements.assign(mark, member);
        }
        self.assign_below(ROOT, 0, mark);
    }

    /// Brings one mark of the child entries below up to date; whether any node below has it.
    fn assign_below(&mut self, vertex: VertexId, level: usize, mark: Mark) -> bool {
        let mut any = false;
        for position in 0..self.children(vertex).len() {
            let below = self.children(vertex)[position].vertex;
            let held = if level + 1 == self.levels {
                self.leaves[below as usize].marks_among(Marks::only(mark)) != Marks::NONE
            } else {
                self.assign_below(below, level + 1, mark)
            };
            let child = &mut self.inner[vertex as usize][position];
            child.marks = child.marks.with(mark, held);
            any |= held;
        }
        any
    }

    /// Visits the leaves of the fittable area of `wanted` in order, until `visit` breaks.
    ///
    /// "Fittable" is by coordinate; whether a leaf holds a node that fits exactly is `visit`'s
    /// to find out.
    pub fn visit_leaves<R>(
        &self,
        direction: Direction,
        wanted: &Wanted,
        visits: &mut Visits,
        mut visit: impl FnMut(&Elements, &mut Visits) -> ControlFlow<R>,
    ) -> Option<R> {
        // Per level, the children that are still to be looked at.
        let mut left: [&[Child]; DIMENSIONS_MAX] = [&[]; DIMENSIONS_MAX];
        let mut level = 0;
        visits.vertices += 1;
        left[0] = self.fittable(ROOT, wanted.lower.0[0]);
        loop {
            let children = left[level];
            let next = match direction {
                Direction::Smallest => children.iter().position(|child| child.may_hold(wanted)),
                Direction::Greatest => children.iter().rposition(|child| child.may_hold(wanted)),
            };
            let Some(at) = next else {
                if level == 0 {
                    return None;
                }
                level -= 1;
                continue;
            };
            left[level] = match direction {
                Direction::Smallest => &children[at + 1..],
                Direction::Greatest => &children[..at],
            };
            visits.vertices += 1;
            let vertex = children[at].vertex;
            if level + 1 < self.levels {
                level += 1;
                left[level] = self.fittable(vertex, wanted.lower.0[level]);
            } else if let ControlFlow::Break(found) = visit(&self.leaves[vertex as usize], visits) {
                return Some(found);
            }
        }
    }

    #[inline]
    fn fittable(&self, vertex: VertexId, lower: u16) -> &[Child] {
        let children = self.children(vertex);
        &children[children.partition_point(|child| child.step < lower)..]
    }

    /// Whether the node stands in the leaf of `at`, with its marks.
    #[must_use]
    pub fn holds(&self, node: Standing, at: &Coordinate) -> bool {
        self.path(at).is_some_and(|(_, leaf)| {
            let leaf = &self.leaves[leaf as usize];
            !leaf.is_empty() && leaf.find(node.ordinal) == Some((node.slot, node.marks))
        })
    }

    /// Checks the structure: order, maxima, marks, no empty bucket, and the number of nodes.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, nodes: usize) -> Result<(), String> {
        let (held, buckets) = self.check_below(ROOT, 0)?;
        if held != nodes || buckets != self.bucket_count() {
            return Err(format!(
                "the tree holds {held} nodes in {buckets} buckets, {nodes} in {} expected",
                self.bucket_count()
            ));
        }
        Ok(())
    }

    fn check_below(&self, vertex: VertexId, level: usize) -> Result<(usize, usize), String> {
        if level == self.levels {
            let elements = &self.leaves[vertex as usize];
            elements.check()?;
            return if elements.is_empty() {
                Err(format!("leaf {vertex} is empty"))
            } else {
                Ok((elements.len(), 1))
            };
        }
        let children = self.children(vertex);
        if !children.is_sorted_by(|a, b| a.step < b.step) {
            return Err(format!("children of vertex {vertex} are out of order"));
        }
        let (mut held, mut buckets) = (0, 1);
        for &child in children {
            let (below, under) = self.check_below(child.vertex, level + 1)?;
            held += below;
            buckets += under;
            // From a bound that nothing reaches: the sum goes over all that is below.
            let bound = Coordinate([u16::MAX; DIMENSIONS_MAX]);
            let highest = self.highest_below(&child, level, &bound);
            let sum = (highest, self.marks_below(&child, level, Marks::ALL));
            if sum != (child.highest, child.marks) {
                return Err(format!("what is kept of vertex {} on level {level} is stale", child.vertex));
            }
        }
        if held == 0 && vertex != ROOT {
            return Err(format!("bucket {vertex} is empty"));
        }
        Ok((held, buckets))
    }
}
