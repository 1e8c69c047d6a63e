//! What all connections of a server share: settings, sessions, counters, and views of followers that left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use wharf_core::ids::{Incarnation, SessionId, TenantId};
use wharf_core::limits::{
    NODES_PER_MESSAGE_MAX, PLACEMENTS_PER_MESSAGE_MAX, PORT_IN_FLIGHT_MAX, VIEW_VERSIONS_MAX,
};
use wharf_core::link::lock;
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::request::Policy;
use wharf_core::router::Port;
use wharf_core::state::SessionRecord;
use wharf_core::time::Time;

use super::connections::Departed;
use super::events::EventSource;
use super::waits_by_id::WaitsById;
use super::{DetachedSessions, Session, of_tenant};
use crate::access::{Access, AccessSettings, Rights};
use crate::convert::PlacementDefaults;
use crate::limits::{
    Bounds, CONNECTIONS_PER_ADDRESS_DEFAULT, HANDSHAKES_PER_SECOND_DEFAULT, SESSION_KEPT_FOR_DEFAULT,
    WAITING_GROUPS_DEFAULT,
};
use crate::protocol::{
    FRAME_BYTES_MAX, IN_FLIGHT_DEFAULT, Limits, Reason, ServerIdentity, SessionToken, UNACKNOWLEDGED_MAX,
};

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
    /// Number of handshakes that an I/O thread begins per second, from 1 on. Others wait for their turns.
    pub handshakes_per_second: u32,
    /// Requests without GPUs prefer nodes without GPUs, unless the request says otherwise.
    pub avoid_gpu_nodes: bool,
    /// The time after which a session without a connection ends. Time does not pass while the service is down.
    pub session_kept_for: Duration,
    /// Bounds that no setting of a service changes.
    pub bounds: Bounds,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_policy: Policy::default(),
            in_flight_max: IN_FLIGHT_DEFAULT,
            waiting_groups_max: WAITING_GROUPS_DEFAULT,
            connections_per_address_max: CONNECTIONS_PER_ADDRESS_DEFAULT,
            handshakes_per_second: HANDSHAKES_PER_SECOND_DEFAULT,
            avoid_gpu_nodes: true,
            session_kept_for: SESSION_KEPT_FOR_DEFAULT,
            bounds: Bounds::default(),
        }
    }
}

impl Settings {
    /// Returns the values for fields that a placement leaves at their defaults.
    #[inline]
    pub(super) fn placement_defaults(&self, port: &Port, session: Option<&Session>) -> PlacementDefaults {
        let orders = u8::try_from(port.order_count()).expect("few attribute orders are kept");
        let tenant = session.map_or(TenantId::OPERATOR, Session::tenant);
        let session = session.map(Session::id);
        PlacementDefaults {
            policy: self.default_policy,
            avoid_gpu: self.avoid_gpu_nodes,
            orders,
            session,
            tenant,
        }
    }
}

/// Counters of the server, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections in their handshake, or waiting for it.
    pub handshakes: AtomicU64,
    /// Connections that wait for their handshake.
    pub handshakes_waiting: AtomicU64,
    /// Open connections.
    pub connections: AtomicU64,
    /// Connections since the start.
    pub connections_total: AtomicU64,
    /// Connections refused because the server or their address had too many.
    pub connections_refused: AtomicU64,
    /// Frames refused before their request was executed.
    pub frames_refused: AtomicU64,
    /// Requests refused because they could not be done before their deadline.
    pub shed: AtomicU64,
    /// Times that the sessions of an I/O thread began to hold more than [their total](crate::limits::HELD_BYTES_MAX).
    pub held_full: AtomicU64,
    /// Placements that went on to another shard.
    pub spillbacks: AtomicU64,
    /// Connections that follow changes.
    pub followers: AtomicU64,
    /// Pages of changes sent to followers.
    pub follow_pages: AtomicU64,
    /// Follow steps that began from an empty state.
    pub follow_resyncs: AtomicU64,
    /// Connections that follow events.
    pub event_followers: AtomicU64,
    /// Pages of events sent to followers.
    pub event_pages: AtomicU64,
}

