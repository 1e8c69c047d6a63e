//! Nodes as they will be at a time: without the tasks that have ended by then, and with what is reserved there.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Fresh;
use crate::cycle::trial::{Cycle, Place};
use crate::ids::{AllocationId, NodeId};
use crate::jobs::{JobId, TaskClass, TaskId, TaskState};
use crate::replica::ClaimKey;
use crate::time::Time;

/// When tasks would be on a node.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) from: Time,
    pub(super) until: Time,
    /// How long what is reserved must have ended before.
    pub(super) gap_ns: u64,
}

impl Cycle<'_> {
    /// Returns when a task will have ended if it starts now.
    pub(in crate::cycle) fn end_if_started(&self, task: TaskId) -> Time {
        self.jobs.task(task).run_time_ns.map_or(Time::NEVER, |nanos| self.now.plus_nanos(nanos))
    }

    /// Returns when a task that is placed now will have ended at the latest. It is bound somewhat later, so what is reserved
    /// behind it has a gap before. A job that has a date itself may use its gap up.
    pub(super) fn end_if_placed(&self, task: TaskId) -> Time {
        let has_date =
            self.dated.improved == Some(task.job) || self.dated.reservations.contains_key(&task.job);
        let gap_ns = if has_date { 0 } else { self.config.date_gap_ns };
        self.end_if_started(task).plus_nanos(gap_ns)
    }

    /// Returns when a task that has a node will have left it.
    pub(super) fn end_on(&self, task: TaskId, place: Place) -> Time {
        if let Some(fresh) = self.dated.fresh.get(&task) {
            return fresh.end;
        }
        let of = self.jobs.task(task);
        match (of.state, of.allocation) {
            (TaskState::Releasing, Some(allocation)) => {
                // What this cycle evicts is not in the view yet.
                let planned = (of.since == self.now).then(|| self.now.plus_nanos(self.config.grace_ns));
                self.replicas[place.shard]
                    .releasing(place.slot, allocation)
                    .or(planned)
                    .unwrap_or(Time::NEVER)
            }
            // A task that should have ended and holds its node cannot be evicted: nobody knows when it ends.
            _ => of.expected_end().filter(|&end| end > self.now).unwrap_or(Time::NEVER),
        }
    }

    /// Returns when all that is releasing on a node has left it.
    pub(super) fn released_on(&self, place: Place, node: NodeId) -> Time {
        let tasks = self.jobs.on_node(node).iter();
        let releasing = tasks.filter(|&&task| self.jobs.task(task).state == TaskState::Releasing);
        let last = releasing.map(|&task| self.end_on(task, place)).max().unwrap_or_default();
        last.max(self.replicas[place.shard].released_by(place.slot))
    }

    pub(super) fn node_at(&self, place: Place) -> NodeId {
        let node = self.replicas[place.shard].shard().node_at(place.slot);
        node.expect("a place is that of a registered node")
    }

    /// Runs `f` while a node is shown as it will be at a time. `None`: that is not known, because something is still
    /// releasing there by then, or the shard has not granted a claim completely.
    fn at<R>(&mut self, place: Place, at: Time, f: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let node = self.node_at(place);
        if self.released_on(place, node) > at {
            return None;
        }
        let mut ended: BTreeSet<AllocationId> = BTreeSet::new();
        let mut ended_claims: BTreeSet<ClaimKey> = BTreeSet::new();
        let tasks = self.jobs.on_node(node);
        for &task in tasks.iter().filter(|&&task| self.end_on(task, place) <= at) {
            match self.dated.fresh.get(&task) {
                Some(&Fresh { key, .. }) => drop(ended_claims.insert(key)),
                None => ended.extend(self.jobs.task(task).allocation),
            }
        }
        let looks = 1 + tasks.len();
        self.dated.look(looks);
        let replica = &mut self.replicas[place.shard];
        replica.show(place.slot);
        let result = replica.show_at(place.slot, &ended, ended_claims).then(|| f(self));
        self.show_again(place, node);
        result
    }

    /// Shows a node as it was before: as it is, or as it will be if this cycle has claims there.
    fn show_again(&mut self, place: Place, node: NodeId) {
        self.replicas[place.shard].show_again(place.slot);
        if self.future.contains_key(&place) {
            let ended = self.releasing_on(node);
            let is_known = self.replicas[place.shard].show_future(place.slot, &ended);
            assert!(is_known, "a node with claims of this cycle is shown as it will be");
            self.replicas[place.shard].hide(place.slot);
            self.topology.note_shown(place);
        } else if self.dated.has(place) {
            self.replicas[place.shard].hide(place.slot);
        }
    }

    /// Returns those of `tasks` that fit on a node at a time, in order, together with all that is reserved there by then
    /// and binds the job. What has ended less than `gap_ns` before counts too. `None`: not even the latter fits.
    pub(super) fn fitting(
        &mut self,
        place: Place,
        at: Time,
        job: JobId,
        tasks: &[TaskId],
        gap_ns: u64,
    ) -> Option<Vec<TaskId>> {
        let node = self.node_at(place);
        let queue = self.queue_of(job);
        let covering = self.dated.binding_on(place, job, queue).filter(|other| other.covers(at, gap_ns));
        let reserved: Vec<TaskId> = covering.flat_map(|other| other.nodes[&node].clone()).collect();
        self.at(place, at, |cycle| {
            let mut keys = Vec::new();
            let are_held = reserved.into_iter().all(|task| cycle.take_here(task, place, &mut keys));
            let mut fitting = Vec::new();
            let mut misfits: Vec<*const TaskClass> = Vec::new();
            for &task in tasks.iter().filter(|_| are_held) {
                let class = Arc::as_ptr(&cycle.jobs.task(task).class);
                if misfits.contains(&class) {
                    continue;
                }
                if cycle.take_here(task, place, &mut keys) {
                    fitting.push(task);
                } else {
                    misfits.push(class);
                }
            }
            cycle.replicas[place.shard].give_up(place.slot, &keys);
            are_held.then_some(fitting)
        })
        .flatten()
    }

    /// Takes what a task asks for on a node as it is shown. Labels are not looked at.
    fn take_here(&mut self, task: TaskId, place: Place, keys: &mut Vec<ClaimKey>) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        let taken = self.replicas[place.shard].take_on(place.slot, &class.request.demand);
        keys.extend(taken.as_ref().map(|&(_, key)| key));
        taken.is_some()
    }

    /// Returns the times from now until `until` at which reservations on a node begin that bind a job. One whose job is
    /// late begins now.
    pub(super) fn dates_on(&self, place: Place, job: JobId, until: Time) -> Vec<Time> {
        let queue = self.queue_of(job);
        let dates = self.dated.binding_on(place, job, queue).map(|other| other.date.max(self.now));
        dates.filter(|&date| date < until).collect()
    }

    /// Returns those of `tasks` that fit on a node in a span of time, in order.
    pub(super) fn fitting_over(
        &mut self,
        place: Place,
        Span { from, until, gap_ns }: Span,
        job: JobId,
        tasks: &[TaskId],
    ) -> Vec<TaskId> {
        let mut classes: Vec<(*const TaskClass, bool)> = Vec::new();
        let may_hold = |task: &TaskId| {
            let class = &self.jobs.task(*task).class;
            let known = classes.iter().find(|&&(known, _)| known == Arc::as_ptr(class));
            known.map(|&(_, may_hold)| may_hold).unwrap_or_else(|| {
                let replica = &mut self.replicas[place.shard];
                let may_hold = replica.shard_mut().may_hold(place.slot, &class.request);
                classes.push((Arc::as_ptr(class), may_hold));
                may_hold
            })
        };
        let tasks: Vec<TaskId> = tasks.iter().copied().filter(may_hold).collect();
        let mut fitting = self.fitting(place, from, job, &tasks, gap_ns).unwrap_or_default();
        // Capacity comes free in between, and is taken only where a reservation begins.
        for date in self.dates_on(place, job, until) {
            if fitting.is_empty() {
                break;
            }
            if date <= from {
                continue;
            }
            fitting = self.fitting(place, date, job, &fitting, 0).unwrap_or_default();
        }
        fitting
    }
}
