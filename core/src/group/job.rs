//! Jobs for planners, and their replies.

use std::sync::Arc;

use super::explained::{CountGroups, ExplainWait, GroupsCounted, WaitExplained, WaitSubject};
use super::spec::{GroupSpec, GroupSpecError};
use super::waiting::{GroupTurn, WaitingPage};
use crate::ids::{AllocationId, GroupId, NodeId, StatementId, TenantId};
use crate::jobs::{DirectPlacement, DirectWait, JobsRejection, JobsReply, JobsRequest, NotCharged};
use crate::reply::reply_types;
use crate::request::{Placement, PlacementRequest, Refusal};
use crate::resource::{GpuAssignment, ResourceKind};
use crate::statement::{Applied, CommitMode, Conflict, ConflictDetection, Operation};
use crate::time::Time;

/// A client of one port. The caller of the port numbers its clients. Jobs of tenants are served in turn, and within a tenant
/// those of its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey {
    /// For whom it asks.
    pub tenant: TenantId,
    /// Its number.
    pub number: u64,
}

impl ClientKey {
    /// Returns the key of a client that asks for the operator.
    #[must_use]
    pub const fn of_operator(number: u64) -> Self {
        Self { tenant: TenantId::OPERATOR, number }
    }
}

/// A job for a planner.
#[derive(Clone, Debug)]
pub enum PlanJob {
    /// Creates a group.
    CreateGroup(Arc<GroupSpec>),
    /// Adds bundles to a group, either all of them or none. Bundles that do not fit now wait until the given
    /// time. Without one, the job is refused.
    GrowGroup(GroupId, Vec<Arc<PlacementRequest>>, Option<Time>),
    /// Creates a group, lets one grow or makes a placement that names a queue, by a job that waited before. It keeps the place
    /// in line that it had since this time.
    Resume(Time, Box<Self>),
    /// Removes bundles from a group by index, and ends what runs in them.
    ShrinkGroup(GroupId, Vec<u32>),
    /// Removes a group, and ends what runs in its bundles.
    RemoveGroup(GroupId),
    /// Returns the current state of a group.
    GroupStatus(GroupId),
    /// Lists groups of this planner: those after the given id, of one tenant or of all, and at most the given number.
    ListGroups(Option<GroupId>, Option<TenantId>, u16),
    /// Returns a page of the groups that wait at the planner of this number: those after the given turn.
    ListWaiting(u16, Option<GroupTurn>),
    /// Explains why a placement or a group waits.
    Explain(Box<ExplainWait>),
    /// Tells as which job a placement waits in its queue. It has waited since this time.
    ExplainInQueue(DirectWait, Time),
    /// Returns a page of the count of groups that wait at a planner. The port asks for it, to complete an explanation.
    CountGroups(Box<CountGroups>),
    /// Commits operations that an external scheduler planned.
    Submit(Box<Submit>),
    /// A request about queues and jobs.
    Jobs(Box<JobsRequest>),
    /// A placement that names a queue.
    Place(Box<DirectPlacement>),
    /// Placements of one message that name queues and do not wait, each with its number in the message.
    PlaceBatch(Vec<(u16, DirectPlacement)>),
}

impl PlanJob {
    /// Returns whether the keeper of jobs does it.
    pub(crate) fn is_for_keeper(&self) -> bool {
        match self {
            Self::Jobs(_) | Self::Place(_) | Self::PlaceBatch(_) | Self::ExplainInQueue(..) => true,
            Self::CreateGroup(spec) => spec.queue.is_some(),
            Self::Resume(_, job) => job.is_for_keeper(),
            _ => self.group().is_some_and(GroupId::is_in_queue),
        }
    }

    /// Returns the group that the job is about, if there is one already.
    fn group(&self) -> Option<GroupId> {
        match self {
            Self::GrowGroup(id, ..) | Self::ShrinkGroup(id, _) => Some(*id),
            Self::RemoveGroup(id) | Self::GroupStatus(id) => Some(*id),
            Self::Explain(ask) => match ask.of {
                WaitSubject::Group { id, .. } => Some(id),
                WaitSubject::Placement { .. } => None,
            },
            _ => None,
        }
    }

