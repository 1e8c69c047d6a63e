//! The logical clock. The engine never reads a clock: `now` is passed in with each batch.

use crate::planted::{PlantedBug, is_planted};

/// Nanoseconds of service time since the store was created.
///
/// It is monotonic and durable. It continues from where it stopped and does not advance while the service is
/// down, so leases measured on it do not expire during a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The deadline of what has none.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time `nanos` nanoseconds later.
    #[must_use]
    pub fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the nanoseconds from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns whether a request with this deadline that has not begun at `now` is too late, and so is not done. A request
    /// is asked this each time that it is taken out of a queue.
    #[inline]
    #[must_use]
    pub fn is_missed(self, now: Self) -> bool {
        self <= now && !is_planted(PlantedBug::LateIsDone)
    }
}
