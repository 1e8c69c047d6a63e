//! A whole server in the test's process: engine, shard threads, an I/O thread and the registrar's thread,
//! started like in the daemon, on a loopback socket. The harness does not measure speed. Each wait has a
//! generous limit, so that a hang becomes a failure.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses its part")]

pub mod bed;
mod build;
pub use build::*;
pub mod golden;
mod overdrawn;
pub use overdrawn::*;
mod peer;
pub use peer::*;
mod proxy;
pub use proxy::*;

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio::sync::watch;
use wharf_core::cycle::CycleConfig;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved as UnobservedShard;
use wharf_core::ids::Incarnation;
use wharf_core::jobs::TopologyTier;
use wharf_core::limits::ALLOCATIONS_PER_NODE_MAX;
use wharf_core::link::Clock;
use wharf_core::planner::{JobsConfig, Planner};
use wharf_core::registrar::Registrar;
use wharf_core::shard::Shard;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::access::AccessSettings;
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{ListRequest, NodeStatus, StatusReply, StatusRequest};
use wharf_net::server::{
    IoThread, Patience, RegistrarHandle, RegistrarTask, ServerShared, Settings, Unobserved, port_owner,
    run_io_thread, run_registrar,
};
use wharf_net::tls::{ClientCertificate, ClientTrust, ServerCertificate};

/// The name in the certificate.
pub const SERVER_NAME: &str = "localhost";

/// Far more than any step here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the outcome of `future`, or panics after the time limit.
#[track_caller]
pub fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        let outcome = tokio::time::timeout(PATIENCE, future).await;
        outcome.unwrap_or_else(|_| panic!("nothing came of what was awaited at {caller}"))
    }
}

/// The time since the start plus the time that a test lets pass, in ns.
#[derive(Clone)]
struct TestClock(Instant, Arc<AtomicU64>);

impl Clock for TestClock {
    fn now(&self) -> Time {
        let elapsed = u64::try_from(self.0.elapsed().as_nanos()).expect("a test ends within centuries");
        // Acquire pairs with the Release in `TestServer::pass`.
        Time(elapsed + self.1.load(Ordering::Acquire))
    }
}

/// An authority that signs certificates of clients.
pub struct ClientAuthority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl ClientAuthority {
    pub fn new() -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// Returns a list in which the certificate with this serial number is revoked.
    pub fn revoke(&self, serial: u64) -> CertificateRevocationListDer<'static> {
        let at = rcgen::date_time_ymd(2024, 1, 1);
        let revoked = rcgen::RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let list = rcgen::CertificateRevocationListParams {
            this_update: at,
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).expect("it is signed").into()
    }

    /// Makes a certificate of a client, with this common name and these URIs.
    pub fn client(&self, name: &str, uris: &[&str]) -> ClientCertificate {
        self.numbered_client(name, uris, 1)
    }

    /// Makes a certificate of a client with this serial number.
    pub fn numbered_client(&self, name: &str, uris: &[&str], serial: u64) -> ClientCertificate {
        let uri = |uri: &&str| rcgen::SanType::URI((*uri).try_into().expect("plain text"));
        let mut params = rcgen::CertificateParams::default();
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.serial_number = Some(serial.into());
        self.sign(name, params)
    }

    /// Makes a certificate of a client that is valid from one year to the begin of another.
    pub fn client_of_years(&self, name: &str, years: [i32; 2]) -> ClientCertificate {
        self.sign(name, valid_in(rcgen::CertificateParams::default(), years))
    }

    fn sign(&self, name: &str, mut params: rcgen::CertificateParams) -> ClientCertificate {
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("it is signed");
        ClientCertificate {
            chain: vec![signed.der().clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        }
    }
}

/// Creates a self-signed certificate and its key.
pub fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).expect("the name is a name");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    (made.cert.der().clone(), key)
}

/// Creates a self-signed certificate that is valid from one year to the begin of another, and its key.
pub fn certificate_of_years(years: [i32; 2]) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let params = rcgen::CertificateParams::new([SERVER_NAME.to_owned()]).expect("the name is a name");
    let key = rcgen::KeyPair::generate().expect("a key");
    let made = valid_in(params, years).self_signed(&key).expect("it is signed");
    (made.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
}

fn valid_in(mut params: rcgen::CertificateParams, years: [i32; 2]) -> rcgen::CertificateParams {
    let [from, to] = years.map(|year| rcgen::date_time_ymd(year, 1, 1));
    params.not_before = from;
    params.not_after = to;
    params
}

/// Holds threads when they read the clock.
#[derive(Clone, Default)]
pub struct PlannerGate(Arc<(Mutex<bool>, Condvar)>);

impl PlannerGate {
    /// Threads that read the clock from now on are held.
    pub fn close(&self) {
        *self.0.0.lock().expect("no panic") = true;
    }

    /// Releases all threads.
    pub fn open(&self) {
        *self.0.0.lock().expect("no panic") = false;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let closed = self.0.0.lock().expect("no panic");
        drop(self.0.1.wait_while(closed, |closed| *closed).expect("no panic"));
    }
}

