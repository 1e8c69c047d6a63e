//! The server: I/O threads that pass requests to the engine's ports, and the registrar's task.
//!
//! Each I/O thread has a single-threaded runtime, a UDP socket, a [`Port`] to all shards, and the connections
//! that the kernel assigns to its socket. On the path of a placement, I/O threads share only the shards'
//! rings and published tables. Node commands and status requests go to [`run_registrar`], the one owner of
//! the global records.

mod admission;
mod closing;
mod connection;
mod follow;
mod io_thread;
pub use io_thread::{IoError, IoThread, run_io_thread};
mod registrar_task;
pub use registrar_task::{RegistrarHandle, RegistrarQuestions, RegistrarTask, run_registrar};
mod operation;
mod placing;
mod planning;
mod reader;
mod requests;
mod sessions;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, Semaphore};
use wharf_core::ids::Incarnation;
use wharf_core::limits::{
    NODES_PER_MESSAGE_MAX, PLACEMENTS_PER_MESSAGE_MAX, PORT_GROUPS_WAITING_MAX, PORT_IN_FLIGHT_MAX,
    VIEW_VERSIONS_MAX,
};
use wharf_core::link::Clock;
use wharf_core::request::Policy;
#[cfg(doc)]
use wharf_core::router::Port;
use wharf_core::time::Time;

use crate::convert::PlacementDefaults;
use crate::protocol::{
    FRAME_BYTES_MAX, IN_FLIGHT_DEFAULT, Kind, LISTS_UNDER_WAY_MAX, Limits, ReasonCode, ServerIdentity,
    UNACKNOWLEDGED_MAX,
};
use admission::ConnectionRooms;
use sessions::Sessions;

/// Time that a peer has from its handshake to the end of its hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a peer has to receive the last bytes of a stream that the server ended.
const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of connections of a server, including those in their handshake.
pub const CONNECTIONS_MAX: usize = 4096;
/// Default maximum number of connections from one address: a quarter of all.
pub const CONNECTIONS_PER_ADDRESS_DEFAULT: u32 = CONNECTIONS_MAX as u32 / 4;

/// Maximum number of groups waiting at one I/O thread, over all clients.
pub const WAITING_GROUPS_MAX: u32 = PORT_GROUPS_WAITING_MAX as u32;
/// Default maximum number of groups waiting at one connection: a quarter of those of its I/O thread.
pub const WAITING_GROUPS_DEFAULT: u32 = WAITING_GROUPS_MAX / 4;

/// Settings that can change while the server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy for requests that name none.
    pub default_policy: Policy,
    /// Maximum number of unanswered requests per connection. Applies to connections opened after a change.
    pub in_flight_max: u32,
    /// Maximum number of groups waiting at one connection.
    pub waiting_groups_max: u32,
    /// Maximum number of connections per address. Applies to new connections. An IPv6 /64 network counts as
    /// one address.
    pub connections_per_address_max: u32,
    /// Requests without GPUs prefer nodes without GPUs, unless the request says otherwise.
    pub avoid_gpu_nodes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_policy: Policy::default(),
            in_flight_max: IN_FLIGHT_DEFAULT,
            waiting_groups_max: WAITING_GROUPS_DEFAULT,
            connections_per_address_max: CONNECTIONS_PER_ADDRESS_DEFAULT,
            avoid_gpu_nodes: true,
        }
    }
}

impl Settings {
    /// Returns the values for fields that a placement leaves at their defaults.
    fn placement_defaults(&self, port: &wharf_core::router::Port) -> PlacementDefaults {
        let orders = u8::try_from(port.order_count()).expect("few attribute orders are kept");
        PlacementDefaults { policy: self.default_policy, avoid_gpu: self.avoid_gpu_nodes, orders }
    }
}

/// Observes the replies of one I/O thread, on that thread.
pub trait IoObserver {
    /// Called when a request is answered, `nanos` nanoseconds after it was read. A reply with several parts
    /// is `done` as a whole. [`handle_part`](Self::handle_part) reports each part.
    fn handle_reply(&mut self, kind: Kind, reason: ReasonCode, nanos: u64);

