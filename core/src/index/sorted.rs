//! Runs of nodes in order of key, then of registration. Cells contain these runs.

use super::Marks;
use super::entry::{RankTag, UpperBounds};
use super::key::Key;

/// The maximum number of entries of one run.
pub(super) const ROOM: usize = 32;
/// The number of keys counted at once: those of one cache line.
const STRIDE: usize = 8;

/// Entries in order. Unused keys are greater than all others.
#[derive(Clone, Debug)]
pub(super) struct Block<K> {
    len: u8,
    keys: [K; ROOM],
    tags: [RankTag; ROOM],
}

impl<K: Key> Block<K> {
    pub(super) fn new(keys: &[K], tags: &[RankTag]) -> Self {
        let mut run =
            Self { len: keys.len() as u8, keys: [K::ABOVE_ALL; ROOM], tags: [RankTag::default(); ROOM] };
        run.keys[..keys.len()].copy_from_slice(keys);
        run.tags[..tags.len()].copy_from_slice(tags);
        run
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    pub(super) fn keys(&self) -> &[K] {
        &self.keys[..self.len()]
    }

    #[inline]
    pub(super) fn tags(&self) -> &[RankTag] {
        &self.tags[..self.len()]
    }

    #[inline]
    fn entry(&self, at: usize) -> (K, RankTag) {
        (self.keys[at], self.tags[at])
    }

    /// Returns the number of entries below that of `key` and `tag`.
    ///
    /// It takes two rounds of independent comparisons. A binary search would have to wait for each of its
    /// five steps.
    #[inline]
    fn place(&self, key: K, tag: RankTag) -> usize {
        let mut stride = 0;
        for at in 1..ROOM / STRIDE {
            stride += usize::from(self.keys[at * STRIDE] < key);
        }
        let first = stride * STRIDE;
        let mut below = stride * STRIDE;
        for at in first..first + STRIDE {
            below += usize::from(self.keys[at & (ROOM - 1)] < key);
        }
        if below == ROOM || self.entry(below) >= (key, tag) {
            return below;
        }
        let mut from = below;
        let mut to = self.len();
        while from < to {
            let middle = usize::midpoint(from, to);
            if self.entry(middle) < (key, tag) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    pub(super) fn insert(&mut self, key: K, tag: RankTag) {
        let at = self.place(key, tag);
        let len = self.len();
        self.keys.copy_within(at..len, at + 1);
        self.tags.copy_within(at..len, at + 1);
        (self.keys[at], self.tags[at]) = (key, tag);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: K, tag: RankTag) -> bool {
        let at = self.place(key, tag);
        let len = self.len();
        if at >= len || self.entry(at) != (key, tag) {
            return false;
        }
        self.keys.copy_within(at + 1..len, at);
        self.tags.copy_within(at + 1..len, at);
        self.keys[len - 1] = K::ABOVE_ALL;
        self.len -= 1;
        true
    }

    /// Splits off the upper half.
    fn cut(&mut self) -> Self {
        let half = self.len() / 2;
        let len = self.len();
        let upper = Self::new(&self.keys[half..len], &self.tags[half..len]);
        self.keys[half..].fill(K::ABOVE_ALL);
        self.len = half as u8;
        upper
    }
}

/// Many entries in ordered runs, with the upper bounds of each run.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs<K> {
    runs: Vec<Box<Block<K>>>,
    /// The first entry of each run, for finding the run of an entry.
    firsts: Vec<(K, RankTag)>,
    said: Vec<UpperBounds<K>>,
    /// Per run, whether the maxima may be too high, and whether the marks may be too many.
    stale: Vec<[bool; 2]>,
}

impl<K: Key> Runs<K> {
    pub(super) fn of(run: Block<K>, marks: Marks) -> Self {
        let firsts = vec![run.entry(0)];
        let said = vec![UpperBounds::of_all(run.keys(), run.tags()).marked(marks)];
        Self { runs: vec![Box::new(run)], firsts, said, stale: vec![[true; 2]] }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Block<K>, &UpperBounds<K>)> {
        self.runs.iter().map(|run| &**run).zip(&self.said)
    }

    /// Returns the index of the run to which an entry belongs.
    fn run_for(&self, key: K, tag: RankTag) -> usize {
        self.firsts.partition_point(|&first| first <= (key, tag)).saturating_sub(1)
    }

    /// Returns the run to which an entry belongs.
    pub(super) fn holding(&self, key: K, tag: RankTag) -> &Block<K> {
        &self.runs[self.run_for(key, tag)]
    }

    pub(super) fn insert(&mut self, key: K, tag: RankTag, marks: Marks, room: usize) {
        let mut at = self.run_for(key, tag);
        if self.runs[at].len() >= room {
            let upper = self.runs[at].cut();
            self.said.insert(at + 1, self.said[at]);
            self.stale[at] = [true; 2];
            self.stale.insert(at + 1, [true; 2]);
            self.firsts.insert(at + 1, upper.entry(0));
            self.runs.insert(at + 1, Box::new(upper));
            at = self.run_for(key, tag);
        }
        self.runs[at].insert(key, tag);
        self.firsts[at] = self.firsts[at].min((key, tag));
        self.said[at] = self.said[at].or(UpperBounds::of(key, tag, marks));
    }

    pub(super) fn remove(&mut self, key: K, tag: RankTag) -> bool {
        let at = self.run_for(key, tag);
        let removed = self.runs[at].remove(key, tag);
        self.stale[at] =
            [self.stale[at][0] || self.said[at].touches(&UpperBounds::of(key, tag, Marks::NONE)), true];
        if self.runs[at].len() > 0 {
            self.firsts[at] = self.runs[at].entry(0);
        } else {
            self.stale.remove(at);
            self.runs.remove(at);
            self.firsts.remove(at);
            self.said.remove(at);
        }
        removed
    }

    pub(super) fn mark(&mut self, key: K, tag: RankTag, marks: Marks) {
        let at = self.run_for(key, tag);
        self.said[at].marks = self.said[at].marks.or(marks);
        self.stale[at][1] = true;
    }

    /// Returns the first run that may contain `key`. The runs before it contain only smaller keys.
    pub(super) fn first_with(&self, key: K) -> usize {
        // The last run that begins before the key may end with it.
        let at = self.firsts.partition_point(|first| first.0 < key).saturating_sub(1);
        let run = &self.runs[at];
        at + usize::from(run.entry(run.len() - 1).0 < key)
    }

    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Returns a run and its upper bounds.
    pub(super) fn get(&self, at: usize) -> (&Block<K>, &UpperBounds<K>) {
        (&self.runs[at], &self.said[at])
    }

    /// Returns the only run, if there is exactly one.
    pub(super) fn only(&self) -> Option<&Block<K>> {
        if let [only] = &self.runs[..] { Some(only) } else { None }
    }

    /// Recomputes the bounds of the runs. Marks are recomputed only if those of the nodes are given.
    pub(super) fn settle(&mut self, of: Option<&[Marks]>) {
        for (at, [stale, stale_marks]) in self.stale.iter_mut().enumerate() {
            if *stale {
                let run = &self.runs[at];
                self.said[at] = UpperBounds::of_all(run.keys(), run.tags()).marked(self.said[at].marks);
                *stale = false;
            }
            if let Some(of) = of
                && *stale_marks
            {
                self.said[at].marks = sum_of_marks(of, self.runs[at].tags());
                *stale_marks = false;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Box<Block<K>>>()
            + self.runs.len() * size_of::<Block<K>>()
            + self.firsts.capacity() * size_of::<(K, RankTag)>()
            + self.said.capacity() * size_of::<UpperBounds<K>>()
            + self.stale.capacity() * size_of::<[bool; 2]>()
    }
}

/// Returns the union of the marks of some nodes.
pub(super) fn sum_of_marks(of: &[Marks], tags: &[RankTag]) -> Marks {
    let marks = |tag: &RankTag| of.get(tag.rank() as usize).copied().unwrap_or(Marks::NONE);
    if of.is_empty() { Marks::NONE } else { tags.iter().fold(Marks::NONE, |all, tag| all.or(marks(tag))) }
}
