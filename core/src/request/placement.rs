//! What a request is granted.

use std::sync::Arc;

use crate::ids::{AllocationId, NodeId};
use crate::resource::{GpuAssignment, UnitAssignments};

/// A granted placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// The allocation, to be released by this id.
    pub allocation: AllocationId,
    /// The GPU instances, and how much of each.
    pub gpus: GpuAssignment,
    /// Which selector holds: 0 the request's own, 1 the first fallback, and so on.
    pub alternative: u8,
    /// The units of unit-instance kinds: few requests ask for any.
    pub units: Option<Arc<UnitAssignments>>,
}
