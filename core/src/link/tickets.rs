//! Numbers that are served in turn.

use std::sync::{Arc, OnceLock};

use super::Doorbell;
use crate::sync::{AtomicU64, Ordering};

/// Numbers, and which is served: shared by all planners. Model-checked in `core/tests/loom_tickets.rs`.
#[derive(Default)]
pub struct Tickets {
    next: AtomicU64,
    serving: AtomicU64,
    /// Of all planners.
    bells: OnceLock<Vec<Arc<Doorbell>>>,
}

impl Tickets {
    /// Whose bells are rung when the next number is served.
    ///
    /// # Panics
    /// When it was said before.
    pub fn set_bells(&self, bells: Vec<Arc<Doorbell>>) {
        assert!(self.bells.set(bells).is_ok(), "the planners are known once");
    }

    /// Takes the next number: it is served when all before it were.
    #[must_use]
    pub fn take(&self) -> u64 {
        // Relaxed: only that numbers differ matters.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether that number is being served. Who sleeps until it is looks after its bell was rung, and a
    /// last time before it sleeps.
    #[must_use]
    pub fn is_served(&self, number: u64) -> bool {
        // Acquire pairs with the Release in `serve_next`: what the one before did is done.
        self.serving.load(Ordering::Acquire) == number
    }

    /// The number that is served is done with. Called by who took it, once.
    pub fn serve_next(&self) {
        // Release pairs with the Acquire in `is_served`.
        self.serving.fetch_add(1, Ordering::Release);
        self.bells.get().into_iter().flatten().for_each(|bell| bell.ring());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn planners_are_woken_when_the_next_ticket_is_served() {
        let tickets = Tickets::default();
        let bells: Vec<_> = (0..2).map(|_| Arc::new(Doorbell::new(Waker::noop().clone()))).collect();
        tickets.set_bells(bells.clone());
        let first = tickets.take();
        let second = tickets.take();
        assert!(tickets.is_served(first) && !tickets.is_served(second));
        assert!(bells.iter().all(|bell| bell.sleep_if(|| true)));
        tickets.serve_next();
        assert!(tickets.is_served(second) && !tickets.is_served(first));
        assert!(bells.iter().all(|bell| !bell.is_asleep()), "nobody sleeps on");
    }
}
