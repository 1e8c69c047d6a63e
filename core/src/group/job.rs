//! What is asked of a planner, and what it answers.

use std::sync::Arc;

use super::spec::{GroupSpec, GroupSpecError};
use crate::ids::{AllocationId, GroupId, NodeId, StatementId};
use crate::request::{PlacementRequest, Refusal};
use crate::resource::{GpuAssignment, ResourceKind};
use crate::statement::{Applied, CommitMode, Conflict, ConflictDetection, Operation};
use crate::time::Time;

/// Whose jobs are served in turn: numbered by the caller of the port. Ports have clients of their own.
pub type ClientKey = u64;

/// One job.
#[derive(Clone, Debug)]
pub enum PlanJob {
    /// Make a group.
    CreateGroup(Arc<GroupSpec>),
    /// Add bundles to a group: all of them, or none. What does not fit now waits until then, or is refused.
    GrowGroup(GroupId, Vec<Arc<PlacementRequest>>, Option<Time>),
    /// Take bundles out of a group, by their places, with what runs in them.
    ShrinkGroup(GroupId, Vec<u32>),
    /// End a group, with what runs in its bundles.
    RemoveGroup(GroupId),
    /// A group as it stands.
    GroupStatus(GroupId),
    /// The groups of this planner, after that one, at most so many.
    ListGroups(Option<GroupId>, u16),
    /// Commit operations that somebody else planned.
    Submit(Box<Submit>),
    /// Take back the group whose making is the job of the same tag, or the bundles that it adds, unless they are
    /// placed: that job is answered, this one is not.
    Cancel,
}

impl PlanJob {
    /// Whether it may begin a statement.
    pub(crate) fn plans(&self) -> bool {
        matches!(self, Self::CreateGroup(_) | Self::GrowGroup(..) | Self::Submit(_))
    }

    /// What it costs by itself, in units: what it names, but for a list or a status, whose bundles are counted
    /// when they are shown.
    pub(crate) fn units(&self) -> u64 {
        1 + match self {
            Self::CreateGroup(spec) => spec.bundles.len() as u64,
            Self::GrowGroup(_, requests, _) => requests.len() as u64,
            Self::ShrinkGroup(_, indexes) => indexes.len() as u64,
            Self::Submit(submit) => submit.operations.len() as u64,
            Self::RemoveGroup(_) | Self::GroupStatus(_) | Self::ListGroups(..) | Self::Cancel => 0,
        }
    }
}

/// Operations that somebody else planned: an external scheduler, to which shards are the arbiter.
#[derive(Clone, Debug)]
pub struct Submit {
    /// In order; on any nodes.
    pub operations: Vec<Operation>,
    /// What counts as a conflict.
    pub conflict_detection: ConflictDetection,
    /// What becomes of it where a part conflicts.
    pub mode: CommitMode,
}

/// What a planner answers.
#[derive(Clone, Debug)]
pub enum PlanReply {
    /// The group as it stands (after the job, where that changed it).
    Group(Box<GroupView>),
    /// It does not fit.
    Refused(Box<GroupRefusal>),
    /// It is gone: so many bundles ended with it. Not those that had ended before, nor those that somebody
    /// evicted with grace: they keep it.
    Removed(GroupId, u32),
    /// It was taken back before it was placed.
    Cancelled,
    /// Groups in order of id.
    Groups(Vec<GroupView>),
    /// What became of the operations.
    Statement(Box<StatementReport>),
    /// Not done, and nothing moved.
    Rejected(PlanRejection),
}

/// What became of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementReport {
    /// Its id.
    pub statement: StatementId,
    /// What each shard did. Empty: aborted.
    pub applied: Vec<Applied>,
    /// What conflicted.
    pub conflicts: Vec<Conflict>,
    /// It was aborted because a shard held its part beyond the deadline.
    pub expired: bool,
}

/// Why a group was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRefusal {
    /// No set of nodes could hold it, even if nothing else ran there.
    pub infeasible: bool,
    /// Why.
    pub reason: GroupRefusalReason,
    /// Over how many attempts.
    pub attempts: u32,
}

