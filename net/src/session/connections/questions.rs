//! Questions for the registrar, and its answers.

use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::time::Time;

use super::input::{Asked, read_body};
use super::placing::Learning;
use super::{ConnectionKey, ConnectionService, Stalled};
use crate::protocol::{Fault, Kind, Reason};
use crate::session::Parts;
use crate::session::registrar::{Question, RegistrarReply, RegistrarRequest};

/// A request in progress: who asked what, and when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The connection that asks.
    pub connection: ConnectionKey,
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    pub(super) started: Time,
    /// When its result is of no use any more.
    pub(super) due: Time,
}

impl ConnectionService {
    /// Executes a new request that the registrar serves.
    pub(super) fn handle_question(&mut self, asker: Asker, asked: &Asked<'_>) -> Result<(), Fault> {
        let request = match asker.kind {
            Kind::AddNodes => RegistrarRequest::Add(read_body(asked)?),
            Kind::UpdateNodes => RegistrarRequest::Update(read_body(asked)?),
            Kind::DrainNodes => RegistrarRequest::Drain(read_body(asked)?),
            Kind::RemoveNodes => RegistrarRequest::Remove(read_body(asked)?),
            Kind::ListNodes => RegistrarRequest::List(read_body(asked)?),
            Kind::Status => RegistrarRequest::Status(read_body(asked)?),
            Kind::Report => RegistrarRequest::Report(Box::new(self.read_scoped(asker, asked)?)),
            Kind::Heartbeat => RegistrarRequest::Heartbeat(read_body(asked)?),
            Kind::Adopt => RegistrarRequest::Adopt(read_body(asked)?),
            Kind::SetResources => RegistrarRequest::SetResources(read_body(asked)?),
            Kind::NodeBooks => RegistrarRequest::Books(read_body(asked)?),
            Kind::Reserve => RegistrarRequest::Reserve(read_body(asked)?),
            Kind::EndReservation => RegistrarRequest::EndReservation(read_body(asked)?),
            Kind::Export => RegistrarRequest::Export(read_body(asked)?),
            other => unreachable!("{other:?} is not the registrar's"),
        };
        self.ask_registrar(asked.timed(asker), request, Parts::new());
        Ok(())
    }

    /// Asks the registrar for a request, of which an earlier start has done `done`. The reply follows when it has answered.
    pub(super) fn ask_registrar(&mut self, asker: Asker, request: RegistrarRequest, done: Parts) {
        let origin = self.connections[asker.connection].origin(asker.kind, asker.sequence);
        self.asking.push_back((asker, Question { request, origin, due: asker.due, done }));
        self.stall(asker.connection, Stalled::Ask);
    }

    /// Asks the registrar to learn these kinds. The connection is stalled until it has, and then goes on with
    /// `learning`.
    pub(super) fn ask_to_learn(&mut self, asker: Asker, names: Vec<String>, learning: Learning) {
        let question = Question { due: asker.due, ..RegistrarRequest::Learn(names).into() };
        self.asking.push_back((asker, question));
        self.stall(asker.connection, Stalled::Learn(asker, learning));
    }

    /// Returns whether there is a question for the registrar.
    #[must_use]
    pub fn has_question(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Takes the next question for the registrar. Its answer goes to [`handle_answer`](Self::handle_answer). Questions that
    /// are too late are refused and left out.
    pub fn next_question(&mut self, now: Time) -> Option<(Asker, Question)> {
        loop {
            let (asker, question) = self.asking.pop_front()?;
            let is_late = self.sheds(asker, now);
            let stalled = &mut self.connections[asker.connection].stalled;
            let goes_on = stalled.take_if(|stalled| match stalled {
                Stalled::Ask => true,
                // No answer will come if the registrar is not asked.
                Stalled::Learn(of, _) => is_late && *of == asker,
                _ => false,
            });
            let was_stalled = goes_on.is_some();
            if was_stalled {
                self.ready.push_back(asker.connection);
            }
            if was_stalled || is_late {
                self.settle(now);
            }
            if !is_late {
                return Some((asker, question));
            }
        }
    }

    /// Handles the registrar's answer, or a fault if the registrar is gone.
    pub fn handle_answer(&mut self, asker: Asker, answer: RegistrarReply, now: Time) {
        let is_lost = self.connections[asker.connection].is_lost;
        if is_lost && is_planted(PlantedBug::AnswerToLostConnectionDropped) {
            return;
        }
        let stalled = &mut self.connections[asker.connection].stalled;
        match stalled.take_if(|stalled| matches!(stalled, Stalled::Learn(of, _) if *of == asker)) {
            Some(Stalled::Learn(_, learning)) => self.handle_learnt(asker, learning, answer, now),
            _ => self.answer_with(asker, answer, now),
        }
        self.settle(now);
    }

    /// Returns the fault for questions to a registrar that has ended.
    #[must_use]
    pub fn no_registrar() -> Fault {
        Fault::new(Reason::Unavailable, "the registrar is gone: the service is shutting down")
    }

    /// Sends the registrar's answer as the reply.
    fn answer_with(&mut self, asker: Asker, answer: RegistrarReply, now: Time) {
        match answer {
            RegistrarReply::Nodes(reply) => self.answer(asker, &reply, now),
            RegistrarReply::List(reply) => self.answer(asker, &reply, now),
            RegistrarReply::Status(reply) => self.answer(asker, &*reply, now),
            RegistrarReply::Report(reply) => self.answer(asker, &reply, now),
            RegistrarReply::Heartbeat(reply) => self.answer(asker, &reply, now),
            RegistrarReply::Books(reply) => self.answer(asker, &*reply, now),
            RegistrarReply::Reserved(reply) => self.answer(asker, &*reply, now),
            RegistrarReply::Adopted(reply) => self.answer(asker, &*reply, now),
            RegistrarReply::Export(reply) => self.answer(asker, &*reply, now),
            RegistrarReply::Fault(fault) => self.answer_fault(asker, &fault, now),
            RegistrarReply::Learnt | RegistrarReply::Exported(_) => {
                unreachable!("no connection asks for this alone")
            }
        }
    }
}
