//! What a shard tells a port apart from its answers: the waiting requests that it woke.
//!
//! Model-checked in `core/tests/loom_woken.rs`, with the port's doorbell.

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Numbers of requests that a shard woke, on their way to their port. A lock, because it is taken
/// only where something waits: the flag beside it is all that others look at.
#[derive(Debug)]
pub struct WokenBox {
    numbers: Mutex<Vec<u64>>,
    any: AtomicBool,
}

impl Default for WokenBox {
    fn default() -> Self {
        Self { numbers: Mutex::new(Vec::new()), any: AtomicBool::new(false) }
    }
}

impl WokenBox {
    /// Tells of one request. The port's bell must be rung after this.
    ///
    /// # Panics
    /// When another thread panicked while it held the lock.
    pub fn put(&self, number: u64) {
        let mut numbers = self.numbers.lock().expect("no holder of the woken panics");
        numbers.push(number);
        // Release pairs with the Acquire in `is_empty`; set while the lock is held, so that
        // `take` cannot clear what it does not see.
        self.any.store(true, Ordering::Release);
    }

    /// Whether there is nothing to take; what was put before the port's bell was rung is seen by
    /// who looks after that ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Acquire pairs with the Release in `put`.
        !self.any.load(Ordering::Acquire)
    }

    /// Takes all that is there, in order.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    pub fn take(&self) -> Vec<u64> {
        let mut numbers = self.numbers.lock().expect("no holder of the woken panics");
        // Relaxed: the port alone reads the flag, and the lock orders this with the store in
        // `put`, which is made under it.
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut numbers)
    }
}
