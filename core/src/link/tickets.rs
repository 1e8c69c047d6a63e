//! Ticket numbers, served one at a time.

use std::sync::{Arc, OnceLock};

use super::Doorbell;
use crate::sync::{AtomicU64, Ordering};

/// The ticket numbers of all planners, and the one that is served. Model-checked in
/// `core/tests/loom_tickets.rs`.
#[derive(Default)]
pub struct Tickets {
    next: AtomicU64,
    serving: AtomicU64,
    /// The bells of all planners.
    bells: OnceLock<Vec<Arc<Doorbell>>>,
}

impl Tickets {
    /// Sets the bells to ring when the next number is served.
    ///
    /// # Panics
    /// Panics if the bells were set before.
    pub fn set_bells(&self, bells: Vec<Arc<Doorbell>>) {
        assert!(self.bells.set(bells).is_ok(), "the planners are known once");
    }

    /// Takes the next number. It is served after all numbers before it.
    #[must_use]
    pub fn take(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether that number is being served. A planner that sleeps until then must check after its
    /// bell was rung, and once more before it sleeps.
    #[must_use]
    pub fn is_served(&self, number: u64) -> bool {
        // Acquire pairs with the Release in `serve_next`: the work of the previous ticket is visible.
        self.serving.load(Ordering::Acquire) == number
    }

    /// Ends the turn of the current number. Its owner calls this once.
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
