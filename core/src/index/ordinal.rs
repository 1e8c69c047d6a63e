//! The ordinal tree: all nodes in order of registration. Each vertex has the highest coordinates, the marks
//! and the number of nodes below it.
//!
//! It returns "the first node from here on that could fit" and "the n-th node" in O(log nodes). Ordinals only
//! grow, so a new node is appended. If a node returns in the middle (after draining), the owner rebuilds the
//! tree. This is rare and costs O(nodes).
//!
//! A vertex's maxima come from different nodes. In a nearly full cluster, many vertices are therefore entered
//! without success. For this reason the lowest level is a plain array of coordinates: scanning a run of it
//! costs no more than the linear scan that the tree replaces.

use super::tree::Wanted;
use super::{Coordinate, Mark, Marks, Meter, Slot, Structure};
use crate::broken::{Broken, broken};
use crate::ids::Ordinal;

/// The number of positions per vertex of the lowest level, and of vertices per vertex of the next level.
const FANOUT: usize = 16;
const VACANT: Slot = Slot::MAX;

/// The summary of the nodes below a vertex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Vertex {
    highest: Coordinate,
    marks: Marks,
    nodes: u32,
}

impl Vertex {
    fn with(self, other: &Self) -> Self {
        Self {
            highest: self.highest.highest(&other.highest),
            marks: self.marks.or(other.marks),
            nodes: self.nodes + other.nodes,
        }
    }
}

/// All nodes of an index in order of registration.
///
/// The vectors are indexed by position. `ordinals` is ascending. A position keeps its ordinal when its node
/// leaves. Its slot is vacant then, and its coordinate and marks are zero.
pub struct OrdinalTree {
    coordinates: Vec<Coordinate>,
    marks: Vec<Marks>,
    slots: Vec<Slot>,
    ordinals: Vec<Ordinal>,
    /// `levels[0]` has a vertex per 16 positions, and `levels[l + 1]` has one per 16 vertices of `levels[l]`,
    /// up to a single root.
    levels: Vec<Vec<Vertex>>,
    /// The position of each slot.
    positions: Vec<u32>,
}

impl OrdinalTree {
    /// Builds a tree of `sorted` nodes, in ascending order of ordinal.
    #[must_use]
    pub fn build(sorted: &[(Ordinal, Slot, Coordinate, Marks)]) -> Self {
        debug_assert!(sorted.is_sorted_by(|a, b| a.0 < b.0));
        let mut tree = Self {
            coordinates: sorted.iter().map(|&(_, _, coordinate, _)| coordinate).collect(),
            marks: sorted.iter().map(|&(.., marks)| marks).collect(),
            slots: sorted.iter().map(|&(_, slot, ..)| slot).collect(),
            ordinals: sorted.iter().map(|&(ordinal, ..)| ordinal).collect(),
            levels: Vec::new(),
            positions: Vec::new(),
        };
        for (position, &(_, slot, ..)) in sorted.iter().enumerate() {
            tree.set_position(slot, position);
        }
        tree.sum_all();
        tree
    }

    /// Rebuilds every level from the positions.
    fn sum_all(&mut self) {
        self.levels.clear();
        let blocks = self.coordinates.len().div_ceil(FANOUT);
        self.levels.push((0..blocks).map(|block| self.sum_of_block(block)).collect());
        while let Some(below) = self.levels.last()
            && below.len() > 1
        {
            let level = below.chunks(FANOUT).map(sum).collect();
            self.levels.push(level);
        }
    }

    fn block(&self, block: usize) -> std::ops::Range<usize> {
        block * FANOUT..self.coordinates.len().min((block + 1) * FANOUT)
    }

    fn sum_of_block(&self, block: usize) -> Vertex {
        let mut sum = Vertex::default();
        for position in self.block(block) {
            sum.highest = sum.highest.highest(&self.coordinates[position]);
            sum.marks = sum.marks.or(self.marks[position]);
            sum.nodes += u32::from(self.slots[position] != VACANT);
        }
        sum
    }

    fn set_position(&mut self, slot: Slot, position: usize) {
        if self.positions.len() <= slot as usize {
            self.positions.resize(slot as usize + 1, u32::MAX);
        }
        self.positions[slot as usize] = u32::try_from(position).expect("fewer nodes than u32 can count");
    }

