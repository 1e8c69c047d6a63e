//! The placeholders of groups that wait in queues.
//!
//! A group that waits has a pending job in its queue ([`Jobs::add_placeholder`](crate::jobs::Jobs)), from when it begins to wait
//! until it does so no more. Cycles try it [in its turn](super::in_turn), among the jobs of its queue.
//!
//! A group with bundles on lost nodes has none. These are charged already, so they are placed again as soon as there is room,
//! as those of other groups are.

use std::collections::{BTreeMap, VecDeque};

use super::Keeper;
use crate::cycle::Plan;
use crate::group::GroupSpec;
use crate::ids::GroupId;
use crate::jobs::{JobId, JobPhase, JobSpec, PendingReason, TaskGroup, TaskState};
use crate::limits::JOBS_MAX;
use crate::planner::Planner;
use crate::planner::draft::Draft;
use crate::planner::group::Group;
use crate::planner::life::{OnGrowth, State};
use crate::planner::pending::may_wait;
use crate::replica::Replica;
use crate::time::Time;

/// The placeholder of a group.
#[derive(Debug)]
pub(super) struct Placeholder {
    pub(super) group: GroupId,
    /// The bundles of its tasks, by index.
    pub(super) bundles: Vec<u32>,
    /// For which of its tasks there was no room the last time, and when.
    pub(super) tried: Option<(Epoch, Vec<u32>)>,
    /// The sweep in which it was tried last.
    pub(super) sweep: u64,
}

/// When there was no room for a group. It is not tried again before this is otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epoch {
    /// The growth and the shape of the nodes, and how often something that was planned was given up.
    Growth(u64, u64, u64),
    /// The number of the state that cycles found, for groups to which more matters than growth.
    State(u64),
}

/// The groups that wait in queues.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    by_group: BTreeMap<GroupId, JobId>,
    pub(super) by_job: BTreeMap<JobId, Placeholder>,
    /// The one that ended last. A group that waits again after it was looked at keeps what was found out in cycles.
    last_ended: Option<Placeholder>,
    /// Groups that a cycle had no room for, and whether that counts for a ticket.
    to_judge: VecDeque<(GroupId, bool)>,
    /// The number of times that all of them had a turn. If that is more work than one cycle does, a sweep takes several.
    pub(super) sweep: u64,
    /// Some had no turn in the last cycle.
    pub(super) has_left: bool,
    /// How often a cycle found another state than the one before had left, and what that was: the changes of jobs, the views,
    /// and how often something planned was given up.
    pub(super) state: u64,
    pub(super) left: Option<(u64, u64, u64)>,
}

impl Placeholders {
    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.by_group.len()
    }

    /// Returns whether some group that a cycle had no room for is to be looked at.
    pub(super) fn has_to_judge(&self) -> bool {
        !self.to_judge.is_empty()
    }
}

impl Keeper {
    /// Lets a group wait as this job. Returns whether there may be one more.
    fn add_placeholder(&mut self, group: GroupId, spec: JobSpec, bundles: Vec<u32>) -> bool {
        let Ok(job) = self.jobs_mut().add_placeholder(spec) else { return false };
        self.placeholders.by_group.insert(group, job);
        let before = self.placeholders.last_ended.take();
        let placeholder = before
            .filter(|before| before.group == group && before.bundles == bundles)
            .unwrap_or(Placeholder { group, bundles, tried: None, sweep: 0 });
        self.placeholders.by_job.insert(job, placeholder);
        true
    }

    /// Ends the placeholder of a group, if it has one. What a cycle has planned for it is taken back when it is to be sent.
    pub(in crate::planner) fn end_placeholder(&mut self, group: GroupId, now: Time) {
        let Some(job) = self.placeholders.by_group.remove(&group) else { return };
        self.placeholders.last_ended = self.placeholders.by_job.remove(&job);
        if self.jobs().job(job).count(TaskState::Allocated) == 0 {
            self.jobs_mut().end_placeholder(job, now);
        }
    }

