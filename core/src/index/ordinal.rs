//! The ordinal tree: all nodes in order of registration, with the highest coordinates and the
//! number of nodes below each vertex.
//!
//! It answers "the first node from here on that could fit" and "the n-th node" in
//! O(log nodes). Ordinals only grow, so a new node goes to the end; a node that returns in the
//! middle (undrained) makes the owner build the tree anew, which is rare and O(nodes).

use super::{Coordinate, Slot, Visits};
use crate::ids::Ordinal;

const FANOUT: usize = 16;
const VACANT: Slot = Slot::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Vertex {
    highest: Coordinate,
    nodes: u32,
}

/// All nodes of an index in order of registration.
pub struct OrdinalTree {
    /// Level 0 has a vertex per position; level `l + 1` one per 16 vertices of level `l`, up to
    /// a single root.
    levels: Vec<Vec<Vertex>>,
    /// Ascending; a position keeps its ordinal when its node leaves.
    ordinals: Vec<Ordinal>,
    slots: Vec<Slot>,
    /// Where each slot stands.
    positions: Vec<u32>,
}

impl OrdinalTree {
    /// A tree of `sorted` nodes, in ascending order of ordinal.
    #[must_use]
    pub fn build(sorted: &[(Ordinal, Slot, Coordinate)]) -> Self {
        debug_assert!(sorted.is_sorted_by(|a, b| a.0 < b.0));
        let mut tree = Self {
            levels: vec![Vec::with_capacity(sorted.len())],
            ordinals: Vec::with_capacity(sorted.len()),
            slots: Vec::with_capacity(sorted.len()),
            positions: Vec::new(),
        };
        for (position, &(ordinal, slot, highest)) in sorted.iter().enumerate() {
            tree.levels[0].push(Vertex { highest, nodes: 1 });
            tree.ordinals.push(ordinal);
            tree.slots.push(slot);
            tree.set_position(slot, position);
        }
        while tree.levels.last().is_some_and(|level| level.len() > 1) {
            let below = &tree.levels[tree.levels.len() - 1];
            let level = below.chunks(FANOUT).map(sum).collect();
            tree.levels.push(level);
        }
        tree
    }

    fn set_position(&mut self, slot: Slot, position: usize) {
        if self.positions.len() <= slot as usize {
            self.positions.resize(slot as usize + 1, u32::MAX);
        }
        self.positions[slot as usize] = u32::try_from(position).expect("fewer nodes than u32 can count");
    }

