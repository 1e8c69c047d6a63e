//! Between wire types and the engine's: reservations.

use wharf_core::ids::{NodeId, OwnerId};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{ResourceKind, ResourceRegistry};
use wharf_core::shard::{Outcome, Rejection, ReservationView, Reserve};
use wharf_core::time::Time;

use crate::convert::{invalid, resource_name};
use crate::convert_books::{demand_on_node, named_rejection_fault};
use crate::protocol::{Fault, NamedAmount, Reason, ReservationBody, ReserveReply, ReserveRequest};

/// The owner that a request must name.
///
/// # Errors
/// The fault, where it names nobody.
pub fn reservation_owner(owner: u64) -> Result<OwnerId, Fault> {
    named_owner("owner", owner)?.ok_or_else(|| invalid("owner", "0 is nobody: give a number from 1 on"))
}

/// The owner that a request names, if it names one. The upper half of the numbers is the service's
/// own: a statement that lost too often reserves under one of them.
pub(crate) fn named_owner(field: &str, owner: u64) -> Result<Option<OwnerId>, Fault> {
    if owner >> 63 == 1 {
        let message = "numbers from 2^63 on are kept for the service: give a smaller one";
        return Err(invalid(field, message));
    }
    Ok(OwnerId::new(owner))
}

/// The engine's form of a reservation of `node`, made at `now`.
///
/// # Errors
/// The fault, naming the field.
pub fn reservation(
    wire: ReserveRequest,
    node: NodeId,
    catalog: &Catalog,
    now: Time,
) -> Result<Reserve, Fault> {
    let owner = reservation_owner(wire.owner)?;
    let until =
        match wire.lasts {
            0 => None,
            lasts => Some(now.0.checked_add(lasts).filter(|&until| until < u64::MAX).map(Time).ok_or_else(
                || invalid("lasts", "that is longer than time is counted: give less, or 0 for no end"),
            )?),
        };
    // What can be adopted can be reserved, and is checked alike.
    let demand = demand_on_node(wire.demand, catalog)?;
    Ok(Reserve { node, owner, demand, until })
}

/// The field of a reservation that a rejection is about.
fn field(rejection: &Rejection) -> Option<&'static str> {
    match rejection {
        Rejection::ReservedTooMuch { kind, .. } => Some(match kind {
            ResourceKind::Cpu => "cpu",
            ResourceKind::Memory => "memory",
            ResourceKind::Gpu => "gpu",
            ResourceKind::Custom(_) => "custom",
        }),
        Rejection::UnknownNode(_) => Some("node"),
        _ => None,
    }
}

/// A reply to a reservation that was not made or ended.
#[must_use]
pub fn refused_reservation(fault: Fault) -> ReserveReply {
    ReserveReply { reason: fault.reason, fault: Some(fault), ..ReserveReply::default() }
}

/// The reply that a shard's outcome is.
///
/// # Panics
/// When it is no outcome of a reservation.
#[must_use]
pub fn reserve_reply(outcome: &Outcome, resources: &ResourceRegistry) -> ReserveReply {
    match outcome {
        Outcome::Reserved(view) => ReserveReply {
            reason: Reason::Done.into(),
            node: view.node.0,
            until: view.until.map_or(0, |until| until.0),
            fault: None,
        },
        Outcome::ReservationEnded(node) => {
            ReserveReply { reason: Reason::Done.into(), node: node.0, ..ReserveReply::default() }
        }
        Outcome::Rejected(rejection) => {
            let mut fault = named_rejection_fault(rejection, resources);
            fault.field = field(rejection).map_or(fault.field, str::to_owned);
            refused_reservation(fault)
        }
        other => unreachable!("no outcome of a reservation: {other:?}"),
    }
}

/// The reservation of a node, for the wire.
#[must_use]
pub fn reservation_body(view: &ReservationView, resources: &ResourceRegistry) -> ReservationBody {
    let left = &view.left;
    let known =
        [(ResourceKind::Cpu, left.cpu), (ResourceKind::Memory, left.memory), (ResourceKind::Gpu, left.gpu)];
    let custom = left.custom.iter().map(|&(id, amount)| (ResourceKind::Custom(id), amount));
    let named = |(kind, amount): (ResourceKind, wharf_core::resource::Amount)| NamedAmount {
        name: resource_name(kind, resources),
        amount: amount.units(),
    };
    let left = known.into_iter().chain(custom).filter(|(_, amount)| !amount.is_zero()).map(named).collect();
    let until = view.until.map_or(0, |until| until.0);
    ReservationBody { owner: view.owner.number(), until, left, ..ReservationBody::default() }
}
