//! One level of the bucket tree: what is said of its members, in groups of sixty-four.

use super::Marks;
use super::key::Key;

/// Members in order: cells on the lowest level, groups of the level below on the others.
#[derive(Clone, Debug)]
pub(super) struct Level<K> {
    /// Per group, the members that hold a node.
    live: Vec<u64>,
    /// Per group, the members of which `highs` may say more than what they hold.
    stale: Vec<u64>,
    /// Per group, the members of which `marks` may say more.
    stale_marks: Vec<u64>,
    /// Per member and dimension at least the largest coordinate.
    highs: Vec<K>,
    /// Per member at least its marks.
    marks: Vec<Marks>,
}

fn bit(at: usize) -> u64 {
    1 << (at % 64)
}

impl<K: Key> Level<K> {
    pub(super) fn new(members: usize) -> Self {
        let groups = members.div_ceil(64);
        Self {
            live: vec![0; groups],
            stale: vec![0; groups],
            stale_marks: vec![0; groups],
            highs: vec![K::ZERO; members],
            marks: vec![Marks::NONE; members],
        }
    }

    /// The members of a group that hold a node.
    #[inline]
    pub(super) fn live(&self, group: usize) -> u64 {
        self.live[group]
    }

    /// The members of a group of which too much may be said.
    pub(super) fn stale(&self, group: usize) -> u64 {
        self.stale[group]
    }

    #[inline]
    pub(super) fn is_live(&self, at: usize) -> bool {
        self.live[at / 64] & bit(at) != 0
    }

    /// What is said of a member.
    pub(super) fn said(&self, at: usize) -> (K, Marks) {
        (self.highs[at], self.marks[at])
    }

    #[inline]
    pub(super) fn may_hold(&self, at: usize, lower: K, marks: Marks) -> bool {
        self.highs[at].reaches(lower) && (marks == Marks::NONE || self.marks[at].hold(marks))
    }

    /// Whether what is said of a member is enough with a node of this key and these marks.
    #[inline]
    pub(super) fn covers(&self, at: usize, key: K, marks: Marks) -> bool {
        self.is_live(at)
            && self.highs[at].reaches(key)
            && (marks == Marks::NONE || self.marks[at].hold(marks))
    }

    /// A member holds a node of this key and these marks.
    #[inline]
    pub(super) fn raise(&mut self, at: usize, key: K, marks: Marks) {
        if self.is_live(at) {
            self.highs[at] = self.highs[at].highest(key);
            self.marks[at] = self.marks[at].or(marks);
        } else {
            self.live[at / 64] |= bit(at);
            self.stale[at / 64] &= !bit(at);
            self.stale_marks[at / 64] &= !bit(at);
            self.highs[at] = key;
            self.marks[at] = marks;
        }
    }

    /// A member holds no node any more; whether its whole group does not.
    #[inline]
    pub(super) fn empty(&mut self, at: usize) -> bool {
        self.live[at / 64] &= !bit(at);
        self.live[at / 64] == 0
    }

    /// A node of this key left a member that holds others.
    #[inline]
    pub(super) fn may_sink(&mut self, at: usize, key: K) {
        self.stale[at / 64] |= u64::from(self.highs[at].touches(key)) << (at % 64);
        self.stale_marks[at / 64] |= u64::from(self.marks[at] != Marks::NONE) << (at % 64);
    }

    /// A node of a member has other marks.
    pub(super) fn marks_may_sink(&mut self, at: usize) {
        self.stale_marks[at / 64] |= bit(at);
    }

    /// Whether too much may be said of a member's maxima, and of its marks.
    #[inline]
    pub(super) fn is_stale(&self, at: usize) -> (bool, bool) {
        (self.stale[at / 64] & bit(at) != 0, self.stale_marks[at / 64] & bit(at) != 0)
    }

    /// Says of a member what is so; marks only where they are known. Whether that is less than before.
    pub(super) fn settle(&mut self, at: usize, high: K, marks: Option<Marks>) -> (bool, bool) {
        self.stale[at / 64] &= !bit(at);
        let lower = self.highs[at] != high;
        self.highs[at] = high;
        let Some(marks) = marks else { return (lower, false) };
        self.stale_marks[at / 64] &= !bit(at);
        let fewer = self.marks[at] != marks;
        self.marks[at] = marks;
        (lower, fewer)
    }

    /// A member of the group below sank: this one may.
    pub(super) fn below_sank(&mut self, at: usize, (lower, fewer): (bool, bool)) {
        self.stale[at / 64] |= u64::from(lower) << (at % 64);
        self.stale_marks[at / 64] |= u64::from(fewer) << (at % 64);
    }

    /// Per dimension the largest, and the marks, of a group.
    pub(super) fn sum(&self, group: usize) -> (K, Marks) {
        let (mut high, mut marks, mut open) = (K::ZERO, Marks::NONE, self.live[group]);
        while open != 0 {
            let at = group * 64 + open.trailing_zeros() as usize;
            open &= open - 1;
            high = high.highest(self.highs[at]);
            marks = marks.or(self.marks[at]);
        }
        (high, marks)
    }

    pub(super) fn bytes(&self) -> usize {
        (self.live.capacity() + self.stale.capacity() + self.stale_marks.capacity()) * size_of::<u64>()
            + self.highs.capacity() * size_of::<K>()
            + self.marks.capacity() * size_of::<Marks>()
    }
}
