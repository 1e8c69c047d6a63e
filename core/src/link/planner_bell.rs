//! How shards wake planners.

use std::sync::Arc;

use super::Doorbell;
use crate::sync::{AtomicU64, Ordering};

const GROWTH: u64 = 1;
const LOSSES: u64 = 2;

/// A planner's bell, and for what shards should ring it beside their answers.
pub struct PlannerBell {
    pub(crate) bell: Arc<Doorbell>,
    wanted: AtomicU64,
}

impl PlannerBell {
    /// Around the bell of a planner that wants to be told of nothing yet.
    #[must_use]
    pub fn new(bell: Arc<Doorbell>) -> Self {
        Self { bell, wanted: AtomicU64::new(0) }
    }

    /// Says for what to ring. Called before the last look at what it is to be rung for.
    pub fn set_wanted(&self, growth: bool, losses: bool) {
        let wanted = (u64::from(growth) * GROWTH) | (u64::from(losses) * LOSSES);
        // AcqRel: pairs with the read-modify-write in `tell`. If that came first, what the shard
        // published before is seen by the look that follows; else the shard sees what is wanted.
        self.wanted.swap(wanted, Ordering::AcqRel);
    }

    /// Called by a shard after it published: something grew, or a node was lost or removed or a bundle ended.
    pub fn tell(&self, grew: bool, lost: bool) {
        let happened = (u64::from(grew) * GROWTH) | (u64::from(lost) * LOSSES);
        // A read-modify-write that changes nothing, so that it has a place in the order of changes;
        // AcqRel pairs with the swap in `set_wanted`.
        if happened != 0 && self.wanted.fetch_or(0, Ordering::AcqRel) & happened != 0 {
            self.bell.ring();
        }
    }
}
