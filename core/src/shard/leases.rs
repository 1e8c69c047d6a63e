//! Commands about leases, and the end of allocations whose lease is over.
//!
//! Any number of leases may end at one instant. So [`Command::GoOn`](super::Command::GoOn) ends a bounded number of them
//! per command. A step alone ends none: then the result would depend on how commands are split into batches.

use super::Shard;
use super::rejection::LeaseRejection;
use crate::ids::{AllocationId, SessionId};
use crate::time::Time;
use crate::view::EndCause;

/// A lease that was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewedLease {
    /// The allocation.
    pub allocation: AllocationId,
    /// The time until which the lease lasts.
    pub until: Time,
}

/// The leases of a session that were renewed on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenewedSession {
    /// The number of allocations.
    pub allocations: u64,
    /// The time until which all of them last. `None`: there are none.
    pub until: Option<Time>,
}

impl RenewedSession {
    /// Combines the answers of two shards.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let until = match (self.until, other.until) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self { allocations: self.allocations + other.allocations, until }
    }
}

impl Shard {
    pub(super) fn handle_renew_lease(
        &mut self,
        allocation: AllocationId,
        lasts_ns: u64,
    ) -> Result<RenewedLease, LeaseRejection> {
        let until = self.books.renew_lease(allocation, lasts_ns, self.now)?;
        assert!(until > self.now || lasts_ns == 0, "a renewed lease lasts");
        Ok(RenewedLease { allocation, until })
    }

    pub(super) fn handle_renew_session(&mut self, session: SessionId, lasts_ns: u64) -> RenewedSession {
        let (allocations, until) = self.books.renew_session(session, lasts_ns, self.now);
        assert!(until.is_some() == (allocations > 0), "session {session} has a deadline without leases");
        assert!(until.is_none_or(|until| until >= self.now), "the leases of {session} are renewed too late");
        RenewedSession { allocations, until }
    }

    /// Returns whether the lease of an allocation is over.
    pub(super) fn has_lease_over(&self) -> bool {
        self.books.leases.next_deadline() <= self.now
    }

    /// Ends allocations whose lease is over, at most as many as one command may.
    pub(super) fn end_leases(&mut self) {
        for _ in 0..self.audit.pages.leases_ended {
            let Some(id) = self.books.lease_over(self.now) else { return };
            self.audit.work.allocations_looked_at += 1;
            let ended = self.end_allocation(id, EndCause::Expired);
            ended.expect("an allocation with a lease is live");
            assert!(self.lease_of(id).is_none(), "the lease of {id} outlives it");
            self.books.leases.expired.note(id);
        }
    }

    /// Returns the time until which the lease of an allocation lasts, and the session that it belongs to.
    #[must_use]
    pub fn lease_of(&self, id: AllocationId) -> Option<(Time, Option<SessionId>)> {
        self.books.leases.of(id)
    }
}
