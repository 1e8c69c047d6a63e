//! In which domains a job, or a task group of it, is tried, and in which order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::maxima::{self, Maxima};
use super::rooms::{Key, Kind};
use super::tree::DomainId;
use crate::cycle::best_effort::Lacks;
use crate::cycle::spots::Spots;
use crate::cycle::trial::{Cycle, Place};
use crate::ids::NodeId;
use crate::jobs::{JobId, TaskClass, TaskId, TaskState, TopologyRule};
use crate::limits::TOPOLOGY_CLASSES_COUNTED_MAX;
use crate::planted::{PlantedBug, is_planted};

/// A domain with at most one node in so many of a list is looked up there node by node: that costs less than a walk.
const SMALL_PART: usize = 16;

/// What counts as room.
#[derive(Clone, Copy)]
pub(in crate::cycle) enum Sight<'s> {
    /// What is free.
    Now,
    /// Also what is being released.
    Later,
    /// Also what tasks hold that may be evicted.
    Evicting(Spots<'s>),
}

impl Sight<'_> {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Now => Kind::Now,
            Self::Later => Kind::Later,
            Self::Evicting(spots) => Kind::Evicting(spots.of()),
        }
    }
}

/// How many tasks of a class must be in one domain.
pub(super) struct Asked {
    class: Arc<TaskClass>,
    /// How many are placed together.
    needed: u64,
    /// How many there are to be placed at all.
    all: u64,
}

impl Asked {
    pub(super) fn new(class: Arc<TaskClass>, needed: u64, all: u64) -> Self {
        Self { class, needed, all }
    }
}

/// What of a job must be placed together, while its tasks stay as they are.
#[derive(Clone)]
pub(super) struct Known {
    asked: Arc<[Asked]>,
    /// How many tasks of each task group.
    wanted: BTreeMap<u32, u32>,
}

/// A rule as it counts in this cycle.
#[derive(Clone, Copy)]
pub(in crate::cycle) struct Rule {
    /// The index of the widest tier of which one domain will do. `None`: the cluster has no such tier.
    pub(in crate::cycle) widest: Option<usize>,
    pub(super) is_hard: bool,
}

