//! One I/O thread: accepts connections, submits their requests to its port, and returns the replies.

use std::cell::{Cell, RefCell};
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, Incoming, TokioRuntime, TransportConfig, VarInt};
use slab::Slab;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinSet, LocalSet};
use tracing::warn;
use wharf_core::group::PlanReply;
use wharf_core::limits::{PLANS_IN_FLIGHT_MAX, PORT_GROUPS_WAITING_MAX, PORT_IN_FLIGHT_MAX};
use wharf_core::router::{Port, PortReply, PortRequest, Tag, WaitEnd};
use wharf_core::time::Time;

use super::admission::{ConnectionRoom, Entry};
use super::closing::Liftable;
use super::connection::serve_connection;
use super::follow::{self, Follow};
use super::operation::{Operation, Parts};
use super::{IoObserver, RegistrarHandle, ServerShared};
use crate::protocol::{Kind, ReasonCode, SEND_WINDOW_BYTES};
use crate::session::tags::{split_tag, tag};
use crate::tls::{ServerCertificate, TlsError, server_crypto};

/// Time that a stopping server gives its peers to receive their last replies.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Maximum number of planner jobs in progress at one I/O thread, without waiting groups.
const PLAN_ROOM: usize = PLANS_IN_FLIGHT_MAX - PORT_GROUPS_WAITING_MAX;

/// The parts of an I/O thread.
pub struct IoThread {
    /// Its socket. Several threads share an address with `SO_REUSEPORT`.
    pub socket: UdpSocket,
    /// Its port to the shards.
    pub port: Port,
    /// The notification that the port's waker triggers.
    pub wake: Arc<Notify>,
    /// The certificate.
    pub certificate: Arc<ServerCertificate>,
    /// The state that all threads share.
    pub shared: Arc<ServerShared>,
    /// The handle of the registrar.
    pub registrar: RegistrarHandle,
    /// Becomes true when the server must stop.
    pub shutdown: watch::Receiver<bool>,
    /// Observes the thread's replies.
    pub observer: Box<dyn IoObserver>,
}

/// The error when an I/O thread cannot start.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket cannot be used.
    #[error("the UDP socket cannot be used: {0}")]
    Socket(#[from] std::io::Error),
}

/// The state that the tasks of one I/O thread share.
pub(super) struct Io {
    pub(super) port: RefCell<Port>,
    pub(super) operations: RefCell<Slab<Operation>>,
    /// Permits for requests that may still enter the port, granted in order of arrival.
    pub(super) room: Semaphore,
    /// Permits for planner jobs that may still enter the port.
    pub(super) plan_room: Semaphore,
    /// Permits for groups that may still wait.
    pub(super) group_room: Semaphore,
    pub(super) shared: Arc<ServerShared>,
    pub(super) registrar: RegistrarHandle,
    pub(super) shutdown: watch::Receiver<bool>,
    /// The connections that follow changes.
    pub(super) followers: RefCell<Vec<Rc<Follow>>>,
    observer: RefCell<Box<dyn IoObserver>>,
    wake: Arc<Notify>,
    /// The port's spilled placements that are already counted.
    spilled: Cell<u64>,
    /// Candidates of the requests that wait at the port.
    pub(super) candidates_waiting: Cell<usize>,
    /// Buffer that is reused from poll to poll.
    replies: RefCell<Vec<(Tag, PortReply)>>,
}

/// Runs until shutdown. Then drains: waits until every accepted request is answered and the peers have
/// received the replies, or a few seconds have passed. Call it inside its own single-threaded runtime.
///
/// # Errors
/// Fails if the socket or the certificate cannot be used.
pub async fn run_io_thread(thread: IoThread) -> Result<(), IoError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(server_crypto(&thread.certificate)?));
    let mut transport = TransportConfig::default();
    // A session uses one stream.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    // Written bytes stay in memory until they are acknowledged, and a peer may allow any amount of them.
    transport.send_window(SEND_WINDOW_BYTES as u64);
    transport.congestion_controller_factory(Arc::new(Liftable));
    config.transport_config(Arc::new(transport));
    thread.socket.set_nonblocking(true)?;
    let endpoint =
        Endpoint::new(EndpointConfig::default(), Some(config), thread.socket, Arc::new(TokioRuntime))?;
    let io = Rc::new(Io {
        port: RefCell::new(thread.port),
        operations: RefCell::new(Slab::new()),
        room: Semaphore::new(PORT_IN_FLIGHT_MAX),
        plan_room: Semaphore::new(PLAN_ROOM),
        group_room: Semaphore::new(PORT_GROUPS_WAITING_MAX),
        shared: thread.shared,
        registrar: thread.registrar,
        shutdown: thread.shutdown,
        followers: RefCell::new(Vec::new()),
        observer: RefCell::new(thread.observer),
        wake: thread.wake,
        spilled: Cell::new(0),
        candidates_waiting: Cell::new(0),
        replies: RefCell::new(Vec::new()),
    });
    LocalSet::new().run_until(accept(io, endpoint)).await;
    Ok(())
}

