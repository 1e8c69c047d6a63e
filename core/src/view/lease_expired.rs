//! The allocations whose lease ran out, as a shard tells followers.
//!
//! A view has the newest [`LEASES_EXPIRED_KEPT`] of them, in a ring. So a follower that sees that an allocation ended
//! learns from the later view whether its lease ran out. One that fell behind the ring is told only that it ended.

use std::collections::VecDeque;

use super::View;
use crate::ids::AllocationId;
use crate::limits::LEASES_EXPIRED_KEPT;

/// The expired leases of a shard that no view tells yet. The oldest are dropped if they exceed the ring.
#[derive(Default)]
pub(crate) struct UntoldExpired {
    /// The number of all expired leases so far.
    count: u64,
    allocations: VecDeque<AllocationId>,
}

/// Returns the place of an expired lease in the ring.
pub(super) fn place(number: u64) -> u32 {
    (number % LEASES_EXPIRED_KEPT) as u32
}

impl UntoldExpired {
    /// Returns the number of all expired leases so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.allocations.capacity() * size_of::<AllocationId>()) as u64
    }

    /// Records that the lease of an allocation ran out.
    pub(crate) fn note(&mut self, id: AllocationId) {
        if self.allocations.len() as u64 == LEASES_EXPIRED_KEPT {
            self.allocations.pop_front();
        }
        self.allocations.push_back(id);
        self.count += 1;
    }

    /// Moves them to those that the next view tells first.
    pub(crate) fn tell(&mut self, told: &mut Vec<AllocationId>) {
        told.extend(self.allocations.drain(..));
    }
}

impl View {
    /// Returns the allocations whose lease ran out since `older`, as far as the ring has them, in order of id.
    pub(super) fn expired_since(&self, older: &Self) -> Vec<AllocationId> {
        let count = self.head.leases_expired;
        let first = older.head.leases_expired.max(count.saturating_sub(LEASES_EXPIRED_KEPT));
        let told = (first..count).map(|number| {
            let told = self.mirror.expired.get(place(number)).copied().flatten();
            told.expect("the ring has the newest of them")
        });
        let mut expired: Vec<AllocationId> = told.collect();
        expired.sort_unstable();
        expired
    }
}