/// What a group falls short of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefusalReason {
    /// A bundle finds no node.
    #[error("bundle {bundle} finds no node beside the {placed} that do")]
    Bundle {
        /// Its place.
        bundle: u32,
        /// How many others found one.
        placed: u32,
        /// What the nodes lack, counted by the planner's copy.
        refusal: Box<Refusal>,
    },
    /// All on one node is more than any node can give.
    #[error("no node can hold {bundles} bundles together")]
    OneNode {
        /// How many are to be there at least.
        bundles: u32,
    },
    /// Each on a node of its own: too few nodes.
    #[error("{bundles} bundles need a node each, and {nodes} could hold any of them")]
    TooFewNodes {
        /// How many: all, or some that few nodes could hold.
        bundles: u32,
        /// Nodes that could hold any of these.
        nodes: u32,
    },
    /// Some bundles may stand on some nodes only, which together have less than these ask.
    #[error("{bundles} bundles could stand on {nodes} nodes only, which together have too little {kind}")]
    Confined {
        /// How many.
        bundles: u32,
        /// How many nodes could hold any of them.
        nodes: u32,
        /// Of what.
        kind: ResourceKind,
    },
    /// What nodes have does not go into as many bundles.
    #[error(
        "nodes could hold {most} bundles at most if nothing else ran there, and {bundles} are to be placed"
    )]
    TooFewPlaces {
        /// How many are to be placed at least.
        bundles: u32,
        /// How many could be.
        most: u32,
    },
    /// All nodes together have less than is asked in all.
    #[error("all nodes together have less {0} than the bundles ask in all")]
    Cluster(ResourceKind),
    /// The nodes with room for a bundle are used by others of its own group.
    #[error(
        "placed {placed} of {bundles}: the {nodes} nodes with room for bundle {bundle} are used by this \
         group's own bundles ({strategy})"
    )]
    OwnBundles {
        /// The place of the bundle that finds no node.
        bundle: u32,
        /// How many others find one.
        placed: u32,
        /// How many are to be placed at least.
        bundles: u32,
        /// Nodes that would do if no bundle of the group stood there.
        nodes: u32,
        /// By its name.
        strategy: &'static str,
    },
    /// No node that takes new work, and where a bundle of the group may stand, has the label.
    #[error("no node that takes work, and where one of the bundles may stand, has the label {key}")]
    NoValue {
        /// The label.
        key: Arc<str>,
    },
    /// The nodes of no value of the label could hold as many.
    #[error(
        "no value of {key} could hold {bundles} bundles if nothing else ran there: {key}={value} could hold \
         {most} at most, others no more"
    )]
    ValueTooSmall {
        /// The label.
        key: Arc<str>,
        /// Its value that could hold most.
        value: Arc<str>,
        /// How many.
        most: u32,
        /// How many are to be placed at least.
        bundles: u32,
    },
    /// Some value of the label could hold too few, and the skew keeps the others back.
    #[error(
        "{key}={value} could hold {room} bundles at most if nothing else ran there, and no other value may have \
         more than {max_skew} beyond that: {most} of {bundles} at most"
    )]
    SkewTooSmall {
        /// The label.
        key: Arc<str>,
        /// Its value that could hold fewest.
        value: Arc<str>,
        /// How many, those that stand there included.
        room: u32,
        /// How much more other values may have.
        max_skew: u32,
        /// How many bundles could be placed at most.
        most: u32,
        /// How many are to be.
        bundles: u32,
    },
    /// No value of the label has room for all.
    #[error(
        "no value of {key} has room for {bundles} bundles: {key}={value} has the most, for {placed} of them, \
         and none for bundle {bundle} beside these"
    )]
    Topology {
        /// The label.
        key: Arc<str>,
        /// Its value with room for the most.
        value: Arc<str>,
        /// For how many.
        placed: u32,
        /// The place of the bundle that finds no node there beside these.
        bundle: u32,
        /// How many are to be placed at least.
        bundles: u32,
    },
    /// Some value of the label has room for too few, and the skew keeps the others back.
    #[error(
        "placed {placed} of {bundles}: {key}={value} has {count} of them and no room for bundle {bundle}, \
         and no other value may have more than {max_skew} beyond that"
    )]
    Skew {
        /// The label.
        key: Arc<str>,
        /// Its value with the fewest.
        value: Arc<str>,
        /// How many the group has there.
        count: u32,
        /// How much more other values may have.
        max_skew: u32,
        /// The place of the bundle that finds no node.
        bundle: u32,
        /// How many others find one.
        placed: u32,
        /// How many are to be placed at least.
        bundles: u32,
    },
    /// The search was given up: whether it fits is not known.
    #[error(
        "the search was given up after {units} steps: it had placed {placed} of {bundles} bundles, and not bundle \
         {bundle}; whether they fit is not known: ask for bundles that differ less, or for a smaller group"
    )]
    SearchGivenUp {
        /// The place of a bundle that had found no node by then.
        bundle: u32,
        /// How many others had found one.
        placed: u32,
        /// How many are to be placed at least.
        bundles: u32,
        /// Units of work of the search ([`PlannerBudget::search`](crate::planner::PlannerBudget::search)).
        units: u64,
    },
    /// It lost against other work, as often as is tried.
    #[error("it conflicted with other work at each attempt")]
    Conflicts(Vec<Conflict>),
}

