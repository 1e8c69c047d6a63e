//! Leases: allocations that end by themselves unless they are renewed (Ray's worker leases; etcd's leases).
//!
//! A lease of its own has a deadline of its own. Leases of a session share the deadline of a *holder*, one per session
//! and partition. So a renewal for a session costs the same for any number of allocations. A holder is per partition
//! because the durable state must not depend on the number of shards. It is known only while it has allocations.
//!
//! A deadline only grows. A lease whose deadline has passed is still there until the shard ends its allocation, and may
//! be renewed until then.

use std::collections::{BTreeMap, BTreeSet};

use super::Books;
use crate::broken::Broken;
use crate::ids::{AllocationId, PartitionId, SessionId};
use crate::journal::Effect;
use crate::map::FixedMap;
use crate::memory::{of_btree, of_map};
use crate::planted::{PlantedBug, is_planted};
use crate::request::LeaseTerms;
use crate::shard::rejection::{LeaseRejection, UnknownAllocation};
use crate::state::LeaseRecord;
use crate::time::Time;
use crate::timers::Timers;
use crate::view::UntoldExpired;

/// Who decides when an allocation with a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    /// A deadline of its own.
    Own(Time),
    /// The holder of this session in the allocation's partition.
    Of(SessionId),
}

/// Identifies a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HolderKey {
    session: SessionId,
    partition: PartitionId,
}

impl HolderKey {
    fn new(session: SessionId, id: AllocationId) -> Self {
        Self { session, partition: id.partition }
    }
}

/// The leases of a session in one partition.
struct Holder {
    until: Time,
    allocations: BTreeSet<AllocationId>,
}

/// The leases of a shard. Its allocations are marked in the ledger.
#[derive(Default)]
pub(crate) struct Leases {
    of: FixedMap<AllocationId, Lease>,
    own: Timers<AllocationId>,
    holders: BTreeMap<HolderKey, Holder>,
    deadlines: Timers<HolderKey>,
    /// The allocations whose lease ran out, for followers.
    pub(crate) expired: UntoldExpired,
}

impl Leases {
    /// Returns the first deadline, or the end of time.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.own.next().min(self.deadlines.next())
    }

    /// Returns the deadline of an allocation's lease, and the session that it belongs to.
    pub(crate) fn of(&self, id: AllocationId) -> Option<(Time, Option<SessionId>)> {
        Some(match *self.of.get(&id)? {
            Lease::Own(until) => (until, None),
            Lease::Of(session) => (self.holders[&HolderKey::new(session, id)].until, Some(session)),
        })
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let sessions = self.holders.values().map(|holder| holder.allocations.len()).sum();
        of_map(&self.of)
            + self.own.bytes()
            + of_btree(self.holders.len(), size_of::<(HolderKey, Holder)>())
            + of_btree(sessions, size_of::<AllocationId>())
            + self.deadlines.bytes()
            + self.expired.bytes()
    }

    /// Notes the lease of an allocation that has none. Returns its deadline, which is not before `until`.
    fn enter(&mut self, id: AllocationId, session: Option<SessionId>, until: Time) -> Time {
        let lease = session.map_or(Lease::Own(until), Lease::Of);
        let before = self.of.insert(id, lease);
        assert!(before.is_none(), "allocation {id} has a lease already");
        let Some(session) = session else {
            self.own.insert(until, id);
            assert!(self.own.len() <= self.of.len(), "a deadline belongs to no lease");
            return until;
        };
        let key = HolderKey::new(session, id);
        let new = || Holder { until: Time::default(), allocations: BTreeSet::new() };
        let is_new = self.holders.entry(key).or_insert_with(new).allocations.insert(id);
        assert!(is_new, "session {session} holds {id} already");
        self.extend_holder(key, until)
    }

    /// Moves the deadline of a holder, unless it is later already. Returns the deadline.
    fn extend_holder(&mut self, key: HolderKey, until: Time) -> Time {
        let holder = self.holders.get_mut(&key).expect("a holder has allocations");
        if until > holder.until {
            let before = std::mem::replace(&mut holder.until, until);
            let had = self.deadlines.remove(before, key);
            assert!(had || before == Time::default(), "the leases of a session had no deadline");
            self.deadlines.insert(until, key);
        }
        holder.until
    }

    /// Forgets the lease of an allocation that ended, and its holder with the last one.
    #[cold]
    pub(super) fn leave(&mut self, id: AllocationId) {
        match self.of.remove(&id).expect("a marked allocation has a lease") {
            Lease::Own(until) => {
                let had = self.own.remove(until, id);
                assert!(had, "the lease of {id} has a deadline");
            }
            Lease::Of(session) => {
                let key = HolderKey::new(session, id);
                let holder = self.holders.get_mut(&key).expect("a holder has allocations");
                let had = holder.allocations.remove(&id);
                assert!(had, "{id} is a lease of session {session}");
                if holder.allocations.is_empty() {
                    self.deadlines.remove(holder.until, key);
                    self.holders.remove(&key);
                }
            }
        }
    }
}

/// Returns the deadline of a lease that lasts for a time from `now` on.
fn deadline(now: Time, lasts_ns: u64) -> Time {
    Time(now.0.saturating_add(lasts_ns))
}

