//! Hints: how far the last search for a shape went without success, so that the next one starts there.
//!
//! The tree cannot skip nodes whose coordinate suffices but whose exact availability does not. A packing
//! policy leaves many such nodes. A hint states that no node before some entry is accepted for one request
//! shape. For a shape that fits nowhere, it covers all nodes.
//!
//! A hint stays true while nodes only lose capacity. All other events (a node moves, grows, joins or gets new
//! marks) call `Hints::note_arrival`, which adds them to a log. When a hint is used, it is moved back to the
//! first logged entry that could serve the shape. The cost of an event therefore does not depend on the
//! number of hints. A hint that is not used for the length of the log is dropped.
//!
//! Source: the last leaf and the negative cache of the index design. The former is also the idea of US patent
//! 11,146,503.

use super::ResourceVector;
use super::key::Key;
use super::ranks::Rank;
use super::tree::Direction;
use crate::resource::{Amount, GpuRequest};

/// The number of hints in one tree. Each shape maps to one index.
const PLACES: usize = 64;
/// The number of logged events.
const LOG: usize = 1024;
/// The number of events, per rejected node, that a hint may be behind. Catching up must cost less than
/// searching.
const BEHIND_PER_REFUSED: u64 = 8;
/// A search that rejects more nodes than this keeps a hint.
pub(super) const REFUSED_MIN: u64 = 4;

/// The properties that decide whether a node is accepted.
///
/// Two searches with equal shapes accept the same nodes, and none that has less than the shape asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// Devices.
    pub gpu: GpuRequest,
    /// The nodes that its selector matches, as a number that is never reused for another set of nodes.
    pub set: Option<std::num::NonZeroU64>,
}

impl Shape {
    /// Returns whether a node with this availability has what the shape asks for.
    #[inline]
    fn fits(&self, available: &Available) -> bool {
        let gpu = match self.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => part <= available.largest_gpu_part,
            GpuRequest::Whole(count) => u16::from(count) <= available.whole_gpus,
        };
        self.cpu <= available.cpu && self.memory <= available.memory && gpu
    }

    /// Returns the index of its hint.
    #[inline]
    fn place(&self, direction: Direction) -> usize {
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let gpu = match self.gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(part) => 1 << 16 | u64::from(part),
            GpuRequest::Whole(count) => 2 << 16 | u64::from(count),
        };
        let set = self.set.map_or(0, std::num::NonZeroU64::get);
        let words = [self.cpu.units() as u64, self.memory.units() as u64, gpu << 1 | direction as u64, set];
        let hash = words.iter().fold(0u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(SPREAD));
        (hash >> (u64::BITS - PLACES.trailing_zeros())) as usize
    }
}

#[derive(Clone, Debug)]
struct Hint<K> {
    shape: Shape,
    direction: Direction,
    lower: K,
    /// No entry before this one is accepted, considering events up to `seen`.
    begin: (K, Rank),
    seen: u64,
    /// The number of events that the hint may be behind.
    patience: u64,
}

/// The availability of a node as far as shapes ask for it. Shapes contain no custom kinds, so the log omits
/// them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Available {
    cpu: Amount,
    memory: Amount,
    whole_gpus: u16,
    largest_gpu_part: u16,
}

impl From<&ResourceVector> for Available {
    #[inline]
    fn from(vector: &ResourceVector) -> Self {
        let &ResourceVector { cpu, memory, whole_gpus, largest_gpu_part, .. } = vector;
        Self { cpu, memory, whole_gpus, largest_gpu_part }
    }
}

/// A node that is now at an entry, or whose acceptance may have changed there.
#[derive(Clone, Copy, Debug)]
struct Arrival<K> {
    key: K,
    rank: Rank,
    /// `None` if unknown. Any shape may accept the node then.
    available: Option<Available>,
}

/// The hints of one tree.
#[derive(Clone, Debug)]
pub(super) struct Hints<K> {
    /// Empty until the first hint.
    places: Vec<Option<Hint<K>>>,
    /// The most recent events, by number. Empty until the first hint.
    log: Vec<Arrival<K>>,
    /// The number of events so far.
    note_arrival: u64,
}

/// Returns whether entry `a` comes before entry `b` in a search.
#[inline]
pub(super) fn is_before<K: Key>(direction: Direction, a: (K, Rank), b: (K, Rank)) -> bool {
    match direction {
        Direction::Smallest => a < b,
        Direction::Greatest => a.0 > b.0 || a.0 == b.0 && a.1 < b.1,
    }
}

impl<K: Key> Hints<K> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), log: Vec::new(), note_arrival: 0 }
    }

    /// Returns the entry at which a search for `shape` may begin.
    #[inline]
    pub(super) fn begin(&mut self, shape: &Shape, direction: Direction) -> Option<(K, Rank)> {
        if self.places.is_empty() {
            return None;
        }
        let place = &mut self.places[shape.place(direction)];
        let hint = place.as_mut().filter(|hint| hint.direction == direction && hint.shape == *shape)?;
        if self.note_arrival - hint.seen > hint.patience {
            *place = None;
            return None;
        }
        for at in hint.seen..self.note_arrival {
            let Arrival { key, rank, available } = self.log[at as usize % LOG];
            // Most nodes before the hint have a sufficient coordinate but still do not fit.
            if is_before(direction, (key, rank), hint.begin)
                && key.reaches(hint.lower)
                && available.is_none_or(|available| hint.shape.fits(&available))
            {
                hint.begin = (key, rank);
            }
        }
        hint.seen = self.note_arrival;
        Some(hint.begin)
    }

    /// Keeps a hint after a search for `shape` that rejected `refused` nodes before `found`, or before the
    /// end.
    pub(super) fn keep(
        &mut self,
        (shape, direction, lower): (&Shape, Direction, K),
        refused: u64,
        found: Option<(K, Rank)>,
    ) {
        let end = match direction {
            Direction::Smallest => (K::ABOVE_ALL, Rank::MAX),
            Direction::Greatest => (K::ZERO, Rank::MAX),
        };
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
            self.log.resize(LOG, Arrival { key: K::ZERO, rank: 0, available: None });
        }
        let begin = found.unwrap_or(end);
        let place = &mut self.places[shape.place(direction)];
        let known = place.as_ref().filter(|hint| hint.direction == direction && hint.shape == *shape);
        // A hint that saved this much before is expected to save it again.
        let patience =
            (refused * BEHIND_PER_REFUSED).max(known.map_or(0, |hint| hint.patience)).min(LOG as u64);
        *place = Some(Hint { shape: *shape, direction, lower, begin, seen: self.note_arrival, patience });
    }

    /// Records that a node is now at this entry, or may be accepted there now. `available` is its
    /// availability, if known.
    #[inline]
    pub(super) fn note_arrival(&mut self, key: K, rank: Rank, available: Option<Available>) {
        // Before the first hint, nothing reads the log.
        if !self.places.is_empty() {
            self.log[self.note_arrival as usize % LOG] = Arrival { key, rank, available };
        }
        self.note_arrival += 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<Hint<K>>>() + self.log.capacity() * size_of::<Arrival<K>>()
    }
}
