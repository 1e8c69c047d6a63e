//! Releasing allocations: evicted, with grace left. They keep their capacity until their caller releases them
//! or their grace ends.

use std::collections::BTreeSet;

use super::command::{Outcome, Rejection};
use super::ledger::Allocation;
use super::table::COLD;
use super::{Shard, Slot};
use crate::ids::AllocationId;
use crate::map::FixedMap;
use crate::time::Time;
use crate::view::PendingImage;

/// The releasing allocations of a shard.
#[derive(Default)]
pub(super) struct Releasing {
    until: FixedMap<AllocationId, Time>,
    deadlines: BTreeSet<(Time, AllocationId)>,
}

impl Releasing {
    pub(super) fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        let deadline = size_of::<(Time, AllocationId)>();
        crate::memory::of_map(&self.until) + crate::memory::of_btree(self.deadlines.len(), deadline)
    }

    /// Returns the time at which an allocation ends by itself.
    pub(super) fn until(&self, id: AllocationId) -> Option<Time> {
        self.until.get(&id).copied()
    }

    /// Returns the time at which the first one ends by itself.
    pub(super) fn first(&self) -> Option<Time> {
        self.deadlines.first().map(|&(until, _)| until)
    }

    fn enter(&mut self, id: AllocationId, until: Time) {
        let before = self.until.insert(id, until);
        assert!(before.is_none(), "allocation {id} is evicted twice");
        self.deadlines.insert((until, id));
    }

    fn leave(&mut self, id: AllocationId) -> bool {
        let Some(until) = self.until.remove(&id) else { return false };
        self.deadlines.remove(&(until, id))
    }
}

impl Shard {
    /// Returns whether an allocation is releasing.
    #[must_use]
    pub fn is_releasing(&self, id: AllocationId) -> bool {
        self.statements.releasing.until(id).is_some()
    }

    /// Returns the time at which a releasing allocation ends by itself.
    #[must_use]
    pub fn releasing_until(&self, id: AllocationId) -> Option<Time> {
        self.statements.releasing.until(id)
    }

    /// Makes a live allocation releasing.
    pub(super) fn begin_release(&mut self, allocation: &Allocation, until: Time) {
        self.resume_release(allocation, until);
        self.nodes.hot_mut(allocation.node).version += 1;
        if !self.reservations.is_empty() {
            // Claims can wait for the released capacity, so a reservation may withhold more of what is free.
            self.restore(allocation.node);
            self.withhold(allocation.node);
        }
    }

    /// Returns the releasing allocations and the claims of a node as views show them.
    pub(super) fn pending_image(&self, slot: Slot) -> Option<Box<PendingImage>> {
        let until = |allocation: Allocation| Some((allocation.id, self.releasing_until(allocation.id)?));
        let mut releasing: Vec<(AllocationId, Time)> = match self.statements.releasing.is_empty() {
            true => Vec::new(),
            false => self.ledger.of_node(slot, &self.nodes).filter_map(until).collect(),
        };
        releasing.sort_unstable();
        let claims = self.claim_images(slot);
        let there = !releasing.is_empty() || !claims.is_empty();
        there.then(|| Box::new(PendingImage { releasing: releasing.into(), claims }))
    }

    /// Restores a releasing allocation from the durable state.
    pub(super) fn resume_release(&mut self, allocation: &Allocation, until: Time) {
        self.statements.releasing.enter(allocation.id, until);
        self.nodes.touch(allocation.node, COLD);
        self.sums.release(allocation.node, &allocation.demand);
        self.sums.releasing(allocation.node, &allocation.demand, 1);
    }

    /// Handles a release if there are evictions, claims or bundles.
    #[cold]
    pub(super) fn release_with_reservations(&mut self, id: AllocationId) -> Result<Outcome, Rejection> {
        if self.end_inside(id) || self.end_claim(id) {
            return Ok(Outcome::Released(id));
        }
        let is_bundle = self.bundles.contains(id);
        let ended = self.end_with_reservations(id)?;
        Ok(if is_bundle { Outcome::BundleReleased { bundle: id, ended } } else { Outcome::Released(id) })
    }

    /// Ends an allocation, evicted or not. Returns the number of allocations inside that ended with it.
    pub(super) fn end_with_reservations(&mut self, id: AllocationId) -> Result<u32, Rejection> {
        let allocation = self.ledger.remove(id, &mut self.nodes).ok_or(Rejection::UnknownAllocation(id))?;
        if self.statements.releasing.leave(id) {
            self.sums.releasing(allocation.node, &allocation.demand, -1);
            self.nodes.touch(allocation.node, COLD);
        } else {
            self.sums.release(allocation.node, &allocation.demand);
        }
        let inside = self.bundles.end(id);
        self.work.allocations_looked_at += u64::from(inside);
        self.sums.released += u64::from(inside);
        self.nodes.give_places(allocation.node, inside);
        self.give_back(&allocation);
        self.available_grew(allocation.node);
        self.statements_changed();
        Ok(inside)
    }

    /// Ends allocations whose grace is over, in order of time and id.
    pub(super) fn end_grace(&mut self) {
        while let Some(&(until, id)) = self.statements.releasing.deadlines.first()
            && until <= self.now
        {
            self.end_with_reservations(id).expect("what is releasing is live");
        }
    }

    /// Checks that releasing allocations are live and have an end.
    pub(super) fn check_releasing(&self) -> Result<(), String> {
        let Releasing { until, deadlines } = &self.statements.releasing;
        let agree = until.len() == deadlines.len()
            && until.iter().all(|(&id, &until)| self.is_live(id) && deadlines.contains(&(until, id)));
        if agree { Ok(()) } else { Err("what is releasing is not live, or has no end".to_owned()) }
    }
}
