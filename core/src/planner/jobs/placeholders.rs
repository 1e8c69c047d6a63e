//! The placeholders of groups that wait in queues.
//!
//! A group that waits has a pending job in its queue ([`Jobs::add_placeholder`](crate::jobs::Jobs)), from when it begins to wait
//! until it does so no more. A cycle finds the group in the order of the jobs of its queue, and has it planned here, by its strategy, on
//! the replicas of the cycle. What is planned leaves as a statement of the group, like any plan of it, and is charged then.
//!
//! A group with bundles on lost nodes has none. These are charged already, so they are placed again as soon as there is room,
//! as those of other groups are.

use std::collections::{BTreeMap, BTreeSet};

use super::Keeper;
use crate::cycle::{GroupPlan, GroupPlans, PlacedBundle, Plan};
use crate::group::{GroupSpec, Strategy};
use crate::ids::GroupId;
use crate::jobs::{JobId, JobPhase, JobSpec, PendingReason, TaskGroup, TaskState};
use crate::planner::Planner;
use crate::planner::draft::Draft;
use crate::planner::life::State;
use crate::planner::pending::may_wait;
use crate::planner::strategy::{NoPlace, Wanted};
use crate::replica::Replica;
use crate::time::Time;

/// What the search for room for a group depends on: the growth and the shape of the nodes, and how often something planned was
/// given up.
type Epoch = (u64, u64, u64);

/// The placeholder of a group.
#[derive(Debug)]
struct Placeholder {
    group: GroupId,
    /// The bundles of its tasks, by index.
    bundles: Vec<u32>,
    /// For which of its tasks there was no room the last time, and when.
    tried: Option<(Epoch, Vec<u32>)>,
}

/// The groups that wait in queues.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    by_group: BTreeMap<GroupId, JobId>,
    by_job: BTreeMap<JobId, Placeholder>,
}

impl Placeholders {
    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.by_group.len()
    }
}

impl Keeper {
    /// Lets a group wait as this job. Returns whether there may be one more.
    fn add_placeholder(&mut self, group: GroupId, spec: JobSpec, bundles: Vec<u32>) -> bool {
        let Ok(job) = self.jobs_mut().add_placeholder(spec) else { return false };
        self.placeholders.by_group.insert(group, job);
        self.placeholders.by_job.insert(job, Placeholder { group, bundles, tried: None });
        true
    }

    /// Ends the placeholder of a group, if it has one. What a cycle has planned for it is taken back when it is to be sent.
    pub(in crate::planner) fn end_placeholder(&mut self, group: GroupId, now: Time) {
        let Some(job) = self.placeholders.by_group.remove(&group) else { return };
        self.placeholders.by_job.remove(&job);
        if self.jobs().job(job).count(TaskState::Allocated) == 0 {
            self.jobs_mut().end_placeholder(job, now);
        }
    }

    /// Takes back what a cycle has planned for a group: it is placed by a statement of its own. Returns the group with its
    /// bundles, unless it does not wait any more.
    fn take_planned(&mut self, job: JobId, plan: &Plan, now: Time) -> Option<(GroupId, Vec<u32>)> {
        self.scheduler.take_back(plan);
        let Some(of) = self.placeholders.by_job.get_mut(&job) else {
            self.jobs_mut().end_placeholder(job, now);
            return None;
        };
        // It is tried again in the next cycle, if it is not placed now.
        of.tried = None;
        Some((of.group, of.bundles.clone()))
    }

    /// Returns why the rules about shares gave a group nothing in the last cycle.
    pub(in crate::planner) fn share_in_the_way(&self, group: GroupId) -> Option<PendingReason> {
        self.scheduler.share_in_the_way(*self.placeholders.by_group.get(&group)?)
    }
}

/// Plans groups within a cycle.
pub(super) struct PlannedInTurn<'a> {
    planner: &'a mut Planner,
    placeholders: &'a mut Placeholders,
    /// The units that were spent when the cycle began.
    began_at: u64,
    /// The groups that had no room.
    pub(super) without_room: Vec<GroupId>,
}

impl<'a> PlannedInTurn<'a> {
    pub(super) fn new(planner: &'a mut Planner, placeholders: &'a mut Placeholders) -> Self {
        let began_at = planner.replicas.meter.spent();
        Self { planner, placeholders, began_at, without_room: Vec::new() }
    }
}

