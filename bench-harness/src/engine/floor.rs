//! The floor: the cost of placing and releasing if only two dimensions are kept.
//!
//! There is a cell per (cpu, memory) coordinate. Each cell has an intrusive doubly linked list of its nodes,
//! newest first. Each cpu coordinate has a bitmap of its non-empty cells, and there is a bitmap of the cpu
//! coordinates; both have two levels. There are no constraints, GPUs, allocation records or hashing. Amounts
//! are whole steps, so the first node of a sufficient cell fits, and nothing is checked twice.
//!
//! The engine's cost is reported as a multiple of the floor, so the floor has to be efficient. Links are
//! `u32`, coordinates are `u16`, a node takes twelve bytes, and a search reads words of bitmaps and touches
//! one node.

/// Coordinates per dimension: the range of two levels of bitmaps.
const WIDTH: usize = 64 * 64;
/// No node; the end of a list.
const NONE: u32 = u32::MAX;

/// A set of numbers below [`WIDTH`]. The word `above` marks the non-empty words, so finding the next member
/// in either direction reads at most two words per level.
#[derive(Clone, Debug)]
struct Bits {
    above: u64,
    words: [u64; 64],
}

impl Bits {
    const EMPTY: Self = Self { above: 0, words: [0; 64] };

    #[inline]
    fn insert(&mut self, number: usize) {
        self.words[number / 64] |= 1 << (number % 64);
        self.above |= 1 << (number / 64);
    }

    #[inline]
    fn remove(&mut self, number: usize) {
        let word = &mut self.words[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.above &= !(1 << (number / 64));
        }
    }

    fn contains(&self, number: usize) -> bool {
        self.words[number / 64] >> (number % 64) & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.above == 0
    }

    /// Returns the smallest member from `start` on.
    #[inline]
    fn lowest_from(&self, start: usize) -> Option<usize> {
        let at = start / 64;
        let word = *self.words.get(at)? & (u64::MAX << (start % 64));
        if word != 0 {
            return Some(at * 64 + word.trailing_zeros() as usize);
        }
        // Shifted in two steps, because `at` may be the last word.
        let rest = self.above & (u64::MAX << at << 1);
        (rest != 0).then(|| {
            let at = rest.trailing_zeros() as usize;
            at * 64 + self.words[at].trailing_zeros() as usize
        })
    }

    /// Returns the largest member below `end`.
    #[inline]
    fn highest_below(&self, end: usize) -> Option<usize> {
        let last = end.checked_sub(1)?;
        let at = last / 64;
        let word = self.words[at] & (u64::MAX >> (63 - last % 64));
        if word != 0 {
            return Some(at * 64 + 63 - word.leading_zeros() as usize);
        }
        let rest = self.above & ((1 << at) - 1);
        (rest != 0).then(|| {
            let at = 63 - rest.leading_zeros() as usize;
            at * 64 + 63 - self.words[at].leading_zeros() as usize
        })
    }
}

/// An amount of both dimensions in whole steps, at most [`Steps::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Cores.
    pub cpu: u16,
    /// Steps of 4 GiB.
    pub memory: u16,
}

impl Steps {
    /// The largest amounts that have cells.
    pub const MAX: Self = Self { cpu: WIDTH as u16 - 1, memory: WIDTH as u16 - 1 };
}

/// The order in which cells are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The largest first: LeastFit.
    Greatest,
    /// The smallest that fits first: BestFit.
    Smallest,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    free: Steps,
}

const _: () = assert!(size_of::<Node>() == 12, "five nodes in a cache line");

/// Nodes in cells.
#[derive(Debug)]
pub struct Floor {
    nodes: Vec<Node>,
    /// The first node of each cell, row by row. There are only as many rows and columns as the amounts need.
    heads: Vec<u32>,
    width: usize,
    /// The non-empty cells of each cpu coordinate.
    columns: Vec<Bits>,
    /// The cpu coordinates with a non-empty cell.
    rows: Bits,
}

