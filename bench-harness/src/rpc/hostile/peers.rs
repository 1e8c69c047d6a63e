//! What the peers of a crowd do. What the service answers, or whether it ends their connections, is of no interest to them:
//! they begin again.

use std::hint::black_box;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wharf_net::protocol::ALPN;

use super::bytes;
use super::crowd::{CrowdKind, CrowdPlan, Shared};

const SERVER_NAME: &str = "localhost";
/// The loopback addresses of a crowd. The client has another one, so it does not share its room with them.
const ADDRESSES: u64 = 8;
/// The time within which the service answers, or else a peer begins again.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a peer holds what it has, before it begins again.
const HOLD: Duration = Duration::from_millis(250);
/// The time that the endpoint of a peer has to say that it leaves.
const FAREWELL: Duration = Duration::from_millis(100);
/// The connections of a flood that begin at once, over one socket.
const FLOOD_BATCH: u32 = 32;
/// The time in which the first packets of connections leave.
const FIRST_PACKETS: Duration = Duration::from_millis(1);
/// The lists that a slow reader asks for over one connection, and how many of them at once.
const LISTS: u64 = 512;
const LISTS_AT_ONCE: u64 = 64;

/// The multiplications of a round of computing: some 0.1 ms.
const ROUND: u32 = 100_000;

/// The peers of a crowd.
pub(super) struct Peers {
    tasks: JoinSet<()>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// Begins what the peers do. Needs a runtime.
pub(super) fn begin(shared: &Arc<Shared>, leaving: &watch::Receiver<bool>) -> anyhow::Result<Peers> {
    let plan = &shared.plan;
    let config = client_config(plan)?;
    let mut peers = Peers { tasks: JoinSet::new(), threads: Vec::new() };
    if matches!(plan.kind, CrowdKind::Busy | CrowdKind::Connections) {
        for number in 0..u64::from(plan.threads.max(1)) {
            let shared = Arc::clone(shared);
            let config = config.clone();
            peers.threads.push(std::thread::spawn(move || match shared.plan.kind {
                CrowdKind::Busy => compute(&shared),
                _ => flood(&shared, &config, number),
            }));
        }
        return Ok(peers);
    }
    for number in 0..u64::from(plan.peers) {
        let peer = Peer { shared: Arc::clone(shared), endpoint: endpoint(&config, number)?, number };
        let mut leaving = leaving.clone();
        peers.tasks.spawn(async move {
            tokio::select! {
                () = peer.attack() => {}
                _ = leaving.wait_for(|&leaves| leaves) => {}
            }
            peer.endpoint.close(0u32.into(), b"");
            let _ = timeout(FAREWELL, peer.endpoint.wait_idle()).await;
        });
    }
    Ok(peers)
}

impl Peers {
    /// Waits until all have left, which they were told to.
    ///
    /// # Errors
    /// When one of them failed.
    pub(super) fn leave(self, runtime: &Runtime) -> anyhow::Result<()> {
        let Self { mut tasks, threads } = self;
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the crowd panicked"))??;
        }
        runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended.context("a peer of the crowd panicked")?;
            }
            Ok(())
        })
    }
}

