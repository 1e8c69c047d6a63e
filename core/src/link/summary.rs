//! What a shard publishes about itself for routers to read, without a lock.

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;

use crate::ids::OwnerId;
use crate::index::Coordinate;
use crate::sync::{AtomicU64, Ordering};

/// What the router may know of a shard without asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFacts {
    /// Grows with each event that could make a refused request fit: a release, a node that
    /// joins, grows or takes work again.
    pub growth: u64,
    /// No request whose coordinate in the configured geometry exceeds this in any dimension fits.
    pub highest: Coordinate,
    /// Capacity and allocations of cpu, memory and GPUs, in 1/10 000 units.
    pub load: [(i128, i128); 3],
}

/// Allocated shares are published in this many parts of the capacity: 20 bits.
const SHARE_ONE: i128 = 1 << 20;

/// The published facts of one shard. Written by the shard after each batch and before the
/// batch's outcomes are handed out, so that whoever has seen an outcome finds facts at least as
/// new.
pub struct ShardSummary {
    words: CachePadded<Words>,
    /// Who has nodes reserved there, ascending: read for requests that have an owner alone.
    owners: ArcSwap<Vec<OwnerId>>,
}

struct Words {
    growth: AtomicU64,
    highest: [AtomicU64; 2],
    /// Three allocated shares of 21 bits: cpu, memory, GPU.
    load: AtomicU64,
}

/// The facts as a router read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The shard's growth counter.
    pub growth: u64,
    /// At least as new as `growth`: a request that exceeds it in any dimension did not fit then.
    pub highest: Coordinate,
    /// Allocated parts of the capacity of cpu, memory and GPUs, in 1/2^20.
    pub load: [u32; 3],
}

impl Default for ShardSummary {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            words: CachePadded::new(Words { growth: zero(), highest: [zero(), zero()], load: zero() }),
            owners: ArcSwap::default(),
        }
    }
}

impl ShardSummary {
    /// Publishes; called by the shard's thread only.
    pub fn publish(&self, facts: &ShardFacts) {
        let words = facts.highest.to_words();
        for (atomic, word) in self.words.highest.iter().zip(words) {
            // Relaxed: ordered before `growth` by its Release below.
            atomic.store(word, Ordering::Relaxed);
        }
        let mut load = 0u64;
        for (i, (total, allocated)) in facts.load.into_iter().enumerate() {
            let share =
                if total > 0 { (allocated * SHARE_ONE / total).clamp(0, SHARE_ONE) } else { SHARE_ONE };
            load |= (share as u64) << (21 * i);
        }
        // Relaxed: a hint, nothing rests on it.
        self.words.load.store(load, Ordering::Relaxed);
        // Release pairs with the Acquire in `read`: who sees this growth sees a `highest` at least as new.
        self.words.growth.store(facts.growth, Ordering::Release);
    }

    /// Publishes who has nodes reserved, ascending; as [`publish`](Self::publish), and before it.
    pub fn publish_owners(&self, owners: Vec<OwnerId>) {
        self.owners.store(Arc::new(owners));
    }

    /// Whether `owner` has nodes reserved there.
    #[must_use]
    pub fn has_reserved_for(&self, owner: OwnerId) -> bool {
        self.owners.load().binary_search(&owner).is_ok()
    }

    /// The facts as they stand.
    ///
    /// The two words of `highest` may come from different batches. That is sound: each dimension
    /// on its own is a fact of some moment not older than `growth`, and one dimension that does
    /// not suffice is enough to exclude.
    #[must_use]
    pub fn read(&self) -> Facts {
        // Acquire pairs with the Release in `publish`.
        let growth = self.words.growth.load(Ordering::Acquire);
        // Relaxed: ordered by the Acquire above.
        let highest = Coordinate::from_words([0, 1].map(|i| self.words.highest[i].load(Ordering::Relaxed)));
        // Relaxed: a hint.
        let load = self.words.load.load(Ordering::Relaxed);
        Facts { growth, highest, load: [0, 1, 2].map(|i| (load >> (21 * i)) as u32 & ((1 << 21) - 1)) }
    }

    /// The growth counter alone.
    #[must_use]
    pub fn growth(&self) -> u64 {
        // Acquire pairs with the Release in `publish`.
        self.words.growth.load(Ordering::Acquire)
    }
}