async fn accept(io: Rc<Io>, endpoint: Endpoint) {
    let mut answering = tokio::task::spawn_local(answer(Rc::clone(&io)));
    tokio::select! {
        biased;
        () = serve(&io, &endpoint) => answering.abort(),
        ended = &mut answering => resume_panic(ended),
    }
}

/// Resumes the panic of a task. Connection tasks and the answering task do not panic because of a peer, so a
/// panic is a bug and stops the process.
fn resume_panic<T>(ended: Result<T, tokio::task::JoinError>) {
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic())
    }
}

async fn serve(io: &Rc<Io>, endpoint: &Endpoint) {
    let mut connections = JoinSet::new();
    let mut shutdown = io.shutdown.clone();
    loop {
        tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => break,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => {
                    if let Some((incoming, room)) = admit(&io.shared, incoming) {
                        let io = Rc::clone(io);
                        connections.spawn_local(async move {
                            serve_connection(io, incoming).await;
                            drop(room);
                        });
                    }
                }
                None => break,
            },
            Some(ended) = connections.join_next() => resume_panic(ended),
        }
    }
    // Each connection ends by itself once everything that it accepted is answered.
    let mut drain = async || {
        while let Some(ended) = connections.join_next().await {
            resume_panic(ended);
        }
    };
    let drained = tokio::time::timeout(SHUTDOWN_GRACE, drain()).await.is_ok();
    endpoint.close(VarInt::from_u32(0), b"shutting down");
    if !drained {
        warn!("peers did not take their last replies: their connections were closed");
        drain().await;
    }
    endpoint.wait_idle().await;
}

/// Admits a connection if there is room for it. Others are answered with one packet and leave no state.
fn admit(shared: &ServerShared, incoming: Incoming) -> Option<(Incoming, ConnectionRoom)> {
    let address = incoming.remote_address().ip();
    let per_address_max = shared.settings.load().connections_per_address_max;
    match shared.connection_rooms.enter(address, incoming.remote_address_validated(), per_address_max) {
        Entry::Room(room) => return Some((incoming, room)),
        // An address that is not validated may always be asked to retry (quinn).
        Entry::Validate => incoming.retry().unwrap_or_else(|refused| refused.into_incoming().refuse()),
        Entry::Full => {
            ServerShared::count(&shared.counters.connections_refused);
            incoming.refuse();
        }
    }
    None
}

/// Takes the engine's answers and hands the replies to their connections.
async fn answer(io: Rc<Io>) {
    loop {
        let told = follow::handle_news(&io);
        if io.poll_port() > 0 || told {
            // Deadlines must also fire while answers keep coming.
            let now = io.shared.now();
            let due = io.port.borrow().next_deadline().is_some_and(|deadline| deadline <= now);
            if due {
                io.end_waits(now);
            }
            // Let the writers of the connections run before the next poll.
            tokio::task::yield_now().await;
            continue;
        }
        let asleep = {
            let mut port = io.port.borrow_mut();
            let bell = Arc::clone(port.bell());
            bell.sleep_if(|| port.is_idle())
        };
        if asleep {
            let deadline = io.port.borrow().next_deadline();
            match deadline {
                None => io.wake.notified().await,
                Some(deadline) => {
                    let left = Duration::from_nanos(deadline.nanos_since(io.shared.now()));
                    if tokio::time::timeout(left, io.wake.notified()).await.is_err() {
                        io.end_waits(io.shared.now());
                    }
                }
            }
        }
    }
}