    /// Returns the number of nodes in the tree.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levels.last().and_then(|level| level.first()).map_or(0, |root| root.nodes as usize)
    }

    /// Returns whether the tree contains no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a node. Returns `false` if it belongs in the middle, and the tree must be rebuilt.
    #[must_use]
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, at: &Coordinate, marks: Marks) -> bool {
        let position = match self.ordinals.last() {
            Some(&last) if ordinal <= last => match self.ordinals.binary_search(&ordinal) {
                Ok(position) => position,
                Err(_) => return false,
            },
            _ => {
                // Once most positions are vacant, a rebuild reclaims them.
                if self.ordinals.len() >= 2 * FANOUT && self.len() * 2 < self.ordinals.len() {
                    return false;
                }
                self.grow(ordinal)
            }
        };
        self.slots[position] = slot;
        self.coordinates[position] = *at;
        self.marks[position] = marks;
        self.set_position(slot, position);
        self.settle(position);
        true
    }

    /// Adds a position at the end, and the vertices that it needs.
    fn grow(&mut self, ordinal: Ordinal) -> usize {
        let position = self.coordinates.len();
        self.ordinals.push(ordinal);
        self.slots.push(VACANT);
        self.coordinates.push(Coordinate::default());
        self.marks.push(Marks::NONE);
        let mut at = position / FANOUT;
        let mut level = 0;
        while at == self.levels[level].len() {
            self.levels[level].push(Vertex::default());
            if level + 1 == self.levels.len() {
                if at == 0 {
                    break;
                }
                let above = sum(&self.levels[level]);
                self.levels.push(vec![above]);
            }
            at /= FANOUT;
            level += 1;
        }
        position
    }

    /// Removes a node. Its position becomes vacant.
    pub fn remove(&mut self, slot: Slot) {
        let position = self.positions[slot as usize] as usize;
        self.positions[slot as usize] = u32::MAX;
        self.slots[position] = VACANT;
        self.coordinates[position] = Coordinate::default();
        self.marks[position] = Marks::NONE;
        self.settle(position);
    }

    /// Sets a node's coordinate.
    pub fn update(&mut self, slot: Slot, at: &Coordinate) {
        let position = self.positions[slot as usize] as usize;
        self.coordinates[position] = *at;
        self.settle(position);
    }

    /// Sets a node's marks.
    pub fn mark(&mut self, slot: Slot, marks: Marks) {
        let position = self.positions[slot as usize] as usize;
        self.marks[position] = marks;
        self.settle(position);
    }

    /// Sets `mark` on the nodes for which `member` returns true, and clears it on all others.
    pub fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        for (marks, &slot) in self.marks.iter_mut().zip(&self.slots) {
            *marks = marks.with(mark, slot != VACANT && member(slot));
        }
        self.sum_all();
    }

    /// Updates the vertices above `position`.
    fn settle(&mut self, position: usize) {
        let mut at = position / FANOUT;
        let mut now = self.sum_of_block(at);
        for level in 0..self.levels.len() {
            if self.levels[level][at] == now {
                return;
            }
            self.levels[level][at] = now;
            at /= FANOUT;
            let below = &self.levels[level];
            now = sum(&below[at * FANOUT..below.len().min((at + 1) * FANOUT)]);
        }
    }

    /// Returns the first node from `start` on, in order of registration, that has the `wanted` coordinate and
    /// marks and that `accept` accepts.
    pub fn first_from<M: Meter>(
        &self,
        start: Ordinal,
        wanted: &Wanted,
        visits: &mut M,
        mut accept: impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        let start = if start.0 == 0 { 0 } else { self.ordinals.partition_point(|&o| o < start) };
        let mut block = start / FANOUT;
        while let Some(next) = self.next_block(block, wanted, visits) {
            let range = self.block(next);
            let first = range.start.max(start);
            // The coordinates are contiguous. The other fields are read only if the coordinate suffices,
            // which is rare.
            for (position, coordinate) in (first..).zip(&self.coordinates[first..range.end]) {
                visits.item::<Coordinate>(Structure::InOrder(0), position);
                if coordinate.reaches(wanted.lower())
                    && self.has_marks(position, wanted.marks, visits)
                    && self.slots[position] != VACANT
                    && accept(self.slots[position], visits)
                {
                    return Some(self.slots[position]);
                }
            }
            block = next + 1;
        }
        None
    }

    /// Returns whether a node has some marks. Its slot is read next, if it has.
    #[inline(always)]
    fn has_marks(&self, position: usize, marks: Marks, visits: &mut impl Meter) -> bool {
        visits.item::<Marks>(Structure::InOrder(1), position);
        let holds = self.marks[position].hold(marks);
        if holds {
            visits.item::<Slot>(Structure::InOrder(2), position);
        }
        holds
    }

    /// Returns the first block from `block` on whose summary suffices. The search moves up while nothing on a
    /// level suffices, and down where something may.
    fn next_block(&self, block: usize, wanted: &Wanted, visits: &mut impl Meter) -> Option<usize> {
        let (mut level, mut at) = self.above(0, block);
        loop {
            let vertices = &self.levels[level];
            let end = vertices.len().min((at / FANOUT + 1) * FANOUT);
            let found = vertices.get(at..end)?.iter().position(|vertex| {
                vertex.highest.reaches(wanted.lower()) && vertex.marks.hold(wanted.marks) && vertex.nodes > 0
            });
            let read = found.map_or_else(|| end.wrapping_sub(at), |skipped| skipped.wrapping_add(1));
            visits.items::<Vertex>(Structure::Levels(level as u8), at, read);
            match found {
                Some(skipped) => {
                    visits.vertex();
                    at += skipped;
                    if level == 0 {
                        return Some(at);
                    }
                    level -= 1;
                    at *= FANOUT;
                }
                None if level + 1 == self.levels.len() => return None,
                None => (level, at) = self.above(level + 1, at / FANOUT + 1),
            }
        }
    }

    /// Returns the highest vertex that begins where vertex `at` of `level` does, because it may exclude more.
    fn above(&self, mut level: usize, mut at: usize) -> (usize, usize) {
        while at.is_multiple_of(FANOUT) && level + 1 < self.levels.len() {
            level += 1;
            at /= FANOUT;
        }
        (level, at)
    }

    /// Returns the `n`-th node in order of registration, counted from 0.
    ///
    /// # Panics
    /// When there are no more than `n` nodes.
    #[must_use]
    pub fn nth(&self, n: u64, visits: &mut impl Meter) -> Slot {
        assert!((n as usize) < self.len(), "there is no node {n}");
        if self.len() == self.slots.len() {
            visits.item::<Slot>(Structure::InOrder(2), n as usize);
            return self.slots[n as usize];
        }
        let mut n = n as u32;
        let mut at = 0;
        for level in self.levels.iter().rev() {
            while level[at].nodes <= n {
                n -= level[at].nodes;
                at += 1;
            }
            at *= FANOUT;
        }
        let held = self.slots[at..].iter().filter(|&&slot| slot != VACANT);
        *held.into_iter().nth(n as usize).expect("the block counts its nodes")
    }

    /// Returns the bytes taken by the tree.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(Vec::capacity).sum();
        self.coordinates.capacity() * size_of::<Coordinate>()
            + self.marks.capacity() * size_of::<Marks>()
            + (self.slots.capacity() + self.positions.capacity()) * size_of::<Slot>()
            + self.ordinals.capacity() * size_of::<Ordinal>()
            + levels * size_of::<Vertex>()
    }

    /// Checks every vertex against those below it, and the positions against `entry`.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub fn check(
        &self,
        nodes: usize,
        entry: impl Fn(Slot) -> Option<(Ordinal, Coordinate, Marks)>,
    ) -> Result<(), Broken> {
        if self.len() != nodes {
            return Err(broken!("the ordinal tree holds {} nodes, {nodes} expected", self.len()));
        }
        let blocks = (0..self.levels[0].len()).map(|block| self.sum_of_block(block));
        if !blocks.eq(self.levels[0].iter().copied()) {
            return Err(Broken::new("the lowest level of the ordinal tree is stale"));
        }
        for (level, pair) in self.levels.windows(2).enumerate() {
            if !pair[0].chunks(FANOUT).map(sum).eq(pair[1].iter().copied()) {
                return Err(broken!("level {} of the ordinal tree is stale", level + 1));
            }
        }
        for (position, &slot) in self.slots.iter().enumerate() {
            let coordinate = self.coordinates[position];
            let marks = self.marks[position];
            if slot == VACANT {
                if (coordinate, marks) != (Coordinate::default(), Marks::NONE) {
                    return Err(broken!("vacant position {position} is in the tree"));
                }
            } else if entry(slot) != Some((self.ordinals[position], coordinate, marks)) {
                return Err(broken!("slot {slot} is not where the ordinal tree says"));
            }
        }
        Ok(())
    }
}

fn sum(below: &[Vertex]) -> Vertex {
    below.iter().fold(Vertex::default(), |sum, vertex| sum.with(vertex))
}
