//! Groups in queues. The keeper of jobs has them, because it has the sums of queues.
//!
//! They are groups like others: planned on replicas, and committed as statements. Before that, their queue is asked what it can
//! be charged for. Bundles are charged in their order. One that a cap does not allow is passed over: it is placed later, if the
//! others are as many as the group needs. Otherwise, nothing is searched for, and the group waits or is refused.
//!
//! A group that waits has a [placeholder](super::jobs) in its queue, and cycles try it. One that has lost bundles has none. It is
//! tried again when something may have changed, as other groups are, and when a cap allows more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Planner;
use super::draft::Draft;
use super::group::Group;
use super::jobs::{Charge, Keeper};
use super::life::OnGrowth;
use super::pending::may_wait;
use crate::group::{GroupSpec, NoGroup, PlanJob, StatementReport};
use crate::ids::{AllocationId, GroupId, NodeId, TenantId};
use crate::jobs::{NotCharged, PendingReason, QueueId};
use crate::limits::GROWTH_GROUPS_PER_ROUND;
use crate::replica::Replica;
use crate::statement::Granted;
use crate::time::Time;

/// The groups without placeholders that wait for what their queues cannot be charged for.
#[derive(Debug, Default)]
pub(super) struct Capped {
    groups: BTreeSet<GroupId>,
    /// Those that may be allowed more, and were not looked at since.
    again: VecDeque<GroupId>,
    /// The number of changes of queues and jobs when all were last to be looked at.
    seen: u64,
}

impl Capped {
    /// Forgets a group that is tried, or is gone.
    pub(super) fn remove(&mut self, id: GroupId) {
        self.groups.remove(&id);
    }

    /// Returns whether a group waits for what its queue cannot be charged for.
    pub(super) fn has(&self, id: GroupId) -> bool {
        self.groups.contains(&id)
    }

    /// Returns whether some are to be looked at.
    pub(super) fn has_some_left(&self) -> bool {
        !self.again.is_empty()
    }
}

/// For which bundles of a group without a place its queue can be charged.
#[derive(Debug, Default)]
struct Affordable {
    /// The number of those for which it can.
    count: usize,
    /// Those for which it cannot, by index.
    passed_over: BTreeSet<u32>,
    /// Why it cannot be charged for the first of these.
    reason: Option<NotCharged>,
}

impl Affordable {
    /// Returns why the queue does not allow what the group needs at once, if it does not.
    fn refused(&self, group: &Group) -> Option<NotCharged> {
        let is_growth = group.grows_from().is_some();
        let least = if is_growth { self.count + self.passed_over.len() } else { group.missing().max(1) };
        self.reason.clone().filter(|_| self.count < least)
    }
}

impl Planner {
    /// Returns whether the keeper of jobs must follow the views for groups of its own: there are some, or one is asked for.
    pub(super) fn keeps_groups(&self) -> bool {
        self.keeps_jobs() && (!self.groups.is_empty() || self.queue.has_ready(PlanJob::creates_group))
    }

    /// Returns whether the keeper of jobs can go on with groups.
    pub(super) fn has_groups_left(&self) -> bool {
        self.has_group_work() || self.keeps_groups() && self.replicas.copies.iter().any(Replica::has_ended)
    }

    /// Returns whether groups can be served now. The keeper of jobs does that when nothing of its own is in flight.
    pub(super) fn may_serve_groups(&self) -> bool {
        self.keeper.as_ref().is_none_or(|keeper| self.flights.is_empty() && !keeper.is_releasing())
    }

    /// Checks that a new group, or one that grows, may be charged to its queue, if it is in one.
    pub(super) fn check_queue(&self, spec: &GroupSpec, tenant: TenantId) -> Result<(), NotCharged> {
        let Some(name) = &spec.queue else { return Ok(()) };
        let jobs = self.jobs().expect("only the keeper of jobs has groups in queues");
        jobs.check_binding(name, tenant, spec.bound.as_deref()).map_err(NotCharged::Binding)?;
        jobs.chargeable(name, tenant).map(drop)
    }

