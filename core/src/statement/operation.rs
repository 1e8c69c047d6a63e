//! What a statement consists of.

use crate::ids::{AllocationId, BundleId, NodeId, OwnerId};
use crate::resource::Demand;

/// One operation of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take what is available.
    Allocate(Allocate),
    /// Claim what is being released.
    Pipeline(Pipeline),
    /// End an allocation.
    Evict(Evict),
}

impl Operation {
    /// The node that it changes, where it names one; an eviction names an allocation.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Allocate(allocate) => Some(allocate.node),
            Self::Pipeline(pipeline) => Some(pipeline.node),
            Self::Evict(_) => None,
        }
    }
}

/// Takes what is available on a node that takes new work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// The node.
    pub node: NodeId,
    /// The version of the node that the plan was made on: compared under
    /// [`Coarse`](super::ConflictDetection::Coarse). Operations of one statement on one node all name the
    /// same: what the statement itself changes does not count.
    pub expected: Option<u64>,
    /// What it takes. GPU instances and units are chosen by the shard, as for a placement.
    pub demand: Demand,
    /// The GPU instances, as a mask; chosen if none are named.
    pub gpus: Option<u16>,
    /// Whose reservation of the node it may use.
    pub owner: Option<OwnerId>,
    /// The bundle of a group that it is: later placements may be made into it.
    pub bundle: Option<BundleId>,
}

/// Claims what is being released on a node (beside what is available there): becomes an allocation
/// as soon as it fits, before anybody else is served (Volcano's Pipeline).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The node.
    pub node: NodeId,
    /// As for [`Allocate`].
    pub expected: Option<u64>,
    /// What it claims: with all other claims there no more than is available and being released,
    /// on the very instances. What the same statement evicts counts as being released.
    pub demand: Demand,
    /// The bundle of a group that it is.
    pub bundle: Option<BundleId>,
}

/// Ends an allocation, with grace: until then it is *releasing*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evict {
    /// Which.
    pub allocation: AllocationId,
    /// The version of its node, as for [`Allocate`].
    pub expected: Option<u64>,
    /// How long it has to end by itself from the commit on, in ns of the logical clock; 0: it ends
    /// at once.
    pub grace_ns: u64,
}
