//! Which jobs have dated reservations, over cycles.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::domains::Within;
use super::expected::Span;
use super::search::Search;
use super::shares::Wanted;
use super::{DatedReservation, Reservations};
use crate::cycle::best_effort::{Filler, Lacks};
use crate::cycle::config::Backfill;
use crate::cycle::dated::Attempt;
use crate::cycle::plugin::More;
use crate::cycle::topology::Sight;
use crate::cycle::trial::{Cycle, Place};
use crate::ids::NodeId;
use crate::jobs::{JobId, QueueId, Task, TaskId, TaskState};
use crate::limits::{DATED_RESERVATIONS_MAX, STATEMENT_OPERATIONS_MAX};
use crate::time::Time;

/// A node for tasks that are only counted.
const NOWHERE: NodeId = NodeId(0);

/// What a job needs in addition to what it has.
struct Needed {
    /// The tasks with amounts, in the order in which they are placed.
    tasks: Vec<TaskId>,
    /// The number of those that ask for nothing.
    best_effort: usize,
}

impl Cycle<'_> {
    /// Takes over the reservations of the last cycle. They bind from the start. Those of jobs that are forgotten are over: so is
    /// a placement that waited, as soon as it ends.
    pub(in crate::cycle) fn open_reservations(&mut self, mut kept: Reservations) {
        kept.retain(|&job, _| self.jobs.has_job(job));
        for (_, mut reservation) in kept {
            reservation.is_confirmed = false;
            reservation.freed = None;
            self.hold(reservation);
        }
    }

    /// Returns the reservations of jobs that still wait. Those of jobs that this cycle did not try are given up.
    pub(in crate::cycle) fn close_reservations(&mut self) -> Reservations {
        let over: Vec<JobId> = self
            .dated
            .reservations
            .values()
            .filter(|of| !of.is_confirmed || !self.waits(of.job))
            .map(|of| of.job)
            .collect();
        over.into_iter().for_each(|job| drop(self.give_up(job)));
        let kept = std::mem::take(&mut self.dated.reservations);
        for place in std::mem::take(&mut self.dated.places).into_keys() {
            self.replicas[place.shard].show(place.slot);
        }
        kept
    }

    /// Adds a reservation, and hides its nodes from searches.
    fn hold(&mut self, reservation: DatedReservation) {
        for &node in reservation.nodes.keys() {
            // A node that is gone is found out when the job is tried.
            let Some(place) = self.locate(node) else { continue };
            self.dated.places.entry(place).or_default().insert(reservation.job);
            self.replicas[place.shard].hide(place.slot);
        }
        let before = self.dated.reservations.insert(reservation.job, reservation);
        assert!(before.is_none(), "a job has two reservations");
    }

    /// Removes the reservation of a job, and shows the nodes that no other one has.
    fn give_up(&mut self, job: JobId) -> Option<DatedReservation> {
        let reservation = self.dated.reservations.remove(&job)?;
        self.dated.given_up += 1;
        let mut shown: Vec<Place> = Vec::new();
        self.dated.places.retain(|&place, jobs| {
            jobs.remove(&job);
            if jobs.is_empty() {
                shown.push(place);
            }
            !jobs.is_empty()
        });
        for place in shown.into_iter().filter(|place| !self.future.contains_key(place)) {
            self.replicas[place.shard].show(place.slot);
        }
        Some(reservation)
    }

    /// After a job was tried: gives it a reservation if it waits for capacity, and gives up the one that it had if not.
    pub(in crate::cycle) fn reserve_or_give_up(&mut self, job: JobId) {
        if self.config.backfill == Backfill::None {
            return;
        }
        if !self.waits(job) {
            self.give_up(job);
        } else if !self.dated.tried.contains_key(&job) {
            self.dated.tried.insert(job, self.dated.tried.len());
            self.reserve(job);
        }
    }

    fn reserve(&mut self, job: JobId) {
        let queue = self.queue_of(job);
        let others = || self.dated.reservations.values().filter(|of| of.job != job && of.is_confirmed);
        let is_behind = self.config.backfill == Backfill::Easy && others().any(|of| of.queue == queue);
        if is_behind || others().count() >= DATED_RESERVATIONS_MAX {
            self.give_up(job);
            return;
        }
        let Some(within) = self.within(job) else {
            self.give_up(job);
            return;
        };
        // When allocations of others will have ended is not counted, so who waits for a cap on their number has no date.
        let needed = self.needed(job);
        let count = |needed: &Needed| (needed.tasks.len() + needed.best_effort) as u64;
        let may_have = |needed: &Needed| self.jobs.may_have_allocations(queue, count(needed));
        let Some(Needed { tasks, .. }) = needed.filter(may_have) else {
            self.give_up(job);
            return;
        };
        let before = self.give_up(job);
        let date_before = before.as_ref().map(|before| before.date);
        let mut kept = before.filter(|kept| self.still_holds(kept, within, &tasks));
        if kept.is_none()
            && let Some(date) = date_before
        {
            kept = self.moved_a_little(job, within, &tasks, date);
        }
        self.dated.improved = kept.as_ref().map(|kept| kept.job);
        if !kept.as_ref().is_some_and(|kept| self.place_as_reserved(kept)) {
            let limit = kept.as_ref().map_or(Time::NEVER, |kept| kept.date);
            let found = self.place_or_date((job, within), &tasks, limit).or(kept);
            if let Some(mut reservation) = found.filter(|_| self.waits(job)) {
                reservation.is_confirmed = true;
                self.hold(reservation);
            }
        }
        self.dated.improved = None;
    }

    /// Returns a reservation somewhat later than one that does not hold any longer. What ends before a date is bound somewhat
    /// later than its cycle has counted. So the gap before what is reserved after it is used up.
    fn moved_a_little(
        &mut self,
        job: JobId,
        within: Within,
        tasks: &[TaskId],
        date: Time,
    ) -> Option<DatedReservation> {
        let gap_ns = self.config.date_gap_ns;
        let limit = date.plus_nanos(gap_ns);
        if gap_ns == 0 || limit <= self.now {
            return None;
        }
        let search = Search::new(self, job, within, tasks.to_vec()).without_gap_after();
        search.earliest(self, Some(self.now), limit)
    }

    /// Returns the reservation with the earliest date before `limit`. What fits now is placed instead, although the job's
    /// policies did not find it.
    fn place_or_date(
        &mut self,
        (job, within): (JobId, Within),
        tasks: &[TaskId],
        limit: Time,
    ) -> Option<DatedReservation> {
        let found = Search::new(self, job, within, tasks.to_vec()).earliest(self, None, limit)?;
        if found.date > self.now {
            return Some(found);
        }
        if self.place_as_reserved(&found) {
            return None;
        }
        Search::new(self, job, within, tasks.to_vec()).earliest(self, Some(self.now), limit)
    }

    /// Returns the pending tasks with amounts that a job needs in addition to those it has, if all of its tasks that ask for
    /// nothing have nodes, in the order in which they are placed. `None`: more than a statement can place, or the job has not
    /// enough.
    pub(in crate::cycle) fn needed_at_least(&self, job: JobId) -> Option<Vec<TaskId>> {
        let mut more = More { all: 0, of_roles: vec![0; self.jobs.job(job).spec().roles.len()] };
        let mut needed = Vec::new();
        for task in self.pending_tasks(job, false).into_iter().take(STATEMENT_OPERATIONS_MAX) {
            needed.push(task);
            more.all += 1;
            if let Some(of_role) = more.of_roles.get_mut(self.jobs.task(task).role as usize) {
                *of_role += 1;
            }
            if self.tiers().is_ready_with(self.facts(), job, &more) {
                return Some(needed);
            }
        }
        None
    }

    /// Returns the pending tasks that a job needs in addition to those it has. `None`: more than a statement can place, or the
    /// job has not enough. That is also so if too few of its tasks that ask for nothing have nodes now.
    fn needed(&mut self, job: JobId) -> Option<Needed> {
        if self.jobs.job(job).pending_best_effort() == 0 {
            return self.needed_at_least(job).map(|tasks| Needed { tasks, best_effort: 0 });
        }
        let first = self.tries.take_first();
        let wanted = self.withhold_wanted();
        let savepoint = self.savepoint();
        let mut filler = Filler::new(job, Sight::Later);
        let mut needed = Vec::new();
        let mut is_enough = false;
        for task in self.pending_tasks(job, false).into_iter().take(STATEMENT_OPERATIONS_MAX) {
            if self.passes(&mut filler, task) {
                continue;
            }
            needed.push(self.count_as_placed(task));
            is_enough = self.fill_up(&mut filler);
            if is_enough {
                break;
            }
        }
        let best_effort = self.savepoint() - savepoint;
        self.undo(savepoint);
        needed.iter().rev().for_each(|(task, before)| self.jobs.restore(*task, before));
        self.take_wanted_back(wanted);
        self.tries.restore_first(first);
        if is_enough {
            let tasks = needed.into_iter().map(|(task, _)| task).collect();
            return Some(Needed { tasks, best_effort });
        }
        // What is counted as placed here takes shares that others have at their dates. A date is searched for all of it.
        let tasks = self.needed_at_least(job).filter(|_| filler.is_held_back())?;
        let lacking = Lacks::of(self.jobs.job(job)).all() as usize;
        Some(Needed { best_effort: lacking.saturating_sub(tasks.len()), tasks })
    }

    /// Has the rules count a task as if it had a node. Returns it as it was.
    fn count_as_placed(&mut self, task: TaskId) -> (TaskId, Task) {
        let before = self.jobs.task(task).clone();
        self.jobs.set(task, TaskState::Allocated, Some(NOWHERE), self.now);
        (task, before)
    }

    /// Returns whether a reservation of an earlier cycle can still be kept: its job needs the same tasks, they fit, their nodes
    /// are in one domain if they must be, and they leave jobs with later dates that come before it their shares.
    fn still_holds(&mut self, kept: &DatedReservation, within: Within, tasks: &[TaskId]) -> bool {
        let reserved: BTreeSet<TaskId> = kept.nodes.values().flatten().copied().collect();
        if kept.date < self.now || reserved != tasks.iter().copied().collect() {
            return false;
        }
        if !self.are_within(within, kept.nodes.keys().copied()) {
            return false;
        }
        let nodes: Vec<(NodeId, Vec<TaskId>)> =
            kept.nodes.iter().map(|(&node, tasks)| (node, tasks.clone())).collect();
        let fit = nodes.into_iter().all(|(node, tasks)| {
            let Some(place) = self.locate(node) else { return false };
            let span = Span { from: kept.date, until: kept.until, gap_ns: 0 };
            self.fitting_over(place, span, kept.job, &tasks) == tasks
        });
        if !fit {
            return false;
        }
        let freed = self.freed_by(kept.queue, kept.date);
        let needs = Arc::clone(&kept.needs);
        let DatedReservation { job, date, .. } = *kept;
        self.may_have(&Wanted { job, date, needs: &needs, freed: &freed, gap_ns: 0, more: None })
            && self.leaves_shares(kept.job, &needs.amounts, kept.date, kept.until)
    }

    /// Places a job on the nodes that are reserved for it, if all of it fits there now. Its policies may choose other
    /// nodes, so that tasks of different sizes do not fit together, although they do as they are reserved.
    fn place_as_reserved(&mut self, reservation: &DatedReservation) -> bool {
        let savepoint = self.savepoint();
        let nodes = reservation.nodes.iter();
        let tasks = nodes.flat_map(|(&node, tasks)| tasks.iter().map(move |&task| (node, task)));
        let mut are_placed = true;
        for (node, task) in tasks {
            let class = Arc::clone(&self.jobs.task(task).class);
            let queue: QueueId = reservation.queue;
            let end = self.end_if_started(task);
            are_placed = self.tiers().is_allocatable(self.facts(), queue, &class)
                && self.cap_in_the_way(queue, &class, true).is_none()
                && self.leaves_shares_with(task, end)
                && self
                    .locate(node)
                    .is_some_and(|place| self.allocate_on(task, place, end) == Attempt::Placed);
            if !are_placed {
                break;
            }
        }
        let job = reservation.job;
        let needs_others = are_placed && self.jobs.job(job).pending_best_effort() > 0;
        let has_enough =
            !needs_others || self.fill_up(&mut Filler::new(job, Sight::Later)) || self.has_enough(job);
        self.keep_if(are_placed && has_enough, savepoint)
    }
}