impl Counters {
    /// Adds one to `counter`.
    pub(crate) fn count(counter: &AtomicU64) {
        // Relaxed: a statistic; nothing depends on its order.
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the token of a new session.
pub type MakeToken = Box<dyn Fn() -> SessionToken + Send + Sync>;

/// The state that the [`ConnectionService`](super::connections::ConnectionService)s of a server share.
pub struct SessionShared {
    store: [u8; 16],
    incarnation: Incarnation,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    /// Who may do what.
    access: ArcSwap<Access>,
    /// How often `access` was replaced.
    access_version: AtomicU64,
    pub(super) sessions: Sessions,
    pub(super) waits: WaitsById,
    pub(super) departed: Departed,
    follow_versions_max: AtomicU64,
    /// Where events come from, if there is a journal.
    events: OnceLock<Arc<dyn EventSource>>,
    /// The number of I/O threads so far.
    threads: AtomicU64,
    /// Counters for metrics.
    pub counters: Counters,
}

impl SessionShared {
    /// Creates the shared state for this store and this start of the service.
    #[must_use]
    pub fn new(store: [u8; 16], incarnation: Incarnation, settings: Settings, make_token: MakeToken) -> Self {
        Self {
            store,
            incarnation,
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            access: ArcSwap::default(),
            access_version: AtomicU64::new(0),
            sessions: Sessions::new(incarnation, make_token),
            waits: WaitsById::default(),
            departed: Departed::default(),
            follow_versions_max: AtomicU64::new(VIEW_VERSIONS_MAX),
            events: OnceLock::new(),
            threads: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Replaces who may do what. Connections follow with their next request.
    pub fn set_access(&self, settings: &AccessSettings) {
        self.access.store(Arc::new(Access::new(settings, Some(&self.access.load()))));
        // Release: pairs with the acquire in `access_version`, so that who sees the version finds the rights.
        self.access_version.fetch_add(1, Ordering::Release);
    }

    /// Returns how often the rights were replaced.
    #[inline]
    pub(super) fn access_version(&self) -> u64 {
        // Acquire: see `set_access`.
        self.access_version.load(Ordering::Acquire)
    }

    /// Returns what a peer with these names in its certificate may do.
    pub(super) fn rights(&self, names: &[String]) -> Arc<Rights> {
        self.access.load().rights(names)
    }

    /// Restores the sessions that earlier starts kept. From `now` on, they wait for their clients.
    pub fn restore_sessions(&self, sessions: Vec<SessionRecord>, now: Time) {
        let mut inner = lock(&self.sessions.inner);
        for record in sessions {
            let session = Session::restore(record);
            if session.has_waits() {
                inner.waits.push_back(session.id());
            }
            inner.detached.restore(session, now);
        }
    }

    /// Returns how long a session without a connection is kept, in nanoseconds.
    pub(super) fn session_kept_nanos(&self) -> u64 {
        u64::try_from(self.settings.load().session_kept_for.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time at which a session ends because its client stays away, if there is one.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        Some(self.sessions.oldest_detached()?.plus_nanos(self.session_kept_nanos()))
    }

    /// Ends the sessions whose clients have stayed away for too long. Returns them.
    pub(super) fn expire_sessions(&self, now: Time) -> Vec<SessionId> {
        match now.0.checked_sub(self.session_kept_nanos()) {
            Some(since) => self.sessions.expire(Time(since)),
            None => Vec::new(),
        }
    }

    /// Returns the records of all sessions without a connection. A connection that did not end in time loses its session:
    /// what it still had under way has no outcome.
    #[must_use]
    pub fn session_records(&self) -> Vec<SessionRecord> {
        lock(&self.sessions.inner).detached.records()
    }

    /// Replaces the settings.
    pub fn set_settings(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Sets where events come from. Without a source, requests for events are refused. Only the first call has an effect.
    pub fn set_events(&self, source: Arc<dyn EventSource>) {
        let _ = self.events.set(source);
    }

    pub(super) fn events(&self) -> Option<Arc<dyn EventSource>> {
        self.events.get().cloned()
    }

    /// Returns the number of a new I/O thread.
    pub(super) fn next_thread(&self) -> u64 {
        // Relaxed: a number that nobody else gets; nothing depends on its order.
        self.threads.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the maximum number of connections per address.
    pub(crate) fn connections_per_address_max(&self) -> u32 {
        self.settings.load().connections_per_address_max
    }

    /// Returns the number of handshakes that an I/O thread begins per second.
    pub(crate) fn handshakes_per_second(&self) -> u32 {
        self.settings.load().handshakes_per_second.max(1)
    }

    /// Returns the bounds that no setting of a service changes.
    pub(crate) fn bounds(&self) -> Bounds {
        self.settings.load().bounds
    }

    /// Sets the number of versions that a shard may publish while a follower is silent. A follower that is
    /// further behind begins again. The default is a reader's bound, `VIEW_VERSIONS_MAX`.
    pub fn set_follow_versions_max(&self, versions: u64) {
        // Relaxed: a bound on memory; nothing depends on its order.
        self.follow_versions_max.store(versions, Ordering::Relaxed);
    }

    pub(super) fn follow_versions_max(&self) -> u64 {
        // Relaxed: see `set_follow_versions_max`.
        self.follow_versions_max.load(Ordering::Relaxed)
    }

    /// Returns the identity of this server.
    pub fn identity(&self) -> ServerIdentity {
        let software = concat!("wharfinger ", env!("CARGO_PKG_VERSION")).to_owned();
        ServerIdentity { store: self.store, incarnation: self.incarnation.0, software }
    }

    pub(super) fn limits(&self) -> Limits {
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
}

/// Adds `waker` to those that wait, unless it is one of them.
fn add(waiting: &mut Vec<Waker>, waker: &Waker) {
    if !waiting.iter().any(|other| other.will_wake(waker)) {
        waiting.push(waker.clone());
    }
}

/// Closes a connection from any thread, because its session continues on another.
pub trait Hangup: Send + Sync {
    /// Closes the connection with this code and reason.
    fn hang_up(&self, code: u32, reason: &'static [u8]);
}

struct Attached {
    token: SessionToken,
    connection: Arc<dyn Hangup>,
}

struct Registry {
    detached: DetachedSessions,
    attached: BTreeMap<SessionId, Attached>,
    /// The newest connection that waits for each session.
    claims: BTreeMap<SessionId, Arc<dyn Hangup>>,
    /// Woken when a session leaves its connection.
    waiting: Vec<Waker>,
    /// Sessions of earlier starts with requests that wait. They may have been resumed meanwhile.
    waits: VecDeque<SessionId>,
}

/// All sessions of a server. Each is attached to a connection, or kept until its client returns.
///
/// A client may return before the server notices that the old connection is gone, for example after a NAT
/// timeout or a network change. The holder of the token is the client. The server closes the old connection,
/// answers everything in progress there, and then continues the session on the new connection. Refusing it
/// until a timeout would leave the client without its outcomes. Of several connections that wait for a session,
/// the newest gets it, and the others are closed.
pub(super) struct Sessions {
    inner: Mutex<Registry>,
    /// The number of sessions that have left their connection.
    left: AtomicU64,
    make_token: MakeToken,
}

/// An attempt to resume a session.
pub(super) struct Claim<'a> {
    pub(super) id: SessionId,
    pub(super) token: SessionToken,
    pub(super) connection: &'a Arc<dyn Hangup>,
    /// Wakes the connection's thread.
    pub(super) waker: &'a Waker,
}

/// The result of an attempt to resume a session.
pub(super) enum Resumed {
    /// The session, which is attached now.
    Session(Session),
    /// Another connection still has the session. It is told to end.
    Attached,
    /// A newer connection resumes the session.
    Superseded,
    /// The session is unknown, or the token is wrong.
    Unknown,
}

impl Sessions {
    fn new(incarnation: Incarnation, make_token: MakeToken) -> Self {
        let detached = DetachedSessions::new(incarnation);
        let inner = Registry {
            detached,
            attached: BTreeMap::new(),
            claims: BTreeMap::new(),
            waiting: Vec::new(),
            waits: VecDeque::new(),
        };
        let left = AtomicU64::new(0);
        Self { inner: Mutex::new(inner), left, make_token }
    }

    /// Returns the number of sessions that have left their connection.
    pub(super) fn sessions_left(&self) -> u64 {
        // Acquire: pairs with the release in `leave`, so that a thread that sees the number finds the session.
        self.left.load(Ordering::Acquire)
    }

    /// Tells those that wait for a session that one has left its connection.
    fn leave(&self, mut inner: MutexGuard<'_, Registry>) {
        // Release: see `sessions_left`.
        self.left.fetch_add(1, Ordering::Release);
        inner.waiting.drain(..).for_each(Waker::wake);
    }

    /// Opens a new session of a tenant at `connection`.
    pub(super) fn open(&self, tenant: TenantId, connection: &Arc<dyn Hangup>) -> Session {
        let token = of_tenant((self.make_token)(), tenant);
        let mut inner = lock(&self.inner);
        let session = inner.detached.open(token);
        inner.attach(&session, connection);
        session
    }

    /// Attaches a session of an earlier start, with requests that wait, to `connection`. Returns `None` if there is no
    /// further one.
    pub(super) fn take_waiting(&self, connection: &Arc<dyn Hangup>) -> Option<Session> {
        let mut inner = lock(&self.inner);
        while let Some(id) = inner.waits.pop_front() {
            if let Some(session) = inner.detached.take_out(id) {
                inner.attach(&session, connection);
                return Some(session);
            }
        }
        None
    }

    /// Resumes a session. The connection takes precedence over all older ones. If another connection has the session,
    /// the waker is woken when a session leaves its connection. The caller must then call [`retry`](Self::retry).
    pub(super) fn resume(&self, claim: &Claim<'_>) -> Resumed {
        let mut inner = lock(&self.inner);
        if !inner.knows(claim.id, &claim.token) {
            return Resumed::Unknown;
        }
        if let Some(attached) = inner.attached.get(&claim.id) {
            hang_up(&attached.connection);
        }
        if let Some(older) = inner.claims.insert(claim.id, Arc::clone(claim.connection)) {
            hang_up(&older);
        }
        inner.take(claim)
    }

    /// Tries again to resume a session that was at another connection.
    pub(super) fn retry(&self, claim: &Claim<'_>) -> Resumed {
        let mut inner = lock(&self.inner);
        if inner.is_claimed_by(claim.id, claim.connection) || is_planted(PlantedBug::OlderConnectionResumes) {
            inner.take(claim)
        } else {
            Resumed::Superseded
        }
    }

    /// Ends the wait of `connection` for a session.
    pub(super) fn withdraw(&self, id: SessionId, connection: &Arc<dyn Hangup>) {
        let mut inner = lock(&self.inner);
        if inner.is_claimed_by(id, connection) {
            inner.claims.remove(&id);
        }
    }

    /// Forgets a session that its client ended and whose replies the client has.
    pub(super) fn close(&self, session: &Session) {
        let mut inner = lock(&self.inner);
        inner.attached.remove(&session.id());
        self.leave(inner);
    }

    /// Keeps a session whose connection is gone. Returns the sessions that were dropped for it.
    pub(super) fn detach(&self, session: Session, now: Time) -> Vec<SessionId> {
        let mut inner = lock(&self.inner);
        inner.attached.remove(&session.id());
        let dropped = inner.detached.detach(session, now);
        self.leave(inner);
        dropped
    }

    /// Returns since when the session that was detached first has had no connection, if there is one.
    pub(super) fn oldest_detached(&self) -> Option<Time> {
        lock(&self.inner).detached.oldest()
    }

    /// Ends the sessions that have had no connection since `since` or longer. Returns them.
    fn expire(&self, since: Time) -> Vec<SessionId> {
        lock(&self.inner).detached.expire(since)
    }
}

fn hang_up(connection: &Arc<dyn Hangup>) {
    let code = u32::from(Reason::SessionResumed.number());
    connection.hang_up(code, b"the session was resumed on another connection");
}

impl Registry {
    fn knows(&self, id: SessionId, token: &SessionToken) -> bool {
        let is_attached = self.attached.get(&id).is_some_and(|attached| attached.token == *token);
        is_attached || self.detached.has(id, token)
    }

    fn is_claimed_by(&self, id: SessionId, connection: &Arc<dyn Hangup>) -> bool {
        self.claims.get(&id).is_some_and(|claimant| Arc::ptr_eq(claimant, connection))
    }

    /// Attaches a session to the connection that claims it, if no other connection has it.
    fn take(&mut self, claim: &Claim<'_>) -> Resumed {
        if self.attached.contains_key(&claim.id) {
            add(&mut self.waiting, claim.waker);
            return Resumed::Attached;
        }
        self.claims.remove(&claim.id);
        let Some(session) = self.detached.resume(claim.id, &claim.token) else { return Resumed::Unknown };
        self.attach(&session, claim.connection);
        Resumed::Session(session)
    }

    fn attach(&mut self, session: &Session, connection: &Arc<dyn Hangup>) {
        let attached = Attached { token: session.token(), connection: Arc::clone(connection) };
        let before = self.attached.insert(session.id(), attached);
        assert!(before.is_none(), "session {} is at two connections", session.id());
    }
}

#[cfg(test)]
mod tests;
