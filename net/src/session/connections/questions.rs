//! Questions for the registrar, and its answers.

use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::time::Time;

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
    /// Asks the registrar. The reply follows when it has answered.
    pub(super) fn ask_registrar(&mut self, asker: Asker, request: RegistrarRequest) {
        self.ask_again(asker, request, Parts::new());
    }

    /// Asks the registrar for what an earlier start did not do of a request.
    pub(super) fn ask_again(&mut self, asker: Asker, request: RegistrarRequest, done: Parts) {
        let origin = self.connections[asker.connection].origin(asker.kind, asker.sequence);
        self.asking.push_back((asker, Question { request, origin, done }));
        self.stall(asker.connection, Stalled::Ask);
    }

    /// Asks the registrar to learn these kinds. The connection is stalled until it has, and then goes on with
    /// `learning`.
    pub(super) fn ask_to_learn(&mut self, asker: Asker, names: Vec<String>, learning: Learning) {
        self.asking.push_back((asker, RegistrarRequest::Learn(names).into()));
        self.stall(asker.connection, Stalled::Learn(asker, learning));
    }

    /// Returns whether there is a question for the registrar.
    #[must_use]
    pub fn has_question(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Takes the next question for the registrar. Its answer goes to [`handle_answer`](Self::handle_answer).
    pub fn next_question(&mut self, now: Time) -> Option<(Asker, Question)> {
        let question = self.asking.pop_front()?;
        let key = question.0.connection;
        let stalled = &mut self.connections[key].stalled;
        if stalled.take_if(|stalled| matches!(stalled, Stalled::Ask)).is_some() {
            self.ready.push_back(key);
            self.settle(now);
        }
        Some(question)
    }

    /// Handles the registrar's answer, or a fault if the registrar is gone.
    pub fn handle_answer(&mut self, asker: Asker, answer: RegistrarReply, now: Time) {
        let is_lost = self.connections[asker.connection].is_lost;
        if is_lost && is_planted(PlantedBug::AnswerToLostConnectionDropped) {
            return;
        }
        let stalled = &mut self.connections[asker.connection].stalled;
        match stalled.take_if(|stalled| matches!(stalled, Stalled::Learn(of, _) if *of == asker)) {
            Some(Stalled::Learn(_, learning)) => self.handle_learnt(asker, learning, answer),
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