/// Returns whether a waiting request was ended early and this is its answer. For a group that was removed
/// meanwhile, the removal is the outcome instead.
fn is_taken_back(reply: &PortReply) -> bool {
    match reply {
        PortReply::WaitEnded(WaitEnd::Cancelled, ..) => true,
        PortReply::Plan(reply) => matches!(**reply, PlanReply::Cancelled),
        _ => false,
    }
}

impl Io {
    /// Enters an operation. Its parts can be submitted afterwards.
    pub(super) fn enter(&self, operation: Operation) -> usize {
        let candidates = operation.parts.candidates();
        let waits = matches!(operation.parts, Parts::Wait(..));
        if candidates > 0 {
            operation.connection.holds_candidates(candidates, waits);
            let of_port = &self.candidates_waiting;
            of_port.set(of_port.get() + if waits { candidates } else { 0 });
        }
        self.operations.borrow_mut().insert(operation)
    }

    /// Submits one part. The caller has taken room for it.
    pub(super) fn submit(&self, operation: usize, part: usize, request: PortRequest, now: Time) {
        let at_once = self.port.borrow_mut().submit(tag(operation, part), request, now);
        if let Some(reply) = at_once.expect("room was taken before") {
            self.handle_reply(operation, part, reply, now)
        }
    }

    fn poll_port(&self) -> usize {
        let now = self.shared.now();
        let mut replies = self.replies.take();
        let taken = {
            let mut port = self.port.borrow_mut();
            let taken = port.poll(now, |tag, reply| replies.push((tag, reply)));
            // Spilled requests went to the rings of other shards.
            port.flush();
            // All threads share the counter, so each adds only the growth of its own port.
            let spilled = port.spilled();
            let before = self.spilled.replace(spilled);
            if spilled > before {
                // Relaxed: a statistic; nothing depends on its order.
                self.shared.counters.spilled.fetch_add(spilled - before, Ordering::Relaxed);
            }
            taken
        };
        for (tag, reply) in replies.drain(..) {
            let (operation, part) = split_tag(tag);
            self.handle_reply(operation, part, reply, now);
        }
        self.replies.replace(replies);
        taken
    }

    /// Answers the waits whose deadline has passed.
    fn end_waits(&self, now: Time) {
        let mut ended = Vec::new();
        self.port.borrow_mut().end_waits(now, |tag, reply| ended.push((tag, reply)));
        for (tag, reply) in ended {
            let (operation, part) = split_tag(tag);
            self.handle_reply(operation, part, reply, now);
        }
    }

    pub(super) fn handle_reply(&self, key: usize, part: usize, reply: PortReply, now: Time) {
        let mut operations = self.operations.borrow_mut();
        let operation = &mut operations[key];
        let waited = operation.waits();
        let kind = operation.kind();
        let question = operation.is_question();
        let is_taken_back = is_taken_back(&reply);
        match operation.parts {
            Parts::Wait(..) => {}
            Parts::WaitGroup(..) => {
                self.group_room.add_permits(1);
                operation.connection.counts_group(false);
            }
            Parts::Plan(..) | Parts::AskPlan(_) => self.plan_room.add_permits(1),
            _ => self.room.add_permits(1),
        }
        let complete = {
            let mut port = self.port.borrow_mut();
            operation.handle_part(part, reply, port.catalog())
        };
        if question {
            operations.remove(key);
        }
        let Some(complete) = complete else { return };
        let Operation { connection, sequence, started, parts } = operations.remove(key);
        drop(operations);
        let candidates = parts.candidates();
        if candidates > 0 {
            connection.drops_candidates(candidates, waited);
            let of_port = &self.candidates_waiting;
            of_port.set(of_port.get() - if waited { candidates } else { 0 });
        }
        if waited && connection.ends_wait(sequence, is_taken_back) {
            return;
        }
        complete.answer(&connection, kind, sequence);
        self.observe(kind, complete.reason(), now.nanos_since(started));
        self.observe_parts(kind, complete.part_reasons().into_iter());
    }

    pub(super) fn observe_parts(&self, kind: Kind, reasons: impl Iterator<Item = ReasonCode>) {
        let mut observer = self.observer.borrow_mut();
        for reason in reasons {
            observer.handle_part(kind, reason);
        }
    }

    pub(super) fn observe(&self, kind: Kind, reason: ReasonCode, nanos: u64) {
        self.observer.borrow_mut().handle_reply(kind, reason, nanos);
    }
}