    /// Called for each part of a batch or of a node command.
    fn handle_part(&mut self, _kind: Kind, _reason: ReasonCode) {}
}

/// An observer that does nothing.
pub struct Unobserved;

impl IoObserver for Unobserved {
    fn handle_reply(&mut self, _kind: Kind, _reason: ReasonCode, _nanos: u64) {}
}

/// Counters of the server, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Open connections.
    pub connections: AtomicU64,
    /// Connections since the start.
    pub connections_total: AtomicU64,
    /// Connections refused because the server or their address had too many.
    pub connections_refused: AtomicU64,
    /// Frames refused before their request was executed.
    pub frames_refused: AtomicU64,
    /// Placements that went on to another shard.
    pub spilled: AtomicU64,
    /// Connections that follow changes.
    pub followers: AtomicU64,
    /// Pages of changes sent to followers.
    pub follow_pages: AtomicU64,
    /// Follow steps that began from an empty state.
    pub follow_resyncs: AtomicU64,
}

/// The state that all threads of a server share.
pub struct ServerShared {
    store: [u8; 16],
    incarnation: Incarnation,
    software: String,
    started: Time,
    clock: Arc<dyn Clock + Sync>,
    resident_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    settings: ArcSwap<Settings>,
    sessions: Sessions,
    departed: follow::Departed,
    follow_versions_max: AtomicU64,
    connection_rooms: Arc<ConnectionRooms>,
    /// Permits for pages of nodes that may still be started.
    list_room: Arc<Semaphore>,
    /// Counters for metrics.
    pub counters: Counters,
}

impl ServerShared {
    /// Enters what the registrar does not know: the process, its identity and its connections.
    fn describe(&self, status: &mut crate::protocol::StatusReply) {
        status.server = self.identity();
        status.uptime = self.now().nanos_since(self.started);
        status.resident_bytes = (self.resident_bytes)();
        // Relaxed: a statistic; nothing depends on its order.
        status.connections = self.counters.connections.load(Ordering::Relaxed);
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
        Arc::new(Self {
            store,
            incarnation,
            software: concat!("wharfinger ", env!("CARGO_PKG_VERSION")).to_owned(),
            started: clock.now(),
            clock,
            resident_bytes,
            settings: ArcSwap::from_pointee(settings),
            sessions: Sessions::new(incarnation),
            departed: follow::Departed::default(),
            follow_versions_max: AtomicU64::new(VIEW_VERSIONS_MAX),
            connection_rooms: Arc::default(),
            list_room: Arc::new(Semaphore::new(LISTS_UNDER_WAY_MAX)),
            counters: Counters::default(),
        })
    }

    /// Replaces the settings.
    pub fn set_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Sets the number of versions that a shard may publish while a follower is silent. A follower that is
    /// further behind begins again. The default is a reader's bound, `VIEW_VERSIONS_MAX`.
    pub fn set_follow_versions_max(&self, versions: u64) {
        // Relaxed: a bound on memory; nothing depends on its order.
        self.follow_versions_max.store(versions, Ordering::Relaxed);
    }

    fn follow_versions_max(&self) -> u64 {
        // Relaxed: see `set_follow_versions_max`.
        self.follow_versions_max.load(Ordering::Relaxed)
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn identity(&self) -> ServerIdentity {
        ServerIdentity { store: self.store, incarnation: self.incarnation.0, software: self.software.clone() }
    }

    fn limits(&self) -> Limits {
        // At most what the port can carry, so that one connection alone never waits for itself.
        let in_flight_max = self.settings.load().in_flight_max.clamp(1, PORT_IN_FLIGHT_MAX as u32);
        Limits {
            frame_bytes_max: FRAME_BYTES_MAX,
            in_flight_max,
            unacknowledged_max: UNACKNOWLEDGED_MAX,
            placements_per_message_max: PLACEMENTS_PER_MESSAGE_MAX as u32,
            nodes_per_message_max: NODES_PER_MESSAGE_MAX as u32,
        }
    }

    fn count(counter: &AtomicU64) {
        // Relaxed: a statistic; nothing depends on its order.
        counter.fetch_add(1, Ordering::Relaxed);
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
