//! Reservations. They have their own requests to make and end them. Placements use them by naming the owner,
//! and a node's books show them.

use wharf_core::limits::CUSTOM_RESOURCES_MAX;

use super::bounded::NAME;
use super::{DemandBody, Fault, Name, NamedAmount, ReasonCode};

bodies! {
    /// Reserves a node for an owner. If the owner already has it, the new amounts and end replace the old
    /// ones. The reply is a [`ReserveReply`].
    pub struct ReserveRequest {
        /// The node's name.
        pub node: String [NAME],
        /// The owner: a number of the caller's choice, from 1 to 2^63 - 1.
        pub owner: u64,
        /// The amounts to reserve.
        pub demand: DemandBody,
        /// The duration in ns of service time, from when the reservation is made. 0 means until it is ended
        /// or used up.
        pub lasts: u64,
    }

    /// Ends an owner's reservation on a node. The reply is a [`ReserveReply`].
    pub struct EndReservationRequest {
        /// The node's name.
        pub node: String [NAME],
        /// The owner of the reservation.
        pub owner: u64,
    }

    /// Confirms that a reservation was made or ended, or carries the fault why nothing changed.
    pub struct ReserveReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The node's id. 0 if unknown.
        pub node: u64,
        /// When the reservation ends by itself, in ns of service time. 0 means never, or that it ended now.
        pub until: u64,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// The reservation of a node.
    pub struct ReservationBody {
        /// The owner.
        pub owner: u64,
        /// When the reservation ends by itself, in ns of service time. 0 means never.
        pub until: u64,
        /// The reserved amounts that are left, in 1/10,000 of the unit. The books show how much of them is
        /// free.
        pub left: Vec<NamedAmount> [CUSTOM_RESOURCES_MAX + 3],
        /// The remaining duration, in ns. 0 means that the reservation does not end by itself.
        pub lasts: u64,
        /// Resources with more reserved than the node has now. No single request can use all of such an
        /// amount there.
        pub exceeded: Vec<Name> [CUSTOM_RESOURCES_MAX + 3],
    }
}
