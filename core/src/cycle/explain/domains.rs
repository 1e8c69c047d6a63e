//! What domains of the topology lack for a job that must be in one.
//!
//! While nodes are counted for a class of tasks, what they have room for is summed up by domain. Then a [search](super::nearest)
//! finds the domain that comes nearest to what the job needs. Both read the tree of domains as it was when the explanation
//! began: nodes that came later are in no domain.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::nearest::{Field, Lacking, Part, Search};
use super::wanted::Wanted;
use crate::cycle::Scheduler;
use crate::cycle::topology::{DomainId, Tree};
use crate::cycle::trial::{Place, locate};
use crate::ids::NodeId;
use crate::jobs::{DomainLack, Job, JobId, TaskClass, TopologyRule};
use crate::limits::TOPOLOGY_CLASSES_COUNTED_MAX;
use crate::map::FixedMap;
use crate::replica::Replica;
use crate::request::{NodeLook, NodeRoom};

/// What the nodes of a domain have room for.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainRoom {
    pub(super) room: NodeRoom,
    /// How many tasks they could hold if all of them were empty.
    pub(super) empty: u64,
}

/// What domains have room for, of one class. Those without a node that suits it are left out.
pub(super) type DomainRooms = FixedMap<DomainId, DomainRoom>;

/// The sums over domains for a class, to be used again.
#[derive(Clone)]
pub(super) struct KnownRooms {
    tree: Arc<Tree>,
    tiers: Vec<usize>,
    rooms: Arc<DomainRooms>,
}

/// What is counted of domains for a job with hard rules.
pub(super) struct Domains {
    tree: Arc<Tree>,
    /// The tiers that rules name. Of each, the widest domain up to it counts, and the whole cluster.
    tiers: Vec<usize>,
    /// The tier that the rule of the job names.
    widest: Option<usize>,
    /// What the job needs, beginning with the tasks like the one that is explained.
    parts: Vec<Part>,
    /// The classes of these tasks, beginning with that of the one that is explained.
    classes: Vec<Arc<TaskClass>>,
    /// What domains have room for of each class that was counted.
    rooms: Vec<Arc<DomainRooms>>,
    /// The same of the class that is counted.
    counting: DomainRooms,
    search: Search,
    /// The tasks of the job that have nodes.
    placed: Placed,
}

impl Domains {
    /// Adds a node for the class that is counted.
    pub(super) fn add(&mut self, place: Place, look: &NodeLook) {
        let Self { tree, tiers, counting, .. } = self;
        // Another node may have come to this slot.
        let position = tree.position(place).filter(|&position| tree.node(position).0 == look.node);
        let Some(position) = position else { return };
        let around = tiers.iter().filter_map(|&tier| tree.widest_around(position, tier));
        let mut last = None;
        for id in std::iter::once(DomainId::ROOT).chain(around) {
            // Tiers ascend, so domains that are equal follow each other.
            if last.replace(id) == Some(id) {
                continue;
            }
            let of = counting.entry(id).or_default();
            of.room.add(look);
            of.empty += look.empty;
        }
    }

    /// Takes over the sums for the first class if they are known.
    pub(super) fn take_known(&mut self, known: Option<&KnownRooms>) -> bool {
        let is_same = |known: &&KnownRooms| Arc::ptr_eq(&known.tree, &self.tree) && known.tiers == self.tiers;
        let rooms = known.filter(is_same).map(|known| Arc::clone(&known.rooms));
        let is_known = rooms.is_some();
        self.rooms.extend(rooms);
        is_known
    }

    /// Ends counting a class. Returns its sums.
    pub(super) fn end_class(&mut self) -> KnownRooms {
        let rooms = Arc::new(std::mem::take(&mut self.counting));
        self.rooms.push(Arc::clone(&rooms));
        KnownRooms { tree: Arc::clone(&self.tree), tiers: self.tiers.clone(), rooms }
    }

    /// Returns whether no class was counted yet.
    pub(super) fn is_at_first(&self) -> bool {
        self.rooms.is_empty()
    }

    /// Returns the next class to count.
    pub(super) fn next_class(&self) -> Option<&Arc<TaskClass>> {
        self.classes.get(self.rooms.len())
    }