/// The clock of planners, which a test can hold between two rounds.
#[derive(Clone)]
struct GatedClock(TestClock, PlannerGate);

impl Clock for GatedClock {
    fn now(&self) -> Time {
        self.1.pass();
        self.0.now()
    }
}

/// A running server.
pub struct TestServer {
    pub address: SocketAddr,
    pub certificate: CertificateDer<'static>,
    pub shared: Arc<ServerShared>,
    /// The authorities of clients, if clients show certificates.
    pub clients: Option<Arc<ClientTrust>>,
    passed: Arc<AtomicU64>,
    shutdown: watch::Sender<bool>,
    io: JoinHandle<()>,
    registrar: JoinHandle<Registrar>,
    shards: Vec<JoinHandle<Shard>>,
    planners: Vec<JoinHandle<Planner>>,
    nodes_planner: Option<(wharf_core::link::StopSignal, JoinHandle<()>)>,
    /// Holds the planners.
    pub planner_gate: PlannerGate,
    stop: wharf_core::link::StopSignal,
    planner_stop: wharf_core::link::StopSignal,
}

/// Holds a planner's thread between two rounds.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<u64>, Condvar)>);

impl Gate {
    /// Creates a gate that lets everything pass.
    pub fn open() -> Self {
        Self(Arc::new((Mutex::new(u64::MAX), Condvar::new())))
    }

    /// Sets the number of rounds that may pass from now on.
    pub fn set(&self, count: u64) {
        *self.0.0.lock().expect("no panic") = count;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut left =
            self.0.1.wait_while(self.0.0.lock().expect("no panic"), |left| *left == 0).expect("no panic");
        *left -= 1;
    }
}

fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread starts")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// The settings of jobs, with tiers that tests may name.
fn jobs_config() -> JobsConfig {
    let tier = |name: &str| TopologyTier::labelled(name, name);
    let topology = vec![tier("rack"), tier("block")];
    JobsConfig { cycle: CycleConfig { topology, ..CycleConfig::default() }, ..JobsConfig::default() }
}

impl TestServer {
    pub fn start(shards: u16) -> Self {
        Self::start_with(shards, Settings::default())
    }

    pub fn start_with(shards: u16, settings: Settings) -> Self {
        Self::start_all(shards, 0, settings)
    }

    /// Starts a server with planners.
    pub fn start_planning(shards: u16, planners: u16) -> Self {
        Self::start_all(shards, planners, Settings::default())
    }

    /// Starts a server with planners and settings.
    pub fn start_planning_with(shards: u16, planners: u16, settings: Settings) -> Self {
        Self::start_all(shards, planners, settings)
    }

    /// Starts a server as a restart: its incarnation follows `before`.
    pub fn start_again(shards: u16, before: u32) -> Self {
        let state = StoreState { incarnation: Incarnation(before), ..StoreState::default() };
        Self::start_over(state, shards, 1, Settings::default(), &Gate::open())
    }

    /// Starts a server whose planner stops at `gate` after each round that did something.
    pub fn start_gated(shards: u16, settings: Settings, gate: &Gate) -> Self {
        Self::start_over(StoreState::default(), shards, 1, settings, gate)
    }

    fn start_all(shards: u16, planners: u16, settings: Settings) -> Self {
        Self::start_over(StoreState::default(), shards, planners, settings, &Gate::open())
    }

    /// Starts a server that waits so long for its peers.
    pub fn start_patient(planners: u16, settings: Settings, patience: Patience) -> Self {
        let state = StoreState::default();
        Self::start_with_clients(state, (1, planners), settings, &Gate::open(), (None, patience))
    }

    fn start_over(state: StoreState, shards: u16, planners: u16, settings: Settings, gate: &Gate) -> Self {
        Self::start_with_clients(state, (shards, planners), settings, gate, (None, Patience::default()))
    }

    /// Starts a server with planners, whose clients show certificates of this authority.
    pub fn start_secured(access: &AccessSettings, clients: &ClientAuthority) -> Self {
        let clients = ClientTrust::new(&[clients.certificate()], Vec::new()).expect("it is an authority");
        let state = StoreState::default();
        let of_peers = (Some(clients), Patience::default());
        let server = Self::start_with_clients(state, (2, 1), Settings::default(), &Gate::open(), of_peers);
        server.shared.sessions.set_access(access);
        server
    }

