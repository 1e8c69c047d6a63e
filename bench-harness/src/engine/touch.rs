//! A bare loop over the cache lines that the ops of the row `steady` touch, in the same order: what the memory alone
//! costs.
//!
//! [`EngineDriver::trace`](super::driver::EngineDriver::trace) records the lines from the shard's own structures, op by
//! op. [`Trace::replay`] then reads and writes lines of arrays of the same sizes in that order, and does nothing else.
//!
//! A release touches the record with the header of its page, its neighbours in the list of the node, the node's room and
//! hot line, and the sums. In the index it touches the place of the node, the counts of coordinates that change, the
//! classes of its scores, and two cells with their blocks and chunks: the one that is left and the one that is entered. A
//! placement first touches the class bits that lead to the cell of the chosen node, that cell with all its entries, and
//! the slot of the node's rank.
//!
//! Not touched are cells, rows and nodes that a search looks at without success, and sets of selectors. Neither are
//! refusals, class bits that a move changes, the counts of filled cells per block, how often each score was asked, the
//! commands, the outcomes and the code.

use std::hint::black_box;
use std::time::{Duration, Instant};

use wharf_core::index::IndexLines;
use wharf_core::shard::{NodeLines, RecordLines};

/// The lines of the running sums of a shard.
const SUMS_LINES: usize = 3;

/// A structure of the shard. Each has an array of lines of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// The headers of the pages of records.
    Pages,
    /// The records of allocations.
    Records,
    /// The rooms of nodes.
    Rooms,
    /// The hot lines of nodes.
    Hot,
    /// The running sums.
    Sums,
    /// The places of nodes in the index.
    Places,
    /// The slots of nodes by rank.
    Ranks,
    /// Where the blocks of cells are.
    Blocks,
    /// The class of each score.
    ClassTable,
    /// The cells of the index.
    Cells,
    /// The directories of very large cells.
    Directories,
    /// The chunks of large cells.
    Chunks,
    /// The class bits of cells.
    Classes,
    /// The classes of rows.
    RowClasses,
    /// The class bits of rows.
    Rows,
    /// The counts of coordinates, by dimension.
    Counts(u8),
}

impl Structure {
    const ALL: [Self; 19] = [
        Self::Pages,
        Self::Records,
        Self::Rooms,
        Self::Hot,
        Self::Sums,
        Self::Places,
        Self::Ranks,
        Self::Blocks,
        Self::ClassTable,
        Self::Cells,
        Self::Directories,
        Self::Chunks,
        Self::Classes,
        Self::RowClasses,
        Self::Rows,
        Self::Counts(0),
        Self::Counts(1),
        Self::Counts(2),
        Self::Counts(3),
    ];
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The structure.
    pub structure: Structure,
    /// The number of the line within the structure.
    pub line: u32,
    /// Whether the line is written after it is read.
    pub is_written: bool,
}

/// The accesses of some ops, in order.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    touches: Vec<Touch>,
    ops: usize,
}

impl Trace {
    /// Returns all accesses, in order.
    #[must_use]
    pub fn touches(&self) -> &[Touch] {
        &self.touches
    }

    /// Returns the number of recorded ops.
    #[must_use]
    pub fn ops(&self) -> usize {
        self.ops
    }

    fn add(&mut self, structure: Structure, line: usize, is_written: bool) {
        let line = u32::try_from(line).expect("lines are counted in 32 bits");
        self.touches.push(Touch { structure, line, is_written });
    }

    fn read(&mut self, structure: Structure, line: usize) {
        self.add(structure, line, false);
    }

    fn write(&mut self, structure: Structure, line: usize) {
        self.add(structure, line, true);
    }

    fn books(&mut self, record: RecordLines, node: &NodeLines) {
        self.read(Structure::Pages, record.page);
        self.write(Structure::Records, record.record);
        for line in record.neighbours.into_iter().flatten() {
            self.write(Structure::Records, line);
        }
        self.write(Structure::Rooms, node.room);
        self.write(Structure::Hot, node.hot);
        (0..SUMS_LINES).for_each(|line| self.write(Structure::Sums, line));
    }

