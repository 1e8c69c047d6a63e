//! Jobs whose tasks are to be in one domain of the topology (Volcano's `networkTopology`).
//!
//! A job is tried in one domain after another: first in the narrowest tier, then in wider ones up to the one that it
//! names. While it is tried, all that places or evicts looks at the nodes of the domain only. A task group with a rule
//! of its own gets a domain within that of its job in the same way. Tasks that follow later stay where the others are.
//!
//! | module | content |
//! |---|---|
//! | `tree` | all nodes, in an order in which each domain is a range |
//! | `rooms` | how many tasks of a class nodes and domains could hold |
//! | `log` | which nodes have changed since they were counted |
//! | `maxima` | the domains of a tier with enough room |
//! | `search` | which domains are tried, and in which order |

mod log;
mod maxima;
mod rooms;
mod search;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::allocate::Misfits;
use super::best_effort::Filler;
use super::parked::address;
use super::spots::Spots;
use super::trial::{Cycle, Place};
use super::victims::Cost;
use crate::jobs::{DomainLack, JobId, PendingReason, TaskClass, TaskId, TaskState, TopologyRule};
use crate::limits::{TOPOLOGY_CLASSES_COUNTED_MAX, TOPOLOGY_EVICTING_DOMAINS_MAX};
use rooms::Kind;
pub(super) use rooms::{Rooms, tasks_in};
pub(super) use search::Sight;
use search::{Asked, Known, Rule, needed};
pub(super) use tree::{DomainId, Tree, path_of};

/// What a cycle knows about domains.
pub(super) struct Topology<'a> {
    tree: &'a Tree,
    pub(super) rooms: Rooms,
    /// What each job asks for, as far as it was looked at since its tasks have changed.
    asks: BTreeMap<JobId, Known>,
    /// The domain in which a job is tried. `None`: all nodes count.
    scope: Option<DomainId>,
    /// How many tasks of each task group of the job at work must be placed together.
    wanted: BTreeMap<u32, u32>,
    /// The smallest domain that contains the tasks of a job, or of a task group of it, as far as it was asked for.
    homes: BTreeMap<(JobId, Option<u32>), Option<DomainId>>,
    /// The position of the node that was given last in this try. The next task goes there or after it.
    last: Option<u32>,
}

impl<'a> Topology<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            rooms: Rooms::default(),
            asks: BTreeMap::new(),
            scope: None,
            wanted: BTreeMap::new(),
            homes: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the domain in which a job is tried. `None`: all nodes count.
    pub(super) fn scope(&self) -> Option<DomainId> {
        self.scope
    }

    /// Returns where the next task of this try goes, or after it.
    pub(super) fn last(&self) -> Option<u32> {
        self.last
    }

    /// Lets the next task go where it would have gone earlier in this try.
    pub(super) fn go_back_to(&mut self, last: Option<u32>) {
        self.last = last;
    }

    /// Returns whether a node counts for the job at work.
    pub(super) fn is_in_scope(&self, place: Place) -> bool {
        self.scope.is_none_or(|id| self.tree.contains(id, place))
    }

    /// Returns whether a node is in a domain.
    pub(super) fn contains(&self, id: DomainId, place: Place) -> bool {
        self.tree.contains(id, place)
    }

    /// Returns the widest domain of a tier, or of narrower ones, that contains a node.
    pub(super) fn widest_around(&self, place: Place, widest: usize) -> Option<DomainId> {
        self.tree.widest_around(self.tree.position(place)?, widest)
    }

    /// Notes that what is on a node, or could be, has changed.
    pub(super) fn note_change(&mut self, place: Place) {
        rooms::note(&mut self.rooms.log, self.tree, place);
    }

    /// Notes that a node was looked at for tasks that may go.
    pub(super) fn note_going(&mut self, place: Place) {
        rooms::note(&mut self.rooms.going, self.tree, place);
    }

    /// Notes that a node is shown otherwise than before, whatever is taken back later.
    pub(super) fn note_shown(&mut self, place: Place) {
        self.note_change(place);
        self.rooms.log.keep();
    }

    /// Forgets how many tasks would fit with evictions.
    pub(super) fn forget_evictions(&mut self) {
        self.rooms.forget_evictions();
    }

    /// Returns how many changes were noted so far.
    pub(super) fn mark(&mut self) -> u64 {
        self.rooms.log.end()
    }

    /// Notes that a task of a job has changed, and what is on a node.
    pub(super) fn touch(&mut self, job: JobId, place: Place) {
        self.note_change(place);
        self.forget(job);
    }

    /// Notes that a pending task of a job got a node.
    pub(super) fn enter(&mut self, task: TaskId, group: u32, place: Place) {
        self.note_change(place);
        self.asks.remove(&task.job);
        let Some(position) = self.tree.position(place) else { return };
        for of in [None, Some(group)] {
            if let Some(home) = self.homes.get_mut(&(task.job, of)) {
                *home = Some(self.tree.around(position, *home));
            }
        }
    }

    /// Notes that a change of a task of a job was taken back: the last one that is left of a trial, or `alone`. `noted` is
    /// what was noted of it.
    pub(super) fn take_back(&mut self, job: JobId, place: Place, noted: Range<u64>, alone: bool) {
        self.forget(job);
        let Some(position) = self.tree.position(place) else { return };
        if alone {
            self.rooms.log.take_back_alone(&noted, position);
        } else {
            self.rooms.log.take_back(noted, position);
        }
    }

    /// Forgets where the tasks of a job are, and what it asks for.
    pub(super) fn forget(&mut self, job: JobId) {
        self.asks.remove(&job);
        let of_job = self.homes.range((job, None)..=(job, Some(u32::MAX))).map(|(&of, _)| of);
        for of in of_job.collect::<Vec<_>>() {
            self.homes.remove(&of);
        }
    }
}

