//! Allocations that are on their way out: evicted, with grace left. They hold what they held until
//! their caller releases them or their grace ends.

use std::collections::BTreeSet;

use super::Shard;
use super::ledger::Allocation;
use crate::ids::AllocationId;
use crate::map::FixedMap;
use crate::time::Time;

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

    /// A live allocation is on its way out from now on.
    pub(super) fn begin_release(&mut self, allocation: &Allocation, until: Time) {
        self.statements.releasing.enter(allocation.id, until);
        self.sums.release(&allocation.demand);
        self.sums.releasing(&allocation.demand, 1);
        self.nodes.hot_mut(allocation.node).version += 1;
    }

    /// An allocation has gone out of the ledger: the sum that it stood in follows.
    pub(super) fn forget_use(&mut self, allocation: &Allocation) {
        if self.statements.releasing.leave(allocation.id) {
            self.sums.releasing(&allocation.demand, -1);
        } else {
            self.sums.release(&allocation.demand);
        }
    }

    /// Ends what has had its grace, in order of time and id.
    pub(super) fn end_grace(&mut self) {
        while let Some(&(until, id)) = self.statements.releasing.deadlines.first()
            && until <= self.now
        {
            self.end_allocation(id).expect("what is on its way out is live");
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
