//! Placement groups that wait in queues.
//!
//! A group has its turn in the order of the jobs of its queue, because a job is its
//! [placeholder](crate::jobs::JobId::is_placeholder) there. Caps and shares are asked here, in the order in which bundles are
//! charged. Who plans groups decides where these are placed, by their strategies, on the replicas as the cycle has changed
//! them. Groups evict nobody, claim nothing and have no dates.

use std::sync::Arc;

use super::trial::{Cycle, Place};
use crate::fairness::Amounts;
use crate::ids::NodeId;
use crate::index::Slot;
use crate::jobs::{JobId, PendingReason, QueueId, TaskClass, TaskId};
use crate::replica::{ClaimKey, Replica};

/// A bundle that has a node on a replica, where its capacity is taken.
pub(crate) struct PlacedBundle {
    /// The index of its task in the placeholder of its group.
    pub(crate) task: u32,
    pub(crate) shard: usize,
    pub(crate) slot: Slot,
    pub(crate) node: NodeId,
    pub(crate) key: ClaimKey,
}

/// What became of a group in its turn.
pub(crate) enum GroupPlan {
    /// These have nodes.
    Placed(Vec<PlacedBundle>),
    /// There is no room. Nothing is taken.
    NoRoom,
    /// It was not tried, because enough was tried in this cycle. Its turn comes in the next one.
    Later,
}

/// Plans groups in cycles.
pub(crate) trait GroupPlans {
    /// Takes nodes for these tasks of a placeholder, or for at least as many of them as it needs. The flag says whether nothing
    /// was planned before it in this cycle.
    fn plan(
        &mut self,
        placeholder: JobId,
        tasks: &[u32],
        needed: (usize, bool),
        replicas: &mut Vec<Replica>,
    ) -> GroupPlan;
}

/// Plans where no groups wait.
pub(super) struct NoGroups;

impl GroupPlans for NoGroups {
    fn plan(&mut self, placeholder: JobId, _: &[u32], _: (usize, bool), _: &mut Vec<Replica>) -> GroupPlan {
        panic!("{placeholder} holds the place of a group that nobody plans")
    }
}

impl Cycle<'_> {
    /// Places the bundles of a group whose turn it is, if there is room for as many as it needs.
    pub(super) fn allocate_group(&mut self, placeholder: JobId) {
        self.tries.begin();
        let needed = self.jobs.job(placeholder).spec().min_member as usize;
        let tasks = self.affordable(placeholder);
        let plan = if tasks.len() < needed {
            GroupPlan::NoRoom
        } else {
            // If there is no room, that is the reason, whatever is kept from other bundles of the group.
            self.tries.begin();
            self.groups.plan(placeholder, &tasks, (needed, self.report.plans.is_empty()), self.replicas)
        };
        let savepoint = self.savepoint();
        let task = |index: u32| TaskId { job: placeholder, index };
        match plan {
            GroupPlan::Placed(bundles) => {
                assert!(bundles.len() >= needed, "a plan places as much as its group needs");
                for PlacedBundle { task: index, shard, slot, node, key } in bundles {
                    let marks = self.marks_before(shard);
                    self.note_allocated(task(index), Place { shard, slot }, (node, key), marks);
                }
            }
            GroupPlan::NoRoom => tasks
                .first()
                .into_iter()
                .for_each(|&index| self.tries.refuse(task(index), PendingReason::NoNode)),
            // Another cycle is to run although nothing may have changed.
            GroupPlan::Later => self.note_due(self.now.plus_nanos(1)),
        }
        self.note_try(placeholder);
        self.keep_if(true, savepoint);
    }

    /// Returns the tasks of a placeholder for which its queue can be charged together, in order.
    fn affordable(&mut self, placeholder: JobId) -> Vec<u32> {
        let queue = self.queue_of(placeholder);
        let mut sum = Amounts::zero();
        let mut tasks = Vec::new();
        let mut refused: Option<(Arc<TaskClass>, PendingReason)> = None;
        for index in self.jobs.job(placeholder).pending().collect::<Vec<_>>() {
            let task = TaskId { job: placeholder, index };
            let class = Arc::clone(&self.jobs.task(task).class);
            // Equal bundles mostly follow each other, and what is left only shrinks.
            let known = refused.as_ref().filter(|(known, _)| Arc::ptr_eq(known, &class));
            let reason = match known {
                Some(&(_, reason)) => Some(reason),
                None => self.refusal_with(queue, (&sum, tasks.len() as u64), &class),
            };
            match reason {
                Some(reason) => {
                    self.tries.refuse(task, reason);
                    refused = Some((class, reason));
                }
                None => {
                    sum.add(&class.amounts);
                    tasks.push(index);
                }
            }
        }
        tasks
    }

    /// Returns why a queue is given no task of a class in addition to `more`: amounts, and a number of tasks.
    fn refusal_with(
        &self,
        queue: QueueId,
        more: (&Amounts, u64),
        class: &TaskClass,
    ) -> Option<PendingReason> {
        if self.jobs.over_cap_with(queue, more, &class.amounts, true).is_some() {
            return Some(PendingReason::Cap);
        }
        let mut amounts = more.0.clone();
        amounts.add(&class.amounts);
        let all = TaskClass { request: Arc::clone(&class.request), amounts };
        let is_allocatable = self.tiers().is_allocatable(self.facts(), queue, &all);
        (!is_allocatable).then_some(PendingReason::Share)
    }
}
