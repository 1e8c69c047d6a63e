//! The plane: every node by its first two dimensions, in cells.
//!
//! The first two dimensions say in which [cell](super::grid) a node stands, without a search; the
//! few nodes of a cell stand in order. Above the cells stands a fixed tree of groups of sixty-four.
//! A group has a bit per member and [class](super::classes), so that a search sees in one word which
//! members hold a node that suffices in the later dimensions, and masks off the columns that do not
//! in the second. It also has the maximum in every dimension, and the marks.
//!
//! Bits, maxima and marks are *at least* what is below. They are raised when a node comes and left
//! when one goes, unless nothing is left; a search that entered something in vain puts them right,
//! so that each departure costs at most one such visit per level.

use super::cell::Cell;
use super::classes::{ClassMask, Classifier, serves};
use super::coordinate::Steps;
use super::entry::{RankTag, UpperBounds};
use super::grid::{Columns, Grid};
use super::key::Key;
use super::tree::Direction;
use super::walk::{Found, Search};
use super::{Marks, Slot, Visits};
use crate::planted::{PlantedBug, is_planted};

/// Vertices below a group that are entered in vain before its maxima are worth being put right.
const VAIN_MIN: u64 = 4;
/// Groups of cells that are put right when the largest of all is asked for: after each batch.
const SETTLED_FOR_SUM: usize = 2;
/// Groups that are looked at for them: a plane of a million nodes has thousands.
const STALE_LOOKED_AT: usize = 64;

/// Groups of sixty-four, and what is said of each.
#[derive(Clone, Debug)]
struct Level<K> {
    members: Vec<ClassMask>,
    said: Vec<UpperBounds<K>>,
    /// A bit per group: its maxima may be too much.
    stale: Vec<u64>,
    /// A bit per group: its marks may be too many.
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

    /// The groups whose maxima may be too much.
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

    /// Something of this key and these marks went from below a group.
    #[inline]
    fn may_sink(&mut self, group: usize, said: UpperBounds<K>) {
        let own = self.said[group];
        self.stale[group / 64] |= u64::from(own.touches(&said)) << (group % 64);
        self.stale_marks[group / 64] |= u64::from(own.marks != Marks::NONE) << (group % 64);
    }

    /// Says of a group what is so; whether that is less than before.
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
    /// Entries at which a run is cut: all that there is room for, but in tests.
    room: usize,
    classifier: Classifier,
    grid: Grid,
    cells: Vec<Cell<K>>,
    /// The lowest has a group per sixty-four cells, the next one per sixty-four of these, and so on
    /// up to one group.
    levels: Vec<Level<K>>,
    len: usize,
}

impl<K: Key> Plane<K> {
    /// An empty one whose runs are cut at `room`; `steps` tell classes.
    pub(super) fn new(room: usize, steps: [Steps; 2]) -> Self {
        let grid = Grid::over((0, 0), 0);
        let classifier = Classifier::new(steps);
        let mut plane = Self { room, classifier, grid, cells: Vec::new(), levels: Vec::new(), len: 0 };
        plane.clear(grid);
        plane
    }

    /// The class of a key.
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

    /// Puts an entry in.
    #[inline]
    pub(super) fn insert(&mut self, key: K, tag: RankTag, marks: Marks, of: &[Marks]) {
        self.len += 1;
        if !self.grid.covers(key) || self.grid.is_coarse_for(self.len) {
            self.lay_out(key, of);
        }
        self.stand(key, tag, marks);
    }

    /// Lays a grid out that covers all entries and `key`: O(entries), when there are twice as many as
    /// at the last time, or one is larger than all before.
    #[cold]
    fn lay_out(&mut self, key: K, of: &[Marks]) {
        let entries = self.entries();
        let highest = entries.iter().fold(key, |high, (key, _)| high.highest(*key)).leading();
        self.clear(Grid::over(highest, self.len));
        for (key, tag) in entries {
            self.stand(key, tag, of.get(tag.rank() as usize).copied().unwrap_or(Marks::NONE));
        }
    }

    #[inline]
    fn stand(&mut self, key: K, tag: RankTag, marks: Marks) {
        let cell = self.grid.cell(key);
        self.cells[cell].insert(key, tag, marks, self.room);
        self.raise(cell, key, UpperBounds::of(key, tag, marks));
    }

