//! How long the commands of a shard take, and what follows from it: how many it takes at once.

use crate::limits::{BATCH_MAX, BATCH_NS, PACE_COMMANDS, PACE_GROWTH_MAX};

/// The mean time of the last commands. The caller measures; there is no clock here.
#[derive(Debug, Default)]
pub(super) struct Pace {
    nanos: u64,
    commands: u64,
    /// A time per command that replaces the measured one, for a test.
    fixed: Option<u64>,
}

impl Pace {
    /// Takes a fixed time per command, in ns, instead of a measured one.
    pub(super) fn fix(&mut self, nanos: u64) {
        self.fixed = Some(nanos);
    }

    /// Counts a batch of `commands` commands that took `nanos`.
    ///
    /// The system may have run another thread meanwhile. So one batch at most multiplies the mean by a small number: one
    /// that was held up is soon forgotten, and commands that became slower are still seen soon.
    pub(super) fn add(&mut self, nanos: u64, commands: usize) {
        let before = self.per_command();
        self.commands += commands as u64;
        self.nanos = self.nanos.saturating_add(nanos);
        if before > 0 {
            self.nanos = self.nanos.min(before.saturating_mul(PACE_GROWTH_MAX).saturating_mul(self.commands));
        }
        if self.commands > PACE_COMMANDS {
            // The mean stays, with less weight.
            self.nanos = self.nanos / self.commands * (PACE_COMMANDS / 2);
            self.commands = PACE_COMMANDS / 2;
        }
    }

    /// Returns the time per command in ns. 0 if it is not known.
    pub(super) fn per_command(&self) -> u64 {
        match self.fixed {
            Some(nanos) => nanos,
            None => self.nanos.checked_div(self.commands).unwrap_or(0),
        }
    }

    /// Returns the number of commands that a batch takes at most: those of a short time, so that the first of many slow
    /// commands is answered before the last is decided.
    pub(super) fn batch_max(&self) -> usize {
        match BATCH_NS.checked_div(self.per_command()) {
            None => BATCH_MAX,
            Some(commands) => usize::try_from(commands).map_or(BATCH_MAX, |most| most.clamp(1, BATCH_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_the_last_commands() {
        let mut pace = Pace::default();
        assert_eq!((pace.per_command(), pace.batch_max()), (0, BATCH_MAX));
        (0..10).for_each(|_| pace.add(100_000, 100));
        assert_eq!(pace.per_command(), 1_000);
        assert_eq!(pace.batch_max() as u64, BATCH_NS / 1_000);
        // Slower commands are seen after a few batches.
        (0..40).for_each(|_| pace.add(500_000, 1));
        assert!((50_000..=500_000).contains(&pace.per_command()), "{pace:?}");
        (0..PACE_COMMANDS * 8).for_each(|_| pace.add(500_000, 1));
        assert!((450_000..=500_000).contains(&pace.per_command()), "{pace:?}");
        assert_eq!(pace.batch_max(), 1);
    }

    #[test]
    fn a_batch_that_was_held_up_is_soon_forgotten() {
        let mut pace = Pace::default();
        (0..10).for_each(|_| pace.add(100_000, 100));
        pace.add(50_000_000, 100);
        assert!(pace.per_command() <= 1_000 * PACE_GROWTH_MAX, "{pace:?}");
        (0..40).for_each(|_| pace.add(100_000, 100));
        assert!(pace.per_command() < 1_100, "{pace:?}");
    }

    #[test]
    fn a_fixed_time_is_not_measured() {
        let mut pace = Pace::default();
        pace.fix(BATCH_NS / 2);
        pace.add(1, 1);
        assert_eq!(pace.batch_max(), 2);
        pace.fix(u64::MAX);
        assert_eq!(pace.batch_max(), 1);
    }
}
