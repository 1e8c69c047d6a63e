//! Notification of followers about new views, without polling.
//!
//! A port registers interest in the shard's next view, then reads the current one. The shard publishes a
//! view, then takes the interested ports and rings their bells. A shard without followers pays one
//! read-modify-write per view. A followed shard rings once for each time that a port asked. A port reads
//! once, even if several views were published in between.
//!
//! No view is missed, because only read-modify-writes change both words. If the port's came first, the
//! shard's takes its bit and notifies it. If the shard's came first, the port's reads from it, so the port's
//! next read sees the view that was published before. Model-checked in `core/tests/loom_follow.rs`.

use crate::ids::ShardId;
use crate::limits::{PORTS_MAX, SHARDS_MAX, VIEW_LOOK_INTERVAL};
use crate::sync::{AtomicU64, Ordering};

/// The loom model has few shards and needs one word.
const WORDS: usize = if cfg!(loom) { 1 } else { (SHARDS_MAX as usize).div_ceil(64) };

const _: () = assert!(PORTS_MAX <= 64, "ports fit one word of bits");

/// The ports that want to hear of a shard's views, one bit per port.
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
    /// Asks to notify this port of the next view, once. Call it before the last read of the current view.
    pub fn want_next(&self, port: u16) {
        // AcqRel: pairs with the swap in `take`. See the module docs.
        self.next.fetch_or(1 << port, Ordering::AcqRel);
    }

    /// Asks to notify this port, once, after some more views. For a port that keeps a view and must check
    /// when it is too old to keep.
    pub fn want_later(&self, port: u16) {
        // AcqRel: as in `want_next`, although the exact moment does not matter here.
        self.later.fetch_or(1 << port, Ordering::AcqRel);
    }

    /// Returns the ports to notify. The shard calls it after it published the view with that sequence.
    pub fn take(&self, sequence: u64) -> u64 {
        // AcqRel: Release pairs with the read-modify-write in `want_next`, so that a port whose bit is not
        // taken here sees the view. Acquire makes visible what a port did before it asked.
        let mut ports = self.next.swap(0, Ordering::AcqRel);
        if sequence.is_multiple_of(VIEW_LOOK_INTERVAL) {
            // AcqRel: as above.
            ports |= self.later.swap(0, Ordering::AcqRel);
        }
        ports
    }
}

/// The shards that have something for a port in addition to answers, one bit per shard. The port's bell is rung after a bit is
/// set.
#[derive(Debug)]
pub struct ShardNews {
    shards: [AtomicU64; WORDS],
}

impl Default for ShardNews {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl ShardNews {
    /// Adds a shard. The shard calls it after it published and before it rings the port's bell.
    pub fn put(&self, shard: ShardId) {
        // Release: pairs with the Acquire in `take` and `is_empty`.
        self.shards[shard.index() / 64].fetch_or(1 << (shard.index() % 64), Ordering::AcqRel);
    }

    /// Returns whether there is no news. News that was put before a ring of the bell is visible after that
    /// ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Acquire: pairs with the Release in `put`.
        self.shards.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Takes all news and calls `visit` with each shard in ascending order.
    pub fn take(&self, mut visit: impl FnMut(ShardId)) {
        for (at, word) in self.shards.iter().enumerate() {
            // Acquire: pairs with the Release in `put`. Release: a later `put` is ordered after this.
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
        let news = ShardNews::default();
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
