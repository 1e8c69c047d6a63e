//! A doorbell: wakes a thread or task that went to sleep because its rings were empty.
//!
//! One word, changed by read-modify-write only, so that the argument needs no fence:
//!
//! | from | to | who | when |
//! |---|---|---|---|
//! | any | `RUNG` | a ringer | after it put something into a ring; if it found `ASLEEP`, it alone wakes |
//! | any | `AWAKE` | the sleeper | before it looks at its rings a last time |
//! | `AWAKE` | `ASLEEP` | the sleeper | after that look found nothing |
//!
//! Why no wake-up is lost: a ring before the sleeper's `AWAKE` is read by it, so the look that
//! follows sees what was put in; a ring between `AWAKE` and `ASLEEP` makes the second exchange
//! fail; a ring after `ASLEEP` finds it and wakes. Model-checked in `core/tests/loom_ring.rs`.

use std::task::Waker;

use crate::sync::{AtomicU64, Ordering};

const AWAKE: u64 = 0;
const RUNG: u64 = 1;
const ASLEEP: u64 = 2;

/// Wakes one sleeper.
pub struct Doorbell {
    state: AtomicU64,
    waker: Waker,
}

impl Doorbell {
    /// A doorbell that wakes by `waker`. Waking a sleeper that is not yet asleep must not be
    /// lost (as with `thread::unpark` and async wakers).
    #[must_use]
    pub fn new(waker: Waker) -> Self {
        Self { state: AtomicU64::new(AWAKE), waker }
    }

    /// Called after something was put into a ring of the sleeper, or to make it look at
    /// whatever else its `idle` looks at.
    pub fn ring(&self) {
        // AcqRel: Release pairs with the sleeper's swap in `sleep_if`, which then sees what was
        // put in before; Acquire pairs with the exchange there, so that the sleeper's last look
        // came before.
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            self.waker.wake_by_ref();
        }
    }

    /// Whether the sleeper fell asleep and nobody rang since. For who runs the sleeper by hand.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        // Acquire pairs with the AcqRel in `ring`: what was put in before a ring that is seen is seen too.
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// Looks a last time: `true` says that `idle` held, and that every ring from now on wakes.
    #[must_use]
    pub fn sleep_if(&self, idle: impl FnOnce() -> bool) -> bool {
        // AcqRel: pairs with the swap in `ring`; what was put in before that is seen by `idle`.
        self.state.swap(AWAKE, Ordering::AcqRel);
        // AcqRel pairs with the swap in `ring`; Acquire on failure: what was rung is seen next.
        idle() && self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
