//! Charges for the bundles of groups in queues ([`Jobs::charge`](crate::jobs::Jobs)).
//!
//! A bundle is charged before its statement is sent. What is not granted is given back with the answer. What was granted is
//! charged until a view shows that the allocation has ended, whatever has become of its group. The allocation of a bundle on
//! a lost node counts until then, too: its work may still run. The bundle is placed again under the same charge, because its
//! statement also ends the lost allocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Keeper;
use crate::fairness::Amounts;
use crate::ids::{AllocationId, NodeId};
use crate::jobs::{JobId, NotCharged, QueueId, TaskId, TaskState};
use crate::limits::JOBS_MAX;
use crate::request::PlacementRequest;
use crate::time::Time;
use crate::view::EndCause;

/// The charge for a bundle that a statement places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum Charge {
    /// It was made for the statement.
    New(JobId),
    /// The bundle has it already, for an allocation on a lost node that the statement ends.
    Moves(JobId, AllocationId),
}

/// The charges for allocations that were granted.
#[derive(Debug, Default)]
pub(super) struct Charges {
    by_allocation: BTreeMap<AllocationId, JobId>,
}

impl Charges {
    pub(super) fn insert(&mut self, allocation: AllocationId, charge: JobId) {
        let before = self.by_allocation.insert(allocation, charge);
        assert!(before.is_none(), "allocation {allocation} is charged twice");
    }
}

/// How much a queue can be charged for, bundle by bundle.
pub(in crate::planner) struct Budget<'a> {
    keeper: &'a Keeper,
    queue: QueueId,
    sum: Amounts,
    count: u64,
    /// Equal bundles mostly follow each other.
    last: Option<Last>,
}

/// The last request of a budget.
struct Last {
    request: Arc<PlacementRequest>,
    amounts: Amounts,
    /// A budget only shrinks, so what was refused once is refused again.
    refused: Option<NotCharged>,
}

impl Budget<'_> {
    /// Takes what a bundle asks for.
    ///
    /// # Errors
    /// The reason why it cannot be charged in addition to what was taken before.
    pub(in crate::planner) fn take(&mut self, request: &Arc<PlacementRequest>) -> Result<(), NotCharged> {
        let known = self.last.take().filter(|last| Arc::ptr_eq(&last.request, request));
        let mut last = known.unwrap_or_else(|| Last {
            request: Arc::clone(request),
            amounts: Amounts::of(&request.demand),
            refused: None,
        });
        if last.refused.is_none() {
            match self.check(&last.amounts) {
                Ok(()) => {
                    self.sum.add(&last.amounts);
                    self.count += 1;
                }
                Err(refused) => last.refused = Some(refused),
            }
        }
        let taken = last.refused.clone().map_or(Ok(()), Err);
        self.last = Some(last);
        taken
    }

    fn check(&self, amounts: &Amounts) -> Result<(), NotCharged> {
        let taken = usize::try_from(self.count).expect("GROUP_BUNDLES_MAX fits usize");
        let live = self.keeper.live_jobs() + taken;
        if live >= JOBS_MAX {
            return Err(NotCharged::TooManyJobs(live));
        }
        let tasks = self.keeper.tasks - self.keeper.ended_tasks + self.count + 1;
        if tasks > self.keeper.tasks_max {
            return Err(NotCharged::TooManyTasks(tasks));
        }
        self.keeper.jobs().check_caps_with(self.queue, (&self.sum, self.count), amounts)
    }
}

impl Keeper {
    /// Returns how much a queue can be charged for.
    pub(in crate::planner) fn budget(&self, queue: QueueId) -> Budget<'_> {
        Budget { keeper: self, queue, sum: Amounts::zero(), count: 0, last: None }
    }

    /// Returns whether a bundle has a charge for this allocation.
    pub(in crate::planner) fn charge_of(&self, allocation: AllocationId) -> Option<Charge> {
        let charge = self.charges.by_allocation.get(&allocation)?;
        Some(Charge::Moves(*charge, allocation))
    }

    /// Charges a queue for a bundle that is about to be placed on a node. The queue comes with the id of the group.
    ///
    /// # Errors
    /// As [`Jobs::charge`](crate::jobs::Jobs).
    pub(in crate::planner) fn charge(
        &mut self,
        queue: (QueueId, &Arc<str>),
        request: &PlacementRequest,
        node: NodeId,
        now: Time,
    ) -> Result<Charge, NotCharged> {
        let charge = self.jobs_mut().charge(queue, request, node, now)?;
        self.tasks += 1;
        while self.tasks > self.tasks_max {
            self.forget_oldest();
        }
        Ok(Charge::New(charge))
    }

    /// Gives back the charge for a bundle that was not placed. One that has an allocation on a lost node keeps it.
    pub(in crate::planner) fn give_back(&mut self, charge: Charge, now: Time) {
        if let Charge::New(charge) = charge {
            self.withdraw(charge, now);
        }
    }

    /// Notes what a shard has granted for a charge.
    pub(in crate::planner) fn charged(
        &mut self,
        charge: Charge,
        node: NodeId,
        allocation: AllocationId,
        now: Time,
    ) {
        let charge = match charge {
            Charge::New(charge) => charge,
            Charge::Moves(charge, lost) => {
                self.charges.by_allocation.remove(&lost);
                charge
            }
        };
        self.jobs_mut().set_charged(charge, node, allocation, now);
        self.charges.insert(allocation, charge);
    }

    /// Takes over that an allocation has ended, if a bundle is charged for it.
    pub(super) fn charged_ended(&mut self, allocation: AllocationId, cause: EndCause, now: Time) {
        if cause == EndCause::NodeLost {
            return;
        }
        let Some(charge) = self.charges.by_allocation.remove(&allocation) else { return };
        self.jobs_mut().set(TaskId { job: charge, index: 0 }, TaskState::Failed, None, now);
        self.settle(charge);
    }
}
