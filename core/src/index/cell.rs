//! Cells: the entries at one place of the first two dimensions.

use super::Marks;
use super::entry::{RankTag, UpperBounds};
use super::key::Key;
use super::sorted::{Block, Runs, sum_of_marks};

/// The number of entries stored in the cell itself. Most cells have only a few.
const FEW: usize = 4;

/// The entries of one cell, in order. The marks are a superset of the entries' marks.
#[derive(Clone, Debug)]
pub(super) enum Cell<K> {
    Few {
        len: u8,
        stale_marks: bool,
        tags: [RankTag; FEW],
        keys: [K; FEW],
        marks: Marks,
    },
    /// At most one run. `said` may be too high.
    One {
        stale: bool,
        stale_marks: bool,
        said: UpperBounds<K>,
        run: Box<Block<K>>,
    },
    Many {
        stale: bool,
        stale_marks: bool,
        said: UpperBounds<K>,
        runs: Box<Runs<K>>,
    },
}

const _: () = assert!(size_of::<Cell<u64>>() <= 64, "a cell is one cache line");

/// The entries of a cell.
pub(super) enum Entries<'a, K> {
    Block(&'a [K], &'a [RankTag]),
    Runs(&'a Runs<K>),
}

impl<K: Key> Entries<'_, K> {
    /// Prefetches the memory that removing an entry will read.
    #[inline]
    pub(super) fn prefetch(&self, key: K, tag: RankTag) -> usize {
        match self {
            Self::Block(keys, tags) => read_lines(keys, tags),
            Self::Runs(runs) => {
                let run = runs.holding(key, tag);
                read_lines(run.keys(), run.tags())
            }
        }
    }
}

/// Reads one word of each cache line.
#[inline]
fn read_lines<K: Key>(keys: &[K], tags: &[RankTag]) -> usize {
    let of_keys = keys.iter().step_by(8).filter(|&&key| key == K::ZERO).count();
    tags.iter().step_by(16).fold(of_keys, |sum, tag| sum ^ tag.bits() as usize)
}

