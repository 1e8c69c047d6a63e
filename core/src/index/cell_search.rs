//! Searches in cells, and what is recomputed after them.

use super::cell::{BLOCK, Cell, Cells, Chunk, INLINE, NONE, Part, STALE_WITHIN, stale_for};
use super::classes::CLASSES;
use super::entry::Entry;
use super::{Marks, Meter, Structure, Visits};

/// What a search wants of an entry.
#[derive(Clone, Copy)]
pub(super) struct Sought<'a, E: Entry> {
    pub(super) asked: E::Asked,
    pub(super) marks: Marks,
    /// By rank.
    pub(super) of: &'a [Marks],
    /// The first order that is left, in the direction of the search.
    pub(super) from: E::Order,
}

impl<E: Entry> Sought<'_, E> {
    #[inline]
    fn is_marked(&self, entry: E, visits: &mut impl Meter) -> bool {
        if self.marks == Marks::NONE {
            return true;
        }
        visits.item::<Marks>(Structure::Marks, entry.rank() as usize);
        self.of.get(entry.rank() as usize).is_some_and(|marks| marks.hold(self.marks))
    }
}

/// Returns the first entry in the direction of the search that fits.
#[inline(always)]
pub(super) fn first_of<E: Entry, const GREATEST: bool>(entries: &[E], asked: &E::Asked) -> Option<E::Order> {
    let mut first = E::AFTER_ALL;
    for &entry in entries {
        let order = if GREATEST { E::turned(entry.order()) } else { entry.order() };
        first = if entry.fits(asked) & (order < first) { order } else { first };
    }
    (first != E::AFTER_ALL).then_some(first)
}

/// The same for a search that may want marks, or goes on after entries that were rejected.
#[inline]
fn first_sought<E: Entry, const GREATEST: bool>(
    entries: &[E],
    sought: &Sought<'_, E>,
    visits: &mut impl Meter,
) -> Option<E::Order> {
    if sought.marks == Marks::NONE && sought.from == E::FIRST {
        return first_of::<E, GREATEST>(entries, &sought.asked);
    }
    first_of_some::<E, GREATEST>(entries, sought, visits)
}

/// The same with marks, or after entries that were rejected.
#[inline(never)]
fn first_of_some<E: Entry, const GREATEST: bool>(
    entries: &[E],
    sought: &Sought<'_, E>,
    visits: &mut impl Meter,
) -> Option<E::Order> {
    let mut first = E::AFTER_ALL;
    for &entry in entries {
        let order = if GREATEST { E::turned(entry.order()) } else { entry.order() };
        if entry.fits(&sought.asked) & (order < first) & (order >= sought.from)
            && sought.is_marked(entry, visits)
        {
            first = order;
        }
    }
    (first != E::AFTER_ALL).then_some(first)
}

impl<E: Entry> Cells<E> {
    /// Returns the first entry of a cell that fits. The parts that it reads are vertices.
    #[inline(always)]
    pub(super) fn first<const GREATEST: bool>(
        &mut self,
        cell: usize,
        sought: &Sought<'_, E>,
        visits: &mut impl Meter,
    ) -> Option<E::Order> {
        let here = self.get(cell);
        match here.directory() {
            None => first_sought::<E, GREATEST>(self.entries_for(here, visits), sought, visits),
            Some(directory) if GREATEST => self.greatest(directory, sought, visits),
            Some(directory) => {
                let parts = self.directories[directory].len();
                self.smallest(directory, parts, sought, visits)
            }
        }
    }

    /// Searches the parts up to `end`.
    fn smallest(
        &mut self,
        directory: usize,
        end: usize,
        sought: &Sought<'_, E>,
        visits: &mut impl Meter,
    ) -> Option<E::Order> {
        let begin = self.part_of(directory, sought.from.max(E::lowest(&sought.asked)));
        (begin..end).find_map(|number| self.first_in_part::<false>(directory, number, sought, visits))
    }

    /// The last leaf comes first, and in it the lowest rank. A leaf may span several parts.
    fn greatest(
        &mut self,
        directory: usize,
        sought: &Sought<'_, E>,
        visits: &mut impl Meter,
    ) -> Option<E::Order> {
        let from = E::turned(sought.from);
        let least = self.part_of(directory, E::lowest(&sought.asked));
        let end = self.directories[directory].partition_point(|part| E::leaf(part.first) <= E::leaf(from));
        for number in (least..end).rev() {
            let of_part = self.first_in_part::<true>(directory, number, sought, visits);
            let Some(last) = of_part else { continue };
            let leaf = E::leaf(E::turned(last));
            if E::leaf(self.directories[directory][number].first) != leaf {
                return of_part;
            }
            // The parts before may have lower ranks of this leaf.
            let from = if E::leaf(from) == leaf { from } else { leaf };
            let lower = self.smallest(directory, number, &Sought { from, ..*sought }, visits);
            return lower.map_or(of_part, |order| Some(E::turned(order)));
        }
        None
    }

