//! Runs of nodes in order of key, then of registration: what a cell holds.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;

/// Most entries of one run.
pub(super) const ROOM: usize = 64;
/// Keys that are counted in one go.
const STRIDE: usize = 8;
const _: () = assert!(ROOM == STRIDE * STRIDE, "two goes find any place");

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

    /// How many entries are below that of `key` and `rank`. Two rounds of eight comparisons that
    /// wait for nothing: a binary search would wait for each of its six.
    #[inline]
    fn place(&self, key: K, rank: Rank) -> usize {
        let mut stride = 0;
        for at in 1..STRIDE {
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

    fn insert(&mut self, key: K, rank: Rank) {
        let (at, len) = (self.place(key, rank), self.len());
        self.keys.copy_within(at..len, at + 1);
        self.ranks.copy_within(at..len, at + 1);
        (self.keys[at], self.ranks[at]) = (key, rank);
        self.len += 1;
    }

    fn remove(&mut self, key: K, rank: Rank) -> bool {
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
    runs: Vec<Run<K>>,
    /// Per field at least the largest key of each run.
    highs: Vec<K>,
    /// At least the marks of each run.
    marks: Vec<Marks>,
    /// Whether more may be said of a run than what it holds.
    stale: Vec<bool>,
}

impl<K: Key> Runs<K> {
    pub(super) fn of(run: Run<K>, marks: Marks) -> Self {
        Self { highs: vec![high(run.keys())], runs: vec![run], marks: vec![marks], stale: vec![true] }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Run<K>, K, Marks)> {
        let summaries = self.highs.iter().zip(&self.marks);
        self.runs.iter().zip(summaries).map(|(run, (&high, &marks))| (run, high, marks))
    }

    /// The run in which an entry stands or belongs.
    fn run_for(&self, key: K, rank: Rank) -> usize {
        self.runs.partition_point(|run| run.entry(0) <= (key, rank)).saturating_sub(1)
    }

    pub(super) fn insert(&mut self, key: K, rank: Rank, marks: Marks, room: usize) {
        let mut at = self.run_for(key, rank);
        if self.runs[at].len() >= room {
            let upper = self.runs[at].cut();
            self.highs.insert(at + 1, self.highs[at]);
            self.marks.insert(at + 1, self.marks[at]);
            self.stale[at] = true;
            self.stale.insert(at + 1, true);
            self.runs.insert(at + 1, upper);
            at = self.run_for(key, rank);
        }
        self.runs[at].insert(key, rank);
        self.highs[at] = self.highs[at].highest(key);
        self.marks[at] = self.marks[at].or(marks);
    }

    pub(super) fn remove(&mut self, key: K, rank: Rank) -> bool {
        let at = self.run_for(key, rank);
        let removed = self.runs[at].remove(key, rank);
        self.stale[at] = true;
        if self.runs[at].len() == 0 {
            self.stale.remove(at);
            self.runs.remove(at);
            self.highs.remove(at);
            self.marks.remove(at);
        }
        removed
    }

    pub(super) fn mark(&mut self, key: K, rank: Rank, marks: Marks) {
        let at = self.run_for(key, rank);
        self.marks[at] = self.marks[at].or(marks);
        self.stale[at] = true;
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
        for at in (0..self.runs.len()).filter(|&at| self.stale[at]) {
            self.highs[at] = high(self.runs[at].keys());
            if let Some(of) = of {
                self.marks[at] = sum_of_marks(of, self.runs[at].ranks());
            }
        }
        if of.is_some() {
            self.stale.fill(false);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run<K>>()
            + self.highs.capacity() * size_of::<K>()
            + self.marks.capacity() * size_of::<Marks>()
            + self.stale.capacity()
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

/// Entries that stand in the cell's own record: most cells hold a few.
const FEW: usize = 4;

/// What stands in one cell, in order.
#[derive(Clone, Debug)]
pub(super) enum Cell<K> {
    Few { len: u8, keys: [K; FEW], ranks: [Rank; FEW] },
    One(Box<Run<K>>),
    Many(Box<Runs<K>>),
}

const _: () = assert!(size_of::<Cell<u64>>() <= 64, "a cell is one cache line");

impl<K: Key> Cell<K> {
    pub(super) fn empty() -> Self {
        Self::Few { len: 0, keys: [K::default(); FEW], ranks: [0; FEW] }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few { len: 0, .. })
    }

    /// Puts an entry in; a run is cut at `room`.
    #[inline]
    pub(super) fn insert(&mut self, key: K, rank: Rank, marks: Marks, room: usize) {
        match self {
            Self::Few { len, keys, ranks } if usize::from(*len) < FEW => {
                let mut at = usize::from(*len);
                while at > 0 && (keys[at - 1], ranks[at - 1]) > (key, rank) {
                    (keys[at], ranks[at]) = (keys[at - 1], ranks[at - 1]);
                    at -= 1;
                }
                (keys[at], ranks[at]) = (key, rank);
                *len += 1;
            }
            _ => self.insert_into_many(key, rank, marks, room),
        }
    }

    fn insert_into_many(&mut self, key: K, rank: Rank, marks: Marks, room: usize) {
        match self {
            Self::Few { keys, ranks, .. } => {
                let mut run = Run::new(keys, ranks);
                run.insert(key, rank);
                *self = Self::One(Box::new(run));
            }
            Self::One(run) if run.len() < room => run.insert(key, rank),
            Self::One(run) => {
                // What its nodes are marked with is not known here: nothing may be skipped until
                // a search in vain has looked.
                let mut runs = Runs::of((**run).clone(), Marks::ALL);
                runs.insert(key, rank, marks, room);
                *self = Self::Many(Box::new(runs));
            }
            Self::Many(runs) => runs.insert(key, rank, marks, room),
        }
    }

    /// Takes an entry out; whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, key: K, rank: Rank, room: usize) -> bool {
        match self {
            Self::Few { len, keys, ranks } => {
                let held = usize::from(*len);
                let Some(at) = (0..held).find(|&at| ranks[at] == rank && keys[at] == key) else {
                    return false;
                };
                keys.copy_within(at + 1..held, at);
                ranks.copy_within(at + 1..held, at);
                *len -= 1;
                true
            }
            _ => self.remove_from_many(key, rank, room),
        }
    }

    fn remove_from_many(&mut self, key: K, rank: Rank, room: usize) -> bool {
        let removed = match self {
            Self::Few { .. } => false,
            Self::One(run) => run.remove(key, rank),
            Self::Many(runs) => runs.remove(key, rank),
        };
        // Half of each bound, so that one node coming and going does not convert twice.
        match self {
            Self::One(run) if run.len() <= FEW / 2 => {
                let (mut keys, mut ranks, held) = ([K::default(); FEW], [0; FEW], run.len());
                keys[..held].copy_from_slice(run.keys());
                ranks[..held].copy_from_slice(run.ranks());
                *self = Self::Few { len: held as u8, keys, ranks };
            }
            Self::Many(runs) => {
                if let Some(only) = runs.only()
                    && only.len() <= room / 2
                {
                    *self = Self::One(Box::new(only.clone()));
                }
            }
            _ => {}
        }
        removed
    }

    /// Its entries as one run, unless they are many.
    #[inline]
    pub(super) fn run(&self) -> Result<(&[K], &[Rank]), &Runs<K>> {
        match self {
            Self::Few { len, keys, ranks } => {
                let len = usize::from(*len).min(FEW);
                Ok((&keys[..len], &ranks[..len]))
            }
            Self::One(run) => Ok((run.keys(), run.ranks())),
            Self::Many(runs) => Err(runs),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few { .. } => 0,
            Self::One(_) => size_of::<Run<K>>(),
            Self::Many(runs) => size_of::<Runs<K>>() + runs.bytes(),
        }
    }

    pub(super) fn entries(&self) -> Vec<(K, Rank)> {
        let pairs = |keys: &[K], ranks: &[Rank]| -> Vec<_> {
            keys.iter().zip(ranks).map(|(&key, &rank)| (key, rank)).collect()
        };
        match self.run() {
            Ok((keys, ranks)) => pairs(keys, ranks),
            Err(runs) => runs.iter().flat_map(|(run, ..)| pairs(run.keys(), run.ranks())).collect(),
        }
    }
}
