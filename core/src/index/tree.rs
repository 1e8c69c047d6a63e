//! The tree of buckets: one level per dimension, only non-empty buckets, children in order of
//! their coordinate.
//!
//! Each child entry carries the highest coordinates below it in every dimension, so that a
//! search skips a subtree that has nothing in some later dimension without entering it: a plain
//! lexicographic walk would visit every cpu bucket for a request that asks for GPUs.

use std::ops::ControlFlow;

use super::{Coordinate, Slot, Visits};
use crate::ids::Ordinal;
use crate::planted::{PlantedBug, is_planted};

pub use super::elements::Elements;

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

#[derive(Clone, Copy, Debug)]
struct Child {
    /// The maximum below, per dimension.
    highest: Coordinate,
    vertex: VertexId,
    /// The coordinate in the parent's dimension.
    step: u16,
}

#[derive(Debug)]
enum Vertex {
    Inner(Vec<Child>),
    Leaf(Elements),
    Free,
}

/// The tree over one attribute order.
pub struct BucketTree {
    levels: usize,
    vertices: Vec<Vertex>,
    free: Vec<VertexId>,
}

impl BucketTree {
    /// An empty tree of `levels` dimensions.
    #[must_use]
    pub fn new(levels: usize) -> Self {
        Self { levels, vertices: vec![Vertex::Inner(Vec::new())], free: Vec::new() }
    }

