//! A doorbell: wakes a thread or task that sleeps because its rings were empty.
//!
//! The state is one word that only read-modify-writes change, so no fence is needed:
//!
//! | from | to | who | when |
//! |---|---|---|---|
//! | any | `RUNG` | a ringer | after it put something into a ring; a ringer that found `ASLEEP` wakes the sleeper |
//! | any | `AWAKE` | the sleeper | before it polls its rings a last time |
//! | `AWAKE` | `ASLEEP` | the sleeper | after that poll found nothing |
//!
//! No wake-up is lost:
//!
//! - A ring before the sleeper's `AWAKE` is visible to it, so the poll that follows sees the new entry.
//! - A ring between `AWAKE` and `ASLEEP` makes the second exchange fail.
//! - A ring after `ASLEEP` finds that state and wakes.
//!
//! Model-checked in `core/tests/loom_ring.rs`.

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
    /// Creates a doorbell that wakes by `waker`. The waker must not lose a wake-up of a sleeper that is not
    /// asleep yet. `thread::unpark` and async wakers satisfy this.
    #[must_use]
    pub fn new(waker: Waker) -> Self {
        Self { state: AtomicU64::new(AWAKE), waker }
    }

    /// Rings the bell. Call it after something was put into a ring of the sleeper, or after anything else
    /// that its `idle` check reads has changed.
    pub fn ring(&self) {
        // AcqRel: Release pairs with the sleeper's swap in `sleep_if`, which then sees what was put in
        // before. Acquire pairs with the exchange there, so that the sleeper's last poll came before.
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            self.waker.wake_by_ref();
        }
    }

    /// Rings the bell and wakes the sleeper, even if its state does not show that it sleeps.
    pub(super) fn wake(&self) {
        // AcqRel: as in `ring`.
        self.state.swap(RUNG, Ordering::AcqRel);
        self.waker.wake_by_ref();
    }

    /// Returns whether the sleeper fell asleep and nobody has rung since. For callers that run the sleeper by
    /// hand.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        // Acquire pairs with the AcqRel in `ring`: an observed ring makes visible what was put in before it.
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// Polls a last time. Returns `true` if `idle` held; then every later ring wakes the sleeper.
    #[must_use]
    pub fn sleep_if(&self, idle: impl FnOnce() -> bool) -> bool {
        // AcqRel: pairs with the swap in `ring`. `idle` sees what was put in before that ring.
        self.state.swap(AWAKE, Ordering::AcqRel);
        // AcqRel pairs with the swap in `ring`. Acquire on failure: the next poll sees what was rung for.
        idle() && self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
