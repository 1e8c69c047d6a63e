//! Tasks whose run time is over.

use crate::cycle::trial::Cycle;
use crate::jobs::TaskId;
use crate::planted::{PlantedBug, is_planted};

impl Cycle<'_> {
    /// Evicts the tasks whose run time is over, with the grace period. They end as failed, and are not run again. Each is
    /// a statement of its own: one that cannot be evicted keeps nobody else.
    ///
    /// Limits hold for all tasks, also for those that may not be evicted for others: a job states its run time itself.
    pub(in crate::cycle) fn end_overruns(&mut self) {
        let ends = self.jobs.ends(None).take_while(|&(end, _)| end <= self.now);
        let overruns: Vec<TaskId> = ends.map(|(_, task)| task).collect();
        // The next end is due even if nothing changes until then.
        if let Some((next, _)) = self.jobs.ends(None).find(|&(end, _)| end > self.now) {
            self.note_due(next);
        }
        for task in overruns {
            let of = self.jobs.task(task);
            if !of.preemptable && is_planted(PlantedBug::OverrunSpared) {
                continue;
            }
            if of.allocation.is_some() && of.node.is_some_and(|node| self.locate(node).is_some()) {
                let savepoint = self.savepoint();
                self.evict(task);
                self.keep_if(true, savepoint);
            }
        }
    }
}
