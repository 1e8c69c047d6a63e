//! A bare loop over the cache lines that the ops of a row touch, in the same order: what the memory alone costs.
//!
//! [`EngineDriver::trace`](super::driver::EngineDriver::trace) records the lines from the shard's own structures, op by
//! op. [`Trace::replay`] then reads and writes lines of arrays of the same sizes in that order, and does nothing else.
//!
//! A release touches the record with the header of its page, its neighbours in the list of the node, the node's room and
//! hot line, and the sums. In the index it touches the place of the node, the counts of coordinates that change, the
//! classes of its scores, and two cells with their blocks and chunks: the one that is left and the one that is entered. A
//! placement touches the same, after its search. Searches and refusals tell what they read by themselves, also where they
//! find nothing.
//!
//! Not touched are class bits that a move changes, orders of registration that follow a move, and the counts of filled cells
//! per block. Neither are the counts of scores that were asked, bounds that a search corrects, the commands, the outcomes
//! and the code.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use wharf_core::index::{IndexLines, Structure as Part};
use wharf_core::shard::{ChoiceLines, NodeLines, ReadLine, RecordLines};

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
    /// The registrations of nodes.
    Registrations,
    /// The running sums.
    Sums,
    /// A part of the index of what is free, or the set of a selector.
    Free(Part),
    /// A part of the index of capacities.
    Capacities(Part),
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

    /// Records what the choice of a node reads.
    pub fn chosen(&mut self, choice: &ChoiceLines) {
        for &read in &choice.reads {
            match read {
                ReadLine::Free(part, line) => self.read(Structure::Free(part), line),
                ReadLine::Capacities(part, line) => self.read(Structure::Capacities(part), line),
                ReadLine::Room(line) => self.read(Structure::Rooms, line),
                ReadLine::Registration(line) => self.read(Structure::Registrations, line),
            }
        }
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
        self.read(Structure::Free(Part::ClassTable), index.class);
        self.read(Structure::Free(Part::Blocks), index.block);
        self.write(Structure::Free(Part::Cells), index.cell);
        if let Some(part) = index.part {
            self.write(Structure::Free(Part::Directories), part);
        }
        let (first, lines) = index.chunk;
        if lines > 0 {
            self.write(Structure::Free(Part::Chunks), first + lines - 1);
        }
    }

    fn moved(&mut self, before: &IndexLines, after: &IndexLines) {
        self.write(Structure::Free(Part::Places), before.place);
        for (d, (&(from, left), &(to, entered))) in (0u8..).zip(before.counts.iter().zip(&after.counts)) {
            if from != to {
                self.write(Structure::Free(Part::Counts(d)), left);
                self.write(Structure::Free(Part::Counts(d)), entered);
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

    /// Records a placement, after its choice. `before` and `after` are the lines of the chosen node before and after it.
    pub fn placed(&mut self, record: RecordLines, before: &NodeLines, after: &NodeLines) {
        self.books(record, before);
        self.moved(&before.index, &after.index);
    }

    /// Records the end of an op.
    pub fn end_op(&mut self) {
        self.ops += 1;
    }

    /// Returns where the lines of each structure begin among those of all, and how many it has.
    fn bases(&self) -> BTreeMap<Structure, (u32, u32)> {
        let mut bases: BTreeMap<Structure, (u32, u32)> = BTreeMap::new();
        for touch in &self.touches {
            let (_, lines) = bases.entry(touch.structure).or_default();
            *lines = (*lines).max(touch.line + 1);
        }
        let mut end = 0;
        for (base, lines) in bases.values_mut() {
            *base = end;
            end += *lines;
        }
        bases
    }

    /// Prepares arrays of the sizes of the structures, and the accesses as numbers of their lines.
    #[must_use]
    pub fn replay(&self) -> Replay {
        let bases = self.bases();
        let lines: u32 = bases.values().map(|&(_, lines)| lines).sum();
        let access = |touch: &Touch| Access {
            line: bases[&touch.structure].0 + touch.line,
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::engine::driver::EngineDriver;
    use crate::engine::scenario::Kind;
    use crate::engine::shapes::Shapes;
    use wharf_core::request::Policy;

    fn lines(touches: &[Touch], structure: Structure) -> Vec<u32> {
        touches.iter().filter(|touch| touch.structure == structure).map(|touch| touch.line).collect()
    }

    fn written(touches: &[Touch], structure: Structure) -> Vec<u32> {
        let of_writes: Vec<Touch> = touches.iter().filter(|touch| touch.is_written).copied().collect();
        lines(&of_writes, structure)
    }

    #[test]
    fn an_op_touches_the_lines_of_its_allocations_and_nodes() {
        let shapes = Shapes::synthetic(5);
        for policy in [Policy::LeastFit, Policy::BestFit] {
            let scenario = Kind::Steady.scenario(400, policy, &shapes, 5);
            let mut engine = EngineDriver::new(&scenario, 5);
            let mut placed = 0;
            let mut by_tree = 0;
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
                assert_eq!(written(touches, Structure::Rooms), rooms, "{policy}");
                // A placement reads the room before it changes it, and may read others before.
                let of_rooms = lines(touches, Structure::Rooms);
                let of_chosen = of_rooms.iter().filter(|&&room| room == rooms[1]).count();
                assert!(of_chosen >= 2, "{policy}: {touches:?}");
                let places: Vec<u32> = nodes.iter().map(|node| node / 4).collect();
                assert_eq!(written(touches, Structure::Free(Part::Places)), places, "{policy}");
                assert_eq!(lines(touches, Structure::Pages), [0, 0], "{policy}");
                let cells = lines(touches, Structure::Free(Part::Cells)).len();
                assert!(cells >= 2, "{touches:?}");
                assert_eq!(lines(touches, Structure::Free(Part::Blocks)).len(), cells, "{touches:?}");
                let is_of_class = |touch: &Touch| touch.structure == Structure::Free(Part::Classes);
                if touches.iter().any(is_of_class) {
                    assert!(of_rooms.ends_with(&[rooms[1], rooms[1]]), "{policy}: {touches:?}");
                    // Ranks are slots here too. Sixteen of them share a line.
                    let ranks = lines(touches, Structure::Free(Part::Ranks));
                    assert_eq!(ranks.last(), Some(&(nodes[1] / 16)), "{policy}");
                    by_tree += 1;
                }
            }
            assert!(placed > 100, "{placed} placements were compared");
            assert!(by_tree > placed / 2, "{by_tree} placements were searched in the tree");
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
        let structures: BTreeSet<Structure> = trace.touches().iter().map(|touch| touch.structure).collect();
        for structure in structures {
            let of_structure = || trace.touches().iter().filter(|touch| touch.structure == structure);
            for touch in of_structure().filter(|touch| touch.is_written) {
                expected[base + touch.line as usize] += 2;
            }
            base += of_structure().map(|touch| touch.line as usize + 1).max().unwrap_or(0);
        }
        assert_eq!(replay.written(), expected);
        assert!(expected.iter().any(|&writes| writes > 2), "some line is touched by several ops");
    }

    /// A refused request writes nothing, and reads the index of capacities, which says whether an empty node would do.
    #[test]
    fn a_refused_request_adds_what_it_reads() {
        for kind in [Kind::Full, Kind::AllDifferent] {
            let scenario = kind.scenario(400, Policy::BestFit, &Shapes::synthetic(6), 6);
            let mut engine = EngineDriver::new(&scenario, 6);
            let mut told = 0;
            for _ in 0..300 {
                let refused = engine.ops().1;
                let trace = engine.trace(1).expect("the index has narrow entries");
                let touches = trace.touches();
                let is_of_capacities = |touch: &Touch| matches!(touch.structure, Structure::Capacities(_));
                let is_refused = engine.ops().1 > refused;
                let ops = 2 - usize::from(is_refused);
                assert_eq!(written(touches, Structure::Hot).len(), ops, "{kind:?}: {touches:?}");
                let reads_capacities = touches.iter().any(is_of_capacities)
                    || touches.iter().any(|touch| touch.structure == Structure::Registrations);
                assert!(is_refused || !reads_capacities, "{kind:?}: {touches:?}");
                told += u32::from(reads_capacities);
            }
            assert!((60..240).contains(&told), "{kind:?}: {told} of 300 read capacities");
        }
    }
}
