//! A running service.
//!
//! Threads: one per shard (pinned if possible), one per I/O thread, one per planner, one for the registrar, and the
//! caller's thread for metrics and signals. With a journal, one writes it, one makes checkpoints, and one reads events. The
//! next start continues from the newest checkpoint and the journal after it, with any number of shards.

pub(crate) mod certificate;
pub use certificate::{DEVELOPMENT_CERTIFICATE, client_certificate, read_certificates};
mod clock;
mod events;
mod journal;
mod reload;
pub use clock::ServiceClock;
pub use journal::EXIT_JOURNAL_FAILED;

mod threads;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, watch};
use tracing::{error, info, warn};
use wharf_core::broken::Broken;
use wharf_core::engine::{Engine, EngineError};
use wharf_core::executor::ShardRunner;
use wharf_core::hash::StateHash;
use wharf_core::ids::Incarnation;
use wharf_core::jobs::JobsRecord;
use wharf_core::link::{Clock, StopSignal, ThreadWaker};
use wharf_core::planner::{Planner, PlannerRunner};
use wharf_core::recovery::TakenBack;
use wharf_core::registrar::Registrar;
use wharf_core::shard::Shard;
use wharf_core::state::{GroupRecord, StoreState};
use wharf_net::limits::SOCKET_BYTES;
use wharf_net::server::{
    IoError, IoThread, Patience, RegistrarHandle, RegistrarTask, ServerShared, port_owner, run_io_thread,
    run_registrar,
};
use wharf_net::session::registrar::{RegistrarReply, RegistrarRequest};
use wharf_net::socket;
use wharf_net::tls::{ClientTrust, ServerCertificate, TlsError};

use crate::config::Config;
use crate::default_queue;
use crate::file_error::FileError;
use crate::journal::{
    Durability, JournalBounds, JournalCounters, JournalLoops, JournalStart, Recovery, Store,
};
use crate::metrics::{JournalFigures, Metrics};
use events::EventsBell;
use journal::Journal;
use threads::Pinning;

/// The least room for received packets of a socket with which nobody is warned, in bytes.
const RECEIVE_BYTES_MIN: usize = 1 << 20;

/// An error of starting, reloading or stopping a service.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The data directory or the certificate cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The certificate is rejected by TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be served.
    #[error("cannot serve on {address}: {error} (is another service there? `listen` chooses the address)")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// The number of shards or ports is out of range, or a resource kind would change between plain and
    /// unit-instance.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The books of the store are not those that an engine writes.
    #[error(
        "the books of this store break an invariant: {0}; nothing was changed; import an export, or restore both \
         files of the store from a copy"
    )]
    Books(#[from] Broken),
    /// A thread cannot be started.
    #[error("cannot start thread `{name}`: {error}")]
    Thread {
        /// The thread's name.
        name: String,
        /// The cause.
        error: std::io::Error,
    },
    /// An I/O thread failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The disk was full until the end.
    #[error(
        "the disk of the journal is full: the last {lost} units of changes are not written, and none of them was \
         acknowledged; the next start has everything up to append {last}"
    )]
    JournalFull {
        /// The last append.
        last: u64,
        /// Units that are not written.
        lost: u64,
    },
    /// The checkpoint of a clean stop cannot be written.
    #[error("{error}; the checkpoint of this stop is not written, so the next start {}", next_start(*has_journal))]
    LastCheckpoint {
        /// The cause.
        error: FileError,
        /// The journal has all that the checkpoint would have.
        has_journal: bool,
    },
    /// A thread panicked because of a bug.
    #[error("thread `{0}` stopped by a bug: see the log")]
    Panicked(String),
}

fn next_start(has_journal: bool) -> &'static str {
    if has_journal { "continues from the journal" } else { "has empty books" }
}

/// How long a start took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// Reading the store: the checkpoint, and the journal after it.
    pub store: Duration,
    /// Checking what was read, and opening the engine over it.
    pub engine: Duration,
    /// All of the start, until requests are taken.
    pub total: Duration,
}