    /// Returns whether the job is about groups. The keeper of jobs does it together with what waits of its groups.
    pub(crate) fn is_about_groups(&self) -> bool {
        match self {
            Self::CreateGroup(_) | Self::ListGroups(..) | Self::CountGroups(_) | Self::ListWaiting(..) => {
                true
            }
            Self::Resume(_, job) => job.is_about_groups(),
            _ => self.group().is_some(),
        }
    }

    /// Returns whether the job creates a group.
    pub(crate) fn creates_group(&self) -> bool {
        match self {
            Self::CreateGroup(_) => true,
            Self::Resume(_, job) => job.creates_group(),
            _ => false,
        }
    }

    /// Returns whether the job may begin a statement of a planner of groups.
    pub(crate) fn plans(&self) -> bool {
        matches!(self, Self::CreateGroup(_) | Self::GrowGroup(..) | Self::Resume(..) | Self::Submit(_))
    }

    /// Returns whether the job may wait for capacity.
    pub(crate) fn waits(&self) -> bool {
        self.until().is_some()
    }

    /// Returns until when the job may wait.
    pub(crate) fn until(&self) -> Option<Time> {
        match self {
            Self::CreateGroup(spec) => spec.wait_until,
            Self::GrowGroup(.., until) => *until,
            Self::Place(placement) => placement.wait.map(|wait| wait.until),
            Self::Resume(_, job) => job.until(),
            _ => None,
        }
    }

    /// Returns the reply to a job that was cancelled before it began.
    pub(crate) fn cancelled(&self) -> PlanReply {
        match self {
            Self::Place(_) => PlanReply::Placed(Err(NotCharged::Cancelled)),
            Self::Resume(_, job) => job.cancelled(),
            _ => PlanReply::Group(Err(NoGroup::Cancelled)),
        }
    }

    /// Returns the reply to a job that waited before, if its deadline passes before it has a turn again.
    pub(crate) fn without_turn(&self) -> PlanReply {
        match self {
            Self::Place(_) => PlanReply::Placed(Err(NotCharged::NoTurn)),
            Self::Resume(_, job) => job.without_turn(),
            _ => {
                let reason = GroupRefusalReason::NoTurn;
                let refusal = GroupRefusal { infeasible: false, reason, attempts: 0 };
                PlanReply::Group(Err(NoGroup::Refused(Box::new(refusal))))
            }
        }
    }

    /// Returns the cost of the job itself, in work units: the number of bundles or operations that it names,
    /// plus one. The bundles that a list or a status shows are counted when they are shown.
    pub(crate) fn units(&self) -> u64 {
        1 + match self {
            Self::CreateGroup(spec) => spec.bundles.len() as u64,
            Self::GrowGroup(_, requests, _) => requests.len() as u64,
            Self::Resume(_, job) => return job.units(),
            Self::ShrinkGroup(_, indexes) => indexes.len() as u64,
            Self::Submit(submit) => submit.operations.len() as u64,
            Self::PlaceBatch(parts) => parts.len() as u64,
            // What is looked at for a placement is counted as it is looked at.
            Self::RemoveGroup(_) | Self::GroupStatus(_) | Self::ListGroups(..) => 0,
            Self::ListWaiting(..) | Self::Explain(_) | Self::CountGroups(_) | Self::Place(_) => 0,
            Self::ExplainInQueue(..) => 0,
            Self::Jobs(request) => request.units(),
        }
    }
}

/// Operations that an external scheduler planned. The shards arbitrate between these and all others.
#[derive(Clone, Debug)]
pub struct Submit {
    /// The operations in order, on any nodes.
    pub operations: Vec<Operation>,
    /// What counts as a conflict.
    pub conflict_detection: ConflictDetection,
    /// What is committed if a part of the statement conflicts.
    pub mode: CommitMode,
}

