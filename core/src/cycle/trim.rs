//! Plans with evictions are trimmed: nobody is evicted without whom all tasks of the plan would have places as well.
//!
//! The victims of each task are [a smallest set](super::victims) on its node. A later task of the same job may take another node,
//! whose victims leave room for both. So once a plan is complete, each victim is left out in turn, the most valuable first, and all
//! tasks of the plan are placed again without evicting anyone else.

use std::cmp::Reverse;

use super::allocate::Misfits;
use super::config::Decision;
use super::report::PlannedTask;
use super::trial::{Cycle, Place};
use crate::fairness::Dim;
use crate::jobs::{JobId, TaskId};
use crate::limits::{TRIM_LOOKS_PER_CYCLE, TRIM_LOOKS_PER_PLAN};
use crate::statement::Operation;

fn evicts(step: &PlannedTask) -> bool {
    matches!(step.operation, Some(Operation::Evict(_)))
}

impl Cycle<'_> {
    /// Takes back evictions after a savepoint that a job does not need. All its tasks that have places keep some.
    ///
    /// Plans with many victims and tasks are left as they are, and so are those of jobs with rules about domains. Where gangs go as a
    /// whole, or tiers are combined as in Volcano, none is trimmed.
    pub(super) fn trim(&mut self, job: JobId, savepoint: usize, decision: Decision) {
        if self.tiers().must_accept(decision).is_none() || self.has_topology(job) {
            return;
        }
        let mut best = self.changes_since(savepoint).to_vec();
        let (evicted, others): (Vec<&PlannedTask>, Vec<&PlannedTask>) =
            best.iter().partition(|step| evicts(step));
        let has_keys = others.iter().all(|step| step.key.is_some());
        let mut victims: Vec<TaskId> = evicted.into_iter().map(|step| step.task).collect();
        let mut placed: Vec<TaskId> = others.into_iter().map(|step| step.task).collect();
        // Small ones may go anywhere after that.
        placed.sort_by_key(|&task| Reverse(self.size_of(task)));
        let looks = victims.len() * placed.len();
        let asks = |task: &TaskId| !self.jobs.task(*task).class.is_best_effort();
        let may_trim = victims.len() > 1
            && looks <= TRIM_LOOKS_PER_PLAN
            && self.trimmed + looks <= TRIM_LOOKS_PER_CYCLE
            && has_keys
            && placed.iter().all(asks);
        if !may_trim {
            return;
        }
        self.trimmed += looks;
        let first = self.tries.take_first();
        for victim in self.most_valuable_first(&victims) {
            self.undo(savepoint);
            let others: Vec<TaskId> = victims.iter().copied().filter(|&other| other != victim).collect();
            others.iter().for_each(|&other| self.evict(other));
            if placed.iter().all(|&task| self.place(task, &mut Misfits::default())) {
                best = self.changes_since(savepoint).to_vec();
                victims = others;
            }
        }
        self.undo(savepoint);
        best.iter().for_each(|step| self.redo(step));
        self.tries.restore_first(first);
    }

    fn size_of(&self, task: TaskId) -> [i64; 3] {
        let amounts = &self.jobs.task(task).class.amounts;
        [Dim::GPU, Dim::CPU, Dim::MEMORY].map(|dim| amounts.get(dim))
    }

    fn most_valuable_first(&self, victims: &[TaskId]) -> Vec<TaskId> {
        let mut sorted: Vec<(usize, TaskId)> = victims.iter().copied().enumerate().collect();
        sorted.sort_by_key(|&(at, victim)| Reverse((self.cost(&[victim]), at)));
        sorted.into_iter().map(|(_, victim)| victim).collect()
    }

    /// Makes a change again, on the state on which it was made before.
    fn redo(&mut self, step: &PlannedTask) {
        let &PlannedTask { task, node, shard, slot, .. } = step;
        let place = Place { shard, slot };
        let is_made = match step.operation {
            Some(Operation::Evict(_)) => {
                self.evict(task);
                true
            }
            Some(Operation::Allocate(_)) => self.allocate_at(task, node, place),
            // Without an operation, it waits for the cap of its queue.
            Some(Operation::Pipeline(_)) | None => self.pipeline_on(task, node, place),
        };
        assert!(is_made, "task {task} does not fit on node {node}, where it did");
    }
}
