//! Changes that can be undone exactly: a task gets a node, a claim, or is evicted.
//!
//! Each change is made at once in the books of the jobs and on the replica, and noted. Undoing takes the changes back
//! in reverse order. So rules always see the state that they would leave behind.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::config::{Backfill, CycleConfig};
use super::dated::Dated;
use super::groups::GroupPlans;
use super::parked::Parked;
use super::plugin::{Facts, Tiers};
use super::reason::LastTries;
use super::report::{CycleReport, Plan, PlannedTask, allocation, bundle_of};
use super::shares::JobShares;
use super::spots::SpotTable;
use super::starvation::Starvation;
use super::topology::{Topology, Tree};
use crate::fairness::Amounts;
use crate::ids::{AllocationId, NodeId};
use crate::index::Slot;
use crate::jobs::{JobId, Jobs, OverCap, QueueId, Task, TaskClass, TaskId, TaskState};
use crate::limits::STATEMENT_OPERATIONS_MAX;
use crate::replica::{ClaimKey, Replica};
use crate::shard::Tentative;
use crate::statement::{Evict, Operation, Pipeline};
use crate::time::Time;

/// A node of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) slot: Slot,
}

/// Returns where a node is.
pub(super) fn locate(replicas: &[Replica], node: NodeId) -> Option<Place> {
    let of =
        |(shard, replica): (usize, &Replica)| Some(Place { shard, slot: replica.shard().slot_of(node)? });
    replicas.iter().enumerate().find_map(of)
}

fn place_of(step: &PlannedTask) -> Place {
    Place { shard: step.shard, slot: step.slot }
}

/// What a cycle reads of the nodes.
#[derive(Clone, Copy)]
pub(super) struct Cluster<'a> {
    /// The capacity of all nodes that take work.
    pub(super) total: &'a Amounts,
    pub(super) tree: &'a Tree,
}

/// How much was noted as touched before a change.
pub(super) struct Marks {
    jobs: usize,
    replica: usize,
    /// What was noted of it for counts that follow changes.
    noted: Range<u64>,
}

/// One cycle at work.
pub(super) struct Cycle<'a> {
    pub(super) jobs: &'a mut Jobs,
    pub(super) replicas: &'a mut Vec<Replica>,
    tiers: &'a mut Tiers,
    total: &'a Amounts,
    pub(super) config: &'a CycleConfig,
    pub(super) now: Time,
    pub(super) starvation: &'a mut Starvation,
    /// What is noted about jobs that wait.
    pub(super) tries: LastTries,
    /// Where tasks may be evicted.
    pub(super) spots: SpotTable,
    /// The classes that are not searched for.
    pub(super) parked: Parked,
    /// The fair shares of jobs, while the action `starve` runs.
    pub(super) shares: Option<JobShares>,
    /// The earliest time at which something that was looked at is otherwise.
    due: Cell<Option<Time>>,
    /// The changes that are not kept yet.
    trial: Plan,
    /// How many places were looked for to trim plans.
    pub(super) trimmed: usize,
    /// For each of them, what was noted as touched before it: what is undone has touched nothing.
    marks: Vec<Marks>,
    /// The nodes that are shown as they will be, with the number of claims that this cycle has there.
    pub(super) future: BTreeMap<Place, u32>,
    /// What this cycle keeps for tasks that have waited for their queue's cap since an earlier one.
    held_for_caps: Vec<(Place, ClaimKey)>,
    /// The dated reservations, and the expected ends of what this cycle has placed.
    pub(super) dated: Dated,
    pub(super) topology: Topology<'a>,
    /// What plans the groups that wait in queues.
    pub(super) groups: &'a mut dyn GroupPlans,
    pub(super) report: CycleReport,
}

impl<'a> Cycle<'a> {
    pub(super) fn new(
        jobs: &'a mut Jobs,
        replicas: &'a mut Vec<Replica>,
        tiers: &'a mut Tiers,
        cluster: Cluster<'a>,
        starvation: &'a mut Starvation,
        (config, groups): (&'a CycleConfig, &'a mut dyn GroupPlans),
        now: Time,
    ) -> Self {
        Self {
            jobs,
            replicas,
            tiers,
            total: cluster.total,
            config,
            now,
            starvation,
            tries: LastTries::default(),
            spots: SpotTable::default(),
            parked: Parked::default(),
            shares: None,
            due: Cell::new(None),
            trial: Plan::default(),
            trimmed: 0,
            marks: Vec::new(),
            future: BTreeMap::new(),
            held_for_caps: Vec::new(),
            dated: Dated::new(),
            topology: Topology::new(cluster.tree),
            groups,
            report: CycleReport::default(),
        }
    }