    #[inline]
    fn first_in_part<const GREATEST: bool>(
        &mut self,
        directory: usize,
        number: usize,
        sought: &Sought<'_, E>,
        visits: &mut impl Meter,
    ) -> Option<E::Order> {
        Self::tell_part(directory, number, visits);
        let part = &self.directories[directory][number];
        if !E::may_fit(&part.bounds, &sought.asked) || !part.marks.hold(sought.marks) {
            return None;
        }
        visits.vertex();
        let found = first_sought::<E, GREATEST>(self.entries_in_for(part, visits), sought, visits);
        let with_marks = sought.marks != Marks::NONE;
        if found.is_none() && part.stale & stale_for(with_marks) != 0 {
            self.settle_part(directory, number, with_marks, sought.of);
        }
        found
    }

    /// Recomputes the bounds of a part. The marks of its nodes lie far apart, so they are left if no search wants
    /// them.
    fn settle_part(&mut self, directory: usize, number: usize, with_marks: bool, of: &[Marks]) {
        let part = &self.directories[directory][number];
        let entries = self.entries_in(part);
        let bounds = entries.iter().fold(E::NOTHING, |bounds, entry| entry.add_to(&bounds));
        let marks = if with_marks { marks_of(entries, of) } else { part.marks };
        let part = &mut self.directories[directory][number];
        part.bounds = bounds;
        part.marks = marks;
        part.stale &= !stale_for(with_marks);
    }

    /// Recomputes the bounds of a cell.
    pub(super) fn settle(
        &mut self,
        cell: usize,
        with_marks: bool,
        of: &[Marks],
        score_of: impl Fn(E) -> u32,
        class_of: impl Fn(u32) -> usize,
    ) {
        let mut sum = Cell { entries: [E::VACANT; INLINE], ..Cell::EMPTY };
        let here = *self.get(cell);
        let class_of_entry = |entry: E| class_of(score_of(entry));
        if let Some(directory) = here.directory() {
            for number in 0..self.directories[directory].len() {
                if self.directories[directory][number].stale & stale_for(with_marks) != 0 {
                    self.settle_part(directory, number, with_marks, of);
                }
                let parts = &self.directories[directory];
                let part = &parts[number];
                sum.marks = sum.marks.or(part.marks);
                // In a large cell, most parts are of one class. Their bounds say what their entries would, in
                // fewer lines.
                let least = E::score_of(part.first).map(&class_of);
                let next = parts.get(number + 1);
                let best = Some(u32::from(here.best));
                let most = next.map_or(best, |next| E::score_of(next.first));
                match least {
                    Some(class) if most.map(&class_of) == least => {
                        sum.raise(class, E::within_of(&part.bounds));
                    }
                    _ => {
                        let entries = self.entries_in(part).iter();
                        entries.for_each(|&entry| sum.raise(class_of_entry(entry), entry.within()));
                    }
                }
            }
        } else {
            let entries = self.entries_of(&here);
            entries.iter().for_each(|&entry| sum.raise(class_of_entry(entry), entry.within()));
            sum.marks = if with_marks { marks_of(entries, of) } else { here.marks };
        }
        let here = self.get_mut(cell);
        here.within = sum.within;
        here.marks = sum.marks;
        here.stale &= !stale_for(with_marks);
    }

    /// Recomputes the bounds of all cells, whose classes were cut again. Returns the cells with the class of
    /// their best score.
    pub(super) fn classify(&mut self, class_of: impl Fn(u32) -> usize) -> Vec<(usize, usize)> {
        let mut classes = Vec::new();
        for cell in self.filled() {
            let here = self.get_mut(cell);
            // At least as much, as a bound must be. Searches without success lower it.
            here.within = [here.within[0]; CLASSES];
            here.stale |= STALE_WITHIN;
            classes.push((cell, class_of(u32::from(here.best))));
        }
        classes
    }

    /// Returns the cells with entries, in order.
    pub(super) fn filled(&self) -> Vec<usize> {
        let of_block =
            |block: usize| (block * BLOCK..(block + 1) * BLOCK).filter(|&at| !self.get(at).is_empty());
        (0..self.blocks.len()).filter(|&block| self.blocks[block] != NONE).flat_map(of_block).collect()
    }

    /// Prefetches the memory that removing an entry will read.
    #[inline]
    pub(super) fn prefetch(&self, cell: usize, entry: E) -> usize {
        let here = self.get(cell);
        if here.at == NONE {
            return usize::from(here.len);
        }
        let per_line = 64 / size_of::<E>().min(64);
        let lines = self.entries_with(here, entry).iter().step_by(per_line);
        lines.fold(0, |sum, entry| sum ^ entry.rank() as usize)
    }

