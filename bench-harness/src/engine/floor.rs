//! The floor: what placing and releasing cost when nothing but two dimensions is kept.
//!
//! A table of cells over (cpu, memory) coordinates, in each an intrusive list of the nodes that
//! stand there, and bitmaps of the non-empty cells on two levels: rows, and cells of a row. No
//! constraints, no GPUs, no allocation records, no hashing. Amounts are whole steps, so the first
//! node of a cell that suffices fits, and nothing is checked twice.
//!
//! An engine that keeps everything is measured by how many times this it costs. So this has to be
//! well made: links are `u32`, coordinates `u16`, a node takes twelve bytes, a search looks at
//! words of bitmaps and touches one node.

/// Steps of the cpu dimension: rows.
const ROWS: usize = 192;
/// Steps of the memory dimension: cells of a row.
const COLUMNS: usize = 256;
const ROW_WORDS: usize = ROWS / 64;
const COLUMN_WORDS: usize = COLUMNS / 64;
/// No node: the end of a list.
const NONE: u32 = u32::MAX;

/// An amount of both dimensions, in whole steps: at most [`Steps::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Cores.
    pub cpu: u16,
    /// Steps of 4 GiB.
    pub memory: u16,
}

impl Steps {
    /// The largest amounts that the table has cells for.
    pub const MAX: Self = Self { cpu: ROWS as u16 - 1, memory: COLUMNS as u16 - 1 };

    fn cell(self) -> usize {
        usize::from(self.cpu) * COLUMNS + usize::from(self.memory)
    }
}

/// Which cell is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The largest: LeastFit.
    Greatest,
    /// The smallest that fits: BestFit.
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
    /// The first node of each cell.
    heads: Vec<u32>,
    /// The non-empty cells of each row.
    columns: Vec<[u64; COLUMN_WORDS]>,
    /// The rows that have a non-empty cell.
    rows: [u64; ROW_WORDS],
}

/// The lowest bit of `words` from `start` on.
#[inline]
fn lowest_from<const N: usize>(words: &[u64; N], start: usize) -> Option<usize> {
    let first = start / 64;
    let mut word = words.get(first)? & (u64::MAX << (start % 64));
    let mut at = first;
    loop {
        if word != 0 {
            return Some(at * 64 + word.trailing_zeros() as usize);
        }
        at += 1;
        word = *words.get(at)?;
    }
}

/// The highest bit of `words` below `end`.
#[inline]
fn highest_below<const N: usize>(words: &[u64; N], end: usize) -> Option<usize> {
    let mut at = N;
    while at > 0 {
        at -= 1;
        let keep = match end.saturating_sub(at * 64) {
            0 => continue,
            1..64 => (1 << (end - at * 64)) - 1,
            _ => u64::MAX,
        };
        let word = words[at] & keep;
        if word != 0 {
            return Some(at * 64 + 63 - word.leading_zeros() as usize);
        }
    }
    None
}

impl Floor {
    /// Nodes with these amounts free, numbered in this order.
    ///
    /// # Panics
    /// When an amount is above [`Steps::MAX`].
    #[must_use]
    pub fn new(capacities: &[Steps]) -> Self {
        let vacant = Node { next: NONE, previous: NONE, free: Steps::default() };
        let mut floor = Self {
            nodes: vec![vacant; capacities.len()],
            heads: vec![NONE; ROWS * COLUMNS],
            columns: vec![[0; COLUMN_WORDS]; ROWS],
            rows: [0; ROW_WORDS],
        };
        for (node, &free) in (0..).zip(capacities) {
            floor.nodes[node as usize].free = free;
            floor.link(node, free);
        }
        floor
    }

