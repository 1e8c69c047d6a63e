//! Allocations that are on their way out: evicted, with grace left. They hold what they held until
//! their caller releases them or their grace ends.

use std::collections::BTreeSet;

use super::command::{Outcome, Rejection};
use super::ledger::Allocation;
use super::table::COLD;
use super::{Shard, Slot};
use crate::ids::AllocationId;
use crate::map::FixedMap;
use crate::time::Time;
use crate::view::PendingImage;

/// What is on its way out.
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

    /// When an allocation ends by itself.
    pub(super) fn until(&self, id: AllocationId) -> Option<Time> {
        self.until.get(&id).copied()
    }

    /// When the first ends by itself.
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
    /// Whether an allocation is on its way out.
    #[must_use]
    pub fn is_releasing(&self, id: AllocationId) -> bool {
        self.statements.releasing.until(id).is_some()
    }

    /// When an allocation that is on its way out ends by itself.
    #[must_use]
    pub fn releasing_until(&self, id: AllocationId) -> Option<Time> {
        self.statements.releasing.until(id)
    }

    /// A live allocation is on its way out from now on.
    pub(super) fn begin_release(&mut self, allocation: &Allocation, until: Time) {
        self.resume_release(allocation, until);
        self.nodes.hot_mut(allocation.node).version += 1;
        if !self.reservations.is_empty() {
            // A reservation may have more of what is free where more is on its way out.
            self.restore(allocation.node);
            self.withhold(allocation.node);
        }
    }

    /// What views show of what is on its way out at a node, and claimed there.
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

    /// Takes over an allocation that was on its way out in an earlier start.
    pub(super) fn resume_release(&mut self, allocation: &Allocation, until: Time) {
        self.statements.releasing.enter(allocation.id, until);
        self.nodes.touch(allocation.node, COLD);
        self.sums.release(allocation.node, &allocation.demand);
        self.sums.releasing(allocation.node, &allocation.demand, 1);
    }

    /// As a release, where there are evictions, claims or bundles.
    #[cold]
    pub(super) fn release_with_reservations(&mut self, id: AllocationId) -> Result<Outcome, Rejection> {
        if self.end_inside(id) || self.end_claim(id) {
            return Ok(Outcome::Released(id));
        }
        let is_bundle = self.bundles.contains(id);
        let ended = self.end_with_reservations(id)?;
        Ok(if is_bundle { Outcome::BundleReleased { bundle: id, ended } } else { Outcome::Released(id) })
    }

    /// Ends an allocation, whether somebody evicts it or not; how many ended inside it.
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

    /// Ends what has had its grace, in order of time and id.
    pub(super) fn end_grace(&mut self) {
        while let Some(&(until, id)) = self.statements.releasing.deadlines.first()
            && until <= self.now
        {
            self.end_with_reservations(id).expect("what is on its way out is live");
        }
    }

    /// Checks that what is on its way out is live, and ends.
    pub(super) fn check_releasing(&self) -> Result<(), String> {
        let Releasing { until, deadlines } = &self.statements.releasing;
        let agree = until.len() == deadlines.len()
            && until.iter().all(|(&id, &until)| self.is_live(id) && deadlines.contains(&(until, id)));
        if agree { Ok(()) } else { Err("what is on its way out is not live, or has no end".to_owned()) }
    }
}
