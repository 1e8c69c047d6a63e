//! Unhealthy GPU instances of one node.

use crate::limits::GPU_INSTANCES_MAX;
use crate::node::Unhealthy;

/// The unhealthy instances of one node: seldom there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnhealthyBook {
    /// Bit `i` stands for instance `i`.
    pub(crate) mask: u16,
    /// The free part of each, in 1/10 000.
    pub(crate) hidden: [u16; GPU_INSTANCES_MAX],
    /// Why, ascending.
    pub(crate) reasons: Unhealthy,
}

impl UnhealthyBook {
    /// The unhealthy instances, ascending, with the reason.
    pub(crate) fn reasons(&self) -> &[(u8, std::sync::Arc<str>)] {
        &self.reasons
    }
}