impl GroupPlans for PlannedInTurn<'_> {
    fn plan(&mut self, job: JobId, tasks: &[u32], replicas: &mut Vec<Replica>) -> GroupPlan {
        let of = self.placeholders.by_job.get_mut(&job).expect("only groups that wait have placeholders");
        let planner = &mut *self.planner;
        let growth = replicas.iter().map(Replica::growth).sum();
        let epoch = (growth, replicas.iter().map(Replica::shape).sum(), planner.released);
        if of.tried.as_ref().is_some_and(|(at, tried)| *at == epoch && tried == tasks) {
            return GroupPlan::NoRoom;
        }
        if planner.replicas.meter.spent() - self.began_at >= planner.budget.round {
            return GroupPlan::Later;
        }
        let wanted: BTreeSet<u32> = tasks.iter().map(|&task| of.bundles[task as usize]).collect();
        let shown_from: Vec<usize> = replicas.iter().map(Replica::hidden_count).collect();
        let hides_none = shown_from.iter().all(|&hidden| hidden == 0);
        let planned = planner.plan_within_cycle(of.group, &wanted, (replicas, shown_from));
        let Some(draft) = planned else {
            // Where nodes are left out, or a value of a label may become open, it may fit later without growth.
            let has_rule = planner.groups[&of.group].spec.topology.is_some();
            of.tried = (hides_none && !has_rule).then(|| (epoch, tasks.to_vec()));
            self.without_room.push(of.group);
            return GroupPlan::NoRoom;
        };
        let task = |bundle: u32| {
            let at = of.bundles.binary_search(&bundle).expect("a plan is for bundles that wait");
            u32::try_from(at).expect("GROUP_BUNDLES_MAX fits u32")
        };
        let placed = draft.into_iter().map(|taken| PlacedBundle {
            task: task(taken.bundle),
            shard: taken.shard,
            slot: taken.slot,
            node: taken.node,
            key: taken.key,
        });
        GroupPlan::Placed(placed.collect())
    }
}

impl Planner {
    /// Gives a group that begins to wait a placeholder among the jobs of its queue. Returns whether it has one: it is in a queue, and
    /// none of its bundles is on a lost node.
    pub(in crate::planner) fn add_placeholder(&mut self, id: GroupId) -> bool {
        let group = &self.groups[&id];
        let Some(name) = group.spec.queue.clone().filter(|_| !has_lost(group.open())) else { return false };
        let Some(queue) = self.jobs().and_then(|jobs| jobs.charged_queue(&name).ok()) else { return false };
        let group = &self.groups[&id];
        let mut bundles = Vec::new();
        let mut tasks: Vec<TaskGroup> = Vec::new();
        for bundle in group.open() {
            bundles.push(bundle.index);
            match tasks.last_mut().filter(|last| last.request == *bundle.request) {
                Some(last) => last.count += 1,
                None => tasks
                    .push(TaskGroup { preemptable: false, ..TaskGroup::new((*bundle.request).clone(), 1) }),
            }
        }
        let needed = group.needed_at_once(bundles.len());
        let spec = JobSpec {
            queue,
            tenant: id.tenant,
            min_member: u32::try_from(needed).expect("GROUP_BUNDLES_MAX fits u32"),
            priority: group.spec.priority,
            preempts: false,
            created: group.since,
            phase: JobPhase::Inqueue,
            is_direct: true,
            ..JobSpec::new("group", tasks)
        };
        self.keeper_mut().add_placeholder(id, spec, bundles)
    }

    /// Returns the group whose place in its queue a job holds, as it was asked for.
    #[must_use]
    pub fn group_of_placeholder(&self, job: JobId) -> Option<&GroupSpec> {
        let of = self.keeper.as_ref()?.placeholders.by_job.get(&job)?;
        Some(&self.groups[&of.group].spec)
    }