    /// A cell that a node leaves or enters, with the line of its chunk that has the last entry.
    fn end_of_cell(&mut self, index: &IndexLines) {
        self.read(Structure::ClassTable, index.class);
        self.read(Structure::Blocks, index.block);
        self.write(Structure::Cells, index.cell);
        if let Some(part) = index.part {
            self.write(Structure::Directories, part);
        }
        let (first, lines) = index.chunk;
        if lines > 0 {
            self.write(Structure::Chunks, first + lines - 1);
        }
    }

    fn moved(&mut self, before: &IndexLines, after: &IndexLines) {
        self.write(Structure::Places, before.place);
        for (d, (&(from, left), &(to, entered))) in (0u8..).zip(before.counts.iter().zip(&after.counts)) {
            if from != to {
                self.write(Structure::Counts(d), left);
                self.write(Structure::Counts(d), entered);
            }
        }
        self.end_of_cell(before);
        if before != after {
            self.end_of_cell(after);
        }
    }

    /// Records a release. `before` and `after` are the lines of the node before and after it.
    pub fn released(&mut self, record: RecordLines, before: &NodeLines, after: &NodeLines) {
        self.books(record, before);
        self.moved(&before.index, &after.index);
    }

    /// Records a placement. `before` and `after` are the lines of the chosen node before and after it.
    pub fn placed(&mut self, record: RecordLines, before: &NodeLines, after: &NodeLines) {
        let index = &before.index;
        for line in 0..2 {
            self.read(Structure::Rows, index.rows + line);
        }
        self.read(Structure::RowClasses, index.row);
        for line in 0..2 {
            self.read(Structure::Classes, index.classes + line);
        }
        self.read(Structure::Blocks, index.block);
        self.read(Structure::Cells, index.cell);
        if let Some(part) = index.part {
            self.read(Structure::Directories, part);
        }
        let (first, lines) = index.chunk;
        for line in first..first + lines {
            self.read(Structure::Chunks, line);
        }
        self.read(Structure::Ranks, index.rank);
        self.read(Structure::Rooms, before.room);
        self.books(record, before);
        self.moved(&before.index, &after.index);
    }

    /// Records the end of an op.
    pub fn end_op(&mut self) {
        self.ops += 1;
    }

    /// Prepares arrays of the sizes of the structures, and the accesses as numbers of their lines.
    #[must_use]
    pub fn replay(&self) -> Replay {
        let mut bases = Vec::new();
        let mut lines = 0u32;
        for structure in Structure::ALL {
            let of_structure = self.touches.iter().filter(|touch| touch.structure == structure);
            bases.push((structure, lines));
            lines += of_structure.map(|touch| touch.line + 1).max().unwrap_or(0);
        }
        let base = |structure| bases.iter().find(|(of, _)| *of == structure).expect("all are listed").1;
        let access = |touch: &Touch| Access {
            line: base(touch.structure) + touch.line,
            by: u32::from(touch.is_written),
        };
        let accesses = self.touches.iter().map(access).collect();
        let mut lines = vec![Line::default(); lines as usize];
        // Written once, so that no page is missing when the time is taken.
        lines.iter_mut().for_each(|line| line.0[2] = 1);
        Replay { lines: black_box(lines), accesses, ops: self.ops }
    }
}

/// A cache line. The first word is always zero, which the compiler does not know.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u32; 16]);

/// One access of a replay: a line, and what is added to it: 1, or 0 if it is only read.
#[derive(Clone, Copy, Debug)]
struct Access {
    line: u32,
    by: u32,
}

/// A bare loop over the lines of a [`Trace`].
pub struct Replay {
    lines: Vec<Line>,
    accesses: Vec<Access>,
    ops: usize,
}

impl Replay {
    /// Touches the lines of all ops, each line as soon as the processor likes. Returns the time it took.
    pub fn run(&mut self) -> Duration {
        self.pass::<false>()
    }

    /// The same, but no line before the one before it was read, as if each address came from there.
    pub fn run_in_a_chain(&mut self) -> Duration {
        self.pass::<true>()
    }

    fn pass<const CHAINED: bool>(&mut self) -> Duration {
        let started = Instant::now();
        let mut read = 0u32;
        for &Access { line, by } in &self.accesses {
            let at = if CHAINED { line.wrapping_add(read) } else { line };
            let word = self.lines[at as usize].0[0];
            read = if CHAINED { word } else { read ^ word };
            // Without a branch: what is only read adds nothing to the first line, which stays in the cache.
            let written = &mut self.lines[(at * by) as usize].0[1];
            *written = written.wrapping_add(by);
        }
        black_box(read);
        started.elapsed()
    }

