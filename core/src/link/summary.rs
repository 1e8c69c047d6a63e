//! The summary that a shard publishes for routers. Reading it takes no lock.

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;

use crate::ids::OwnerId;
use crate::index::Coordinate;
use crate::sync::{AtomicU64, Ordering};

/// The facts about a shard that a router may use without asking the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFacts {
    /// Grows with each event that could make a refused request fit: a release, or a node that joins, grows or
    /// takes work again.
    pub growth: u64,
    /// A request whose coordinate exceeds this in any dimension of the configured geometry does not fit.
    pub highest: Coordinate,
    /// Capacity and allocations of cpu, memory and GPUs, in 1/10 000 units.
    pub load: [(i128, i128); 3],
}

/// The unit in which allocated shares of the capacity are published: 20 bits.
const SHARE_ONE: i128 = 1 << 20;

/// The published facts of one shard. The shard writes them after each batch, before it hands out the
/// outcomes. So a caller that has seen an outcome finds facts at least as new.
pub struct ShardSummary {
    words: CachePadded<Words>,
    /// The owners with reserved nodes in the shard, ascending. Read only for requests that have an owner.
    owners: ArcSwap<Vec<OwnerId>>,
}

struct Words {
    growth: AtomicU64,
    highest: [AtomicU64; 2],
    /// Three allocated shares of 21 bits each: cpu, memory, GPU.
    load: AtomicU64,
    /// The time per command, in ns. 0 if it is not known.
    pace: AtomicU64,
}

/// The facts as a router read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The shard's growth counter.
    pub growth: u64,
    /// At least as new as `growth`. A request that exceeds it in any dimension did not fit then.
    pub highest: Coordinate,
    /// The allocated shares of the capacity of cpu, memory and GPUs, in 1/2^20.
    pub load: [u32; 3],
}

impl Default for ShardSummary {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            words: CachePadded::new(Words {
                growth: zero(),
                highest: [zero(), zero()],
                load: zero(),
                pace: zero(),
            }),
            owners: ArcSwap::default(),
        }
    }
}

impl ShardSummary {
    /// Publishes the facts. Only the shard's thread may call it.
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
        // Relaxed: only a hint, nothing depends on it.
        self.words.load.store(load, Ordering::Relaxed);
        // Release pairs with the Acquire in `read`: a reader of this growth sees a `highest` at least as new.
        self.words.growth.store(facts.growth, Ordering::Release);
    }

    /// Publishes the mean time of the shard's last commands, in ns. Only the shard's thread may call it.
    pub fn publish_pace(&self, nanos: u64) {
        // Relaxed: only a hint, nothing depends on it.
        self.words.pace.store(nanos, Ordering::Relaxed);
    }

    /// Returns the mean time of the shard's last commands, in ns. 0 if it is not known.
    #[must_use]
    pub fn pace(&self) -> u64 {
        // Relaxed: only a hint.
        self.words.pace.load(Ordering::Relaxed)
    }

    /// Publishes the owners with reserved nodes, ascending. Only the shard's thread may call it, before
    /// [`publish`](Self::publish).
    pub fn publish_owners(&self, owners: Vec<OwnerId>) {
        self.owners.store(Arc::new(owners));
    }

    /// Returns whether `owner` has reserved nodes in the shard.
    #[must_use]
    pub fn has_reserved_for(&self, owner: OwnerId) -> bool {
        self.owners.load().binary_search(&owner).is_ok()
    }

    /// Returns the current facts.
    ///
    /// The two words of `highest` may come from different batches. This is sound: each dimension was true at
    /// some moment not older than `growth`, and a single dimension is enough to exclude a request.
    #[must_use]
    pub fn read(&self) -> Facts {
        // Acquire pairs with the Release in `publish`.
        let growth = self.words.growth.load(Ordering::Acquire);
        // Relaxed: ordered by the Acquire above.
        let highest = Coordinate::from_words([0, 1].map(|i| self.words.highest[i].load(Ordering::Relaxed)));
        // Relaxed: only a hint.
        let load = self.words.load.load(Ordering::Relaxed);
        Facts { growth, highest, load: [0, 1, 2].map(|i| (load >> (21 * i)) as u32 & ((1 << 21) - 1)) }
    }

    /// Returns the allocated share of the capacity of a resource, in 1/2^20, unless the facts exclude a request with these
    /// [words](Coordinate::to_words).
    #[inline]
    #[must_use]
    pub fn load_for(&self, lower: [u64; 2], resource: usize) -> Option<u32> {
        // Relaxed: only a hint which shard to ask first; what it excludes is not compared with a growth counter.
        let highest = [0, 1].map(|i| self.words.highest[i].load(Ordering::Relaxed));
        Coordinate::words_reach(highest, lower).then(|| {
            // Relaxed: see `read`.
            (self.words.load.load(Ordering::Relaxed) >> (21 * resource)) as u32 & ((1 << 21) - 1)
        })
    }

    /// Returns the growth counter alone.
    #[must_use]
    pub fn growth(&self) -> u64 {
        // Acquire pairs with the Release in `publish`.
        self.words.growth.load(Ordering::Acquire)
    }
}
