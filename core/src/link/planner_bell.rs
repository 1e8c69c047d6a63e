//! Wakes planners from shards.

use std::sync::Arc;

use super::Doorbell;
use crate::sync::{AtomicU64, Ordering};

const GROWTH: u64 = 1;
const ENDS: u64 = 2;

/// A planner's bell, and the events for which shards ring it in addition to their answers.
pub struct PlannerBell {
    pub(crate) bell: Arc<Doorbell>,
    wanted: AtomicU64,
}

impl PlannerBell {
    /// Creates a bell for a planner that wants no events yet.
    #[must_use]
    pub fn new(bell: Arc<Doorbell>) -> Self {
        Self { bell, wanted: AtomicU64::new(0) }
    }

    /// Sets the events to ring for. Call it before the last check for these events.
    pub fn set_wanted(&self, growth: bool, ends: bool) {
        let wanted = (u64::from(growth) * GROWTH) | (u64::from(ends) * ENDS);
        // AcqRel: pairs with the read-modify-write in `tell`. If that came first, the check that follows sees
        // what the shard published before. Otherwise, the shard sees what is wanted.
        self.wanted.swap(wanted, Ordering::AcqRel);
    }

    /// Rings the bell if the planner wants one of the events. A shard calls it after it published: capacity
    /// grew, or a bundle ended.
    pub fn tell(&self, grew: bool, ended: bool) {
        let happened = (u64::from(grew) * GROWTH) | (u64::from(ended) * ENDS);
        // A read-modify-write that changes nothing, so that it has a place in the modification order. AcqRel
        // pairs with the swap in `set_wanted`.
        if happened != 0 && self.wanted.fetch_or(0, Ordering::AcqRel) & happened != 0 {
            self.bell.ring();
        }
    }
}
