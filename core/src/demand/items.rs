//! What waits for nodes, with equal tasks put together: gangs, and single tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::waiting;
use crate::fairness::{Amounts, Dim};
use crate::group::WaitingWork;
use crate::ids::NodeId;
use crate::jobs::nodes::Asker;
use crate::jobs::nodes::{NodesRequest, Spread};
use crate::jobs::{Job, JobId, Jobs, QueueId, Task, TaskClass, TaskState, TopologyRule};
use crate::limits::PLANNED_TASKS_MAX;
use crate::node::{Operator, Selector, Term};
use crate::request::{PlacementRequest, Policy, Preferences, RankRules};

/// Equal requests.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// What each of them asks for. Several requests go to one node together.
    pub(super) requests: Vec<Arc<PlacementRequest>>,
    /// What each of them takes.
    pub(super) amounts: Amounts,
    pub(super) count: u32,
    /// Who asks for them: the first ones come first.
    pub(super) askers: Vec<(Asker, u32)>,
    /// The queue whose caps count.
    pub(super) queue: Option<QueueId>,
    /// The number of the group whose bundles go to different nodes.
    pub(super) apart: Option<u32>,
    /// The nodes that other bundles of this group have already.
    pub(super) taken: Arc<[NodeId]>,
}

impl Item {
    pub(super) fn of(request: &PlacementRequest, count: u32, asker: Asker) -> Self {
        let amounts = Amounts::of(&request.demand);
        let requests = vec![packing(request)];
        let askers = vec![(asker, count)];
        Self { requests, amounts, count, askers, queue: None, apart: None, taken: Arc::default() }
    }

    /// Returns what caps count of each: its amounts, and its number of allocations.
    pub(super) fn taken_of_caps(&self) -> (&Amounts, u32) {
        (&self.amounts, u32::try_from(self.requests.len()).expect("GROUP_BUNDLES_MAX fits u32"))
    }

    /// Returns so many of an item with one asker.
    pub(super) fn with_count(&self, count: u32) -> Self {
        Self { count, askers: vec![(self.askers[0].0, count)], ..self.clone() }
    }

    /// Returns the item on nodes that suit these terms too.
    pub(super) fn within(&self, terms: &[Term]) -> Self {
        let with = |own: Option<&Arc<Selector>>| {
            let own = own.map_or(&[][..], |own| own.terms());
            Arc::new(Selector::new(own.iter().chain(terms).cloned().collect()))
        };
        let within = |request: &Arc<PlacementRequest>| {
            let mut preferences = request.preferences.as_deref().cloned();
            if let Some(preferences) = &mut preferences
                && let Some(rules) = &preferences.rules
            {
                let fallbacks = rules.fallbacks().iter().map(|own| with(Some(own))).collect();
                let rules =
                    RankRules::new(fallbacks, rules.preferred().to_vec(), rules.tolerations().to_vec());
                preferences.rules = Some(Arc::new(rules.expect("as many selectors as there were")));
            }
            Arc::new(PlacementRequest {
                selector: Some(with(request.selector.as_ref())),
                preferences: preferences.map(Arc::new),
                ..(**request).clone()
            })
        };
        Self { requests: self.requests.iter().map(within).collect(), ..self.clone() }
    }

    /// Returns the order of Ray: most constrained first, then most kinds, then most in sum.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let terms = |request: &Arc<PlacementRequest>| {
            request.selector.as_ref().map_or(0, |selector| selector.terms().len())
        };
        let constraints = usize::from(self.apart.is_some()) + usize::from(self.requests.len() > 1);
        let labels: usize = self.requests.iter().map(terms).sum();
        let kinds = self.amounts.iter().count();
        let sum: i128 = self.amounts.iter().map(|(_, amount)| i128::from(amount)).sum();
        let amounts: Vec<(Dim, i64)> = self.amounts.iter().collect();
        Reverse((constraints, labels, kinds, sum, amounts))
    }
}