    /// Looks for the nearest domain until `budget` domains were looked at. Returns how many were, and whether it is found.
    pub(super) fn step(&mut self, budget: u64) -> (u64, bool) {
        let Self { tree, widest, parts, rooms, search, .. } = self;
        search.step(&Field { tree, widest: *widest, parts, rooms }, budget)
    }

    /// Returns what the nearest domain lacks. `None`: nothing.
    pub(super) fn lacking(&self) -> Option<Lacking> {
        self.search.lacking(&self.parts)
    }

    /// Returns the class of the tasks that lack room.
    pub(super) fn class_of(&self, lacking: &Lacking) -> &TaskClass {
        &self.classes[self.parts[lacking.part].class]
    }

    /// Returns what a domain has room for, of the tasks that lack room.
    pub(super) fn room_of(&self, lacking: &Lacking, domain: DomainId) -> Option<&DomainRoom> {
        self.rooms.get(self.parts[lacking.part].class)?.get(&domain)
    }
}

/// Tasks that have nodes and keep them, without those that wait for a cap: these are looked at as if they had none.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    tasks: u64,
    /// The smallest domain around their nodes.
    home: Option<DomainId>,
}

/// Those of a job, and of each of its task groups.
#[derive(Debug, Default)]
struct Placed {
    of_job: Kept,
    of_groups: BTreeMap<u32, Kept>,
}

impl Placed {
    /// Returns those of the job, or of one group.
    fn of(&self, group: Option<u32>) -> Kept {
        match group {
            Some(group) => self.of_groups.get(&group).copied().unwrap_or_default(),
            None => self.of_job,
        }
    }
}

/// Returns a rule if it is hard.
fn hard(rule: Option<&TopologyRule>) -> Option<&TopologyRule> {
    rule.filter(|rule| rule.is_hard())
}

impl Scheduler {
    /// Begins to count domains for a job with hard rules. `task` is explained. `None`: no domain would help, because the tier
    /// does not exist, or its tasks that have nodes are in none.
    pub(super) fn begin_domains(
        &self,
        id: JobId,
        task: u32,
        wanted: &Wanted,
        capped: &[u32],
    ) -> Option<Domains> {
        let job = self.jobs.job(id);
        let tree = Arc::clone(&self.tree);
        if wanted.tasks.is_empty() {
            return None;
        }
        let placed = self.placed_of(job, capped);
        let widest = match hard(job.spec().topology.as_ref()) {
            Some(rule) => Some(rule.widest(tree.tiers())?),
            None => None,
        };
        let home = match (widest, placed.of_job.home) {
            (Some(widest), Some(home)) => Some(tree.up_to(home, widest).last()?),
            _ => None,
        };
        let (parts, classes) = self.parts_of(job, task, wanted, &placed)?;
        let mut tiers: Vec<usize> = parts.iter().filter_map(|part| part.tier).chain(widest).collect();
        tiers.sort_unstable();
        tiers.dedup();
        Some(Domains {
            search: Search::new(&tree, widest, home),
            tree,
            tiers,
            widest,
            parts,
            classes,
            rooms: Vec::new(),
            counting: DomainRooms::default(),
            placed,
        })
    }

    /// Returns what a job needs, and the classes of that. A bounded number of different parts counts, beginning with the one
    /// of `task`.
    fn parts_of(
        &self,
        job: &Job,
        task: u32,
        wanted: &Wanted,
        placed: &Placed,
    ) -> Option<(Vec<Part>, Vec<Arc<TaskClass>>)> {
        let of_task = |index: u32| &job.tasks()[index as usize];
        let mut groups: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for &index in &wanted.tasks {
            groups.entry(of_task(index).group).or_insert((0, index)).0 += 1;
        }
        let named = of_task(task).group;
        let mut order: Vec<(u32, (u64, u32))> = groups.into_iter().collect();
        order.sort_by_key(|&(group, _)| group != named);
        let mut parts: Vec<Part> = Vec::new();
        // Nodes are counted for the class of the task in any case.
        let mut classes = vec![Arc::clone(&of_task(task).class)];
        for (group, (needed, first)) in order {
            let rule = hard(job.spec().tasks[group as usize].topology.as_ref());
            let tier = match rule {
                Some(rule) => Some(rule.widest(self.tree.tiers())?),
                None => None,
            };
            let home = placed.of(Some(group)).home.filter(|_| tier.is_some());
            if let (Some(tier), Some(home)) = (tier, home) {
                self.tree.up_to(home, tier).next()?;
            }
            let class = &of_task(first).class;
            let known = classes.iter().position(|known| Arc::ptr_eq(known, class));
            let part = Part { group, class: known.unwrap_or(classes.len()), tier, home, needed, times: 1 };
            let like = parts.iter_mut().find(|other| other.is_like(&part));
            if let Some(other) = like {
                other.add(&part);
            } else if parts.len() < TOPOLOGY_CLASSES_COUNTED_MAX {
                parts.push(part);
                if known.is_none() {
                    classes.push(Arc::clone(class));
                }
            }
        }
        Some((parts, classes))
    }

