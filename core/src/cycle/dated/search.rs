//! The earliest date at which all that a job needs fits.
//!
//! The search starts with what is free now, and goes from one expected end to the next. At each, only the node that
//! changes is looked at again. For equal tasks, the date is the earliest there is: each node always has as many of them as
//! fit. For tasks of different kinds, it is an upper bound: the largest are put on nodes first, and others make room.
//!
//! A job that must be in one domain is put together in all domains at once. They share no nodes, so a node that changes is
//! looked at for one of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::DatedReservation;
use super::domains::Within;
use super::expected::Span;
use super::shares::{Freed, Wanted};
use crate::cycle::topology::DomainId;
use crate::cycle::trial::{Cycle, Place};
use crate::fairness::Dim;
use crate::jobs::{JobId, QueueId, TaskClass, TaskId};
use crate::time::Time;

const KINDS: [Dim; 3] = [Dim::CPU, Dim::MEMORY, Dim::GPU];

/// How often tasks that made room for larger ones may look for other nodes in one search.
const DISPLACEMENTS_MAX: u32 = 64;

/// Equal tasks of a queue for which there is no date.
pub(super) struct Hopeless {
    queue: QueueId,
    within: Within,
    class: *const TaskClass,
    tasks: usize,
    run_time_ns: u64,
}

impl Hopeless {
    /// Returns whether there is no date for others either.
    fn implies(&self, other: &Self) -> bool {
        self.queue == other.queue
            && self.within == other.within
            && self.class == other.class
            && self.tasks <= other.tasks
            && self.run_time_ns <= other.run_time_ns
    }
}

/// How many tasks of a class a node could still have.
struct ClassRoom {
    class: *const TaskClass,
    left: i64,
}

/// The tasks of a job in one domain.
struct Part {
    /// Those without a node, by index in all tasks.
    left: BTreeSet<usize>,
    placed: BTreeMap<Place, Vec<usize>>,
}

impl Part {
    /// Returns a part in which none of so many tasks has a node.
    fn new(tasks: usize) -> Self {
        Self { left: (0..tasks).collect(), placed: BTreeMap::new() }
    }
}

/// A search at work.
pub(super) struct Search {
    job: JobId,
    queue: QueueId,
    tasks: Vec<TaskId>,
    /// Their kinds.
    classes: Vec<Arc<TaskClass>>,
    /// How long the job runs, in ns, if it says so.
    run_time_ns: Option<u64>,
    /// How long the job must have ended before what is reserved begins.
    gap_after_ns: u64,
    /// Where the tasks must be.
    within: Within,
    /// The tasks in each domain in which one was put on a node. Without a rule, all nodes are one.
    parts: BTreeMap<DomainId, Part>,
    /// The domains in which all tasks have nodes.
    complete: BTreeSet<DomainId>,
    /// The nodes to look at again, each with the time.
    revisits: BTreeSet<(Time, Place)>,
    /// The end that was counted last.
    counted: Option<(Time, TaskId)>,
    freed: Freed,
    /// What ends on nodes until the time of the search: cpu, memory and GPUs.
    freed_on: BTreeMap<Place, [i64; 3]>,
    /// The tasks in their grace periods that end later, the first one last.
    releasing: Vec<(Time, TaskId, Place)>,
    displacements_left: u32,
}

