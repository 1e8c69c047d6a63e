//! The cache lines of the index that searches read, and those that a move of a node touches. `wharf-bench engine` measures
//! what these lines cost without any work on them.
//!
//! A search tells its lines by itself, as its [`Meter`]. Those of a move follow from the place of the node.

use super::cell::{BLOCK, Cell, Chunk, INLINE, NONE, Part, part_number};
use super::entry::{Entry, Narrow};
use super::tree::{Place, Width};
use super::{DistBuckets, Meter, Slot, Structure, Visits};
use crate::memory::LINE;

/// The lines of one node in the index, each by its number within its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLines {
    /// The line of the node's place.
    pub place: usize,
    /// The line that says where the block of the cell is.
    pub block: usize,
    /// The line of the table of classes that has the class of the node's score.
    pub class: usize,
    /// The cell that has the node.
    pub cell: usize,
    /// The part of a very large cell, among all such parts, and the line of its directory that has it.
    pub part: Option<usize>,
    /// The first line of the chunk that has the node, and how many lines of it have entries. Zero lines if the entries
    /// are in the cell.
    pub chunk: (usize, usize),
    /// The coordinates that are counted, and the line of each count within its dimension.
    pub counts: [(u16, usize); 4],
}

const CELL_LINES: usize = size_of::<Cell<Narrow>>() / LINE;
const CHUNK_LINES: usize = size_of::<Chunk<Narrow>>() / LINE;

/// What a search read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineRead {
    /// A line of a structure of the index, by its number within the structure.
    Index(Structure, usize),
    /// A node, which the caller compared.
    Node(Slot),
}

/// Counts what a search visits, and notes the cache lines that it reads, in order.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The cost.
    pub visits: Visits,
    /// The lines. One that is read several times in a row is noted once.
    pub reads: Vec<LineRead>,
}

impl Lines {
    fn note(&mut self, read: LineRead) {
        if self.reads.last() != Some(&read) {
            self.reads.push(read);
        }
    }
}

impl Meter for Lines {
    fn vertex(&mut self) {
        self.visits.vertex();
    }

    fn node(&mut self, slot: Slot) {
        self.visits.node(slot);
        self.note(LineRead::Node(slot));
    }

    fn compared(&mut self, slot: Slot) {
        self.note(LineRead::Node(slot));
    }

    fn read(&mut self, of: Structure, from: usize, bytes: usize) {
        if bytes > 0 {
            (from / LINE..=(from + bytes - 1) / LINE).for_each(|line| self.note(LineRead::Index(of, line)));
        }
    }
}

impl DistBuckets {
    /// Returns the lines of a node. `None` if it is not in the index, or if the entries are wide.
    #[must_use]
    pub fn lines(&self, slot: Slot) -> Option<IndexLines> {
        let Width::Narrow(tree) = &self.first.width else { return None };
        let Place { entry, cell, .. } = tree.place(slot)?;
        let cell = cell as usize;
        let plane = &tree.plane;
        let cells = &plane.cells;
        let here = cells.get(cell);
        let (part, chunk) = match here.directory() {
            Some(directory) => {
                let number = cells.part_of(directory, entry.order());
                let line = part_number::<Narrow>(directory, number) * size_of::<Part<Narrow>>() / LINE;
                let part = cells.directories[directory][number];
                (Some(line), Some((part.chunk, part.len)))
            }
            None if here.at == NONE => (None, None),
            None => (None, Some((here.at, here.len))),
        };
        let lines_of = |len: u8| usize::from(len).div_ceil(LINE / size_of::<Narrow>());
        let chunk = chunk.map_or((0, 0), |(at, len)| (at as usize * CHUNK_LINES, lines_of(len)));
        assert!(chunk.1 > 0 || usize::from(here.len) <= INLINE, "entries are in the cell or in a chunk");
        let at = entry.coordinate(&plane.layout, cell).0;
        Some(IndexLines {
            place: slot as usize * size_of::<Place<Narrow>>() / LINE,
            block: cell / BLOCK * size_of::<u32>() / LINE,
            class: entry.score(&plane.layout) as usize / LINE,
            cell: cells.index(cell) * CELL_LINES,
            part,
            chunk,
            counts: std::array::from_fn(|d| (at[d], usize::from(at[d]) * size_of::<u32>() / LINE)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ordinal;
    use crate::index::{Geometry, Marks, ResourceVector};
    use crate::resource::Amount;

    fn cores(count: u32) -> ResourceVector {
        ResourceVector { cpu: Amount::whole(count), memory: Amount::whole(4096), ..ResourceVector::default() }
    }

    #[test]
    fn nodes_share_the_lines_of_their_coordinate() {
        let mut index = DistBuckets::new(Geometry::default());
        let lines = |index: &DistBuckets, slot| index.lines(slot).expect("it is in the index");
        for slot in 0..8 {
            index.insert(slot, Ordinal(slot.into()), &cores(16), Marks::NONE);
        }
        let [first, last] = [lines(&index, 0), lines(&index, 7)];
        assert_eq!((first.place, last.place), (0, 1), "four places share a line");
        assert_eq!(IndexLines { place: 0, ..last }, first);
        // Eight entries are one line of a chunk, and one more begins the next.
        assert_eq!((first.part, first.chunk.1), (None, 1));
        index.insert(8, Ordinal(8), &cores(16), Marks::NONE);
        assert_eq!(lines(&index, 0).chunk, (first.chunk.0, 2));
        index.update(0, &cores(3));
        let moved = lines(&index, 0);
        assert!(moved.cell != first.cell && moved.chunk.1 == 0, "{moved:?}");
        assert_eq!(moved.counts.map(|(at, _)| at), [3, 1, 0, 0]);
        assert_eq!(lines(&index, 7).counts[0], (16, 1), "sixteen counts share a line");
        assert!(index.lines(9).is_none());
    }
}
