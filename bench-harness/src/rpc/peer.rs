//! The processes that this command starts: the service, and the echo of the floor.
//!
//! Each prints where it serves.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use wharf_ops::config::{Config, Raw};
use wharf_ops::daemon::Daemon;
use wharf_ops::logging::{self, LogFormat};

use super::access::Access;
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
        /// The directory of the certificates that service and clients show. `None`: everyone may do everything.
        access: Option<PathBuf>,
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
        Serve::Service { access, .. } => {
            let config = config(serve)?;
            let _audit = match access.as_deref().map(Access::of) {
                Some(access) => Some(log_to(&access.log(), &config)?),
                None => None,
            };
            let daemon = Daemon::start(config)?;
            greet(daemon.address, &daemon.certificates)?;
            wait_for_end();
            runtime.block_on(daemon.stop())?;
            Ok(())
        }
    }
}

/// Returns the settings of a service.
fn config(serve: &Serve) -> anyhow::Result<Config> {
    let Serve::Service {
        directory,
        shards,
        mode,
        connections,
        seed,
        io_threads,
        handshakes_per_second,
        access,
    } = serve
    else {
        anyhow::bail!("an echo has no settings");
    };
    let mode = MODES.into_iter().find(|known| known.name == mode).context("a mode by its name")?;
    let mut config = match access.as_deref().map(Access::of) {
        Some(access) => {
            let raw = Raw { data_dir: Some(directory.clone()), ..Raw::default() };
            service::of_any_port(Config::check(access.settings(raw))?, *seed, Some(*shards))
        }
        None => service::config(directory, *seed, Some(*shards)),
    };
    config.io_threads = io_threads.unwrap_or(config.io_threads);
    config.connections.handshakes_per_second =
        handshakes_per_second.unwrap_or(config.connections.handshakes_per_second);
    config.set_durability(mode.durability);
    config.connections.connections_per_address_max = *connections;
    Ok(config)
}

/// Starts the logs as `wharf serve` does, but into a file. The audit log is written until the guard is dropped.
fn log_to(file: &Path, config: &Config) -> anyhow::Result<impl Sized + use<>> {
    let log = File::create(file).with_context(|| format!("{} cannot be written", file.display()))?;
    let (_, audit) = logging::start(config, LogFormat::Text, Mutex::new(log), false)?;
    Ok(audit)
}

fn greet(address: SocketAddr, certificates: &[CertificateDer<'static>]) -> anyhow::Result<()> {
    let certificates = certificates.iter().map(|certificate| certificate.to_vec()).collect();
    tell(&Greeting { address, certificates })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wharf_net::client::{Client, ClientConfig};
    use wharf_net::protocol::{NodesRequest, StatusRequest};

    use super::super::access::{SERVER_NAME, Who};
    use super::*;

    #[test]
    fn a_secure_service_takes_only_whom_it_knows() {
        let directory = tempfile::tempdir().unwrap();
        let certificates = directory.path().join("certificates");
        std::fs::create_dir(&certificates).unwrap();
        let access = Access::create(&certificates).unwrap();
        let serve = Serve::Service {
            directory: directory.path().join("data"),
            shards: 1,
            mode: "memory".to_owned(),
            connections: 8,
            seed: 1,
            io_threads: Some(1),
            handshakes_per_second: None,
            access: Some(certificates),
        };
        let daemon = Daemon::start(config(&serve).unwrap()).unwrap();
        let server = daemon.address;
        let config = |certificate| ClientConfig {
            server,
            server_name: SERVER_NAME.to_owned(),
            roots: access.roots().unwrap(),
            certificate,
            name: "test".to_owned(),
            retry_for: Duration::ZERO,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stranger = Client::connect(config(None)).await.err().expect("it has no certificate");
            assert!(stranger.to_string().contains("certificate"), "{stranger}");
            let of = |who| config(Some(access.certificate(who).unwrap()));
            let tenant = Client::connect(of(Who::Tenant)).await.unwrap();
            let nodes = NodesRequest { nodes: Vec::new() };
            let forbidden = tenant.add_nodes(&nodes).await.expect_err("it may only submit").to_string();
            assert!(forbidden.contains("add_nodes") && forbidden.contains("submit"), "{forbidden}");
            let admin = Client::connect(of(Who::Admin)).await.unwrap();
            admin.add_nodes(&nodes).await.unwrap();
            admin.status(&StatusRequest { audit: true }).await.unwrap();
            drop((tenant, admin));
            daemon.stop().await.unwrap();
        });
    }
}
