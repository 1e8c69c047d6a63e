//! Runs the real `wharf` binary, as a daemon with its own directory and as a command.
//!
//! Nothing here sleeps. The daemon prints its address on standard output, its log is read line by line, and
//! the end of its standard output is the end of the process. Every wait is for one of these, with a generous
//! limit, so that a failure never becomes a hang.

#![allow(unreachable_pub, reason = "its items are for the modules of one test binary")]

use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wharf_net::client::{Client, ClientConfig};
use wharf_ops::daemon::read_certificates;

mod command;
mod proxy;
pub use proxy::Proxy;
mod quic;
pub use quic::*;

/// The limit of every wait, far above what any of them takes even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Room for all answers that a test may count, so that the one who asks never waits.
pub const ANSWERS_ROOM: usize = 1 << 16;

/// A directory for one test: data, configuration and certificates.
pub struct Site {
    directory: TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file and returns its path as an argument.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("the directory can be written");
        text_of(&self.path(name))
    }

    pub fn data_dir(&self) -> String {
        text_of(&self.path("data"))
    }

    pub fn development_certificate(&self) -> String {
        text_of(&self.path("data").join("dev-cert.pem"))
    }

    /// Returns a command of the binary, in an environment without settings and with its own home directory.
    pub fn wharf(&self, arguments: &[&str]) -> Command {
        let mut command = command::wharf();
        command.env("HOME", self.directory.path()).env_remove("XDG_DATA_HOME");
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a command until it ends.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(&mut self.wharf(arguments))
    }

    /// Returns `wharf serve` on a port that the system chooses, with its store in this site. Flags in `more`
    /// replace these.
    fn serve_command(&self, more: &[&str]) -> Command {
        let data_dir = self.data_dir();
        let mut command = self.wharf(&["serve"]);
        for (flag, value) in
            [("--listen", "127.0.0.1:0"), ("--metrics-listen", ""), ("--data-dir", &data_dir)]
        {
            if !more.contains(&flag) {
                command.args([flag, value]);
            }
        }
        command.args(more);
        command
    }

    /// Starts a daemon that serves.
    #[track_caller]
    pub fn serve(&self, more: &[&str]) -> Service {
        Service::start(self.serve_command(more), self.development_certificate())
    }

    /// Starts a daemon that serves, with a command that is changed before.
    #[track_caller]
    pub fn serve_changed(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Service {
        let mut command = self.serve_command(more);
        change(&mut command);
        Service::start(command, self.development_certificate())
    }

    /// Runs a daemon that fails to start, with a command that is changed before.
    #[track_caller]
    pub fn serve_changed_and_fail(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Ended {
        let mut command = self.serve_command(more);
        change(&mut command);
        Ended::of(&mut command)
    }

    /// Runs a daemon that fails to start.
    #[track_caller]
    pub fn serve_and_fail(&self, more: &[&str]) -> Ended {
        Ended::of(&mut self.serve_command(more))
    }
}

fn text_of(path: &Path) -> String {
    path.to_str().expect("temporary paths are text").to_owned()
}

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn of(command: &mut Command) -> Self {
        Self::from(command.output().expect("the binary runs"))
    }

    /// Asserts the exit status, and that nothing panicked.
    #[track_caller]
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }

    /// Asserts that the output contains all of `texts`.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text) || self.err.contains(text), "expected `{text}` in {self:#?}");
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl From<Output> for Ended {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }
}

fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
}

/// A running command. Dropping it kills the process, so that it does not outlive a failed test.
pub struct UnderWay(Option<Child>);

impl UnderWay {
    pub fn of(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(Some(child.expect("the binary runs")))
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(self.0.as_ref().expect("not ended"), name);
    }

    /// Waits until the command has written a line with a text on standard error. What it has written until then is not part
    /// of what it has [`Ended`] with.
    #[track_caller]
    pub fn wait_for_error(&mut self, text: &str) {
        let child = self.0.as_mut().expect("not ended");
        let mut errors = BufReader::with_capacity(1, child.stderr.as_mut().expect("it is read here only"));
        let mut all = String::new();
        while !all.lines().any(|line| line.contains(text)) {
            let read = errors.read_line(&mut all).expect("output is text");
            assert!(read > 0, "the command has ended without `{text}`: {all}");
        }
    }

