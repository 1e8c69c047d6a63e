//! The plane: all nodes by their first two dimensions, in cells.
//!
//! The first two dimensions determine the [cell](super::grid) of a node without a search. The few nodes of a
//! cell are sorted. Above the cells is a fixed tree of groups of 64. A group has a bit per member and
//! [class](super::classes). One word therefore tells a search which members have a node that suffices in the
//! later dimensions. The search masks off the columns that do not suffice in the second dimension. A group
//! also has the maximum in every dimension, and the marks.
//!
//! Bits, maxima and marks are upper bounds of what is below. They are raised when a node arrives, and not
//! lowered when a node leaves, unless nothing remains. A search that enters something without success
//! recomputes them. Each departure therefore costs at most one such visit per level.

use super::cell::Cell;
use super::classes::{ClassMask, Classifier, serves};
use super::coordinate::Steps;
use super::entry::{RankTag, UpperBounds};
use super::grid::{Columns, Grid};
use super::key::Key;
use super::tree::Direction;
use super::walk::{Found, Search};
use super::{Marks, Slot, Visits};
use crate::broken::{Broken, broken};
use crate::planted::{PlantedBug, is_planted};

/// A group's maxima are recomputed if more vertices than this were entered below it without success.
const VAIN_MIN: u64 = 4;
/// The number of cell groups that are recomputed when the overall maximum is read, which is after each batch.
const SETTLED_FOR_SUM: usize = 2;
/// The number of stale groups that are examined for this. A plane with a million nodes has thousands.
const STALE_LOOKED_AT: usize = 64;

/// Groups of 64, and the upper bounds of each.
#[derive(Clone, Debug)]
struct Level<K> {
    members: Vec<ClassMask>,
    said: Vec<UpperBounds<K>>,
    /// One bit per group: its maxima may be too high.
    stale: Vec<u64>,
    /// One bit per group: its marks may be too many.
    stale_marks: Vec<u64>,
}

impl<K: Key> Level<K> {
    fn new(groups: usize) -> Self {
        let words = groups.div_ceil(64);
        Self {
            members: vec![ClassMask::NONE; groups],
            said: vec![UpperBounds::NOTHING; groups],
            stale: vec![0; words],
            stale_marks: vec![0; words],
        }
    }

    #[inline]
    fn is_stale(&self, group: usize) -> (bool, bool) {
        let bit = |words: &[u64]| words[group / 64] >> (group % 64) & 1 == 1;
        (bit(&self.stale), bit(&self.stale_marks))
    }

    /// Returns the groups whose maxima may be too high.
    fn stale_groups(&self) -> impl Iterator<Item = usize> {
        self.stale.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let group = (left != 0).then(|| at * 64 + left.trailing_zeros() as usize);
                left &= left.wrapping_sub(1);
                group
            })
        })
    }

    /// Records that an entry with these bounds left a group.
    #[inline]
    fn may_sink(&mut self, group: usize, said: UpperBounds<K>) {
        let own = self.said[group];
        self.stale[group / 64] |= u64::from(own.touches(&said)) << (group % 64);
        self.stale_marks[group / 64] |= u64::from(own.marks != Marks::NONE) << (group % 64);
    }

    /// Sets the bounds of a group. Returns whether they changed.
    fn settle(&mut self, group: usize, sum: UpperBounds<K>, with_marks: bool) -> bool {
        let before = self.said[group];
        self.stale[group / 64] &= !(1 << (group % 64));
        self.said[group] = sum.marked(before.marks);
        if with_marks {
            self.stale_marks[group / 64] &= !(1 << (group % 64));
            self.said[group].marks = sum.marks;
        }
        before != self.said[group]
    }

    fn bytes(&self) -> usize {
        self.members.capacity() * size_of::<ClassMask>()
            + self.said.capacity() * size_of::<UpperBounds<K>>()
            + (self.stale.capacity() + self.stale_marks.capacity()) * size_of::<u64>()
    }
}

/// The cells that a search may enter.
struct Area {
    first: usize,
    last: usize,
    columns: Columns,
}

/// Nodes by the cell of their first two coordinates.
pub(super) struct Plane<K> {
    /// The number of entries at which a run is split. It is the maximum, except in tests.
    room: usize,
    classifier: Classifier,
    grid: Grid,
    cells: Vec<Cell<K>>,
    /// The lowest level has a group per 64 cells, the next level one per 64 of these, and so on up to one
    /// group.
    levels: Vec<Level<K>>,
    len: usize,
}