fn client_config(plan: &CrowdPlan) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in &plan.certificates {
        let certificate = CertificateDer::from(certificate.clone());
        roots.add(certificate).context("the certificate of the service cannot be trusted")?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // So each handshake costs the service a signature.
    tls.resumption = Resumption::disabled();
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

/// Opens a socket at one of the addresses. Needs a runtime.
fn endpoint(config: &ClientConfig, number: u64) -> anyhow::Result<Endpoint> {
    let address = [127, 0, 0, 2 + (number % ADDRESSES) as u8];
    let mut endpoint = Endpoint::client((address, 0).into()).context("a peer has no socket on loopback")?;
    endpoint.set_default_client_config(config.clone());
    Ok(endpoint)
}

/// Computes until the crowd leaves.
fn compute(shared: &Shared) -> anyhow::Result<()> {
    let mut number = 1_u64;
    while !shared.is_over() {
        for _ in 0..ROUND {
            number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        shared.acted(1);
    }
    Ok(())
}

/// Begins connections in batches until the crowd leaves.
fn flood(shared: &Shared, config: &ClientConfig, number: u64) -> anyhow::Result<()> {
    for batch in 0.. {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(shared.pace.turn(FLOOD_BATCH));
        if shared.is_over() {
            break;
        }
        // Every other batch completes its handshakes. The next one has another address.
        let address = number * ADDRESSES / 2 + batch / 2;
        runtime.block_on(connect_and_vanish(shared, config, address, batch % 2 == 1))?;
        // Nobody runs their endpoint any more, so they vanish without a word.
        drop(runtime);
    }
    Ok(())
}

async fn connect_and_vanish(
    shared: &Shared,
    config: &ClientConfig,
    address: u64,
    completes: bool,
) -> anyhow::Result<()> {
    let endpoint = endpoint(config, address)?;
    let begun = (0..FLOOD_BATCH).map(|_| endpoint.connect(shared.plan.server, SERVER_NAME));
    let connecting = begun.collect::<Result<Vec<_>, _>>()?;
    shared.acted(u64::from(FLOOD_BATCH));
    // The handles are kept until the end: a connection without one says that it leaves.
    if completes {
        let until = Instant::now() + HOLD;
        let mut connections = Vec::new();
        for one in connecting {
            connections.extend(timeout_at(until, one).await);
        }
    } else {
        sleep(FIRST_PACKETS).await;
    }
    Ok(())
}

/// A peer with a socket of its own.
struct Peer {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    number: u64,
}

impl Peer {
    async fn attack(&self) {
        let acts = self.shared.plan.kind;
        for time in 0.. {
            let Some(connection) = self.connect().await else { continue };
            match (acts, self.number % 3) {
                (CrowdKind::Busy | CrowdKind::Connections, _) => unreachable!("threads do it, without peers"),
                (CrowdKind::Streams, _) => self.reset_streams(&connection).await,
                (CrowdKind::Malformed, _) => {
                    self.send(&connection, &bytes::no_hello(self.number + time), PATIENCE).await;
                }
                (CrowdKind::Bombs, 0) => {
                    let bomb = [bytes::hello(), bytes::length_bomb()].concat();
                    self.send(&connection, &bomb, PATIENCE).await;
                }
                (CrowdKind::Bombs, 1) => {
                    let endless = [bytes::hello(), bytes::endless_frame()].concat();
                    self.send(&connection, &endless, HOLD).await;
                }
                (CrowdKind::Bombs, _) => self.send_body_bombs(&connection).await,
                (CrowdKind::SlowReaders, _) => self.ask_and_not_read(&connection).await,
            }
            connection.close(0u32.into(), b"");
        }
    }

    async fn connect(&self) -> Option<Connection> {
        self.shared.pace.turn(1).await;
        let connecting = self.endpoint.connect(self.shared.plan.server, SERVER_NAME).ok()?;
        timeout(PATIENCE, connecting).await.ok()?.ok()
    }

    async fn open(&self, connection: &Connection) -> Option<(SendStream, RecvStream)> {
        timeout(PATIENCE, connection.open_bi()).await.ok()?.ok()
    }

    /// Sends bytes, and waits until the service ends the connection, but no longer than `hold`.
    async fn send(&self, connection: &Connection, bytes: &[u8], hold: Duration) {
        let Some((mut send, _recv)) = self.open(connection).await else { return };
        if let Ok(Ok(())) = timeout(PATIENCE, send.write_all(bytes)).await {
            self.shared.acted(1);
            let _ = timeout(hold, connection.closed()).await;
        }
    }

    /// Opens streams for as long as the service grants them.
    async fn reset_streams(&self, connection: &Connection) {
        while let Some((mut send, mut recv)) = self.open(connection).await {
            let _ = timeout(PATIENCE, send.write_all(&bytes::half_hello())).await;
            let _ = send.reset(0u32.into());
            let _ = recv.stop(0u32.into());
            self.shared.acted(1);
        }
    }

    /// Sends requests with lists that claim to be endless, each after the answer to the one before.
    async fn send_body_bombs(&self, connection: &Connection) {
        let Some((mut send, mut recv)) = self.open(connection).await else { return };
        let mut next = bytes::hello();
        for sequence in 1.. {
            let Ok(Ok(())) = timeout(PATIENCE, send.write_all(&next)).await else { return };
            let Ok(Ok(Some(_))) = timeout(PATIENCE, recv.read_chunk(usize::MAX, true)).await else { return };
            self.shared.acted(1);
            next = bytes::body_bomb(sequence);
        }
    }

    /// Asks for lists, and holds the connection without reading.
    async fn ask_and_not_read(&self, connection: &Connection) {
        let Some((mut send, _recv)) = self.open(connection).await else { return };
        let Ok(Ok(())) = timeout(PATIENCE, send.write_all(&bytes::hello())).await else { return };
        for from in (1..=LISTS).step_by(LISTS_AT_ONCE as usize) {
            let lists = bytes::lists(from, LISTS_AT_ONCE);
            let Ok(Ok(())) = timeout(PATIENCE, send.write_all(&lists)).await else { return };
            self.shared.acted(LISTS_AT_ONCE);
        }
        let _ = timeout(HOLD, connection.closed()).await;
    }
}
