//! Cells: the entries of one range of coordinates.
//!
//! A cell with few entries is one cache line. A larger one has a chunk of entries without order. The largest
//! have *parts*: chunks in order of their entries, with a directory. So nothing is ever shifted, and a search
//! looks at few lines.
//!
//! A cell has upper bounds of its entries. They rise when an entry arrives. When one leaves they become stale,
//! and a search without success recomputes them.

use super::classes::{CLASSES, raise};
use super::entry::Entry;
use super::layout::Layout;
use super::{Marks, Meter, Structure};
use crate::memory;
use crate::planted::{PlantedBug, is_planted};

/// The most entries in a cell itself.
pub(super) const INLINE: usize = 4;
/// The most entries of a chunk.
pub(super) const CHUNK: usize = 32;
/// The cells that are allocated together.
pub(super) const BLOCK: usize = 8;
pub(super) const NONE: u32 = u32::MAX;
/// Set in [`Cell::at`] if the cell has parts.
pub(super) const PARTS: u32 = 1 << 31;
/// See [`Cell::stale`].
pub(super) const STALE_WITHIN: u8 = 1;
pub(super) const STALE_MARKS: u8 = 2;
const STALE: u8 = STALE_WITHIN | STALE_MARKS;

/// Returns the flags of the bounds that a search relies on.
#[inline]
pub(super) fn stale_for(with_marks: bool) -> u8 {
    if with_marks { STALE } else { STALE_WITHIN }
}

/// The entries and the upper bounds of one range of coordinates.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Cell<E> {
    /// Per class: an upper bound of [`Entry::within`] over the entries of this class or a higher one.
    pub(super) within: [u8; CLASSES],
    /// The largest score. Exact unless the cell is empty.
    pub(super) best: u16,
    /// The number of entries. Zero if the cell has parts.
    pub(super) len: u8,
    /// `STALE_WITHIN` if `within` may be too high, `STALE_MARKS` if `marks` may be too many, or both.
    pub(super) stale: u8,
    /// The chunk, the parts, or `NONE` if the entries are in the cell.
    pub(super) at: u32,
    /// The marks that some entry may have.
    pub(super) marks: Marks,
    /// Without a chunk or parts, places from `len` on are vacant.
    pub(super) entries: [E; INLINE],
}

const _: () = assert!(size_of::<Cell<super::entry::Narrow>>() == 64, "a cell is one cache line");

impl<E: Entry> Cell<E> {
    pub(super) const EMPTY: Self = Self {
        within: [0; CLASSES],
        best: 0,
        len: 0,
        stale: 0,
        at: NONE,
        marks: Marks::NONE,
        entries: [E::VACANT; INLINE],
    };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.at == NONE
    }

    /// Returns the number of the directory, if the cell has parts.
    #[inline]
    pub(super) fn directory(&self) -> Option<usize> {
        (self.at != NONE && self.at & PARTS != 0).then_some((self.at & !PARTS) as usize)
    }

    /// Returns whether an entry may have what is asked.
    #[inline]
    pub(super) fn may_fit(&self, class: usize, within: u8, score: u32, marks: Marks) -> bool {
        (self.within[class & (CLASSES - 1)] >= within)
            & (u32::from(self.best) >= score)
            & self.marks.hold(marks)
    }

    /// Returns whether bounds that an unsuccessful search relied on may be too high.
    #[inline]
    pub(super) fn is_stale(&self, with_marks: bool) -> bool {
        self.stale & stale_for(with_marks) != 0
    }

    #[inline(always)]
    pub(super) fn raise(&mut self, class: usize, within: u8) {
        raise(&mut self.within, class, within);
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Chunk<E>(pub(super) [E; CHUNK]);

/// A part of a large cell: one chunk, and upper bounds of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<E: Entry> {
    /// No entry of the part comes before this one. None of the part before comes after it.
    pub(super) first: E::Order,
    pub(super) chunk: u32,
    pub(super) len: u8,
    /// As in a cell: which of the bounds may be too high.
    pub(super) stale: u8,
    pub(super) bounds: E::Bounds,
    pub(super) marks: Marks,
}

/// Returns the number of a part among those of all directories, each of which is taken to have 4,096 bytes.
#[inline(always)]
pub(super) fn part_number<E: Entry>(directory: usize, number: usize) -> usize {
    directory.wrapping_mul(4096 / size_of::<Part<E>>()).wrapping_add(number)
}

