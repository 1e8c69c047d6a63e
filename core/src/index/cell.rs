//! Cells: what stands at one place of the first two dimensions.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;
use super::sorted::{Run, Runs, high, sum_of_marks};

/// Entries that stand in the cell's own record: most cells hold a few.
const FEW: usize = 4;

/// What is said of entries: at least what is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said<K> {
    /// Per dimension the largest coordinate.
    pub(super) high: K,
    pub(super) marks: Marks,
}

impl<K: Key> Said<K> {
    pub(super) const NOTHING: Self = Self { high: K::ZERO, marks: Marks::NONE };

    /// Whether an entry above `lower` with the marks `wanted` may be among them.
    #[inline]
    pub(super) fn may_hold(&self, lower: K, wanted: Marks) -> bool {
        self.high.reaches(lower) && self.marks.hold(wanted)
    }

    #[inline]
    pub(super) fn with(self, key: K, marks: Marks) -> Self {
        Self { high: self.high.highest(key), marks: self.marks.or(marks) }
    }
}

/// What stands in one cell, in order. Marks are *at least* those of the entries.
#[derive(Clone, Debug)]
pub(super) enum Cell<K> {
    Few {
        len: u8,
        stale_marks: bool,
        ranks: [Rank; FEW],
        keys: [K; FEW],
        marks: Marks,
    },
    /// Up to a run. What is said may be too much.
    One {
        stale: bool,
        stale_marks: bool,
        said: Said<K>,
        run: Box<Run<K>>,
    },
    Many {
        stale: bool,
        stale_marks: bool,
        said: Said<K>,
        runs: Box<Runs<K>>,
    },
}

const _: () = assert!(size_of::<Cell<u64>>() <= 64, "a cell is one cache line");

/// The entries of a cell.
pub(super) enum Entries<'a, K> {
    Run(&'a [K], &'a [Rank]),
    Runs(&'a Runs<K>),
}

