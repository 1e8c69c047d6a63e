//! Searches the entries of one cell for the first accepted node of the first leaf that has one.

use std::ops::ControlFlow;

use super::cell::{Cell, Entries};
use super::entry::{RankTag, UpperBounds, suffices};
use super::hints::is_before;
use super::key::Key;
use super::ranks::{Rank, Ranks};
use super::sorted::Runs;
use super::tree::Direction;
use super::{Marks, Slot, Visits};

/// The parameters of a search, and its cost so far.
pub(super) struct Search<'a, K> {
    pub(super) direction: Direction,
    pub(super) asked: UpperBounds<K>,
    /// The class of what is asked.
    pub(super) class: usize,
    pub(super) ranks: &'a Ranks,
    /// By rank.
    pub(super) marks: &'a [Marks],
    /// No entry before this one is accepted.
    pub(super) begin: Option<(K, Rank)>,
    pub(super) visits: &'a mut Visits,
}

/// The entry that a search found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<K> {
    pub(super) key: K,
    pub(super) rank: Rank,
    pub(super) slot: Slot,
}

impl<K: Key> Search<'_, K> {
    /// Returns the first accepted entry of a cell.
    #[inline]
    pub(super) fn in_cell(
        &mut self,
        cell: &Cell<K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        self.visits.vertices += 1;
        match (cell.offered(&self.asked)?, self.direction) {
            (Entries::Block(keys, tags), Direction::Smallest) => self.smallest(keys, tags, accept),
            (Entries::Block(keys, tags), Direction::Greatest) => self.greatest(keys, tags, accept),
            (Entries::Runs(runs), Direction::Smallest) => self.smallest_of_many(runs, accept),
            (Entries::Runs(runs), Direction::Greatest) => self.greatest_of_many(runs, accept),
        }
    }

    #[inline]
    fn try_entry(
        &mut self,
        key: K,
        rank: Rank,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> ControlFlow<Found<K>> {
        let is_too_early = self.begin.is_some_and(|begin| is_before(self.direction, (key, rank), begin));
        let is_marked = self.asked.marks == Marks::NONE
            || self.marks.get(rank as usize).is_some_and(|marks| marks.hold(self.asked.marks));
        if is_too_early || !is_marked {
            return ControlFlow::Continue(());
        }
        let slot = self.ranks.slot(rank);
        if accept(slot, self.visits) {
            return ControlFlow::Break(Found { key, rank, slot });
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn smallest(
        &mut self,
        keys: &[K],
        tags: &[RankTag],
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        let asked = self.asked;
        for (&key, &tag) in keys.iter().zip(tags).filter(|&(&key, &tag)| suffices(key, tag, &asked)) {
            if let ControlFlow::Break(found) = self.try_entry(key, tag.rank(), accept) {
                return Some(found);
            }
        }
        None
    }

    /// Returns the first accepted entry of a leaf, or of a part of it.
    #[inline]
    fn of_leaf(
        &mut self,
        key: K,
        tags: &[RankTag],
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        let asked = self.asked;
        for &tag in tags.iter().filter(|&&tag| suffices(key, tag, &asked)) {
            if let ControlFlow::Break(found) = self.try_entry(key, tag.rank(), accept) {
                return Some(found);
            }
        }
        None
    }

    #[inline]
    fn greatest(
        &mut self,
        keys: &[K],
        tags: &[RankTag],
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        let mut to = keys.len();
        while let Some(last) = keys[..to].iter().rposition(|key| key.reaches(self.asked.high)) {
            // The leaf of this key, from its first node on.
            let leaf = first_of_leaf(&keys[..=last]);
            let found = self.of_leaf(keys[last], &tags[leaf..=last], accept);
            if found.is_some() {
                return found;
            }
            to = leaf;
        }
        None
    }

    fn smallest_of_many(
        &mut self,
        runs: &Runs<K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        for (run, said) in runs.iter() {
            if !said.may_hold(&self.asked) {
                continue;
            }
            self.visits.vertices += 1;
            let found = self.smallest(run.keys(), run.tags(), accept);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The same as [`greatest`](Self::greatest), where a leaf may span several runs.
    fn greatest_of_many(
        &mut self,
        runs: &Runs<K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Found<K>> {
        let mut at = runs.count();
        let mut to = 0;
        loop {
            if to == 0 {
                at = at.checked_sub(1)?;
                to = runs.get(at).0.len();
            }
            let (run, said) = runs.get(at);
            let may_hold = said.may_hold(&self.asked);
            let high = self.asked.high;
            let reaching = || run.keys()[..to].iter().rposition(|key| key.reaches(high));
            let Some(last) = may_hold.then(reaching).flatten() else {
                to = 0;
                continue;
            };
            self.visits.vertices += 1;
            let key = run.keys()[last];
            let first = runs.first_with(key);
            let leaf = runs.get(first).0.keys().partition_point(|&k| k < key);
            for number in first..=at {
                let (run, said) = runs.get(number);
                let from = if number == first { leaf } else { 0 };
                let to = if number == at { last + 1 } else { run.len() };
                if said.may_hold(&self.asked)
                    && let Some(found) = self.of_leaf(key, &run.tags()[from..to], accept)
                {
                    return Some(found);
                }
            }
            (at, to) = (first, leaf);
        }
    }
}

/// Returns the index at which the leaf of the last of `keys` begins.
#[inline]
fn first_of_leaf<K: Key>(keys: &[K]) -> usize {
    let last = keys[keys.len() - 1];
    keys.iter().rposition(|key| *key != last).map_or(0, |before| before + 1)
}
