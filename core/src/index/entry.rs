//! What the tree keeps of a node: its key, and in one number its rank and in which dimensions it
//! has less than its coordinate says.
//!
//! A coordinate is `ceil(value / θ)`: nodes with 0.4 and with 1 core stand side by side at 1, and a
//! request for a whole core meets both. Packing leaves many of the first kind. So beside the
//! coordinate, which the order goes by, stands a bit per dimension: the value is not a whole number of
//! steps. With it `floor(value / θ)` is known too, and where that is below `floor` of what is asked the
//! node does not fit.

use super::Marks;
use super::key::Key;
use super::ranks::Rank;

/// Bits that say where a value is no whole number of steps.
const BELOW_BITS: u32 = u8::BITS;
/// One more than the highest rank that there is room for.
pub(super) const RANKS_MAX: usize = (1 << (u32::BITS - BELOW_BITS)) - 1;
const _: () =
    assert!(crate::limits::NODES_MAX * 3 <= RANKS_MAX, "ranks of nodes that left are kept for a while");

/// Rank first, so that tags compare as ranks do; then a bit per dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankTag(u32);

impl RankTag {
    #[inline]
    pub(super) fn new(rank: Rank, below: u8) -> Self {
        debug_assert!((rank as usize) < RANKS_MAX, "ranks are given anew before they are so many");
        Self(rank << BELOW_BITS | u32::from(below))
    }

    /// As one number, which is never the highest.
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

/// What is said of entries: at least what is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpperBounds<K> {
    /// Per dimension the largest coordinate.
    pub(super) high: K,
    /// Per dimension the largest whole number of steps.
    pub(super) whole: K,
    pub(super) marks: Marks,
}

impl<K: Key> UpperBounds<K> {
    pub(super) const NOTHING: Self = Self { high: K::ZERO, whole: K::ZERO, marks: Marks::NONE };

    /// Of one entry.
    #[inline]
    pub(super) fn of(key: K, tag: RankTag, marks: Marks) -> Self {
        Self { high: key, whole: key.floor(tag.below()), marks }
    }

    /// Of some entries, but for their marks.
    #[inline]
    pub(super) fn of_all(keys: &[K], tags: &[RankTag]) -> Self {
        let entries = keys.iter().zip(tags);
        entries.fold(Self::NOTHING, |said, (&key, &tag)| said.or(Self::of(key, tag, Marks::NONE)))
    }

    /// Whether what is `asked` may be among them.
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

    /// Whether a maximum may be this entry's.
    #[inline]
    pub(super) fn touches(&self, other: &Self) -> bool {
        self.high.touches(other.high) || self.whole.touches(other.whole)
    }

    /// The same with other marks.
    #[inline]
    pub(super) fn marked(self, marks: Marks) -> Self {
        Self { marks, ..self }
    }
}

/// Whether one entry suffices, but for marks.
#[inline]
pub(super) fn suffices<K: Key>(key: K, tag: RankTag, asked: &UpperBounds<K>) -> bool {
    key.reaches(asked.high) && key.floor(tag.below()).reaches(asked.whole)
}