impl Cycle<'_> {
    /// Returns whether a job, or a task group of it, says in which domains its tasks are to be.
    pub(super) fn has_topology(&self, job: JobId) -> bool {
        self.jobs.job(job).has_topology()
    }

    /// Places tasks of a job that has rules about domains until it has what it needs. `left` are its pending tasks, the
    /// next one last; those that were tried are removed. Returns whether the job has what it needs, or will have it.
    pub(super) fn allocate_in_domains(&mut self, job: JobId, left: &mut Vec<TaskId>) -> bool {
        let asked = self.ask_unless_known(job);
        let has_releasing = self.jobs.releasing_nodes().next().is_some();
        for sight in [Some(Sight::Now), has_releasing.then_some(Sight::Later)].into_iter().flatten() {
            for domain in self.domains_of_gang(job, &asked, sight) {
                let savepoint = self.savepoint();
                self.begin_in(domain);
                self.tries.begin();
                let mut filler = Filler::new(job, sight);
                let tried = self.place_in_domain(&mut filler, job, left);
                self.topology.scope = None;
                if let Some(tried) = tried {
                    left.truncate(left.len() - tried);
                    left.extend(filler.into_passed());
                    return true;
                }
                self.undo(savepoint);
            }
        }
        left.clear();
        self.note_lack(job, &asked);
        false
    }

    /// Places tasks of a job in the domain at work until the job has what it needs. Returns how many were tried.
    /// `None`: that is not enough.
    fn place_in_domain(&mut self, filler: &mut Filler<'_>, job: JobId, left: &[TaskId]) -> Option<usize> {
        let sight = filler.sight();
        let mut misfits = Misfits::default();
        let mut has_any = false;
        for (tried, &task) in (1..).zip(left.iter().rev()) {
            // It may have been placed together with others of its task group.
            let waits = self.jobs.task(task).state == TaskState::Pending && !self.passes(filler, task);
            if !waits || !self.in_group_domain(task, sight, |cycle, task| cycle.place(task, &mut misfits)) {
                continue;
            }
            has_any = true;
            if self.fill_up(filler) {
                return Some(tried);
            }
        }
        let may_wait = has_any && matches!(sight, Sight::Later);
        (may_wait && self.has_enough(job)).then_some(left.len())
    }

    /// Places what a job needs of tasks that ask for nothing, if these are all that it lacks: in one domain if it must be.
    /// Returns whether it has enough then.
    pub(super) fn complete_in_domains(&mut self, job: JobId) -> bool {
        self.topology.wanted.clear();
        let has_releasing = self.jobs.releasing_nodes().next().is_some();
        for sight in [Some(Sight::Now), has_releasing.then_some(Sight::Later)].into_iter().flatten() {
            for domain in self.domains_of_gang(job, &[], sight) {
                let savepoint = self.savepoint();
                self.begin_in(domain);
                self.tries.begin();
                let is_ready = self.fill_up(&mut Filler::new(job, sight));
                let may_wait = matches!(sight, Sight::Later);
                let has_enough = is_ready || (may_wait && self.has_enough(job));
                self.topology.scope = None;
                if has_enough {
                    return true;
                }
                self.undo(savepoint);
                if self.tries.first_refusal() == Some(PendingReason::Cap) {
                    // No domain changes that.
                    return false;
                }
            }
        }
        let first = self.pending_tasks(job, true).first().copied();
        if let Some(task) = first.filter(|_| self.jobs.job(job).spec().has_hard_topology()) {
            self.tries.refuse_by_domains(task);
        }
        false
    }

    /// Takes away how many tasks of each task group are placed together. These numbers are of the job that was asked about last.
    /// Returns them.
    pub(super) fn withhold_wanted(&mut self) -> BTreeMap<u32, u32> {
        std::mem::take(&mut self.topology.wanted)
    }

    /// Gives back what was taken away.
    pub(super) fn take_wanted_back(&mut self, wanted: BTreeMap<u32, u32>) {
        self.topology.wanted = wanted;
    }

    /// Begins to try a job in a domain.
    fn begin_in(&mut self, domain: Option<DomainId>) {
        self.topology.scope = domain;
        self.topology.last = None;
    }

    /// Returns what a job asks for, or nothing if that does not matter: it has what it needs, so each task follows the
    /// others.
    fn ask_unless_known(&mut self, job: JobId) -> Arc<[Asked]> {
        let has_enough = self.is_ready(job);
        if has_enough && self.domain_of(job, None).is_some() {
            self.topology.wanted.clear();
            return Arc::new([]);
        }
        self.ask(job)
    }

    /// Returns the domains in which a job is tried, in order. `None` as a domain: all nodes count.
    fn domains_of_job(&mut self, job: JobId, asked: &[Asked], sight: Sight<'_>) -> Vec<Option<DomainId>> {
        let Some(rule) = self.rule_of_job(job) else { return vec![None] };
        let home = self.domain_of(job, None);
        let domains = match home {
            Some(home) => self.domains_from(home, rule, DomainId::ROOT),
            None => self.domains_with_room(asked, rule, DomainId::ROOT, sight),
        };
        domains.into_iter().map(Some).collect()
    }

    /// Places a task, and if its task group has a rule about domains, in such a domain. If no task of the group has a
    /// node, all that the job needs of the group are placed together.
    pub(super) fn in_group_domain(
        &mut self,
        task: TaskId,
        sight: Sight<'_>,
        mut place: impl FnMut(&mut Self, TaskId) -> bool,
    ) -> bool {
        let Some(rule) = self.rule_of_group(task) else { return place(self, task) };
        let outer = self.topology.scope;
        let within = outer.unwrap_or(DomainId::ROOT);
        let group = self.jobs.task(task).group;
        let (tasks, domains) = match self.domain_of(task.job, Some(group)) {
            Some(home) => (vec![task], self.domains_from(home, rule, within)),
            None => {
                let (tasks, asked) = self.ask_of_group(task);
                (tasks, self.domains_with_room(&[asked], rule, within, sight))
            }
        };
        let mut are_placed = false;
        for domain in domains {
            let savepoint = self.savepoint();
            self.topology.scope = Some(domain);
            are_placed = tasks.iter().all(|&task| place(self, task));
            if are_placed {
                break;
            }
            self.undo(savepoint);
        }
        self.topology.scope = outer;
        are_placed
    }

    /// Gives one pending task a node on capacity that is free now, where its job and its task group may have it.
    pub(super) fn allocate_one(&mut self, task: TaskId) -> bool {
        if !self.has_topology(task.job) {
            return self.allocate(task);
        }
        self.topology.wanted.clear();
        let asked = [Asked::of(Arc::clone(&self.jobs.task(task).class))];
        for domain in self.domains_of_job(task.job, &asked, Sight::Now) {
            self.begin_in(domain);
            let is_placed = self.in_group_domain(task, Sight::Now, Self::allocate);
            self.topology.scope = None;
            if is_placed {
                return true;
            }
        }
        false
    }

    /// Returns the widest tier of which one domain may hold a job with a hard rule, and the widest such domain around its tasks
    /// that have nodes. `None`: there is no such tier or domain.
    pub(super) fn widest_domain_of(&mut self, job: JobId) -> Option<(usize, Option<DomainId>)> {
        let widest = self.rule_of_job(job).filter(|rule| rule.is_hard)?.widest?;
        let Some(home) = self.domain_of(job, None) else { return Some((widest, None)) };
        let around = self.topology.tree.up_to(home, widest).last()?;
        Some((widest, Some(around)))
    }

    /// Returns the nodes of domains with room now for tasks of some classes, by cpu, memory and GPUs. For many classes, all
    /// nodes.
    pub(super) fn places_in_domains(&mut self, classes: &[Arc<TaskClass>]) -> BTreeSet<Place> {
        let tree = self.topology.tree;
        if classes.len() > TOPOLOGY_CLASSES_COUNTED_MAX {
            return tree.positions().map(|position| tree.node(position).1).collect();
        }
        let mut places = BTreeSet::new();
        for class in classes {
            let key = self.count_room(class, Sight::Now);
            let range = tree.range(DomainId::ROOT);
            let next = |from: u32| self.topology.rooms.next(tree, key, from..range.end);
            let all = std::iter::successors(next(range.start), |at| next(at + 1));
            places.extend(all.map(|position| tree.node(position).1));
        }
        places
    }

    /// Runs an attempt to make room for a job by evictions. For a job that must be in one domain, it is run in several,
    /// and then again in the one of the narrowest tier with the cheapest victims. An attempt keeps nothing. Returns
    /// whether it has succeeded.
    pub(super) fn evict_in_domains(
        &mut self,
        job: JobId,
        spots: Spots<'_>,
        mut attempt: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        if !self.has_topology(job) {
            return attempt(self);
        }
        let mut best: Option<(usize, Cost, DomainId)> = None;
        for domain in self.evicting_domains(job, spots) {
            let Some(domain) = domain else { return attempt(self) };
            let tier = self.topology.tree.tier(domain);
            if best.is_some_and(|(of_best, ..)| of_best < tier) {
                break;
            }
            let savepoint = self.savepoint();
            self.begin_in(Some(domain));
            // A job that has enough already asks for more: a domain where it gets nothing does not count.
            if attempt(self) && self.savepoint() > savepoint {
                let found = (tier, self.cost(&self.evicted_since(savepoint)), domain);
                best = Some(best.map_or(found, |best| best.min(found)));
            }
            self.topology.scope = None;
            self.undo(savepoint);
        }
        let Some((.., domain)) = best else { return false };
        self.begin_in(Some(domain));
        let has_succeeded = attempt(self);
        self.topology.scope = None;
        has_succeeded
    }

    /// Returns the domains in which room may be made for a job, a bounded number of each tier. `None` as a domain:
    /// anywhere.
    fn evicting_domains(&mut self, job: JobId, spots: Spots<'_>) -> Vec<Option<DomainId>> {
        let asked = self.ask(job);
        if !self.rule_of_job(job).is_some_and(|rule| rule.is_hard) {
            return vec![None];
        }
        let mut domains = self.domains_of_gang(job, &asked, Sight::Evicting(spots));
        let mut of_tiers: BTreeMap<usize, usize> = BTreeMap::new();
        domains.retain(|domain| {
            let tier = domain.map_or(0, |domain| self.topology.tree.tier(domain));
            let count = of_tiers.entry(tier).or_default();
            *count += 1;
            *count <= TOPOLOGY_EVICTING_DOMAINS_MAX
        });
        domains
    }

    /// Runs what makes room for a job in one domain after another until a plan is made.
    pub(super) fn plan_in_domains(&mut self, job: JobId, spots: Spots<'_>, mut plan: impl FnMut(&mut Self)) {
        if !self.has_topology(job) {
            return plan(self);
        }
        let plans = self.report.plans.len();
        for domain in self.evicting_domains(job, spots) {
            self.begin_in(domain);
            plan(self);
            self.topology.scope = None;
            if self.report.plans.len() > plans {
                return;
            }
        }
    }

    /// Runs something in the widest domain in which tasks of a job may be that has tasks already. Returns false if
    /// there is no such domain, because its tasks are not in one.
    pub(super) fn at_home(&mut self, job: JobId, run: impl FnOnce(&mut Self)) -> bool {
        let hard = self.rule_of_job(job).filter(|rule| rule.is_hard);
        let home = hard.and_then(|rule| Some((rule, self.domain_of(job, None)?)));
        let widest = match home {
            Some((rule, home)) => match self.domains_from(home, rule, DomainId::ROOT).pop() {
                Some(domain) => Some(domain),
                None => return false,
            },
            None if hard.is_some_and(|rule| rule.widest.is_none()) => return false,
            None => None,
        };
        self.topology.wanted.clear();
        self.begin_in(widest);
        run(self);
        self.topology.scope = None;
        true
    }

    /// Notes that no domain has room for a job that must be in one.
    fn note_lack(&mut self, job: JobId, asked: &[Asked]) {
        let first = self.jobs.job(job).pending().next();
        let Some(task) = first.map(|index| TaskId { job, index }) else { return };
        if !self.jobs.job(job).spec().has_hard_topology() || !self.tries.refuse_by_domains(task) {
            return;
        }
        let fresh;
        let asked = if asked.is_empty() {
            fresh = self.ask(job);
            &fresh
        } else {
            asked
        };
        let of_group = self.jobs.task(task).group;
        let spec = self.jobs.job(job).spec();
        let rules =
            [(None, spec.topology.clone()), (Some(of_group), spec.tasks[of_group as usize].topology.clone())];
        for (group, rule) in rules {
            let Some(rule) = rule.filter(TopologyRule::is_hard) else { continue };
            let lack = if group.is_some() {
                let (_, asked) = self.ask_of_group(task);
                self.lack(job, group, &rule, &[asked])
            } else {
                self.lack(job, group, &rule, asked)
            };
            if let Some(lack) = lack {
                return self.tries.note_lack(job, lack);
            }
        }
    }

    /// Returns what domains lack for the tasks of a job, or of a task group of it. `None`: by cpu, memory and GPUs, one
    /// has room.
    fn lack(
        &mut self,
        job: JobId,
        group: Option<u32>,
        rule: &TopologyRule,
        asked: &[Asked],
    ) -> Option<DomainLack> {
        let has = self.count_placed(job, group);
        let needed = needed_in_all(asked, has);
        let tier = Arc::clone(rule.tier.as_ref()?);
        let Some(Rule { widest: Some(widest), .. }) = self.rule(Some(rule)) else {
            return Some(DomainLack { tier, is_missing: true, best: None, holds: 0, needed });
        };
        let home = self.domain_of(job, group);
        let within = home.and_then(|home| self.topology.tree.up_to(home, widest).last());
        let best = self.best_domain(asked, widest, within.unwrap_or(DomainId::ROOT));
        let holds = best.map_or(0, |(_, holds)| holds);
        let holds = u32::try_from(holds).unwrap_or(u32::MAX).saturating_add(has);
        let best = best.map(|(id, _)| Arc::clone(self.topology.tree.path(id)));
        (holds < needed).then_some(DomainLack { tier, is_missing: false, best, holds, needed })
    }

    /// Returns how many tasks of a job, or of a task group of it, have a node and keep it.
    fn count_placed(&self, job: JobId, group: Option<u32>) -> u32 {
        let tasks = self.jobs.job(job).tasks().iter();
        let placed =
            tasks.filter(|task| task.state.keeps_node() && group.is_none_or(|group| task.group == group));
        u32::try_from(placed.count()).expect("at most JOB_TASKS_MAX")
    }
}

