//! The tree of buckets: the nodes in order of coordinate, then of registration, in runs and pages
//! that carry the highest coordinates and the marks below.
//!
//! The patent's tree has a vertex per bucket of every level. Here the buckets are where the keys
//! say they are: a leaf is a stretch of nodes with one key, a bucket of an inner level a stretch of
//! leaves. What is balanced is the number of nodes, so an update costs the same whether all nodes
//! are equal or all different, and whatever the granularity. A search skips whole pages that have
//! nothing in some later dimension: a plain lexicographic walk would enter every cpu bucket for a
//! request that asks for GPUs.
//!
//! The maxima and marks that a page says of a child are *at least* what is below it. They are
//! raised when a node comes and left when one goes; a search that entered a child in vain puts them
//! right, so that each departure costs at most one such visit per level.

use super::key::Key;
use super::page::{Link, NO_PAGE, Page, PageId, ROOM, Run};
use super::ranks::{Rank, Ranks};
use super::{Coordinate, Mark, Marks, Slot, Visits};
use crate::planted::{PlantedBug, is_planted};

/// Which leaves come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The largest coordinate first, dimension by dimension: LeastFit.
    Greatest,
    /// The smallest fitting coordinate first: BestFit.
    Smallest,
}

/// What a search asks of a leaf: at least this coordinate, and these marks below.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The coordinate of the request.
    pub lower: Coordinate,
    /// What a node must be marked with.
    pub marks: Marks,
}

/// What a search looks for, and what it has cost so far.
pub(super) struct Search<'a, K> {
    pub(super) direction: Direction,
    pub(super) lower: K,
    /// No further than this key.
    upper: K,
    /// Searched in vain already: a leaf that begins in an earlier run.
    done: K,
    pub(super) marks: Marks,
    pub(super) ranks: &'a Ranks,
    pub(super) visits: &'a mut Visits,
}

impl<'a, K: Key> Search<'a, K> {
    pub(super) fn new(
        direction: Direction,
        lower: K,
        marks: Marks,
        ranks: &'a Ranks,
        visits: &'a mut Visits,
    ) -> Self {
        Self { direction, lower, upper: K::ABOVE_ALL, done: K::ABOVE_ALL, marks, ranks, visits }
    }
}

/// Where a node stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<K> {
    pub(super) key: K,
    pub(super) run: PageId,
    pub(super) rank: Rank,
}

/// The tree over one attribute order.
pub(super) struct BucketTree<K> {
    /// Entries of a run and children of a page: all that there is room for, but in tests.
    pub(super) room: usize,
    pub(super) runs: Vec<Run<K>>,
    pub(super) free_runs: Vec<PageId>,
    pub(super) pages: Vec<Page<K>>,
    pub(super) free_pages: Vec<PageId>,
    pub(super) root: PageId,
    pub(super) places: Vec<Place<K>>,
    /// By rank; empty while nobody has any.
    pub(super) marks: Vec<Marks>,
}