    /// Returns the entries of a cell, or of the part to which `entry` belongs.
    #[inline]
    fn entries_with<'a>(&'a self, cell: &'a Cell<E>, entry: E) -> &'a [E] {
        match cell.directory() {
            None => self.entries_of(cell),
            Some(directory) => {
                self.entries_in(&self.directories[directory][self.part_of(directory, entry.order())])
            }
        }
    }

    /// Returns whether an entry is in this cell.
    pub(super) fn has(&self, cell: usize, entry: E) -> bool {
        self.blocks[cell / BLOCK] != NONE && self.entries_with(self.get(cell), entry).contains(&entry)
    }

    /// Returns the entries of a cell in order.
    pub(super) fn entries(&self, cell: usize) -> Vec<E> {
        if self.blocks[cell / BLOCK] == NONE {
            return Vec::new();
        }
        let mut entries = Vec::new();
        self.visit_chunks(self.get(cell), &mut Visits::default(), |chunk, _| {
            entries.extend_from_slice(chunk);
            true
        });
        entries.sort_unstable_by_key(|entry| entry.order());
        entries
    }

    /// Calls `visit` with the entries of a cell that has some, part by part, until it returns false. The parts are in order,
    /// but not their entries.
    #[inline]
    pub(super) fn visit_chunks<M: Meter>(
        &self,
        here: &Cell<E>,
        visits: &mut M,
        mut visit: impl FnMut(&[E], &mut M) -> bool,
    ) {
        let Some(directory) = here.directory() else {
            visit(self.entries_for(here, visits), visits);
            return;
        };
        for (number, part) in self.directories[directory].iter().enumerate() {
            Self::tell_part(directory, number, visits);
            if !visit(self.entries_in_for(part, visits), visits) {
                return;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let parts: usize = self.directories.iter().map(Vec::capacity).sum();
        let free = [&self.free_blocks, &self.free_chunks, &self.free_directories, &self.blocks];
        self.cells.capacity() * size_of::<Cell<E>>()
            + self.chunks.capacity() * size_of::<Chunk<E>>()
            + self.filled.capacity()
            + parts * size_of::<Part<E>>()
            + self.directories.capacity() * size_of::<Vec<Part<E>>>()
            + free.into_iter().map(|free| free.capacity() * size_of::<u32>()).sum::<usize>()
    }

    /// Checks the bounds of a cell, its parts, and its best score.
    pub(super) fn check(
        &self,
        cell: usize,
        of: &[Marks],
        score_of: impl Fn(E) -> u32,
        class_of: impl Fn(E) -> usize,
    ) -> Result<(), &'static str> {
        let here = self.get(cell);
        let entries = self.entries(cell);
        let best = entries.iter().map(|&entry| score_of(entry)).max();
        if best != Some(u32::from(here.best)) {
            return Err("the best score of the cell");
        }
        let is_covered = |entry: &E| here.may_fit(class_of(*entry), entry.within(), 0, mark_of(*entry, of));
        if !entries.iter().all(is_covered) {
            return Err("a bound of the cell");
        }
        let is_vacant = |entry: &E| *entry == E::VACANT;
        if here.at == NONE && !here.entries[entries.len()..].iter().all(is_vacant) {
            return Err("a vacant place of the cell");
        }
        let Some(directory) = here.directory() else { return Ok(()) };
        let parts = &self.directories[directory];
        for (number, part) in parts.iter().enumerate() {
            let entries = self.entries_in(part);
            let after = parts.get(number + 1).map_or(E::AFTER_ALL, |next| next.first);
            let is_in = |entry: &E| part.first <= entry.order() && entry.order() < after;
            let is_covered =
                |entry: &E| entry.add_to(&part.bounds) == part.bounds && part.marks.hold(mark_of(*entry, of));
            if entries.is_empty() || !entries.iter().all(|entry| is_in(entry) && is_covered(entry)) {
                return Err("a part of the cell");
            }
        }
        Ok(())
    }

    /// Checks that cells are allocated where there are entries, and counted.
    pub(super) fn check_blocks(&self) -> Result<(), &'static str> {
        let is_counted = |(block, &at): (usize, &u32)| {
            let filled =
                || (block * BLOCK..(block + 1) * BLOCK).filter(|&at| !self.get(at).is_empty()).count();
            at == NONE || filled() == usize::from(self.filled[at as usize]) && filled() > 0
        };
        let free = self.free_blocks.len() + self.blocks.iter().filter(|&&at| at != NONE).count();
        let is_whole = self.blocks.iter().enumerate().all(is_counted) && free == self.filled.len();
        if is_whole { Ok(()) } else { Err("the blocks of cells") }
    }
}

