//! One I/O thread: a socket and a runtime around a [`ConnectionService`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use quinn::{Endpoint, Incoming, TokioRuntime, TransportConfig, VarInt};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, LocalSet};
use tracing::warn;
use wharf_core::router::Port;
use wharf_core::time::Time;

use super::admission::{ConnectionRoom, Entry};
use super::buffers::Buffers;
use super::closing::Liftable;
use super::connection::{open_restored, serve_connection};
use super::handshakes::{Begun, Handshakes};
use super::{IoObserver, NotifyWaker, RegistrarHandle, ServerShared, registrar_task};
use crate::limits::{
    BUSY_OUTPUT_BYTES, CONNECTIONS_MAX, HANDSHAKE_PATIENCE_DEFAULT, IDLE_PATIENCE_DEFAULT,
    STREAM_PATIENCE_DEFAULT,
};
use crate::protocol::SEND_WINDOW_BYTES;
use crate::session::connections::{ConnectionKey, ConnectionService, Output};
use crate::session::registrar::RegistrarReply;
use crate::session::shared::{Counters, Hangup};
use crate::tls::{ClientTrust, ServerCertificate, TlsError, server_crypto};

/// Time that a stopping server gives its peers to receive their last replies.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// How long an I/O thread waits for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time that a peer has for its handshake, from its turn on. It ends earlier if too many others have begun theirs
    /// ([`HANDSHAKES_BEGUN_MAX`](crate::limits::HANDSHAKES_BEGUN_MAX)). An attempt waits for its turn for as long at most.
    pub handshake: Duration,
    /// The time after which a connection whose peer is silent is lost. A peer may ask for a shorter time, and does so in
    /// its handshake. In whole ms, less than 2^62 ms.
    pub idle: Duration,
    /// The time that a peer has to complete a frame that it has begun, while the service reads it, and to take some of the
    /// replies that are written. Afterwards its connection is lost, although signs of life come from it.
    pub stream: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            handshake: HANDSHAKE_PATIENCE_DEFAULT,
            idle: IDLE_PATIENCE_DEFAULT,
            stream: STREAM_PATIENCE_DEFAULT,
        }
    }
}

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
    /// The authorities of clients. `None`: clients need no certificate.
    pub clients: Option<Arc<ClientTrust>>,
    /// How long it waits for peers.
    pub patience: Patience,
    /// The state that all threads share.
    pub shared: Arc<ServerShared>,
    /// The handle of the registrar.
    pub registrar: RegistrarHandle,
    /// Becomes true when the server must stop.
    pub shutdown: watch::Receiver<bool>,
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

/// Wakes the two tasks of a connection when the service has something for them.
#[derive(Default)]
pub(super) struct Signals {
    pub(super) reader: Notify,
    /// The reader does not read, because the service took no input when it looked.
    pub(super) is_paused: Cell<bool>,
    pub(super) writer: Notify,
    /// The connection is lost: nothing can be read or written any more.
    pub(super) is_lost: Cell<bool>,
}

impl Signals {
    /// Wakes those tasks for which the new state of the connection has something to do.
    fn tell(&self, service: &ConnectionService, key: ConnectionKey) {
        if service.is_input_over(key) || (self.is_paused.get() && service.wants_input(key)) {
            self.reader.notify_one();
        }
        if service.has_output(key) || service.is_settled(key) {
            self.writer.notify_one();
        }
    }
}

/// The state that the tasks of one I/O thread share.
pub(super) struct Io {
    service: RefCell<ConnectionService>,
    signals: RefCell<BTreeMap<ConnectionKey, Rc<Signals>>>,
    pub(super) shared: Arc<ServerShared>,
    registrar: RegistrarHandle,
    pub(super) shutdown: watch::Receiver<bool>,
    pub(super) patience: Patience,
    wake: Arc<Notify>,
    /// The handshakes that have begun and are not complete.
    pub(super) begun: Begun,
    /// Notified when the service has a question for the registrar.
    asking: Notify,
    /// The buffers of replies.
    pub(super) buffers: Arc<Buffers>,
}

