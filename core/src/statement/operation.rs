//! The operations of a statement.

use crate::ids::{AllocationId, BundleId, NodeId, OwnerId, TenantId};
use crate::request::LeaseTerms;
use crate::resource::Demand;

/// One operation of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Takes available capacity.
    Allocate(Allocate),
    /// Claims capacity that is being released.
    Pipeline(Pipeline),
    /// Ends an allocation.
    Evict(Evict),
}

impl Operation {
    /// Returns the node that the operation changes, or `None` for an eviction, which names an allocation.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Allocate(allocate) => Some(allocate.node),
            Self::Pipeline(pipeline) => Some(pipeline.node),
            Self::Evict(_) => None,
        }
    }
}

/// Takes available capacity on a node that takes new work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// The node.
    pub node: NodeId,
    /// The version of the node that the plan was made on. Compared only under
    /// [`Coarse`](super::ConflictDetection::Coarse). All operations of a statement on one node name the same
    /// version: changes by the statement itself do not count.
    pub expected: Option<u64>,
    /// The resources that it takes. The shard chooses GPU instances and units as for a placement.
    pub demand: Demand,
    /// The GPU instances, as a mask. If `None`, the shard chooses.
    pub gpus: Option<u16>,
    /// The owner whose reservation of the node it may use.
    pub owner: Option<OwnerId>,
    /// The bundle that the allocation becomes. Later placements may be made into it.
    pub bundle: Option<BundleId>,
    /// Who the allocation will belong to.
    pub tenant: TenantId,
    /// Its lease, which begins when it is granted.
    pub lease: Option<LeaseTerms>,
}

/// Claims capacity that is available or being released on a node (Volcano's Pipeline). The claim becomes an
/// allocation as soon as it fits, before any other request is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The node.
    pub node: NodeId,
    /// The version of the node, as for [`Allocate`].
    pub expected: Option<u64>,
    /// The resources that it claims. All claims on a node together may not exceed what is available or being
    /// released, per instance. Capacity that the same statement evicts counts as being released.
    pub demand: Demand,
    /// The bundle that the allocation becomes.
    pub bundle: Option<BundleId>,
    /// Who the allocation will belong to.
    pub tenant: TenantId,
}

/// Ends an allocation after a grace period. During the grace period the allocation is *releasing*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evict {
    /// The allocation.
    pub allocation: AllocationId,
    /// The version of its node, as for [`Allocate`].
    pub expected: Option<u64>,
    /// The grace period from the commit on, in ns of the logical clock. 0 ends the allocation at once.
    pub grace_ns: u64,
}
