//! The clock of a replay: the machine's, or the trace's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use wharf_core::link::Clock;
use wharf_core::time::Time;

/// Time since the replay began, or the virtual time of the trace.
#[derive(Clone, Debug)]
pub enum ReplayClock {
    /// As the machine counts it.
    Real(Instant),
    /// As the driver sets it, in nanoseconds; shared by all shards.
    Virtual(Arc<AtomicU64>),
}

impl ReplayClock {
    /// The machine's clock, from now on.
    #[must_use]
    pub fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// Virtual time, at zero.
    #[must_use]
    pub fn virtual_time() -> Self {
        Self::Virtual(Arc::default())
    }

    /// Moves virtual time on. It never goes back: an earlier time is ignored.
    pub fn set(&self, now: Time) {
        if let Self::Virtual(nanos) = self {
            // Relaxed: shards learn of an order through their rings, which order this store
            // before it; reading it a batch late would only show an earlier time.
            nanos.fetch_max(now.0, Ordering::Relaxed);
        }
    }
}

impl Clock for ReplayClock {
    fn now(&self) -> Time {
        match self {
            Self::Real(start) => Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            // Relaxed: see `set`.
            Self::Virtual(nanos) => Time(nanos.load(Ordering::Relaxed)),
        }
    }
}