/// A running service.
pub struct Daemon {
    /// The served address, with the actual port if the system chose it.
    pub address: SocketAddr,
    /// The certificates that a client must trust to connect.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The handle of the registrar.
    pub registrar: RegistrarHandle,
    /// How long its start took.
    pub start_times: StartTimes,
    certificate: Arc<ServerCertificate>,
    clients: Option<Arc<ClientTrust>>,
    config: Config,
    shared: Arc<ServerShared>,
    clock: ServiceClock,
    incarnation: Incarnation,
    shutdown: watch::Sender<bool>,
    failed: Arc<Notify>,
    stop: StopSignal,
    io_threads: Vec<JoinHandle<Result<(), IoError>>>,
    registrar_thread: JoinHandle<Registrar>,
    shard_threads: Vec<JoinHandle<Shard>>,
    planner_stop: StopSignal,
    planner_threads: Vec<JoinHandle<Planner>>,
    /// The thread that plans nodes, and what stops it.
    nodes_planner: Option<(StopSignal, JoinHandle<()>)>,
    /// Groups of the store that no planner serves.
    groups: Vec<GroupRecord>,
    /// The queues and jobs of the store if nobody keeps them.
    jobs: JobsRecord,
    store: Arc<Store>,
    journal: Option<Journal>,
}