    /// Takes back what a cycle has planned for a group: it is placed by a statement of its own. Returns the group with its
    /// bundles, unless it does not wait any more.
    pub(super) fn take_planned(&mut self, job: JobId, plan: &Plan, now: Time) -> Option<(GroupId, Vec<u32>)> {
        self.scheduler.take_back(plan);
        let Some(of) = self.placeholders.by_job.get(&job) else {
            self.jobs_mut().end_placeholder(job, now);
            return None;
        };
        Some((of.group, of.bundles.clone()))
    }

    /// Returns how many bundles more may be charged.
    pub(super) fn chargeable_bundles(&self) -> usize {
        let tasks = self.tasks_max.saturating_sub(self.tasks - self.ended_tasks);
        JOBS_MAX.saturating_sub(self.live_jobs()).min(usize::try_from(tasks).unwrap_or(usize::MAX))
    }

    /// Notes groups that a cycle had no room for.
    pub(super) fn note_without_room(&mut self, groups: Vec<(GroupId, bool)>) {
        self.placeholders.to_judge.extend(groups);
    }

    /// Returns why the rules about shares gave a group nothing in the last cycle.
    pub(in crate::planner) fn share_in_the_way(&self, group: GroupId) -> Option<PendingReason> {
        self.scheduler.share_in_the_way(*self.placeholders.by_group.get(&group)?)
    }
}

impl Planner {
    /// Gives a group that begins to wait a placeholder among the jobs of its queue. Returns whether it has one: it is in a queue, and
    /// none of its bundles is on a lost node.
    pub(in crate::planner) fn add_placeholder(&mut self, id: GroupId) -> bool {
        let group = &self.groups[&id];
        let Some(name) = group.spec.queue.clone().filter(|_| !has_lost(group)) else { return false };
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

    /// Returns whether this job holds the place of a group.
    pub(super) fn has_placeholder_of(&self, id: GroupId, job: JobId) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.placeholders.by_group.get(&id) == Some(&job))
    }

    /// Returns whether a group that would fit has to wait for its turn, because others wait in queues.
    pub(in crate::planner) fn comes_in_turn(&self, id: GroupId, now: Time) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        let group = &self.groups[&id];
        let has_time = |until: Option<Time>| until.is_some_and(|until| until > now);
        let waits = group.job.as_ref().is_none_or(|job| has_time(job.until) && may_wait(group));
        group.spec.queue.is_some() && waits && !has_lost(group) && keeper.has_waiting()
    }

    /// Handles the next group that a cycle had no room for. One that can never be placed is refused, and one that fails again
    /// and again takes a ticket. Returns whether there was one.
    pub(super) fn judge_next(&mut self, now: Time) -> bool {
        let keeper = self.keeper_mut();
        let Some((id, counts)) = keeper.placeholders.to_judge.pop_front() else { return false };
        let growth = keeper.replicas().iter().map(Replica::growth).sum();
        // It may wait no more.
        if !self.has_placeholder(id) {
            return true;
        }
        self.replicas.meter.charge(1);
        let shape = self.replicas.shape();
        let group = &self.groups[&id];
        if group.job.as_ref().is_some_and(|job| job.judged != Some(shape)) {
            self.judge_now(id, now);
        } else if counts && group.needs_more() && self.fails_once_more(id, growth) {
            self.queue_for_ticket(id);
        }
        true
    }

    /// Finds out whether a group can be placed at all. It is placed in its turn only.
    fn judge_now(&mut self, id: GroupId, now: Time) {
        self.transition(id, State::Planning { rounds: 0, proof: None });
        let mut draft = Draft::new();
        match self.search(id, &mut draft) {
            Ok(()) => {
                self.replicas.roll_back(&mut draft, 0);
                self.wait(id, false, OnGrowth::Plan);
            }
            Err(no_place) => {
                self.keep_verdict(id, &no_place);
                self.judge(id, &no_place, now);
            }
        }
    }
}

/// Returns whether some bundles that a group is to place have allocations on lost nodes.
fn has_lost(group: &Group) -> bool {
    group.open().any(|bundle| bundle.lost.is_some())
}
