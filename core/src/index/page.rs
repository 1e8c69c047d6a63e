//! What the bucket tree is made of: runs of nodes, and pages over runs or other pages.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;

/// A page or a run by its place in the tree's.
pub(super) type PageId = u32;
pub(super) const NO_PAGE: PageId = PageId::MAX;

/// Entries of one run, and children of one page.
pub(super) const ROOM: usize = 64;
/// Keys that are counted in one go.
const STRIDE: usize = 8;
const _: () = assert!(ROOM == STRIDE * STRIDE, "two goes find any place");

/// Entries in order of key, then of rank. Beyond the last stand keys above all others.
#[derive(Clone, Debug)]
pub(super) struct Sorted<K> {
    pub(super) len: u8,
    /// Every eighth key: a search reads these and one stride, not a line of memory per stride.
    samples: [K; STRIDE],
    pub(super) keys: [K; ROOM],
    pub(super) ranks: [Rank; ROOM],
}

impl<K: Key> Sorted<K> {
    const EMPTY: Self =
        Self { len: 0, samples: [K::ABOVE_ALL; STRIDE], keys: [K::ABOVE_ALL; ROOM], ranks: [0; ROOM] };

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// How many keys are below `key`. Two rounds of eight comparisons that wait for nothing: a
    /// binary search would wait for each of its six.
    #[inline]
    pub(super) fn below(&self, key: K) -> usize {
        let mut stride = 0;
        for sample in &self.samples[1..] {
            stride += usize::from(*sample < key);
        }
        let mut below = stride * STRIDE;
        let keys: &[K; STRIDE] =
            self.keys[below..below + STRIDE].try_into().expect("the last stride ends with the keys");
        for other in keys {
            below += usize::from(*other < key);
        }
        below
    }

    /// The first entry from `from` on whose key reaches `lower`.
    #[inline]
    pub(super) fn next_reaching(&self, from: usize, lower: K) -> Option<usize> {
        let skipped = self.keys[..self.len()].get(from..)?.iter().position(|key| key.reaches(lower))?;
        Some(from + skipped)
    }

    /// The last entry before `to` whose key reaches `lower`.
    #[inline]
    pub(super) fn last_reaching(&self, to: usize, lower: K) -> Option<usize> {
        self.keys[..to].iter().rposition(|key| key.reaches(lower))
    }

    /// How many entries are below that of `key` and `rank`.
    #[inline]
    pub(super) fn place(&self, key: K, rank: Rank) -> usize {
        let below = self.below(key);
        if below == ROOM || self.keys[below] != key || self.ranks[below] >= rank {
            return below;
        }
        self.place_among_equals(below, key, rank)
    }

    /// Where many nodes share one coordinate.
    #[cold]
    fn place_among_equals(&self, below: usize, key: K, rank: Rank) -> usize {
        let (mut from, mut to) = (below, self.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            if (self.keys[middle], self.ranks[middle]) < (key, rank) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    #[inline]
    fn insert(&mut self, at: usize, key: K, rank: Rank) {
        let len = self.len();
        self.keys.copy_within(at..len, at + 1);
        self.ranks.copy_within(at..len, at + 1);
        (self.keys[at], self.ranks[at]) = (key, rank);
        self.len += 1;
        self.sample(at);
    }

    /// The samples follow the keys from `at` on.
    #[inline]
    fn sample(&mut self, at: usize) {
        for stride in at / STRIDE..STRIDE {
            self.samples[stride] = self.keys[stride * STRIDE];
        }
    }

    /// Exchanges the first entry.
    pub(super) fn set_first(&mut self, key: K, rank: Rank) {
        (self.keys[0], self.ranks[0]) = (key, rank);
        self.samples[0] = key;
    }

    #[inline]
    fn remove(&mut self, at: usize) {
        let len = self.len();
        self.keys.copy_within(at + 1..len, at);
        self.ranks.copy_within(at + 1..len, at);
        self.keys[len - 1] = K::ABOVE_ALL;
        self.len -= 1;
        self.sample(at);
    }

    fn truncate(&mut self, len: usize) {
        self.keys[len..].fill(K::ABOVE_ALL);
        self.len = len as u8;
        self.sample(0);
    }
}

/// Where a run or a page hangs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) parent: PageId,
    /// The place in the parent.
    pub(super) at: u8,
}

/// Some nodes in order.
#[derive(Clone, Debug)]
pub(super) struct Run<K> {
    pub(super) link: Link,
    pub(super) nodes: Sorted<K>,
}

impl<K: Key> Run<K> {
    pub(super) fn new(link: Link) -> Self {
        Self { link, nodes: Sorted::EMPTY }
    }