    /// Returns nanoseconds per op for the time of one pass.
    #[must_use]
    pub fn per_op(&self, elapsed: Duration) -> f64 {
        elapsed.as_nanos() as f64 / self.ops.max(1) as f64
    }

    /// Returns how often each touched line was written by all passes so far, in order of lines.
    #[cfg(test)]
    fn written(&self) -> Vec<u32> {
        self.lines.iter().map(|line| line.0[1]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::driver::EngineDriver;
    use crate::engine::scenario::Kind;
    use crate::engine::shapes::Shapes;
    use wharf_core::request::Policy;

    fn lines(touches: &[Touch], structure: Structure) -> Vec<u32> {
        touches.iter().filter(|touch| touch.structure == structure).map(|touch| touch.line).collect()
    }

    #[test]
    fn an_op_touches_the_lines_of_its_allocations_and_nodes() {
        let shapes = Shapes::synthetic(5);
        for policy in [Policy::LeastFit, Policy::BestFit] {
            let scenario = Kind::Steady.scenario(400, policy, &shapes, 5);
            let mut engine = EngineDriver::new(&scenario, 5);
            let mut placed = 0;
            for _ in 0..200 {
                let released = *engine.live().front().expect("something is live");
                let before = engine.live().len();
                let refused = engine.ops().1;
                let trace = engine.trace(1).expect("the index has narrow entries");
                let touches = trace.touches();
                // A slot is the number of its node, because none has left. Two rooms share a line.
                let mut nodes = vec![released.node];
                assert_eq!(lines(touches, Structure::Records)[0], released.allocation.sequence as u32);
                // Filling up may add allocations after the op.
                if engine.ops().1 == refused && engine.live().len() == before {
                    let chosen = engine.live().back().expect("it was placed");
                    nodes.push(chosen.node);
                    let of_place = lines(touches, Structure::Records);
                    assert!(of_place.contains(&(chosen.allocation.sequence as u32)), "{touches:?}");
                    placed += 1;
                } else {
                    continue;
                }
                assert_eq!(lines(touches, Structure::Hot), nodes, "{policy}");
                let rooms: Vec<u32> = nodes.iter().map(|node| node / 2).collect();
                // A placement reads the room before it changes it.
                assert_eq!(lines(touches, Structure::Rooms), [rooms[0], rooms[1], rooms[1]], "{policy}");
                let places: Vec<u32> = nodes.iter().map(|node| node / 4).collect();
                assert_eq!(lines(touches, Structure::Places), places, "{policy}");
                assert!(lines(touches, Structure::Cells).len() >= 3, "{touches:?}");
                assert_eq!(lines(touches, Structure::Classes).len(), 2, "{touches:?}");
                // Ranks are slots here too. Sixteen of them share a line.
                assert_eq!(lines(touches, Structure::Ranks), [nodes[1] / 16], "{policy}");
                assert_eq!(lines(touches, Structure::Pages), [0, 0], "{policy}");
                let blocks = lines(touches, Structure::Blocks).len();
                assert_eq!(blocks, lines(touches, Structure::Cells).len(), "{touches:?}");
            }
            assert!(placed > 100, "{placed} placements were compared");
        }
    }

    #[test]
    fn a_replay_writes_the_lines_of_the_trace_and_no_others() {
        let scenario = Kind::Steady.scenario(400, Policy::BestFit, &Shapes::synthetic(6), 6);
        let trace = EngineDriver::new(&scenario, 6).trace(50).expect("the index has narrow entries");
        assert_eq!(trace.ops(), 50);
        let mut replay = trace.replay();
        replay.run();
        replay.run_in_a_chain();
        let mut expected = vec![0; replay.lines.len()];
        let mut base = 0;
        for structure in Structure::ALL {
            let of_structure = || trace.touches().iter().filter(|touch| touch.structure == structure);
            for touch in of_structure().filter(|touch| touch.is_written) {
                expected[base + touch.line as usize] += 2;
            }
            base += of_structure().map(|touch| touch.line as usize + 1).max().unwrap_or(0);
        }
        assert_eq!(replay.written(), expected);
        assert!(expected.iter().any(|&writes| writes > 2), "some line is touched by several ops");
    }
}
