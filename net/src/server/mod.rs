//! The server: I/O threads that carry requests to the engine's ports, and the registrar's task.
//!
//! Each I/O thread has a single-threaded runtime, a UDP socket, a [`Port`] to all shards and
//! the connections that the kernel gives its socket. Nothing on the road of a placement is
//! shared between I/O threads but the shards' rings and published tables. Node commands and
//! status go to the one owner of the global records, [`run_registrar`].

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

/// How long a peer may take from its handshake to its whole hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long a peer may take to take the last bytes of a stream that the server ended.
const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(5);
/// Connections of a server at a time, those in their handshake included.
pub const CONNECTIONS_MAX: usize = 4096;
/// Connections from one address at a time, unless configured otherwise: a quarter of all.
pub const CONNECTIONS_PER_ADDRESS_DEFAULT: u32 = CONNECTIONS_MAX as u32 / 4;

/// Groups that may wait at one I/O thread, whosever they are.
pub const WAITING_GROUPS_MAX: u32 = PORT_GROUPS_WAITING_MAX as u32;
/// Groups that may wait at one connection, unless configured otherwise: a quarter of those of its I/O thread.
pub const WAITING_GROUPS_DEFAULT: u32 = WAITING_GROUPS_MAX / 4;

/// What can change while the server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy of requests that name none.
    pub default_policy: Policy,
    /// Unanswered requests of one connection, for connections opened from now on.
    pub in_flight_max: u32,
    /// Groups that may wait at one connection.
    pub waiting_groups_max: u32,
    /// Connections that one address may have, of those that come from now on. An IPv6 network of 64 bits counts
    /// as one address.
    pub connections_per_address_max: u32,
    /// Whether requests that ask for no GPU go on nodes without GPUs first, unless they say.
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
    /// What a placement gets where it asks for nothing else.
    fn placement_defaults(&self, port: &wharf_core::router::Port) -> PlacementDefaults {
        let orders = u8::try_from(port.order_count()).expect("few attribute orders are kept");
        PlacementDefaults { policy: self.default_policy, avoid_gpu: self.avoid_gpu_nodes, orders }
    }
}

/// Watches the replies of one I/O thread, on that thread.
pub trait IoObserver {
    /// A request was answered, so many nanoseconds after it was read. A reply with several
    /// parts is `done` as a whole; what became of each is told by
    /// [`handle_part`](Self::handle_part).
    fn handle_reply(&mut self, kind: Kind, reason: ReasonCode, nanos: u64);

    /// One part of a batch or of a node command was answered.
    fn handle_part(&mut self, _kind: Kind, _reason: ReasonCode) {}
}

/// Watches nothing.
pub struct Unobserved;

impl IoObserver for Unobserved {
    fn handle_reply(&mut self, _kind: Kind, _reason: ReasonCode, _nanos: u64) {}
}

/// Counters of the server, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections since the start.
    pub connections_total: AtomicU64,
    /// Connections that were refused for want of room, in all or for their address.
    pub connections_refused: AtomicU64,
    /// Frames that were refused before their request was looked at.
    pub frames_refused: AtomicU64,
    /// Placements that went on to another shard.
    pub spilled: AtomicU64,
    /// Connections that follow changes.
    pub followers: AtomicU64,
    /// Pages of changes that followers were given.
    pub follow_pages: AtomicU64,
    /// Steps that began with nothing.
    pub follow_resyncs: AtomicU64,
}

/// What all threads of a server share.
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
    /// Pages of nodes that may still be under way.
    list_room: Arc<Semaphore>,
    /// For metrics.
    pub counters: Counters,
}

impl ServerShared {
    /// Enters what the registrar does not know: the process, its identity and its connections.
    fn describe(&self, status: &mut crate::protocol::StatusReply) {
        status.server = self.identity();
        status.uptime = self.now().nanos_since(self.started);
        status.resident_bytes = (self.resident_bytes)();
        // Relaxed: a statistic, nothing rests on it.
        status.connections = self.counters.connections.load(Ordering::Relaxed);
    }

    /// What a server of this store and start shares.
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

    /// Exchanges the settings.
    pub fn set_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// After so many versions of a shard, a follower that has asked for nothing meanwhile begins anew: a
    /// reader's bound (`VIEW_VERSIONS_MAX`) unless this is called.
    pub fn set_follow_versions_max(&self, versions: u64) {
        // Relaxed: a bound on memory, nothing else rests on it.
        self.follow_versions_max.store(versions, Ordering::Relaxed);
    }

    fn follow_versions_max(&self) -> u64 {
        // Relaxed: as where it is set.
        self.follow_versions_max.load(Ordering::Relaxed)
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn identity(&self) -> ServerIdentity {
        ServerIdentity { store: self.store, incarnation: self.incarnation.0, software: self.software.clone() }
    }

    fn limits(&self) -> Limits {
        // No more than the port can carry: one connection alone never waits for itself.
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
        // Relaxed: a statistic, nothing rests on it.
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

/// A notification and the waker that triggers it: the waker goes to
/// [`Engine::open`](wharf_core::engine::Engine::open), the notification to the port's owner.
#[must_use]
pub fn port_owner() -> (Arc<Notify>, Waker) {
    let notify = Arc::new(Notify::new());
    (Arc::clone(&notify), Waker::from(Arc::new(NotifyWaker(notify))))
}
