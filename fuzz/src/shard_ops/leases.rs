//! Leases of a run's requests.

use std::sync::Arc;

use wharf_core::ids::SessionId;
use wharf_core::request::LeaseTerms;

use super::INCARNATION;

/// The number of allocations that one command ends at most because their leases are over.
pub(super) const LEASES_ENDED: u32 = 2;

/// Returns one of two sessions.
pub(super) fn session(pick: u8) -> SessionId {
    SessionId { incarnation: INCARNATION, number: u64::from(pick % 2) + 1 }
}

/// Returns the lease that a number selects. Half of all numbers select none.
pub(super) fn lease(number: u8) -> Option<Arc<LeaseTerms>> {
    let lasts_ns = lasts(number / 8);
    let session = match number % 8 {
        0 | 1 => None,
        pick @ 2..4 => Some(session(pick)),
        _ => return None,
    };
    Some(Arc::new(LeaseTerms { lasts_ns, session }))
}

/// Returns a short time, so that many deadlines are equal.
pub(super) fn lasts(number: u8) -> u64 {
    u64::from(number % 16) * 4 + 1
}