    /// Returns which tasks of a job have nodes and keep them. `capped` are those that wait for a cap.
    fn placed_of(&self, job: &Job, capped: &[u32]) -> Placed {
        let mut placed = Placed::default();
        let mut finder = Finder::new(&self.replicas);
        for (task, index) in job.tasks().iter().zip(0..) {
            if !task.state.keeps_node() || capped.binary_search(&index).is_ok() {
                continue;
            }
            let position = task.node.and_then(|node| self.tree.position(finder.find(node)?));
            for of in [&mut placed.of_job, placed.of_groups.entry(task.group).or_default()] {
                of.tasks += 1;
                of.home = position.map(|position| self.tree.around(position, of.home)).or(of.home);
            }
        }
        placed
    }

    /// Returns what the nearest domain lacks, in words for the one who may see it. `None`: the whole cluster lacks it.
    pub(super) fn lack_in(&self, id: JobId, domains: &Domains, lacking: &Lacking) -> Option<DomainLack> {
        if lacking.domain == Some(DomainId::ROOT) {
            return None;
        }
        let job = self.jobs.job(id);
        let part = &domains.parts[lacking.part];
        let all = || domains.parts.iter().map(|part| part.needed * part.times).sum();
        let (rule, group, needed, lacks) = match part.tier {
            Some(_) => {
                let rule = &job.spec().tasks.get(part.group as usize)?.topology;
                (rule, Some(part.group), part.needed, lacking.tasks)
            }
            None => (&job.spec().topology, None, all(), lacking.in_all),
        };
        let has = domains.placed.of(group).tasks;
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Some(DomainLack {
            tier: rule.as_ref()?.tier.clone()?,
            is_missing: false,
            best: lacking.domain.map(|domain| Arc::clone(domains.tree.path(domain))),
            holds: number((needed + has).saturating_sub(lacks)),
            needed: number(needed + has),
        })
    }

    /// Returns whether a domain could hold what is lacking if others left it. That is not known if the job has other tasks
    /// there. `capped` are those that wait for a cap: they are among what is lacking.
    pub(super) fn may_hold(&self, id: JobId, domains: &Domains, lacking: &Lacking, capped: &[u32]) -> bool {
        let Some(domain) = lacking.domain.filter(|_| !lacking.is_together) else { return false };
        let Some(of) = domains.room_of(lacking, domain) else { return false };
        let class = domains.class_of(lacking);
        let mut own = 0;
        let mut finder = Finder::new(&self.replicas);
        for (task, index) in self.jobs.job(id).tasks().iter().zip(0..) {
            if !task.state.has_node() || capped.binary_search(&index).is_ok() {
                continue;
            }
            let place = task.node.and_then(|node| finder.find(node));
            if place.is_some_and(|place| domains.tree.contains(domain, place)) {
                if !std::ptr::eq(&*task.class, class) {
                    return false;
                }
                own += 1;
            }
        }
        of.empty.saturating_sub(own) >= of.room.places + lacking.tasks
    }
}

/// Finds nodes. Tasks of a job on one node mostly follow each other, so the last one is known.
struct Finder<'a> {
    replicas: &'a [Replica],
    last: Option<(NodeId, Option<Place>)>,
}

impl<'a> Finder<'a> {
    fn new(replicas: &'a [Replica]) -> Self {
        Self { replicas, last: None }
    }

    fn find(&mut self, node: NodeId) -> Option<Place> {
        let found = self.last.filter(|&(known, _)| known == node).map(|(_, place)| place);
        let place = found.unwrap_or_else(|| locate(self.replicas, node));
        self.last = Some((node, place));
        place
    }
}