    /// Ends the cycle. The replicas show the present again, less what the plans have taken.
    pub(super) fn end(mut self) -> CycleReport {
        assert!(self.trial.tasks.is_empty(), "a cycle ends with changes that are neither kept nor undone");
        // Shards know nothing of what waits for caps. The next cycle takes it first.
        let waits = self.report.plans.iter_mut().flat_map(|plan| &mut plan.tasks);
        let waits = waits.filter(|step| step.operation.is_none());
        let waits = waits.filter_map(|step| {
            let place = Place { shard: step.shard, slot: step.slot };
            step.key.take().map(|key| (place, key))
        });
        for (place, key) in waits.chain(std::mem::take(&mut self.held_for_caps)) {
            self.replicas[place.shard].give_up(place.slot, &[key]);
        }
        for place in std::mem::take(&mut self.future).into_keys() {
            let replica = &mut self.replicas[place.shard];
            replica.show(place.slot);
            replica.show_present(place.slot);
        }
        self.report.due = self.due.get();
        self.report
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { jobs: self.jobs, total: self.total, now: self.now, shares: self.shares.as_ref() }
    }

    /// Notes that something will be otherwise at a time, although nothing else may have changed. A time that has passed
    /// is not of interest.
    pub(super) fn note_due(&self, time: Time) {
        if time > self.now && self.due.get().is_none_or(|due| time < due) {
            self.due.set(Some(time));
        }
    }

    /// Returns how long a task of a queue runs before it may be evicted, in ns.
    pub(super) fn min_run_time_ns(&self, queue: QueueId) -> u64 {
        self.jobs.inherited(queue, |spec| spec.min_run_time_ns).unwrap_or(self.config.min_run_time_ns)
    }

    pub(super) fn tiers(&self) -> &Tiers {
        self.tiers
    }

    /// Tells all rules that a job was admitted.
    pub(super) fn tell_enqueued(&mut self, job: JobId) {
        let facts = Facts { jobs: self.jobs, total: self.total, now: self.now, shares: self.shares.as_ref() };
        self.tiers.enqueued(facts, job);
    }

    pub(super) fn compare_queues(&self, a: QueueId, b: QueueId) -> Ordering {
        self.tiers.queue_order(self.facts(), a, b)
    }

    /// Returns a number that is another one after the order of queues has changed that nothing was given to.
    pub(super) fn order_version(&self) -> u64 {
        self.tiers.order_version(self.facts())
    }

    pub(super) fn compare_jobs(&self, a: JobId, b: JobId) -> Ordering {
        self.tiers.job_order(self.facts(), a, b)
    }

    /// Returns whether a queue, or one that contains it, has enough already.
    pub(super) fn is_overused(&self, queue: QueueId) -> bool {
        self.tiers.is_overused(self.facts(), queue)
    }

    /// Returns the pending tasks of a job that ask for something, or those that ask for nothing, in order.
    pub(super) fn pending_tasks(&self, id: JobId, best_effort: bool) -> Vec<TaskId> {
        let job = self.jobs.job(id);
        let of_kind = |index: &u32| job.tasks()[*index as usize].class.is_best_effort() == best_effort;
        let mut tasks: Vec<TaskId> =
            job.pending().filter(of_kind).map(|index| TaskId { job: id, index }).collect();
        tasks.sort_by(|a, b| self.tiers.task_order(self.facts(), *a, *b));
        tasks
    }

    /// Returns the cap that forbids one more task of a class. With `now`, what is being released counts, because it is
    /// still in use. Without, only what tasks keep or claim counts.
    pub(super) fn cap_in_the_way(&self, queue: QueueId, class: &TaskClass, now: bool) -> Option<OverCap> {
        self.jobs.over_cap(queue, &class.amounts, now)
    }

    pub(super) fn queue_of(&self, job: JobId) -> QueueId {
        self.jobs.job(job).spec().queue
    }

    /// Returns how many changes are not kept yet. [`undo`](Self::undo) goes back to this number.
    pub(super) fn savepoint(&self) -> usize {
        self.trial.tasks.len()
    }

