//! A bound for lines in logs that peers cause. A peer can cause any number of refusals, and must not fill a disk by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Admits up to a number of lines per second, and counts the others.
#[derive(Debug)]
pub struct LogLimit {
    per_second_max: u64,
    /// The second of the last line, since the epoch.
    second: AtomicU64,
    /// The lines of that second.
    count: AtomicU64,
    left_out: AtomicU64,
}

impl LogLimit {
    /// Admits up to `per_second_max` lines per second.
    #[must_use]
    pub const fn new(per_second_max: u64) -> Self {
        let [second, count, left_out] = [const { AtomicU64::new(0) }; 3];
        Self { per_second_max, second, count, left_out }
    }

    /// Returns how many lines were left out before this one, or `None` if this one is left out too.
    pub fn admit(&self) -> Option<u64> {
        self.admit_in(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
    }

    fn admit_in(&self, second: u64) -> Option<u64> {
        // Relaxed: counters of their own. Two threads at the turn of a second may write a few more.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < self.per_second_max {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writes_so_many_and_the_next_one_says_how_many_were_left_out() {
        let limit = LogLimit::new(100);
        let written = (0..150).filter(|_| limit.admit_in(7).is_some()).count();
        assert_eq!(written, 100);
        assert_eq!(limit.admit_in(8), Some(50));
        assert_eq!(limit.admit_in(8), Some(0));
    }
}
