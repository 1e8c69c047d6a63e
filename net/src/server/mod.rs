//! The server: sockets and tasks around the state machines of [`session`](crate::session).
//!
//! Each I/O thread has a single-threaded runtime, a UDP socket, a [`Port`] to all shards, and the connections
//! that the kernel assigns to its socket. On the path of a placement, I/O threads share only the shards'
//! rings and published tables. Node commands and status requests go to [`run_registrar`], the one owner of
//! the global records.

mod admission;
mod buffers;
mod closing;
mod connection;
mod exports;
pub use exports::{ExportAnswer, Exports};
mod handshakes;
mod io_thread;
pub use io_thread::{IoError, IoThread, Patience, run_io_thread};
mod registrar_task;
pub use registrar_task::{RegistrarHandle, RegistrarQuestions, RegistrarTask, run_registrar};

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

use tokio::sync::Notify;
use wharf_core::ids::Incarnation;
use wharf_core::link::Clock;
#[cfg(doc)]
use wharf_core::router::Port;
use wharf_core::time::Time;

use crate::limits::PEER_FAULT_LINES_MAX;
use crate::log_limit::LogLimit;
pub use crate::session::connections::{IoObserver, Unobserved};
pub use crate::session::shared::{Counters, SessionShared, Settings};
use crate::tls::random_token;
use admission::ConnectionRooms;

/// The state that all threads of a server share.
pub struct ServerShared {
    /// The state that the connections share: settings, sessions, counters.
    pub sessions: Arc<SessionShared>,
    started: Time,
    clock: Arc<dyn Clock + Sync>,
    resident_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    connection_rooms: Arc<ConnectionRooms>,
    /// For lines about connections that ended for a fault of their peers.
    peer_faults: LogLimit,
    exports: OnceLock<Arc<dyn Exports>>,
}

impl ServerShared {
    /// Enters what the registrar does not know: the process, its identity and its connections.
    fn describe(&self, status: &mut crate::protocol::StatusReply) {
        status.server = self.sessions.identity();
        status.uptime = self.now().nanos_since(self.started);
        status.resident_bytes = (self.resident_bytes)();
        // Relaxed: a statistic; nothing depends on its order.
        status.connections = self.sessions.counters.connections.load(Ordering::Relaxed);
    }

    /// Creates the shared state for this store and this start of the service.
    #[must_use]
    pub fn new(
        store: [u8; 16],
        incarnation: Incarnation,
        clock: Arc<dyn Clock + Sync>,
        resident_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
        settings: Settings,
    ) -> Arc<Self> {
        let sessions = SessionShared::new(store, incarnation, settings, Box::new(random_token));
        Arc::new(Self {
            sessions: Arc::new(sessions),
            started: clock.now(),
            clock,
            resident_bytes,
            connection_rooms: Arc::default(),
            peer_faults: LogLimit::new(PEER_FAULT_LINES_MAX),
            exports: OnceLock::new(),
        })
    }

    /// Sets who serves exports. Only the first call has an effect. Without it, requests for exports are refused.
    pub fn set_exports(&self, exports: Arc<dyn Exports>) {
        let _ = self.exports.set(exports);
    }

    fn now(&self) -> Time {
        self.clock.now()
    }
}

/// Wakes the task that waits on a [`Notify`].
struct NotifyWaker(Arc<Notify>);

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// Creates a notification and the waker that triggers it. The waker goes to
/// [`Engine::open`](wharf_core::engine::Engine::open), the notification to the port's owner.
#[must_use]
pub fn port_owner() -> (Arc<Notify>, Waker) {
    let notify = Arc::new(Notify::new());
    (Arc::clone(&notify), Waker::from(Arc::new(NotifyWaker(notify))))
}
