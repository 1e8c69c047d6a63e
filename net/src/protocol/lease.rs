//! Messages about leases. A placement asks for one with its field `lease`.

use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;

use super::{Fault, ReasonCode, WireAllocation, WireSession};

bodies! {
    /// Renews leases: those of single allocations, those of a session, or both. A lease that lasts longer already is not
    /// shortened.
    pub struct RenewRequest {
        /// The time that the leases last from now on, in ns, at most 365 days.
        pub lease: u64,
        /// Allocations with leases of their own.
        pub allocations: Vec<WireAllocation> [PLACEMENTS_PER_MESSAGE_MAX],
        /// The session whose leases are renewed, for example that of the hello's reply.
        pub session: Option<WireSession>,
    }

    /// The outcome for one allocation.
    pub struct RenewedBody {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The fault, if any.
        pub fault: Option<Fault>,
        /// The time until which the lease lasts, in ns of service time.
        pub until: u64,
    }

    /// The outcome for a session.
    #[derive(Copy)]
    pub struct SessionRenewed {
        /// The number of allocations whose leases were renewed. 0 if the session has none.
        pub allocations: u64,
        /// The time until which all these leases last, in ns of service time.
        pub until: u64,
    }

    /// The outcomes of a renewal.
    pub struct RenewReply {
        /// One outcome per allocation, in order.
        pub replies: Vec<RenewedBody> [PLACEMENTS_PER_MESSAGE_MAX],
        /// The outcome for the session, if one was named.
        pub session: Option<SessionRenewed>,
    }
}
