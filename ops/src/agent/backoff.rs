//! Pauses between attempts. They grow up to a bound and are random, so that a thousand agents do not
//! reconnect to a restarted service at the same instant.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The pauses of one agent.
#[derive(Debug)]
pub struct Backoff {
    upper: Duration,
    random: RandomState,
    drawn: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { upper: FIRST, random: RandomState::new(), drawn: 0 }
    }
}

impl Backoff {
    /// Returns the next pause, between half of the current bound and the full bound. The bound doubles each
    /// time, up to 10 s.
    pub fn draw(&mut self) -> Duration {
        let half = self.upper / 2;
        self.upper = (self.upper * 2).min(LONGEST);
        self.drawn += 1;
        // The hasher is seeded by the operating system, which is random enough to spread agents.
        half + half.mul_f64((self.random.hash_one(self.drawn) >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Resets the bound after a success, so that the next pause is short.
    pub fn reset(&mut self) {
        self.upper = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_within_their_bound_and_begin_again() {
        let mut backoff = Backoff::default();
        let mut upper = FIRST;
        for _ in 0..20 {
            let pause = backoff.draw();
            assert!(upper / 2 <= pause && pause <= upper, "{pause:?} of {upper:?}");
            upper = (upper * 2).min(LONGEST);
        }
        assert_eq!(upper, LONGEST);
        backoff.reset();
        assert!(backoff.draw() <= FIRST);
    }
}
