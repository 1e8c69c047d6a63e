//! Places tasks where they do not disturb dated reservations.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cycle::config::Backfill;
use crate::cycle::topology::DomainId;
use crate::cycle::trial::{Cycle, Place};
use crate::fairness::Dim;
use crate::ids::NodeId;
use crate::jobs::{JobId, QueueId, TaskClass, TaskId, TaskState};
use crate::planted::{PlantedBug, is_planted};
use crate::replica::ClaimKey;
use crate::time::Time;

/// What came of trying to place a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cycle) enum Attempt {
    /// It has a node or a claim.
    Placed,
    /// It would fit, and would disturb a reservation.
    HeldBack,
    /// It does not fit.
    NoRoom,
}

impl Attempt {
    fn of(is_placed: bool) -> Self {
        if is_placed { Self::Placed } else { Self::NoRoom }
    }

    /// Returns this, or what comes of another try if the task has no place yet.
    pub(in crate::cycle) fn or_else(self, next: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Placed => self,
            Self::NoRoom => next(),
            Self::HeldBack if next() == Self::Placed => Self::Placed,
            Self::HeldBack => self,
        }
    }
}

/// The queue of tasks, and their class.
type Kind = (QueueId, *const TaskClass);

/// The tasks that were held back, by kind: those that end at a time or later. A task that takes its place for a shorter
/// time may be placed.
#[derive(Default)]
pub(in crate::cycle) struct HeldBack {
    ends: BTreeMap<Kind, Time>,
    /// What was noted, with what was known before.
    notes: Vec<(Kind, Option<Time>)>,
    /// The number of reservations that had been given up when the first of these was noted.
    given_up: u64,
}

impl HeldBack {
    /// Returns how much was noted so far, for [`forget`](Self::forget).
    pub(in crate::cycle) fn noted(&self) -> usize {
        self.notes.len()
    }

    /// Forgets all that was noted later.
    pub(in crate::cycle) fn forget(&mut self, noted: usize) {
        while self.notes.len() > noted {
            let (kind, before) = self.notes.pop().expect("there are more than were noted");
            match before {
                Some(end) => self.ends.insert(kind, end),
                None => self.ends.remove(&kind),
            };
        }
    }

    fn note(&mut self, kind: Kind, end: Time, given_up: u64) {
        if self.given_up != given_up {
            *self = Self { given_up, ..Self::default() };
        }
        let before = self.ends.insert(kind, end);
        self.notes.push((kind, before));
    }
}