    /// Finds out for which bundles of a group its queue can be charged. The others are passed over.
    ///
    /// # Errors
    /// They are fewer than it needs at once.
    pub(super) fn afford(&mut self, id: GroupId) -> Result<(), NotCharged> {
        let Some(affordable) = self.affordable(id)? else { return Ok(()) };
        let group = self.groups.get_mut(&id).expect("just seen");
        self.replicas.meter.charge((affordable.count + affordable.passed_over.len()) as u64);
        let refused = affordable.refused(group);
        group.passed_over = affordable.passed_over;
        refused.map_or(Ok(()), Err)
    }

    /// Returns for which bundles of a group its queue can be charged now; `None` if it is in no queue. Those on lost nodes are
    /// charged already.
    ///
    /// # Errors
    /// The queue cannot be charged for anything.
    fn affordable(&self, id: GroupId) -> Result<Option<Affordable>, NotCharged> {
        let group = &self.groups[&id];
        let Some(name) = &group.spec.queue else { return Ok(None) };
        let queue = self.charged_queue(name)?;
        let keeper = self.keeper.as_deref().expect("only the keeper of jobs has groups in queues");
        let mut budget = keeper.budget(queue);
        let mut affordable = Affordable::default();
        for bundle in group.open() {
            let is_charged = bundle.lost.is_some_and(|lost| keeper.charge_of(lost).is_some());
            match if is_charged { Ok(()) } else { budget.take(&bundle.request) } {
                Ok(()) => affordable.count += 1,
                Err(reason) => {
                    affordable.reason.get_or_insert(reason);
                    affordable.passed_over.insert(bundle.index);
                }
            }
        }
        Ok(Some(affordable))
    }

    /// Returns which bundles of a group that waits are placed later than the others, because its queue cannot be charged for them.
    pub(super) fn placed_later(&self, id: GroupId) -> BTreeSet<u32> {
        let affordable = self.affordable(id).ok().flatten().unwrap_or_default();
        let is_refused = affordable.refused(&self.groups[&id]).is_some();
        if is_refused { BTreeSet::new() } else { affordable.passed_over }
    }

    /// Returns why the queue of a group that waits does not allow what it needs.
    pub(super) fn refused_by_queue(&self, id: GroupId) -> Option<NotCharged> {
        self.affordable(id).map_or_else(Some, |affordable| affordable?.refused(&self.groups[&id]))
    }

    /// Says why the rules about shares gave a group that waits nothing in the last cycle, if they did not.
    pub(super) fn refused_by_share(&self, id: GroupId) -> Option<String> {
        let reason = self.keeper.as_ref()?.share_in_the_way(id)?;
        let queue = self.groups[&id].spec.queue.as_ref()?;
        Some(match reason {
            PendingReason::Overused => format!("queue `{queue}` has all that it deserves"),
            _ => format!("the rules give queue `{queue}` no more of something that the group asks for"),
        })
    }

    fn charged_queue(&self, name: &Arc<str>) -> Result<QueueId, NotCharged> {
        self.jobs().expect("only the keeper of jobs has groups in queues").charged_queue(name)
    }

    /// Handles a group whose queue cannot be charged for what it needs: it waits or is refused.
    pub(super) fn judge_refused(&mut self, id: GroupId, refused: NotCharged, now: Time) {
        let group = &self.groups[&id];
        let is_cap = matches!(refused, NotCharged::Cap { .. });
        let waits = group.job.as_ref().is_none_or(|job| {
            // Only what caps forbid may be allowed later.
            is_cap && job.until.is_some_and(|until| until > now) && may_wait(group)
        });
        if waits {
            self.wait(id, true, OnGrowth::WaitOn);
            if !self.has_placeholder(id) {
                self.capped.groups.insert(id);
            }
        } else {
            self.give_up(id, NoGroup::NotCharged(Box::new(refused)), now);
        }
    }

