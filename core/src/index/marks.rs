//! Marks: one bit per frequent constraint, kept for the nodes that satisfy it.
//!
//! The patent counts candidates per bucket. Here, a bucket has the union of the marks of the nodes below it,
//! in one word. A search for marked nodes skips every bucket without the mark.

/// The marks of a node, or of all nodes below a vertex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u64);

/// A mark: `0..Mark::COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u8);

impl Mark {
    /// The number of marks.
    pub const COUNT: u8 = 64;

    /// Returns the mark with this number.
    ///
    /// # Panics
    /// When there is no such mark.
    #[must_use]
    pub fn new(number: u8) -> Self {
        assert!(number < Self::COUNT, "mark {number} of {}", Self::COUNT);
        Self(number)
    }

    /// Returns the mark's number.
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

    /// Returns a set with only this mark.
    #[must_use]
    pub fn only(mark: Mark) -> Self {
        Self(1 << mark.0)
    }

    /// Returns whether the set contains all of `wanted`.
    #[inline]
    #[must_use]
    pub fn hold(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns the set with or without `mark`.
    #[must_use]
    pub fn with(self, mark: Mark, held: bool) -> Self {
        Self(self.0 & !(1 << mark.0) | u64::from(held) << mark.0)
    }

    /// Returns the marks that are not in `other`.
    #[inline]
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the marks of `asked` that occur in any of `all`. Stops as soon as all are found.
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

    /// Returns the union.
    #[inline]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
