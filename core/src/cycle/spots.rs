//! Where victims may be found: the nodes with tasks that may go, by queue.
//!
//! One look at all tasks finds them for all queues, so a task does not look at nodes that have nothing for it. What is
//! evicted later makes the sums too large, and no node is missed.

use std::collections::BTreeMap;

use super::trial::{Cycle, Place};
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::jobs::{QueueId, TaskClass, TaskId, TaskState};

/// A node, and at most what could be free there.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) node: NodeId,
    pub(super) place: Place,
    /// What is free, being released, or held by tasks that may go: cpu, memory and GPUs.
    most: [i64; 3],
}

impl Spot {
    /// Returns whether a task could fit if all went that may go. Only cpu, memory and the sum of GPUs are compared.
    pub(super) fn may_hold(&self, class: &TaskClass) -> bool {
        KINDS.into_iter().zip(self.most).all(|(dim, most)| class.amounts.get(dim) <= most)
    }

    /// Returns how many tasks of a class could fit if all went that may go.
    pub(super) fn tasks(&self, class: &TaskClass) -> u64 {
        super::topology::tasks_in(class, self.most)
    }
}

/// The kinds that are compared before a node is looked at.
pub(super) const KINDS: [Dim; 3] = [Dim::CPU, Dim::MEMORY, Dim::GPU];

/// The nodes where tasks may go for others of the same queue, by queue.
pub(super) type SpotsOfQueues = BTreeMap<QueueId, Vec<Spot>>;

fn add(most: &mut [i64; 3], amounts: &Amounts) {
    for (dim, most) in KINDS.into_iter().zip(most) {
        *most += amounts.get(dim);
    }
}

impl Cycle<'_> {
    /// Returns whether a task may be evicted by its own settings, and has run for as long as its queue lets it.
    pub(super) fn may_go(&self, id: TaskId) -> bool {
        let task = self.jobs.task(id);
        let is_spare = matches!(task.state, TaskState::Running | TaskState::Bound)
            && task.preemptable
            && task.allocation.is_some();
        let Some(started) = task.started.filter(|_| is_spare) else { return false };
        let until = started.plus_nanos(self.min_run_time_ns(self.queue_of(id.job)));
        self.note_due(until);
        until <= self.now
    }

    /// Returns the nodes with tasks that may go, for each queue those with tasks of its own.
    pub(super) fn spots_of_queues(&self) -> SpotsOfQueues {
        let mut spots = SpotsOfQueues::new();
        for (node, place, present) in self.nodes_with_tasks() {
            let mut of_queues: Vec<(QueueId, [i64; 3])> = Vec::new();
            for &id in self.jobs.on_node(node) {
                if !self.may_go(id) {
                    continue;
                }
                let queue = self.queue_of(id.job);
                let task = self.jobs.task(id);
                let at = of_queues.iter().position(|&(of, _)| of == queue).unwrap_or_else(|| {
                    of_queues.push((queue, present));
                    of_queues.len() - 1
                });
                add(&mut of_queues[at].1, &task.class.amounts);
            }
            for (queue, most) in of_queues {
                spots.entry(queue).or_default().push(Spot { node, place, most });
            }
        }
        spots
    }

    /// Returns the nodes with tasks of queues from which others may reclaim.
    pub(super) fn spots_of_others(&self) -> Vec<Spot> {
        let reclaimable: Vec<bool> = self.jobs.queues().map(|(id, _)| self.is_reclaimable(id)).collect();
        let mut spots = Vec::new();
        for (node, place, present) in self.nodes_with_tasks() {
            let mut most = present;
            let mut any = false;
            for &id in self.jobs.on_node(node) {
                if reclaimable[self.queue_of(id.job).0 as usize] && self.may_go(id) {
                    any = true;
                    add(&mut most, &self.jobs.task(id).class.amounts);
                }
            }
            if any {
                spots.push(Spot { node, place, most });
            }
        }
        spots
    }

    /// Returns the nodes with tasks in order of id, each with what is free or being released there.
    fn nodes_with_tasks(&self) -> impl Iterator<Item = (NodeId, Place, [i64; 3])> + '_ {
        self.jobs.nodes().filter_map(|node| {
            let place = self.locate(node)?;
            let mut present = self.free_on(place).map(|free| free.max(0));
            let tasks = self.jobs.on_node(node).iter().map(|&task| self.jobs.task(task));
            let releasing = tasks.filter(|task| task.state == TaskState::Releasing);
            releasing.for_each(|task| add(&mut present, &task.class.amounts));
            Some((node, place, present))
        })
    }
}
