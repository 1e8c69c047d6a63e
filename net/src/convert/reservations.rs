//! Conversion between wire types and engine types: reservations.

use wharf_core::ids::{NodeId, OwnerId};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{ResourceKind, ResourceRegistry};
use wharf_core::shard::{ReservationChange, ReservationRejection, ReservationReply, Reserve};
use wharf_core::state::ReservationRecord;
use wharf_core::time::Time;

use super::books::{demand_on_node, quoted};
use super::{invalid, resource_name};
use crate::protocol::{Fault, NamedAmount, Reason, ReservationBody, ReserveReply, ReserveRequest};

/// Returns the owner that a request must name.
///
/// # Errors
/// Returns a fault if the number is 0 or one of the service's own.
pub fn reservation_owner(owner: u64) -> Result<OwnerId, Fault> {
    named_owner("owner", owner)?.ok_or_else(|| invalid("owner", "0 is nobody: give a number from 1 on"))
}

/// Returns the owner that a request names, if any. Numbers from 2^63 on belong to the service itself, which
/// reserves nodes for tickets under them.
pub(crate) fn named_owner(field: &str, owner: u64) -> Result<Option<OwnerId>, Fault> {
    if owner >> 63 == 1 {
        let message = "numbers from 2^63 on are kept for the service: give a smaller one";
        return Err(invalid(field, message));
    }
    Ok(OwnerId::new(owner))
}

/// Converts a reservation of `node`, made at `now`, to the engine's form.
///
/// # Errors
/// Returns a fault that names the field.
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
    // Reservations accept the same demands as adoptions.
    let demand = demand_on_node(wire.demand, catalog)?;
    Ok(Reserve { node, owner, demand, until })
}

fn reservation_fault(rejection: &ReservationRejection, resources: &ResourceRegistry) -> Fault {
    let mut message = rejection.to_string();
    let (reason, field) = match rejection {
        ReservationRejection::UnknownNode(_) => (Reason::UnknownNode, "node"),
        ReservationRejection::Taken(..) => (Reason::NodeReserved, "node"),
        ReservationRejection::NotReserved(..) => (Reason::NotReserved, "owner"),
        ReservationRejection::TooMuch(_, kind, _) => {
            message = quoted(&message, *kind, resources);
            let field = match kind {
                ResourceKind::Cpu => "cpu",
                ResourceKind::Memory => "memory",
                ResourceKind::Gpu => "gpu",
                ResourceKind::Custom(_) => "custom",
            };
            (Reason::ExceedsCapacity, field)
        }
        ReservationRejection::Nothing(_) => (Reason::InvalidField, "cpu"),
        ReservationRejection::DeadlinePassed(_) => (Reason::InvalidField, "lasts"),
        ReservationRejection::TooManyNodes(..) => (Reason::LimitExceeded, "node"),
    };
    Fault::of_field(reason, field, message)
}

/// Converts the reply to a reservation to the wire.
#[must_use]
pub fn reserve_reply(changed: ReservationReply, resources: &ResourceRegistry) -> ReserveReply {
    let (node, until) = match changed {
        Ok(ReservationChange::Made(view)) => (view.node, view.until),
        Ok(ReservationChange::Ended(node)) => (node, None),
        Err(rejection) => return reservation_fault(&rejection, resources).into(),
    };
    let until = until.map_or(0, |until| until.0);
    ReserveReply { reason: Reason::Done.into(), node: node.0, until, fault: None }
}

/// Converts the reservation of a node to the wire.
#[must_use]
pub fn reservation_body(view: &ReservationRecord, resources: &ResourceRegistry) -> ReservationBody {
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