impl<K: Key> Cell<K> {
    pub(super) fn empty() -> Self {
        let (ranks, keys) = ([0; FEW], [K::ZERO; FEW]);
        Self::Few { len: 0, stale_marks: false, ranks, keys, marks: Marks::NONE }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few { len: 0, .. })
    }

    /// Puts an entry in; a run is cut at `room`.
    #[inline]
    pub(super) fn insert(&mut self, key: K, rank: Rank, marks: Marks, room: usize) {
        match self {
            Self::Few { len, stale_marks, ranks, keys, marks: said } if usize::from(*len) < FEW => {
                let mut at = usize::from(*len);
                if at == 0 {
                    (*said, *stale_marks) = (marks, false);
                } else {
                    *said = said.or(marks);
                }
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
            Self::Few { ranks, keys, marks: said, .. } => {
                let mut run = Run::new(keys, ranks);
                run.insert(key, rank);
                let said = Said { high: high(run.keys()), marks: said.or(marks) };
                *self = Self::One { stale: false, stale_marks: true, said, run: Box::new(run) };
            }
            Self::One { said, run, .. } if run.len() < room => {
                *said = said.with(key, marks);
                run.insert(key, rank);
            }
            Self::One { said, run, .. } => {
                let mut runs = Runs::of((**run).clone(), said.marks);
                runs.insert(key, rank, marks, room);
                let said = said.with(key, marks);
                *self = Self::Many { stale: true, stale_marks: true, said, runs: Box::new(runs) };
            }
            Self::Many { said, runs, .. } => {
                *said = said.with(key, marks);
                runs.insert(key, rank, marks, room);
            }
        }
    }

    /// Takes an entry out; whether it was there.
    #[inline]
    pub(super) fn remove(&mut self, key: K, rank: Rank, room: usize) -> bool {
        match self {
            Self::Few { len, stale_marks, ranks, keys, .. } => {
                let held = usize::from(*len);
                let Some(at) = (0..held).find(|&at| ranks[at] == rank && keys[at] == key) else {
                    return false;
                };
                for at in at + 1..held {
                    (keys[at - 1], ranks[at - 1]) = (keys[at], ranks[at]);
                }
                *len -= 1;
                *stale_marks = true;
                true
            }
            _ => self.remove_from_many(key, rank, room),
        }
    }

    fn remove_from_many(&mut self, key: K, rank: Rank, room: usize) -> bool {
        let removed = match self {
            Self::Few { .. } => false,
            Self::One { stale, stale_marks, said, run } => {
                *stale |= said.high.touches(key);
                *stale_marks = true;
                run.remove(key, rank)
            }
            Self::Many { stale, stale_marks, said, runs } => {
                *stale |= said.high.touches(key);
                *stale_marks = true;
                runs.remove(key, rank)
            }
        };
        // Half of each bound, so that one node coming and going does not convert twice.
        match self {
            Self::One { said, run, .. } if run.len() <= FEW / 2 => {
                let (mut keys, mut ranks, held) = ([K::ZERO; FEW], [0; FEW], run.len());
                keys[..held].copy_from_slice(run.keys());
                ranks[..held].copy_from_slice(run.ranks());
                *self = Self::Few { len: held as u8, stale_marks: true, ranks, keys, marks: said.marks };
            }
            Self::Many { said, runs, .. } => {
                if let Some(only) = runs.only()
                    && only.len() <= room / 2
                {
                    let (said, run) = (*said, Box::new(only.clone()));
                    *self = Self::One { stale: true, stale_marks: true, said, run };
                }
            }
            _ => {}
        }
        removed
    }

    /// An entry that stands here has other marks.
    pub(super) fn mark(&mut self, key: K, rank: Rank, marks: Marks) {
        match self {
            Self::Few { stale_marks, marks: said, .. } => {
                *said = said.or(marks);
                *stale_marks = true;
            }
            Self::One { stale_marks, said, .. } => {
                *said = said.with(key, marks);
                *stale_marks = true;
            }
            Self::Many { stale_marks, said, runs, .. } => {
                *said = said.with(key, marks);
                *stale_marks = true;
                runs.mark(key, rank, marks);
            }
        }
    }

    /// Its entries, if one above `lower` with the marks `wanted` may be among them.
    #[inline]
    pub(super) fn offered(&self, lower: K, wanted: Marks) -> Option<Entries<'_, K>> {
        match self {
            Self::Few { marks, .. } => marks.hold(wanted).then(|| self.entries()),
            Self::One { said, .. } | Self::Many { said, .. } => {
                said.may_hold(lower, wanted).then(|| self.entries())
            }
        }
    }

    #[inline]
    pub(super) fn entries(&self) -> Entries<'_, K> {
        match self {
            Self::Few { len, ranks, keys, .. } => {
                let len = usize::from(*len).min(FEW);
                Entries::Run(&keys[..len], &ranks[..len])
            }
            Self::One { run, .. } => Entries::Run(run.keys(), run.ranks()),
            Self::Many { runs, .. } => Entries::Runs(runs),
        }
    }

    /// What is said of it.
    #[inline]
    pub(super) fn said(&self) -> Said<K> {
        match self {
            Self::Few { len, keys, marks, .. } => {
                Said { high: high(&keys[..usize::from(*len).min(FEW)]), marks: *marks }
            }
            Self::One { said, .. } | Self::Many { said, .. } => *said,
        }
    }

    /// Puts right what is said, after a search in vain; marks only where those of the nodes are given.
    pub(super) fn settle(&mut self, of: Option<&[Marks]>) {
        match self {
            Self::Few { len, stale_marks, ranks, marks, .. } => {
                if let Some(of) = of
                    && *stale_marks
                {
                    *marks = sum_of_marks(of, &ranks[..usize::from(*len)]);
                    *stale_marks = false;
                }
            }
            Self::One { stale, stale_marks, said, run } => {
                if *stale {
                    said.high = high(run.keys());
                    *stale = false;
                }
                if let Some(of) = of
                    && *stale_marks
                {
                    said.marks = sum_of_marks(of, run.ranks());
                    *stale_marks = false;
                }
            }
            Self::Many { stale, stale_marks, said, runs } => {
                if *stale || of.is_some() && *stale_marks {
                    runs.settle(of);
                    let sum = runs.iter().fold(Said::NOTHING, |sum, (_, high, marks)| sum.with(high, marks));
                    said.high = sum.high;
                    *stale = false;
                    if of.is_some() {
                        said.marks = sum.marks;
                        *stale_marks = false;
                    }
                }
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few { .. } => 0,
            Self::One { .. } => size_of::<Run<K>>(),
            Self::Many { runs, .. } => size_of::<Runs<K>>() + runs.bytes(),
        }
    }

    /// Its entries in order, copied.
    pub(super) fn all(&self) -> Vec<(K, Rank)> {
        let pairs = |keys: &[K], ranks: &[Rank]| -> Vec<_> {
            keys.iter().zip(ranks).map(|(&key, &rank)| (key, rank)).collect()
        };
        match self.entries() {
            Entries::Run(keys, ranks) => pairs(keys, ranks),
            Entries::Runs(runs) => runs.iter().flat_map(|(run, ..)| pairs(run.keys(), run.ranks())).collect(),
        }
    }

    /// Checks that what is said covers the entries.
    pub(super) fn check(&self, of: &[Marks]) -> Result<(), &'static str> {
        let said = self.said();
        let held = |rank: Rank| of.get(rank as usize).copied().unwrap_or(Marks::NONE);
        if self.all().iter().any(|&(key, rank)| !said.high.reaches(key) || !said.marks.hold(held(rank))) {
            return Err("what is said of the cell");
        }
        let Self::Many { runs, .. } = self else { return Ok(()) };
        for (run, high, marks) in runs.iter() {
            let reached = run.keys().iter().all(|&key| high.reaches(key));
            if run.keys().is_empty() || !reached || !marks.hold(sum_of_marks(of, run.ranks())) {
                return Err("what is said of a run of the cell");
            }
        }
        Ok(())
    }
}