impl<K: Key> Cell<K> {
    pub(super) fn empty() -> Self {
        let tags = [RankTag::default(); FEW];
        let keys = [K::ZERO; FEW];
        Self::Few { len: 0, stale_marks: false, tags, keys, marks: Marks::NONE }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few { len: 0, .. })
    }

    /// Adds an entry. A run is split at `room` entries.
    #[inline]
    pub(super) fn insert(&mut self, key: K, tag: RankTag, marks: Marks, room: usize) {
        match self {
            Self::Few { len, stale_marks, tags, keys, marks: said } if usize::from(*len) < FEW => {
                let mut at = usize::from(*len);
                if at == 0 {
                    (*said, *stale_marks) = (marks, false);
                } else {
                    *said = said.or(marks);
                }
                while at > 0 && (keys[at - 1], tags[at - 1]) > (key, tag) {
                    (keys[at], tags[at]) = (keys[at - 1], tags[at - 1]);
                    at -= 1;
                }
                (keys[at], tags[at]) = (key, tag);
                *len += 1;
            }
            _ => self.insert_into_many(key, tag, marks, room),
        }
    }

    fn insert_into_many(&mut self, key: K, tag: RankTag, marks: Marks, room: usize) {
        match self {
            Self::Few { tags, keys, marks: said, .. } => {
                let mut run = Block::new(keys, tags);
                run.insert(key, tag);
                let said = UpperBounds::of_all(run.keys(), run.tags()).marked(said.or(marks));
                *self = Self::One { stale: false, stale_marks: true, said, run: Box::new(run) };
            }
            Self::One { said, run, .. } if run.len() < room => {
                *said = said.or(UpperBounds::of(key, tag, marks));
                run.insert(key, tag);
            }
            Self::One { said, run, .. } => {
                let mut runs = Runs::of((**run).clone(), said.marks);
                runs.insert(key, tag, marks, room);
                let said = said.or(UpperBounds::of(key, tag, marks));
                *self = Self::Many { stale: true, stale_marks: true, said, runs: Box::new(runs) };
            }
            Self::Many { said, runs, .. } => {
                *said = said.or(UpperBounds::of(key, tag, marks));
                runs.insert(key, tag, marks, room);
            }
        }
    }

    /// Removes an entry. Returns whether it was found.
    #[inline]
    pub(super) fn remove(&mut self, key: K, tag: RankTag, room: usize) -> bool {
        match self {
            Self::Few { len, stale_marks, tags, keys, .. } => {
                let held = usize::from(*len);
                let Some(at) = (0..held).find(|&at| tags[at] == tag && keys[at] == key) else {
                    return false;
                };
                for at in at + 1..held {
                    (keys[at - 1], tags[at - 1]) = (keys[at], tags[at]);
                }
                *len -= 1;
                *stale_marks = true;
                true
            }
            _ => self.remove_from_many(key, tag, room),
        }
    }

    fn remove_from_many(&mut self, key: K, tag: RankTag, room: usize) -> bool {
        let removed = match self {
            Self::Few { .. } => false,
            Self::One { stale, stale_marks, said, run } => {
                *stale |= said.touches(&UpperBounds::of(key, tag, Marks::NONE));
                *stale_marks = true;
                run.remove(key, tag)
            }
            Self::Many { stale, stale_marks, said, runs } => {
                *stale |= said.touches(&UpperBounds::of(key, tag, Marks::NONE));
                *stale_marks = true;
                runs.remove(key, tag)
            }
        };
        // Half of each limit, so that adding and removing one node repeatedly does not convert each time.
        match self {
            Self::One { said, run, .. } if run.len() <= FEW / 2 => {
                let mut keys = [K::ZERO; FEW];
                let mut tags = [RankTag::default(); FEW];
                let held = run.len();
                keys[..held].copy_from_slice(run.keys());
                tags[..held].copy_from_slice(run.tags());
                *self = Self::Few { len: held as u8, stale_marks: true, tags, keys, marks: said.marks };
            }
            Self::Many { said, runs, .. } => {
                if let Some(only) = runs.only()
                    && only.len() <= room / 2
                {
                    let said = *said;
                    let run = Box::new(only.clone());
                    *self = Self::One { stale: true, stale_marks: true, said, run };
                }
            }
            _ => {}
        }
        removed
    }

    /// Records that an entry of this cell has new marks.
    pub(super) fn mark(&mut self, key: K, tag: RankTag, marks: Marks) {
        match self {
            Self::Few { stale_marks, marks: said, .. } => {
                *said = said.or(marks);
                *stale_marks = true;
            }
            Self::One { stale_marks, said, .. } => {
                *said = said.or(UpperBounds::of(key, tag, marks));
                *stale_marks = true;
            }
            Self::Many { stale_marks, said, runs, .. } => {
                *said = said.or(UpperBounds::of(key, tag, marks));
                *stale_marks = true;
                runs.mark(key, tag, marks);
            }
        }
    }

    /// Returns the entries, if one of them may suffice for `asked`.
    #[inline]
    pub(super) fn offered(&self, asked: &UpperBounds<K>) -> Option<Entries<'_, K>> {
        match self {
            Self::Few { marks, .. } => marks.hold(asked.marks).then(|| self.entries()),
            Self::One { said, .. } | Self::Many { said, .. } => said.may_hold(asked).then(|| self.entries()),
        }
    }

    #[inline]
    pub(super) fn entries(&self) -> Entries<'_, K> {
        match self {
            Self::Few { len, tags, keys, .. } => {
                let len = usize::from(*len).min(FEW);
                Entries::Block(&keys[..len], &tags[..len])
            }
            Self::One { run, .. } => Entries::Block(run.keys(), run.tags()),
            Self::Many { runs, .. } => Entries::Runs(runs),
        }
    }

    /// Returns the upper bounds of the cell.
    #[inline]
    pub(super) fn said(&self) -> UpperBounds<K> {
        match self {
            Self::Few { len, tags, keys, marks, .. } => {
                let len = usize::from(*len).min(FEW);
                UpperBounds::of_all(&keys[..len], &tags[..len]).marked(*marks)
            }
            Self::One { said, .. } | Self::Many { said, .. } => *said,
        }
    }

    /// Recomputes the upper bounds after an unsuccessful search. Marks are recomputed only if those of the
    /// nodes are given.
    pub(super) fn settle(&mut self, of: Option<&[Marks]>) {
        match self {
            Self::Few { len, stale_marks, tags, marks, .. } => {
                if let Some(of) = of
                    && *stale_marks
                {
                    *marks = sum_of_marks(of, &tags[..usize::from(*len)]);
                    *stale_marks = false;
                }
            }
            Self::One { stale, stale_marks, said, run } => {
                if *stale {
                    *said = UpperBounds::of_all(run.keys(), run.tags()).marked(said.marks);
                    *stale = false;
                }
                if let Some(of) = of
                    && *stale_marks
                {
                    said.marks = sum_of_marks(of, run.tags());
                    *stale_marks = false;
                }
            }
            Self::Many { stale, stale_marks, said, runs } => {
                if *stale || of.is_some() && *stale_marks {
                    runs.settle(of);
                    let sum = runs.iter().fold(UpperBounds::NOTHING, |sum, (_, &said)| sum.or(said));
                    *said = sum.marked(said.marks);
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
            Self::One { .. } => size_of::<Block<K>>(),
            Self::Many { runs, .. } => size_of::<Runs<K>>() + runs.bytes(),
        }
    }

    /// Returns a copy of the entries in order.
    pub(super) fn all(&self) -> Vec<(K, RankTag)> {
        let pairs = |keys: &[K], tags: &[RankTag]| -> Vec<_> {
            keys.iter().zip(tags).map(|(&key, &tag)| (key, tag)).collect()
        };
        match self.entries() {
            Entries::Block(keys, tags) => pairs(keys, tags),
            Entries::Runs(runs) => runs.iter().flat_map(|(run, ..)| pairs(run.keys(), run.tags())).collect(),
        }
    }

    /// Checks that the upper bounds cover the entries.
    pub(super) fn check(&self, of: &[Marks]) -> Result<(), &'static str> {
        let said = self.said();
        let held = |tag: RankTag| of.get(tag.rank() as usize).copied().unwrap_or(Marks::NONE);
        let covered = |&(key, tag): &(K, RankTag)| said.may_hold(&UpperBounds::of(key, tag, held(tag)));
        if !self.all().iter().all(covered) {
            return Err("what is said of the cell");
        }
        let Self::Many { runs, .. } = self else { return Ok(()) };
        for (run, said) in runs.iter() {
            let all = UpperBounds::of_all(run.keys(), run.tags()).marked(sum_of_marks(of, run.tags()));
            if run.keys().is_empty() || !said.may_hold(&all) {
                return Err("what is said of a run of the cell");
            }
        }
        Ok(())
    }
}
