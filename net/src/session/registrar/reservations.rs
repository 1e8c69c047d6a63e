//! Reservations at the registrar's task: resolves the node's name and sends the command to its shard.

use wharf_core::registrar::{Catalog, RegistrarError};
use wharf_core::reply::reply_of;
use wharf_core::shard::{Command, Outcome};
use wharf_core::time::Time;

use super::{Planned, RegistrarReply, RegistrarService};
use crate::convert::{reservation, reservation_owner, reserve_reply};
use crate::protocol::{EndReservationRequest, Fault, ReserveRequest};

impl<T> RegistrarService<T> {
    pub(super) fn handle_reserve(&mut self, request: ReserveRequest, reply: T) {
        let planned = self.plan_reserve(request);
        self.start_one(planned, reserved, reply);
    }

    pub(super) fn handle_end_reservation(&mut self, request: &EndReservationRequest, reply: T) {
        let planned = reservation_owner(request.owner).and_then(|owner| {
            let registrar = &self.registrar;
            let (node, partition) = registrar.resolve(&request.node).map_err(of_node)?;
            Ok((partition, Command::EndReservation(node, owner), node))
        });
        self.start_one(planned, reserved, reply);
    }

    fn plan_reserve(&self, request: ReserveRequest) -> Planned {
        let registrar = &self.registrar;
        let (node, partition) = registrar.resolve(&request.node).map_err(of_node)?;
        let reserve = reservation(request, node, &self.catalog.load(), self.now)?;
        Ok((partition, Command::Reserve(Box::new(reserve)), node))
    }
}

fn reserved(outcome: Result<Outcome, Fault>, catalog: &Catalog, _: Time) -> RegistrarReply {
    let reply = outcome.map(|outcome| reserve_reply(reply_of(outcome), &catalog.resources));
    RegistrarReply::Reserved(Box::new(reply.unwrap_or_else(Into::into)))
}

/// Returns the fault for a node that a request names in its field `node`.
pub(super) fn of_node(error: RegistrarError) -> Fault {
    Fault { field: "node".to_owned(), ..error.into() }
}