    /// Waits until the command ends.
    pub fn end(mut self) -> Ended {
        Ended::from(self.0.take().expect("not ended").wait_with_output().expect("a child"))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The lines of a log, read as they arrive.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// A serving daemon.
pub struct Service {
    child: Child,
    out: Receiver<String>,
    log: Arc<Log>,
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    certificate: String,
    site: Site,
}

impl Service {
    #[track_caller]
    fn start(mut command: Command, certificate: String) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = child.stdout.take().expect("piped");
        let stderr = child.stderr.take().expect("piped");
        let (sender, out) = sync_channel(1024);
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        let log = Arc::new(Log::default());
        let written = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lines.lock().expect("no panic").push(line);
                written.more.notify_all();
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut service =
            Self { child, out, log, address: nowhere, metrics: None, certificate, site: Site::new() };
        loop {
            let line = service.out.recv_timeout(PATIENCE);
            let line =
                line.unwrap_or_else(|error| panic!("it does not serve ({error}): {:#?}", service.log()));
            if let Some(address) = line.strip_prefix("metrics on ") {
                service.metrics = Some(address.parse().expect("an address"));
            } else if let Some(address) = line.strip_prefix("serving on ") {
                service.address = address.parse().expect("an address");
                return service;
            }
        }
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lines.lock().expect("no panic").clone()
    }

    /// Waits until the log has `count` lines with `text`. Returns the last of them.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str, count: usize) -> String {
        let mut lines = self.log.lines.lock().expect("no panic");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found: Vec<_> = lines.iter().filter(|line| line.contains(text)).collect();
            if found.len() >= count {
                return found[count - 1].clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the log does not say `{text}` {count} times: {lines:#?}");
            lines = self.log.more.wait_timeout(lines, left).expect("no panic").0;
        }
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Returns the peak resident memory of the process, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
        let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB");
        kib * 1024
    }

    /// Waits until the process ends.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        loop {
            match self.out.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().expect("a child"),
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {:#?}", self.log()),
            }
        }
    }

    /// Stops the daemon and asserts a clean exit.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0), "{:#?}", self.log());
    }

    /// Kills the daemon, as a power failure would.
    #[track_caller]
    pub fn kill(mut self) {
        self.kill_now();
    }

    /// Like [`kill`](Self::kill), for a caller that still wants its log.
    #[track_caller]
    pub fn kill_now(&mut self) {
        self.child.kill().expect("it runs");
        assert!(!self.wait().success());
    }

    /// Runs a command against this service.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.run_trusting(&self.certificate, arguments)
    }

    pub fn run_trusting(&self, ca: &str, arguments: &[&str]) -> Ended {
        Ended::of(&mut self.command(ca, arguments))
    }

    /// Starts a command against this service without waiting for its end.
    pub fn begin(&self, arguments: &[&str]) -> UnderWay {
        UnderWay::of(&mut self.command(&self.certificate, arguments))
    }

    fn command(&self, ca: &str, arguments: &[&str]) -> Command {
        let address = self.address.to_string();
        let mut all = arguments.to_vec();
        all.extend(["--server", &address, "--ca", ca]);
        self.site.wharf(&all)
    }

    /// Returns the `--json` output of a command that succeeds.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        self.run(&all).with(0).json()
    }

    /// Repeats a command with `--json` until its output satisfies `wished`.
    #[track_caller]
    pub fn until(&self, arguments: &[&str], wished: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.json(arguments);
            if wished(&said) {
                return;
            }
            assert!(Instant::now() < deadline, "{arguments:?} never became as wished: {said}");
        }
    }

    pub async fn client(&self) -> Client {
        self.client_trusting(&self.certificate).await
    }

    pub async fn client_trusting(&self, ca: &str) -> Client {
        within(Client::connect(self.client_config(ca))).await.expect("the service is there")
    }

    pub fn client_config(&self, ca: &str) -> ClientConfig {
        ClientConfig {
            server: self.address,
            server_name: "localhost".to_owned(),
            roots: read_certificates(Path::new(ca)).expect("it was written"),
            certificate: None,
            name: "test".to_owned(),
            retry_for: Duration::ZERO,
        }
    }

    /// Requests a page over HTTP. Returns its head and body.
    pub fn http(&self, path: &str) -> (String, String) {
        let mut stream =
            TcpStream::connect(self.metrics.expect("metrics are on")).expect("metrics are served");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").expect("it listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let (head, body) = text.split_once("\r\n\r\n").expect("an HTTP answer");
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Has an effect only if the test did not stop the service; a process that has ended is not killed
        // again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the sum of a number over the shards of a status.
#[track_caller]
pub fn sum(status: &Value, key: &str) -> u64 {
    let shards = status["shards"].as_array().expect("a list");
    shards.iter().map(|shard| shard[key].as_u64().expect("a number")).sum()
}

/// Creates a runtime for a client. Connections make no progress between two calls of `block_on`.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns the output of `future`. Panics if it takes too long.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing came of what was awaited")
}