/// Returns the number of the part that has the entry with this order, or to which it belongs.
#[inline]
fn part_in<E: Entry>(parts: &[Part<E>], order: E::Order) -> usize {
    parts.partition_point(|part| part.first <= order).saturating_sub(1)
}

/// Tells that the entries of a chunk are read.
#[inline(always)]
fn tell_chunk<E: Entry>(at: u32, len: u8, visits: &mut impl Meter) {
    let from = (at as usize).wrapping_mul(size_of::<Chunk<E>>());
    visits.read(Structure::Chunks, from, usize::from(len).wrapping_mul(size_of::<E>()));
}

/// Replaces an entry of a chunk by the last one, at `last`.
///
/// # Panics
/// If the chunk does not have the entry.
#[inline(always)]
fn take_out<E: Entry>(all: &mut [E; CHUNK], last: usize, entry: E) {
    // Places after the last one have old entries, so the first that is equal is the right one. The length is known,
    // so the loop has one comparison per place.
    let found = all.iter().position(|held| *held == entry).filter(|&at| at <= last);
    all[found.expect("a node is in its cell")] = all[last];
}

/// All cells of a layout. Cells are allocated when nodes come.
#[derive(Clone, Debug)]
pub(super) struct Cells<E: Entry> {
    /// The number of entries at which a chunk is split, at most `CHUNK`.
    pub(super) room: usize,
    /// By block of the layout: its place in `cells`, or `NONE`.
    pub(super) blocks: Vec<u32>,
    pub(super) cells: Vec<Cell<E>>,
    /// By allocated block: how many of its cells are not empty.
    pub(super) filled: Vec<u8>,
    pub(super) free_blocks: Vec<u32>,
    pub(super) chunks: Vec<Chunk<E>>,
    pub(super) free_chunks: Vec<u32>,
    pub(super) directories: Vec<Vec<Part<E>>>,
    pub(super) free_directories: Vec<u32>,
}

impl<E: Entry> Cells<E> {
    pub(super) fn new(cells: usize, room: usize) -> Self {
        assert!((INLINE..=CHUNK).contains(&room), "chunks of {room} entries");
        Self {
            room,
            blocks: vec![NONE; cells.div_ceil(BLOCK)],
            cells: Vec::new(),
            filled: Vec::new(),
            free_blocks: Vec::new(),
            chunks: Vec::new(),
            free_chunks: Vec::new(),
            directories: Vec::new(),
            free_directories: Vec::new(),
        }
    }

    /// Returns the index of an allocated cell.
    #[inline]
    pub(super) fn index(&self, cell: usize) -> usize {
        ((self.blocks[cell / BLOCK] as usize) << BLOCK.ilog2()) | (cell % BLOCK)
    }

    /// Returns a cell that has entries.
    #[inline]
    pub(super) fn get(&self, cell: usize) -> &Cell<E> {
        &self.cells[self.index(cell)]
    }

    /// Returns the same in a search.
    #[inline(always)]
    pub(super) fn get_for(&self, cell: usize, visits: &mut impl Meter) -> &Cell<E> {
        let index = self.index(cell);
        visits.item::<u32>(Structure::Blocks, cell / BLOCK);
        visits.item::<Cell<E>>(Structure::Cells, index);
        &self.cells[index]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, cell: usize) -> &mut Cell<E> {
        let index = self.index(cell);
        &mut self.cells[index]
    }

    #[cold]
    fn allocate(&mut self, block: usize) -> u32 {
        let at = self.free_blocks.pop().unwrap_or_else(|| {
            memory::push_tight(&mut self.filled, 0);
            let len = self.cells.len() + BLOCK;
            memory::resize_tight(&mut self.cells, len, Cell::EMPTY);
            (self.filled.len() - 1) as u32
        });
        self.blocks[block] = at;
        at
    }