    /// The way up learns that a node came to `cell`.
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

    /// Takes an entry out; whether it was there.
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

    /// Reads what taking an entry out will read.
    #[inline]
    pub(super) fn prefetch(&self, key: K, tag: RankTag) -> usize {
        self.cells[self.grid.cell(key)].entries().prefetch(key, tag)
    }

    /// An entry that stands here has other marks.
    pub(super) fn mark(&mut self, key: K, tag: RankTag, marks: Marks) {
        let cell = self.grid.cell(key);
        self.cells[cell].mark(key, tag, marks);
        self.raise(cell, key, UpperBounds::of(key, tag, marks));
        self.levels[0].stale_marks[cell / 64 / 64] |= 1 << (cell / 64 % 64);
    }

    /// The first accepted node of the first leaf that holds one.
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
                // Each entry is looked at.
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
                // Where nodes were looked at, what is said of the cell was not at fault.
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

    /// Puts right what is said of a cell that was searched in vain.
    #[inline]
    fn settle_cell(&mut self, at: usize, search: &Search<'_, K>) {
        let cell = &mut self.cells[at];
        cell.settle((search.asked.marks != Marks::NONE).then_some(search.marks));
        let highest = self.classifier.class(cell.said().high);
        if !serves(highest, search.class) {
            self.levels[0].members[at / 64].lower(at % 64, highest);
        }
    }

    /// Puts right what is said of a group that was searched in vain: whether it serves the class of
    /// the search, and after a search that was `long` the maxima and marks.
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

    /// Says of a group what is said of its members.
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

    /// Per dimension at least the largest coordinate of all nodes.
    pub(super) fn highest(&mut self) -> K {
        if self.len == 0 {
            return K::ZERO;
        }
        let top = self.levels.len() - 1;
        for _ in 0..SETTLED_FOR_SUM {
            // The first group of cells that may say too much, where that is seen at the top.
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

    /// All entries in order.
    pub(super) fn entries(&self) -> Vec<(K, RankTag)> {
        self.cells.iter().flat_map(Cell::all).collect()
    }

    /// Whether an entry stands in its cell.
    pub(super) fn holds(&self, key: K, tag: RankTag) -> bool {
        self.grid.covers(key) && self.cells[self.grid.cell(key)].all().contains(&(key, tag))
    }

    pub(super) fn bytes(&self) -> usize {
        let heap: usize = self.cells.iter().map(Cell::heap_bytes).sum();
        self.cells.capacity() * size_of::<Cell<K>>()
            + self.levels.iter().map(Level::bytes).sum::<usize>()
            + heap
    }

    /// Checks that what is said of cells and groups covers what is below.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, of: &[Marks]) -> Result<(), String> {
        for (at, cell) in self.cells.iter().enumerate() {
            let members = &self.levels[0].members[at / 64];
            let bit = 1 << (at % 64);
            cell.check(of).map_err(|what| format!("{what} {at} is not so"))?;
            let unserved = |(key, _): &(K, RankTag)| members.serving(self.classifier.class(*key)) & bit == 0;
            if (members.live() & bit != 0) == cell.is_empty() || cell.all().iter().any(unserved) {
                return Err(format!("what cell {at} is said to serve is not so"));
            }
        }
        for level in 0..self.levels.len() {
            let here = &self.levels[level];
            for group in 0..here.members.len() {
                let (said, sum, live) =
                    (here.said[group], self.sum_of(level, group), here.members[group].live());
                if live != 0 && !said.may_hold(&sum) {
                    return Err(format!("what is said of group {group} of level {level} is not so"));
                }
                let Some(above) = self.levels.get(level + 1) else { continue };
                let bit = |class: usize| above.members[group / 64].serving(class) >> (group % 64) & 1 == 1;
                let unseen = |class: &usize| here.members[group].serving(*class) != 0 && !bit(*class);
                if bit(0) != (live != 0) || (0..super::classes::CLASSES).any(|class| unseen(&class)) {
                    return Err(format!("what group {group} of level {level} is said to serve is not so"));
                }
            }
        }
        if self.entries().len() == self.len { Ok(()) } else { Err("the plane miscounts".to_owned()) }
    }
}
