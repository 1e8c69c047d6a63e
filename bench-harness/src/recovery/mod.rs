//! `wharf-bench recovery`: how long a start takes after the service was killed.
//!
//! A row builds a store with production code: client sessions place and release, over the service's own connections. It
//! measures a whole start of the service from the store: reading the checkpoint, checking and applying the journal after it,
//! opening the engine, and starting all threads, until requests are taken. Each step runs in a process of its own. So the
//! builder ends as if it were killed, and a start has the memory of a fresh process. The files are in the page cache of
//! the system.

mod clients;
pub(crate) use clients::{NoHangup, counted_tokens};
mod start;
mod store;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wharf_ops::config::Config;

use start::{Started, start};
use store::{Built, build};

/// What a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of live allocations.
    pub allocations: u64,
    /// The number of records in the journal after the checkpoint, at least.
    pub tail_records: u64,
    /// The requests of one append of the tail.
    pub in_flight: u64,
    /// The number of client sessions.
    pub sessions: u32,
    /// The outcomes that clients do not acknowledge, at least.
    pub unacknowledged: u64,
    /// The seed of nodes and requests.
    pub seed: u64,
}

/// The measurement.
#[derive(Clone, Debug)]
pub struct RecoveryOptions {
    /// The store.
    pub contents: Contents,
    /// The number of shards of the start; by the cores of the machine if `None`.
    pub shards: Option<u16>,
    /// The number of shards of the service that left the store; that of the start if `None`.
    pub built_shards: Option<u16>,
    /// The number of starts. The row has the one in the middle by time.
    pub rounds: usize,
    /// The directory under which the data directories are made.
    pub directory: PathBuf,
}

/// A step that runs in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Build a store.
    Build(PathBuf, Contents, u16),
    /// Start a service from it, with this number of shards and this seed.
    Start(PathBuf, u16, u64),
}

/// The measurement of one store.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryRow {
    /// The number of nodes.
    pub nodes: u64,
    /// The number of live allocations.
    pub allocations: u64,
    /// The bytes of the checkpoint's rows.
    pub checkpoint_bytes: u64,
    /// The number of records in the journal after the checkpoint: effects, and units of global records.
    pub tail_records: u64,
    /// The appends that they are in.
    pub tail_appends: u64,
    /// The bytes of their values.
    pub tail_bytes: u64,
    /// The requests of clients that they tell of.
    pub tail_requests: u64,
    /// Those of them that were refused.
    pub tail_refused: u64,
    /// The number of client sessions.
    pub sessions: u64,
    /// The outcomes that clients have not acknowledged.
    pub outcomes: u64,
    /// The number of shards of the service that left the store.
    pub built_shards: u64,
    /// The number of shards of the start.
    pub shards: u64,
    /// From the begin of the start until requests are taken.
    pub recovery_seconds: f64,
    /// The part of it that reads the store: checkpoint and journal.
    pub store_seconds: f64,
    /// The part of it that checks the records, opens the engine and checks its invariants.
    pub engine_seconds: f64,
    /// The processor time of the start, over all threads. Unlike the time, it depends little on what else runs.
    pub cpu_seconds: f64,
    /// A check of all invariants after the start, as `wharf status --audit` does.
    pub audit_seconds: f64,
    /// The most memory that the process had during the start.
    pub peak_bytes: u64,
}

/// Measures one row.
///
/// # Errors
/// When the store cannot be built, the service cannot start from it, or its books are not those of the store.
pub fn run(options: &RecoveryOptions) -> anyhow::Result<RecoveryRow> {
    let directory = tempfile::tempdir_in(&options.directory).context("a directory for the stores")?;
    let built = directory.path().join("built");
    let shards = options.shards.unwrap_or_else(|| Config::embedded(built.clone()).engine.shards);
    let built_shards = options.built_shards.unwrap_or(shards);
    let store = run_step(&Step::Build(built.clone(), options.contents, built_shards))?;
    let store: Built = serde_json::from_value(store).context("what was built")?;
    let mut rows = Vec::new();
    for round in 0..options.rounds {
        let copy = directory.path().join(format!("start-{round}"));
        copy_store(&built, &copy).context("the store is copied")?;
        let start = run_step(&Step::Start(copy.clone(), shards, options.contents.seed))?;
        let start: Started = serde_json::from_value(start).context("what was started")?;
        check(&options.contents, &store, &start)?;
        rows.push(row(&options.contents, built_shards, &store, &start));
        fs::remove_dir_all(&copy).context("the copy is removed")?;
    }
    rows.sort_by(|one, next| one.recovery_seconds.total_cmp(&next.recovery_seconds));
    ensure!(!rows.is_empty(), "a row needs at least one round");
    Ok(rows.swap_remove(rows.len() / 2))
}