impl Floor {
    /// Creates nodes with these free amounts, numbered in this order.
    ///
    /// # Panics
    /// When an amount is above [`Steps::MAX`].
    #[must_use]
    pub fn new(capacities: &[Steps]) -> Self {
        let vacant = Node { next: NONE, previous: NONE, free: Steps::default() };
        let most = |of: fn(&Steps) -> u16| capacities.iter().map(of).max().unwrap_or(0);
        let rows = usize::from(most(|c| c.cpu)) + 1;
        let width = usize::from(most(|c| c.memory)) + 1;
        let mut floor = Self {
            nodes: vec![vacant; capacities.len()],
            heads: vec![NONE; rows * width],
            width,
            columns: vec![Bits::EMPTY; rows],
            rows: Bits::EMPTY,
        };
        for (node, &free) in (0..).zip(capacities) {
            floor.nodes[node as usize].free = free;
            floor.link(node, free);
        }
        floor
    }

    #[inline]
    fn link(&mut self, node: u32, at: Steps) {
        let row = usize::from(at.cpu);
        let column = usize::from(at.memory);
        let head = std::mem::replace(&mut self.heads[row * self.width + column], node);
        self.nodes[node as usize] = Node { next: head, previous: NONE, free: at };
        if head == NONE {
            self.columns[row].insert(column);
            self.rows.insert(row);
        } else {
            self.nodes[head as usize].previous = node;
        }
    }

    #[inline]
    fn unlink(&mut self, node: u32) -> Steps {
        let Node { next, previous, free } = self.nodes[node as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
            return free;
        }
        let row = usize::from(free.cpu);
        let column = usize::from(free.memory);
        self.heads[row * self.width + column] = next;
        if next == NONE {
            self.columns[row].remove(column);
            if self.columns[row].is_empty() {
                self.rows.remove(row);
            }
        }
        free
    }

    /// Places a request. Returns the node, if one fits.
    #[inline]
    pub fn place(&mut self, order: Order, asked: Steps) -> Option<u32> {
        let (row, column) = match order {
            Order::Smallest => self.smallest(asked)?,
            Order::Greatest => self.greatest(asked)?,
        };
        let node = self.heads[row * self.width + column];
        let free = self.unlink(node);
        self.link(node, Steps { cpu: free.cpu - asked.cpu, memory: free.memory - asked.memory });
        Some(node)
    }

    fn smallest(&self, asked: Steps) -> Option<(usize, usize)> {
        let mut row = self.rows.lowest_from(usize::from(asked.cpu))?;
        loop {
            if let Some(column) = self.columns[row].lowest_from(usize::from(asked.memory)) {
                return Some((row, column));
            }
            row = self.rows.lowest_from(row + 1)?;
        }
    }

    fn greatest(&self, asked: Steps) -> Option<(usize, usize)> {
        let mut end = WIDTH;
        loop {
            let row = self.rows.highest_below(end).filter(|&row| row >= usize::from(asked.cpu))?;
            let column = self.columns[row].highest_below(WIDTH);
            if let Some(column) = column.filter(|&column| column >= usize::from(asked.memory)) {
                return Some((row, column));
            }
            end = row;
        }
    }

    /// Returns what a placement took.
    #[inline]
    pub fn release(&mut self, node: u32, held: Steps) {
        let free = self.unlink(node);
        self.link(node, Steps { cpu: free.cpu + held.cpu, memory: free.memory + held.memory });
    }

    /// Checks that every node is listed once, in the cell of its free amounts; that the bitmaps mark exactly
    /// the non-empty cells; and that `capacities` minus `held` is what is free.
    ///
    /// # Errors
    /// When a check fails. The text says which.
    pub fn check(
        &self,
        capacities: &[Steps],
        held: impl Iterator<Item = (u32, Steps)>,
    ) -> Result<(), String> {
        let mut free: Vec<(u32, u32)> =
            capacities.iter().map(|c| (u32::from(c.cpu), u32::from(c.memory))).collect();
        for (node, steps) in held {
            let free = &mut free[node as usize];
            let less = (free.0.checked_sub(steps.cpu.into()), free.1.checked_sub(steps.memory.into()));
            let (Some(cpu), Some(memory)) = less else {
                return Err(format!("node {node} holds more than it has"));
            };
            *free = (cpu, memory);
        }
        let mut seen = 0;
        for (row, (columns, heads)) in self.columns.iter().zip(self.heads.chunks(self.width)).enumerate() {
            if self.rows.contains(row) == columns.is_empty() {
                return Err(format!("the bitmap of rows is wrong at {row}"));
            }
            for (column, &head) in heads.iter().enumerate() {
                if columns.contains(column) != (head != NONE) {
                    return Err(format!("the bitmap of row {row} is wrong at {column}"));
                }
                seen += self.check_cell(row, column, head, &free)?;
            }
        }
        if seen == self.nodes.len() {
            Ok(())
        } else {
            Err(format!("{seen} of {} nodes are linked", self.nodes.len()))
        }
    }

