//! Conversion between wire types and engine types: leases.

use std::sync::Arc;

use wharf_core::ids::SessionId;
use wharf_core::limits::LEASE_NS_MAX;
use wharf_core::request::LeaseTerms;
use wharf_core::shard::{LeaseRejection, RenewedLease, RenewedSession};

use super::invalid;
use crate::protocol::{Fault, PlaceRequest, Reason, RenewedBody, SessionRenewed};

/// Checks the time that a lease lasts.
///
/// # Errors
/// Returns a fault that names `lease`.
pub fn lease_lasts(lease: u64) -> Result<u64, Fault> {
    if (1..=LEASE_NS_MAX).contains(&lease) {
        return Ok(lease);
    }
    Err(invalid("lease", format!("{lease} ns: give 1 to {LEASE_NS_MAX} (365 days)")))
}

/// Returns the lease that a placement asks for. `session` is the one that asks, if there is any.
pub(super) fn lease_terms(
    wire: &PlaceRequest,
    session: Option<SessionId>,
) -> Result<Option<Arc<LeaseTerms>>, Fault> {
    if wire.lease == 0 {
        return match wire.session_lease {
            false => Ok(None),
            true => Err(invalid("session_lease", "the request asks for no lease: give `lease`, or leave it")),
        };
    }
    let lasts_ns = lease_lasts(wire.lease)?;
    let session = session.filter(|_| wire.session_lease);
    if wire.session_lease && session.is_none() {
        return Err(invalid("session_lease", "no session asks: leave it"));
    }
    Ok(Some(Arc::new(LeaseTerms { lasts_ns, session })))
}

/// Returns the outcome of the renewal of one lease.
#[must_use]
pub fn renewed_body(renewed: Result<RenewedLease, LeaseRejection>) -> RenewedBody {
    let rejection = match renewed {
        Ok(renewed) => return RenewedBody { until: renewed.until.0, ..RenewedBody::default() },
        Err(rejection) => rejection,
    };
    let reason = match rejection {
        LeaseRejection::UnknownAllocation(_) => Reason::UnknownAllocation,
        LeaseRejection::NoLease(_) => Reason::NoLease,
        LeaseRejection::OfSession(..) => Reason::LeaseOfSession,
    };
    Fault::of_field(reason, "allocations", rejection.to_string()).into()
}

/// Returns the outcome of the renewal of a session's leases.
pub(crate) fn session_renewed(renewed: RenewedSession) -> SessionRenewed {
    let RenewedSession { allocations, until } = renewed;
    SessionRenewed { allocations, until: until.map_or(0, |until| until.0) }
}
