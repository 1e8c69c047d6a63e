//! One start of the service, measured.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{StatusReply, StatusRequest};
use wharf_ops::daemon::Daemon;

use crate::process::Process;
use crate::service;

/// What a start took, and what it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) nodes: u64,
    pub(super) allocations: u64,
    pub(super) shards: u64,
    pub(super) checkpoint_bytes: u64,
    pub(super) tail_appends: u64,
    pub(super) tail_bytes: u64,
    pub(super) total_seconds: f64,
    pub(super) store_seconds: f64,
    pub(super) engine_seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) audit_seconds: f64,
    pub(super) peak_bytes: u64,
}

/// Starts a service from the store in `directory`, and asks it for its books. The service does not stop: it ends with the
/// process.
///
/// # Errors
/// When it cannot start, or its books are wrong.
pub(super) fn start(directory: &Path, shards: u16, seed: u64) -> anyhow::Result<Started> {
    let daemon = Daemon::start(service::config(directory, seed, Some(shards)))?;
    let times = daemon.start_times;
    let recovery = daemon.recovery();
    let cpu_seconds = Process::This.cpu_seconds()?;
    let peak_bytes = Process::This.peak_bytes()?;
    let begun = Instant::now();
    let status = audit(service::client(&daemon, "recovery"))?;
    let audit_seconds = begun.elapsed().as_secs_f64();
    std::mem::forget(daemon);
    Ok(Started {
        nodes: status.shards.iter().map(|shard| shard.nodes()).sum(),
        allocations: status.shards.iter().map(|shard| shard.allocations).sum(),
        shards: u64::from(shards),
        checkpoint_bytes: recovery.checkpoint_bytes,
        tail_appends: recovery.appends,
        tail_bytes: recovery.bytes,
        total_seconds: times.total.as_secs_f64(),
        store_seconds: times.store.as_secs_f64(),
        engine_seconds: times.engine.as_secs_f64(),
        cpu_seconds,
        audit_seconds,
        peak_bytes,
    })
}

/// Returns the status of the service, after a check of all its books.
fn audit(config: ClientConfig) -> anyhow::Result<StatusReply> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(config).await?;
        let status = client.status(&StatusRequest { audit: true }).await?;
        ensure!(status.books_hash.is_some(), "the books were not checked");
        Ok(status)
    })
}