    /// Returns whether a group has a placeholder among the jobs.
    pub(in crate::planner) fn has_placeholder(&self, id: GroupId) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.placeholders.by_group.contains_key(&id))
    }

    /// Returns whether a group that would fit has to wait for its turn, because others wait in queues.
    pub(in crate::planner) fn comes_in_turn(&self, id: GroupId, now: Time) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        let group = &self.groups[&id];
        let may_wait = group
            .job
            .as_ref()
            .is_none_or(|job| job.until.is_some_and(|until| until > now) && may_wait(group));
        group.spec.queue.is_some() && may_wait && !has_lost(group.open()) && keeper.has_waiting()
    }

    /// Plans these bundles of a group on the replicas of a cycle, of which some nodes are hidden. Returns where they are.
    fn plan_within_cycle(
        &mut self,
        id: GroupId,
        bundles: &BTreeSet<u32>,
        (replicas, shown_from): (&mut Vec<Replica>, Vec<usize>),
    ) -> Option<Draft> {
        let group = self.groups.get_mut(&id).expect("a group that waits is kept");
        group.attempts += 1;
        group.passed_over =
            group.open().map(|bundle| bundle.index).filter(|index| !bundles.contains(index)).collect();
        std::mem::swap(&mut self.replicas.copies, replicas);
        let mut wanted = self.wanted(id);
        let mut draft = Draft::new();
        let copies = &self.replicas.copies;
        let is_shown = |&(shard, slot): &(usize, _)| !copies[shard].is_hidden(slot);
        let may_stay = wanted.standing.iter().all(is_shown) || !follows_placed(&mut wanted, is_shown);
        let planned = if may_stay {
            self.replicas.plan_apart(wanted, self.budget.search, shown_from, &mut draft)
        } else {
            Err(NoPlace::of(0))
        };
        std::mem::swap(&mut self.replicas.copies, replicas);
        self.work.searches += 1;
        self.work.given_up += u64::from(planned.as_ref().is_err_and(|no_place| no_place.given_up));
        planned.ok().map(|()| draft)
    }

    /// Places a group where a cycle has planned it, by a statement of its own.
    pub(super) fn commit_planned(&mut self, job: JobId, plan: &Plan, now: Time) {
        let Some((id, bundles)) = self.keeper_mut().take_planned(job, plan, now) else { return };
        self.sync();
        let mut draft = Draft::new();
        for step in &plan.tasks {
            let index = bundles[step.task.index as usize];
            let request = self.groups[&id].item(index).request;
            let place = self.replicas.locate(step.node);
            // What is in flight may be known to one of the replicas only.
            if !place.is_some_and(|place| self.replicas.take_on(&mut draft, place, index, &request)) {
                return self.replicas.roll_back(&mut draft, 0);
            }
        }
        let conflict_detection = self.groups[&id].spec.conflict_detection;
        self.transition(id, State::Planning { rounds: 0, proof: None });
        self.commit_placing(id, draft, conflict_detection, now);
    }

    /// Handles groups for which a cycle found no room: one that can never be placed is refused, and one that fails again and
    /// again takes a ticket.
    pub(super) fn judge_without_room(&mut self, without_room: Vec<GroupId>, now: Time) {
        let growth = self.keeper_mut().replicas().iter().map(Replica::growth).sum();
        let shape = self.replicas.shape();
        for id in without_room {
            let group = &self.groups[&id];
            if group.job.as_ref().is_some_and(|job| job.judged != Some(shape)) {
                self.try_group(id, now);
                continue;
            }
            // Bundles beyond the minimum take no ticket.
            let may_queue = group.missing() > 0 || group.job.is_some();
            if may_queue && self.fails_once_more(id, growth) {
                self.queue_for_ticket(id);
            }
        }
    }
}

/// Returns whether some of these bundles have allocations on lost nodes.
fn has_lost<'a>(mut bundles: impl Iterator<Item = &'a crate::state::GroupBundleRecord>) -> bool {
    bundles.any(|bundle| bundle.lost.is_some())
}

/// Leaves out the nodes of placed bundles that are not shown: nothing is to be placed there in this cycle. Returns whether the others
/// must follow them.
fn follows_placed(wanted: &mut Wanted, is_shown: impl Fn(&(usize, crate::index::Slot)) -> bool) -> bool {
    if wanted.strategy == Strategy::Pack {
        wanted.standing.retain(is_shown);
    }
    wanted.strategy == Strategy::StrictPack
}
