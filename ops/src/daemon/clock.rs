//! The service's clock. It continues where the store's last run stopped and never goes back.

use std::time::Instant;

use wharf_core::link::Clock;
use wharf_core::time::Time;

/// The logical clock of a running service.
#[derive(Clone, Debug)]
pub struct ServiceClock {
    base: Time,
    started: Instant,
}

impl ServiceClock {
    /// Creates a clock that shows `base` now.
    #[must_use]
    pub fn starting_at(base: Time) -> Self {
        Self { base, started: Instant::now() }
    }
}

impl Clock for ServiceClock {
    fn now(&self) -> Time {
        // Does not overflow: 2^64 ns are 584 years.
        Time(self.base.0 + self.started.elapsed().as_nanos() as u64)
    }
}