    /// Adds an entry of a class. Returns the best score before, or `None` if the cell was empty.
    #[inline(always)]
    pub(super) fn insert(
        &mut self,
        cell: usize,
        entry: E,
        (score, class): (u32, usize),
        marks: Marks,
    ) -> Option<u32> {
        let mut block = self.blocks[cell / BLOCK];
        if block == NONE {
            block = self.allocate(cell / BLOCK);
        }
        let index = ((block as usize) << BLOCK.ilog2()) | (cell % BLOCK);
        let here = &mut self.cells[index];
        let len = usize::from(here.len);
        let is_inline = here.at == NONE;
        let before = (!(is_inline & (len == 0))).then_some(u32::from(here.best));
        if before.is_none() {
            here.within = [0; CLASSES];
            here.stale = 0;
            here.marks = Marks::NONE;
            self.filled[block as usize] += 1;
        }
        if !is_planted(PlantedBug::IndexStaleMaximum) {
            here.raise(class, entry.within());
        }
        here.marks = here.marks.or(marks);
        if before.is_none_or(|best| best < score) {
            here.best = score as u16;
        }
        if is_inline & (len < INLINE) {
            here.entries[len % INLINE] = entry;
            here.len = len as u8 + 1;
        } else {
            self.insert_into_chunk(index, entry, marks);
        }
        before
    }

    fn new_chunk(&mut self) -> u32 {
        self.free_chunks.pop().unwrap_or_else(|| {
            memory::push_tight(&mut self.chunks, Chunk([E::VACANT; CHUNK]));
            (self.chunks.len() - 1) as u32
        })
    }

    /// Adds an entry to the cell with this index, whose own places do not suffice.
    #[inline(never)]
    fn insert_into_chunk(&mut self, index: usize, entry: E, marks: Marks) {
        let here = &mut self.cells[index];
        let held = usize::from(here.len);
        // `NONE` has this bit too.
        if here.at & PARTS == 0 && held < self.room {
            self.chunks[here.at as usize].0[held % CHUNK] = entry;
            here.len = held as u8 + 1;
        } else if let Some(directory) = here.directory() {
            self.insert_into_part(directory, entry, marks);
        } else {
            self.grow(index, entry, marks);
        }
    }

    /// Gives a cell its first chunk, or parts instead of a chunk, and adds an entry.
    #[inline(never)]
    fn grow(&mut self, index: usize, entry: E, marks: Marks) {
        let Cell { len, at, entries, marks: of_cell, .. } = self.cells[index];
        let held = usize::from(len);
        if at == NONE {
            let chunk = self.new_chunk();
            let to = &mut self.chunks[chunk as usize].0;
            to[..held].copy_from_slice(&entries);
            to[held] = entry;
            let here = &mut self.cells[index];
            here.at = chunk;
            here.len += 1;
            return;
        }
        let directory = self.free_directories.pop().unwrap_or_else(|| {
            self.directories.push(Vec::new());
            (self.directories.len() - 1) as u32
        });
        let here = &mut self.cells[index];
        here.at = directory | PARTS;
        here.len = 0;
        let first = entry.order();
        let whole = Part { first, chunk: at, len, stale: STALE, bounds: E::NOTHING, marks: of_cell };
        self.directories[directory as usize].push(whole);
        self.split(directory as usize, 0);
        self.insert_into_part(directory as usize, entry, marks);
    }

    /// Splits a full part in two.
    fn split(&mut self, directory: usize, number: usize) {
        let Part { first: known, chunk, len, marks, .. } = self.directories[directory][number];
        let upper = self.new_chunk();
        let len = usize::from(len);
        let mut all = self.chunks[chunk as usize].0;
        all[..len].sort_unstable_by_key(|entry| entry.order());
        let (low, high) = all[..len].split_at(len / 2);
        let parts = [(chunk, low, true), (upper, high, false)].map(|(chunk, entries, is_lower)| {
            self.chunks[chunk as usize].0[..entries.len()].copy_from_slice(entries);
            let bounds = entries.iter().fold(E::NOTHING, |bounds, entry| entry.add_to(&bounds));
            // The lower part begins where the whole one did, or its range would not be that of its entries.
            let first = entries[0].order();
            let first = if is_lower { first.min(known) } else { first };
            Part { first, chunk, len: entries.len() as u8, stale: STALE, bounds, marks }
        });
        self.directories[directory].splice(number..=number, parts);
    }

    /// Returns the number of the part that has the entry with this order, or to which it belongs.
    #[inline]
    pub(super) fn part_of(&self, directory: usize, order: E::Order) -> usize {
        part_in(&self.directories[directory], order)
    }

