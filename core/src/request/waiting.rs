//! Placements that wait.

use super::PlacementRequest;

/// Equal placements that wait with the same priority, as far as they are counted at one shard. Each is counted at one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPlacements {
    /// What each of them asks of a node. Its policy is the default one, and it is of no tenant.
    pub request: PlacementRequest,
    /// Their priority.
    pub priority: i32,
    /// Their number. At least 1.
    pub count: u64,
}
