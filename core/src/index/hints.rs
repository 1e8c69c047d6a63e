//! Hints: how far a search for a shape went in vain, so that the next one begins there.
//!
//! Nodes whose coordinate suffices and whose exact availability does not are what the tree cannot
//! skip, and a policy that packs leaves many of them behind. A hint says of one request shape that
//! no node before some entry is accepted; of a shape that fits nowhere it says so of all. It stays
//! true while nodes only lose. Whatever moves, grows, joins or is marked anew calls
//! [`came`](Hints::came), which writes it into a log; a hint that is asked for is taken back to what
//! came since and it could serve, and only to that. So a movement costs the same however many hints
//! are kept, and a hint that was not asked for during a whole log is forgotten.
//!
//! Source: the last leaf and the negative cache of the index's design; the first is also the idea of
//! US patent 11,146,503.

use super::ResourceVector;
use super::key::Key;
use super::ranks::Rank;
use super::tree::Direction;
use crate::resource::{Amount, GpuRequest};

/// Places for hints in one tree: a shape has one of them.
const PLACES: usize = 64;
/// Movements that are remembered.
const LOG: usize = 1024;
/// Movements per node refused that a hint may be behind: to catch up must cost less than to search.
const BEHIND_PER_REFUSED: u64 = 8;
/// Nodes that a search refuses before its end is worth a hint.
pub(super) const REFUSED_MIN: u64 = 4;

/// What decides whether a node is accepted: two searches of equal shape accept the same nodes, and
/// none that has less than is asked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// Devices.
    pub gpu: GpuRequest,
    /// The nodes that its selector leaves: a number that no other set of nodes has, or had before.
    pub set: Option<std::num::NonZeroU64>,
}

impl Shape {
    /// Whether a node with this much available has as much as it asks.
    #[inline]
    fn fits(&self, available: &Available) -> bool {
        let gpu = match self.gpu {
            GpuRequest::None => true,
            GpuRequest::Fraction(part) => part <= available.largest_gpu_part,
            GpuRequest::Whole(count) => u16::from(count) <= available.whole_gpus,
        };
        self.cpu <= available.cpu && self.memory <= available.memory && gpu
    }

    /// The place of its hint.
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
    /// No entry before this one is accepted, of those that came up to `seen`.
    begin: (K, Rank),
    seen: u64,
    /// How many movements it may be behind.
    patience: u64,
}

/// What a node has of what shapes ask: a log keeps no custom kinds, which no shape asks.
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

/// A node that stands at an entry now, or may be accepted there where it was not.
#[derive(Clone, Copy, Debug)]
struct Arrival<K> {
    key: K,
    rank: Rank,
    /// None: not known, and it may be accepted by any shape.
    available: Option<Available>,
}

/// The hints of one tree.
#[derive(Clone, Debug)]
pub(super) struct Hints<K> {
    /// Empty until there is one.
    places: Vec<Option<Hint<K>>>,
    /// What came lately, by count; empty as long.
    log: Vec<Arrival<K>>,
    /// How often anything came.
    note_arrival: u64,
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
        Self { places: Vec::new(), log: Vec::new(), note_arrival: 0 }
    }

    /// Where a search for `shape` may begin.
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
            // Of the nodes before the hint most have a coordinate that suffices and still do not fit.
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

    /// A search for `shape` that refused so many nodes went in vain up to `found`, or to the end.
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
        // What it spared before it spares again.
        let patience =
            (refused * BEHIND_PER_REFUSED).max(known.map_or(0, |hint| hint.patience)).min(LOG as u64);
        *place = Some(Hint { shape: *shape, direction, lower, begin, seen: self.note_arrival, patience });
    }

    /// A node stands at this entry now, or may be accepted there where it was not; what it has
    /// available, where that is known.
    #[inline]
    pub(super) fn note_arrival(&mut self, key: K, rank: Rank, available: Option<Available>) {
        // Nobody looks back to before the first hint.
        if !self.places.is_empty() {
            self.log[self.note_arrival as usize % LOG] = Arrival { key, rank, available };
        }
        self.note_arrival += 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<Hint<K>>>() + self.log.capacity() * size_of::<Arrival<K>>()
    }
}
