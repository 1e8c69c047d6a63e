//! The plane: all entries in cells, by their first two coordinates, and the searches over them.
//!
//! A search goes through rows, then through words of a row, then through cells, in the order of the coordinates.
//! [Classes](super::classes) tell it which of these have a node with enough of the later dimensions. In the row
//! and the column of the request itself, entries also tell how much of the last step they have.

use super::cell::Cells;
use super::cell_search::{Sought, first_of};
use super::classes::{CLASSES, Classes, EMPTY, Rows};
use super::coordinate::Coordinates;
use super::entry::Entry;
use super::lacking::Odd;
use super::layout::Layout;
use super::ranks::Ranks;
use super::tree::Direction;
use super::{Coordinate, Marks, Meter, Slot, Structure};
use crate::broken::{Broken, broken};
use crate::limits::DIMENSIONS_MAX;

/// The largest coordinate in each dimension, and how many nodes have each.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) by_coordinate: [Vec<u32>; DIMENSIONS_MAX],
    /// At least the largest coordinate of any node.
    highest: Coordinate,
    pub(super) odd: Odd,
}

impl Counts {
    /// Creates counts with a place for each coordinate of a layout, as [`shift`](Self::shift) needs them.
    fn for_all(layout: &Layout) -> Self {
        let mut counts = Self::default();
        for (counts, limit) in counts.by_coordinate.iter_mut().zip(layout.limits()) {
            *counts = vec![0; usize::from(limit) + 1];
        }
        counts
    }

    #[inline]
    fn add(&mut self, d: usize, field: u16) {
        let counts = &mut self.by_coordinate[d];
        match counts.get_mut(usize::from(field)) {
            // There are at most `NODES_MAX` nodes.
            Some(count) => *count = count.wrapping_add(1),
            None => add_first(counts, field),
        }
        self.highest.0[d] = self.highest.0[d].max(field);
    }

    #[inline]
    fn remove(&mut self, d: usize, field: u16) {
        let count = &mut self.by_coordinate[d][usize::from(field)];
        // It cannot wrap: the node was counted before.
        *count = count.wrapping_sub(1);
    }

    /// Counts a node at another coordinate, or at the same. There are no branches, because nobody can predict which of the
    /// two it is.
    ///
    /// # Panics
    /// If a coordinate has no place. See [`for_all`](Self::for_all).
    #[inline(always)]
    fn shift(&mut self, d: usize, before: usize, after: usize) {
        let counts = &mut self.by_coordinate[d][..];
        // Neither can wrap: the node was counted before, and there are at most `NODES_MAX`. A dimension that is not counted
        // has only one coordinate.
        counts[before] = counts[before].wrapping_sub(1);
        counts[after] = counts[after].wrapping_add(1);
        self.highest.0[d] = self.highest.0[d].max(after as u16);
    }

    /// The same for coordinates that may have no place yet.
    #[inline]
    fn shift_any(&mut self, d: usize, before: usize, after: usize) {
        if before == after {
            return;
        }
        let counts = &mut self.by_coordinate[d];
        // Neither can wrap: the node was counted before, and there are at most `NODES_MAX`.
        counts[before] = counts[before].wrapping_sub(1);
        match counts.get_mut(after) {
            Some(count) => *count = count.wrapping_add(1),
            None => add_first(counts, after as u16),
        }
        if after > usize::from(self.highest.0[d]) {
            self.highest.0[d] = after as u16;
        }
    }

    /// Returns the largest coordinate of a node in the first dimension.
    #[inline(always)]
    fn highest_first(&mut self) -> u16 {
        let [counts, ..] = &self.by_coordinate;
        let [highest, ..] = &mut self.highest.0;
        while *highest > 0 && counts[usize::from(*highest)] == 0 {
            *highest = highest.wrapping_sub(1);
        }
        *highest
    }

    fn highest(&mut self) -> Coordinate {
        for (field, counts) in self.highest.0.iter_mut().zip(&self.by_coordinate) {
            while *field > 0 && counts[usize::from(*field)] == 0 {
                *field -= 1;
            }
        }
        self.highest
    }
}

/// A request.
pub(super) struct Asked<'a, E> {
    /// The cell and the entry of a node that has just what is asked.
    pub(super) cell: usize,
    pub(super) entry: E,
    /// The marks that a node must have.
    pub(super) marks: Marks,
    /// The marks of nodes, by rank.
    pub(super) of: &'a [Marks],
}

/// A request, as a search compares it.
struct Search<'a, E: Entry> {
    sought: Sought<'a, E>,
    score: u32,
    class: usize,
    /// The least part of the last step of entries in the row of the request.
    within: u8,
    row: usize,
    column: usize,
    ranks: &'a Ranks,
}

