//! The service of a run, with its full cluster and what is asked of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use wharf_core::link::lock;
use wharf_net::client::{Client, ClientConfig};

use super::access::{Access, SERVER_NAME, Who};
use super::drive::{Driver, ServiceLoad, close, connect};
use super::peer::{Peer, Serve};
use super::recorder::Segment;
use super::row::Measured;
use super::work::work_of;
use super::{IDLE_CONNECTIONS_MIN, OTHER_CONNECTIONS, RpcOptions, Turn};
use crate::durability::Mode;
use crate::engine::scenario::Kind;

/// A service to start.
pub(super) struct ServicePlan<'a> {
    pub(super) options: &'a RpcOptions,
    pub(super) shards: u16,
    pub(super) mode: Mode,
    /// The most connections of a load.
    pub(super) connections: u32,
}

/// A running service with a full cluster.
pub(super) struct Service {
    peer: Peer,
    /// How the load connects.
    config: ClientConfig,
    /// A connection as those of the load, for what is not measured.
    pub(super) client: Client,
    /// An administrator's connection.
    admin: Client,
    pub(super) driver: Driver,
    shards: u16,
    /// The best rate of a closed loop with one connection and one request per frame.
    pub(super) closed_per_second: f64,
    /// Removed after the service has ended.
    _directory: TempDir,
}

impl Service {
    /// Starts a service and fills its cluster. With `is_secure`, its clients show certificates.
    pub(super) async fn start(plan: &ServicePlan<'_>, is_secure: bool) -> anyhow::Result<Self> {
        let &ServicePlan { options, shards, mode, connections } = plan;
        let &RpcOptions { nodes, policy, seed, io_threads, .. } = options;
        let directory = tempfile::tempdir_in(&options.directory)
            .context("a temporary directory for the service's data cannot be made")?;
        let access_directory = directory.path().join("access");
        let access = match is_secure {
            true => {
                std::fs::create_dir(&access_directory).context("a directory for certificates")?;
                Some(Access::create(&access_directory)?)
            }
            false => None,
        };
        let peer = Peer::start(&Serve::Service {
            directory: directory.path().join("data"),
            shards,
            mode: mode.name.to_owned(),
            connections: connections + OTHER_CONNECTIONS,
            seed,
            io_threads,
            handshakes_per_second: None,
            access: access.is_some().then_some(access_directory),
        })?;
        let config = |who| {
            let certificate = access.as_ref().map(|access| access.certificate(who)).transpose()?;
            anyhow::Ok(ClientConfig {
                server: peer.address,
                server_name: SERVER_NAME.to_owned(),
                roots: access.as_ref().map_or_else(|| Ok(peer.certificates.clone()), Access::roots)?,
                certificate,
                name: "wharf-bench rpc".to_owned(),
                retry_for: Duration::ZERO,
            })
        };
        let admin = Client::connect(config(Who::Admin)?).await?;
        let config = config(Who::Tenant)?;
        let client = Client::connect(config.clone()).await?;
        if let Some(access) = &access {
            access.check_refusals(&config, &client).await?;
        }
        let scenario = Kind::Steady.scenario(nodes, policy, &options.shapes, seed);
        let (bodies, mut work) = work_of(&scenario, seed);
        work.fill(&bodies, &admin, &client).await?;
        let driver = Driver {
            bodies: Arc::new(bodies),
            work: Arc::new(Mutex::new(work)),
            splits: options.load_threads > 1,
            admin: is_secure.then(|| admin.clone()),
        };
        let closed_per_second = 0.0;
        let _directory = directory;
        Ok(Self { peer, config, client, admin, driver, shards, closed_per_second, _directory })
    }

    /// Drives one segment over new connections, over these many sockets. With many connections, it also returns the memory
    /// that each takes while it is idle.
    pub(super) async fn drive(
        &self,
        load: &ServiceLoad,
        connections: usize,
        sockets: usize,
    ) -> anyhow::Result<(Segment, Option<u64>)> {
        let process = self.peer.process();
        let before = process.resident_bytes()?;
        let clients = connect(&self.config, connections, sockets).await?;
        let mut bytes = None;
        if connections >= IDLE_CONNECTIONS_MIN {
            let grown = process.resident_bytes()?.saturating_sub(before);
            bytes = Some(grown / connections as u64);
        }
        let segment = self.driver.drive(&clients, load, process).await?;
        close(clients).await?;
        Ok((segment, bytes))
    }

    pub(super) async fn audit(&self) -> anyhow::Result<()> {
        // No request is in flight, so nothing changes the sums meanwhile.
        let checked = lock(&self.driver.work).promises();
        checked.audit(&self.admin).await
    }

    pub(super) fn measured(
        &self,
        turn: Turn,
        service: Segment,
        floor: Segment,
        options: &RpcOptions,
    ) -> Measured {
        let work = lock(&self.driver.work);
        Measured {
            plan: turn.plan,
            policy: options.policy.name(),
            shards: self.shards,
            nodes: options.nodes,
            offered_per_second: turn.offered_per_second,
            service,
            floor,
            plain: None,
            sizes: turn.sizes,
            refused: work.refused,
            bytes_per_idle_connection: None,
            served_step_per_second: None,
            utilisation_percent: work.utilisation_percent(),
            allocations: work.allocations(),
        }
    }

    /// Releases everything, checks that the books are empty, and stops the service.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let Self { peer, client, admin, driver, _directory, .. } = self;
        let Driver { work, admin: of_load, .. } = driver;
        drop(of_load);
        let work = Arc::into_inner(work).context("no load is left")?;
        let mut work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
        work.empty(&client).await?;
        anyhow::ensure!(work.allocations() == 0, "{} allocations were not released", work.allocations());
        work.promises().audit(&admin).await.context("after everything was released")?;
        client.close().await;
        admin.close().await;
        peer.stop()
    }
}