impl<K: Key> BucketTree<K> {
    /// An empty tree whose runs and pages are cut at `room`.
    pub(super) fn new(room: usize) -> Self {
        assert!((4..=ROOM).contains(&room), "a tree with room for {room}: give 4 to {ROOM}");
        Self {
            room,
            runs: Vec::new(),
            free_runs: Vec::new(),
            pages: vec![Page::new(Link { parent: NO_PAGE, at: 0 }, true)],
            free_pages: Vec::new(),
            root: 0,
            places: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// The key of a node, if it stands in the tree.
    #[inline]
    pub(super) fn key(&self, slot: Slot) -> Option<K> {
        self.places.get(slot as usize).filter(|place| place.run != NO_PAGE).map(|place| place.key)
    }

    pub(super) fn marks(&self, rank: Rank) -> Marks {
        self.marks.get(rank as usize).copied().unwrap_or(Marks::NONE)
    }

    /// Per dimension at least the largest coordinate of any node.
    pub(super) fn highest(&mut self) -> Coordinate {
        let mut stale = self.page(self.root).stale;
        while stale != 0 {
            self.settle(self.root, stale.trailing_zeros() as usize, false);
            stale &= stale - 1;
        }
        self.page(self.root).sum().0.coordinate()
    }

    #[inline]
    pub(super) fn page(&self, id: PageId) -> &Page<K> {
        &self.pages[id as usize]
    }

    #[inline]
    pub(super) fn page_mut(&mut self, id: PageId) -> &mut Page<K> {
        &mut self.pages[id as usize]
    }

    /// Puts a node in.
    ///
    /// # Panics
    /// When it stands in the tree already.
    pub(super) fn insert(&mut self, slot: Slot, ranks: &Ranks, key: K, marks: Marks) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, Place { key: K::default(), run: NO_PAGE, rank: 0 });
        }
        assert!(self.places[slot as usize].run == NO_PAGE, "slot {slot} stands in the index already");
        self.set_marks(ranks.of(slot), marks);
        self.stand(slot, ranks.of(slot), ranks, key, marks);
    }

    fn set_marks(&mut self, rank: Rank, marks: Marks) {
        if self.marks.len() <= rank as usize {
            if marks == Marks::NONE {
                return;
            }
            self.marks.resize(rank as usize + 1, Marks::NONE);
        }
        self.marks[rank as usize] = marks;
    }

    #[inline]
    fn stand(&mut self, slot: Slot, rank: Rank, ranks: &Ranks, key: K, marks: Marks) {
        let mut id = self.root;
        let run = loop {
            let page = &mut self.pages[id as usize];
            if page.len() == 0 {
                break self.first_run((key, rank), marks);
            }
            let at = page.child_for(key, rank);
            if at == 0 {
                page.begin_at(key, rank);
            }
            if !page.highs[at].reaches(key) && !is_planted(PlantedBug::IndexStaleMaximum) {
                page.highs[at] = page.highs[at].highest(key);
            }
            if !page.marks[at].hold(marks) {
                page.marks[at] = page.marks[at].or(marks);
            }
            let child = page.children[at];
            if page.over_runs {
                break child;
            }
            id = child;
        };
        if self.runs[run as usize].nodes.len() >= self.room {
            self.cut_run(run, ranks);
            // One half is left, and what was raised on the way is right for either.
            return self.stand(slot, rank, ranks, key, marks);
        }
        let record = &mut self.runs[run as usize];
        let at = record.nodes.place(key, rank);
        record.insert(at, key, rank);
        self.places[slot as usize] = Place { key, run, rank };
    }

    /// Takes a node out.
    ///
    /// # Panics
    /// When it does not stand in the tree.
    pub(super) fn remove(&mut self, slot: Slot, ranks: &Ranks) {
        self.leave(slot, ranks);
        self.places[slot as usize].run = NO_PAGE;
        self.set_marks(ranks.of(slot), Marks::NONE);
    }

    #[inline]
    fn leave(&mut self, slot: Slot, ranks: &Ranks) -> Rank {
        let Place { key, run, rank } = self.places[slot as usize];
        assert!(run != NO_PAGE, "slot {slot} does not stand in the index");
        let record = &mut self.runs[run as usize];
        let at = record.nodes.place(key, rank);
        assert!(
            at < record.nodes.len() && (record.nodes.keys[at], record.nodes.ranks[at]) == (key, rank),
            "slot {slot} is not where it is said to stand"
        );
        record.remove(at);
        let (len, link) = (record.nodes.len(), record.link);
        let page = &mut self.pages[link.parent as usize];
        let place = usize::from(link.at);
        if page.highs[place].touches(key) {
            page.stale |= 1 << place;
        }
        page.stale_marks |= u64::from(page.marks[place] != Marks::NONE) << place;
        if len * 4 < self.room {
            self.shrunk(run, ranks);
        }
        rank
    }

    /// Moves a node to `key`.
    #[inline]
    pub(super) fn update(&mut self, slot: Slot, ranks: &Ranks, key: K) {
        let rank = self.leave(slot, ranks);
        self.stand(slot, rank, ranks, key, self.marks(rank));
    }

    /// Exchanges the marks of a node.
    pub(super) fn mark(&mut self, slot: Slot, rank: Rank, marks: Marks) {
        self.set_marks(rank, marks);
        let mut link = self.runs[self.places[slot as usize].run as usize].link;
        while link.parent != NO_PAGE {
            let page = self.page_mut(link.parent);
            page.marks[usize::from(link.at)] = page.marks[usize::from(link.at)].or(marks);
            page.stale_marks |= 1 << link.at;
            link = page.link;
        }
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others.
    pub(super) fn assign(&mut self, ranks: &Ranks, mark: Mark, member: &impl Fn(Slot) -> bool) {
        for slot in 0..self.places.len() as Slot {
            if self.places[slot as usize].run != NO_PAGE {
                let rank = ranks.of(slot);
                self.mark(slot, rank, self.marks(rank).with(mark, member(slot)));
            }
        }
    }

    /// The first accepted node of the first leaf that holds one.
    #[inline]
    pub(super) fn first(
        &mut self,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        self.first_below(self.root, search, accept)
    }

    fn first_below(
        &mut self,
        id: PageId,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        search.visits.vertices += 1;
        let page = &self.pages[id as usize];
        // No entry before the one of the request's own coordinate reaches it.
        let (mut from, mut to) = (page.firsts.below(search.lower).saturating_sub(1), page.len());
        loop {
            let page = &self.pages[id as usize];
            let at = match search.direction {
                Direction::Smallest => page.next_child(from, to, search.lower, search.marks)?,
                Direction::Greatest => page.last_child(from, to, search.lower, search.marks)?,
            };
            let child = page.children[at & (ROOM - 1)];
            let found = if page.over_runs {
                self.first_in_run(child, search, accept)
            } else {
                self.first_below(child, search, accept)
            };
            if found.is_some() {
                return found;
            }
            self.settle(id, at, search.marks != Marks::NONE);
            match search.direction {
                Direction::Smallest => from = at + 1,
                Direction::Greatest => to = at,
            }
            if self.page(id).firsts.keys[at] > search.upper {
                return None;
            }
        }
    }

    #[inline]
    fn first_in_run(
        &mut self,
        run: PageId,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        search.visits.vertices += 1;
        match search.direction {
            Direction::Smallest => self.smallest_in_run(run, search, accept),
            Direction::Greatest => self.greatest_in_run(run, search, accept),
        }
    }

    #[inline]
    fn smallest_in_run(
        &self,
        run: PageId,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let nodes = &self.runs[run as usize].nodes;
        let mut from = nodes.below(search.lower);
        while let Some(at) = nodes.next_reaching(from, search.lower) {
            if nodes.keys[at] > search.upper {
                return None;
            }
            let found = self.accepted(nodes.ranks[at], search, accept);
            if found.is_some() {
                return found;
            }
            from = at + 1;
        }
        None
    }

    #[inline]
    fn greatest_in_run(
        &mut self,
        run: PageId,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        let mut to = self.runs[run as usize].nodes.len();
        loop {
            let nodes = &self.runs[run as usize].nodes;
            let last = nodes.last_reaching(to, search.lower)?;
            let key = nodes.keys[last];
            // The leaf of this key, from its first node on.
            let leaf = nodes.below(key);
            if leaf > 0 {
                for at in leaf..=last {
                    let found = self.accepted(nodes.ranks[at], search, accept);
                    if found.is_some() {
                        return found;
                    }
                }
            } else if search.done != key {
                // It may begin in an earlier run, and the node registered first comes first.
                let mut leaf = Search {
                    upper: key,
                    ..Search::new(Direction::Smallest, key, search.marks, search.ranks, search.visits)
                };
                let found = self.first_below(self.root, &mut leaf, accept);
                if found.is_some() {
                    return found;
                }
                search.done = key;
            }
            to = leaf;
        }
    }

    #[inline]
    fn accepted(
        &self,
        rank: Rank,
        search: &mut Search<'_, K>,
        accept: &mut impl FnMut(Slot, &mut Visits) -> bool,
    ) -> Option<Slot> {
        if search.marks != Marks::NONE && !self.marks(rank).hold(search.marks) {
            return None;
        }
        let slot = search.ranks.slot(rank);
        accept(slot, search.visits).then_some(slot)
    }
}