/// Runs until shutdown. Then drains: waits until every accepted request is answered and the peers have
/// received the replies, or a few seconds have passed. Call it inside its own single-threaded runtime.
/// `observer` observes the thread's replies.
///
/// # Errors
/// Fails if the socket or the certificate cannot be used.
///
/// # Panics
/// Panics if [`Patience::idle`] is out of its range.
pub async fn run_io_thread(thread: IoThread, observer: Box<dyn IoObserver>) -> Result<(), IoError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(server_crypto(
        &thread.certificate,
        thread.clients.as_ref(),
    )?));
    let mut transport = TransportConfig::default();
    // A session uses one stream.
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    let idle = thread.patience.idle.try_into().expect("the time of patience is in range");
    transport.max_idle_timeout(Some(idle));
    // Written bytes stay in memory until they are acknowledged, and a peer may allow any amount of them.
    transport.send_window(SEND_WINDOW_BYTES as u64);
    transport.congestion_controller_factory(Arc::new(Liftable));
    config.transport_config(Arc::new(transport));
    config.max_incoming(CONNECTIONS_MAX);
    let bounds = thread.shared.sessions.bounds();
    config.incoming_buffer_size(bounds.incoming_bytes);
    config.incoming_buffer_size_total(bounds.incoming_total_bytes);
    thread.socket.set_nonblocking(true)?;
    let endpoint =
        Endpoint::new(thread.certificate.endpoint(), Some(config), thread.socket, Arc::new(TokioRuntime))?;
    let waker = Waker::from(Arc::new(NotifyWaker(Arc::clone(&thread.wake))));
    let sessions = Arc::clone(&thread.shared.sessions);
    let mut port = thread.port;
    port.run_sleeping_shards();
    let io = Rc::new(Io {
        service: RefCell::new(ConnectionService::new(port, sessions, observer, waker)),
        signals: RefCell::default(),
        shared: thread.shared,
        registrar: thread.registrar,
        shutdown: thread.shutdown,
        patience: thread.patience,
        wake: thread.wake,
        begun: Begun::default(),
        asking: Notify::new(),
        buffers: Arc::default(),
    });
    LocalSet::new().run_until(accept(io, endpoint)).await;
    Ok(())
}

impl Io {
    /// Gives the service an input, and wakes the tasks that its outputs concern.
    pub(super) fn with<T>(&self, input: impl FnOnce(&mut ConnectionService, Time) -> T) -> T {
        let mut service = self.service.borrow_mut();
        let given = input(&mut service, self.shared.now());
        let signals = self.signals.borrow();
        while let Some(key) = service.take_touched() {
            if let Some(signals) = signals.get(&key) {
                signals.tell(&service, key);
            }
        }
        if service.has_question() {
            self.asking.notify_one();
        }
        if service.take_new_deadline() {
            self.wake.notify_one();
        }
        given
    }

    /// Looks at the service.
    pub(super) fn look<T>(&self, look: impl FnOnce(&ConnectionService) -> T) -> T {
        look(&self.service.borrow())
    }

    /// Takes the replies to be sent to the peer of `key`.
    pub(super) fn take_output(&self, key: ConnectionKey) -> Output {
        let mut service = self.service.borrow_mut();
        // A connection with little output gets no buffer: many of them are idle.
        let is_busy = service.output_bytes(key) >= BUSY_OUTPUT_BYTES;
        let empty = if is_busy { self.buffers.take() } else { Vec::new() };
        service.take_output_into(key, empty)
    }

    /// Enters a connection, and returns its key and its signals.
    pub(super) fn open(
        &self,
        open: impl FnOnce(&mut ConnectionService) -> ConnectionKey,
    ) -> (ConnectionKey, Rc<Signals>) {
        let key = open(&mut self.service.borrow_mut());
        let signals = Rc::<Signals>::default();
        self.signals.borrow_mut().insert(key, Rc::clone(&signals));
        (key, signals)
    }

    /// Enters a connection without a peer for a session of the last start, if there is one left.
    pub(super) fn open_restored(&self, hangup: &Arc<dyn Hangup>) -> Option<(ConnectionKey, Rc<Signals>)> {
        let key = self.with(|service, now| service.open_restored(hangup, now))?;
        let signals = Rc::<Signals>::default();
        self.signals.borrow_mut().insert(key, Rc::clone(&signals));
        Some((key, signals))
    }

    /// Forgets the signals of a connection that was closed.
    pub(super) fn forget(&self, key: ConnectionKey) {
        self.signals.borrow_mut().remove(&key);
    }
}