reply_types! {
    /// A planner's reply to a job. [`reply_of`](crate::reply::reply_of) turns it into the reply to one kind of job.
    pub enum PlanReply {
        /// Answers `CreateGroup` and `GrowGroup`: the group after the job.
        Group(Result<Box<GroupView>, NoGroup>),
        /// Answers `ShrinkGroup` and `GroupStatus`: the group after the job.
        Status(Result<Box<GroupView>, PlanRejection>),
        /// Answers `RemoveGroup`. The number counts the bundles that the removal ended. It excludes bundles that had
        /// ended before, and releasing bundles, which keep their grace period.
        Removed(Result<(GroupId, u32), PlanRejection>),
        /// Answers `ListGroups`: groups in ascending order of id.
        Groups(Vec<GroupView>),
        /// Answers `ListWaiting`.
        Waiting(WaitingPage),
        /// Answers `Explain` and `ExplainInQueue`.
        Explained(WaitExplained),
        /// Answers `CountGroups`.
        Counted(GroupsCounted),
        /// Answers `Submit`: the result of the operations.
        Statement(Result<Box<StatementReport>, PlanRejection>),
        /// Answers `Jobs`.
        Jobs(Result<JobsReply, JobsRejection>),
        /// Answers `Place`.
        Placed(Result<Box<Placement>, NotCharged>),
        /// Answers `PlaceBatch`, in any order.
        PlacedBatch(Vec<PlacedPart>),
        /// Answers any job that had not begun by its deadline. Nothing was done.
        Late,
    }
}

/// What became of a placement of a batch, with its number.
pub type PlacedPart = (u16, Result<Box<Placement>, NotCharged>);

/// The reason why a group was not created or did not grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGroup {
    /// The group or the new bundles do not fit.
    Refused(Box<GroupRefusal>),
    /// Its queue is not to be charged, or a cap forbids it.
    NotCharged(Box<NotCharged>),
    /// The job was cancelled before its bundles were placed.
    Cancelled,
    /// The group was removed before its bundles were placed.
    Removed,
    /// The job was rejected and changed nothing.
    Rejected(PlanRejection),
}

/// The result of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementReport {
    /// The id of the statement.
    pub statement: StatementId,
    /// What each shard applied. Empty if the statement was aborted.
    pub applied: Vec<Applied>,
    /// The conflicts.
    pub conflicts: Vec<Conflict>,
    /// Set if the statement was aborted because a shard held its part beyond the deadline.
    pub expired: bool,
}

/// The explanation of a refused group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRefusal {
    /// Set if no set of nodes could hold the group, even if nothing else ran there.
    pub infeasible: bool,
    /// The reason.
    pub reason: GroupRefusalReason,
    /// The number of attempts.
    pub attempts: u32,
}