/// Returns a request that takes the node with the least room, so that a plan needs few nodes. It leaves GPUs to those that
/// ask for them.
fn packing(request: &PlacementRequest) -> Arc<PlacementRequest> {
    let mut packing = PlacementRequest { policy: Policy::BestFit, ..request.clone() };
    if packing.demand.gpu.amount().is_zero() {
        let own = request.preferences.as_deref().cloned().unwrap_or_default();
        packing.preferences = Some(Arc::new(Preferences { avoid_gpu: true, ..own }));
    }
    Arc::new(packing)
}

/// What is placed together: a gang as a whole, or single tasks each by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Unit {
    pub(super) priority: i32,
    /// Who asks, for a gang.
    pub(super) gang: Option<Asker>,
    /// In the order of Ray.
    pub(super) items: Vec<Item>,
    /// The label of which all nodes have the same value.
    pub(super) domain: Option<Arc<str>>,
    /// A node with bundles of the group. The others have its value.
    pub(super) domain_of: Option<NodeId>,
    /// What a gang needs at least, if it does not fit as a whole.
    pub(super) least: Option<Box<Self>>,
    /// In which domains of the topology a job is to be. Each item is of one task group then.
    pub(super) layout: Option<Layout>,
}

/// In which domains of the topology the tasks of a job are to be.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) job: JobId,
    pub(super) rule: Option<TopologyRule>,
    /// The number and the rule of the task group of each item.
    pub(super) groups: Vec<(u32, Option<TopologyRule>)>,
    /// What all pending tasks of the job ask for.
    pub(super) all: Amounts,
}

impl Unit {
    /// Returns the number of tasks or bundles.
    pub(super) fn count(&self) -> u64 {
        let of_item = |item: &Item| u64::from(item.count) * item.requests.len() as u64;
        self.items.iter().map(of_item).sum()
    }

    /// Returns the unit on nodes with one value of a label.
    pub(super) fn within(&self, key: &str, value: &str) -> Self {
        let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value.to_owned()] };
        let items = self.items.iter().map(|item| item.within(std::slice::from_ref(&term))).collect();
        Self { items, ..self.clone() }
    }

    /// Gangs come before single tasks of the same priority, the most constrained first, then the largest.
    fn rank(&self) -> impl Ord + use<> {
        let terms = |item: &Item| {
            let rules = usize::from(item.apart.is_some()) + usize::from(item.requests.len() > 1);
            let labels = item.requests.iter().filter(|request| request.selector.is_some()).count();
            (rules + labels) as u64 * u64::from(item.count)
        };
        let constraints = u64::from(self.domain.is_some() || self.layout.is_some())
            + self.items.iter().map(terms).sum::<u64>();
        let gang = self.gang.map(|asker| (Reverse((constraints, self.count())), asker));
        (Reverse(self.priority), self.gang.is_none(), gang)
    }
}

/// Returns the floors as one gang.
pub(super) fn floors(request: &NodesRequest) -> Option<Unit> {
    let floors = (0..).zip(&request.floors).filter(|(_, floor)| floor.count > 0);
    let mut items: Vec<Item> =
        floors.map(|(at, floor)| Item::of(&floor.request, floor.count, Asker::Floor(at))).collect();
    items.sort_by_cached_key(Item::rank);
    let first = items.first()?.askers[0].0;
    Some(Unit { gang: Some(first), items, ..Unit::default() })
}

/// Returns the placement groups of a request.
fn groups(request: &NodesRequest) -> impl Iterator<Item = Unit> + '_ {
    (0..).zip(&request.groups).map(|(at, group)| {
        let asker = Asker::Group(at);
        let bundles = group.bundles.iter().filter(|bundles| bundles.count > 0);
        let mut items: Vec<Item> =
            bundles.map(|bundles| Item::of(&bundles.request, bundles.count, asker)).collect();
        match group.spread {
            Spread::Any => {}
            Spread::Apart => items.iter_mut().for_each(|item| item.apart = Some(at)),
            Spread::Together => items = vec![together(items, asker)],
        }
        items.sort_by_cached_key(Item::rank);
        Unit {
            priority: group.priority,
            gang: Some(asker),
            items,
            domain: group.domain.clone(),
            ..Unit::default()
        }
    })
}