    #[inline]
    pub(super) fn insert(&mut self, at: usize, key: K, rank: Rank) {
        self.nodes.insert(at, key, rank);
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) {
        self.nodes.remove(at);
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
    }

    /// Per field the largest key.
    pub(super) fn high(&self) -> K {
        self.nodes.keys[..self.nodes.len()].iter().fold(K::default(), |high, key| high.highest(*key))
    }
}

/// Some runs, or some pages, in order, with summaries of what is below each.
#[derive(Clone, Debug)]
pub(super) struct Page<K> {
    pub(super) link: Link,
    /// Whether its children are runs.
    pub(super) over_runs: bool,
    /// The children of which `highs` may say more than what they hold.
    pub(super) stale: u64,
    /// The children of which `marks` may say more.
    pub(super) stale_marks: u64,
    /// An entry that none below the child comes before.
    pub(super) firsts: Sorted<K>,
    /// Per field at least the largest key below.
    pub(super) highs: [K; ROOM],
    /// At least the marks below.
    pub(super) marks: [Marks; ROOM],
    pub(super) children: [PageId; ROOM],
}

/// What a page says of one child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child<K> {
    pub(super) first: (K, Rank),
    pub(super) high: K,
    pub(super) marks: Marks,
    pub(super) id: PageId,
}

/// The bits of `word` from `at` on moved up by one, zero put at `at`.
fn open_bit(word: u64, at: usize) -> u64 {
    let low = word & ((1 << at) - 1);
    low | (word >> at).checked_shl(at as u32 + 1).unwrap_or(0)
}

/// The bits of `word` above `at` moved down by one, over the bit at `at`.
fn close_bit(word: u64, at: usize) -> u64 {
    let low = word & ((1 << at) - 1);
    low | (word >> at >> 1) << at
}

