//! A service in a process of its own, with a cluster that is 85 % full.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use wharf_core::link::lock;
use wharf_core::request::Policy;
use wharf_net::client::{Client, ClientConfig};

use super::drive::Driver;
use super::peer::{Peer, Serve};
use super::work::work_of;
use crate::durability::Mode;
use crate::engine::scenario::Kind;
use crate::engine::shapes::Shapes;
use crate::process::Process;

/// What is started, and what is in it.
pub(super) struct FilledOptions<'a> {
    /// The kind of requests.
    pub(super) kind: Kind,
    pub(super) shapes: &'a Shapes,
    /// The policy of places after the cluster was filled.
    pub(super) policy: Policy,
    pub(super) nodes: u32,
    pub(super) shards: u16,
    /// `None`: as many as a service has by default.
    pub(super) io_threads: Option<u16>,
    /// Of each I/O thread. `None`: as a service has by default.
    pub(super) handshakes_per_second: Option<u32>,
    pub(super) mode: Mode,
    /// The most connections of an address.
    pub(super) connections: u32,
    pub(super) seed: u64,
    /// The directory under which the data directory is made.
    pub(super) directory: &'a Path,
    /// The name of the command, for the service's logs.
    pub(super) command: &'a str,
}

/// The service, and what is asked of it.
pub(super) struct Filled {
    peer: Peer,
    pub(super) config: ClientConfig,
    pub(super) driver: Driver,
    /// Removed after the service has ended.
    _directory: TempDir,
}

impl Filled {
    /// Starts a service and fills its cluster.
    pub(super) async fn start(options: &FilledOptions<'_>) -> anyhow::Result<Self> {
        let &FilledOptions { kind, shapes, policy, nodes, seed, .. } = options;
        let directory = tempfile::tempdir_in(options.directory)
            .context("a temporary directory for the service's data cannot be made")?;
        let peer = Peer::start(&Serve::Service {
            directory: directory.path().to_owned(),
            shards: options.shards,
            mode: options.mode.name.to_owned(),
            connections: options.connections,
            seed,
            io_threads: options.io_threads,
            handshakes_per_second: options.handshakes_per_second,
            access: None,
        })?;
        let config = ClientConfig {
            server: peer.address,
            server_name: "localhost".to_owned(),
            roots: peer.certificates.clone(),
            certificate: None,
            name: format!("wharf-bench {}", options.command),
            retry_for: Duration::ZERO,
        };
        let client = Client::connect(config.clone()).await?;
        // Filled by a policy that costs little.
        let (cheap, mut work) = work_of(&kind.scenario(nodes, Policy::LeastFit, shapes, seed), seed);
        work.fill(&cheap, &client, &client).await?;
        // While loads run in other threads, nobody would keep its connection.
        client.close().await;
        let (bodies, _) = work_of(&kind.scenario(nodes, policy, shapes, seed), seed);
        let driver =
            Driver { bodies: Arc::new(bodies), work: Arc::new(Mutex::new(work)), splits: false, admin: None };
        Ok(Self { peer, config, driver, _directory: directory })
    }

    pub(super) fn process(&self) -> Process {
        self.peer.process()
    }

    /// Makes a connection for what is not measured.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.config.clone()).await?)
    }

    /// Checks that the service's books are in order, and say what its answers promised. No load may be under way.
    pub(super) async fn audit(&self, client: &Client) -> anyhow::Result<()> {
        let checked = lock(&self.driver.work).promises();
        checked.audit(client).await
    }

    /// Stops the service.
    ///
    /// # Errors
    /// When it did not end as it should.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.peer.stop()
    }
}