impl Books {
    /// Gives a lease to an allocation that was just made.
    #[cold]
    pub(crate) fn begin_lease(&mut self, id: AllocationId, terms: &LeaseTerms, now: Time) {
        self.ledger.mark_leased(id);
        let &LeaseTerms { lasts_ns, session } = terms;
        let until = self.leases.enter(id, session, deadline(now, lasts_ns));
        assert!(until >= now, "the lease of {id} is over before it begins");
        self.note(|| Effect::Leased(LeaseRecord { allocation: id, session, until }));
    }

    /// Restores a lease from the durable state. Its allocation must be in the ledger.
    pub(crate) fn resume_lease(&mut self, record: &LeaseRecord) {
        self.ledger.mark_leased(record.allocation);
        self.leases.enter(record.allocation, record.session, record.until);
    }

    /// Returns the durable record of the lease of an allocation that is marked.
    pub(crate) fn lease_record(&self, allocation: AllocationId) -> LeaseRecord {
        let (until, session) = self.leases.of(allocation).expect("a marked allocation has a lease");
        LeaseRecord { allocation, session, until }
    }

    /// Renews the lease of one allocation. Returns its deadline.
    pub(crate) fn renew_lease(
        &mut self,
        id: AllocationId,
        lasts_ns: u64,
        now: Time,
    ) -> Result<Time, LeaseRejection> {
        let before = match self.leases.of.get(&id) {
            Some(&Lease::Own(until)) => until,
            Some(&Lease::Of(session)) => return Err(LeaseRejection::OfSession(id, session)),
            None if self.is_known(id) => return Err(LeaseRejection::NoLease(id)),
            None => return Err(UnknownAllocation(id).into()),
        };
        let until = deadline(now, lasts_ns);
        if until <= before {
            return Ok(before);
        }
        if is_planted(PlantedBug::RenewalForgotten) {
            return Ok(until);
        }
        assert!(self.ledger.is_leased(id), "{id} has a lease, and it is not marked");
        self.leases.of.insert(id, Lease::Own(until));
        let had = self.leases.own.remove(before, id);
        assert!(had, "the lease of {id} had no deadline");
        self.leases.own.insert(until, id);
        self.note(|| Effect::Leased(LeaseRecord { allocation: id, session: None, until }));
        Ok(until)
    }

    /// Returns whether an id names an allocation, a claim, or an allocation inside a bundle.
    fn is_known(&self, id: AllocationId) -> bool {
        self.is_live(id) || self.claims.by_id.contains_key(&id) || self.bundles.holder(id).is_some()
    }

    /// Renews all leases of a session. Returns their number and the first deadline, if there are any.
    pub(crate) fn renew_session(
        &mut self,
        session: SessionId,
        lasts_ns: u64,
        now: Time,
    ) -> (u64, Option<Time>) {
        let until = deadline(now, lasts_ns);
        let first = HolderKey { session, partition: PartitionId(0) };
        let last = HolderKey { session, partition: PartitionId(u16::MAX) };
        let holders: Vec<(HolderKey, Time, usize)> = self
            .leases
            .holders
            .range(first..=last)
            .map(|(&key, holder)| (key, holder.until, holder.allocations.len()))
            .collect();
        let mut allocations = 0;
        let mut first = None;
        for (key, before, count) in holders {
            assert!(count > 0, "session {session} is known without an allocation");
            let until = self.leases.extend_holder(key, until);
            if until > before && !is_planted(PlantedBug::RenewalNotJournaled) {
                let partition = key.partition;
                self.note(|| Effect::SessionRenewed { partition, session, until });
            }
            allocations += count as u64;
            first = Some(first.map_or(until, |first: Time| first.min(until)));
        }
        (allocations, first)
    }

    /// Returns the allocation whose lease is over first. Among equal deadlines, leases of their own come first in order
    /// of id, then those of sessions in order of session and id.
    pub(crate) fn lease_over(&self, now: Time) -> Option<AllocationId> {
        let Leases { own, holders, deadlines, .. } = &self.leases;
        if own.next() <= deadlines.next() {
            return own.due(now);
        }
        let key = deadlines.due(now)?;
        holders[&key].allocations.first().copied()
    }

    /// Checks that leases and marks agree, and that each lease has one deadline.
    pub(crate) fn check_leases(&self) -> Result<(), Broken> {
        let Leases { of, own, holders, deadlines, .. } = &self.leases;
        let has_deadline = |(&id, lease): (&AllocationId, &Lease)| match lease {
            Lease::Own(until) => own.contains(*until, id),
            Lease::Of(session) => {
                let holder = holders.get(&HolderKey::new(*session, id));
                holder.is_some_and(|holder| holder.allocations.contains(&id))
            }
        };
        let is_watched = |(&key, holder): (&HolderKey, &Holder)| {
            !holder.allocations.is_empty() && deadlines.contains(holder.until, key)
        };
        let held = holders.values().map(|holder| holder.allocations.len()).sum::<usize>();
        let agree = of.len() == own.len() + held
            && of.iter().all(has_deadline)
            && holders.len() == deadlines.len()
            && holders.iter().all(is_watched);
        if !agree {
            return Err(Broken::new("a lease has no deadline, or a deadline no lease"));
        }
        if !of.keys().all(|&id| self.ledger.is_leased(id)) || self.ledger.leased() != of.len() {
            return Err(Broken::new("the marks of leased allocations disagree with the leases"));
        }
        Ok(())
    }
}