/// The reason why a group was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefusalReason {
    /// No node fits a bundle.
    #[error("bundle {bundle} finds no node in addition to the {placed} that do")]
    Bundle {
        /// The index of the bundle.
        bundle: u32,
        /// The number of other bundles that fit.
        placed: u32,
        /// What the nodes lack, counted on the planner's replica.
        refusal: Box<Refusal>,
    },
    /// No node can hold all the bundles, which must share one node.
    #[error("no node can hold {bundles} bundles together")]
    OneNode {
        /// The least number of bundles to place on the node.
        bundles: u32,
    },
    /// Each bundle needs a node of its own, and there are too few nodes.
    #[error("{bundles} bundles need a node each, and {nodes} could hold any of them")]
    TooFewNodes {
        /// The number of bundles: all, or a subset that only few nodes could hold.
        bundles: u32,
        /// The number of nodes that could hold any of these bundles.
        nodes: u32,
    },
    /// Some bundles can only use some of the nodes, and these nodes have too little capacity in total.
    #[error("{bundles} bundles could be placed on {nodes} nodes only, which together have too little {kind}")]
    Confined {
        /// The number of such bundles.
        bundles: u32,
        /// The number of nodes that could hold any of them.
        nodes: u32,
        /// The resource that these nodes lack.
        kind: ResourceKind,
    },
    /// The capacity of the nodes cannot be divided into enough bundles.
    #[error(
        "nodes could hold {most} bundles at most if nothing else ran there, and {bundles} are to be placed"
    )]
    TooFewPlaces {
        /// The least number of bundles to place.
        bundles: u32,
        /// The upper bound on the number that could be placed.
        most: u32,
    },
    /// The total capacity of all nodes is less than the total demand.
    #[error("all nodes together have less {0} than the bundles ask in all")]
    Cluster(ResourceKind),
    /// The nodes with room for a bundle are used by other bundles of the same group.
    #[error(
        "placed {placed} of {bundles}: the {nodes} nodes with room for bundle {bundle} are used by this \
         group's own bundles ({strategy})"
    )]
    OwnBundles {
        /// The index of the bundle that fits on no node.
        bundle: u32,
        /// The number of other bundles that fit.
        placed: u32,
        /// The least number of bundles to place.
        bundles: u32,
        /// The number of nodes that would fit if they held no bundle of the group.
        nodes: u32,
        /// The name of the strategy.
        strategy: &'static str,
    },
    /// No node that takes new work and suits a bundle of the group has the label.
    #[error("no node that takes work, and where one of the bundles may be placed, has the label {key}")]
    NoValue {
        /// The key of the label.
        key: Arc<str>,
    },
    /// No value of the label has nodes that could hold enough bundles.
    #[error(
        "no value of {key} could hold {bundles} bundles if nothing else ran there: {key}={value} could hold \
         {most} at most, others no more"
    )]
    ValueTooSmall {
        /// The key of the label.
        key: Arc<str>,
        /// The value that could hold the most bundles.
        value: Arc<str>,
        /// The number of bundles that it could hold.
        most: u32,
        /// The least number of bundles to place.
        bundles: u32,
    },
    /// Some value of the label could hold too few bundles, and the skew limits the other values.
    #[error(
        "{key}={value} could hold {room} bundles at most if nothing else ran there, and no other value may have \
         more than {max_skew} beyond that: {most} of {bundles} at most"
    )]
    SkewTooSmall {
        /// The key of the label.
        key: Arc<str>,
        /// The value that could hold the fewest bundles.
        value: Arc<str>,
        /// The number of bundles that it could hold, including those already placed there.
        room: u32,
        /// The most by which other values may exceed it.
        max_skew: u32,
        /// The upper bound on the number of bundles that could be placed.
        most: u32,
        /// The number of bundles to place.
        bundles: u32,
    },
    /// No value of the label has room for all the bundles.
    #[error(
        "no value of {key} has room for {bundles} bundles: {key}={value} has the most, for {placed} of them, \
         and none for bundle {bundle} in addition"
    )]
    Topology {
        /// The key of the label.
        key: Arc<str>,
        /// The value with room for the most bundles.
        value: Arc<str>,
        /// The number of bundles that it has room for.
        placed: u32,
        /// The index of the bundle that does not fit there in addition to these.
        bundle: u32,
        /// The least number of bundles to place.
        bundles: u32,
    },
    /// Some value of the label has room for too few bundles, and the skew limits the other values.
    #[error(
        "placed {placed} of {bundles}: {key}={value} has {count} of them and no room for bundle {bundle}, \
         and no other value may have more than {max_skew} beyond that"
    )]
    Skew {
        /// The key of the label.
        key: Arc<str>,
        /// The value with the fewest bundles.
        value: Arc<str>,
        /// The number of bundles of the group there.
        count: u32,
        /// The most by which other values may exceed it.
        max_skew: u32,
        /// The index of the bundle that fits on no node.
        bundle: u32,
        /// The number of other bundles that fit.
        placed: u32,
        /// The least number of bundles to place.
        bundles: u32,
    },
    /// The search was given up. It is not known whether the group fits.
    #[error(
        "the search was given up after {units} steps: it had placed {placed} of {bundles} bundles, and not bundle \
         {bundle}; whether they fit is not known: ask for bundles that differ less, or for a smaller group"
    )]
    SearchGivenUp {
        /// The index of a bundle that had no node when the search was given up.
        bundle: u32,
        /// The number of other bundles that had one.
        placed: u32,
        /// The least number of bundles to place.
        bundles: u32,
        /// The work units of the search ([`PlannerBudget::search`](crate::planner::PlannerBudget::search)).
        units: u64,
    },
    /// More groups waited than a port may have at the planners, and its deadline passed before its turn came.
    #[error("it had no turn before its deadline: too many groups wait at this I/O thread of the service")]
    NoTurn,
    /// The group conflicted with other work at every attempt.
    #[error("it conflicted with other work at each attempt")]
    Conflicts(Vec<Conflict>),
}