    /// How many nodes it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.root().map_or(0, |(level, _)| self.levels[level][0].nodes as usize)
    }

    /// Whether it holds no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn root(&self) -> Option<(usize, usize)> {
        let level = self.levels.len() - 1;
        (!self.levels[level].is_empty()).then_some((level, 0))
    }

    /// Puts a node in; `false` when its place is in the middle, and the tree must be built anew.
    #[must_use]
    pub fn insert(&mut self, slot: Slot, ordinal: Ordinal, at: &Coordinate) -> bool {
        let position = match self.ordinals.last() {
            Some(&last) if ordinal <= last => match self.ordinals.binary_search(&ordinal) {
                Ok(position) => position,
                Err(_) => return false,
            },
            _ => {
                // Positions left behind are reclaimed by building anew once they are the majority.
                if self.ordinals.len() >= 2 * FANOUT && self.len() * 2 < self.ordinals.len() {
                    return false;
                }
                self.ordinals.push(ordinal);
                self.slots.push(VACANT);
                self.grow()
            }
        };
        self.slots[position] = slot;
        self.set_position(slot, position);
        self.set(position, Vertex { highest: *at, nodes: 1 });
        true
    }

    /// One more position at the end, and whatever vertices above it that takes.
    fn grow(&mut self) -> usize {
        let mut at = self.levels[0].len();
        let position = at;
        let mut level = 0;
        loop {
            if at == self.levels[level].len() {
                self.levels[level].push(Vertex::default());
            }
            if level + 1 == self.levels.len() {
                if self.levels[level].len() == 1 {
                    return position;
                }
                let above = sum(&self.levels[level][..self.levels[level].len() - 1]);
                self.levels.push(vec![above]);
            }
            at /= FANOUT;
            level += 1;
        }
    }

    /// Takes a node out; its position stays, vacant.
    pub fn remove(&mut self, slot: Slot) {
        let position = self.positions[slot as usize] as usize;
        self.positions[slot as usize] = u32::MAX;
        self.slots[position] = VACANT;
        self.set(position, Vertex::default());
    }

    /// Gives a node its new coordinate.
    pub fn update(&mut self, slot: Slot, at: &Coordinate) {
        self.set(self.positions[slot as usize] as usize, Vertex { highest: *at, nodes: 1 });
    }

    fn set(&mut self, position: usize, vertex: Vertex) {
        self.levels[0][position] = vertex;
        let mut at = position;
        for level in 1..self.levels.len() {
            let below = &self.levels[level - 1];
            at /= FANOUT;
            let now = sum(&below[at * FANOUT..below.len().min((at + 1) * FANOUT)]);
            if self.levels[level][at] == now {
                return;
            }
            self.levels[level][at] = now;
        }
    }

    /// The first node from `start` on, in order of registration, that reaches `lower` and that
    /// `accept` accepts.
    pub fn first_from(
        &self,
        start: Ordinal,
        lower: &Coordinate,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let start = self.ordinals.partition_point(|&ordinal| ordinal < start);
        self.walk(start, lower, visits, &mut accept)
    }

    /// All nodes that reach `lower` and that `accept` accepts, in order of registration.
    pub fn all(
        &self,
        lower: &Coordinate,
        visits: &mut Visits,
        mut accept: impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Vec<Slot> {
        let mut all = Vec::new();
        let none = self.walk(0, lower, visits, &mut |slot, visits: &mut Visits| {
            if accept(slot, visits) {
                all.push(slot);
            }
            false
        });
        debug_assert!(none.is_none());
        all
    }

    fn walk(
        &self,
        start: usize,
        lower: &Coordinate,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let (level, at) = self.root()?;
        self.walk_below(level, at, start, lower, visits, accept)
    }

    fn walk_below(
        &self,
        level: usize,
        at: usize,
        start: usize,
        lower: &Coordinate,
        visits: &mut Visits,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let vertex = &self.levels[level][at];
        if vertex.nodes == 0 || !vertex.highest.reaches(lower) {
            return None;
        }
        visits.vertices += 1;
        if level == 0 {
            let slot = self.slots[at];
            return (at >= start && accept(slot, visits)).then_some(slot);
        }
        // Positions below child `c` of level `level - 1` end before `(c + 1) * span`.
        let span = FANOUT.pow(u32::try_from(level - 1).expect("a handful of levels"));
        let end = self.levels[level - 1].len().min((at + 1) * FANOUT);
        let first = (at * FANOUT).max(start / span);
        (first..end).find_map(|child| self.walk_below(level - 1, child, start, lower, visits, accept))
    }

    /// The `n`-th node in order of registration, counted from 0.
    ///
    /// # Panics
    /// When there are no more than `n` nodes.
    #[must_use]
    pub fn nth(&self, n: u64) -> Slot {
        let mut n = u32::try_from(n).expect("fewer nodes than u32 can count");
        let (level, mut at) = self.root().expect("a node to count to");
        for level in (0..level).rev() {
            at *= FANOUT;
            while self.levels[level][at].nodes <= n {
                n -= self.levels[level][at].nodes;
                at += 1;
            }
        }
        assert!(self.levels[0][at].nodes > n, "there is no such node");
        self.slots[at]
    }

    /// Checks every vertex against those below it, and the positions against `entry`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(
        &self,
        nodes: usize,
        entry: impl Fn(Slot) -> Option<(Ordinal, Coordinate)>,
    ) -> Result<(), String> {
        if self.len() != nodes {
            return Err(format!("the ordinal tree holds {} nodes, {nodes} expected", self.len()));
        }
        for (level, pair) in self.levels.windows(2).enumerate() {
            if !pair[0].chunks(FANOUT).map(sum).eq(pair[1].iter().copied()) {
                return Err(format!("level {} of the ordinal tree is stale", level + 1));
            }
        }
        for (position, &slot) in self.slots.iter().enumerate() {
            let vertex = self.levels[0][position];
            if slot == VACANT {
                if vertex.nodes != 0 {
                    return Err(format!("vacant position {position} counts a node"));
                }
            } else if entry(slot) != Some((self.ordinals[position], vertex.highest)) {
                return Err(format!("slot {slot} stands elsewhere than the ordinal tree says"));
            }
        }
        Ok(())
    }
}

fn sum(below: &[Vertex]) -> Vertex {
    below.iter().fold(Vertex::default(), |sum, vertex| Vertex {
        highest: sum.highest.highest(&vertex.highest),
        nodes: sum.nodes + vertex.nodes,
    })
}