fn mark_of<E: Entry>(entry: E, of: &[Marks]) -> Marks {
    of.get(entry.rank() as usize).copied().unwrap_or(Marks::NONE)
}

fn marks_of<E: Entry>(entries: &[E], of: &[Marks]) -> Marks {
    entries.iter().fold(Marks::NONE, |marks, &entry| marks.or(mark_of(entry, of)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Coordinate;
    use crate::index::cell::CHUNK;
    use crate::index::coordinate::Coordinates;
    use crate::index::entry::{Narrow, Wide};
    use crate::index::layout::Layout;
    use crate::rng::Rng;

    const SCORES: u64 = 6;

    /// Adds and removes random entries of one cell, in phases of growth and of decline, and compares each search
    /// with a scan.
    fn agrees_with_a_scan<E: Entry>(room: usize) {
        let highest = Coordinate([3, 3, 15, 15, 0, 0, 0, 0]);
        let layout = Layout::exact(&highest, 1).expect("it is small");
        let mut rng = Rng::new(room as u64);
        let mut cells = Cells::<E>::new(layout.cells(), room);
        let at = |score: u64, within: u64| Coordinates {
            coordinate: Coordinate([1, 1, (score / 2) as u16, score as u16, 0, 0, 0, 0]),
            within: [(within << 8) as u16, 1 << 13, u16::MAX >> 2, u16::MAX >> 2, 0, 0, 0, 0],
            odd: [0; 2],
        };
        let cell = layout.cell(&at(0, 0).coordinate);
        let mut held: Vec<(u64, u64, u32)> = Vec::new();
        let entry = |&(score, within, rank): &(u64, u64, u32)| E::new(&layout, &at(score, within), rank);
        for round in 0..6_000u32 {
            let grows = if round / 1500 % 2 == 0 { 7 } else { 3 };
            let is_more = held.is_empty() || rng.below(10) < grows;
            if is_more {
                // Ranks in the middle too, so that parts split anywhere.
                let rank = (rng.below(1 << 20) as u32) << 3 | round & 7;
                let node = (rng.below(SCORES), rng.below(64), rank);
                if held.iter().all(|other| other.2 != rank) {
                    let score = entry(&node).score(&layout);
                    cells.insert(cell, entry(&node), (score, node.0 as usize), Marks::NONE);
                    held.push(node);
                }
            } else {
                let node = held.swap_remove(rng.below(held.len() as u64) as usize);
                let score = entry(&node).score(&layout);
                cells.remove(cell, entry(&node), score, &layout);
            }
            if held.is_empty() {
                continue;
            }
            let score_of = |entry: E| entry.score(&layout);
            let class_of = |entry: E| usize::from(entry.coordinate(&layout, cell).0[3]);
            cells.check(cell, &[], score_of, class_of).expect("bounds");
            let [score, within] = [rng.below(SCORES), rng.below(64)];
            let asked = at(score, within);
            let sought = Sought {
                asked: E::new(&layout, &asked, 0).asked(&layout),
                marks: Marks::NONE,
                of: &[],
                from: E::FIRST,
            };
            let mut fitting: Vec<_> =
                held.iter().filter(|node| node.0 >= score && node.1 >= within).collect();
            // Each search goes on after the entries that were found before, as after a rejected node.
            let most = if round % 16 == 0 { usize::MAX } else { 2 };
            fitting.sort_unstable_by_key(|node| (node.0, node.2));
            assert!(found::<E, false>(&mut cells, cell, sought, most).eq(&ranks(&fitting, most)), "{round}");
            fitting.sort_unstable_by_key(|node| (SCORES - node.0, node.2));
            assert!(found::<E, true>(&mut cells, cell, sought, most).eq(&ranks(&fitting, most)), "{round}");
        }
    }

    fn ranks(nodes: &[&(u64, u64, u32)], most: usize) -> Vec<u32> {
        nodes.iter().take(most).map(|node| node.2).collect()
    }

    fn found<E: Entry, const GREATEST: bool>(
        cells: &mut Cells<E>,
        cell: usize,
        mut sought: Sought<'_, E>,
        most: usize,
    ) -> Vec<u32> {
        let mut ranks = Vec::new();
        while ranks.len() < most
            && let Some(order) = cells.first::<GREATEST>(cell, &sought, &mut Visits::default())
        {
            ranks.push(E::rank_of(order));
            sought.from = E::next(order);
        }
        ranks
    }

    #[test]
    fn a_large_cell_is_searched_as_by_a_scan() {
        for room in [4, 5, 16, CHUNK] {
            agrees_with_a_scan::<Narrow>(room);
            agrees_with_a_scan::<Wide>(room);
        }
    }
}