    /// Checks the list of one cell. Returns the number of its nodes.
    fn check_cell(&self, row: usize, column: usize, head: u32, free: &[(u32, u32)]) -> Result<usize, String> {
        let mut at = head;
        let mut previous = NONE;
        let mut seen = 0;
        while at != NONE {
            let node = self.nodes[at as usize];
            if (usize::from(node.free.cpu), usize::from(node.free.memory)) != (row, column) {
                return Err(format!("node {at} with {:?} free is at ({row}, {column})", node.free));
            }
            if node.previous != previous {
                return Err(format!("node {at} is linked wrongly"));
            }
            let books = free[at as usize];
            if (u32::from(node.free.cpu), u32::from(node.free.memory)) != books {
                return Err(format!("node {at} has {:?} free, its books say {books:?}", node.free));
            }
            seen += 1;
            (previous, at) = (at, node.next);
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use wharf_core::rng::Rng;

    use super::*;

    fn steps(cpu: u16, memory: u16) -> Steps {
        Steps { cpu, memory }
    }

    #[test]
    fn bits_are_found_in_both_directions() {
        let mut bits = Bits::EMPTY;
        let members = [5, 128, 191, 4095];
        members.iter().for_each(|&member| bits.insert(member));
        for at in 0..=WIDTH {
            let above = members.iter().copied().find(|&member| member >= at);
            let below = members.iter().rev().copied().find(|&member| member < at);
            assert_eq!((bits.lowest_from(at), bits.highest_below(at)), (above, below), "{at}");
        }
        members.iter().for_each(|&member| bits.remove(member));
        assert!(bits.is_empty() && bits.lowest_from(0).is_none() && bits.highest_below(WIDTH).is_none());
    }

    /// Compares choices and books with a search over all nodes.
    #[test]
    fn places_as_a_scan_does_and_keeps_its_books() {
        for order in [Order::Greatest, Order::Smallest] {
            let mut rng = Rng::new(11);
            let mut draw = |below: u64| u16::try_from(rng.below(below)).unwrap();
            let capacities: Vec<Steps> = (0..60).map(|_| steps(draw(129), draw(200))).collect();
            let mut free = capacities.clone();
            let mut floor = Floor::new(&capacities);
            let mut live = VecDeque::new();
            for _ in 0..4000 {
                let asked = steps(draw(20), draw(30));
                let fitting = free.iter().filter(|f| f.cpu >= asked.cpu && f.memory >= asked.memory);
                let cells = fitting.map(|f| (f.cpu, f.memory));
                let expected = if order == Order::Smallest { cells.min() } else { cells.max() };
                let placed = floor.place(order, asked);
                let taken = placed.map(|node| (free[node as usize].cpu, free[node as usize].memory));
                assert_eq!(taken, expected);
                if let Some(node) = placed {
                    free[node as usize].cpu -= asked.cpu;
                    free[node as usize].memory -= asked.memory;
                    live.push_back((node, asked));
                }
                if live.len() > 150 || placed.is_none() {
                    let (node, held) = live.pop_front().unwrap();
                    floor.release(node, held);
                    free[node as usize].cpu += held.cpu;
                    free[node as usize].memory += held.memory;
                }
            }
            floor.check(&capacities, live.iter().copied()).unwrap();
            live.pop_front();
            assert!(floor.check(&capacities, live.iter().copied()).is_err(), "a missing release is found");
        }
    }
}