impl Daemon {
    /// Starts a service.
    ///
    /// # Errors
    /// When the data directory, the certificate or the address cannot be used. The checkpoint of the last run
    /// then stays valid.
    pub fn start(config: Config) -> Result<Self, DaemonError> {
        let begun = Instant::now();
        let mut start_times = StartTimes::default();
        let (mut store, mut state) = Store::open(&config.data_dir, config.partitions, config.durability)?;
        start_times.store = begun.elapsed();
        let (chain, key) = certificate::load_or_create(&config.data_dir, config.tls.as_ref())?;
        let certificate = ServerCertificate::new(chain.clone(), key)?;
        let clients = match &config.clients {
            Some(files) => {
                let (authorities, revoked) = certificate::load_authorities(files)?;
                Some(ClientTrust::new(&authorities, revoked)?)
            }
            None => None,
        };
        let sockets = bind(config.listen, config.io_threads)?;
        warn_of_small_buffers(&sockets);
        let address =
            sockets[0].local_addr().map_err(|error| DaemonError::Bind { address: config.listen, error })?;
        let (wakes, mut wakers): (Vec<_>, Vec<_>) = (0..=config.io_threads).map(|_| port_owner()).unzip();
        let has_journal = config.engine.journal;
        // The last port belongs to the checkpoints.
        let checkpoint_waker = Arc::new(ThreadWaker::default());
        if has_journal {
            wakers.push(Waker::from(Arc::clone(&checkpoint_waker)));
        }
        let nodes: usize = state.partitions.iter().map(|partition| partition.nodes.len()).sum();
        let opening = Instant::now();
        let books = check_books(&state, store.recovery().appends > 0)?;
        if let Some(queue) = &config.access.default_queue
            && let Some(fault) = default_queue::fault_in_store(queue, &state.jobs)
        {
            warn!("what names no queue is refused for now: {fault}");
        }
        let globals = state.globals();
        let sessions = std::mem::take(&mut state.sessions);
        let pinning = Pinning::plan(config.pin, config.io_threads, config.engine.shards);
        let mut engine = Engine::open_with(state, &config.engine, wakers, |shards| {
            threads::open_shards(&pinning, shards)
        })?;
        start_times.engine = opening.elapsed();
        engine.registrar.heartbeats().set_lost_after(config.node_lost_after, engine.now);
        let clock = ServiceClock::starting_at(engine.now);
        let shared = ServerShared::new(
            store.id(),
            engine.incarnation,
            Arc::new(clock.clone()),
            Box::new(threads::resident_bytes),
            config.connections.clone(),
        );
        shared.sessions.set_access(&config.access);
        shared.sessions.restore_sessions(sessions, engine.now);
        if let Some(feed) = &engine.journal {
            store.record_undone(feed, engine.now);
        }
        let threads = (config.engine.shards, config.io_threads, config.engine.planner_threads());
        let metrics = Arc::new(Metrics::new(threads, Arc::clone(&shared)));
        // The checkpoint is consumed only once all threads run, so a failed start leaves it valid.
        let unstarted = StopOnFailure(Some((engine.planner_stop.clone(), engine.stop.clone())));
        let shard_threads = start_shards(&pinning, engine.runners, &clock, &metrics)?;
        let planner_threads = start_planners(engine.planners, &clock, &metrics)?;
        let nodes_planner = engine.nodes_planner.map(threads::start_nodes_planner).transpose()?;
        let checkpoint_port = has_journal.then(|| engine.ports.pop().expect("one port per owner"));
        let mut owners = engine.ports.into_iter().zip(wakes);
        let (registrar, questions) = RegistrarHandle::channel();
        let (port, wake) = owners.next().expect("one port per owner");
        let task = RegistrarTask {
            registrar: engine.registrar,
            port,
            wake,
            catalog: engine.catalog,
            shared: Arc::clone(&shared),
        };
        let registrar_thread = threads::start("wharf-registrar".to_owned(), move || {
            threads::runtime().block_on(run_registrar(task, questions))
        })?;
        let (shutdown, stopping) = watch::channel(false);
        let failed = Arc::new(Notify::new());
        let mut io_threads = Vec::new();
        let mut gates = Vec::new();
        for (number, (socket, (port, wake))) in sockets.into_iter().zip(owners).enumerate() {
            let thread = IoThread {
                socket,
                port,
                wake,
                certificate: Arc::clone(&certificate),
                clients: clients.clone(),
                patience: Patience::default(),
                shared: Arc::clone(&shared),
                registrar: registrar.clone(),
                shutdown: stopping.clone(),
            };
            let (gate, opened) = mpsc::sync_channel(1);
            gates.push(gate);
            let core = pinning.io_core(number);
            io_threads.push(start_io(thread, (number, core), &metrics, &failed, opened)?);
        }
        let of_journal = store.begin(engine.incarnation, &globals)?;
        let store = Arc::new(store);
        let journal: Option<Journal> = match (engine.journal, of_journal, checkpoint_port) {
            (Some(feed), Some((log, last, heads)), Some(port)) => {
                let events = EventsBell::new();
                let loops = JournalLoops::begin(JournalStart {
                    feed,
                    port,
                    events_bell: events.bell(),
                    store: &store,
                    log,
                    last,
                    heads,
                    globals,
                    bounds: JournalBounds::new(config.checkpoint_bytes, config.events_bytes),
                    now: clock.now(),
                })?;
                Some(Journal::start(loops, checkpoint_waker, events, &clock)?)
            }
            _ => None,
        };
        if let Some(journal) = &journal {
            shared.set_exports(journal.exports());
            shared.sessions.set_events(journal.events());
        }
        metrics.set_journal(JournalFigures {
            counters: journal.as_ref().map(|journal| Arc::clone(&journal.counters)),
            store: Arc::clone(&store),
            clock: clock.clone(),
        });
        unstarted.started();
        for gate in gates {
            // A thread that has already exited has reported why.
            let _ = gate.send(());
        }
        start_times.total = begun.elapsed();
        describe_journal(&store, books);
        if !address.ip().is_loopback() && clients.is_none() {
            warn!(%address, "client_certificates is off: everyone who reaches this address may do everything");
        }
        info!(%address, shards = config.engine.shards, io_threads = config.io_threads, incarnation = engine.incarnation.0,
            nodes, start = ?start_times.total, data_dir = %config.data_dir.display(), "serving");
        Ok(Self {
            address,
            certificates: chain,
            certificate,
            clients,
            shared,
            clock,
            incarnation: engine.incarnation,
            metrics,
            registrar,
            start_times,
            shutdown,
            failed,
            stop: engine.stop,
            io_threads,
            registrar_thread,
            shard_threads,
            planner_stop: engine.planner_stop,
            planner_threads,
            nodes_planner,
            groups: engine.groups,
            jobs: engine.jobs,
            store,
            journal,
            config,
        })
    }