async fn accept(io: Rc<Io>, endpoint: Endpoint) {
    let mut answering = tokio::task::spawn_local(answer(Rc::clone(&io)));
    let mut asking = tokio::task::spawn_local(ask(Rc::clone(&io)));
    tokio::select! {
        biased;
        () = serve(&io, &endpoint) => {
            answering.abort();
            asking.abort();
        }
        ended = &mut answering => resume_panic(ended),
        ended = &mut asking => resume_panic(ended),
    }
}

/// Resumes the panic of a task. The tasks of this thread do not panic because of a peer, so a panic is a bug and
/// stops the process.
fn resume_panic<T>(ended: Result<T, tokio::task::JoinError>) {
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic())
    }
}

async fn serve(io: &Rc<Io>, endpoint: &Endpoint) {
    let mut connections = JoinSet::new();
    let mut shutdown = io.shutdown.clone();
    for restored in open_restored(io) {
        connections.spawn_local(restored);
    }
    let mut handshakes = Handshakes::new();
    loop {
        tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => break,
            (attempt, begun) = handshakes.next(io) => {
                connections.spawn_local(serve_connection(Rc::clone(io), attempt, begun));
            }
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => {
                    if let Some((incoming, room)) = admit(&io.shared, incoming) {
                        handshakes.wait(io, incoming, room);
                    }
                }
                None => break,
            },
            Some(ended) = connections.join_next() => resume_panic(ended),
        }
    }
    drop(handshakes);
    // Each connection ends by itself once everything that it accepted is answered.
    let mut drain = async || {
        while let Some(ended) = connections.join_next().await {
            resume_panic(ended);
        }
    };
    let drained = tokio::time::timeout(SHUTDOWN_GRACE, drain()).await.is_ok();
    endpoint.close(VarInt::from_u32(0), b"shutting down");
    if !drained {
        warn!(
            "peers did not take their last replies, or the journal was full: their connections were closed"
        );
        io.with(|service, _| service.abandon_held());
        drain().await;
    }
    endpoint.wait_idle().await;
}

/// Admits a connection if there is room for it. Others are answered with one packet and leave no state.
fn admit(shared: &ServerShared, incoming: Incoming) -> Option<(Incoming, ConnectionRoom)> {
    let address = incoming.remote_address().ip();
    let per_address_max = shared.sessions.connections_per_address_max();
    match shared.connection_rooms.enter(address, incoming.remote_address_validated(), per_address_max) {
        Entry::Room(room) => return Some((incoming, room)),
        // An address that is not validated may always be asked to retry (quinn).
        Entry::Validate => incoming.retry().unwrap_or_else(|refused| refused.into_incoming().refuse()),
        Entry::Full => {
            Counters::count(&shared.sessions.counters.connections_refused);
            incoming.refuse();
        }
    }
    None
}

/// Polls the service whenever the engine has something for it, and at its deadlines.
async fn answer(io: Rc<Io>) {
    loop {
        if io.with(ConnectionService::poll) {
            // Let the writers of the connections run before the next poll.
            tokio::task::yield_now().await;
            continue;
        }
        if io.service.borrow_mut().try_sleep() {
            let deadline = io.look(ConnectionService::next_deadline);
            match deadline {
                None => io.wake.notified().await,
                Some(deadline) => {
                    let left = Duration::from_nanos(deadline.nanos_since(io.shared.now()));
                    // The next poll ends what is due, whatever woke the thread.
                    let _ = tokio::time::timeout(left, io.wake.notified()).await;
                }
            }
        }
    }
}

/// Passes questions to the registrar, and its answers back.
async fn ask(io: Rc<Io>) {
    loop {
        while io.look(ConnectionService::has_question) {
            let room = io.registrar.room().await;
            let Some((asker, request)) = io.with(ConnectionService::next_question) else { break };
            let answer = room.map(|room| registrar_task::ask(room, request));
            let io = Rc::clone(&io);
            tokio::task::spawn_local(async move {
                let answered = match answer {
                    Some(answer) => answer.await.ok(),
                    None => None,
                };
                let answer =
                    answered.unwrap_or_else(|| RegistrarReply::Fault(ConnectionService::no_registrar()));
                io.with(|service, now| service.handle_answer(asker, answer, now));
            });
        }
        io.asking.notified().await;
    }
}