/// Entries by the cell of their first two coordinates.
pub(super) struct Plane<E: Entry> {
    pub(super) layout: Layout,
    /// The number of dimensions that may differ from zero.
    dimensions: usize,
    classes: Classes,
    pub(super) rows: Rows,
    pub(super) cells: Cells<E>,
    pub(super) counts: Counts,
    len: usize,
}

impl<E: Entry> Plane<E> {
    /// Creates an empty plane, whose chunks are split at `room`.
    pub(super) fn new(layout: Layout, dimensions: usize, room: usize) -> Self {
        Self {
            layout,
            dimensions,
            classes: Classes::new(layout.score_bits()),
            rows: Rows::new(layout.rows(), layout.column_bits()),
            cells: Cells::new(layout.cells(), room),
            counts: if E::IS_BY_SCORE { Counts::for_all(&layout) } else { Counts::default() },
            len: 0,
        }
    }

    #[inline]
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry of these coordinates, which the layout covers.
    pub(super) fn insert(&mut self, cell: usize, entry: E, at: &Coordinate, marks: Marks) {
        self.len += 1;
        (0..self.dimensions).for_each(|d| self.counts.add(d, at.0[d]));
        self.enter(cell, entry, marks);
    }

    #[inline(always)]
    fn enter(&mut self, cell: usize, entry: E, marks: Marks) {
        let score = entry.score(&self.layout);
        let class = self.classes.of(score);
        let before = match self.cells.insert(cell, entry, (score, class), marks) {
            Some(best) if best >= score => return,
            Some(best) => self.classes.of(best),
            None => EMPTY,
        };
        self.rows.change(cell, before, class);
    }

    /// Removes an entry of these coordinates.
    ///
    /// # Panics
    /// If it is not in the cell.
    pub(super) fn remove(&mut self, cell: usize, entry: E, at: &Coordinate) {
        self.len -= 1;
        (0..self.dimensions).for_each(|d| self.counts.remove(d, at.0[d]));
        self.leave(cell, entry);
    }

    #[inline(always)]
    fn leave(&mut self, cell: usize, entry: E) {
        let layout = &self.layout;
        let score = entry.score(layout);
        let (before, after) = self.cells.remove(cell, entry, score, layout);
        if after != Some(before) {
            let after = after.map_or(EMPTY, |best| self.classes.of(best));
            self.rows.change(cell, self.classes.of(before), after);
        }
    }

    /// Replaces an entry by one of the same node. Returns whether its coordinate changed.
    ///
    /// # Panics
    /// If it is not in the cell.
    #[inline(always)]
    pub(super) fn update(
        &mut self,
        (cell, entry): (usize, E),
        (to, by): (usize, E),
        marks: &[Marks],
    ) -> bool {
        if cell == to && E::leaf(entry.order()) == E::leaf(by.order()) {
            if entry != by {
                self.exchange(cell, entry, by);
            }
            return false;
        }
        self.relocate((cell, entry), (to, by), marks);
        true
    }

    #[inline(never)]
    fn exchange(&mut self, cell: usize, entry: E, by: E) {
        let class = self.classes.of(by.score(&self.layout));
        self.cells.exchange(cell, entry, by, class);
    }

    #[inline(never)]
    fn relocate(&mut self, (cell, entry): (usize, E), (to, by): (usize, E), marks: &[Marks]) {
        if E::IS_BY_SCORE {
            let Self { layout, counts, .. } = self;
            counts.shift(0, layout.row(cell), layout.row(to));
            counts.shift(1, layout.column(cell), layout.column(to));
            let [before, after] = [entry, by].map(|entry| entry.score(layout));
            if before != after {
                counts.shift(2, layout.third(before) as usize, layout.third(after) as usize);
                counts.shift(3, layout.fourth(before) as usize, layout.fourth(after) as usize);
            }
        } else {
            let before = entry.coordinate(&self.layout, cell);
            let after = by.coordinate(&self.layout, to);
            for d in 0..self.dimensions {
                self.counts.shift_any(d, before.0[d].into(), after.0[d].into());
            }
        }
        self.leave(cell, entry);
        let marks = marks.get(by.rank() as usize).copied().unwrap_or(Marks::NONE);
        self.enter(to, by, marks);
    }

    /// Records that an entry has new marks.
    pub(super) fn mark(&mut self, cell: usize, entry: E, marks: Marks) {
        self.cells.mark(cell, entry, marks);
    }

    /// Prefetches the memory that removing an entry will read.
    #[inline]
    pub(super) fn prefetch(&self, cell: usize, entry: E) -> usize {
        self.cells.prefetch(cell, entry)
    }

