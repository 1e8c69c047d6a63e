//! Unhealthy GPU instances of one node.

use crate::limits::GPU_INSTANCES_MAX;
use crate::node::Unhealthy;

/// The unhealthy instances of one node. Most nodes have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnhealthyBook {
    /// Bit `i` is set if instance `i` is unhealthy.
    pub(crate) mask: u16,
    /// The free part of each unhealthy instance, in 1/10,000. New work cannot use it.
    pub(crate) hidden: [u16; GPU_INSTANCES_MAX],
    /// The reasons, in ascending order of instance.
    pub(crate) reasons: Unhealthy,
}

impl UnhealthyBook {
    /// Returns the unhealthy instances in ascending order, each with its reason.
    pub(crate) fn reasons(&self) -> &[(u8, std::sync::Arc<str>)] {
        &self.reasons
    }
}