impl<K: Key> Page<K> {
    pub(super) fn new(link: Link, over_runs: bool) -> Self {
        Self {
            link,
            over_runs,
            stale: 0,
            stale_marks: 0,
            firsts: Sorted::EMPTY,
            highs: [K::default(); ROOM],
            marks: [Marks::NONE; ROOM],
            children: [0; ROOM],
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.firsts.len()
    }

    /// The child below which the entry of `key` and `rank` stands or belongs.
    #[inline]
    pub(super) fn child_for(&self, key: K, rank: Rank) -> usize {
        let before = self.firsts.place(key, rank);
        // An entry that is the first of a child belongs to that child.
        let own = before < ROOM && (self.firsts.keys[before], self.firsts.ranks[before]) == (key, rank);
        (before + usize::from(own)).saturating_sub(1)
    }

    #[inline]
    fn may_hold(&self, at: usize, lower: K, marks: Marks) -> bool {
        self.highs[at].reaches(lower) && self.marks[at].hold(marks)
    }

    /// The first child of `from..to` below which a node may reach `lower` and have the marks.
    #[inline]
    pub(super) fn next_child(&self, from: usize, to: usize, lower: K, marks: Marks) -> Option<usize> {
        let to = to.min(ROOM);
        if marks == Marks::NONE {
            let skipped = self.highs.get(from..to)?.iter().position(|high| high.reaches(lower))?;
            return Some(from + skipped);
        }
        (from..to).find(|&at| self.may_hold(at, lower, marks))
    }

    /// The last such child.
    #[inline]
    pub(super) fn last_child(&self, from: usize, to: usize, lower: K, marks: Marks) -> Option<usize> {
        let to = to.min(ROOM);
        if marks == Marks::NONE {
            let at = self.highs.get(from..to)?.iter().rposition(|high| high.reaches(lower))?;
            return Some(from + at);
        }
        (from..to).rfind(|&at| self.may_hold(at, lower, marks))
    }

    /// The first child begins no later than here.
    #[inline]
    pub(super) fn begin_at(&mut self, key: K, rank: Rank) {
        if (key, rank) < (self.firsts.keys[0], self.firsts.ranks[0]) {
            self.firsts.set_first(key, rank);
        }
    }

    pub(super) fn child(&self, at: usize) -> Child<K> {
        Child {
            first: (self.firsts.keys[at], self.firsts.ranks[at]),
            high: self.highs[at],
            marks: self.marks[at],
            id: self.children[at],
        }
    }

    pub(super) fn insert(&mut self, at: usize, child: Child<K>) {
        let len = self.len();
        self.firsts.insert(at, child.first.0, child.first.1);
        self.highs.copy_within(at..len, at + 1);
        self.marks.copy_within(at..len, at + 1);
        self.children.copy_within(at..len, at + 1);
        (self.highs[at], self.marks[at], self.children[at]) = (child.high, child.marks, child.id);
        self.stale = open_bit(self.stale, at);
        self.stale_marks = open_bit(self.stale_marks, at);
    }

    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len();
        self.firsts.remove(at);
        self.highs.copy_within(at + 1..len, at);
        self.marks.copy_within(at + 1..len, at);
        self.children.copy_within(at + 1..len, at);
        self.stale = close_bit(self.stale, at);
        self.stale_marks = close_bit(self.stale_marks, at);
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.firsts.truncate(len);
        self.stale &= (1 << len) - 1;
        self.stale_marks &= (1 << len) - 1;
    }

    /// Per field the largest, and the marks, of all children.
    pub(super) fn sum(&self) -> (K, Marks) {
        let high = self.highs[..self.len()].iter().fold(K::default(), |high, other| high.highest(*other));
        (high, self.marks[..self.len()].iter().fold(Marks::NONE, |marks, other| marks.or(*other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn children_come_and_go_as_in_a_list(
            steps in proptest::collection::vec((any::<bool>(), 0u64..20, 0u32..1000), 0..300),
        ) {
            let link = Link { parent: NO_PAGE, at: 0 };
            let (mut page, mut list) = (Page::<u64>::new(link, true), Vec::new());
            for (insert, key, rank) in steps {
                let at = page.firsts.place(key, rank);
                prop_assert_eq!(at, list.partition_point(|&entry| entry < (key, rank)));
                prop_assert_eq!(page.firsts.below(key), list.partition_point(|&(other, _)| other < key));
                let there = list.get(at) == Some(&(key, rank));
                if insert && !there && list.len() < ROOM {
                    page.insert(at, Child { first: (key, rank), high: key, marks: Marks::NONE, id: rank });
                    page.stale |= u64::from(rank % 2) << at;
                    list.insert(at, (key, rank));
                } else if at < list.len() {
                    page.remove(at);
                    list.remove(at);
                }
                let held: Vec<_> = (0..page.len()).map(|at| page.child(at)).collect();
                prop_assert_eq!(held.iter().map(|child| child.first).collect::<Vec<_>>(), list.clone());
                for (at, child) in held.iter().enumerate() {
                    prop_assert_eq!((child.high, child.id), child.first);
                    prop_assert_eq!(page.stale >> at & 1, u64::from(child.id % 2));
                }
                prop_assert_eq!(page.stale.checked_shr(list.len() as u32).unwrap_or(0), 0);
            }
        }
    }
}
