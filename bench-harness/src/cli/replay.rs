//! `wharf-bench replay`.

use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tempfile::NamedTempFile;
use wharf_core::request::Policy;
use wharf_ops::cli::{ConnectArgs, say};
use wharf_ops::typical_pods;

use crate::replay::{
    IN_FLIGHT_DEFAULT, Progress, ReplayOptions, Silent, replay_in_process, replay_on, write_placements,
};
use crate::target::RemoteTarget;
use crate::trace::{Trace, openb};
use crate::workload::sample;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Alibaba's GPU cluster trace of 2023.
    Openb,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The format of the files.
    #[arg(long, value_enum, default_value_t = Format::Openb)]
    format: Format,
    /// The nodes of the trace. Without files, the embedded sample is replayed.
    #[arg(long, value_name = "FILE", requires = "pods")]
    nodes: Option<PathBuf>,
    /// The pods of the trace.
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pods: Option<PathBuf>,
    /// The policy that chooses among fitting nodes: least-fit, best-fit, first-fit, next-fit, random, fgd,
    /// hybrid, spread or least-stranded.
    #[arg(long, default_value_t = Policy::default())]
    policy: Policy,
    /// The number of shards of the engine in process, each on its own thread; a server has its own setting.
    #[arg(long, default_value_t = 1, conflicts_with = "connect")]
    shards: u16,
    /// The seed of routing and of the random policy, in process; a server has its own setting.
    #[arg(long, default_value_t = 0, conflicts_with = "connect")]
    seed: u64,
    /// Replay to a server over QUIC (HOST:PORT) instead of an engine in this process. The server must have no
    /// nodes before, and keeps those of the trace afterwards.
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
    /// With --connect: PEM file of the certificate authority, or of the server's own certificate. If not
    /// given, the development certificate in this machine's data directory.
    #[arg(long, value_name = "FILE", requires = "connect")]
    ca: Option<PathBuf>,
    /// With --connect: the name in the server's certificate, if it is not the host.
    #[arg(long, value_name = "NAME", requires = "connect")]
    server_name: Option<String>,
    /// With --connect: PEM file of this client's certificate, for services that want one.
    #[arg(long, value_name = "FILE", requires_all = ["connect", "key"])]
    cert: Option<PathBuf>,
    /// With --connect: PEM file of the key of --cert.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The maximum number of orders in flight. With one shard, the placements do not depend on it.
    #[arg(long, value_name = "W", default_value_t = IN_FLIGHT_DEFAULT)]
    in_flight: usize,
    /// Write a CSV of pod,node,gpu_indices to this file.
    #[arg(long, value_name = "FILE")]
    placements: Option<PathBuf>,
    /// Print one JSON object instead of a summary.
    #[arg(long)]
    json: bool,
    /// Replay creation and deletion times as virtual time. Otherwise pods arrive in file order and never
    /// leave.
    #[arg(long)]
    with_departures: bool,
    /// Typical pods of the policies fgd and least-stranded: a pod list, or shapes with a column `count`. If
    /// not given, they are learned from arriving pods; a server has its own setting.
    #[arg(long, value_name = "FILE", conflicts_with = "connect")]
    typical_pods: Option<PathBuf>,
    /// Report the allocation at these amounts of arrived GPU demand, in percent of the cluster's GPUs.
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', conflicts_with = "with_departures")]
    report_at: Vec<u32>,
    /// Also time a linear scan over all nodes. With one shard, its placements must be the same.
    #[arg(long)]
    baseline: bool,
}

impl ReplayArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let trace = self.trace()?;
        // Created before the replay, so that an output that cannot be written fails early. Created in the
        // same directory, so that an existing file is replaced only by a complete new one.
        let output = self.placements.as_ref().map(|path| {
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let file = NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new(".")));
            file.with_context(|| format!("{}: give a file that can be written", path.display()))
        });
        let output = output.transpose()?;
        let options = ReplayOptions {
            policy: self.policy,
            shards: self.shards,
            seed: self.seed,
            in_flight: self.in_flight,
            departures: self.with_departures,
            baseline: self.baseline,
            typical_shapes: self.typical_pods.as_deref().map(typical_pods::read).transpose()?.map(Arc::new),
            report_at: self.report_at.clone(),
        };
        let mut progress = progress(trace.pods.len() as u64, "pods");
        let replay = match self.connect_args() {
            None => replay_in_process(&trace, &options, progress.as_mut())?,
            Some(connect) => {
                let mut server = RemoteTarget::open(|| connect.connect())?;
                replay_on(&mut server, &trace, &options, progress.as_mut())?
            }
        };
        drop(progress);
        if let Some(output) = output {
            write_placements(&trace, &replay.decisions, output.as_file()).context("the placements file")?;
            let path = self.placements.as_deref().expect("there is an output because there is a path");
            output.persist(path).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        if self.json {
            say(format_args!("{}", serde_json::to_string(&replay.report)?));
        } else {
            say(format_args!("{}", replay.report));
        }
        Ok(())
    }

    fn connect_args(&self) -> Option<ConnectArgs> {
        let ca = self.ca.clone();
        let server_name = self.server_name.clone();
        let cert = self.cert.clone();
        let key = self.key.clone();
        Some(ConnectArgs { server: self.connect.clone()?, server_name, ca, cert, key, json: false })
    }

    fn trace(&self) -> anyhow::Result<Trace> {
        match (&self.nodes, &self.pods) {
            (Some(nodes), Some(pods)) => match self.format {
                Format::Openb => Ok(openb::read(nodes, pods)?),
            },
            _ => Ok(sample()?),
        }
    }
}

/// Returns a progress bar on a terminal, or none, so that logs stay clean.
pub(super) fn progress(of: u64, what: &str) -> Box<dyn Progress> {
    if !stderr().is_terminal() {
        return Box::new(Silent);
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}, {per_sec}, {eta} left");
    let style = style.expect("the template is a constant");
    let bar = ProgressBar::with_draw_target(Some(of), ProgressDrawTarget::stderr());
    Box::new(Bar(bar.with_style(style).with_message(what.to_owned())))
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn advance(&mut self, decided: u64) {
        self.0.set_position(decided);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
