//! One stratum of the bucket tree: nodes that are alike in the later dimensions, by the first two.
//!
//! The first two dimensions say in which [cell](super::grid) a node stands, without a search; the
//! few nodes of a cell stand in order. Above the cells stands a fixed tree of groups of sixty-four:
//! a bit per member that holds a node, and per member the maximum in every dimension and the marks.
//!
//! Maxima and marks are *at least* what is below. They are raised when a node comes and left when
//! one goes; a search that entered something in vain puts them right, so that each departure costs
//! at most one such visit per level.

use super::grid::Grid;
use super::hints::is_before;
use super::key::Key;
use super::level::Level;
use super::ranks::{Rank, Ranks};
use super::sorted::{Cell, Run, Runs, high, sum_of_marks};
use super::tree::Direction;
use super::{Marks, Slot, Visits};
use crate::planted::{PlantedBug, is_planted};

/// A node that a search found: the one to beat in the next stratum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<K> {
    pub(super) key: K,
    pub(super) rank: Rank,
    pub(super) slot: Slot,
}

/// What a search looks for, and what it has found and cost so far.
pub(super) struct Search<'a, K> {
    pub(super) direction: Direction,
    pub(super) lower: K,
    pub(super) wanted: Marks,
    pub(super) ranks: &'a Ranks,
    /// By rank.
    pub(super) marks: &'a [Marks],
    /// No entry before this one is accepted.
    pub(super) begin: Option<(K, Rank)>,
    pub(super) best: Option<Found<K>>,
    pub(super) visits: &'a mut Visits,
}

impl<K: Key> Search<'_, K> {
    #[inline]
    fn accepted(&mut self, key: K, rank: Rank, accept: &mut impl FnMut(Slot, &mut Visits) -> bool) -> bool {
        if self.wanted != Marks::NONE
            && !self.marks.get(rank as usize).is_some_and(|marks| marks.hold(self.wanted))
        {
            return false;
        }
        let slot = self.ranks.slot(rank);
        let accepted = accept(slot, self.visits);
        if accepted {
            self.best = Some(Found { key, rank, slot });
        }
        accepted
    }

    /// Whether an entry is known not to be accepted.
    #[inline]
    fn is_too_early(&self, key: K, rank: Rank) -> bool {
        self.begin.is_some_and(|begin| is_before(self.direction, (key, rank), begin))
    }

    /// Whether an entry, and all after it in the direction of the search, come after the best.
    #[inline]
    fn is_beaten(&self, key: K, rank: Rank) -> bool {
        self.best.is_some_and(|best| !is_before(self.direction, (key, rank), (best.key, best.rank)))
    }
}

/// Nodes by the cell of their first two coordinates.
pub(super) struct Stratum<K> {
    /// Entries at which a run is cut: all that there is room for, but in tests.
    room: usize,
    grid: Grid,
    cells: Vec<Cell<K>>,
    /// The lowest says of each cell, the next of each group of sixty-four cells, and so on up to one
    /// group.
    levels: Vec<Level<K>>,
    len: usize,
}