impl Cycle<'_> {
    pub(in crate::cycle) fn rule(&self, rule: Option<&TopologyRule>) -> Option<Rule> {
        let widest = |rule: &TopologyRule| rule.widest(self.topology.tree.tiers());
        let rule = rule.map(|rule| Rule { widest: widest(rule), is_hard: rule.is_hard() });
        // A preference for what does not exist is none.
        rule.filter(|rule| rule.is_hard || rule.widest.is_some())
    }

    /// Returns the rule of a job.
    pub(super) fn rule_of_job(&self, job: JobId) -> Option<Rule> {
        self.rule(self.jobs.job(job).spec().topology.as_ref())
    }

    /// Returns the rule of the task group of a task.
    pub(super) fn rule_of_group(&self, task: TaskId) -> Option<Rule> {
        let group = self.jobs.task(task).group;
        self.rule(self.jobs.job(task.job).spec().tasks[group as usize].topology.as_ref())
    }

    /// Returns what of a job must be placed together: the tasks that it needs, or its next one. Notes how many of each
    /// task group that are.
    pub(super) fn ask(&mut self, job: JobId) -> Arc<[Asked]> {
        let Known { asked, wanted } = match self.topology.asks.get(&job) {
            Some(known) => known.clone(),
            None => {
                let known = self.look_what_to_ask(job);
                self.topology.asks.insert(job, known.clone());
                known
            }
        };
        self.topology.wanted = wanted;
        asked
    }

    fn look_what_to_ask(&self, job: JobId) -> Known {
        let has_enough = self.is_ready(job);
        let needed = if has_enough { None } else { self.needed_at_least(job) };
        let of = self.jobs.job(job);
        let asks = |index: &u32| !of.tasks()[*index as usize].class.is_best_effort();
        let pending: Vec<u32> = of.pending().filter(asks).collect();
        let needed: Vec<u32> = match needed {
            Some(tasks) => tasks.into_iter().map(|task| task.index).collect(),
            None if has_enough => pending.iter().take(1).copied().collect(),
            None => pending.clone(),
        };
        let mut asked: BTreeMap<*const TaskClass, Asked> = BTreeMap::new();
        let mut wanted: BTreeMap<u32, u32> = BTreeMap::new();
        let tasks = self.jobs.job(job).tasks();
        for (list, is_needed) in [(&needed, true), (&pending, false)] {
            for task in list.iter().map(|&index| &tasks[index as usize]) {
                let of = asked.entry(Arc::as_ptr(&task.class));
                let of = of.or_insert_with(|| Asked::new(Arc::clone(&task.class), 0, 0));
                if is_needed {
                    of.needed += 1;
                    *wanted.entry(task.group).or_default() += 1;
                } else {
                    of.all += 1;
                }
            }
        }
        let mut asked: Vec<Asked> = asked.into_values().collect();
        asked.sort_by_key(|of| Reverse(of.needed));
        Known { asked: asked.into(), wanted }
    }

    /// Returns the domains in which a job is tried that lacks what is asked for, and perhaps tasks that ask for nothing. Those
    /// are left out where too few of these have nodes.
    pub(super) fn domains_of_gang(
        &mut self,
        job: JobId,
        asked: &[Asked],
        sight: Sight<'_>,
    ) -> Vec<Option<DomainId>> {
        let mut domains = self.domains_of_job(job, asked, sight);
        let of = self.jobs.job(job);
        if of.pending_best_effort() == 0 || self.is_ready(job) {
            return domains;
        }
        let others = u64::from(of.pending_best_effort());
        let others = if asked.is_empty() { 0 } else { of.pending().len() as u64 - others };
        let lacking = u64::from(Lacks::of(of).all()).saturating_sub(others);
        if lacking == 0 || domains.len() < 2 {
            return domains;
        }
        let mut classes: BTreeMap<*const TaskClass, Asked> = BTreeMap::new();
        for index in of.pending() {
            let class = &of.tasks()[index as usize].class;
            if class.is_best_effort() {
                let asked = Asked { class: Arc::clone(class), needed: 0, all: 0 };
                classes.entry(Arc::as_ptr(class)).or_insert(asked).all += 1;
            }
        }
        let classes: Vec<Asked> = classes.into_values().collect();
        if classes.len() > TOPOLOGY_CLASSES_COUNTED_MAX {
            return domains;
        }
        let counted = self.count_rooms(&classes, sight);
        domains.retain(|domain| {
            let Some(id) = domain.filter(|&id| id != DomainId::ROOT) else { return true };
            counted.iter().map(|&(key, of)| self.room_in(key, id).min(of.all)).sum::<u64>() >= lacking
        });
        domains
    }

    /// Returns what of a task group must be placed together, beginning with a task.
    pub(super) fn ask_of_group(&self, task: TaskId) -> (Vec<TaskId>, Asked) {
        let of = self.jobs.job(task.job);
        let group = self.jobs.task(task).group;
        let in_group = |index: &u32| of.tasks()[*index as usize].group == group;
        let all: Vec<u32> = of.pending().filter(in_group).collect();
        let wanted = self.topology.wanted.get(&group).map_or(1, |&wanted| wanted.max(1)) as usize;
        let rest = all.iter().copied().filter(|&index| index != task.index);
        let tasks: Vec<TaskId> = std::iter::once(task.index)
            .chain(rest)
            .take(wanted)
            .map(|index| TaskId { index, ..task })
            .collect();
        let class = Arc::clone(&self.jobs.task(task).class);
        let asked = Asked { class, needed: tasks.len() as u64, all: all.len() as u64 };
        (tasks, asked)
    }

    /// Returns the smallest domain that contains the nodes of all tasks of a job that have one and keep it, or those of
    /// a task group of it. `None`: there are no such tasks.
    pub(super) fn domain_of(&mut self, job: JobId, group: Option<u32>) -> Option<DomainId> {
        if let Some(&known) = self.topology.homes.get(&(job, group)) {
            return known;
        }
        let mut home = None;
        for task in self.jobs.job(job).tasks() {
            // What this cycle evicts, such as an overrun, is there until shards agree, and stays if they refuse.
            let is_leaving = task.state == TaskState::Releasing && task.since == self.now;
            let keeps = task.state.keeps_node() || is_leaving;
            let keeps = keeps && !is_planted(PlantedBug::DomainForgotten);
            let Some(node) = task.node.filter(|_| keeps && group.is_none_or(|group| task.group == group))
            else {
                continue;
            };
            let place = self.locate(node);
            if let Some(position) = place.and_then(|place| self.topology.tree.position(place)) {
                home = Some(self.topology.tree.around(position, home));
            }
        }
        self.topology.homes.insert((job, group), home);
        home
    }

    /// Returns the domains for tasks of which others have nodes: the smallest one that contains these, and those around
    /// it.
    pub(super) fn domains_from(&self, home: DomainId, rule: Rule, within: DomainId) -> Vec<DomainId> {
        let tree = self.topology.tree;
        let limit = tree.tier(within);
        let widest = rule.widest.map(|widest| widest.min(limit));
        let up = widest.into_iter().flat_map(|widest| tree.up_to(home, widest));
        let mut domains: Vec<DomainId> = up.collect();
        if !rule.is_hard && !domains.contains(&within) {
            domains.push(within);
        }
        domains
    }

    /// Returns the domains with room for tasks of which none has a node: of the narrowest tier first. In each tier,
    /// those come first that have room for all tasks, in themselves or at least around them, and then those with the
    /// least room.
    ///
    /// With evictions, those come first where the fewest are needed.
    pub(super) fn domains_with_room(
        &mut self,
        asked: &[Asked],
        rule: Rule,
        within: DomainId,
        sight: Sight<'_>,
    ) -> Vec<DomainId> {
        let mut found: Vec<(usize, usize, u64, u32, DomainId)> = Vec::new();
        if let Some(widest) = rule.widest {
            let counted = self.count_rooms(asked, sight);
            let later = match sight {
                Sight::Evicting(_) => self.count_rooms(asked, Sight::Later),
                Sight::Now | Sight::Later => Vec::new(),
            };
            let tree = self.topology.tree;
            let holds_all = |id| counted.iter().all(|&(key, of)| self.room_in(key, id) >= of.all);
            for tier in 0..=widest {
                let rows = self.rows(&counted, tier);
                for rank in maxima::holding(&rows, &tree.ranks(tier, within)) {
                    let id = tree.of_tier(tier)[rank];
                    let all_in = tree.up_to(id, widest).position(holds_all);
                    let order = if let Sight::Evicting(_) = sight {
                        later.iter().map(|&(key, of)| of.needed.saturating_sub(self.room_in(key, id))).sum()
                    } else {
                        counted.iter().map(|&(key, _)| self.room_in(key, id)).sum()
                    };
                    found.push((tier, all_in.unwrap_or(usize::MAX), order, tree.range(id).start, id));
                }
            }
        }
        found.sort_unstable();
        let mut domains: Vec<DomainId> = found.into_iter().map(|(.., id)| id).collect();
        if !rule.is_hard && !domains.contains(&within) {
            domains.push(within);
        }
        domains
    }

    /// Returns where the nodes of the domain at work are in a list of nodes, in its order. `None`: it is large, or all nodes
    /// count.
    pub(in crate::cycle) fn spots_in_scope(&self, spots: Spots<'_>) -> Option<Vec<usize>> {
        let tree = self.topology.tree;
        let range = tree.range(self.topology.scope?);
        if range.len() > spots.listed().len() / SMALL_PART {
            return None;
        }
        let nodes = range.map(|position| tree.node(position).0);
        let mut listed: Vec<usize> = nodes.filter_map(|node| spots.find(node)).collect();
        listed.sort_unstable();
        Some(listed)
    }

    /// Returns the nodes of the domain at work where capacity is being released, in order of id.
    pub(in crate::cycle) fn releasing_places_in_scope(&self) -> BTreeSet<(NodeId, Place)> {
        let tree = self.topology.tree;
        let range = self.topology.scope.map(|scope| tree.range(scope));
        match range.filter(|range| range.len() < self.jobs.releasing_nodes().len()) {
            Some(range) => {
                let nodes = range.map(|position| tree.node(position));
                nodes.filter(|&(node, _)| self.jobs.has_releasing(node)).collect()
            }
            None => {
                let mut places = self.releasing_places();
                places.retain(|&(_, place)| self.topology.is_in_scope(place));
                places
            }
        }
    }

    /// Brings the counts of each class up to date that is counted. Returns their keys.
    fn count_rooms<'a>(&mut self, asked: &'a [Asked], sight: Sight<'_>) -> Vec<(Key, &'a Asked)> {
        let counted = asked.iter().take(TOPOLOGY_CLASSES_COUNTED_MAX);
        counted.map(|of| (self.count_room(&of.class, sight), of)).collect()
    }

    /// Returns how many tasks of a class that was counted a domain could hold.
    fn room_in(&self, key: Key, id: DomainId) -> u64 {
        self.topology.rooms.domain(self.topology.tree, key, id)
    }

    /// Returns what the domains of a tier could hold of each class, with how many are needed.
    fn rows(&self, counted: &[(Key, &Asked)], tier: usize) -> Vec<(&Maxima, u64)> {
        counted.iter().map(|&(key, of)| (self.topology.rooms.tier(key, tier), of.needed)).collect()
    }

    /// Returns the domain of a tier with room for most of what is asked for, and for how many. `None`: there is none.
    pub(super) fn best_domain(
        &mut self,
        asked: &[Asked],
        tier: usize,
        within: DomainId,
    ) -> Option<(DomainId, u64)> {
        let counted = self.count_rooms(asked, Sight::Later);
        let tree = self.topology.tree;
        let (rank, holds) = maxima::best(&self.rows(&counted, tier), &tree.ranks(tier, within))?;
        Some((tree.of_tier(tier)[rank], holds))
    }
}

/// The number of tasks that are asked for together.
pub(super) fn needed(asked: &[Asked]) -> u64 {
    asked.iter().map(|of| of.needed).sum()
}
