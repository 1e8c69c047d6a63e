//! The clock of a replay: real time, or the virtual time of the trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use wharf_core::link::Clock;
use wharf_core::time::Time;

/// The time since the replay began, or the virtual time of the trace.
#[derive(Clone, Debug)]
pub enum ReplayClock {
    /// Real time since this instant.
    Real(Instant),
    /// Virtual time set by the driver, in nanoseconds. All shards share it.
    Virtual(Arc<AtomicU64>),
}

impl ReplayClock {
    /// Creates a real-time clock that starts now.
    #[must_use]
    pub fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// Creates a virtual clock at zero.
    #[must_use]
    pub fn virtual_time() -> Self {
        Self::Virtual(Arc::default())
    }

    /// Advances virtual time. It never goes back; an earlier time is ignored.
    pub fn set(&self, now: Time) {
        if let Self::Virtual(nanos) = self {
            // Relaxed: shards learn of an order through their rings, which order this store before it.
            // Reading it a batch late would only show an earlier time.
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
