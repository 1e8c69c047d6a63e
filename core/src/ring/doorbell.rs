//! A doorbell: wakes a thread or task that went to sleep because its rings were empty.
//!
//! Ringing costs one fence and one load while the sleeper is awake.
//!
//! | field | who writes it | when |
//! |---|---|---|
//! | `asleep` | the sleeper: true | before it looks at its rings a last time |
//! | `asleep` | the sleeper: false | when that last look found work, or after it woke |
//! | `asleep` | a ringer: false, by swap | when it found true; that ringer alone wakes |
//!
//! Why no wake-up is lost: the sleeper writes `asleep`, then fences, then reads the ring; the
//! ringer writes the ring, then fences, then reads `asleep`. The two fences are totally
//! ordered, so at least one of the two sees the other's write (Dekker's argument).

use std::task::Waker;

use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes one sleeper.
pub struct Doorbell {
    asleep: AtomicBool,
    waker: Waker,
}

impl Doorbell {
    /// A doorbell that wakes by `waker`. Waking a sleeper that is not yet asleep must not be
    /// lost (as with `thread::unpark` and async wakers).
    #[must_use]
    pub fn new(waker: Waker) -> Self {
        Self { asleep: AtomicBool::new(false), waker }
    }

    /// Called after something was put into a ring of the sleeper.
    pub fn ring(&self) {
        // SeqCst: one half of Dekker's argument; pairs with the fence in `sleep_if`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence above. The swap decides which of several ringers wakes;
        // AcqRel pairs with the stores of the sleeper.
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.waker.wake_by_ref();
        }
    }

    /// Announces sleep, then looks a last time: `true` says that `idle` still held, and that
    /// every ring from now on wakes. After waking call [`woke`](Self::woke).
    #[must_use]
    pub fn sleep_if(&self, idle: impl FnOnce() -> bool) -> bool {
        // Relaxed: ordered by the fence below.
        self.asleep.store(true, Ordering::Relaxed);
        // SeqCst: the other half of Dekker's argument; pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        if idle() {
            return true;
        }
        self.woke();
        false
    }

    /// The sleeper is awake again.
    pub fn woke(&self) {
        // Release pairs with the swap in `ring`.
        self.asleep.store(false, Ordering::Release);
    }

    /// Wakes whether or not sleep was announced: to make somebody look at something that is no ring.
    pub fn wake(&self) {
        self.woke();
        self.waker.wake_by_ref();
    }
}
