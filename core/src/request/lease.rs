//! The lease that a placement asks for.

use crate::ids::SessionId;

/// A time to live of an allocation, counted from its grant. When it runs out without a renewal, the shard ends the
/// allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The time to live, in ns.
    pub lasts_ns: u64,
    /// The session that the lease belongs to. One renewal is for all leases of a session. `None`: the lease is renewed
    /// by its allocation.
    pub session: Option<SessionId>,
}
