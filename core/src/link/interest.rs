//! How whoever follows a shard's views is told of the next one, without asking again and again.
//!
//! A port says to a shard that it wants to hear of the next view, then looks at the current one; the
//! shard publishes, then takes who wants to hear and rings their bells. So a shard that nobody follows
//! pays one read-modify-write for each view, one that is followed rings once for each time that a port
//! asked, and however many views came until the port looks, it looks once.
//!
//! Why no view is missed: both words are changed by read-modify-writes only. If the port's came first,
//! the shard's takes its bit and tells it. If the shard's came first, the port's reads from it, and so
//! the look that follows sees the view that was published before. Model-checked in
//! `core/tests/loom_follow.rs`.

use crate::ids::ShardId;
use crate::limits::{PORTS_MAX, SHARDS_MAX, VIEW_LOOK_INTERVAL};
use crate::sync::{AtomicU64, Ordering};

/// A model of few shards needs but one.
const WORDS: usize = if cfg!(loom) { 1 } else { (SHARDS_MAX as usize).div_ceil(64) };

const _: () = assert!(PORTS_MAX <= 64, "ports fit one word of bits");

/// Which ports want to hear of a shard's views: a bit each.
#[derive(Debug)]
pub struct ViewInterest {
    next: AtomicU64,
    later: AtomicU64,
}

impl Default for ViewInterest {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), later: AtomicU64::new(0) }
    }
}

impl ViewInterest {
    /// This port wants to hear of the next view, once. To be said before the last look at the current
    /// one.
    pub fn want_next(&self, port: u16) {
        // AcqRel: pairs with the swap in `take`; see the top of the file.
        self.next.fetch_or(1 << port, Ordering::AcqRel);
    }

    /// This port wants to hear, once, when some more views were published: it keeps one and has to see
    /// when that is too old to be kept.
    pub fn want_later(&self, port: u16) {
        // AcqRel: as in `want_next`, although nothing rests on the exact moment.
        self.later.fetch_or(1 << port, Ordering::AcqRel);
    }

    /// Called by the shard after it published the view of that sequence: the ports to be told.
    pub fn take(&self, sequence: u64) -> u64 {
        // AcqRel: Release pairs with the read-modify-write in `want_next`, so that a port whose bit was
        // not there sees the view; Acquire, so that what it did before it asked is seen.
        let mut ports = self.next.swap(0, Ordering::AcqRel);
        if sequence.is_multiple_of(VIEW_LOOK_INTERVAL) {
            // AcqRel: as above.
            ports |= self.later.swap(0, Ordering::AcqRel);
        }
        ports
    }
}

/// Of which shards a port has to look at the view: a bit each. The port's bell is rung after a bit is
/// set.
#[derive(Debug)]
pub struct ViewNews {
    shards: [AtomicU64; WORDS],
}

impl Default for ViewNews {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl ViewNews {
    /// Called by a shard that published, before it rings the port's bell.
    pub fn put(&self, shard: ShardId) {
        // Release: pairs with the Acquire in `take` and `is_empty`.
        self.shards[shard.index() / 64].fetch_or(1 << (shard.index() % 64), Ordering::AcqRel);
    }

    /// Whether no shard has told anything; what was told before the bell was rung is seen by who looks
    /// after that ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Acquire: pairs with the Release in `put`.
        self.shards.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Takes all that was told: calls `visit` with each shard, ascending.
    pub fn take(&self, mut visit: impl FnMut(ShardId)) {
        for (at, word) in self.shards.iter().enumerate() {
            // Acquire: pairs with the Release in `put`; Release, so that a later `put` comes after.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let shard = at * 64 + bits.trailing_zeros() as usize;
                visit(ShardId(u16::try_from(shard).expect("SHARDS_MAX fits u16")));
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_once_for_each_time_that_it_asks() {
        let interest = ViewInterest::default();
        assert_eq!(interest.take(1), 0);
        interest.want_next(0);
        interest.want_next(5);
        interest.want_next(5);
        assert_eq!(interest.take(2), 1 | 1 << 5);
        assert_eq!(interest.take(3), 0);
        interest.want_later(63);
        assert_eq!(interest.take(VIEW_LOOK_INTERVAL + 1), 0);
        assert_eq!(interest.take(2 * VIEW_LOOK_INTERVAL), 1 << 63);
        assert_eq!(interest.take(3 * VIEW_LOOK_INTERVAL), 0);
    }

    #[test]
    fn news_are_taken_once_and_in_order() {
        let news = ViewNews::default();
        assert!(news.is_empty());
        [200, 3, 64, 3].into_iter().for_each(|shard| news.put(ShardId(shard)));
        assert!(!news.is_empty());
        let mut taken = Vec::new();
        news.take(|shard| taken.push(shard.0));
        assert_eq!(taken, [3, 64, 200]);
        assert!(news.is_empty());
        news.take(|shard| panic!("{shard:?} was taken"));
    }
}