    /// Returns an upper bound per dimension of all nodes' coordinates.
    pub(super) fn highest(&mut self) -> Coordinate {
        self.counts.highest()
    }

    /// Cuts the classes again, where requests ask.
    #[cold]
    fn learn(&mut self) {
        if !self.classes.learn() {
            return;
        }
        self.rows = Rows::new(self.layout.rows(), self.layout.column_bits());
        let classes = &self.classes;
        for (cell, class) in self.cells.classify(|score| classes.of(score)) {
            self.rows.change(cell, EMPTY, class);
        }
    }

    /// Returns a request for nodes with these coordinates. `None` if the layout does not cover them, so no node has them.
    pub(super) fn asked<'a>(&self, at: &Coordinates, marks: Marks, of: &'a [Marks]) -> Option<Asked<'a, E>> {
        let layout = &self.layout;
        let is_covered = layout.covers(&at.coordinate);
        is_covered.then(|| Asked {
            cell: E::cell(layout, &at.coordinate),
            entry: E::new(layout, at, 0),
            marks,
            of,
        })
    }

    /// Returns the first accepted node, in order of coordinate and then of rank.
    #[inline(always)]
    pub(super) fn first<M: Meter>(
        &mut self,
        direction: Direction,
        asked: &Asked<'_, E>,
        ranks: &Ranks,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        match direction {
            Direction::Greatest => self.first_of::<true, M>(asked, ranks, visits, accept),
            Direction::Smallest => self.first_of::<false, M>(asked, ranks, visits, accept),
        }
    }

    /// Returns the first accepted node. With `GREATEST`, the largest coordinate comes first.
    #[inline(never)]
    fn first_of<const GREATEST: bool, M: Meter>(
        &mut self,
        asked: &Asked<'_, E>,
        ranks: &Ranks,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        if self.len == 0 {
            return None;
        }
        let &Asked { cell, entry, marks, of } = asked;
        let score = entry.score(&self.layout);
        if self.classes.note_request(score) {
            self.learn();
        }
        let wanted = entry.asked(&self.layout);
        let search = Search {
            sought: Sought { asked: wanted, marks, of, from: E::FIRST },
            within: E::least_within(&wanted),
            score,
            class: self.classes.of(score),
            row: self.layout.row(cell),
            column: self.layout.column(cell),
            ranks,
        };
        visits.read(Structure::ClassTable, score as usize, 1);
        let highest = self.counts.highest_first();
        visits.item::<u32>(Structure::Counts(0), highest.into());
        let end = self.rows.groups().min(self.layout.row_of(highest) / 64 + 1);
        let mut groups = search.row / 64..end;
        let mut first_in_group = |group: usize| {
            let mut open = self.rows.rows(group, search.class, visits);
            if group == search.row / 64 {
                open &= u64::MAX << (search.row % 64);
            }
            while let Some(bit) = take::<GREATEST>(&mut open) {
                let found = self.first_in_row::<GREATEST, M>(group * 64 + bit, &search, visits, accept);
                if found.is_some() {
                    return found;
                }
            }
            None
        };
        if GREATEST { groups.rev().find_map(&mut first_in_group) } else { groups.find_map(first_in_group) }
    }

    #[inline(always)]
    fn first_in_row<const GREATEST: bool, M: Meter>(
        &mut self,
        row: usize,
        search: &Search<'_, E>,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        visits.vertex();
        let in_row = row == search.row;
        let within = if in_row { search.within } else { 0 };
        let mut words =
            u64::from(self.rows.words(row, search.class, visits)) & u64::MAX << (search.column / 64);
        while let Some(word) = take::<GREATEST>(&mut words) {
            let mut open = self.rows.cells(row, word, search.class, visits);
            if word == search.column / 64 {
                open &= u64::MAX << (search.column % 64);
            }
            while let Some(bit) = take::<GREATEST>(&mut open) {
                let column = word * 64 + bit;
                let cell = self.layout.cell_at(row, column);
                let here = self.cells.get_for(cell, visits);
                if here.may_fit(search.class, within, search.score, search.sought.marks) {
                    let edges = (in_row, column == search.column);
                    let found = self.first_in_cell::<GREATEST, M>(cell, edges, search, visits, accept);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// Searches a cell, which may be in the row and in the column of the request.
    // A call, so that the search for cells holds little else.
    #[inline(never)]
    fn first_in_cell<const GREATEST: bool, M: Meter>(
        &mut self,
        cell: usize,
        (in_row, in_column): (bool, bool),
        search: &Search<'_, E>,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        visits.vertex();
        let asked = E::asked_in(&search.sought.asked, in_row, in_column);
        let mut from = E::FIRST;
        let here = self.cells.get(cell);
        if search.sought.marks == Marks::NONE && here.directory().is_none() {
            let found = first_of::<E, GREATEST>(self.cells.entries_for(here, visits), &asked);
            let Some(order) = found else {
                if in_row && here.is_stale(false) {
                    self.settle(cell, false, search.sought.of);
                }
                return None;
            };
            let slot = search.ranks.slot_for(E::rank_of(order), visits);
            if accept(slot, visits) {
                return Some(slot);
            }
            from = E::next(order);
        }
        let sought = Sought { asked, from, ..search.sought };
        self.first_in_any_cell::<GREATEST, M>(cell, in_row, sought, search.ranks, visits, accept)
    }

    /// The same with marks, for cells with parts, and after a rejected node.
    #[inline(never)]
    fn first_in_any_cell<const GREATEST: bool, M: Meter>(
        &mut self,
        cell: usize,
        in_row: bool,
        mut sought: Sought<'_, E>,
        ranks: &Ranks,
        visits: &mut M,
        accept: &mut impl FnMut(Slot, &mut M) -> bool,
    ) -> Option<Slot> {
        while let Some(order) = self.cells.first::<GREATEST>(cell, &sought, visits) {
            let slot = ranks.slot_for(E::rank_of(order), visits);
            if accept(slot, visits) {
                return Some(slot);
            }
            sought.from = E::next(order);
        }
        let with_marks = sought.marks != Marks::NONE;
        if (in_row | with_marks) && self.cells.get(cell).is_stale(with_marks) {
            self.settle(cell, with_marks, sought.of);
        }
        None
    }

    /// Recomputes the bounds of a cell that was searched without success.
    fn settle(&mut self, cell: usize, with_marks: bool, of: &[Marks]) {
        let Self { classes, layout, cells, .. } = self;
        cells.settle(cell, with_marks, of, |entry| entry.score(layout), |score| classes.of(score));
    }

    /// Returns all entries in order, each with its cell.
    pub(super) fn entries(&self) -> Vec<(usize, E)> {
        let of_cell = |cell: usize| self.cells.entries(cell).into_iter().map(move |entry| (cell, entry));
        self.cells.filled().into_iter().flat_map(of_cell).collect()
    }

    /// Returns whether an entry is in this cell.
    pub(super) fn has(&self, cell: usize, entry: E) -> bool {
        self.cells.has(cell, entry)
    }

    pub(super) fn bytes(&self) -> usize {
        let counts: usize = self.counts.by_coordinate.iter().map(Vec::capacity).sum();
        self.cells.bytes() + self.rows.bytes() + self.classes.bytes() + counts * size_of::<u32>()
    }

    /// Checks that the bounds of cells cover their entries, and that classes and counts are exact.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub(super) fn check(&self, of: &[Marks]) -> Result<(), Broken> {
        let score_of = |entry: E| entry.score(&self.layout);
        let class_of = |entry: E| self.classes.of(score_of(entry));
        self.cells.check_blocks().map_err(|what| broken!("{what} are not so"))?;
        let filled = self.cells.filled();
        for &cell in &filled {
            let checked = self.cells.check(cell, of, score_of, class_of);
            checked.map_err(|what| broken!("{what} {cell} is not so"))?;
        }
        let entries = self.entries();
        let mut counts = Counts::default();
        for &(cell, entry) in &entries {
            let at = entry.coordinate(&self.layout, cell);
            (0..self.dimensions).for_each(|d| counts.add(d, at.0[d]));
        }
        let classes = filled.iter().map(|&cell| {
            let best = self.cells.entries(cell).into_iter().map(class_of).max();
            (cell, best.unwrap_or(CLASSES))
        });
        if !self.rows.is_of(classes) {
            return Err(Broken::new("the classes of cells are not so"));
        }
        let is_counted = counts.by_coordinate.iter().zip(&self.counts.by_coordinate).all(|(is, said)| {
            let [is, rest] =
                [said.get(..is.len()) == Some(&is[..]), said.iter().skip(is.len()).all(|&n| n == 0)];
            is && rest
        });
        if !is_counted || !self.counts.highest.reaches(&counts.highest) || entries.len() != self.len {
            return Err(Broken::new("the plane miscounts"));
        }
        Ok(())
    }
}

#[cold]
fn add_first(counts: &mut Vec<u32>, field: u16) {
    counts.resize(usize::from(field) + 1, 0);
    counts[usize::from(field)] = 1;
}

/// Takes the first bit in the direction of a search.
#[inline]
fn take<const GREATEST: bool>(open: &mut u64) -> Option<usize> {
    if *open == 0 {
        return None;
    }
    let bit = if GREATEST { 63 - open.leading_zeros() } else { open.trailing_zeros() };
    *open &= !1u64.wrapping_shl(bit);
    Some(bit as usize)
}
