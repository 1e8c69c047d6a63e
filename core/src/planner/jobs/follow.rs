//! Follows the shards' views: claims that were granted, and tasks whose allocations ended.

use std::collections::BTreeMap;

use super::Keeper;
use crate::ids::{AllocationId, ShardId};
use crate::jobs::{JobId, TaskId, TaskState};
use crate::node::NodeState;
use crate::planner::Planner;
use crate::planted::{PlantedBug, is_planted};
use crate::replica::Replica;
use crate::request::Placement;
use crate::time::Time;
use crate::view::{AllocationView, EndCause};

impl Keeper {
    /// Returns whether a task still has this allocation or claim.
    pub(super) fn holds(&self, task: TaskId, allocation: AllocationId) -> bool {
        self.jobs().has_task(task) && self.jobs().task(task).allocation == Some(allocation)
    }

    /// Takes over that the allocation or claim of a task has ended.
    fn task_lost(&mut self, id: TaskId, allocation: AllocationId, cause: EndCause, now: Time) {
        if id.job.is_charge() {
            return self.charged_ended(allocation, cause, now);
        }
        if !self.holds(id, allocation) || is_planted(PlantedBug::TaskEndMissed) {
            return;
        }
        if self.jobs().job(id.job).spec().is_direct && is_planted(PlantedBug::DirectStaysCharged) {
            return;
        }
        if cause == EndCause::NodeLost {
            // The node may come back with it. Before that, the task is placed on another node.
            self.evictions.push_back((id, allocation, 0));
            return;
        }
        self.jobs_mut().task_lost(id, now);
        self.claims.remove(&id);
        self.settle(id.job);
    }

    /// Compares all tasks of a shard with its view, because the view does not tell every end.
    fn compare(&mut self, shard: usize, mut of: impl FnMut(AllocationId) -> bool, now: Time) {
        let Some(view) = self.replicas()[shard].base() else { return };
        let mut live: BTreeMap<AllocationId, (bool, bool)> = BTreeMap::new();
        view.nodes(|slot, image, cold| {
            let is_lost = matches!(image.state, Some(NodeState::Lost { .. }));
            let pending = cold.pending.as_ref();
            let releasing = |id: AllocationId| {
                pending
                    .is_some_and(|pending| pending.releasing.binary_search_by_key(&id, |&(id, _)| id).is_ok())
            };
            let allocations = view.allocations(slot).map(|allocation| allocation.id);
            live.extend(allocations.map(|id| (id, (is_lost, releasing(id)))));
            let claims = pending.into_iter().flat_map(|pending| &pending.claims);
            live.extend(claims.map(|claim| (claim.id, (false, false))));
        });
        let grace_ns = self.scheduler.config().grace_ns;
        let mut ended = Vec::new();
        let mut evictions = Vec::new();
        let nodes: Vec<_> = self.jobs().nodes().collect();
        for &id in nodes.iter().flat_map(|&node| self.jobs().on_node(node)) {
            let task = self.jobs().task(id);
            let Some(allocation) = task.allocation.filter(|&allocation| of(allocation)) else { continue };
            match live.get(&allocation) {
                None => ended.push((id, allocation, EndCause::Released)),
                Some((true, _)) => ended.push((id, allocation, EndCause::NodeLost)),
                // An earlier start ended before it was evicted.
                Some((false, false)) if task.state == TaskState::Releasing => {
                    evictions.push((id, allocation, grace_ns));
                }
                Some(_) => {}
            }
        }
        for (id, allocation, cause) in ended {
            self.task_lost(id, allocation, cause, now);
        }
        self.evictions.extend(evictions);
    }

    /// Follows claims that the views show to be granted or gone. Returns the tasks that hold now what they claimed.
    fn follow_claims(&mut self, now: Time) {
        let mut granted = Vec::new();
        let mut gone = Vec::new();
        for &id in &self.claims {
            let task = self.jobs().task(id);
            let (Some(node), Some(allocation)) = (task.node, task.allocation) else { continue };
            let located = self.replicas().iter().find_map(|replica| {
                let slot = replica.shard().slot_of(node)?;
                Some((replica.base()?, slot))
            });
            let Some((view, slot)) = located else {
                gone.push((id, allocation));
                continue;
            };
            let pending = view.cold(slot).and_then(|cold| cold.pending.as_ref());
            if pending.is_some_and(|pending| pending.claims.iter().any(|claim| claim.id == allocation)) {
                continue;
            }
            match view.allocations(slot).find(|one| one.id == allocation) {
                Some(AllocationView { gpus, units, .. }) => {
                    granted.push((id, Placement { node, allocation, gpus, alternative: 0, units }));
                }
                None => gone.push((id, allocation)),
            }
        }
        for (id, allocation) in gone {
            self.task_lost(id, allocation, EndCause::Released, now);
        }
        for (id, placement) in granted {
            self.claims.remove(&id);
            self.jobs_mut().set(id, TaskState::Allocated, Some(placement.node), now);
            self.jobs_mut().set_allocation(id, placement.allocation);
            self.scheduler.bind(id.job, now);
            self.wait_placed(id.job, placement);
        }
    }
}

impl Planner {
    /// Brings the replicas for jobs, and those for groups, up to all that has changed until now. Returns whether it did.
    pub(super) fn follow_all(&mut self, now: Time) -> bool {
        let follows_jobs = self.follow_jobs(now);
        let follows_groups = !self.keeps_groups() || self.catch_up();
        follows_jobs && follows_groups
    }

    /// Brings the replicas of the keeper up to all that has changed until now, and the tasks with them. Returns whether
    /// it did. If not, a shard is about to publish a view, and the bell rings for it.
    pub(super) fn follow_jobs(&mut self, now: Time) -> bool {
        self.port.views().take_news(|_| {});
        if !self.keeper_mut().follows() {
            return true;
        }
        let replicas = self.keeper_mut().scheduler.replicas_mut();
        replicas.iter_mut().for_each(Replica::await_view);
        let is_current = |replica: &mut Replica| {
            replica.sync();
            !replica.is_awaiting()
        };
        for at in 0..self.keeper_mut().replicas().len() {
            let replica = &mut self.keeper_mut().scheduler.replicas_mut()[at];
            if !is_current(replica) {
                let shard = self.shard_id(at);
                self.port.views().want_next(shard);
            }
        }
        // Asked first, so that no view is missed.
        let replicas = self.keeper_mut().scheduler.replicas_mut();
        let all_current = replicas.iter_mut().all(is_current);
        if all_current {
            // Only now: an older view may not show what was granted last.
            self.take_ends(now);
        }
        all_current
    }

    fn take_ends(&mut self, now: Time) {
        let Self { port, keeper, .. } = self;
        let keeper = keeper.as_mut().expect("only the keeper of jobs gets here");
        for at in 0..keeper.replicas().len() {
            match keeper.scheduler.replicas_mut()[at].take_ended() {
                Some(ended) => {
                    for end in ended {
                        let Some(job) = JobId::of_group(end.bundle.group) else {
                            keeper.charged_ended(end.allocation, end.cause, now);
                            continue;
                        };
                        let id = TaskId { job, index: end.bundle.index };
                        keeper.task_lost(id, end.allocation, end.cause, now);
                    }
                }
                None => {
                    let shard = ShardId(u16::try_from(at).expect("SHARDS_MAX fits u16"));
                    keeper.compare(at, |id| port.shard_of(id.partition) == Some(shard), now);
                }
            }
        }
        keeper.follow_claims(now);
    }
}
