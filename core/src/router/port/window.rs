//! How many commands a port should have at its shards.

use crate::limits::{PORT_IN_FLIGHT_MAX, QUEUE_NS, SHARD_WINDOW_MIN};

/// The windows of the shards of a port, and their sum. All changes are O(1).
#[derive(Debug)]
pub(super) struct Windows {
    of: Vec<OfShard>,
    sum: usize,
    /// The commands per second of all shards.
    rate: u64,
    /// The most that the sum may be.
    most: usize,
}

/// What is known of one shard.
#[derive(Clone, Copy, Debug)]
struct OfShard {
    /// Its time per command in ns; 0 if it is not known.
    pace: u64,
    window: usize,
    /// Its commands per second.
    rate: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Returns the number of commands that a shard does in [`QUEUE_NS`]. `pace` is its time per command in ns; 0 if it is not
/// known.
fn window(pace: u64) -> usize {
    let commands = QUEUE_NS.checked_div(pace).and_then(|commands| usize::try_from(commands).ok());
    commands.map_or(PORT_IN_FLIGHT_MAX, |commands| commands.clamp(SHARD_WINDOW_MIN, PORT_IN_FLIGHT_MAX))
}

impl OfShard {
    fn new(pace: u64) -> Self {
        Self { pace, window: window(pace), rate: SECOND_NS.checked_div(pace).unwrap_or(SECOND_NS) }
    }
}

impl Windows {
    pub(super) fn new(shards: usize) -> Self {
        let of = vec![OfShard::new(0); shards];
        Self {
            sum: of.iter().map(|shard| shard.window).sum(),
            rate: of.iter().map(|shard| shard.rate).sum(),
            most: PORT_IN_FLIGHT_MAX,
            of,
        }
    }

    /// Sets the time per command of a shard, in ns.
    pub(super) fn set_pace(&mut self, shard: usize, pace: u64) {
        if self.of[shard].pace != pace {
            let new = OfShard::new(pace);
            let before = std::mem::replace(&mut self.of[shard], new);
            self.sum = self.sum - before.window + new.window;
            self.rate = self.rate - before.rate + new.rate;
        }
    }

    /// Returns the time per command of a shard in ns; 0 if it is not known.
    pub(super) fn pace(&self, shard: usize) -> u64 {
        self.of[shard].pace
    }

    /// Returns whether a shard with this number of commands has as many as it should.
    #[inline]
    pub(super) fn is_full(&self, shard: usize, commands: usize) -> bool {
        commands >= self.of[shard].window
    }

    /// Returns the time per command in ns if all shards are at work. At least 1.
    pub(super) fn turn_ns(&self) -> u64 {
        (SECOND_NS / self.rate.max(1)).max(1)
    }

    /// Sets the most that the window of all shards may be, for a test.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the window of all shards together.
    pub(super) fn sum(&self) -> usize {
        self.sum.min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_time_per_command() {
        let mut windows = Windows::new(3);
        assert_eq!(windows.sum(), PORT_IN_FLIGHT_MAX);
        windows.set_pace(0, QUEUE_NS / 10);
        windows.set_pace(1, QUEUE_NS / 20);
        assert_eq!(windows.sum(), PORT_IN_FLIGHT_MAX, "one shard is still as fast as it may be");
        windows.set_pace(2, QUEUE_NS * 100);
        assert_eq!(windows.sum(), 10 + 20 + SHARD_WINDOW_MIN);
        let per_second = 10_000 + 20_000 + 10;
        assert_eq!(windows.turn_ns(), 1_000_000_000 / per_second);
        windows.set_pace(0, 1);
        windows.set_pace(0, QUEUE_NS);
        assert_eq!((windows.sum(), windows.pace(0)), (SHARD_WINDOW_MIN + 20 + SHARD_WINDOW_MIN, QUEUE_NS));
    }
}