impl Search {
    pub(super) fn new(cycle: &Cycle<'_>, job: JobId, within: Within, mut tasks: Vec<TaskId>) -> Self {
        let size = |task: TaskId| {
            let amounts = &cycle.jobs.task(task).class.amounts;
            [Dim::GPU, Dim::CPU, Dim::MEMORY].map(|dim| amounts.get(dim))
        };
        tasks.sort_by_key(|&task| Reverse(size(task)));
        let classes = cycle.needs_of(&tasks).classes;
        let queue = cycle.queue_of(job);
        let times: Option<Vec<u64>> = tasks.iter().map(|&task| cycle.jobs.task(task).run_time_ns).collect();
        let mut releasing = cycle.releasing_tasks();
        releasing.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            job,
            queue,
            run_time_ns: times.and_then(|times| times.into_iter().max()),
            gap_after_ns: cycle.config.date_gap_ns,
            within,
            parts: BTreeMap::new(),
            complete: BTreeSet::new(),
            tasks,
            revisits: BTreeSet::new(),
            counted: Some((cycle.now, TaskId { job: JobId(u64::MAX), index: u32::MAX })),
            freed: Freed::of(&cycle.chain_of(queue)),
            freed_on: BTreeMap::new(),
            releasing,
            displacements_left: if classes.len() == 1 { 0 } else { DISPLACEMENTS_MAX },
            classes,
        }
    }

    /// Has the job be reserved until just before something else begins.
    pub(super) fn without_gap_after(mut self) -> Self {
        self.gap_after_ns = 0;
        self
    }

    /// Returns the reservation with the earliest date after `after` and before `limit`.
    pub(super) fn earliest(
        mut self,
        cycle: &mut Cycle<'_>,
        after: Option<Time>,
        limit: Time,
    ) -> Option<DatedReservation> {
        if self.is_hopeless(cycle) {
            return None;
        }
        match self.within {
            Within::Cluster => self.place_now(cycle),
            _ => self.note_nodes_with_room(cycle),
        }
        self.note_revisits(cycle);
        let mut at = cycle.now;
        loop {
            self.count_ends(cycle, at);
            while let Some(&(time, place)) = self.revisits.first().filter(|&&(time, _)| time <= at) {
                if !cycle.dated.look(1) {
                    return None;
                }
                self.revisits.remove(&(time, place));
                self.look_at(cycle, place, at);
            }
            if let Some(&domain) = self.complete.first()
                && after < Some(at)
                && self.may_start(cycle, at)
            {
                return Some(self.reservation(cycle, domain, at));
            }
            if !cycle.dated.look(1) {
                return None;
            }
            let Some(next) = self.next_time(cycle) else {
                self.note_hopeless(cycle);
                return None;
            };
            if next >= limit {
                return None;
            }
            at = next;
        }
    }

    /// Returns this search as one without a date, if its tasks are equal.
    fn as_hopeless(&self) -> Option<Hopeless> {
        let [class] = self.classes.as_slice() else { return None };
        let run_time_ns = self.run_time_ns.unwrap_or(u64::MAX);
        Some(Hopeless {
            queue: self.queue,
            within: self.within,
            class: Arc::as_ptr(class),
            tasks: self.tasks.len(),
            run_time_ns,
        })
    }

    /// Returns whether there is no date for as many equal tasks of the queue, or for fewer.
    fn is_hopeless(&self, cycle: &Cycle<'_>) -> bool {
        self.as_hopeless().is_some_and(|this| cycle.dated.hopeless.iter().any(|known| known.implies(&this)))
    }

    fn note_hopeless(&self, cycle: &mut Cycle<'_>) {
        if let Some(this) = self.as_hopeless().filter(|_| self.complete.is_empty()) {
            cycle.dated.hopeless.push(this);
        }
    }

    /// Places what fits on capacity that is free now, on nodes without reservations that were not looked at yet.
    fn place_now(&mut self, cycle: &mut Cycle<'_>) {
        let mut part = self.take_part(DomainId::ROOT);
        let known: BTreeSet<Place> = self.freed_on.keys().chain(part.placed.keys()).copied().collect();
        let is_shown = |place: &Place| !cycle.dated.has(*place) && !cycle.future.contains_key(place);
        let known: Vec<Place> = known.into_iter().filter(is_shown).collect();
        known.iter().for_each(|place| cycle.replicas[place.shard].hide(place.slot));
        let mut taken = Vec::new();
        let mut misfits: Vec<*const TaskClass> = Vec::new();
        for at in part.left.clone() {
            let task = self.tasks[at];
            let class = Arc::clone(&cycle.jobs.task(task).class);
            if misfits.contains(&Arc::as_ptr(&class)) {
                continue;
            }
            let mut replicas = cycle.replicas.iter_mut().enumerate();
            let found = replicas.find_map(|(shard, replica)| {
                let (taken, key) = replica.take(&class.request)?;
                Some((Place { shard, slot: taken.slot }, key))
            });
            let Some((place, key)) = found else {
                misfits.push(Arc::as_ptr(&class));
                continue;
            };
            taken.push((place, key));
            part.placed.entry(place).or_default().push(at);
            part.left.remove(&at);
        }
        self.put_part(DomainId::ROOT, part);
        for (place, key) in taken {
            cycle.replicas[place.shard].give_up(place.slot, &[key]);
        }
        known.iter().for_each(|place| cycle.replicas[place.shard].show(place.slot));
    }

    /// Takes out what is known of a domain.
    fn take_part(&mut self, domain: DomainId) -> Part {
        self.complete.remove(&domain);
        self.parts.remove(&domain).unwrap_or_else(|| Part::new(self.tasks.len()))
    }

    /// Puts back what is known of a domain.
    fn put_part(&mut self, domain: DomainId, part: Part) {
        if part.left.is_empty() {
            self.complete.insert(domain);
        }
        self.parts.insert(domain, part);
    }

    /// Returns the domain in which a node counts. `None`: the job must not be there, or in no domain.
    fn domain_of(&self, cycle: &Cycle<'_>, place: Place) -> Option<DomainId> {
        cycle.domain_within(self.within, place)
    }

    /// Has the nodes of all domains be looked at that have room for a task, by what is free now: at once, or when all that is
    /// being released there has ended.
    fn note_nodes_with_room(&mut self, cycle: &mut Cycle<'_>) {
        for place in cycle.places_with_room(self.within, &self.classes) {
            let time = cycle.released_on(place, cycle.node_at(place)).max(cycle.now);
            if time != Time::NEVER {
                self.revisits.insert((time, place));
            }
        }
    }

    /// Looks for other nodes for tasks that made room for larger ones: nodes that were not looked at yet, then those that
    /// were, again.
    fn displace(&mut self, cycle: &mut Cycle<'_>, domain: DomainId, from: Place, at: Time) {
        if self.displacements_left == 0 {
            return;
        }
        self.displacements_left -= 1;
        let mut others: BTreeSet<Place> = BTreeSet::new();
        match self.within {
            Within::Cluster => self.place_now(cycle),
            _ => others.extend(cycle.places_with_room(Within::Domain(domain), &self.classes)),
        }
        let placed = self.parts.get(&domain).into_iter().flat_map(|part| part.placed.keys());
        let known = self.freed_on.keys().chain(placed).chain(cycle.dated.places.keys()).copied();
        others.extend(known.filter(|&place| self.domain_of(cycle, place) == Some(domain)));
        others.remove(&from);
        let can_be_shown = |place: &Place| cycle.released_on(*place, cycle.node_at(*place)) <= at;
        self.revisits.extend(others.into_iter().filter(can_be_shown).map(|place| (at, place)));
    }

    /// Notes the nodes that searches do not show: those with reservations are looked at now, and whenever one of these
    /// begins to be in the way or ends.
    fn note_revisits(&mut self, cycle: &Cycle<'_>) {
        for &place in cycle.dated.places.keys() {
            self.revisits.insert((cycle.now, place));
            for other in cycle.dated.binding_on(place, self.job, self.queue) {
                let taken = self.run_time_ns.map(|nanos| nanos.saturating_add(self.gap_after_ns));
                let before = taken.map(|nanos| other.date.0.saturating_sub(nanos));
                let times = [
                    before.map(|time| Time(time + 1)),
                    Some(other.until.plus_nanos(cycle.config.date_gap_ns)),
                ];
                let times =
                    times.into_iter().flatten().filter(|&time| time > cycle.now && time != Time::NEVER);
                self.revisits.extend(times.map(|time| (time, place)));
            }
        }
    }

    /// Counts what ends until a time. The nodes where it ends are looked at again.
    fn count_ends(&mut self, cycle: &mut Cycle<'_>, at: Time) {
        while let Some((end, task)) = self.next_end(cycle).filter(|&(end, _)| end <= at) {
            self.counted = Some((end, task));
            let node = cycle.jobs.task(task).node.expect("a task that holds capacity has a node");
            cycle.dated.look(1 + cycle.jobs.on_node(node).len());
            if let Some(place) = cycle.locate(node) {
                let released = cycle.released_on(place, node);
                self.count(cycle, task, place, end.max(released));
            }
        }
        while let Some(&(end, task, place)) = self.releasing.last().filter(|&&(end, ..)| end <= at) {
            self.releasing.pop();
            let released = cycle.released_on(place, cycle.node_at(place));
            self.count(cycle, task, place, end.max(released));
        }
    }

    fn count(&mut self, cycle: &Cycle<'_>, task: TaskId, place: Place, visible: Time) {
        cycle.count_end(task, &mut self.freed);
        let amounts = &cycle.jobs.task(task).class.amounts;
        let freed = self.freed_on.entry(place).or_default();
        for (dim, freed) in KINDS.into_iter().zip(freed) {
            *freed += amounts.get(dim);
        }
        if visible != Time::NEVER {
            self.revisits.insert((visible, place));
        }
    }

    /// Returns the next task that runs and will end.
    fn next_end(&self, cycle: &Cycle<'_>) -> Option<(Time, TaskId)> {
        let after = (self.counted.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let fresh = cycle.dated.fresh_ends.range(after).next().copied();
        let running = cycle.jobs.ends(self.counted).next();
        [fresh, running].into_iter().flatten().min()
    }

    fn next_time(&self, cycle: &Cycle<'_>) -> Option<Time> {
        let end = self.next_end(cycle).map(|(end, _)| end);
        let revisit = self.revisits.first().map(|&(time, _)| time);
        let released = self.releasing.last().map(|&(end, ..)| end);
        [end, revisit, released].into_iter().flatten().min().filter(|&time| time != Time::NEVER)
    }

    /// Returns when the job will have ended if it starts at a time.
    fn until(&self, at: Time) -> Time {
        self.run_time_ns.map_or(Time::NEVER, |nanos| at.plus_nanos(nanos))
    }

    /// Returns for how long nothing else may take what the job needs if it starts at a time.
    fn span(&self, cycle: &Cycle<'_>, from: Time) -> Span {
        let until = self.until(from).plus_nanos(self.gap_after_ns);
        Span { from, until, gap_ns: cycle.config.date_gap_ns }
    }

    /// Returns how many tasks of each class a node could have, by its cpu, memory and GPUs.
    fn rooms_on(&self, cycle: &Cycle<'_>, place: Place) -> Vec<ClassRoom> {
        let freed = self.freed_on.get(&place).copied().unwrap_or_default();
        let free: Vec<i64> = cycle.free_on(place).into_iter().zip(freed).map(|(a, b)| a.max(0) + b).collect();
        let most = |class: &TaskClass| {
            let asked = KINDS.into_iter().map(|dim| class.amounts.get(dim)).zip(&free);
            let counts = asked.filter(|&(asked, _)| asked > 0).map(|(asked, free)| free / asked);
            counts.min().unwrap_or(i64::MAX)
        };
        let classes = self.classes.iter();
        classes.map(|class| ClassRoom { class: Arc::as_ptr(class), left: most(class) }).collect()
    }

    /// Returns the tasks without a node in a domain that could fit on a node of it with so much room, of each class at most as
    /// many as could fit alone.
    fn candidates(&self, cycle: &Cycle<'_>, part: &Part, mut rooms: Vec<ClassRoom>) -> Vec<usize> {
        let mut candidates = Vec::new();
        for &at in &part.left {
            let class = Arc::as_ptr(&cycle.jobs.task(self.tasks[at]).class);
            let room = rooms.iter_mut().find(|room| room.class == class);
            let room = room.expect("the classes of all tasks are known");
            if room.left > 0 {
                room.left -= 1;
                candidates.push(at);
            } else if rooms.iter().all(|room| room.left == 0) {
                break;
            }
        }
        candidates
    }

    /// Puts on a node all tasks without a node that fit there from a time on, and those that it had.
    fn look_at(&mut self, cycle: &mut Cycle<'_>, place: Place, at: Time) {
        let Some(domain) = self.domain_of(cycle, place) else { return };
        let rooms = self.rooms_on(cycle, place);
        if !self.parts.contains_key(&domain) {
            if rooms.iter().all(|room| room.left == 0) {
                return;
            }
            cycle.dated.look(self.tasks.len());
        }
        let mut part = self.take_part(domain);
        let makes_room = self.look_for(cycle, &mut part, (place, rooms), at);
        self.put_part(domain, part);
        if makes_room {
            self.displace(cycle, domain, place, at);
        }
    }

    /// As [`look_at`](Self::look_at), for a domain. Returns whether a task that was there has no node now.
    fn look_for(
        &self,
        cycle: &mut Cycle<'_>,
        part: &mut Part,
        (place, rooms): (Place, Vec<ClassRoom>),
        at: Time,
    ) -> bool {
        let before = part.placed.remove(&place).unwrap_or_default();
        part.left.extend(&before);
        let candidates = self.candidates(cycle, part, rooms);
        if candidates.is_empty() {
            return false;
        }
        let tasks: Vec<TaskId> = candidates.iter().map(|&at| self.tasks[at]).collect();
        let fitting: BTreeSet<TaskId> =
            cycle.fitting_over(place, self.span(cycle, at), self.job, &tasks).into_iter().collect();
        let fitting: Vec<usize> =
            candidates.into_iter().filter(|&at| fitting.contains(&self.tasks[at])).collect();
        for at in &fitting {
            part.left.remove(at);
        }
        let makes_room = before.iter().any(|at| part.left.contains(at));
        if !fitting.is_empty() {
            part.placed.insert(place, fitting);
        }
        makes_room
    }

    /// Returns whether caps and rules allow the job to start at a time.
    fn may_start(&self, cycle: &mut Cycle<'_>, date: Time) -> bool {
        let needs = cycle.needs_of(&self.tasks);
        let Span { until, gap_ns, .. } = self.span(cycle, date);
        let wanted = Wanted { job: self.job, date, needs: &needs, freed: &self.freed, gap_ns, more: None };
        cycle.may_have(&wanted) && cycle.leaves_shares(self.job, &needs.amounts, date, until)
    }

    /// Returns the reservation of what was put on the nodes of a domain.
    fn reservation(self, cycle: &Cycle<'_>, domain: DomainId, date: Time) -> DatedReservation {
        let until = self.until(date);
        let tasks = &self.tasks;
        let nodes = self.parts[&domain]
            .placed
            .iter()
            .map(|(&place, placed)| (cycle.node_at(place), placed.iter().map(|&at| tasks[at]).collect()));
        DatedReservation {
            job: self.job,
            date,
            until,
            queue: self.queue,
            nodes: nodes.collect(),
            needs: Arc::new(cycle.needs_of(tasks)),
            freed: Some(self.freed),
            is_confirmed: true,
        }
    }
}