    fn start_with_clients(
        state: StoreState,
        threads: (u16, u16),
        settings: Settings,
        gate: &Gate,
        of_peers: (Option<Arc<ClientTrust>>, Patience),
    ) -> Self {
        let (shards, planners) = threads;
        let (clients, patience) = of_peers;
        let clock = TestClock(Instant::now(), Arc::default());
        let passed = Arc::clone(&clock.1);
        let (io_wake, io_waker) = port_owner();
        let (registrar_wake, registrar_waker) = port_owner();
        let config = EngineConfig {
            shards,
            seed: 7,
            unit_instances: vec!["npu".to_owned()],
            planners,
            jobs: (planners > 0).then(jobs_config),
            // Some tests place thousands of small requests on one node.
            allocations_per_node_max: ALLOCATIONS_PER_NODE_MAX,
            ..EngineConfig::default()
        };
        let engine =
            Engine::open(state, &config, vec![io_waker, registrar_waker]).expect("the numbers are in range");
        let mut ports = engine.ports.into_iter();
        let io_port = ports.next().expect("two");
        let registrar_port = ports.next().expect("two");
        let shared = ServerShared::new(
            [9; 16],
            engine.incarnation,
            Arc::new(clock.clone()),
            Box::new(|| 4096),
            settings,
        );
        let threads = engine.runners.into_iter().map(|runner| {
            let clock = clock.clone();
            spawn("shard", move || runner.run_lent(clock, UnobservedShard))
        });
        let shards = threads.collect();
        let planner_gate = PlannerGate::default();
        let threads = engine.planners.into_iter().map(|runner| {
            let clock = GatedClock(clock.clone(), planner_gate.clone());
            let gate = gate.clone();
            spawn("planner", move || runner.run(&clock, |_| gate.pass()))
        });
        let planners = threads.collect();
        let nodes_planner =
            engine.nodes_planner.map(|planner| (planner.stop_signal(), spawn("plan", move || planner.run())));
        let (handle, questions) = RegistrarHandle::channel();
        let task = RegistrarTask {
            registrar: engine.registrar,
            port: registrar_port,
            wake: registrar_wake,
            catalog: engine.catalog,
            shared: Arc::clone(&shared),
        };
        let registrar = spawn("registrar", move || runtime().block_on(run_registrar(task, questions)));
        let (chain, key) = certificate();
        let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("the loopback has a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        let (shutdown, stopping) = watch::channel(false);
        let server_certificate = ServerCertificate::new(vec![chain.clone()], key).expect("the key is usable");
        let io_shared = Arc::clone(&shared);
        let io_clients = clients.clone();
        let io = spawn("io", move || {
            let thread = IoThread {
                socket,
                port: io_port,
                wake: io_wake,
                certificate: server_certificate,
                clients: io_clients,
                patience,
                shared: io_shared,
                registrar: handle,
                shutdown: stopping,
            };
            runtime()
                .block_on(run_io_thread(thread, Box::new(Unobserved)))
                .expect("the socket and the certificate are usable");
        });
        let stop = engine.stop;
        let planner_stop = engine.planner_stop;
        let certificate = chain;
        Self {
            address,
            certificate,
            shared,
            clients,
            passed,
            shutdown,
            io,
            registrar,
            shards,
            planners,
            nodes_planner,
            planner_gate,
            stop,
            planner_stop,
        }
    }

    pub fn client_config(&self, retry_for: Duration) -> ClientConfig {
        ClientConfig {
            server: self.address,
            server_name: SERVER_NAME.to_owned(),
            roots: vec![self.certificate.clone()],
            certificate: None,
            name: "test".to_owned(),
            retry_for,
        }
    }

    pub async fn client(&self) -> Client {
        within(Client::connect(self.client_config(Duration::ZERO))).await.expect("the server is there")
    }

    /// Advances the clock, in ns. It does not wake threads that sleep until a deadline.
    pub fn pass(&self, nanos: u64) {
        // Release pairs with the Acquire in the clock.
        self.passed.fetch_add(nanos, Ordering::Release);
    }

    /// Tells the server to stop, without waiting for it.
    pub fn begin_shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Stops the server like the daemon: first the I/O thread, which answers what it accepted, then planners
    /// and the registrar, then the shards. Checks every shard's invariants.
    pub async fn stop(self) {
        self.begin_shutdown();
        let Self { io, registrar, shards, planners, nodes_planner, stop, planner_stop, .. } = self;
        // Join on another thread, since the clients of this runtime must continue meanwhile.
        let joined = tokio::task::spawn_blocking(move || {
            io.join().expect("the I/O thread does not panic");
            planner_stop.stop();
            for planner in planners {
                planner.join().expect("a planner does not panic");
            }
            if let Some((stop, thread)) = nodes_planner {
                stop.stop();
                thread.join().expect("the planner of nodes does not panic");
            }
            registrar.join().expect("the registrar does not panic");
            stop.stop();
            for shard in shards {
                let shard = shard.join().expect("a shard does not panic");
                shard.check_invariants().expect("the books hold");
            }
        });
        within(joined).await.expect("every thread ended well");
    }
}

/// Returns the status with an audit.
pub async fn audit(client: &Client) -> StatusReply {
    within(client.status(&StatusRequest { audit: true })).await.expect("the status is answered")
}

/// Returns all nodes with their free capacity, after an audit. Versions are left out: capacity that was held
/// and given back has changed a node twice.
pub async fn standing(client: &Client) -> Vec<NodeStatus> {
    audit(client).await;
    let page = within(client.list_nodes(&ListRequest { after: 0, limit: 1000 })).await.expect("answered");
    page.nodes.into_iter().map(|node| NodeStatus { version: 0, ..node }).collect()
}

/// Returns the canonical hash of the books, after an audit.
pub async fn books(client: &Client) -> u128 {
    audit(client).await.books_hash.expect("an audit was asked for")
}
