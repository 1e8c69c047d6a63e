//! The tree's entry for a node: its key, and a tag with its rank and the dimensions in which it has less than
//! its coordinate says.
//!
//! A coordinate is `ceil(value / θ)`. Nodes with 0.4 and with 1 core both have coordinate 1, and a request
//! for a whole core finds both. Packing leaves many nodes of the first kind.
//!
//! The entry therefore has one bit per dimension, which is set if the value is not a whole number of steps.
//! This gives `floor(value / θ)` too. If it is below the `floor` of what is asked, the node does not fit.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;

/// The number of bits that mark values which are not a whole number of steps.
const BELOW_BITS: u32 = u8::BITS;
/// One more than the highest supported rank.
pub(super) const RANKS_MAX: usize = (1 << (u32::BITS - BELOW_BITS)) - 1;
const _: () =
    assert!(crate::limits::NODES_MAX * 3 <= RANKS_MAX, "ranks of nodes that left are kept for a while");

/// The rank in the high bits, so that tags compare like ranks, and one bit per dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankTag(u32);

impl RankTag {
    #[inline]
    pub(super) fn new(rank: Rank, below: u8) -> Self {
        debug_assert!((rank as usize) < RANKS_MAX, "ranks are given again before they are so many");
        Self(rank << BELOW_BITS | u32::from(below))
    }

    /// Returns the tag as a number, which is never `u32::MAX`.
    #[inline]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(super) fn rank(self) -> Rank {
        self.0 >> BELOW_BITS
    }

    #[inline]
    pub(super) fn below(self) -> u8 {
        self.0 as u8
    }
}

/// Upper bounds of some entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpperBounds<K> {
    /// The largest coordinate per dimension.
    pub(super) high: K,
    /// The largest whole number of steps per dimension.
    pub(super) whole: K,
    pub(super) marks: Marks,
}

impl<K: Key> UpperBounds<K> {
    pub(super) const NOTHING: Self = Self { high: K::ZERO, whole: K::ZERO, marks: Marks::NONE };

    /// Returns the bounds of one entry.
    #[inline]
    pub(super) fn of(key: K, tag: RankTag, marks: Marks) -> Self {
        Self { high: key, whole: key.floor(tag.below()), marks }
    }

    /// Returns the bounds of some entries, without marks.
    #[inline]
    pub(super) fn of_all(keys: &[K], tags: &[RankTag]) -> Self {
        let entries = keys.iter().zip(tags);
        entries.fold(Self::NOTHING, |said, (&key, &tag)| said.or(Self::of(key, tag, Marks::NONE)))
    }

    /// Returns whether one of the entries may suffice for `asked`.
    #[inline]
    pub(super) fn may_hold(&self, asked: &Self) -> bool {
        self.high.reaches(asked.high) && self.whole.reaches(asked.whole) && self.marks.hold(asked.marks)
    }

    #[inline]
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            high: self.high.highest(other.high),
            whole: self.whole.highest(other.whole),
            marks: self.marks.or(other.marks),
        }
    }

    /// Returns whether any maximum may come from this entry.
    #[inline]
    pub(super) fn touches(&self, other: &Self) -> bool {
        self.high.touches(other.high) || self.whole.touches(other.whole)
    }

    /// Returns the same bounds with other marks.
    #[inline]
    pub(super) fn marked(self, marks: Marks) -> Self {
        Self { marks, ..self }
    }
}

/// Returns whether one entry suffices, except for marks.
#[inline]
pub(super) fn suffices<K: Key>(key: K, tag: RankTag, asked: &UpperBounds<K>) -> bool {
    key.reaches(asked.high) && key.floor(tag.below()).reaches(asked.whole)
}
