//! The processes that this command starts: the service, and the echo of the floor.
//!
//! Each is this same program. It prints where it serves, and stops when its standard input ends: so it also ends if this
//! process does.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use wharf_ops::daemon::Daemon;

use super::floor::EchoServer;
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

/// A process that serves. It is stopped when this is dropped.
pub(super) struct Peer {
    child: Child,
    /// `None` once the process was told to stop.
    stdin: Option<ChildStdin>,
    /// Kept open, so that the process can print.
    _stdout: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

impl Peer {
    /// Starts a process, and waits until it serves.
    pub(super) fn start(serve: &Serve) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary")?;
        let mut child = Command::new(binary)
            .args(["rpc", "--serve", &serde_json::to_string(serve)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a process that serves cannot be started")?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut line = String::new();
        stdout.read_line(&mut line).context("what a process that serves prints cannot be read")?;
        if line.is_empty() {
            let status = child.wait()?;
            bail!("a process that was to serve ended ({status}): its message is above");
        }
        let Greeting { address, certificates } =
            serde_json::from_str(&line).with_context(|| format!("`{}` is no greeting", line.trim()))?;
        let certificates = certificates.into_iter().map(CertificateDer::from).collect();
        Ok(Self { child, stdin, _stdout: stdout, address, certificates })
    }

    pub(super) fn process(&self) -> Process {
        Process::Other(self.child.id())
    }

    /// Stops the process.
    ///
    /// # Errors
    /// When it did not end as it should.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        drop(self.stdin.take());
        let status = self.child.wait().context("a process that serves cannot be waited for")?;
        anyhow::ensure!(status.success(), "a process that served ended with {status}: its message is above");
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.stdin.take().is_some() {
            // After an error. What it would say is of no use any more.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
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
        Serve::Service { directory, shards, mode, connections, seed, io_threads } => {
            let mode = MODES.into_iter().find(|known| known.name == mode).context("a mode by its name")?;
            let mut config = service::config(directory, *seed, Some(*shards));
            config.io_threads = io_threads.unwrap_or(config.io_threads);
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
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(&Greeting { address, certificates })?)?;
    stdout.flush()?;
    Ok(())
}

/// Waits until the process that started this one wants no more, or is gone.
fn wait_for_end() {
    // What is written there means nothing.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