/// Makes one item of all requests, which go to one node together.
pub(super) fn together(mut items: Vec<Item>, asker: Asker) -> Item {
    items.sort_by_cached_key(Item::rank);
    let mut all = Item {
        requests: Vec::new(),
        amounts: Amounts::zero(),
        count: 1,
        askers: vec![(asker, 1)],
        queue: items.first().and_then(|item| item.queue),
        apart: None,
        taken: Arc::default(),
    };
    for item in items {
        for _ in 0..item.count {
            all.requests.extend(item.requests.iter().cloned());
            all.amounts.add(&item.amounts);
        }
    }
    all
}

/// Single tasks by what is equal: the priority first, then the queue and the class.
type Singles = BTreeMap<(Reverse<i32>, QueueId, usize), Vec<(JobId, u32)>>;

/// The classes that were met, in order.
#[derive(Default)]
struct Classes<'a> {
    known: BTreeMap<*const TaskClass, usize>,
    all: Vec<&'a Arc<TaskClass>>,
}

impl<'a> Classes<'a> {
    fn number(&mut self, class: &'a Arc<TaskClass>) -> usize {
        *self.known.entry(Arc::as_ptr(class)).or_insert_with(|| {
            self.all.push(class);
            self.all.len() - 1
        })
    }
}

/// Returns all that waits, in the order in which it is placed, and whether tasks were left out.
pub(super) fn units((request, waits): (&NodesRequest, &WaitingWork), jobs: &Jobs) -> (Vec<Unit>, bool) {
    let mut all: Vec<Unit> =
        groups(request).chain(waiting::groups(waits, request.groups.len(), jobs)).collect();
    all.extend(waiting::placements(waits));
    let mut left = PLANNED_TASKS_MAX;
    let mut is_partial = false;
    let mut classes = Classes::default();
    let mut singles = Singles::new();
    let waiting = jobs.queues().flat_map(|(_, queue)| queue.waiting());
    let mut waiting: Vec<JobId> = waiting.collect();
    waiting.sort_unstable();
    for id in waiting {
        let job = jobs.job(id);
        let pending = job.pending().len() as u64;
        if pending > left {
            is_partial = true;
            continue;
        }
        left -= pending;
        if job.has_topology() {
            all.extend(units_of_topology(id, job));
            continue;
        }
        let (gang, rest) = split(job, |task| classes.number(&task.class));
        let queue = job.spec().queue;
        if !gang.is_empty() {
            let item = |(class, count): (usize, u32)| {
                let of = Item::of(&classes.all[class].request, count, Asker::Job(id));
                Item { queue: Some(queue), ..of }
            };
            let mut items: Vec<Item> = gang.into_iter().map(item).collect();
            items.sort_by_cached_key(Item::rank);
            let priority = job.spec().priority;
            all.push(Unit { priority, gang: Some(Asker::Job(id)), items, ..Unit::default() });
        }
        for (class, count) in rest {
            singles.entry((Reverse(job.spec().priority), queue, class)).or_default().push((id, count));
        }
    }
    let mut by_priority: BTreeMap<Reverse<i32>, Vec<Item>> = BTreeMap::new();
    for ((priority, queue, class), of_jobs) in singles {
        let count = of_jobs.iter().map(|&(_, count)| count).sum();
        let first = Asker::Job(of_jobs[0].0);
        let item = Item::of(&classes.all[class].request, count, first);
        let askers = of_jobs.into_iter().map(|(job, count)| (Asker::Job(job), count)).collect();
        by_priority.entry(priority).or_default().push(Item { askers, queue: Some(queue), ..item });
    }
    for (Reverse(priority), mut items) in by_priority {
        items.sort_by_cached_key(Item::rank);
        all.push(Unit { priority, items, ..Unit::default() });
    }
    all.sort_by_cached_key(Unit::rank);
    (all, is_partial)
}