    /// Lets groups be tried again whose queues may be charged for more since something has changed, some in each round.
    pub(super) fn look_at_caps(&mut self) {
        let Some(jobs) = self.keeper.as_deref().map(Keeper::changes) else { return };
        let Capped { groups, again, seen } = &mut self.capped;
        if again.is_empty() && *seen != jobs && !groups.is_empty() {
            *seen = jobs;
            let mut all: Vec<_> = groups.iter().map(|id| self.groups[id].turn()).collect();
            all.sort_unstable();
            again.extend(all.into_iter().map(|(.., id)| id));
        }
        let began_at = self.replicas.meter.spent();
        for _ in 0..GROWTH_GROUPS_PER_ROUND {
            if self.replicas.meter.spent() - began_at >= self.budget.round / 4 {
                break;
            }
            let Some(id) = self.capped.again.pop_front() else { break };
            if self.capped.has(id) && self.may_afford_more(id) {
                self.stir(id);
            }
        }
    }

    /// Returns whether the queue of a group can be charged for other bundles than when it was tried last, or for none any
    /// more: then it is refused, if somebody waits for it.
    fn may_afford_more(&mut self, id: GroupId) -> bool {
        let affordable = self.affordable(id);
        let group = &self.groups[&id];
        self.replicas.meter.charge(1 + group.open().count() as u64);
        // Nothing is passed over if the queue was charged for others in between.
        let before = Some(&group.passed_over).filter(|passed_over| !passed_over.is_empty());
        affordable.map_or(true, |now| now.as_ref().map(|now| &now.passed_over) != before)
    }

    /// Has a group that waits tried again when its queue can be charged for a bundle that was passed over.
    pub(super) fn wait_for_caps(&mut self, id: GroupId) {
        if !self.groups[&id].passed_over.is_empty() && !self.has_placeholder(id) {
            self.capped.groups.insert(id);
        }
    }

    /// Charges the queue of a group for the bundles of a plan. Nothing, if it is in no queue.
    ///
    /// # Errors
    /// The reason why it cannot be charged. Nothing has changed.
    pub(super) fn charge_plan(
        &mut self,
        id: GroupId,
        plan: &Draft,
        now: Time,
    ) -> Result<Vec<Charge>, NotCharged> {
        let Some(name) = self.groups[&id].spec.queue.clone() else { return Ok(Vec::new()) };
        let queue = self.charged_queue(&name)?;
        let group_name: Arc<str> = id.to_string().into();
        let group = &self.groups[&id];
        let keeper = self.keeper.as_deref_mut().expect("only the keeper of jobs has groups in queues");
        let mut charges = Vec::with_capacity(plan.len());
        for taken in plan {
            let bundle = group.bundle(taken.bundle).expect("a plan is for bundles of the group");
            let known = bundle.lost.and_then(|lost| keeper.charge_of(lost));
            let charge = known.map_or_else(
                || {
                    keeper.budget(queue).take(&bundle.request)?;
                    keeper.charge((queue, &group_name), &bundle.request, taken.node, now)
                },
                Ok,
            );
            match charge {
                Ok(charge) => charges.push(charge),
                Err(refused) => {
                    charges.into_iter().for_each(|charge| keeper.give_back(charge, now));
                    return Err(refused);
                }
            }
        }
        Ok(charges)
    }

    /// Notes what was granted of the bundles that were charged, and gives back the rest. The first `ended` operations of
    /// their statement are evictions.
    pub(super) fn charges_concluded(
        &mut self,
        charges: Vec<Charge>,
        ended: usize,
        concluded: &StatementReport,
        now: Time,
    ) {
        let Some(keeper) = self.keeper.as_deref_mut() else { return };
        let mut granted: Vec<Option<(NodeId, AllocationId)>> = vec![None; charges.len()];
        for (operation, of) in concluded.applied.iter().flat_map(|applied| &applied.granted) {
            if let Granted::Allocated(placement) = of {
                granted[usize::from(*operation) - ended] = Some((placement.node, placement.allocation));
            }
        }
        for (charge, granted) in charges.into_iter().zip(granted) {
            match granted {
                Some((node, allocation)) => keeper.charged(charge, node, allocation, now),
                None => keeper.give_back(charge, now),
            }
        }
    }

    /// Returns the groups that are in a queue, or wait to be, and have no bundle that is charged.
    pub(super) fn uncharged_groups(&self, queue: &str) -> usize {
        let is_in = |group: &&Group| group.spec.queue.as_deref() == Some(queue);
        let has_none = |group: &&Group| group.placed() == 0;
        self.groups.values().filter(is_in).filter(has_none).count()
    }
}