/// Returns how many tasks need a place in one domain, with those that have one.
fn needed_in_all(asked: &[Asked], has: u32) -> u32 {
    u32::try_from(needed(asked)).unwrap_or(u32::MAX).saturating_add(has)
}

/// The next node in tree order for a task.
impl Cycle<'_> {
    /// Returns the next node in a domain with room for a task of a class, by cpu, memory and GPUs, in an order that
    /// begins with the node that was given last. `after` is the one before in this order.
    pub(super) fn next_in_domain(
        &mut self,
        class: &Arc<TaskClass>,
        domain: DomainId,
        after: Option<u32>,
    ) -> Option<(u32, Place)> {
        let tree = self.topology.tree;
        let range = tree.range(domain);
        let first = self.topology.last.filter(|last| range.contains(last)).unwrap_or(range.start);
        let known = (address(class), Kind::Now);
        let is_counted = after.is_some() && self.topology.rooms.has(known);
        let key = if is_counted { known } else { self.count_room(class, Sight::Now) };
        let next = |positions| self.topology.rooms.next(tree, key, positions);
        let from = after.map_or(first, |after| after + 1);
        let found = if from > first || after.is_none() {
            next(from..range.end).or_else(|| next(range.start..first))
        } else {
            next(from..first)
        };
        found.map(|position| (position, tree.node(position).1))
    }

    /// Notes that a task got the node at a position.
    pub(super) fn go_on_from(&mut self, position: u32) {
        self.topology.last = Some(position);
    }
}

impl Asked {
    /// One task of a class.
    fn of(class: Arc<TaskClass>) -> Self {
        Self::new(class, 1, 1)
    }
}

/// Notes about jobs for which no domain has room.
impl super::reason::LastTries {
    /// Notes that a task has no place because of its domains, unless something else was in the way. Returns whether it
    /// was noted.
    fn refuse_by_domains(&mut self, task: TaskId) -> bool {
        let refused = self.first_refusal();
        let is_by_nodes = refused.is_none_or(|reason| reason == PendingReason::NoNode);
        if is_by_nodes {
            self.begin();
            self.refuse(task, PendingReason::Topology);
        }
        is_by_nodes
    }
}