    #[inline(never)]
    fn insert_into_part(&mut self, directory: usize, entry: E, marks: Marks) {
        let order = entry.order();
        let mut parts = &mut self.directories[directory][..];
        let mut number = part_in(parts, order);
        if usize::from(parts[number].len) >= self.room {
            self.split(directory, number);
            parts = &mut self.directories[directory][..];
            number = part_in(parts, order);
        }
        let part = &mut parts[number];
        let held = usize::from(part.len);
        assert!(held < self.room, "a part that was split has room");
        self.chunks[part.chunk as usize].0[held % CHUNK] = entry;
        part.len = held as u8 + 1;
        part.first = part.first.min(order);
        part.bounds = entry.add_to(&part.bounds);
        part.marks = part.marks.or(marks);
    }

    /// Removes an entry with this score. Returns the best score before and after; `None` if the cell is now empty.
    ///
    /// # Panics
    /// If the cell does not have the entry.
    #[inline(always)]
    pub(super) fn remove(
        &mut self,
        cell: usize,
        entry: E,
        score: u32,
        layout: &Layout,
    ) -> (u32, Option<u32>) {
        let index = self.index(cell);
        let here = &mut self.cells[index];
        here.stale = STALE;
        let best = u32::from(here.best);
        if here.at == NONE {
            let len = usize::from(here.len);
            // Places from `len` on are vacant, so the first that is equal is the right one.
            let equal = |at: usize, (place, held): (usize, &E)| if *held == entry { place } else { at };
            let at = here.entries.iter().enumerate().rev().fold(INLINE, equal);
            assert!(at < len, "a node is in its cell");
            let last = (len - 1) % INLINE;
            here.entries[at % INLINE] = here.entries[last];
            here.entries[last] = E::VACANT;
            here.len = last as u8;
            if score < best {
                return (best, Some(best));
            }
            if last > 0 {
                // All places are compared, because a loop of known length has no branches.
                let after = E::largest_score(&here.entries, layout);
                here.best = after as u16;
                return (best, Some(after));
            }
            self.vacate(cell, index);
            return (best, None);
        }
        self.remove_from_chunk(index, entry);
        if score < best {
            return (best, Some(best));
        }
        let after = self.largest_score(index, layout);
        match after {
            Some(after) => self.cells[index].best = after as u16,
            None => self.vacate(cell, index),
        }
        (best, after)
    }

    /// Releases the block of an empty cell, if all its cells are empty.
    #[inline]
    fn vacate(&mut self, cell: usize, index: usize) {
        let block = index / BLOCK;
        let filled = &mut self.filled[block];
        *filled -= 1;
        if *filled == 0 {
            self.free_blocks.push(block as u32);
            self.blocks[cell / BLOCK] = NONE;
        }
    }

    #[inline(never)]
    fn largest_score(&self, index: usize, layout: &Layout) -> Option<u32> {
        let largest = |entries: &[E]| entries.iter().map(|entry| entry.score(layout)).max();
        let here = &self.cells[index];
        let Some(directory) = here.directory() else { return largest(self.entries_of(here)) };
        let parts = &self.directories[directory];
        let from = if E::IS_BY_SCORE { parts.len() - 1 } else { 0 };
        parts[from..].iter().filter_map(|part| largest(self.entries_in(part))).max()
    }

    /// Returns the entries of a cell without parts.
    #[inline]
    pub(super) fn entries_of<'a>(&'a self, cell: &'a Cell<E>) -> &'a [E] {
        let len = usize::from(cell.len);
        if cell.at == NONE { &cell.entries[..len] } else { &self.chunks[cell.at as usize].0[..len] }
    }

    /// Returns the same in a search.
    #[inline(always)]
    pub(super) fn entries_for<'a>(&'a self, cell: &'a Cell<E>, visits: &mut impl Meter) -> &'a [E] {
        if cell.at != NONE {
            tell_chunk::<E>(cell.at, cell.len, visits);
        }
        self.entries_of(cell)
    }

    /// Tells that a part of a cell is read, but not its entries.
    #[inline(always)]
    pub(super) fn tell_part(directory: usize, number: usize, visits: &mut impl Meter) {
        visits.item::<Part<E>>(Structure::Directories, part_number::<E>(directory, number));
    }

    /// Returns the entries of a part in a search.
    #[inline(always)]
    pub(super) fn entries_in_for(&self, part: &Part<E>, visits: &mut impl Meter) -> &[E] {
        tell_chunk::<E>(part.chunk, part.len, visits);
        self.entries_in(part)
    }

    #[inline]
    pub(super) fn entries_in(&self, part: &Part<E>) -> &[E] {
        &self.chunks[part.chunk as usize].0[..usize::from(part.len)]
    }

