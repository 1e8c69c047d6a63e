//! Places tasks that ask for nothing.
//!
//! A gang may need some of them. Then they are placed together with all else that it needs, or nothing is: by whatever
//! action places the others, or by `backfill` if it has those. What comes in addition is placed by `backfill`, each task by
//! itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dated::Attempt;
use super::topology::Sight;
use super::trial::Cycle;
use crate::jobs::{JobId, PendingReason, QueueId, TaskId, TaskState};

impl Cycle<'_> {
    /// Places the pending tasks that ask for nothing. They need no turn: they take nothing from anyone.
    pub(super) fn backfill(&mut self) {
        let queues: Vec<QueueId> = self.jobs.queues().map(|(id, _)| id).collect();
        for queue in queues {
            let mut jobs: Vec<JobId> = self.jobs.queue(queue).waiting().collect();
            jobs.retain(|&job| {
                let of = self.jobs.job(job);
                of.phase().is_admitted() && of.pending_best_effort() > 0
            });
            jobs.sort_by(|&a, &b| self.compare_jobs(a, b));
            for job in jobs {
                if self.tiers().is_valid(self.facts(), job)
                    && (self.has_enough(job) || self.complete_gang(job))
                {
                    self.backfill_job(queue, job);
                }
            }
        }
    }

    /// Places tasks that ask for nothing, of a job that has what it needs, each by itself.
    fn backfill_job(&mut self, queue: QueueId, job: JobId) {
        for task in self.pending_tasks(job, true) {
            // They take no amounts, and count as allocations.
            let class = Arc::clone(&self.jobs.task(task).class);
            if self.cap_in_the_way(queue, &class, true).is_some() {
                self.tries.note(job, PendingReason::Cap);
                break;
            }
            let savepoint = self.savepoint();
            let is_placed = self.allocate_one(task);
            self.keep_if(is_placed, savepoint);
            if !is_placed {
                self.tries.note(job, PendingReason::NoNode);
            }
        }
    }

    /// Places what a gang needs of tasks that ask for nothing, if it has all else. Returns whether it did.
    fn complete_gang(&mut self, job: JobId) -> bool {
        if self.needed_for_nothing(job).is_none() {
            return false;
        }
        let savepoint = self.savepoint();
        self.tries.begin();
        let has_enough =
            if self.has_topology(job) { self.fill_up_in_domains(job) } else { self.fill_up(job) };
        if !has_enough {
            let is_hard = self.jobs.job(job).spec().has_hard_topology();
            let by_nodes = if is_hard { PendingReason::Topology } else { PendingReason::NoNode };
            let reason = self.tries.first_refusal().filter(|&reason| reason != PendingReason::NoNode);
            self.tries.note(job, reason.unwrap_or(by_nodes));
        }
        self.keep_if(has_enough, savepoint)
    }

    /// Returns whether a job has all that it needs, or will have it when its claims are granted.
    pub(super) fn has_enough(&self, job: JobId) -> bool {
        let tiers = self.tiers();
        let facts = self.facts();
        tiers.is_ready(facts, job) && tiers.is_complete(facts, job, false)
            || tiers.is_pipelined(facts, job) && tiers.is_complete(facts, job, true)
    }

    /// Returns the tasks that ask for nothing and that a job needs in addition to what it has or claims. `None`: it does
    /// not have enough with all of them.
    pub(super) fn needed_for_nothing(&mut self, job: JobId) -> Option<Vec<TaskId>> {
        let pending = self.pending_tasks(job, true);
        self.first_enough(job, pending, |cycle| cycle.has_enough(job))
    }

    /// Places those tasks that ask for nothing that a job needs in addition to what it has or claims, in the domain at
    /// work. Returns whether it has enough then. If not, none of them is placed.
    pub(super) fn fill_up(&mut self, job: JobId) -> bool {
        if self.has_enough(job) {
            return true;
        }
        let Some(needed) = self.needed_for_nothing(job) else { return false };
        let savepoint = self.savepoint();
        let is_placed = self.place_together(job, needed);
        if !is_placed {
            self.undo(savepoint);
        }
        is_placed && self.has_enough(job)
    }

    /// Places tasks that ask for nothing. Returns whether all have nodes or claims. If not, the caller takes back what was placed.
    fn place_together(&mut self, job: JobId, needed: Vec<TaskId>) -> bool {
        let mut of_groups: BTreeMap<u32, u32> = BTreeMap::new();
        for &task in &needed {
            *of_groups.entry(self.jobs.task(task).group).or_default() += 1;
        }
        of_groups.iter().for_each(|(&group, &count)| self.want_of_group(group, count));
        let queue = self.queue_of(job);
        let mut reason = PendingReason::NoNode;
        let refused = needed.into_iter().find(|&task| {
            // It may have been placed together with others of its task group.
            let waits = self.jobs.task(task).state == TaskState::Pending;
            waits
                && !self.in_group_domain(task, Sight::Now, |cycle, task| {
                    let class = Arc::clone(&cycle.jobs.task(task).class);
                    if cycle.cap_in_the_way(queue, &class, true).is_some() {
                        reason = PendingReason::Cap;
                        return false;
                    }
                    // Nodes with claims of the same job are left out of searches, so it gets a claim too.
                    cycle.allocate(task) || cycle.pipeline(task) == Attempt::Placed
                })
        });
        of_groups.keys().for_each(|&group| self.want_of_group(group, 0));
        refused.iter().for_each(|&task| self.tries.refuse(task, reason));
        refused.is_none()
    }
}