/// Runs a step in this process, and returns what it found.
///
/// # Errors
/// When the step fails.
pub fn run_here(step: &Step) -> anyhow::Result<Value> {
    match step {
        Step::Build(directory, contents, shards) => {
            Ok(serde_json::to_value(build(directory, contents, *shards)?)?)
        }
        Step::Start(directory, shards, seed) => Ok(serde_json::to_value(start(directory, *shards, *seed)?)?),
    }
}

fn run_step(step: &Step) -> anyhow::Result<Value> {
    let binary = std::env::current_exe().context("the path of this binary")?;
    let text = serde_json::to_string(step)?;
    let output = Command::new(binary).args(["recovery", "--step", &text]).stderr(Stdio::inherit()).output();
    let output = output.context("a step cannot be started")?;
    if !output.status.success() {
        bail!("a step failed: its message is above");
    }
    serde_json::from_slice(&output.stdout).context("a step printed no JSON")
}

/// Copies the files of a store, as they were when its process ended.
fn copy_store(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Checks that a start found what the store has.
fn check(contents: &Contents, store: &Built, start: &Started) -> anyhow::Result<()> {
    let wanted = (u64::from(contents.nodes), contents.allocations);
    let found = (start.nodes, start.allocations);
    ensure!(found == wanted, "the start has {found:?} nodes and allocations, and the store has {wanted:?}");
    let wanted = (store.tail_appends, store.tail_bytes);
    let found = (start.tail_appends, start.tail_bytes);
    ensure!(found == wanted, "the start applied {found:?} appends and bytes, and the tail has {wanted:?}");
    Ok(())
}

fn row(contents: &Contents, built_shards: u16, store: &Built, start: &Started) -> RecoveryRow {
    RecoveryRow {
        nodes: start.nodes,
        allocations: start.allocations,
        checkpoint_bytes: start.checkpoint_bytes,
        tail_records: store.tail_records,
        tail_appends: store.tail_appends,
        tail_bytes: store.tail_bytes,
        tail_requests: store.tail_requests,
        tail_refused: store.tail_refused,
        sessions: u64::from(contents.sessions),
        outcomes: store.outcomes,
        built_shards: u64::from(built_shards),
        shards: start.shards,
        recovery_seconds: start.total_seconds,
        store_seconds: start.store_seconds,
        engine_seconds: start.engine_seconds,
        cpu_seconds: start.cpu_seconds,
        audit_seconds: start.audit_seconds,
        peak_bytes: start.peak_bytes,
    }
}

impl fmt::Display for RecoveryRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Self { nodes, allocations, tail_records, tail_appends, tail_requests, tail_refused, .. } = self;
        let Self { sessions, outcomes, built_shards, shards, .. } = self;
        let Self { recovery_seconds, store_seconds, engine_seconds, cpu_seconds, audit_seconds, .. } = self;
        let checkpoint = mib(self.checkpoint_bytes);
        let tail = mib(self.tail_bytes);
        let peak = mib(self.peak_bytes);
        writeln!(f, "{nodes} nodes, {allocations} allocations, {shards} shards (left by {built_shards})")?;
        writeln!(f, "  checkpoint  {checkpoint:.1} MiB")?;
        writeln!(f, "  tail        {tail_records} records in {tail_appends} appends, {tail:.1} MiB")?;
        writeln!(f, "  clients     {tail_requests} requests in the tail, {tail_refused} of them refused")?;
        writeln!(f, "              {sessions} sessions with {outcomes} outcomes that are not acknowledged")?;
        writeln!(
            f,
            "  start       {recovery_seconds:.3} s: store {store_seconds:.3} s, engine {engine_seconds:.3} s"
        )?;
        write!(
            f,
            "  cost        {cpu_seconds:.2} s of processor time, {peak:.0} MiB; audit {audit_seconds:.3} s"
        )
    }
}