    /// Non-empty buckets, the root included.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.vertices.len() - self.free.len()
    }

    /// The maximum over all nodes, per dimension.
    #[must_use]
    pub fn highest(&self) -> Coordinate {
        highest_of(self.children(ROOT))
    }

    fn children(&self, vertex: VertexId) -> &[Child] {
        match &self.vertices[vertex as usize] {
            Vertex::Inner(children) => children,
            other => unreachable!("vertex {vertex} is no inner bucket: {other:?}"),
        }
    }

    fn children_mut(&mut self, vertex: VertexId) -> &mut Vec<Child> {
        match &mut self.vertices[vertex as usize] {
            Vertex::Inner(children) => children,
            other => unreachable!("vertex {vertex} is no inner bucket: {other:?}"),
        }
    }

    fn allocate(&mut self, vertex: Vertex) -> VertexId {
        if let Some(id) = self.free.pop() {
            self.vertices[id as usize] = vertex;
            return id;
        }
        let id = VertexId::try_from(self.vertices.len()).expect("fewer buckets than u32 can count");
        self.vertices.push(vertex);
        id
    }

    /// Puts a node into the leaf of `at`.
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, at: &Coordinate) {
        let mut vertex = ROOT;
        for level in 0..self.levels {
            let step = at.0[level];
            let children = self.children_mut(vertex);
            let position = children.partition_point(|child| child.step < step);
            vertex = match children.get_mut(position) {
                Some(child) if child.step == step => {
                    if !is_planted(PlantedBug::IndexStaleMaximum) {
                        child.highest = child.highest.highest(at);
                    }
                    child.vertex
                }
                _ => {
                    let below = if level + 1 == self.levels {
                        Vertex::Leaf(Elements::new())
                    } else {
                        Vertex::Inner(Vec::new())
                    };
                    let child = self.allocate(below);
                    self.children_mut(vertex).insert(position, Child { highest: *at, vertex: child, step });
                    child
                }
            };
        }
        match &mut self.vertices[vertex as usize] {
            Vertex::Leaf(elements) => elements.insert(ordinal, slot),
            other => unreachable!("the last level holds leaves: {other:?}"),
        }
    }

    /// Takes a node out of the leaf of `at`; buckets that become empty go.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, slot: Slot, ordinal: Ordinal, at: &Coordinate) {
        self.remove_below(ROOT, 0, slot, ordinal, at);
    }

    /// Removes below `vertex` and says what that did to the bucket.
    fn remove_below(
        &mut self,
        vertex: VertexId,
        level: usize,
        slot: Slot,
        ordinal: Ordinal,
        at: &Coordinate,
    ) -> Removed {
        if level == self.levels {
            let Vertex::Leaf(elements) = &mut self.vertices[vertex as usize] else {
                unreachable!("the last level holds leaves");
            };
            assert!(elements.remove(ordinal), "slot {slot} is not in the leaf of {at:?}");
            return if elements.len() == 0 { Removed::Emptied } else { Removed::Unchanged };
        }
        let children = self.children(vertex);
        let position = children.partition_point(|child| child.step < at.0[level]);
        let child = children[position];
        assert!(child.step == at.0[level], "slot {slot}: no bucket for {at:?} at level {level}");
        match self.remove_below(child.vertex, level + 1, slot, ordinal, at) {
            Removed::Unchanged => Removed::Unchanged,
            Removed::Emptied => {
                self.vertices[child.vertex as usize] = Vertex::Free;
                self.free.push(child.vertex);
                let children = self.children_mut(vertex);
                children.remove(position);
                if children.is_empty() { Removed::Emptied } else { Removed::MaySink }
            }
            Removed::MaySink => {
                if !child.highest.may_rest_on(at) {
                    return Removed::Unchanged;
                }
                let highest = highest_of(self.children(child.vertex));
                if highest == child.highest {
                    return Removed::Unchanged;
                }
                self.children_mut(vertex)[position].highest = highest;
                Removed::MaySink
            }
        }
    }

    /// Visits the leaves of the fittable area of `lower` in order, until `visit` breaks.
    ///
    /// "Fittable" is by coordinate; whether a leaf holds a node that fits exactly is `visit`'s
    /// to find out.
    pub fn visit_leaves<R>(
        &self,
        direction: Direction,
        lower: &Coordinate,
        visits: &mut Visits,
        mut visit: impl FnMut(&Elements, &mut Visits) -> ControlFlow<R>,
    ) -> Option<R> {
        match self.visit_below(ROOT, 0, direction, lower, visits, &mut visit) {
            ControlFlow::Break(found) => Some(found),
            ControlFlow::Continue(()) => None,
        }
    }

    fn visit_below<R>(
        &self,
        vertex: VertexId,
        level: usize,
        direction: Direction,
        lower: &Coordinate,
        visits: &mut Visits,
        visit: &mut impl FnMut(&Elements, &mut Visits) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        visits.vertices += 1;
        let children = match &self.vertices[vertex as usize] {
            Vertex::Leaf(elements) => return visit(elements, visits),
            Vertex::Inner(children) => children,
            Vertex::Free => unreachable!("a free vertex {vertex} is linked"),
        };
        let from = children.partition_point(|child| child.step < lower.0[level]);
        let fittable = &children[from..];
        let mut enter = |child: &Child| {
            if !child.highest.reaches(lower) {
                return ControlFlow::Continue(());
            }
            self.visit_below(child.vertex, level + 1, direction, lower, visits, visit)
        };
        match direction {
            Direction::Greatest => fittable.iter().rev().try_for_each(&mut enter),
            Direction::Smallest => fittable.iter().try_for_each(&mut enter),
        }
    }

    /// Whether the node stands in the leaf of `at`.
    #[must_use]
    pub fn holds(&self, slot: Slot, ordinal: Ordinal, at: &Coordinate) -> bool {
        let mut vertex = ROOT;
        for level in 0..self.levels {
            let children = self.children(vertex);
            match children.binary_search_by_key(&at.0[level], |child| child.step) {
                Ok(position) => vertex = children[position].vertex,
                Err(_) => return false,
            }
        }
        match &self.vertices[vertex as usize] {
            Vertex::Leaf(elements) => elements.slot_of(ordinal) == Some(slot),
            _ => false,
        }
    }

    /// Checks the structure: order, maxima, no empty bucket, and the number of nodes.
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
        let children = match &self.vertices[vertex as usize] {
            Vertex::Leaf(elements) if level == self.levels && elements.len() > 0 => {
                return Ok((elements.len(), 1));
            }
            Vertex::Inner(children) if level < self.levels => children,
            other => return Err(format!("vertex {vertex} at level {level} is {other:?}")),
        };
        if !children.is_sorted_by(|a, b| a.step < b.step) {
            return Err(format!("children of vertex {vertex} are out of order"));
        }
        let (mut held, mut buckets) = (0, 1);
        for child in children {
            let (below, under) = self.check_below(child.vertex, level + 1)?;
            held += below;
            buckets += under;
            if level + 1 < self.levels && child.highest != highest_of(self.children(child.vertex)) {
                return Err(format!("the maximum below vertex {} is stale", child.vertex));
            }
        }
        if held == 0 && vertex != ROOT {
            return Err(format!("bucket {vertex} is empty"));
        }
        Ok((held, buckets))
    }
}

/// What a removal did to a bucket.
enum Removed {
    /// Nothing is left in it.
    Emptied,
    /// Its maximum may be lower now.
    MaySink,
    /// Its maximum is what it was.
    Unchanged,
}

fn highest_of(children: &[Child]) -> Coordinate {
    children.iter().fold(Coordinate::default(), |highest, child| highest.highest(&child.highest))
}
