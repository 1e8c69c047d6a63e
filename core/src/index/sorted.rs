//! Runs of nodes in order of key, then of registration: what a cell holds.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;

/// Most entries of one run.
pub(super) const ROOM: usize = 32;
/// Keys that are counted in one go: those of one cache line.
const STRIDE: usize = 8;

/// Entries in order. Beyond the last stand keys above all others.
#[derive(Clone, Debug)]
pub(super) struct Run<K> {
    len: u8,
    keys: [K; ROOM],
    ranks: [Rank; ROOM],
}

impl<K: Key> Run<K> {
    pub(super) fn new(keys: &[K], ranks: &[Rank]) -> Self {
        let mut run = Self { len: keys.len() as u8, keys: [K::ABOVE_ALL; ROOM], ranks: [0; ROOM] };
        run.keys[..keys.len()].copy_from_slice(keys);
        run.ranks[..ranks.len()].copy_from_slice(ranks);
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
    pub(super) fn ranks(&self) -> &[Rank] {
        &self.ranks[..self.len()]
    }

    #[inline]
    fn entry(&self, at: usize) -> (K, Rank) {
        (self.keys[at], self.ranks[at])
    }

    /// How many entries are below that of `key` and `rank`. Two rounds of comparisons that wait for
    /// nothing: a binary search would wait for each of its five.
    #[inline]
    fn place(&self, key: K, rank: Rank) -> usize {
        let mut stride = 0;
        for at in 1..ROOM / STRIDE {
            stride += usize::from(self.keys[at * STRIDE] < key);
        }
        let (first, mut below) = (stride * STRIDE, stride * STRIDE);
        for at in first..first + STRIDE {
            below += usize::from(self.keys[at & (ROOM - 1)] < key);
        }
        if below == ROOM || self.entry(below) >= (key, rank) {
            return below;
        }
        let (mut from, mut to) = (below, self.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            if self.entry(middle) < (key, rank) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    pub(super) fn insert(&mut self, key: K, rank: Rank) {
        let (at, len) = (self.place(key, rank), self.len());
        self.keys.copy_within(at..len, at + 1);
        self.ranks.copy_within(at..len, at + 1);
        (self.keys[at], self.ranks[at]) = (key, rank);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: K, rank: Rank) -> bool {
        let (at, len) = (self.place(key, rank), self.len());
        if at >= len || self.entry(at) != (key, rank) {
            return false;
        }
        self.keys.copy_within(at + 1..len, at);
        self.ranks.copy_within(at + 1..len, at);
        self.keys[len - 1] = K::ABOVE_ALL;
        self.len -= 1;
        true
    }

    /// Cuts off the upper half.
    fn cut(&mut self) -> Self {
        let (half, len) = (self.len() / 2, self.len());
        let upper = Self::new(&self.keys[half..len], &self.ranks[half..len]);
        self.keys[half..].fill(K::ABOVE_ALL);
        self.len = half as u8;
        upper
    }
}

/// Many entries: runs, each before the next, with what a search asks of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs<K> {
    runs: Vec<Box<Run<K>>>,
    /// The first entry of each run, where its place is looked for.
    firsts: Vec<(K, Rank)>,
    /// Per field at least the largest key of each run.
    highs: Vec<K>,
    /// At least the marks of each run.
    marks: Vec<Marks>,
    /// Whether a run's `highs` may say more than what it holds, and whether its `marks` may.
    stale: Vec<[bool; 2]>,
}

impl<K: Key> Runs<K> {
    pub(super) fn of(run: Run<K>, marks: Marks) -> Self {
        let (firsts, highs) = (vec![run.entry(0)], vec![high(run.keys())]);
        Self { runs: vec![Box::new(run)], firsts, highs, marks: vec![marks], stale: vec![[true; 2]] }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Run<K>, K, Marks)> {
        let summaries = self.highs.iter().zip(&self.marks);
        self.runs.iter().zip(summaries).map(|(run, (&high, &marks))| (&**run, high, marks))
    }

    /// The run in which an entry stands or belongs.
    fn run_for(&self, key: K, rank: Rank) -> usize {
        self.firsts.partition_point(|&first| first <= (key, rank)).saturating_sub(1)
    }

    pub(super) fn insert(&mut self, key: K, rank: Rank, marks: Marks, room: usize) {
        let mut at = self.run_for(key, rank);
        if self.runs[at].len() >= room {
            let upper = self.runs[at].cut();
            self.highs.insert(at + 1, self.highs[at]);
            self.marks.insert(at + 1, self.marks[at]);
            self.stale[at] = [true; 2];
            self.stale.insert(at + 1, [true; 2]);
            self.firsts.insert(at + 1, upper.entry(0));
            self.runs.insert(at + 1, Box::new(upper));
            at = self.run_for(key, rank);
        }
        self.runs[at].insert(key, rank);
        self.firsts[at] = self.firsts[at].min((key, rank));
        self.highs[at] = self.highs[at].highest(key);
        self.marks[at] = self.marks[at].or(marks);
    }

    pub(super) fn remove(&mut self, key: K, rank: Rank) -> bool {
        let at = self.run_for(key, rank);
        let removed = self.runs[at].remove(key, rank);
        self.stale[at] = [self.stale[at][0] || self.highs[at].touches(key), true];
        if self.runs[at].len() > 0 {
            self.firsts[at] = self.runs[at].entry(0);
        } else {
            self.stale.remove(at);
            self.runs.remove(at);
            self.firsts.remove(at);
            self.highs.remove(at);
            self.marks.remove(at);
        }
        removed
    }

    pub(super) fn mark(&mut self, key: K, rank: Rank, marks: Marks) {
        let at = self.run_for(key, rank);
        self.marks[at] = self.marks[at].or(marks);
        self.stale[at][1] = true;
    }

    /// The first run that may hold `key`: those before it hold smaller keys only.
    pub(super) fn first_with(&self, key: K) -> usize {
        // The last one that begins before the key may end with it.
        let at = self.firsts.partition_point(|first| first.0 < key).saturating_sub(1);
        let run = &self.runs[at];
        at + usize::from(run.entry(run.len() - 1).0 < key)
    }

    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// A run, the largest key in it per field, and its marks: both at least.
    pub(super) fn get(&self, at: usize) -> (&Run<K>, K, Marks) {
        (&self.runs[at], self.highs[at], self.marks[at])
    }

    /// The only run, when there is no other.
    pub(super) fn only(&self) -> Option<&Run<K>> {
        if let [only] = &self.runs[..] { Some(only) } else { None }
    }

    /// Puts right what is said of the runs; of their marks only when those of the nodes are given.
    pub(super) fn settle(&mut self, of: Option<&[Marks]>) {
        for (at, [stale, stale_marks]) in self.stale.iter_mut().enumerate() {
            if *stale {
                self.highs[at] = high(self.runs[at].keys());
                *stale = false;
            }
            if let Some(of) = of
                && *stale_marks
            {
                self.marks[at] = sum_of_marks(of, self.runs[at].ranks());
                *stale_marks = false;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Box<Run<K>>>()
            + self.runs.len() * size_of::<Run<K>>()
            + self.firsts.capacity() * size_of::<(K, Rank)>()
            + self.highs.capacity() * size_of::<K>()
            + self.marks.capacity() * size_of::<Marks>()
            + self.stale.capacity() * size_of::<[bool; 2]>()
    }
}

/// Per field the largest key.
pub(super) fn high<K: Key>(keys: &[K]) -> K {
    keys.iter().fold(K::default(), |high, key| high.highest(*key))
}

/// The marks of some nodes together.
pub(super) fn sum_of_marks(of: &[Marks], ranks: &[Rank]) -> Marks {
    let marks = |rank: &Rank| of.get(*rank as usize).copied().unwrap_or(Marks::NONE);
    if of.is_empty() { Marks::NONE } else { ranks.iter().fold(Marks::NONE, |all, rank| all.or(marks(rank))) }
}
