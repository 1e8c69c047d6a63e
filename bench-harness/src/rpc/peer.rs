//! The processes that this command starts: the service, and the echo of the floor.
//!
//! Each prints where it serves.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use wharf_ops::daemon::Daemon;

use super::floor::EchoServer;
use super::helper::{Helper, tell, wait_for_end};
use crate::durability::MODES;
use crate::process::Process;
use crate::service;

/// What a process serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Serve {
    /// The service.
    Service {
        /// Its data directory.
        directory: PathBuf,
        /// The number of shards.
        shards: u16,
        /// The mode.
        mode: String,
        /// The most connections.
        connections: u32,
        /// The seed of its routing.
        seed: u64,
        /// The I/O threads. `None`: as many as by default.
        io_threads: Option<u16>,
        /// The handshakes that each begins per second. `None`: as many as by default.
        handshakes_per_second: Option<u32>,
    },
    /// The echo.
    Echo,
}

/// What a process prints once it serves.
#[derive(Serialize, Deserialize)]
struct Greeting {
    address: SocketAddr,
    /// The certificates that a client must trust, in DER.
    certificates: Vec<Vec<u8>>,
}

/// A process that serves. It is killed when this is dropped.
pub(super) struct Peer {
    helper: Helper,
    pub(super) address: SocketAddr,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

impl Peer {
    /// Starts a process, and waits until it serves.
    pub(super) fn start(serve: &Serve) -> anyhow::Result<Self> {
        let mut helper = Helper::start(&["rpc", "--serve", &serde_json::to_string(serve)?])?;
        let Greeting { address, certificates } = helper.read()?;
        let certificates = certificates.into_iter().map(CertificateDer::from).collect();
        Ok(Self { helper, address, certificates })
    }

    pub(super) fn process(&self) -> Process {
        self.helper.process()
    }

    /// Stops the process.
    ///
    /// # Errors
    /// When it did not end as it should.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.helper.tell_end();
        self.helper.wait()
    }
}

/// Serves in this process until its standard input ends.
///
/// # Errors
/// When it cannot serve.
pub fn serve_here(serve: &Serve) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match serve {
        Serve::Echo => runtime.block_on(async {
            let server = EchoServer::bind()?;
            greet(server.address()?, std::slice::from_ref(&server.certificate))?;
            let (ended, end) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                wait_for_end();
                let _ = ended.send(());
            });
            server.serve(async { drop(end.await) }).await;
            Ok(())
        }),
        Serve::Service { directory, shards, mode, connections, seed, io_threads, handshakes_per_second } => {
            let mode = MODES.into_iter().find(|known| known.name == mode).context("a mode by its name")?;
            let mut config = service::config(directory, *seed, Some(*shards));
            config.io_threads = io_threads.unwrap_or(config.io_threads);
            config.connections.handshakes_per_second =
                handshakes_per_second.unwrap_or(config.connections.handshakes_per_second);
            config.set_durability(mode.durability);
            config.connections.connections_per_address_max = *connections;
            let daemon = Daemon::start(config)?;
            greet(daemon.address, &daemon.certificates)?;
            wait_for_end();
            runtime.block_on(daemon.stop())?;
            Ok(())
        }
    }
}

fn greet(address: SocketAddr, certificates: &[CertificateDer<'static>]) -> anyhow::Result<()> {
    let certificates = certificates.iter().map(|certificate| certificate.to_vec()).collect();
    tell(&Greeting { address, certificates })
}
