//! What a cycle has planned.

use crate::ids::{BundleId, NodeId, TenantId};
use crate::index::Slot;
use crate::jobs::{JobId, Task, TaskId};
use crate::replica::ClaimKey;
use crate::request::PlacementRequest;
use crate::statement::{Allocate, Operation};
use crate::time::Time;

/// A task in a plan.
#[derive(Clone, Debug)]
pub struct PlannedTask {
    /// The task.
    pub task: TaskId,
    /// Its node.
    pub node: NodeId,
    /// The task before the plan.
    pub(crate) before: Task,
    pub(crate) shard: usize,
    pub(crate) slot: Slot,
    /// What the plan has taken on the replica. `None`: nothing, as an eviction does, or a task without amounts that waits for a
    /// cap. What a task that waits for a cap has
    /// taken is given up at the end of the cycle.
    pub(crate) key: Option<ClaimKey>,
    /// The operation. `None`: the task waits until its queue's cap allows it, and the shard is not asked for anything.
    pub(crate) operation: Option<Operation>,
}

/// Operations that are committed together, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The tasks, in order.
    pub tasks: Vec<PlannedTask>,
}

impl Plan {
    /// Returns the job that it places. `None`: it only evicts.
    pub(crate) fn placed_job(&self) -> Option<JobId> {
        let is_placed = |step: &&PlannedTask| !matches!(step.operation, Some(Operation::Evict(_)));
        self.tasks.iter().find(is_placed).map(|step| step.task.job)
    }

    /// Returns the operations of the statement, each with the index of its task.
    pub fn operations(&self) -> impl Iterator<Item = (u16, &Operation)> {
        (0..).zip(&self.tasks).filter_map(|(index, task)| Some((index, task.operation.as_ref()?)))
    }
}

/// What a cycle has planned and looked at.
#[derive(Clone, Debug, Default)]
pub struct CycleReport {
    /// The statements to commit, in order.
    pub plans: Vec<Plan>,
    /// How many jobs their queues admitted.
    pub admitted: u64,
    /// How many nodes were looked at for victims.
    pub victim_nodes: u64,
    /// When another cycle may decide otherwise although nothing has changed. `None`: not before something changes.
    pub due: Option<Time>,
}

/// Returns the operation that gives a task a node.
pub(super) fn allocation(task: TaskId, node: NodeId, request: &PlacementRequest) -> Operation {
    Operation::Allocate(Allocate {
        node,
        expected: None,
        demand: request.demand.clone(),
        gpus: None,
        owner: request.owner,
        bundle: Some(bundle_of(task, request.tenant)),
        tenant: request.tenant,
        lease: request.lease.as_deref().copied(),
    })
}

/// Returns the bundle that the allocation of a task of a tenant becomes.
pub(super) fn bundle_of(task: TaskId, tenant: TenantId) -> BundleId {
    BundleId { group: task.job.group(tenant), index: task.index }
}