    /// Removes an entry from the cell with this index, which has a chunk or parts.
    #[inline(never)]
    fn remove_from_chunk(&mut self, index: usize, entry: E) {
        let here = &mut self.cells[index];
        if let Some(directory) = here.directory() {
            return self.remove_from_part(index, directory, entry);
        }
        let rest = (usize::from(here.len) - 1) % CHUNK;
        let all = &mut self.chunks[here.at as usize].0;
        take_out(all, rest, entry);
        here.len = rest as u8;
        // Half of the limit, so that adding and removing one node repeatedly does not convert each time.
        if rest <= INLINE / 2 {
            here.entries = [E::VACANT; INLINE];
            here.entries[..rest].copy_from_slice(&all[..rest]);
            self.free_chunks.push(here.at);
            here.at = NONE;
        }
    }

    fn remove_from_part(&mut self, index: usize, directory: usize, entry: E) {
        let parts = &mut self.directories[directory][..];
        let number = part_in(parts, entry.order());
        let part = &mut parts[number];
        let rest = (usize::from(part.len) - 1) % CHUNK;
        take_out(&mut self.chunks[part.chunk as usize].0, rest, entry);
        part.len = rest as u8;
        part.stale = STALE;
        if rest < self.room / 4 {
            self.join_parts(directory, number);
        }
        let [only] = self.directories[directory][..] else { return };
        if usize::from(only.len) <= self.room / 2 {
            self.directories[directory].clear();
            self.free_directories.push(directory as u32);
            let here = &mut self.cells[index];
            here.at = only.chunk;
            here.len = only.len;
        }
    }

    /// Joins a part that has few entries with the one after it, or before it, if both fit one chunk.
    fn join_parts(&mut self, directory: usize, number: usize) {
        let parts = &mut self.directories[directory];
        let low = if number + 1 < parts.len() { number } else { number.saturating_sub(1) };
        let [first, second, ..] = parts[low..] else { return };
        let lens = [first.len, second.len].map(usize::from);
        if lens[0] + lens[1] > self.room * 3 / 4 && !lens.contains(&0) {
            return;
        }
        let moved = self.chunks[second.chunk as usize].0;
        self.chunks[first.chunk as usize].0[lens[0]..lens[0] + lens[1]].copy_from_slice(&moved[..lens[1]]);
        parts[low].len = (lens[0] + lens[1]) as u8;
        parts[low].stale = STALE;
        parts[low].marks = first.marks.or(second.marks);
        parts.remove(low + 1);
        self.free_chunks.push(second.chunk);
        let entries = &self.chunks[first.chunk as usize].0[..lens[0] + lens[1]];
        parts[low].bounds = entries.iter().fold(E::NOTHING, |bounds, entry| entry.add_to(&bounds));
    }
}

impl<E: Entry> Cells<E> {
    /// Replaces an entry by one with the same order.
    ///
    /// # Panics
    /// If the cell does not have the entry.
    #[inline]
    pub(super) fn exchange(&mut self, cell: usize, entry: E, by: E, class: usize) {
        debug_assert!(entry.order() == by.order(), "an entry is exchanged in its place");
        let here = self.get_mut(cell);
        here.raise(class, by.within());
        here.stale |= STALE_WITHIN;
        let Cell { at, len, .. } = *here;
        let len = usize::from(len);
        let entries = if at == NONE {
            &mut here.entries[..len]
        } else if at & PARTS == 0 {
            &mut self.chunks[at as usize].0[..len]
        } else {
            let directory = (at & !PARTS) as usize;
            let number = self.part_of(directory, entry.order());
            let part = &mut self.directories[directory][number];
            part.bounds = by.add_to(&part.bounds);
            part.stale |= STALE_WITHIN;
            &mut self.chunks[part.chunk as usize].0[..usize::from(part.len)]
        };
        let held = entries.iter_mut().find(|held| **held == entry);
        *held.expect("a node is in its cell") = by;
    }

    /// Records that an entry has new marks.
    pub(super) fn mark(&mut self, cell: usize, entry: E, marks: Marks) {
        let here = self.get_mut(cell);
        here.marks = here.marks.or(marks);
        here.stale |= STALE_MARKS;
        if let Some(directory) = here.directory() {
            let number = self.part_of(directory, entry.order());
            let part = &mut self.directories[directory][number];
            part.marks = part.marks.or(marks);
            part.stale |= STALE_MARKS;
        }
    }
}
