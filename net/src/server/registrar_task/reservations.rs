//! Reservations at the registrar's task: resolves the node's name and sends the command to its shard.

use tokio::sync::oneshot;
use wharf_core::shard::Command;

use super::{Desk, Planned, RegistrarReply};
use crate::convert::{refused_reservation, registrar_fault, reservation, reservation_owner};
use crate::protocol::{EndReservationRequest, Fault, ReserveRequest};

impl Desk {
    pub(super) fn handle_reserve(&mut self, request: ReserveRequest, reply: oneshot::Sender<RegistrarReply>) {
        let planned = self.plan_reserve(request);
        self.start_reservation(planned, reply);
    }

    pub(super) fn handle_end_reservation(
        &mut self,
        request: &EndReservationRequest,
        reply: oneshot::Sender<RegistrarReply>,
    ) {
        let planned = reservation_owner(request.owner).and_then(|owner| {
            let registrar = &self.task.registrar;
            let (node, partition) =
                registrar.resolve(&request.node).map_err(|e| of_node(registrar_fault(&e)))?;
            Ok((partition, Command::EndReservation(node, owner), node))
        });
        self.start_reservation(planned, reply);
    }

    fn plan_reserve(&self, request: ReserveRequest) -> Planned {
        let registrar = &self.task.registrar;
        let (node, partition) = registrar.resolve(&request.node).map_err(|e| of_node(registrar_fault(&e)))?;
        let reserve = reservation(request, node, &self.task.catalog.load(), self.task.shared.now())?;
        Ok((partition, Command::Reserve(Box::new(reserve)), node))
    }

    fn start_reservation(&mut self, planned: Planned, reply: oneshot::Sender<RegistrarReply>) {
        match planned {
            Ok((partition, command, _)) => self.start_one(partition, command, reply),
            Err(fault) => {
                let refused = RegistrarReply::Reserved(Box::new(refused_reservation(fault)));
                // The asker may have stopped waiting.
                drop(reply.send(refused));
            }
        }
    }
}

fn of_node(fault: Fault) -> Fault {
    Fault { field: "node".to_owned(), ..fault }
}
