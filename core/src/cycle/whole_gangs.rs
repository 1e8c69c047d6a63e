//! Evicting running gangs as a whole, where nothing less makes room.
//!
//! A gang that keeps less than it needs is of no use to anybody. So `gang` spares what a running job needs, or, with
//! `whole`, lets all of it go: also what it has on other nodes.

use std::collections::BTreeSet;

use super::trial::Cycle;
use super::victims::Need;
use crate::jobs::{JobId, TaskId, TaskState};

/// Tasks that go together.
struct Unit {
    tasks: Vec<TaskId>,
    /// The gang that goes as a whole with them.
    gang: Option<JobId>,
}

impl Cycle<'_> {
    /// Returns a set of tasks to evict so that a task fits on a node, with gangs that go as a whole. `candidates` are the
    /// tasks there that may go by their own settings. No task and no gang of the set can be spared.
    pub(super) fn victims_with_gangs(
        &mut self,
        need: Need<'_>,
        candidates: &[TaskId],
    ) -> Option<Vec<TaskId>> {
        if !self.tiers().takes_whole_gangs(need.from.decision()) {
            return None;
        }
        let units = self.units(need, candidates);
        let savepoint = self.savepoint();
        let mut evicted: Vec<&Unit> = Vec::new();
        let mut rest = units.iter();
        let fits = loop {
            if self.suffices(need, !evicted.is_empty()) {
                break true;
            }
            let Some(unit) = rest.next() else { break false };
            unit.tasks.iter().for_each(|&task| self.evict(task));
            evicted.push(unit);
        };
        if fits {
            self.spare_units(need, &mut evicted);
        }
        self.undo(savepoint);
        let victims: Vec<TaskId> = evicted.into_iter().flat_map(|unit| unit.tasks.iter().copied()).collect();
        (fits && self.may_give_up(need, &victims)).then_some(victims)
    }

    /// Spares what is not needed, the last ones first. Nothing of a gang that goes as a whole is spared alone.
    fn spare_units(&mut self, need: Need<'_>, evicted: &mut Vec<&Unit>) {
        let mut gangs: BTreeSet<JobId> = BTreeSet::new();
        for at in (0..evicted.len()).rev() {
            let unit = evicted[at];
            if unit.gang.is_none() && unit.tasks.iter().any(|task| gangs.contains(&task.job)) {
                continue;
            }
            unit.tasks.iter().for_each(|&task| self.spare(task));
            if self.suffices(need, evicted.len() > 1) {
                evicted.remove(at);
            } else {
                unit.tasks.iter().for_each(|&task| self.evict(task));
                gangs.extend(unit.gang);
            }
        }
    }

    /// Returns what may go by all rules: first single tasks of the node, then gangs that have tasks there.
    fn units(&self, need: Need<'_>, candidates: &[TaskId]) -> Vec<Unit> {
        let mut units = Vec::new();
        let mut single: Vec<TaskId> = Vec::new();
        for &task in candidates {
            single.push(task);
            if self.all_accept(need, &single, &single) {
                units.push(Unit { tasks: vec![task], gang: None });
            } else {
                single.pop();
            }
        }
        let mut all = single.clone();
        let mut seen = BTreeSet::new();
        for job in candidates.iter().map(|task| task.job).filter(|&job| seen.insert(job)) {
            let Some(mut tasks) = self.whole_gang(job) else { continue };
            tasks.retain(|task| !single.contains(task));
            if tasks.is_empty() {
                continue;
            }
            all.extend(&tasks);
            if self.all_accept(need, &single, &all) {
                units.push(Unit { tasks, gang: Some(job) });
            } else {
                all.truncate(all.len() - tasks.len());
            }
        }
        units
    }

    fn all_accept(&self, need: Need<'_>, single: &[TaskId], all: &[TaskId]) -> bool {
        self.tiers().accept_with_gangs(self.facts(), need.from.decision(), need.task, (single, all))
    }

    /// Returns all tasks of a job that hold something, if each of them may go. A job that is only starting stays.
    fn whole_gang(&self, id: JobId) -> Option<Vec<TaskId>> {
        let job = self.jobs.job(id);
        let starting = [TaskState::Allocated, TaskState::Pipelined, TaskState::Binding];
        if starting.into_iter().any(|state| job.count(state) > 0) {
            return None;
        }
        let tasks = (0..).zip(job.tasks()).filter(|(_, task)| task.state.holds());
        let tasks: Vec<TaskId> = tasks.map(|(index, _)| TaskId { job: id, index }).collect();
        tasks.iter().all(|&task| self.may_go(task)).then_some(tasks)
    }
}
