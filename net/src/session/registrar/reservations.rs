//! Reservations at the registrar's task: resolves the node's name and sends the command to its shard.

use wharf_core::shard::Command;

use super::{Planned, RegistrarReply, RegistrarService};
use crate::convert::{refused_reservation, registrar_fault, reservation, reservation_owner};
use crate::protocol::{EndReservationRequest, Fault, ReserveRequest};

impl<T> RegistrarService<T> {
    pub(super) fn handle_reserve(&mut self, request: ReserveRequest, reply: T) {
        let planned = self.plan_reserve(request);
        self.start_reservation(planned, reply);
    }

    pub(super) fn handle_end_reservation(&mut self, request: &EndReservationRequest, reply: T) {
        let planned = reservation_owner(request.owner).and_then(|owner| {
            let registrar = &self.registrar;
            let (node, partition) =
                registrar.resolve(&request.node).map_err(|e| of_node(registrar_fault(&e)))?;
            Ok((partition, Command::EndReservation(node, owner), node))
        });
        self.start_reservation(planned, reply);
    }

    fn plan_reserve(&self, request: ReserveRequest) -> Planned {
        let registrar = &self.registrar;
        let (node, partition) = registrar.resolve(&request.node).map_err(|e| of_node(registrar_fault(&e)))?;
        let reserve = reservation(request, node, &self.catalog.load(), self.now)?;
        Ok((partition, Command::Reserve(Box::new(reserve)), node))
    }

    fn start_reservation(&mut self, planned: Planned, reply: T) {
        match planned {
            Ok((partition, command, _)) => self.start_one(partition, command, reply),
            Err(fault) => {
                let refused = RegistrarReply::Reserved(Box::new(refused_reservation(fault)));
                self.answer(reply, refused);
            }
        }
    }
}

fn of_node(fault: Fault) -> Fault {
    Fault { field: "node".to_owned(), ..fault }
}