impl<K: Key> Stratum<K> {
    /// An empty one whose runs are cut at `room`.
    pub(super) fn new(room: usize) -> Self {
        let grid = Grid::over((0, 0), 0);
        Self { room, grid, cells: vec![Cell::empty()], levels: vec![Level::new(1)], len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Per dimension at least the largest, and the marks at least, of all nodes.
    pub(super) fn sum(&mut self) -> (K, Marks) {
        let top = self.levels.len() - 1;
        let mut stale = self.levels[top].stale(0);
        while stale != 0 {
            self.settle(top, stale.trailing_zeros() as usize, None);
            stale &= stale - 1;
        }
        self.levels[top].sum(0)
    }

    /// Puts an entry in.
    #[inline]
    pub(super) fn insert(&mut self, key: K, rank: Rank, marks: Marks, of: &[Marks]) {
        self.len += 1;
        if !self.grid.covers(key) || self.grid.is_coarse_for(self.len) {
            self.lay_out(key, of);
        }
        let cell = self.grid.cell(key);
        self.cells[cell].insert(key, rank, marks, self.room);
        self.raise(cell, key, marks);
    }

    /// Lays a grid out that covers all entries and `key`: O(entries), when there are twice as many as
    /// at the last time, or one is larger than all before.
    #[cold]
    fn lay_out(&mut self, key: K, of: &[Marks]) {
        let entries = self.entries();
        let highest = entries.iter().fold(key, |high, (key, _)| high.highest(*key)).leading();
        self.grid = Grid::over(highest, self.len);
        self.cells.clear();
        self.cells.resize(self.grid.cells(), Cell::empty());
        self.levels.clear();
        let mut members = self.grid.cells();
        loop {
            self.levels.push(Level::new(members));
            if members <= 64 {
                break;
            }
            members = members.div_ceil(64);
        }
        for (key, rank) in entries {
            let cell = self.grid.cell(key);
            let marks = of.get(rank as usize).copied().unwrap_or(Marks::NONE);
            self.cells[cell].insert(key, rank, marks, self.room);
            self.raise(cell, key, marks);
        }
    }

    /// The way up learns that a node came to `cell`.
    #[inline]
    fn raise(&mut self, cell: usize, key: K, marks: Marks) {
        let mut at = cell;
        for level in &mut self.levels {
            if level.covers(at, key, marks) {
                return;
            }
            if !level.is_live(at) || !is_planted(PlantedBug::IndexStaleMaximum) {
                level.raise(at, key, marks);
            }
            at /= 64;
        }
    }

    /// Takes an entry out; whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, key: K, rank: Rank) -> bool {
        let cell = self.grid.cell(key);
        if !self.cells[cell].remove(key, rank, self.room) {
            return false;
        }
        self.len -= 1;
        let (mut at, mut emptied) = (cell, self.cells[cell].is_empty());
        for level in &mut self.levels {
            if !emptied {
                level.may_sink(at, key);
                break;
            }
            emptied = level.empty(at);
            at /= 64;
        }
        true
    }

    /// An entry that stands here has other marks.
    pub(super) fn mark(&mut self, key: K, rank: Rank, marks: Marks) {
        let cell = self.grid.cell(key);
        if let Cell::Many(runs) = &mut self.cells[cell] {
            runs.mark(key, rank, marks);
        }
        let mut at = cell;
        for level in &mut self.levels {
            level.raise(at, key, marks);
            level.marks_may_sink(at);
            at /= 64;
        }
    }

    /// Finds the first accepted node of the first leaf that holds one, if it comes before the best
    /// that the search has.
    #[inline]
    pub(super) fn search(
        &mut self,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) {
        if self.len == 0 || !self.grid.covers(search.lower) {
            return;
        }
        let mut cells = self.grid.cell(search.lower)..self.grid.cells();
        if let Some((key, _)) = search.begin {
            match (self.grid.covers(key), search.direction) {
                (true, Direction::Smallest) => cells.start = cells.start.max(self.grid.cell(key)),
                (true, Direction::Greatest) => cells.end = self.grid.cell(key) + 1,
                // Of a stratum that does not reach so far, each entry is looked at.
                (false, _) => {}
            }
        }
        if let Some(best) = &search.best
            && self.grid.covers(best.key)
        {
            let cell = self.grid.cell(best.key);
            match search.direction {
                Direction::Smallest => cells.end = cells.end.min(cell + 1),
                Direction::Greatest => cells.start = cells.start.max(cell),
            }
        }
        if cells.is_empty() {
            return;
        }
        self.search_below(self.levels.len() - 1, 0, &cells, search, accept);
    }

    /// Searches group `group` of level `level`, within `cells`; whether something was found.
    fn search_below(
        &mut self,
        level: usize,
        group: usize,
        cells: &std::ops::Range<usize>,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> bool {
        search.visits.vertices += 1;
        let first = (cells.start >> (6 * level)).saturating_sub(group * 64);
        let after = ((cells.end - 1) >> (6 * level)) + 1 - (group * 64);
        let mut open = self.levels[level].live(group) & u64::MAX.checked_shl(first as u32).unwrap_or(0);
        if after < 64 {
            open &= (1 << after) - 1;
        }
        while open != 0 {
            let bit = match search.direction {
                Direction::Smallest => open.trailing_zeros(),
                Direction::Greatest => 63 - open.leading_zeros(),
            };
            open &= !(1 << bit);
            let at = group * 64 + bit as usize;
            if !self.levels[level].may_hold(at, search.lower, search.wanted) {
                continue;
            }
            let found = if level == 0 {
                self.search_cell(at, search, accept)
            } else {
                self.search_below(level - 1, at, cells, search, accept)
            };
            if found {
                return true;
            }
            self.settle(level, at, (search.wanted != Marks::NONE).then_some(search.marks));
        }
        false
    }

    /// Puts right what is said of a member that was searched in vain.
    #[inline]
    fn settle(&mut self, level: usize, at: usize, marks: Option<&[Marks]>) {
        let (stale, stale_marks) = self.levels[level].is_stale(at);
        if stale || marks.is_some() && stale_marks {
            self.settle_stale(level, at, marks);
        }
    }

    fn settle_stale(&mut self, level: usize, at: usize, of: Option<&[Marks]>) {
        let (high, marks) = if level == 0 {
            if let Cell::Many(runs) = &mut self.cells[at] {
                runs.settle(of);
            }
            self.sum_of_cell(at, of.unwrap_or(&[]))
        } else {
            self.levels[level - 1].sum(at)
        };
        let sank = self.levels[level].settle(at, high, of.map(|_| marks));
        if let Some(above) = self.levels.get_mut(level + 1) {
            above.below_sank(at / 64, sank);
        }
    }

    /// Per dimension the largest coordinate in a cell, and its marks.
    fn sum_of_cell(&self, cell: usize, of: &[Marks]) -> (K, Marks) {
        match self.cells[cell].run() {
            Ok((keys, ranks)) => (high(keys), sum_of_marks(of, ranks)),
            Err(runs) => runs
                .iter()
                .fold((K::ZERO, Marks::NONE), |sum, (_, high, marks)| (sum.0.highest(high), sum.1.or(marks))),
        }
    }

    #[inline]
    fn search_cell(
        &self,
        cell: usize,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> bool {
        search.visits.vertices += 1;
        match (self.cells[cell].run(), search.direction) {
            (Ok((keys, ranks)), Direction::Smallest) => smallest(keys, ranks, search, accept),
            (Ok((keys, ranks)), Direction::Greatest) => greatest(keys, ranks, search, accept),
            (Err(runs), Direction::Smallest) => smallest_of_many(runs, search, accept),
            (Err(runs), Direction::Greatest) => greatest_of_many(runs, search, accept),
        }
    }

    /// All entries in order.
    pub(super) fn entries(&self) -> Vec<(K, Rank)> {
        self.cells.iter().flat_map(Cell::entries).collect()
    }

    /// Whether an entry stands in its cell.
    pub(super) fn holds(&self, key: K, rank: Rank) -> bool {
        self.grid.covers(key) && self.cells[self.grid.cell(key)].entries().contains(&(key, rank))
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
            if self.levels[0].is_live(at) == cell.is_empty() {
                return Err(format!("whether cell {at} holds a node is not as it is said"));
            }
            if cell.is_empty() {
                continue;
            }
            let (high, marks) = self.levels[0].said(at);
            let held = |rank: u32| of.get(rank as usize).copied().unwrap_or(Marks::NONE);
            if cell.entries().iter().any(|&(key, rank)| !high.reaches(key) || !marks.hold(held(rank))) {
                return Err(format!("what is said of cell {at} is not so"));
            }
            let Err(runs) = cell.run() else { continue };
            for (run, high, marks) in runs.iter() {
                let reached = run.keys().iter().all(|&key| high.reaches(key));
                if run.keys().is_empty() || !reached || !marks.hold(sum_of_marks(of, run.ranks())) {
                    return Err(format!("what is said of a run of cell {at} is not so"));
                }
            }
        }
        for level in 1..self.levels.len() {
            let (below, here) = (&self.levels[level - 1], &self.levels[level]);
            for group in 0..self.cells.len().div_ceil(1 << (6 * level)) {
                let ((high, marks), sum) = (here.said(group), below.sum(group));
                let live = below.live(group) != 0;
                if here.is_live(group) != live || live && !(high.reaches(sum.0) && marks.hold(sum.1)) {
                    return Err(format!("what is said of group {group} of level {level} is not so"));
                }
            }
        }
        if self.entries().len() == self.len { Ok(()) } else { Err("a stratum miscounts".to_owned()) }
    }
}

#[inline]
fn smallest<K: Key>(
    keys: &[K],
    ranks: &[Rank],
    search: &mut Search<'_, K>,
    accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
) -> bool {
    for (&key, &rank) in keys.iter().zip(ranks) {
        if key.reaches(search.lower) && !search.is_too_early(key, rank) {
            if search.is_beaten(key, rank) {
                return false;
            }
            if search.accepted(key, rank, accept) {
                return true;
            }
        }
    }
    false
}

#[inline]
fn greatest<K: Key>(
    keys: &[K],
    ranks: &[Rank],
    search: &mut Search<'_, K>,
    accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
) -> bool {
    let mut to = keys.len();
    while let Some(last) = keys[..to].iter().rposition(|key| key.reaches(search.lower)) {
        let key = keys[last];
        // The leaf of this key, from its first node on.
        let leaf = first_of_leaf(&keys[..=last]);
        for &rank in &ranks[leaf..=last] {
            if search.is_too_early(key, rank) {
                continue;
            }
            if search.is_beaten(key, rank) {
                return false;
            }
            if search.accepted(key, rank, accept) {
                return true;
            }
        }
        to = leaf;
    }
    false
}

fn smallest_of_many<K: Key>(
    runs: &Runs<K>,
    search: &mut Search<'_, K>,
    accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
) -> bool {
    runs.iter().any(|(run, high, marks)| {
        high.reaches(search.lower)
            && marks.hold(search.wanted)
            && smallest(run.keys(), run.ranks(), search, accept)
    })
}

/// As [`greatest`], where a leaf may span several runs.
fn greatest_of_many<K: Key>(
    runs: &Runs<K>,
    search: &mut Search<'_, K>,
    accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
) -> bool {
    let (mut at, mut to) = (runs.count(), 0);
    loop {
        if to == 0 {
            if at == 0 {
                return false;
            }
            at -= 1;
            to = runs.get(at).0.len();
        }
        let (run, high, marks): (&Run<K>, K, Marks) = runs.get(at);
        let may_hold = high.reaches(search.lower) && marks.hold(search.wanted);
        let reaching = |run: &Run<K>| run.keys()[..to].iter().rposition(|key| key.reaches(search.lower));
        let Some(last) = may_hold.then(|| reaching(run)).flatten() else {
            to = 0;
            continue;
        };
        let key = run.keys()[last];
        let (mut first, mut leaf) = (at, first_of_leaf(&run.keys()[..=last]));
        while leaf == 0 && first > 0 && runs.get(first - 1).0.keys().last() == Some(&key) {
            first -= 1;
            leaf = first_of_leaf(runs.get(first).0.keys());
        }
        for number in first..=at {
            let (run, _, marks) = runs.get(number);
            let from = if number == first { leaf } else { 0 };
            let to = if number == at { last + 1 } else { run.len() };
            if !marks.hold(search.wanted) {
                continue;
            }
            for &rank in &run.ranks()[from..to] {
                if search.is_too_early(key, rank) {
                    continue;
                }
                if search.is_beaten(key, rank) {
                    return false;
                }
                if search.accepted(key, rank, accept) {
                    return true;
                }
            }
        }
        (at, to) = (first, leaf);
    }
}

/// Where the leaf of the last of `keys` begins among them.
#[inline]
fn first_of_leaf<K: Key>(keys: &[K]) -> usize {
    let last = keys[keys.len() - 1];
    keys.iter().rposition(|key| *key != last).map_or(0, |before| before + 1)
}
