//! Which tasks to evict for another one, and on which node.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::config::{Action, Decision};
use super::spots::{Spot, Spots};
use super::trial::{Cycle, Place};
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::jobs::{QueueId, TaskClass, TaskId, TaskState};

/// Whose tasks may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// Those of other jobs of the same queue.
    OtherJobs,
    /// Those of the same job.
    SameJob,
    /// Those of other queues.
    OtherQueues,
    /// Those of other jobs, for a job that starves. Without `own_queue`, only those of other queues.
    Starved { own_queue: bool },
}

impl From {
    pub(super) fn decision(self) -> Decision {
        match self {
            Self::OtherJobs | Self::SameJob => Decision::Preemptable,
            Self::OtherQueues => Decision::Reclaimable,
            Self::Starved { .. } => Decision::Evictable,
        }
    }
}

/// A task that needs room on a node, and who may give it.
#[derive(Clone, Copy)]
pub(super) struct Need<'a> {
    pub(super) task: TaskId,
    pub(super) class: &'a TaskClass,
    pub(super) node: NodeId,
    pub(super) place: Place,
    pub(super) from: From,
}

/// How bad it is to evict some tasks: first the masters among them, then their highest priority, then their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    masters: usize,
    priority: (i32, i32),
    victims: usize,
}

/// The nodes where tasks of one class could have room, the cheapest first.
#[derive(Default)]
pub(super) struct Offers {
    found: BTreeSet<(Cost, NodeId, Place)>,
    /// The number of nodes that were looked at.
    looked_at: usize,
    /// Where the nodes of the domain at work are in the list of nodes. `None`: all of these are looked at.
    in_scope: Option<Option<Vec<usize>>>,
}

impl Offers {
    /// Returns the next node to look at.
    fn next<'s>(&mut self, cycle: &Cycle<'_>, spots: Spots<'s>) -> Option<&'s Spot> {
        let in_scope = self.in_scope.get_or_insert_with(|| cycle.spots_in_scope(spots));
        let at = match in_scope {
            Some(listed) => listed.get(self.looked_at).copied(),
            None => Some(self.looked_at),
        };
        self.looked_at += 1;
        spots.listed().get(at?)
    }
}

