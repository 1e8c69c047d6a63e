//! The part of the oracle for leases: a list with a deadline each.

use wharf_core::ids::{AllocationId, SessionId};
use wharf_core::request::PlacementRequest;
use wharf_core::shard::{
    Command, LeaseRejection, Outcome, RenewedLease, RenewedSession, Shard, UnknownAllocation,
};
use wharf_core::time::Time;

use super::linear_shard::{LinearShard, differs};

#[derive(Clone, Copy, Debug)]
struct Lease {
    allocation: AllocationId,
    session: Option<SessionId>,
    until: Time,
}

/// The leases of a shard, in any order.
#[derive(Default)]
pub(super) struct LinearLeases {
    leases: Vec<Lease>,
    /// How many ends one command may bring about.
    ended_max: usize,
}

impl LinearLeases {
    fn of(&self, id: AllocationId) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.allocation == id)
    }

    pub(super) fn end(&mut self, id: AllocationId) {
        self.leases.retain(|lease| lease.allocation != id);
    }

    /// Returns the lease that ends first, if its time has come.
    fn over(&self, now: Time) -> Option<AllocationId> {
        let over = self.leases.iter().filter(|lease| lease.until <= now);
        let turn = |lease: &&Lease| {
            let Lease { allocation, session, until } = **lease;
            (until, session, session.map(|_| allocation.partition), allocation)
        };
        over.min_by_key(turn).map(|lease| lease.allocation)
    }
}

impl LinearShard {
    /// Sets how many leases one `GoOn` command ends at most.
    pub fn set_leases_ended(&mut self, most: u32) {
        self.leases.ended_max = most as usize;
    }

    fn deadline(&self, lasts_ns: u64) -> Time {
        Time(self.now.0 + lasts_ns)
    }

    /// Notes the lease of a new allocation. All leases of a session in one partition have the latest deadline.
    pub(super) fn begin_lease(&mut self, id: AllocationId, request: &PlacementRequest) {
        let Some(terms) = request.lease.as_deref() else { return };
        let session = terms.session;
        let mut until = self.deadline(terms.lasts_ns);
        let leases = &mut self.leases.leases;
        let same = |lease: &Lease| {
            session.is_some() && lease.session == session && lease.allocation.partition == id.partition
        };
        until = leases.iter().filter(|lease| same(lease)).map(|lease| lease.until).fold(until, Time::max);
        leases.iter_mut().filter(|lease| same(lease)).for_each(|lease| lease.until = until);
        leases.push(Lease { allocation: id, session, until });
    }

    pub(super) fn compare_renewal(&mut self, command: &Command, outcome: &Outcome) -> Result<(), String> {
        match (command, outcome) {
            (&Command::RenewLease { allocation, lasts_ns }, Outcome::RenewedLease(renewed)) => {
                let expected = self.renew_lease(allocation, lasts_ns);
                if *renewed == expected { Ok(()) } else { differs(renewed, expected) }
            }
            (&Command::RenewSession { session, lasts_ns }, Outcome::RenewedSession(renewed)) => {
                let expected = self.renew_session(session, lasts_ns);
                if *renewed == expected { Ok(()) } else { differs(renewed, expected) }
            }
            (_, other) => differs(other, "a renewal"),
        }
    }

    fn renew_lease(&mut self, id: AllocationId, lasts_ns: u64) -> Result<RenewedLease, LeaseRejection> {
        let until = self.deadline(lasts_ns);
        let lease = self.leases.leases.iter_mut().find(|lease| lease.allocation == id);
        match lease {
            Some(Lease { session: Some(session), .. }) => Err(LeaseRejection::OfSession(id, *session)),
            Some(lease) => {
                lease.until = lease.until.max(until);
                Ok(RenewedLease { allocation: id, until: lease.until })
            }
            None if self.allocations.contains_key(&id) => Err(LeaseRejection::NoLease(id)),
            None => Err(UnknownAllocation(id).into()),
        }
    }

    fn renew_session(&mut self, session: SessionId, lasts_ns: u64) -> RenewedSession {
        let until = self.deadline(lasts_ns);
        let mut renewed = RenewedSession::default();
        for lease in self.leases.leases.iter_mut().filter(|lease| lease.session == Some(session)) {
            lease.until = lease.until.max(until);
            renewed = renewed.and(RenewedSession { allocations: 1, until: Some(lease.until) });
        }
        renewed
    }

    /// Ends what is over, a bounded number at a time. Requests that this wakes are compared once all wake-ups are
    /// answered.
    pub(super) fn compare_go_on(&mut self, outcome: &Outcome) -> Result<(), String> {
        for _ in 0..self.leases.ended_max {
            let Some(id) = self.leases.over(self.now) else { break };
            assert!(self.release(id), "an allocation with a lease is live");
        }
        if matches!(outcome, Outcome::WentOn) { Ok(()) } else { differs(outcome, "that it went on") }
    }

    /// Compares the lease of each live allocation, and the first deadline.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn compare_leases(&self, shard: &Shard) -> Result<(), String> {
        for &id in self.allocations.keys() {
            let expected = self.leases.of(id).map(|lease| (lease.until, lease.session));
            if shard.lease_of(id) != expected {
                return differs((id, shard.lease_of(id)), expected);
            }
        }
        let first = self.leases.leases.iter().map(|lease| lease.until).min();
        if first.is_some_and(|first| shard.next_deadline().is_none_or(|next| next > first)) {
            return differs(shard.next_deadline(), first);
        }
        Ok(())
    }
}
