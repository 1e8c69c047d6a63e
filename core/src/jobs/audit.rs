//! The check of all queues, jobs and tasks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::ends::Ends;
use super::{JobId, Jobs, Task, TaskId, TaskState, Usage};
use crate::broken::{Broken, broken};
use crate::ids::NodeId;

impl Jobs {
    /// Checks that all sums and lists agree with the tasks.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn check(&self) -> Result<(), Broken> {
        let mut usages = vec![(Usage::default(), 0); self.queues.len()];
        let mut on_nodes: BTreeMap<NodeId, BTreeSet<TaskId>> = BTreeMap::new();
        let mut ends = Ends::default();
        let mut delays = BTreeSet::new();
        let is_direct = |id: &&JobId| self.job(**id).spec.is_direct;
        let (direct, other): (BTreeSet<JobId>, BTreeSet<JobId>) = self.jobs.keys().partition(is_direct);
        if direct != self.direct || other != self.ids {
            let listed = self.ids.len() + self.direct.len();
            return Err(broken!("{listed} jobs are listed, and there are {}", self.jobs.len()));
        }
        for (id, job) in self.jobs() {
            let mut usage = Usage::default();
            let mut counts = [0; TaskState::ALL.len()];
            let mut pending = BTreeSet::new();
            for (index, task) in (0..).zip(&job.tasks) {
                ends.follow(TaskId { job: id, index }, &Task { bound: None, ..task.clone() }, task);
                delays.extend(task.delayed.map(|delayed| (delayed.due, TaskId { job: id, index })));
                usage.enter(task.state, &task.class.amounts);
                counts[task.state.index()] += 1;
                if task.state == TaskState::Pending {
                    pending.insert((Reverse(task.priority), index));
                }
                if let Some(node) = task.node {
                    on_nodes.entry(node).or_default().insert(TaskId { job: id, index });
                }
            }
            if self.starting.contains(&id) != (counts[TaskState::Allocated.index()] > 0) {
                return Err(broken!("whether job {id} is starting is not known by its tasks"));
            }
            if usage != job.usage || counts != job.counts || pending != job.pending {
                return Err(broken!("the sums of job {id} are {:?}, {usage:?} by its tasks", job.usage));
            }
            let queue = self.queue(job.spec.queue);
            let listed = if job.spec.is_direct { &queue.direct } else { &queue.jobs };
            if queue.waiting.contains(&id) == pending.is_empty() || !listed.contains(&id) {
                return Err(broken!("queue `{}` does not know job {id} as it is", queue.spec.name));
            }
            for queue in self.chain(job.spec.queue) {
                let (sum, waiting) = &mut usages[queue.0 as usize];
                *waiting += pending.len() as u64;
                sum.add(&usage);
            }
        }
        for (queue, (usage, pending)) in self.queues.iter().zip(&usages) {
            if queue.usage != *usage || queue.pending_tasks != *pending {
                let name = &queue.spec.name;
                return Err(broken!("queue `{name}` uses {:?}, {usage:?} by its tasks", queue.usage));
            }
        }
        self.check_users()?;
        if self.delays != delays {
            return Err(broken!("policies act at {:?}, at {delays:?} by the tasks", self.delays));
        }
        if self.ends != ends {
            return Err(broken!("the expected ends are {:?}, {ends:?} by the tasks", self.ends));
        }
        let listed: BTreeMap<NodeId, BTreeSet<TaskId>> =
            self.by_node.iter().map(|(&node, tasks)| (node, tasks.iter().copied().collect())).collect();
        if listed != on_nodes {
            return Err(broken!("the tasks by node are {listed:?}, {on_nodes:?} by the tasks"));
        }
        Ok(())
    }
}