    /// Returns the counters of the journal, if there is one.
    #[must_use]
    pub fn journal(&self) -> Option<&JournalCounters> {
        self.journal.as_ref().map(|journal| &*journal.counters)
    }

    /// Returns what its start found in the store.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.store.recovery()
    }

    /// Waits until an I/O thread fails; [`stop`](Self::stop) then returns the error. Never resolves if none
    /// fails.
    pub async fn failed(&self) {
        self.failed.notified().await;
    }

    /// Stops the service: takes no new requests, answers accepted ones, and writes the checkpoint.
    ///
    /// # Errors
    /// When a thread panicked, or the journal or the checkpoint cannot be written.
    pub async fn stop(self) -> Result<(), DaemonError> {
        // A failed send means that all receivers have stopped already.
        let _ = self.shutdown.send(true);
        // A failed I/O thread must not cost the books, so they are written before its error is returned.
        let mut served = Ok(());
        for (number, thread) in self.io_threads.into_iter().enumerate() {
            let ended = threads::join(format!("wharf-io-{number}"), thread).await?;
            served = served.and(ended);
        }
        // Planners stop while the shards still run, so that they can finish what they began.
        self.planner_stop.stop();
        let mut groups = self.groups;
        let mut jobs = self.jobs;
        for (number, thread) in self.planner_threads.into_iter().enumerate() {
            let planner = threads::join(format!("wharf-planner-{number}"), thread).await?;
            groups.extend(planner.export());
            jobs = planner.export_jobs().unwrap_or(jobs);
        }
        // The keeper of jobs has waited for its last plan.
        if let Some((stop, thread)) = self.nodes_planner {
            stop.stop();
            threads::join("wharf-plan".to_owned(), thread).await?;
        }
        groups.sort_by_key(|group| group.id);
        let exported = match self.registrar.ask(RegistrarRequest::Stop).await {
            Ok(answer) => answer.await.ok(),
            Err(_) => None,
        };
        let journal = match self.journal {
            Some(journal) => Some(journal.stop_checkpoints().await?),
            None => None,
        };
        drop(self.registrar);
        let registrar = threads::join("wharf-registrar".to_owned(), self.registrar_thread).await?;
        self.stop.stop();
        for (number, thread) in self.shard_threads.into_iter().enumerate() {
            threads::join(format!("wharf-shard-{number}"), thread).await?;
        }
        let last = match journal {
            Some(journal) => Some(journal.finish().await?),
            None => None,
        };
        let Some(RegistrarReply::Exported(shards)) = exported else {
            return Err(DaemonError::Panicked("wharf-registrar".to_owned()));
        };
        let state = StoreState {
            groups,
            jobs,
            sessions: self.shared.sessions.session_records(),
            ..StoreState::collect(self.incarnation, self.clock.now(), registrar.state(), shards)
        };
        let has_journal = last.is_some();
        self.store
            .checkpoint(&state, last)
            .map_err(|error| DaemonError::LastCheckpoint { error, has_journal })?;
        info!(books = %state.books_hash(), "stopped; the state is written");
        Ok(served?)
    }
}

/// Checks what was read. Meanwhile another thread computes the hash of the books, if it is wanted.
fn check_books(state: &StoreState, wants_hash: bool) -> Result<Option<StateHash>, Broken> {
    std::thread::scope(|scope| {
        let hash = wants_hash.then(|| scope.spawn(|| state.books_hash()));
        state.check()?;
        Ok(hash.map(|hash| hash.join().expect("a hash of plain data does not fail")))
    })
}

/// Logs what recovery found and when replies leave. `books` is the hash of the books if they were recovered.
fn describe_journal(store: &Store, books: Option<StateHash>) {
    let Recovery { appends, units, taken_back, cut_file, last_append, .. } = store.recovery();
    if let Some(file) = cut_file {
        warn!(
            last_append,
            "{file}: the last write of the run before was not whole, and is cut off: it was not acknowledged, unless the disk lost what it had synced"
        );
    }
    if let Some(books) = books {
        let TakenBack { bundles, places, reservations } = taken_back;
        info!(
            appends,
            units,
            bundles,
            places,
            reservations,
            %books,
            "recovered from the journal; `bundles`, `places` and `reservations` were half done and are taken back"
        );
    }
    if store.durability() == Durability::Memory {
        warn!("durability is `memory`: the books are lost unless this service stops cleanly");
    }
}