impl Cycle<'_> {
    /// Evicts tasks on one of the nodes so that a task fits there, and gives it a claim. Returns whether it has one.
    ///
    /// Up to [`victim_nodes_max`](super::CycleConfig::victim_nodes_max) nodes where this is possible are compared. The one
    /// with the cheapest victims is taken, then the one that was registered first. `offers` keeps what was compared, for
    /// other tasks of the same class. An offer is looked at again before it is taken: what was evicted for others may
    /// have made it worse, or impossible.
    pub(super) fn make_room(
        &mut self,
        task: TaskId,
        from: From,
        spots: Spots<'_>,
        offers: &mut Offers,
    ) -> bool {
        let class = Arc::clone(&self.jobs.task(task).class);
        loop {
            while offers.found.len() < self.config.victim_nodes_max {
                let Some(spot) = offers.next(self, spots) else { break };
                let counts = spots.counts(spot);
                debug_assert!(counts || self.victims_on(task, spot.node, spot.place, from).is_none());
                if !counts || !self.topology.is_in_scope(spot.place) || !spot.may_hold(&class) {
                    continue;
                }
                self.report.victim_nodes += 1;
                if let Some(victims) = self.victims_on(task, spot.node, spot.place, from) {
                    offers.found.insert((self.cost(&victims), spot.node, spot.place));
                }
            }
            let Some((cost, node, place)) = offers.found.pop_first() else { return false };
            self.report.victim_nodes += 1;
            let Some(victims) = self.victims_on(task, node, place, from) else { continue };
            let now = self.cost(&victims);
            offers.found.insert((now, node, place));
            if now > cost && offers.found.first().is_some_and(|first| first.0 < now) {
                continue;
            }
            victims.into_iter().for_each(|victim| self.evict(victim));
            let has_claim = self.pipeline_on(task, node, place);
            assert!(has_claim, "task {task} does not fit although it did when its victims were chosen");
            return true;
        }
    }

    pub(super) fn cost(&self, victims: &[TaskId]) -> Cost {
        let priority =
            |victim: &TaskId| (self.jobs.job(victim.job).spec().priority, self.jobs.task(*victim).priority);
        let highest = victims.iter().map(priority).max().unwrap_or((i32::MIN, i32::MIN));
        let masters = victims.iter().filter(|victim| self.jobs.task(**victim).master).count();
        Cost { masters, priority: highest, victims: victims.len() }
    }

    /// Returns a smallest set of tasks to evict on a node so that a task fits there: without any one of them, it would
    /// not. `None`: there is no such set. An empty set: it fits without evicting anyone.
    fn victims_on(&mut self, task: TaskId, node: NodeId, place: Place, from: From) -> Option<Vec<TaskId>> {
        let class = Arc::clone(&self.jobs.task(task).class);
        let mut candidates = self.candidates(task, node, from);
        let need = Need { task, class: &class, node, place, from };
        if candidates.is_empty() {
            return None;
        }
        let may_find = self.may_find_victims(need, &candidates);
        if !may_find && !cfg!(debug_assertions) {
            return None;
        }
        self.order_candidates(task, &mut candidates);
        let found = self.victims_of(need, &candidates);
        assert!(may_find || found.is_none(), "task {task} has victims on node {node} that were left out");
        found
    }

    /// Returns a smallest set of these tasks to evict by all rules.
    fn victims_of(&mut self, need: Need<'_>, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        // Each of several tasks may be one that its queue gives up, or only all together.
        let alone = candidates.iter().copied().filter(|&victim| self.may_give_up(need, &[victim]));
        let alone: Vec<TaskId> = alone.collect();
        let found = self.victims_among(need, &alone);
        if found.is_some() || alone.len() == candidates.len() {
            return found;
        }
        self.victims_among(need, candidates)
    }

    /// Returns false if no set of these tasks can go by all rules and suffice. This is cheap: most nodes have no victims, and each is
    /// looked at for each class of tasks that waits.
    fn may_find_victims(&self, need: Need<'_>, candidates: &[TaskId]) -> bool {
        let decision = need.from.decision();
        let Some(rules) = self.tiers().must_accept(decision) else { return true };
        let facts = self.facts();
        let may_go =
            |victim: &TaskId| rules.iter().all(|rule| rule.may_accept(facts, decision, need.task, *victim));
        let possible: Vec<TaskId> = candidates.iter().copied().filter(may_go).collect();
        !possible.is_empty() && self.may_suffice(need.class, need.node, need.place, &possible)
    }

    /// Returns a smallest set of these tasks to evict by all rules, single ones and gangs that go as a whole.
    fn victims_among(&mut self, need: Need<'_>, candidates: &[TaskId]) -> Option<Vec<TaskId>> {
        let decision = need.from.decision();
        let agreed = self.tiers().victims(self.facts(), decision, need.task, candidates);
        let found = self.smallest_set(need, agreed);
        if found.is_some() {
            return found;
        }
        // Rules that each accept some of several tasks may accept different ones. Asked about one task after the other,
        // they may agree on more.
        let jointly = self.tiers().victims_jointly(self.facts(), decision, need.task, candidates);
        let found = jointly.and_then(|victims| self.smallest_set(need, victims));
        found.or_else(|| self.victims_with_gangs(need, candidates))
    }

    /// Returns whether a queue may give up these tasks for another of its tasks. It may if nobody could take the place of that one
    /// from it.
    pub(super) fn may_give_up(&self, need: Need<'_>, victims: &[TaskId]) -> bool {
        let is_kept = || {
            !self.config.actions.contains(&Action::Reclaim)
                || !self.tiers().orders_reclaim()
                || !self.jobs.task(need.task).preemptable
                || !self.is_reclaimable(self.queue_of(need.task.job))
        };
        !matches!(need.from, From::OtherJobs | From::SameJob)
            || self.tiers().may_give_up(self.facts(), need.task, victims)
            || is_kept()
    }

    /// Returns a smallest set of these tasks that must go so that a task fits on a node, if their queue may give them up.
    fn smallest_set(&mut self, need: Need<'_>, victims: Vec<TaskId>) -> Option<Vec<TaskId>> {
        if victims.is_empty() || !self.may_suffice(need.class, need.node, need.place, &victims) {
            return None;
        }
        let savepoint = self.savepoint();
        let mut evicted = Vec::new();
        let mut rest = victims.into_iter();
        let fits = loop {
            if self.suffices(need, !evicted.is_empty()) {
                break true;
            }
            let Some(victim) = rest.next() else { break false };
            self.evict(victim);
            evicted.push(victim);
        };
        if fits {
            // The last ones are the most valuable: they are spared first.
            for at in (0..evicted.len()).rev() {
                self.spare(evicted[at]);
                if self.suffices(need, evicted.len() > 1) {
                    evicted.remove(at);
                } else {
                    self.evict(evicted[at]);
                }
            }
        }
        self.undo(savepoint);
        fits.then_some(evicted).filter(|victims| self.may_give_up(need, victims))
    }

    /// Returns whether a task fits on a node, and its queue may have it, once what is releasing has ended. `evicts` says
    /// whether others are evicted for it.
    pub(super) fn suffices(&mut self, need: Need<'_>, evicts: bool) -> bool {
        let Need { task, class, node, place, from } = need;
        let queue = self.queue_of(task.job);
        self.cap_in_the_way(queue, class, false).is_none()
            && (from == From::OtherQueues || self.tiers().is_allocatable(self.facts(), queue, class))
            && self.fits_in_future(class, node, place)
            && self.claim_leaves_dates(task, node, place, evicts)
    }

    /// Returns the tasks on a node that may be evicted by their own settings.
    fn candidates(&self, task: TaskId, node: NodeId, from: From) -> Vec<TaskId> {
        let queue = self.queue_of(task.job);
        let class = &self.jobs.task(task).class;
        // A task that asks for nothing needs no capacity. So others go for it only if the cap on allocations is in the way.
        let spares_others = class.is_best_effort() && self.cap_in_the_way(queue, class, false).is_none();
        let by_rule = self.tiers().orders_preemption();
        let job_priority = |of: &TaskId| self.jobs.job(of.job).spec().priority;
        let of_kind = |victim: &TaskId| match from {
            From::SameJob => {
                victim.job == task.job && self.jobs.task(*victim).priority < self.jobs.task(task).priority
            }
            From::OtherJobs => {
                victim.job != task.job
                    && self.queue_of(victim.job) == queue
                    && (by_rule || job_priority(victim) < job_priority(&task))
            }
            From::OtherQueues => {
                let theirs = self.queue_of(victim.job);
                theirs != queue && self.is_reclaimable(theirs)
            }
            From::Starved { own_queue } => {
                let theirs = self.queue_of(victim.job);
                victim.job != task.job && (own_queue || theirs != queue) && self.is_reclaimable(theirs)
            }
        };
        let may_go = |victim: &TaskId| {
            self.may_go(*victim) && (!spares_others || self.jobs.task(*victim).class.is_best_effort())
        };
        let on_node = self.jobs.on_node(node).iter().copied();
        on_node.filter(|victim| of_kind(victim) && may_go(victim)).collect()
    }

    /// Sorts tasks that may be evicted for another one, the least valuable first.
    fn order_candidates(&self, task: TaskId, candidates: &mut [TaskId]) {
        let queue = self.queue_of(task.job);
        // Masters go last. Of other queues, the last queue goes first. Then the last job, and of a job the last task.
        candidates.sort_by(|a, b| {
            // A queue that shares more ancestors with the preemptor's gives first.
            let shared = |of: &TaskId| self.shared_ancestors(self.queue_of(of.job), queue);
            let queues = || {
                let last_first = self.compare_queues(self.queue_of(a.job), self.queue_of(b.job)).reverse();
                shared(b).cmp(&shared(a)).then(last_first)
            };
            let priority =
                |of: &TaskId| self.jobs.task(*of).priority.max(self.jobs.job(of.job).spec().priority);
            let by_job = || {
                if a.job == b.job {
                    self.tiers().task_order(self.facts(), *a, *b).reverse()
                } else {
                    self.compare_jobs(a.job, b.job).reverse()
                }
            };
            let by_queue = if self.queue_of(a.job) == self.queue_of(b.job) {
                std::cmp::Ordering::Equal
            } else {
                queues()
            };
            let is_master = |of: &TaskId| self.jobs.task(*of).master;
            is_master(a)
                .cmp(&is_master(b))
                .then(by_queue)
                .then_with(|| priority(a).cmp(&priority(b)))
                .then_with(by_job)
                .then(Reverse(*a).cmp(&Reverse(*b)))
        });
    }

    /// Returns the number of queues that contain both.
    fn shared_ancestors(&self, a: QueueId, b: QueueId) -> usize {
        let above: Vec<QueueId> = self.jobs.chain(b).collect();
        self.jobs.chain(a).filter(|queue| above.contains(queue)).count()
    }

    /// Returns whether others may reclaim from a queue.
    pub(super) fn is_reclaimable(&self, queue: QueueId) -> bool {
        self.jobs.chain(queue).all(|queue| self.jobs.queue(queue).spec().reclaimable)
    }

    /// Returns false if all victims together do not free enough for a task. This is cheap, and looks at cpu, memory and
    /// the sum of GPUs only.
    fn may_suffice(&self, class: &TaskClass, node: NodeId, place: Place, victims: &[TaskId]) -> bool {
        let mut most = Amounts::zero();
        for (dim, free) in [Dim::CPU, Dim::MEMORY, Dim::GPU].into_iter().zip(self.free_on(place)) {
            most.set(dim, free.max(0));
        }
        let leaving = self.jobs.on_node(node).iter().map(|&task| self.jobs.task(task));
        let leaving = leaving.filter(|task| task.state == TaskState::Releasing);
        leaving.for_each(|task| most.add(&task.class.amounts));
        victims.iter().for_each(|&victim| most.add(&self.jobs.task(victim).class.amounts));
        [Dim::CPU, Dim::MEMORY, Dim::GPU].into_iter().all(|dim| class.amounts.get(dim) <= most.get(dim))
    }
}
