//! Marks: one bit per constraint that requests repeat, kept over the nodes that satisfy it.
//!
//! The patent counts candidates per bucket. A bucket's marks are that in one word: the union of
//! the marks of the nodes below it, so that a search for marked nodes skips every bucket that
//! holds none.

/// The marks of a node, or of all nodes below a vertex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u64);

/// One mark: `0..Mark::COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u8);

impl Mark {
    /// How many marks there are.
    pub const COUNT: u8 = 64;

    /// Mark number `number`.
    ///
    /// # Panics
    /// When there is no such mark.
    #[must_use]
    pub fn new(number: u8) -> Self {
        assert!(number < Self::COUNT, "mark {number} of {}", Self::COUNT);
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

impl Marks {
    /// No mark.
    pub const NONE: Self = Self(0);

    /// Every mark.
    pub const ALL: Self = Self(u64::MAX);

    /// This mark alone.
    #[must_use]
    pub fn only(mark: Mark) -> Self {
        Self(1 << mark.0)
    }

    /// Whether all of `wanted` are among them.
    #[inline]
    #[must_use]
    pub fn hold(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// With `mark`, or without it.
    #[must_use]
    pub fn with(self, mark: Mark, held: bool) -> Self {
        Self(self.0 & !(1 << mark.0) | u64::from(held) << mark.0)
    }

    /// Those that are not among `other`.
    #[inline]
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Which of `asked` stand in any of `all`: looks no further than it must.
    #[inline]
    #[must_use]
    pub fn among(all: impl Iterator<Item = Self>, asked: Self) -> Self {
        let mut found = 0;
        for marks in all {
            found |= marks.0 & asked.0;
            if found == asked.0 {
                break;
            }
        }
        Self(found)
    }

    /// Those of either.
    #[inline]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
