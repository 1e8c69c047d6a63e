//! The node agent. It reports a machine to a service and sends heartbeats.
//!
//! Accelerators are read on a separate thread, so that a hanging driver does not stop the heartbeats of an
//! otherwise healthy machine. The agent watches the readings and reports a change at once. The service
//! assigns GPU instance numbers. It identifies devices by UUID and keeps their numbers over restarts of
//! either side, in whichever order the driver lists them.

mod backoff;
pub use backoff::Backoff;
mod fake;
pub use fake::Fake;
mod inventory;
pub use inventory::{Accelerators, Gpu, Inventory};
mod machine;
pub use machine::Machine;
mod nvml;
pub use nvml::NvmlInventory;
mod report;
pub use report::{Shape, report};

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    DrainRequest, Fault, HeartbeatRequest, Name, ReasonCode, ReportReply, ReportRequest,
};

/// The time limit of one call. After it, the connection counts as lost.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// The interval between readings of the accelerators, unless heartbeats are more frequent.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Receives the agent's events.
pub trait Journal {
    /// The agent connected, and the service accepted its report.
    fn reported(&mut self, request: &ReportRequest, reply: &ReportReply);
    /// Something failed. The agent retries after `pause`.
    fn failed(&mut self, error: &anyhow::Error, pause: Duration);
}

/// The agent of one machine.
pub struct Agent<J> {
    /// The reported properties except accelerators.
    pub shape: Shape,
    /// The latest accelerators.
    pub accelerators: watch::Receiver<Accelerators>,
    /// The interval between heartbeats. The service's interval applies if it is shorter.
    pub interval: Option<Duration>,
    /// True if the agent drains its node when it exits.
    pub drain_on_exit: bool,
    /// The receiver of the agent's events.
    pub journal: J,
    /// The version of the last report. It grows by one per report.
    pub version: u64,
}

/// Reads accelerators periodically on a separate thread for as long as the returned receiver exists. The
/// first reading happens before this function returns. Later failures are passed to `failed`.
///
/// # Errors
/// When the first reading fails, or the thread cannot be started.
pub fn watch_accelerators(
    mut inventory: Box<dyn Inventory>,
    interval: Option<Duration>,
    mut failed: impl FnMut(&anyhow::Error) + Send + 'static,
) -> anyhow::Result<watch::Receiver<Accelerators>> {
    let (sender, receiver) = watch::channel(inventory.read()?);
    let pause = interval.unwrap_or(READ_INTERVAL).min(READ_INTERVAL);
    std::thread::Builder::new().name("wharf-inventory".to_owned()).spawn(move || {
        let mut told = String::new();
        while !sender.is_closed() {
            std::thread::sleep(pause);
            match inventory.read() {
                Ok(found) => {
                    told.clear();
                    sender.send_if_modified(|known| {
                        let changed = *known != found;
                        *known = found;
                        changed
                    });
                }
                // Each fault is reported once, not at every reading.
                Err(error) if error.to_string() == told => {}
                Err(error) => {
                    told = error.to_string();
                    failed(&error);
                }
            }
        }
    })?;
    Ok(receiver)
}

async fn within<T>(call: impl Future<Output = Result<T, ClientError>>) -> anyhow::Result<T> {
    match timeout(CALL_PATIENCE, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => anyhow::bail!("the service did not answer within {} s", CALL_PATIENCE.as_secs()),
    }
}

fn refused(reason: ReasonCode, fault: Option<Fault>) -> anyhow::Error {
    fault.map_or_else(
        || anyhow::anyhow!("the service answered {reason}"),
        |fault| ClientError::Fault(fault).into(),
    )
}

impl<J: Journal> Agent<J> {
    /// Sends one report and one heartbeat over `client`, so that the node joins.
    ///
    /// # Errors
    /// When the service refuses the report, or the connection is lost.
    pub async fn report_once(&mut self, client: &Client) -> anyhow::Result<ReportReply> {
        self.version += 1;
        let request = report(&self.shape, &self.accelerators.borrow_and_update(), self.version);
        let reply = within(client.report(&request)).await?;
        if !reply.reason.is_done() {
            return Err(refused(reply.reason, reply.fault));
        }
        self.journal.reported(&request, &reply);
        let beat = HeartbeatRequest { node: reply.node, version: self.version };
        within(client.heartbeat(&beat)).await?;
        Ok(reply)
    }

    /// Runs until `stop` resolves: connects by `connect`, reports and sends heartbeats. After an error it
    /// starts over, with growing pauses.
    pub async fn run<C: Future<Output = anyhow::Result<Client>>>(
        mut self,
        mut connect: impl FnMut() -> C,
        stop: impl Future<Output = ()>,
    ) {
        tokio::pin!(stop);
        let mut backoff = Backoff::default();
        loop {
            let connected = tokio::select! {
                () = &mut stop => return,
                connected = connect() => connected,
            };
            let error = match connected {
                Ok(client) => match self.serve(&client, &mut stop, &mut backoff).await {
                    Ok(()) => return self.leave(client).await,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let pause = backoff.draw();
            self.journal.failed(&error, pause);
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Serves one connection: reports, then sends heartbeats until `stop` resolves or something fails.
    async fn serve(
        &mut self,
        client: &Client,
        stop: &mut (impl Future<Output = ()> + Unpin),
        backoff: &mut Backoff,
    ) -> anyhow::Result<()> {
        let mut reply = self.report_once(client).await?;
        backoff.reset();
        loop {
            let wanted = Duration::from_millis(u64::from(reply.interval_ms.max(1)));
            let next = Instant::now() + self.interval.map_or(wanted, |own| own.min(wanted));
            let changed = tokio::select! {
                () = &mut *stop => return Ok(()),
                changed = self.accelerators.changed() => {
                    changed.context("the thread that watches the accelerators has ended: start the agent again")?;
                    true
                }
                () = sleep_until(next) => false,
            };
            let beat = HeartbeatRequest { node: reply.node, version: self.version };
            if changed || within(client.heartbeat(&beat)).await?.report_again {
                reply = self.report_once(client).await?;
            }
        }
    }

    /// Drains the node if configured, then closes the connection. The node stays registered.
    async fn leave(&mut self, client: Client) {
        if self.drain_on_exit {
            let names = vec![Name(self.shape.name.clone())];
            if let Err(error) = within(client.drain_nodes(&DrainRequest { names, undo: false })).await {
                self.journal.failed(&error, Duration::ZERO);
            }
        }
        client.close().await;
    }
}