impl Cycle<'_> {
    /// Remembers when a task that this cycle has placed will have ended. It is bound somewhat later than now.
    pub(in crate::cycle) fn expect_end(&mut self, task: TaskId, key: ClaimKey, end: Time) {
        if self.config.backfill == Backfill::None {
            return;
        }
        let end = end.plus_nanos(self.config.date_gap_ns);
        let before = self.dated.fresh.insert(task, super::Fresh { key, end });
        assert!(before.is_none(), "task {task} is placed twice");
        if end != Time::NEVER {
            self.dated.fresh_ends.insert((end, task));
            self.count_end_of(task, end, true);
        }
    }

    /// Forgets the end of a task that is not placed any longer.
    pub(in crate::cycle) fn forget_end(&mut self, task: TaskId) {
        if let Some(fresh) = self.dated.fresh.remove(&task)
            && self.dated.fresh_ends.remove(&(fresh.end, task))
        {
            self.count_end_of(task, fresh.end, false);
        }
    }

    /// Keeps the end of a task that stays placed. If its job does not start now, because it waits for claims, its end is
    /// not known.
    pub(in crate::cycle) fn keep_end(&mut self, task: TaskId) {
        let Some(&fresh) = self.dated.fresh.get(&task) else { return };
        if fresh.end != Time::NEVER && !self.is_ready(task.job) {
            self.forget_end(task);
            self.dated.fresh.insert(task, super::Fresh { end: Time::NEVER, ..fresh });
        }
    }

    /// Changes a task that this cycle evicts, or takes the eviction back. What ends until the dates of reservations
    /// follows.
    pub(in crate::cycle) fn change_end(
        &mut self,
        task: TaskId,
        place: Place,
        change: impl FnOnce(&mut Self),
    ) {
        if self.dated.reservations.is_empty() {
            return change(self);
        }
        self.count_end_of(task, self.end_on(task, place), false);
        change(self);
        self.count_end_of(task, self.end_on(task, place), true);
    }

    /// Adds a task as it is to what ends until the dates of reservations, or takes it out.
    fn count_end_of(&mut self, task: TaskId, end: Time, is_added: bool) {
        let queue = self.queue_of(task.job);
        let chain = self.chain_of(queue);
        let of_task = self.jobs.task(task);
        let is_releasing = of_task.state == TaskState::Releasing;
        let amounts = &of_task.class.amounts;
        for of in self.dated.reservations.values_mut().filter(|of| end <= of.date) {
            let Some(freed) = &mut of.freed else { continue };
            let sums = if is_releasing { &mut freed.released } else { &mut freed.held };
            for queue in &chain {
                match sums.get_mut(queue) {
                    Some(sum) if is_added => sum.add(amounts),
                    Some(sum) => sum.subtract(amounts),
                    None => {}
                }
            }
        }
    }

    fn kind_of(&self, task: TaskId) -> Kind {
        (self.queue_of(task.job), Arc::as_ptr(&self.jobs.task(task).class))
    }

    /// Returns whether a task like this one was held back, and no reservation was given up since. A job with a reservation
    /// of its own is not compared with others: its own reservation does not hold it back.
    pub(in crate::cycle) fn is_held_back(&self, task: TaskId, held_back: &HeldBack) -> bool {
        held_back.given_up == self.dated.given_up
            && !self.dated.reservations.contains_key(&task.job)
            && held_back.ends.get(&self.kind_of(task)).is_some_and(|&end| end <= self.end_if_placed(task))
    }

    /// Notes that a task was held back.
    pub(in crate::cycle) fn hold_back(&self, task: TaskId, held_back: &mut HeldBack) {
        if !self.dated.reservations.contains_key(&task.job) {
            held_back.note(self.kind_of(task), self.end_if_placed(task), self.dated.given_up);
        }
    }

    /// Gives a pending task a node on capacity that is free now, if it disturbs no reservation there.
    pub(in crate::cycle) fn allocate(&mut self, task: TaskId) -> bool {
        self.try_allocate(task) == Attempt::Placed
    }

    /// Tries to give a pending task a node on capacity that is free now. Nodes without reservations come first, by the
    /// task's policy.
    pub(in crate::cycle) fn try_allocate(&mut self, task: TaskId) -> Attempt {
        if let Some(domain) = self.topology.scope() {
            return self.try_allocate_in(task, domain);
        }
        if self.dated.reservations.is_empty() {
            return Attempt::of(self.allocate_by_policy(task));
        }
        let end = self.end_if_placed(task);
        if !self.leaves_shares_with(task, end) {
            return Attempt::HeldBack;
        }
        if self.allocate_by_policy(task) {
            return Attempt::Placed;
        }
        let mut last = None;
        best(std::iter::from_fn(|| {
            last = Some(self.dated.place_after(last)?);
            last.map(|place| self.allocate_on(task, place, end))
        }))
    }

    /// Tries to give a pending task a node of a domain on capacity that is free now. Tasks go through the domain in the order
    /// of its tree, so those that follow each other are near each other.
    fn try_allocate_in(&mut self, task: TaskId, domain: DomainId) -> Attempt {
        let end = self.end_if_placed(task);
        if !self.dated.reservations.is_empty() && !self.leaves_shares_with(task, end) {
            return Attempt::HeldBack;
        }
        let class = Arc::clone(&self.jobs.task(task).class);
        let mut last = None;
        let attempt = best(std::iter::from_fn(|| {
            let (position, place) = self.next_in_domain(&class, domain, last)?;
            last = Some(position);
            Some(self.allocate_on(task, place, end))
        }));
        if let Some(position) = last.filter(|_| attempt == Attempt::Placed) {
            self.go_on_from(position);
        }
        attempt
    }

    /// Tries to give a pending task a node that is part of a reservation.
    pub(super) fn allocate_on(&mut self, task: TaskId, place: Place, end: Time) -> Attempt {
        let class = Arc::clone(&self.jobs.task(task).class);
        let asked = [Dim::CPU, Dim::MEMORY, Dim::GPU].map(|dim| class.amounts.get(dim));
        let free = self.free_on(place);
        // A node with claims of this cycle is shown as it will be, not as it is.
        if asked.iter().zip(free).any(|(&asked, free)| asked > free) || self.future.contains_key(&place) {
            return Attempt::NoRoom;
        }
        let node = self.node_at(place);
        let savepoint = self.savepoint();
        let may_hold = self.replicas[place.shard].shard_mut().may_hold(place.slot, &class.request);
        if !may_hold || !self.allocate_at(task, node, place) {
            return Attempt::NoRoom;
        }
        if self.leaves_dates(place, task.job, end) {
            return Attempt::Placed;
        }
        self.undo(savepoint);
        Attempt::HeldBack
    }

    /// Tries to give a pending task a claim on some node where capacity is being released. When it starts is not known, so
    /// it counts as work that never ends.
    pub(in crate::cycle) fn pipeline(&mut self, task: TaskId) -> Attempt {
        let places = self.releasing_places_in_scope();
        if self.dated.reservations.is_empty() {
            return Attempt::of(places.into_iter().any(|(node, place)| self.pipeline_on(task, node, place)));
        }
        if places.is_empty() {
            return Attempt::NoRoom;
        }
        if !self.leaves_shares_with(task, Time::NEVER) {
            return Attempt::HeldBack;
        }
        best(places.into_iter().map(|(node, place)| {
            let savepoint = self.savepoint();
            if !self.pipeline_on(task, node, place) {
                return Attempt::NoRoom;
            }
            if !self.dated.has(place) || self.leaves_dates(place, task.job, Time::NEVER) {
                return Attempt::Placed;
            }
            self.undo(savepoint);
            Attempt::HeldBack
        }))
    }

    /// Returns whether a claim of a task on a node, for which others are evicted or not, disturbs no reservation. Without
    /// evictions, it takes what is free, as any other work does.
    pub(in crate::cycle) fn claim_leaves_dates(
        &mut self,
        task: TaskId,
        node: NodeId,
        place: Place,
        evicts: bool,
    ) -> bool {
        if self.dated.reservations.is_empty() {
            return true;
        }
        self.dated.evictor = evicts.then_some(task.job);
        let savepoint = self.savepoint();
        let leaves_dates = self.leaves_shares_with(task, Time::NEVER)
            && (!self.dated.has(place)
                || (self.pipeline_on(task, node, place) && self.leaves_dates(place, task.job, Time::NEVER)));
        self.undo(savepoint);
        self.dated.evictor = None;
        leaves_dates
    }

    /// Returns whether reservations on a node that bind a job still hold, with all that was placed there. The job's newest
    /// task there ends at a time.
    fn leaves_dates(&mut self, place: Place, job: JobId, end: Time) -> bool {
        let dates = self.dates_on(place, job, end);
        if !dates.is_empty() && !self.dated.look(1) {
            return false;
        }
        is_planted(PlantedBug::DateForgotten)
            || dates.into_iter().all(|date| self.fitting(place, date, job, &[], 0).is_some())
    }

    /// Returns whether a job waits for capacity: it has not what it needs, nor claims that will give it that.
    pub(super) fn waits(&self, id: JobId) -> bool {
        let job = self.jobs.job(id);
        let has_any = job.ready_tasks() + job.count(TaskState::Pipelined) > 0;
        !(has_any && self.has_enough(id))
    }
}

/// Returns the first success of several tries, or why none succeeded.
fn best(attempts: impl Iterator<Item = Attempt>) -> Attempt {
    let mut best = Attempt::NoRoom;
    for attempt in attempts {
        match attempt {
            Attempt::Placed => return attempt,
            Attempt::HeldBack => best = attempt,
            Attempt::NoRoom => {}
        }
    }
    best
}
