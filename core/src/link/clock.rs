//! Where the engine gets the time from.

use crate::time::Time;

/// Where `now` comes from. Never goes back.
pub trait Clock: Send {
    /// The time since the store was created.
    fn now(&self) -> Time;
}
