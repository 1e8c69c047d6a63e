//! Placements that were granted.

use std::sync::Arc;

use crate::ids::{AllocationId, NodeId};
use crate::resource::{GpuAssignment, UnitAssignments};

/// A granted placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node that holds the allocation.
    pub node: NodeId,
    /// The id of the allocation, used to release it.
    pub allocation: AllocationId,
    /// The GPU instances, and the part of each.
    pub gpus: GpuAssignment,
    /// The selector that matched: 0 for the request's own, 1 for the first fallback, and so on.
    pub alternative: u8,
    /// The units of unit-instance kinds. Few requests ask for any.
    pub units: Option<Arc<UnitAssignments>>,
}