/// Returns what waits of a job with rules about domains: what it needs at once, and the rest. Each item is of one task
/// group.
fn units_of_topology(id: JobId, job: &Job) -> impl Iterator<Item = Unit> {
    let (gang, rest) = split(job, |task| task.group as usize);
    let spec = job.spec();
    let item = |&(group, count): &(usize, u32)| {
        let of = Item::of(&spec.tasks[group].request, count, Asker::Job(id));
        (Item { queue: Some(spec.queue), ..of }, group)
    };
    let mut all = Amounts::zero();
    for (item, _) in gang.iter().chain(&rest).map(item) {
        for _ in 0..item.count {
            all.add(&item.amounts);
        }
    }
    let unit = |(counts, is_gang): (Counts, bool)| {
        let mut items: Vec<(Item, usize)> = counts.iter().map(item).collect();
        items.sort_by_cached_key(|(item, _)| item.rank());
        let number = |group: usize| u32::try_from(group).expect("at most JOB_TASKS_MAX");
        let groups = items.iter().map(|&(_, group)| (number(group), spec.tasks[group].topology.clone()));
        let layout =
            Layout { job: id, rule: spec.topology.clone(), groups: groups.collect(), all: all.clone() };
        let gang = is_gang.then_some(Asker::Job(id));
        let items: Vec<Item> = items.into_iter().map(|(item, _)| item).collect();
        (!items.is_empty()).then_some(Unit {
            priority: spec.priority,
            gang,
            items,
            layout: Some(layout),
            ..Unit::default()
        })
    };
    [(gang, true), (rest, false)].into_iter().filter_map(unit).collect::<Vec<_>>().into_iter()
}

/// Tasks by what they are told apart by.
type Counts = Vec<(usize, u32)>;

/// Returns the pending tasks that a job needs at once, if these are several, and the others.
fn split<'a>(job: &'a Job, mut kind: impl FnMut(&'a Task) -> usize) -> (Counts, Counts) {
    let placed = job.ready_tasks() + job.count(TaskState::Pipelined);
    let mut needed = job.spec().min_member.saturating_sub(placed);
    let roles = &job.spec().roles;
    let of_roles: u64 = roles.iter().map(|role| u64::from(role.min_member)).sum();
    // As the gang plugin does: minima that exceed that of the job do not count.
    let counts = of_roles <= u64::from(job.spec().min_member);
    let mut lacking: Vec<u32> = (0..)
        .zip(roles)
        .map(|(at, role)| {
            let has = |state: TaskState| state.holds() || state == TaskState::Succeeded;
            let states = TaskState::ALL.into_iter().filter(|&of| has(of) || of == TaskState::Pipelined);
            let there: u32 = states.map(|state| job.role_count(at, state)).sum();
            if counts { role.min_member.saturating_sub(there) } else { 0 }
        })
        .collect();
    let mut for_roles: u32 = lacking.iter().sum();
    needed = needed.max(for_roles);
    let mut gang = BTreeMap::new();
    let mut rest = BTreeMap::new();
    let mut late = Vec::new();
    for index in job.pending() {
        let task = &job.tasks()[index as usize];
        let class = kind(task);
        let lacks = &mut lacking[task.role as usize];
        if *lacks > 0 {
            *lacks -= 1;
            for_roles -= 1;
            needed -= 1;
            *gang.entry(class).or_insert(0) += 1;
        } else if needed > for_roles {
            needed -= 1;
            *gang.entry(class).or_insert(0) += 1;
        } else {
            late.push(class);
        }
    }
    if needed > 0 {
        // It has failed tasks that it needs, so it is not placed.
        return (Counts::new(), Counts::new());
    }
    for class in late {
        *rest.entry(class).or_insert(0) += 1;
    }
    // A gang of one is a task like others.
    if gang.values().sum::<u32>() <= 1 {
        for (class, count) in std::mem::take(&mut gang) {
            *rest.entry(class).or_insert(0) += count;
        }
    }
    (gang.into_iter().collect(), rest.into_iter().collect())
}
