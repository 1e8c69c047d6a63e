//! The waiting requests and bundles that a shard woke, passed to their port separately from answers.
//!
//! Model-checked in `core/tests/loom_woken.rs`, together with the port's doorbell.

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Numbers of woken copies between a shard and their port. A lock protects them. It is taken only when a
/// copy was woken; other callers only read the flag.
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
    /// Adds one request. Ring the port's bell after this.
    ///
    /// # Panics
    /// Panics if another thread panicked while it held the lock.
    pub fn put(&self, number: u64) {
        let mut numbers = self.numbers.lock().expect("no holder of the woken panics");
        numbers.push(number);
        // Release pairs with the Acquire in `is_empty`. The flag is set under the lock, so that `take` cannot
        // clear it without seeing the number.
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether there is nothing to take. Numbers that were put before a ring of the port's bell are
    /// visible after that ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Acquire pairs with the Release in `put`.
        !self.any.load(Ordering::Acquire)
    }

    /// Takes all numbers, in order.
    ///
    /// # Panics
    /// Panics as [`put`](Self::put) does.
    pub fn take(&self) -> Vec<u64> {
        let mut numbers = self.numbers.lock().expect("no holder of the woken panics");
        // Relaxed: only the port reads the flag, and the lock orders this with the store in `put`.
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut numbers)
    }
}