    /// Gives a pending task the node that its policy chooses, on capacity that is free now. Nodes that are part of dated
    /// reservations are left out.
    pub(super) fn allocate_by_policy(&mut self, task: TaskId) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        // The shard used last comes first: a statement over one shard is committed in one step.
        let first = self.trial.tasks.last().map_or(0, |last| last.shard);
        for step in 0..self.replicas.len() {
            let shard = (first + step) % self.replicas.len();
            let marks = self.marks_before(shard);
            let Some((taken, key)) = self.replicas[shard].take(&class.request) else { continue };
            self.note_allocated(task, Place { shard, slot: taken.slot }, (taken.node, key), marks);
            return true;
        }
        false
    }

    /// Notes that a task has a node, where its capacity is taken already. `marks` are from before that.
    pub(super) fn note_allocated(
        &mut self,
        task: TaskId,
        place: Place,
        (node, key): (NodeId, ClaimKey),
        marks: Marks,
    ) {
        let operation = allocation(task, node, &self.jobs.task(task).class.request);
        self.note(task, (place, node), marks, Some(key), Some(operation));
        self.jobs.set(task, TaskState::Allocated, Some(node), self.now);
        self.expect_end(task, key, self.end_if_started(task));
    }

    /// Returns the nodes of replicas where capacity is being released, in order of id.
    pub(super) fn releasing_places(&self) -> BTreeSet<(NodeId, Place)> {
        self.jobs.releasing_nodes().filter_map(|node| Some((node, self.locate(node)?))).collect()
    }

    /// Gives a pending task a claim on a node, if what is free and what is being released there suffice.
    pub(super) fn pipeline_on(&mut self, task: TaskId, node: NodeId, place: Place) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        let queue = self.queue_of(task.job);
        if self.cap_in_the_way(queue, &class, false).is_some() {
            return false;
        }
        // A claim is granted as soon as there is capacity on its node. The cap may not allow that yet.
        let waits = self.cap_in_the_way(queue, &class, true).is_some();
        let marks = self.marks_before(place.shard);
        let Some(key) = self.take_future(&class, node, place) else {
            self.replicas[place.shard].forget_since(marks.replica);
            return false;
        };
        let operation = Operation::Pipeline(Pipeline {
            node,
            expected: None,
            demand: class.request.demand.clone(),
            bundle: Some(bundle_of(task, class.request.tenant)),
            tenant: class.request.tenant,
        });
        // Without an operation, the queue keeps what the task asks for, and the cycle what it would get, but the shard is
        // asked for nothing. A later cycle [places it](Self::place_waiting).
        self.note(task, (place, node), marks, Some(key), Some(operation).filter(|_| !waits));
        self.jobs.set(task, TaskState::Pipelined, Some(node), self.now);
        // It starts when its claim is granted, at a time that later cycles do not know.
        self.expect_end(task, key, Time::NEVER);
        true
    }

    /// Has a pending task that takes nothing wait for its queue's cap, on the node that its policy chooses. Nothing is kept for
    /// it there: a later cycle [places it](Self::place_waiting), perhaps on another node.
    pub(super) fn choose_and_wait(&mut self, task: TaskId) -> bool {
        let savepoint = self.savepoint();
        if !self.allocate(task) {
            return false;
        }
        let chosen = self.trial.tasks.last().expect("it was just placed");
        let PlannedTask { node, shard, slot, .. } = *chosen;
        self.undo(savepoint);
        let marks = self.marks_before(shard);
        self.note(task, (Place { shard, slot }, node), marks, None, None);
        self.jobs.set(task, TaskState::Pipelined, Some(node), self.now);
        true
    }

    /// Places the tasks that waited for their queue's cap, where it allows them now. One that finds no node is pending
    /// again, and so is one that the cap will not allow when all that is being released has ended. The others keep what is
    /// being released for them: nothing else of this cycle is placed there.
    pub(super) fn place_waiting(&mut self) {
        let waiting = self.jobs.waiting_for_cap();
        let waiting: Vec<(TaskId, Task)> =
            waiting.into_iter().map(|task| (task, self.jobs.task(task).clone())).collect();
        // What waits holds nothing, so it does not keep others that wait from starting.
        for (task, _) in &waiting {
            self.jobs.set(*task, TaskState::Pending, None, self.now);
            self.topology.forget(task.job);
        }
        let mut left: Vec<(TaskId, Task)> = Vec::new();
        self.dated.bind_all(true);
        for (task, before) in waiting {
            let queue = self.queue_of(task.job);
            if self.cap_in_the_way(queue, &before.class, false).is_some() {
                // Not even what is being released will make room, so there is nothing to wait for.
                continue;
            }
            if self.cap_in_the_way(queue, &before.class, true).is_some() {
                left.push((task, before));
                continue;
            }
            let savepoint = self.savepoint();
            let is_placed = self.allocate_one(task);
            self.keep_if(is_placed, savepoint);
            self.topology.forget(task.job);
        }
        self.dated.bind_all(false);
        for (task, before) in &left {
            self.jobs.restore(*task, before);
            self.topology.forget(task.job);
        }
        // These come last, because a node with something kept is left out of searches.
        for (_, before) in left {
            if before.class.is_best_effort() {
                continue;
            }
            let node = before.node.expect("a task that waits for a cap has a node");
            let Some(place) = self.locate(node) else { continue };
            let key = self.take_future(&before.class, node, place);
            self.held_for_caps.extend(key.map(|key| (place, key)));
        }
    }

    /// Takes capacity on a node as it will be once what is being released there has ended.
    fn take_future(&mut self, class: &TaskClass, node: NodeId, place: Place) -> Option<ClaimKey> {
        let taken = self.try_future(class, node, place);
        let claims = self.future.get(&place).copied().unwrap_or(0) + u32::from(taken.is_some());
        self.show_claims(place, claims);
        taken.map(|(_, key)| key)
    }

    /// Returns whether a task would fit on a node once what is being released there has ended.
    pub(super) fn fits_in_future(&mut self, class: &TaskClass, node: NodeId, place: Place) -> bool {
        let mark = self.replicas[place.shard].mark();
        let taken = self.try_future(class, node, place);
        if let Some((taken, key)) = taken {
            self.replicas[place.shard].give_up(taken.slot, &[key]);
        }
        let claims = self.future.get(&place).copied().unwrap_or(0);
        self.show_claims(place, claims);
        self.replicas[place.shard].forget_since(mark);
        taken.is_some()
    }

    /// Returns the allocations on a node that are in their grace periods.
    pub(super) fn releasing_on(&self, node: NodeId) -> BTreeSet<AllocationId> {
        let tasks = self.jobs.on_node(node).iter().map(|&task| self.jobs.task(task));
        let releasing = tasks.filter(|task| task.state == TaskState::Releasing);
        releasing.filter_map(|task| task.allocation).collect()
    }

    fn try_future(&mut self, class: &TaskClass, node: NodeId, place: Place) -> Option<(Tentative, ClaimKey)> {
        let ended = self.releasing_on(node);
        let replica = &mut self.replicas[place.shard];
        replica.show(place.slot);
        if !replica.show_future(place.slot, &ended) {
            return None;
        }
        if !replica.shard_mut().may_hold(place.slot, &class.request) {
            return None;
        }
        replica.take_on(place.slot, &class.request.demand)
    }

    /// Shows a node as it will be, hidden from searches for free capacity, while there are claims of this cycle, and
    /// as it is otherwise.
    fn show_claims(&mut self, place: Place, claims: u32) {
        let before = self.future.get(&place).copied().unwrap_or(0);
        let replica = &mut self.replicas[place.shard];
        if claims > 0 {
            self.future.insert(place, claims);
            replica.hide(place.slot);
        } else {
            self.future.remove(&place);
            replica.show(place.slot);
            replica.show_present(place.slot);
            if self.dated.has(place) {
                replica.hide(place.slot);
            }
        }
        if claims > before {
            self.topology.note_change(place);
        } else if claims > 0 {
            // What has ended there depends on trials since then.
            self.topology.note_shown(place);
        }
    }

    /// Evicts a task.
    ///
    /// # Panics
    /// If the task has no allocation.
    pub(super) fn evict(&mut self, task: TaskId) {
        let of = self.jobs.task(task);
        let node = of.node.expect("a victim has a node");
        let allocation = of.allocation.expect("a victim has an allocation");
        let place = self.locate(node).expect("a victim runs on a node of a replica");
        let operation =
            Operation::Evict(Evict { allocation, expected: None, grace_ns: self.config.grace_ns });
        let marks = self.marks_before(place.shard);
        self.note(task, (place, node), marks, None, Some(operation));
        self.change_end(task, place, |cycle| {
            cycle.jobs.set(task, TaskState::Releasing, Some(node), cycle.now);
        });
    }

    /// Returns how much was noted as touched so far, for a change on a node of a replica.
    pub(super) fn marks_before(&mut self, shard: usize) -> Marks {
        let noted = self.topology.mark();
        Marks { jobs: self.jobs.mark(), replica: self.replicas[shard].mark(), noted: noted..noted }
    }

    /// Notes a change. `marks` are from before anything was taken for it.
    fn note(
        &mut self,
        task: TaskId,
        (place, node): (Place, NodeId),
        mut marks: Marks,
        key: Option<ClaimKey>,
        operation: Option<Operation>,
    ) {
        let before = self.jobs.task(task).clone();
        let Place { shard, slot } = place;
        if before.state == TaskState::Pending {
            self.topology.enter(task, before.group, place);
        } else {
            self.topology.touch(task.job, place);
        }
        marks.noted.end = self.topology.mark();
        self.marks.push(marks);
        self.trial.tasks.push(PlannedTask { task, node, before, shard, slot, key, operation });
    }

    /// Returns where a node is.
    pub(super) fn locate(&self, node: NodeId) -> Option<Place> {
        locate(self.replicas, node)
    }

    /// Returns what is free on a node now: cpu, memory and GPUs, in 1/10,000.
    pub(super) fn free_on(&self, place: Place) -> [i64; 3] {
        self.replicas[place.shard].shard().free_on(place.slot)
    }

    /// Returns the changes after a savepoint.
    pub(super) fn changes_since(&self, savepoint: usize) -> &[PlannedTask] {
        &self.trial.tasks[savepoint..]
    }

    /// Gives a pending task what is free on a node, which may be hidden. Returns whether it fits.
    pub(super) fn allocate_at(&mut self, task: TaskId, node: NodeId, place: Place) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        let marks = self.marks_before(place.shard);
        let replica = &mut self.replicas[place.shard];
        replica.show(place.slot);
        let taken = replica.take_on(place.slot, &class.request.demand);
        if self.dated.has(place) {
            self.replicas[place.shard].hide(place.slot);
        }
        let Some((_, key)) = taken else { return false };
        self.note_allocated(task, place, (node, key), marks);
        true
    }

    /// Returns the tasks that were evicted after a savepoint.
    pub(super) fn evicted_since(&self, savepoint: usize) -> Vec<TaskId> {
        let steps = self.trial.tasks[savepoint..].iter();
        let evicted = steps.filter(|step| matches!(step.operation, Some(Operation::Evict(_))));
        evicted.map(|step| step.task).collect()
    }

    /// Takes back all changes after a savepoint.
    pub(super) fn undo(&mut self, savepoint: usize) {
        while self.trial.tasks.len() > savepoint {
            let step = self.trial.tasks.pop().expect("there are more than the savepoint");
            let marks = self.marks.pop().expect("each change has its marks");
            self.take_back(&step);
            self.topology.take_back(step.task.job, place_of(&step), marks.noted, false);
            self.jobs.forget_since(marks.jobs);
            self.replicas[step.shard].forget_since(marks.replica);
        }
    }

    /// Takes back one eviction, wherever it is among the changes.
    pub(super) fn spare(&mut self, task: TaskId) {
        let at = self
            .trial
            .tasks
            .iter()
            .rposition(|step| step.task == task)
            .expect("it was evicted in this trial");
        let step = self.trial.tasks.remove(at);
        let marks = self.marks.remove(at);
        assert!(step.key.is_none(), "only an eviction is taken back alone");
        self.take_back(&step);
        self.topology.take_back(step.task.job, place_of(&step), marks.noted, true);
    }

    fn take_back(&mut self, step: &PlannedTask) {
        let place = place_of(step);
        let Some(key) = step.key else {
            return self.change_end(step.task, place, |cycle| cycle.jobs.restore(step.task, &step.before));
        };
        self.forget_end(step.task);
        self.jobs.restore(step.task, &step.before);
        self.replicas[step.shard].give_up(step.slot, &[key]);
        if let Some(&claims) = self.future.get(&place) {
            // Only claims are taken on a node that is shown as it will be: it is hidden from all other searches.
            self.show_claims(place, claims - 1);
        }
    }

    /// If there are more changes than a statement may have, takes those after a savepoint back. Returns whether it did.
    /// What is left of a job is tried in the next cycle.
    pub(super) fn undo_beyond_a_statement(&mut self, savepoint: usize) -> bool {
        let is_beyond = self.trial.tasks.len() > STATEMENT_OPERATIONS_MAX;
        if is_beyond {
            self.undo(savepoint);
        }
        is_beyond
    }

    /// Keeps all changes as one statement, or takes those after a savepoint back. More changes than a statement may have
    /// are taken back, too. Returns whether they are kept.
    pub(super) fn keep_if(&mut self, is_wanted: bool, savepoint: usize) -> bool {
        let is_kept = is_wanted && self.trial.tasks.len() <= STATEMENT_OPERATIONS_MAX;
        if !is_kept {
            self.undo(savepoint);
            return false;
        }
        let plan = std::mem::take(&mut self.trial);
        self.marks.clear();
        if self.config.backfill != Backfill::None {
            plan.tasks.iter().for_each(|step| self.keep_end(step.task));
        }
        if !plan.tasks.is_empty() {
            self.report.plans.push(plan);
        }
        true
    }
}