impl<K: Key> Plane<K> {
    /// Creates an empty plane whose runs are split at `room`. `steps` determine classes.
    pub(super) fn new(room: usize, steps: [Steps; 2]) -> Self {
        let grid = Grid::over((0, 0), 0);
        let classifier = Classifier::new(steps);
        let mut plane = Self { room, classifier, grid, cells: Vec::new(), levels: Vec::new(), len: 0 };
        plane.clear(grid);
        plane
    }

    /// Returns the class of a key.
    #[inline]
    pub(super) fn class(&self, key: K) -> usize {
        self.classifier.class(key)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn clear(&mut self, grid: Grid) {
        self.grid = grid;
        self.cells.clear();
        self.cells.resize(grid.cells(), Cell::empty());
        self.levels.clear();
        let mut members = grid.cells();
        while self.levels.is_empty() || members > 1 {
            members = members.div_ceil(64);
            self.levels.push(Level::new(members));
        }
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn insert(&mut self, key: K, tag: RankTag, marks: Marks, of: &[Marks]) {
        self.len += 1;
        if !self.grid.covers(key) || self.grid.is_coarse_for(self.len) {
            self.lay_out(key, of);
        }
        self.enter(key, tag, marks);
    }

    /// Lays out a grid that covers all entries and `key`.
    ///
    /// Costs O(entries). This happens when the number of entries has doubled since the last layout, or when a
    /// key is larger than all before.
    #[cold]
    fn lay_out(&mut self, key: K, of: &[Marks]) {
        let entries = self.entries();
        let highest = entries.iter().fold(key, |high, (key, _)| high.highest(*key)).leading();
        self.clear(Grid::over(highest, self.len));
        for (key, tag) in entries {
            self.enter(key, tag, of.get(tag.rank() as usize).copied().unwrap_or(Marks::NONE));
        }
    }

    #[inline]
    fn enter(&mut self, key: K, tag: RankTag, marks: Marks) {
        let cell = self.grid.cell(key);
        self.cells[cell].insert(key, tag, marks, self.room);
        self.raise(cell, key, UpperBounds::of(key, tag, marks));
    }

    /// Raises the bounds above `cell` after a node arrived there.
    #[inline]
    fn raise(&mut self, cell: usize, key: K, note_arrival: UpperBounds<K>) {
        let class = self.classifier.class(key);
        let mut at = cell;
        for level in &mut self.levels {
            let group = at / 64;
            let member = at % 64;
            let members = &mut level.members[group];
            let said = &mut level.said[group];
            let is_known = members.serving(class) >> member & 1 == 1;
            if is_known && said.may_hold(&note_arrival) {
                return;
            }
            if members.live() == 0 {
                *said = note_arrival;
                level.stale[group / 64] &= !(1 << (group % 64));
                level.stale_marks[group / 64] &= !(1 << (group % 64));
            } else if !is_planted(PlantedBug::IndexStaleMaximum) {
                *said = said.or(note_arrival);
            }
            if !is_known {
                members.add(member, class);
            }
            at = group;
        }
    }

    /// Removes an entry. Returns whether it was found.
    #[inline]
    pub(super) fn remove(&mut self, key: K, tag: RankTag) -> bool {
        let cell = self.grid.cell(key);
        if !self.cells[cell].remove(key, tag, self.room) {
            return false;
        }
        self.len -= 1;
        let mut at = cell;
        let mut is_empty = self.cells[cell].is_empty();
        for level in &mut self.levels {
            let group = at / 64;
            if is_empty {
                level.members[group].remove(at % 64);
                is_empty = level.members[group].live() == 0;
            }
            if !is_empty {
                level.may_sink(group, UpperBounds::of(key, tag, Marks::NONE));
                break;
            }
            at = group;
        }
        true
    }

    /// Prefetches the memory that removing an entry will read.
    #[inline]
    pub(super) fn prefetch(&self, key: K, tag: RankTag) -> usize {
        self.cells[self.grid.cell(key)].entries().prefetch(key, tag)
    }

    /// Records that an entry has new marks.
    pub(super) fn mark(&mut self, key: K, tag: RankTag, marks: Marks) {
        let cell = self.grid.cell(key);
        self.cells[cell].mark(key, tag, marks);
        self.raise(cell, key, UpperBounds::of(key, tag, marks));
        self.levels[0].stale_marks[cell / 64 / 64] |= 1 << (cell / 64 % 64);
    }

    /// Returns the first accepted node of the first leaf that has one.
    #[inline]
    pub(super) fn search(
        &mut self,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        let top = self.levels.len() - 1;
        if self.len == 0
            || !self.grid.covers(search.asked.high)
            || !self.levels[top].said[0].may_hold(&search.asked)
        {
            return None;
        }
        let columns = self.grid.columns_from(search.asked.high);
        let mut area = Area { first: self.grid.cell(search.asked.high), last: self.cells.len() - 1, columns };
        if let Some((key, _)) = search.begin
            && key != K::ABOVE_ALL
        {
            match (self.grid.covers(key), search.direction) {
                (true, Direction::Smallest) => area.first = area.first.max(self.grid.cell(key)),
                (true, Direction::Greatest) => area.last = area.last.min(self.grid.cell(key)),
                // Every entry is examined.
                (false, _) => {}
            }
        } else if search.begin.is_some() {
            return None;
        }
        if area.first > area.last {
            return None;
        }
        let before = search.visits.vertices;
        let found = self.search_group(top, 0, &area, search, accept);
        if found.is_none() && search.visits.vertices - before > VAIN_MIN {
            let with_marks = search.asked.marks != Marks::NONE;
            let (stale, stale_marks) = self.levels[top].is_stale(0);
            if stale || with_marks && stale_marks {
                self.settle_sums(top, 0, with_marks);
            }
        }
        found
    }

    /// Searches group `group` of level `level`, within the area.
    fn search_group(
        &mut self,
        level: usize,
        group: usize,
        area: &Area,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        search.visits.vertices += 1;
        let first = (area.first >> (6 * level)).saturating_sub(group * 64);
        let last = ((area.last >> (6 * level)) - group * 64).min(63);
        let mut open = self.levels[level].members[group].serving(search.class);
        open &= (u64::MAX << first) & (u64::MAX >> (63 - last));
        if level == 0 {
            open &= area.columns.of_group(group);
        }
        while open != 0 {
            let member = match search.direction {
                Direction::Smallest => open.trailing_zeros(),
                Direction::Greatest => 63 - open.leading_zeros(),
            };
            open &= !(1 << member);
            let at = group * 64 + member as usize;
            let found = if level == 0 {
                let looked_at = search.visits.nodes;
                let found = search.in_cell(&self.cells[at], accept);
                // If nodes were examined, the bounds of the cell were not too high.
                if found.is_none() && search.visits.nodes == looked_at {
                    self.settle_cell(at, search);
                }
                found
            } else {
                if !self.levels[level - 1].said[at].may_hold(&search.asked) {
                    continue;
                }
                let before = search.visits.vertices;
                let found = self.search_group(level - 1, at, area, search, accept);
                if found.is_none() {
                    self.settle_group(level - 1, at, search.visits.vertices - before > VAIN_MIN, search);
                }
                found
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Recomputes the bounds of a cell that was searched without success.
    #[inline]
    fn settle_cell(&mut self, at: usize, search: &Search<'_, K>) {
        let cell = &mut self.cells[at];
        cell.settle((search.asked.marks != Marks::NONE).then_some(search.marks));
        let highest = self.classifier.class(cell.said().high);
        if !serves(highest, search.class) {
            self.levels[0].members[at / 64].lower(at % 64, highest);
        }
    }

    /// Recomputes the bounds of a group that was searched without success: whether it serves the class of the
    /// search, and after a `long` search also the maxima and marks.
    #[inline]
    fn settle_group(&mut self, level: usize, group: usize, long: bool, search: &Search<'_, K>) {
        let serves = self.levels[level].members[group].serving(search.class) != 0;
        if !serves {
            self.levels[level + 1].members[group / 64].serves_not(group % 64, search.class);
        }
        let (stale, stale_marks) = self.levels[level].is_stale(group);
        let with_marks = search.asked.marks != Marks::NONE;
        if long && (stale || with_marks && stale_marks) {
            self.settle_sums(level, group, with_marks);
        }
    }

    /// Sets the bounds of a group from its members.
    fn settle_sums(&mut self, level: usize, group: usize, with_marks: bool) {
        let sum = self.sum_of(level, group);
        let sank = self.levels[level].settle(group, sum, with_marks);
        if sank && let Some(above) = self.levels.get_mut(level + 1) {
            above.stale[group / 64 / 64] |= 1 << (group / 64 % 64);
            above.stale_marks[group / 64 / 64] |= u64::from(with_marks) << (group / 64 % 64);
        }
    }

    fn sum_of(&self, level: usize, group: usize) -> UpperBounds<K> {
        let mut sum = UpperBounds::NOTHING;
        let mut open = self.levels[level].members[group].live();
        while open != 0 {
            let at = group * 64 + open.trailing_zeros() as usize;
            open &= open - 1;
            let said = if level == 0 { self.cells[at].said() } else { self.levels[level - 1].said[at] };
            sum = sum.or(said);
        }
        sum
    }

    /// Returns an upper bound per dimension of all nodes' coordinates.
    pub(super) fn highest(&mut self) -> K {
        if self.len == 0 {
            return K::ZERO;
        }
        let top = self.levels.len() - 1;
        for _ in 0..SETTLED_FOR_SUM {
            // The first cell group whose bound may be too high and is visible at the top.
            let high = self.levels[top].said[0].high;
            let lowest = &self.levels[0];
            let shows =
                |group: &usize| lowest.members[*group].live() != 0 && lowest.said[*group].high.touches(high);
            let Some(group) = lowest.stale_groups().take(STALE_LOOKED_AT).find(shows) else { break };
            let mut at = group;
            for level in 0..=top {
                self.settle_sums(level, at, false);
                at /= 64;
            }
        }
        self.levels[top].said[0].high
    }

    /// Returns all entries in order.
    pub(super) fn entries(&self) -> Vec<(K, RankTag)> {
        self.cells.iter().flat_map(Cell::all).collect()
    }

    /// Returns whether an entry is in its cell.
    pub(super) fn holds(&self, key: K, tag: RankTag) -> bool {
        self.grid.covers(key) && self.cells[self.grid.cell(key)].all().contains(&(key, tag))
    }

    pub(super) fn bytes(&self) -> usize {
        let heap: usize = self.cells.iter().map(Cell::heap_bytes).sum();
        self.cells.capacity() * size_of::<Cell<K>>()
            + self.levels.iter().map(Level::bytes).sum::<usize>()
            + heap
    }

    /// Checks that the bounds of cells and groups cover what is below.
    ///
    /// # Errors
    /// Returns the inconsistency.
    pub(super) fn check(&self, of: &[Marks]) -> Result<(), Broken> {
        for (at, cell) in self.cells.iter().enumerate() {
            let members = &self.levels[0].members[at / 64];
            let bit = 1 << (at % 64);
            cell.check(of).map_err(|what| broken!("{what} {at} is not so"))?;
            let unserved = |(key, _): &(K, RankTag)| members.serving(self.classifier.class(*key)) & bit == 0;
            if (members.live() & bit != 0) == cell.is_empty() || cell.all().iter().any(unserved) {
                return Err(broken!("what cell {at} is said to serve is not so"));
            }
        }
        for level in 0..self.levels.len() {
            let here = &self.levels[level];
            for group in 0..here.members.len() {
                let (said, sum, live) =
                    (here.said[group], self.sum_of(level, group), here.members[group].live());
                if live != 0 && !said.may_hold(&sum) {
                    return Err(broken!("what is said of group {group} of level {level} is not so"));
                }
                let Some(above) = self.levels.get(level + 1) else { continue };
                let bit = |class: usize| above.members[group / 64].serving(class) >> (group % 64) & 1 == 1;
                let unseen = |class: &usize| here.members[group].serving(*class) != 0 && !bit(*class);
                if bit(0) != (live != 0) || (0..super::classes::CLASSES).any(|class| unseen(&class)) {
                    return Err(broken!("what group {group} of level {level} is said to serve is not so"));
                }
            }
        }
        if self.entries().len() == self.len { Ok(()) } else { Err(Broken::new("the plane miscounts")) }
    }
}
