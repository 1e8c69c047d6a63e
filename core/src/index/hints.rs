//! Hints: how far a search for a shape went in vain, so that the next one begins there.
//!
//! Nodes whose coordinate suffices and whose exact availability does not are what the tree cannot
//! skip, and a policy that packs leaves many of them behind. A hint says of one request shape that
//! no node before some entry is accepted; of a shape that fits nowhere it says so of all. It stays
//! true while nodes only lose: whatever moves, grows, joins or is marked anew calls
//! [`came`](Hints::came), which takes the hints back to it that it could serve, and only those.
//!
//! Source: the last leaf and the negative cache of the index's design; the first is also the idea of
//! US patent 11,146,503.

use std::sync::Arc;

use super::key::Key;
use super::ranks::Rank;
use super::tree::Direction;
use crate::node::Selector;
use crate::resource::{Amount, GpuRequest};

/// Hints that one tree keeps: each movement of a node looks at all of them.
const KEPT: usize = 32;
/// Nodes that a search refuses before its end is worth a hint.
pub(super) const REFUSED_MIN: u64 = 4;

/// What decides whether a node is accepted: two searches of equal shape accept the same nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// Devices.
    pub gpu: GpuRequest,
    /// Terms on labels.
    pub selector: Option<Arc<Selector>>,
}

impl Shape {
    fn is(&self, other: &Self) -> bool {
        let selectors = match (&self.selector, &other.selector) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        (self.cpu, self.memory, self.gpu) == (other.cpu, other.memory, other.gpu) && selectors
    }
}

#[derive(Clone, Debug)]
struct Hint<K> {
    shape: Shape,
    direction: Direction,
    lower: K,
    /// No entry before this one is accepted.
    begin: (K, Rank),
}

/// The hints of one tree.
#[derive(Clone, Debug)]
pub(super) struct Hints<K> {
    kept: Vec<Hint<K>>,
    /// The one that gives way next.
    oldest: usize,
}

/// Whether entry `a` comes before entry `b` in a search.
#[inline]
pub(super) fn is_before<K: Key>(direction: Direction, a: (K, Rank), b: (K, Rank)) -> bool {
    match direction {
        Direction::Smallest => a < b,
        Direction::Greatest => a.0 > b.0 || a.0 == b.0 && a.1 < b.1,
    }
}

impl<K: Key> Hints<K> {
    pub(super) fn new() -> Self {
        Self { kept: Vec::new(), oldest: 0 }
    }

    /// Where a search for `shape` may begin.
    #[inline]
    pub(super) fn begin(&self, shape: &Shape, direction: Direction) -> Option<(K, Rank)> {
        let known = self.kept.iter().find(|hint| hint.direction == direction && hint.shape.is(shape))?;
        Some(known.begin)
    }

    /// A search for `shape` went in vain up to `found`, or to the end.
    pub(super) fn keep(&mut self, shape: &Shape, direction: Direction, lower: K, found: Option<(K, Rank)>) {
        let end = match direction {
            Direction::Smallest => (K::ABOVE_ALL, Rank::MAX),
            Direction::Greatest => (K::ZERO, Rank::MAX),
        };
        let begin = found.unwrap_or(end);
        if let Some(known) =
            self.kept.iter_mut().find(|hint| hint.direction == direction && hint.shape.is(shape))
        {
            known.begin = begin;
            return;
        }
        let hint = Hint { shape: shape.clone(), direction, lower, begin };
        if self.kept.len() < KEPT {
            self.kept.push(hint);
        } else {
            self.kept[self.oldest] = hint;
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }

    /// A node stands at this entry now, or may be accepted there where it was not.
    #[inline]
    pub(super) fn came(&mut self, key: K, rank: Rank) {
        for hint in &mut self.kept {
            if key.reaches(hint.lower) && is_before(hint.direction, (key, rank), hint.begin) {
                hint.begin = (key, rank);
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<Hint<K>>()
    }
}