/// The reason why a job was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRejection {
    /// The group does not exist.
    #[error("group {0} does not exist: it was never made, was refused, or was removed")]
    UnknownGroup(GroupId),
    /// The bundle does not exist.
    #[error("group {0} has no bundle {1}")]
    UnknownBundle(GroupId, u32),
    /// The group is being changed.
    #[error("group {0} is being changed: try again when that is answered")]
    Busy(GroupId),
    /// The group would have fewer bundles than its minimum.
    #[error("group {0} would have fewer bundles than its minimum: remove it instead")]
    BelowMinimum(GroupId),
    /// The spec is out of range.
    #[error(transparent)]
    Spec(#[from] GroupSpecError),
    /// The statement has no operations, or too many.
    #[error("{0} operations: give 1 to {max}", max = crate::limits::STATEMENT_OPERATIONS_MAX)]
    Operations(usize),
    /// An operation of an all-or-nothing statement names a node that is not registered. In an incremental
    /// statement, only that operation conflicts.
    #[error("operation {operation}: node {node} is not registered")]
    UnknownNode {
        /// The index of the operation.
        operation: u16,
        /// The node.
        node: NodeId,
    },
    /// An operation of an all-or-nothing statement names an allocation in a partition that does not exist.
    #[error("operation {operation}: allocation {allocation} was never granted")]
    UnknownAllocation {
        /// The index of the operation.
        operation: u16,
        /// The allocation.
        allocation: AllocationId,
    },
    /// The planner holds as many groups as it may.
    #[error("the planner holds {0} groups, which is all it may: remove some")]
    TooManyGroups(usize),
}

/// The state of a group.
///
/// A bundle is no longer placed if its caller released it or another statement evicted it. The planner
/// notices when it sees a view that shows this. It then places the bundle again under a new allocation, as it
/// does for a lost node. To give a bundle back for good, shrink the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The id of the group.
    pub id: GroupId,
    /// Its phase.
    pub state: GroupState,
    /// Its spec.
    pub spec: Arc<GroupSpec>,
    /// Its bundles, by index.
    pub bundles: Vec<(u32, Option<BundlePlace>)>,
    /// The request of each of `bundles`.
    pub requests: Vec<Arc<PlacementRequest>>,
    /// The number of attempts to plan it.
    pub attempts: u32,
    /// The bundles that are releasing: the index, and the latest time at which the bundle ends. Filled only
    /// for a status job, from the views that the planner has followed.
    pub releasing: Vec<(u32, Time)>,
}

/// The phase of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// The group waits for capacity.
    Waiting,
    /// A plan of the group is being committed.
    Committing,
    /// At least the minimum is placed.
    Placed,
    /// Fewer bundles than the minimum are placed, because nodes were lost or bundles were released or
    /// evicted. The planner places these bundles again.
    Degraded,
}

/// The node and allocation of a placed bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundlePlace {
    /// The node.
    pub node: NodeId,
    /// The allocation. Placements into the bundle name this id.
    pub allocation: AllocationId,
    /// The GPU instances that it holds.
    pub gpus: GpuAssignment,
}
