//! In which domains a job, or a task group of it, is tried, and in which order.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::rooms::Counts;
use super::tree::DomainId;
use crate::cycle::best_effort::Lacks;
use crate::cycle::spots::Spot;
use crate::cycle::trial::Cycle;
use crate::jobs::{JobId, TaskClass, TaskId, TaskState, TopologyRule};
use crate::limits::TOPOLOGY_CLASSES_COUNTED_MAX;
use crate::planted::{PlantedBug, is_planted};

/// What counts as room.
#[derive(Clone, Copy)]
pub(in crate::cycle) enum Sight<'s> {
    /// What is free.
    Now,
    /// Also what is being released.
    Later,
    /// Also what tasks hold that may be evicted.
    Evicting(&'s [Spot]),
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
    pub(super) fn ask(&mut self, job: JobId) -> Vec<Asked> {
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
                let class = Arc::clone(&task.class);
                let of = asked.entry(Arc::as_ptr(&class));
                let of = of.or_insert(Asked { class, needed: 0, all: 0 });
                if is_needed {
                    of.needed += 1;
                    *wanted.entry(task.group).or_default() += 1;
                } else {
                    of.all += 1;
                }
            }
        }
        self.topology.wanted = wanted;
        let mut asked: Vec<Asked> = asked.into_values().collect();
        asked.sort_by_key(|of| Reverse(of.needed));
        asked
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
        let rooms = self.rooms(&classes, sight);
        domains.retain(|domain| {
            let Some(id) = domain.filter(|&id| id != DomainId::ROOT) else { return true };
            let holds = classes.iter().zip(&rooms).map(|(of, room)| room.most(id).min(of.all));
            holds.sum::<u64>() >= lacking
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
            let keeps = task.state.holds() || task.state == TaskState::Pipelined || is_leaving;
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
        let tree = self.topology.tree;
        let mut found: Vec<(usize, usize, u64, u32, DomainId)> = Vec::new();
        if let Some(widest) = rule.widest {
            let rooms = self.rooms(asked, sight);
            let holds = |id: DomainId, count: fn(&Asked) -> u64| {
                asked.iter().zip(&rooms).all(|(of, room)| room.most(id) >= count(of))
            };
            for tier in 0..=widest {
                for &id in tree.inside(tier, within).iter().filter(|&&id| holds(id, |of| of.needed)) {
                    let all_in = tree.up_to(id, widest).position(|id| holds(id, |of| of.all));
                    let order = match sight {
                        Sight::Evicting(_) => {
                            let lacks = asked.iter().zip(&rooms);
                            lacks.map(|(of, room)| of.needed.saturating_sub(room.later(id))).sum()
                        }
                        Sight::Now | Sight::Later => rooms.iter().map(|room| room.most(id)).sum(),
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

    /// Returns the room of each class that is counted, with evictions or without.
    fn rooms(&mut self, asked: &[Asked], sight: Sight<'_>) -> Vec<RoomOfClass> {
        let counted = &asked[..asked.len().min(TOPOLOGY_CLASSES_COUNTED_MAX)];
        counted.iter().for_each(|of| self.count_room(&of.class));
        let tree = self.topology.tree;
        let room = |of: &Asked| {
            let counts: Vec<Counts> =
                tree.domains().map(|id| self.topology.rooms.domain(&of.class, id)).collect();
            let most = match sight {
                Sight::Now => counts.iter().map(|counts| counts.now).collect(),
                Sight::Later => counts.iter().map(|counts| counts.later).collect(),
                Sight::Evicting(spots) => self.room_with_evictions(&of.class, spots),
            };
            RoomOfClass { most, later: counts.iter().map(|counts| counts.later).collect() }
        };
        counted.iter().map(room).collect()
    }

    /// Returns the domain of a tier with room for most of what is asked for, and for how many. `None`: there is none.
    pub(super) fn best_domain(
        &mut self,
        asked: &[Asked],
        tier: usize,
        within: DomainId,
    ) -> Option<(DomainId, u64)> {
        let rooms = self.rooms(asked, Sight::Later);
        let holds = |id: DomainId| {
            let of_classes = asked.iter().zip(&rooms).map(|(of, room)| room.most(id).min(of.needed));
            of_classes.sum::<u64>()
        };
        let domains = self.topology.tree.inside(tier, within).iter().copied();
        domains.map(|id| (id, holds(id))).max_by_key(|&(id, holds)| (holds, Reverse(id)))
    }
}

/// The number of tasks that are asked for together.
pub(super) fn needed(asked: &[Asked]) -> u64 {
    asked.iter().map(|of| of.needed).sum()
}

/// How many tasks of a class each domain has room for, by number.
struct RoomOfClass {
    most: Vec<u64>,
    /// Without evictions.
    later: Vec<u64>,
}

impl RoomOfClass {
    fn most(&self, id: DomainId) -> u64 {
        self.most[id.index()]
    }

    fn later(&self, id: DomainId) -> u64 {
        self.later[id.index()]
    }
}
