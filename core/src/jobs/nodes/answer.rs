//! A plan of nodes: what to launch and to remove, what fits nowhere, and what starts when.

use std::sync::Arc;

use crate::ids::{GroupId, NodeId};
use crate::jobs::{Capped, JobId};
use crate::request::{PlacementRequest, Refusal};

/// What is planned for a type of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypePlan {
    /// The number of nodes that are registered.
    pub present: u32,
    /// The number of nodes that are being launched, without those in `cancel`.
    pub launching: u32,
    /// The number of further nodes that are needed.
    pub needed: u32,
    /// How many of these to launch now.
    pub launch: u32,
    /// How many of the launches under way to cancel, because they exceed a limit.
    pub cancel: u32,
}

/// Who asks for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    /// A floor, by its index.
    Floor(u32),
    /// A placement group of the request, by its index.
    Group(u32),
    /// A placement group of the service that waits.
    Waiting(GroupId),
    /// A job.
    Job(JobId),
    /// Placements that wait, each by itself.
    Placements,
}

/// Why something gets no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The cap of a queue forbids it, so no node is asked for.
    Cap {
        /// The name of the queue.
        queue: Arc<str>,
        /// What the cap bounds.
        of: Capped,
    },
    /// No type could hold it, and no present node could if it were empty. The refusal counts types by the check that
    /// they fail.
    Never(Box<Refusal>),
    /// A present node could hold it if it were empty, and no type could.
    OnlyPresent,
    /// The types that could hold it have as many nodes as they may.
    TypeLimit,
    /// There are as many nodes as there may be.
    AllLimit,
    /// The other members of its gang, or its rule of spreading, do not fit with it.
    Gang,
    /// No domain of the topology could have room for the tasks that must be in one.
    Topology,
    /// It was not decided: the work of a plan is bounded.
    Undecided,
}

/// What gets no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// Who asks for it.
    pub asker: Asker,
    /// The number of tasks or bundles. Of a gang, all of them.
    pub count: u32,
    /// The request of one of them: of a gang, one that does not fit.
    pub request: Arc<PlacementRequest>,
    /// Why.
    pub reason: Unfit,
}

/// Why a node is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// It has been idle for too long, and nothing needs it.
    Idle,
    /// Its type has more nodes than it may.
    TypeLimit,
    /// There are more nodes than there may be.
    AllLimit,
}

/// A node to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The node.
    pub node: NodeId,
    /// The index of its type.
    pub of_type: u32,
    /// How long it has been idle, in ns. 0 if it is not.
    pub idle_ns: u64,
    /// Why.
    pub cause: RemovalCause,
}

/// Tasks of a job that would be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// How long from now, in ns.
    pub after_ns: u64,
    /// The job.
    pub job: JobId,
    /// The number of tasks.
    pub tasks: u32,
}

/// A plan of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesPlan {
    /// What is planned for each type, in the order of the request.
    pub types: Vec<TypePlan>,
    /// The number of pending tasks and bundles that fit on present nodes, and on those being launched.
    pub fit_present: u64,
    /// The number of pending tasks and bundles that fit on the nodes that are needed.
    pub fit_needed: u64,
    /// What gets no node.
    pub unplaced: Vec<Unplaced>,
    /// The nodes to remove, those first that are to go first.
    pub removals: Vec<Removal>,
    /// What would be bound if all needed nodes came, and when, in order of time.
    pub starts: Vec<Start>,
    /// The jobs that have pending tasks and of which none would be bound until the horizon, in order of id.
    pub waiting: Vec<JobId>,
    /// The number of groups and placements of the service that wait and were not looked at, because there are too many.
    pub left_out: u64,
    /// The number of tasks that state no run time, and that ended in the plan as others of their kind did (see
    /// [`RUN_TIMES_MAX`](crate::limits::RUN_TIMES_MAX)).
    pub measured_ends: u64,
    /// Whether something was left out, because the work and the size of a plan are bounded.
    pub is_partial: bool,
}
