//! The clock of the engine.

use crate::time::Time;

/// The source of `now`. It never goes back.
pub trait Clock: Send {
    /// Returns the time since the store was created.
    fn now(&self) -> Time;
}
