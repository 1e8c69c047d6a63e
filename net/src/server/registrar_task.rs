//! The registrar's task: carries requests to the [`RegistrarService`], and its answers back.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc, oneshot};
use wharf_core::registrar::{Catalog, Registrar};
use wharf_core::router::Port;

use super::ServerShared;
use crate::limits::QUEUE_MAX;
use crate::protocol::Fault;
use crate::session::connections::ConnectionService;
use crate::session::registrar::{Question, RegistrarReply, RegistrarRequest, RegistrarService};

/// A question, and where its answer goes.
pub(super) type Asked = (Question, oneshot::Sender<RegistrarReply>);

/// A handle to the registrar's task.
#[derive(Clone, Debug)]
pub struct RegistrarHandle(mpsc::Sender<Asked>);

impl RegistrarHandle {
    /// Creates a handle, and the questions for the task.
    #[must_use]
    pub fn channel() -> (Self, RegistrarQuestions) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Self(sender), RegistrarQuestions(receiver))
    }

    /// Asks a question; the receiver gets the answer. Questions begin in the order in which they are asked.
    ///
    /// # Errors
    /// When the task has ended.
    pub async fn ask(&self, request: RegistrarRequest) -> Result<oneshot::Receiver<RegistrarReply>, Fault> {
        let room = self.room().await.ok_or_else(ConnectionService::no_registrar)?;
        Ok(ask(room, request.into()))
    }

    /// Waits for room for one question. Returns `None` if the task has ended.
    pub(super) async fn room(&self) -> Option<mpsc::Permit<'_, Asked>> {
        self.0.reserve().await.ok()
    }
}

/// Asks a question for which there is room. Returns the receiver of the answer.
pub(super) fn ask(room: mpsc::Permit<'_, Asked>, question: Question) -> oneshot::Receiver<RegistrarReply> {
    let (reply, answer) = oneshot::channel();
    room.send((question, reply));
    answer
}

/// The receiving end of the requests to the task.
pub struct RegistrarQuestions(mpsc::Receiver<Asked>);

/// The resources of the task.
pub struct RegistrarTask {
    /// The global records.
    pub registrar: Registrar,
    /// The task's port: the only one that sends node commands.
    pub port: Port,
    /// Notified by the port's waker.
    pub wake: Arc<Notify>,
    /// The place where the catalog is published.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// Shared by all threads.
    pub shared: Arc<ServerShared>,
}

/// Runs until it is told to stop, or every handle is dropped; returns the registrar.
pub async fn run_registrar(task: RegistrarTask, mut questions: RegistrarQuestions) -> Registrar {
    let RegistrarTask { registrar, port, wake, catalog, shared } = task;
    let mut service = RegistrarService::new(registrar, port, catalog);
    loop {
        service.poll(shared.now());
        service.proceed(shared.now());
        deliver(&mut service, &shared);
        if service.is_stopped() {
            return service.registrar;
        }
        let port = &mut service.port;
        let bell = Arc::clone(port.bell());
        if !bell.sleep_if(|| port.is_idle()) {
            continue;
        }
        let has_room = service.has_room();
        let deadline = service.next_deadline().filter(|_| has_room);
        let patience = deadline.map(|at| Duration::from_nanos(at.nanos_since(shared.now())));
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => {}
            question = questions.0.recv(), if has_room => match question {
                Some((question, reply)) => match (question.request, shared.exports.get()) {
                    (RegistrarRequest::Export(request), Some(exports)) => {
                        exports.ask(request, question.due, Box::new(|page| drop(reply.send(page.into()))));
                    }
                    (request, _) => {
                        service.handle(Question { request, ..question }, reply, shared.now());
                    }
                },
                None => return service.registrar,
            },
        }
    }
}

fn deliver(service: &mut RegistrarService<oneshot::Sender<RegistrarReply>>, shared: &ServerShared) {
    for (asker, mut reply) in service.take_answers() {
        if let RegistrarReply::Status(status) = &mut reply {
            shared.describe(status);
        }
        // An asker that stopped waiting does not need the answer.
        let _ = asker.send(reply);
    }
}
