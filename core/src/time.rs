//! The logical clock. The engine never reads a clock: `now` comes in with each batch.

/// Nanoseconds of service time since the store was created.
///
/// Monotonic and durable: it goes on where it stopped, so it stands still while the service is
/// down, and leases measured on it do not run out over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// So many nanoseconds later.
    #[must_use]
    pub fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The nanoseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