/// Stops planners and shards if the start fails after some of them run.
struct StopOnFailure(Option<(StopSignal, StopSignal)>);

impl StopOnFailure {
    fn started(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnFailure {
    fn drop(&mut self) {
        if let Some((planners, shards)) = &self.0 {
            planners.stop();
            shards.stop();
        }
    }
}

/// Starts one thread per shard, pinned if possible.
fn start_shards(
    pinning: &Pinning,
    runners: Vec<ShardRunner>,
    clock: &ServiceClock,
    metrics: &Metrics,
) -> Result<Vec<JoinHandle<Shard>>, DaemonError> {
    let mut shard_threads = Vec::new();
    for runner in runners {
        let clock = clock.clone();
        let observer = metrics.shard_observer(runner.id());
        let core = pinning.shard_core(runner.id());
        let name = format!("wharf-shard-{}", runner.id().0);
        shard_threads.push(threads::start(name, move || {
            threads::pin(core);
            runner.run_lent(clock, observer)
        })?);
    }
    Ok(shard_threads)
}

/// Starts one thread per planner.
fn start_planners(
    runners: Vec<PlannerRunner>,
    clock: &ServiceClock,
    metrics: &Arc<Metrics>,
) -> Result<Vec<JoinHandle<Planner>>, DaemonError> {
    let start = |(number, runner): (usize, PlannerRunner)| {
        let clock = clock.clone();
        let metrics = Arc::clone(metrics);
        let name = if runner.planner().keeps_jobs() {
            "wharf-jobs".to_owned()
        } else {
            format!("wharf-planner-{number}")
        };
        threads::start(name, move || runner.run(&clock, |planner| metrics.follow_planner(number, planner)))
    };
    runners.into_iter().enumerate().map(start).collect()
}

/// Starts an I/O thread, pinned if it has a core. It serves when its gate opens. Its observer is created on the thread itself.
fn start_io(
    thread: IoThread,
    (number, core): (usize, Option<CoreId>),
    metrics: &Arc<Metrics>,
    failed: &Arc<Notify>,
    gate: mpsc::Receiver<()>,
) -> Result<JoinHandle<Result<(), IoError>>, DaemonError> {
    let metrics = Arc::clone(metrics);
    let failed = Arc::clone(failed);
    threads::start(format!("wharf-io-{number}"), move || {
        // The gate closes without a message if the start failed. There is nothing to serve then.
        if gate.recv().is_err() {
            return Ok(());
        }
        threads::pin(core);
        let observer = Box::new(metrics.io_observer(number));
        let ended = threads::runtime().block_on(run_io_thread(thread, observer));
        if let Err(error) = &ended {
            error!(thread = number, %error, "this I/O thread cannot serve");
            failed.notify_one();
        }
        ended
    })
}

/// Binds one socket per I/O thread, all to one address.
fn bind(listen: SocketAddr, count: u16) -> Result<Vec<UdpSocket>, DaemonError> {
    let failed = |error| DaemonError::Bind { address: listen, error };
    if count > 1 {
        // Sockets that share an address would also share it with another service. Binding one without sharing
        // detects that.
        drop(socket::bind(listen, false).map_err(failed)?);
    }
    let mut address = listen;
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = socket::bind(address, count > 1).map_err(failed)?;
        // If the system chose the port, the other sockets use the same one.
        address = socket.local_addr().map_err(failed)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Warns if the system gives sockets so little room for received packets that a burst loses some.
fn warn_of_small_buffers(sockets: &[UdpSocket]) {
    let given = sockets.iter().filter_map(|socket| socket::receive_bytes(socket).ok()).min();
    if let Some(bytes) = given.filter(|&bytes| bytes < RECEIVE_BYTES_MIN) {
        warn!(
            bytes,
            "bursts of many clients will lose packets, because the system gives sockets little memory: \
             set the sysctl net.core.rmem_max to {SOCKET_BYTES}"
        );
    }
}
