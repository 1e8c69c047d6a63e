//! Releasing allocations: evicted, with grace left. They keep their capacity until their caller releases them
//! or their grace ends.

use crate::broken::Broken;

use super::ledger::Allocation;
use super::table::COLD;
use super::{Books, Dirty};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::journal::Effect;
use crate::map::FixedMap;
use crate::shard::rejection::UnknownAllocation;
use crate::time::Time;
use crate::timers::Timers;
use crate::view::{EndCause, PendingImage};

/// The releasing allocations of a shard.
#[derive(Default)]
pub(crate) struct Releasing {
    until: FixedMap<AllocationId, Time>,
    deadlines: Timers<AllocationId>,
}

impl Releasing {
    /// Returns the number of releasing allocations.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        crate::memory::of_map(&self.until) + self.deadlines.bytes()
    }

    /// Returns the time at which an allocation ends by itself.
    pub(crate) fn until(&self, id: AllocationId) -> Option<Time> {
        self.until.get(&id).copied()
    }

    /// Returns the time at which the first one ends by itself, or the end of time.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.deadlines.next()
    }

    fn enter(&mut self, id: AllocationId, until: Time) {
        let before = self.until.insert(id, until);
        assert!(before.is_none(), "allocation {id} is evicted twice");
        self.deadlines.insert(until, id);
        assert!(self.until.len() == self.deadlines.len(), "something releasing has no end");
    }

    fn leave(&mut self, id: AllocationId) -> bool {
        let Some(until) = self.until.remove(&id) else { return false };
        let had = self.deadlines.remove(until, id);
        assert!(had, "the end of {id}, which is releasing, is not known");
        true
    }
}

impl Books {
    /// Makes a live allocation releasing.
    pub(crate) fn begin_release(&mut self, allocation: &Allocation, until: Time) -> Dirty {
        let dirty = self.resume_release(allocation, until);
        self.bump_version(allocation.node);
        // Claims can wait for the released capacity, so a reservation may withhold more of what is free.
        self.withhold_again(allocation.node);
        dirty
    }

    /// Restores a releasing allocation from the durable state.
    pub(crate) fn resume_release(&mut self, allocation: &Allocation, until: Time) -> Dirty {
        let is_there = self.ledger.slot_of(allocation.id) == Some(allocation.node);
        assert!(is_there, "{} is releasing, and it is not live on its node", allocation.id);
        self.releasing.enter(allocation.id, until);
        self.nodes.touch(allocation.node, COLD);
        self.sums.release(allocation.node, &allocation.demand);
        self.sums.releasing(allocation.node, &allocation.demand, 1);
        Dirty::changed(allocation.node)
    }

    /// Ends an allocation, evicted or not. Returns the number of allocations inside that ended with it.
    pub(crate) fn end_allocation(
        &mut self,
        id: AllocationId,
        cause: EndCause,
    ) -> Result<(u32, Dirty), UnknownAllocation> {
        let allocation = self.ledger.remove(id, &mut self.nodes).ok_or(UnknownAllocation(id))?;
        assert!(!self.claims.by_id.contains_key(&id), "{id} is an allocation, and it is claimed");
        if self.releasing.leave(id) {
            self.sums.releasing(allocation.node, &allocation.demand, -1);
            self.nodes.touch(allocation.node, COLD);
        } else {
            self.sums.release(allocation.node, &allocation.demand);
        }
        self.note(|| Effect::Ended(id, cause));
        let Self { bundles, effects, .. } = self;
        let inside = bundles.end(id, cause, |id| {
            if let Some(effects) = effects {
                effects.push(Effect::Ended(id, cause));
            }
        });
        self.sums.released += u64::from(inside);
        self.nodes.give_places(allocation.node, inside);
        self.give_back(&allocation);
        Ok((inside, self.grew(allocation.node)))
    }

    /// Returns the first allocation whose grace is over, in order of time and id.
    pub(crate) fn grace_over(&self, now: Time) -> Option<AllocationId> {
        self.releasing.deadlines.due(now)
    }

    /// Returns the releasing allocations and the claims of a node as views show them.
    pub(crate) fn pending_image(&self, slot: Slot) -> Option<Box<PendingImage>> {
        let until = |allocation: Allocation| Some((allocation.id, self.releasing.until(allocation.id)?));
        let mut releasing: Vec<(AllocationId, Time)> = match self.releasing.len() {
            0 => Vec::new(),
            _ => self.ledger.of_node(slot, &self.nodes).filter_map(until).collect(),
        };
        releasing.sort_unstable();
        let claims = self.claim_images(slot);
        let there = !releasing.is_empty() || !claims.is_empty();
        there.then(|| Box::new(PendingImage { releasing: releasing.into(), claims }))
    }

    /// Checks that releasing allocations are live and have an end.
    pub(crate) fn check_releasing(&self) -> Result<(), Broken> {
        let Releasing { until, deadlines } = &self.releasing;
        let agree = until.len() == deadlines.len()
            && until.iter().all(|(&id, &until)| self.is_live(id) && deadlines.contains(until, id));
        if agree { Ok(()) } else { Err(Broken::new("what is releasing is not live, or has no end")) }
    }
}