/// Why a job was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRejection {
    /// No such group.
    #[error("group {0} does not exist: it was never made, was refused, or was removed")]
    UnknownGroup(GroupId),
    /// No such bundle.
    #[error("group {0} has no bundle {1}")]
    UnknownBundle(GroupId, u32),
    /// The group is being changed.
    #[error("group {0} is being changed: try again when that is answered")]
    Busy(GroupId),
    /// The group would be less than its minimum.
    #[error("group {0} would have fewer bundles than its minimum: remove it instead")]
    BelowMinimum(GroupId),
    /// The spec is out of range.
    #[error(transparent)]
    Spec(#[from] GroupSpecError),
    /// A statement of nothing, or of too much.
    #[error("{0} operations: give 1 to {max}", max = crate::limits::STATEMENT_OPERATIONS_MAX)]
    Operations(usize),
    /// An operation of a statement that is done as a whole names a node that is not registered. (Of an
    /// incremental one, the operation alone conflicts.)
    #[error("operation {operation}: node {node} is not registered")]
    UnknownNode {
        /// Its place.
        operation: u16,
        /// The node.
        node: NodeId,
    },
    /// An operation, likewise, names an allocation of a partition that the store does not have.
    #[error("operation {operation}: allocation {allocation} was never granted")]
    UnknownAllocation {
        /// Its place.
        operation: u16,
        /// The allocation.
        allocation: AllocationId,
    },
    /// As many groups wait or stand as may.
    #[error("the planner holds {0} groups, which is all it may: remove some")]
    TooManyGroups(usize),
}

/// A group as it stands.
///
/// A bundle that its caller released, or that a statement of others evicted, is not placed any more as soon as
/// the planner has seen a view that shows it; it is placed again, under another allocation, as one whose node
/// was lost. To give a bundle back for good, shrink the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its id.
    pub id: GroupId,
    /// How it stands.
    pub state: GroupState,
    /// Its spec.
    pub spec: Arc<GroupSpec>,
    /// Its bundles, by place.
    pub bundles: Vec<(u32, BundleView)>,
    /// What each of `bundles` takes.
    pub requests: Vec<Arc<PlacementRequest>>,
    /// How often a plan of it was tried.
    pub attempts: u32,
    /// Of those of `bundles` that somebody evicted with grace: the place, and when each ends at the latest. Told by
    /// a status alone; by the views that the planner has followed.
    pub releasing: Vec<(u32, Time)>,
}

/// How a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Waits for capacity.
    Waiting,
    /// A plan is being committed.
    Committing,
    /// At least its minimum is placed.
    Placed,
    /// Bundles were lost with their nodes, released by their caller or evicted by others, and fewer than its
    /// minimum are placed: they are placed again.
    Degraded,
}

/// A bundle as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleView {
    /// Not placed (yet, or any more).
    Unplaced,
    /// Placed.
    Placed {
        /// The node.
        node: NodeId,
        /// Its allocation: placements are made into it by this id.
        allocation: AllocationId,
        /// Its GPU instances.
        gpus: GpuAssignment,
    },
}