    #[inline]
    fn link(&mut self, node: u32, at: Steps) {
        let cell = at.cell();
        let head = std::mem::replace(&mut self.heads[cell], node);
        self.nodes[node as usize] = Node { next: head, previous: NONE, free: at };
        if head == NONE {
            let (row, column) = (usize::from(at.cpu), usize::from(at.memory));
            self.columns[row][column / 64] |= 1 << (column % 64);
            self.rows[row / 64] |= 1 << (row % 64);
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
        self.heads[free.cell()] = next;
        if next == NONE {
            let (row, column) = (usize::from(free.cpu), usize::from(free.memory));
            self.columns[row][column / 64] &= !(1 << (column % 64));
            if self.columns[row] == [0; COLUMN_WORDS] {
                self.rows[row / 64] &= !(1 << (row % 64));
            }
        }
        free
    }

    /// Places: the node, if one fits.
    #[inline]
    pub fn place(&mut self, order: Order, asked: Steps) -> Option<u32> {
        let cell = match order {
            Order::Smallest => self.smallest(asked)?,
            Order::Greatest => self.greatest(asked)?,
        };
        let node = self.heads[cell];
        let free = self.unlink(node);
        self.link(node, Steps { cpu: free.cpu - asked.cpu, memory: free.memory - asked.memory });
        Some(node)
    }

    fn smallest(&self, asked: Steps) -> Option<usize> {
        let mut row = lowest_from(&self.rows, usize::from(asked.cpu))?;
        loop {
            if let Some(column) = lowest_from(&self.columns[row], usize::from(asked.memory)) {
                return Some(row * COLUMNS + column);
            }
            row = lowest_from(&self.rows, row + 1)?;
        }
    }

    fn greatest(&self, asked: Steps) -> Option<usize> {
        let mut end = ROWS;
        loop {
            let row = highest_below(&self.rows, end).filter(|&row| row >= usize::from(asked.cpu))?;
            let column = highest_below(&self.columns[row], COLUMNS);
            if let Some(column) = column.filter(|&column| column >= usize::from(asked.memory)) {
                return Some(row * COLUMNS + column);
            }
            end = row;
        }
    }

    /// Gives back what a placement took.
    #[inline]
    pub fn release(&mut self, node: u32, held: Steps) {
        let free = self.unlink(node);
        self.link(node, Steps { cpu: free.cpu + held.cpu, memory: free.memory + held.memory });
    }

    /// Checks that every node stands in the cell of what it has free, once, that the bitmaps name
    /// the non-empty cells, and that `capacities` less `held` is what is free.
    ///
    /// # Errors
    /// What is wrong.
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
        for (cell, &head) in self.heads.iter().enumerate() {
            let (row, column) = (cell / COLUMNS, cell % COLUMNS);
            let marked = self.columns[row][column / 64] >> (column % 64) & 1 == 1;
            if marked != (head != NONE) {
                return Err(format!("the bitmap of row {row} is wrong at {column}"));
            }
            let (mut at, mut previous) = (head, NONE);
            while at != NONE {
                let node = self.nodes[at as usize];
                let stands = (usize::from(node.free.cpu), usize::from(node.free.memory));
                let books = free[at as usize];
                if stands != (row, column) || node.previous != previous {
                    return Err(format!("node {at} is linked wrongly"));
                }
                if (u32::from(node.free.cpu), u32::from(node.free.memory)) != books {
                    return Err(format!("node {at} has {:?} free, its books say {books:?}", node.free));
                }
                seen += 1;
                (previous, at) = (at, node.next);
            }
        }
        for (row, columns) in self.columns.iter().enumerate() {
            if (*columns != [0; COLUMN_WORDS]) != (self.rows[row / 64] >> (row % 64) & 1 == 1) {
                return Err(format!("the bitmap of rows is wrong at {row}"));
            }
        }
        if seen == self.nodes.len() {
            Ok(())
        } else {
            Err(format!("{seen} of {} nodes are linked", self.nodes.len()))
        }
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
        let words = [1 << 5, 0, 1 << 63 | 1];
        assert_eq!(lowest_from(&words, 0), Some(5));
        assert_eq!(lowest_from(&words, 6), Some(128));
        assert_eq!(lowest_from(&words, 129), Some(191));
        assert_eq!(lowest_from(&words, 192), None);
        assert_eq!(highest_below(&words, 192), Some(191));
        assert_eq!(highest_below(&words, 191), Some(128));
        assert_eq!(highest_below(&words, 128), Some(5));
        assert_eq!(highest_below(&words, 5), None);
    }

    /// The choice and the books, against a search over all nodes.
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
