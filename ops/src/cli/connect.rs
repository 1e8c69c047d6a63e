//! Connecting commands to a service.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use tokio::time::timeout;
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::{
    Fault, JobReply, NodeReply, PriorityClassReply, QueueReply, ReasonCode, ReleaseReply, RemoveGroupReply,
    RenewedBody,
};

use super::{Ended, print};
use crate::config::default_data_dir;
use crate::daemon::{DEVELOPMENT_CERTIFICATE, client_certificate, read_certificates};
use crate::units::duration;

/// Time for which a command tries to resume its session when its connection is lost.
const RETRY_FOR: Duration = Duration::from_secs(30);

/// The time limit of connecting to one address. QUIC itself would try for half a minute.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Wrong usage that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// The address of the service, and the certificate to trust.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// Address of the service: HOST:PORT.
    #[arg(long, env = "WHARF_SERVER", default_value = "127.0.0.1:7411", global = true)]
    pub server: String,
    /// The name in the server's certificate, if it is not the host of --server.
    #[arg(long, env = "WHARF_SERVER_NAME", global = true)]
    pub server_name: Option<String>,
    /// PEM file of the certificate authority to trust, or of the server's self-signed certificate. If not
    /// given, the development certificate in this machine's data directory.
    #[arg(long, env = "WHARF_CA", global = true)]
    pub ca: Option<PathBuf>,
    /// PEM file of this client's certificate, for services that want one.
    #[arg(long, env = "WHARF_CERT", requires = "key", global = true)]
    pub cert: Option<PathBuf>,
    /// PEM file of the key of --cert.
    #[arg(long, env = "WHARF_KEY", requires = "cert", global = true)]
    pub key: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WHARF_JSON", global = true)]
    pub json: bool,
}

/// How long a request is of use, for commands whose requests wait for their turns at the shards.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct DeadlineArgs {
    /// Do not do it any more after this time, such as 500ms or 5s, counted from when the service has read the
    /// request. It is then refused with deadline_exceeded, or with overloaded as soon as it would be late.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<Duration>,
}

impl DeadlineArgs {
    /// Returns a handle to the client's connection whose requests have this deadline.
    pub(super) fn of(self, client: &Client) -> Client {
        self.deadline.map_or_else(|| client.clone(), |time| client.within(time))
    }
}

/// A reply about one item.
pub(super) trait Outcome {
    /// Returns its reason.
    fn reason(&self) -> ReasonCode;
    /// Returns what is wrong, if it was not done.
    fn fault(&self) -> Option<&Fault>;
}

macro_rules! outcomes {
    ($($reply:ty)*) => {$(
        impl Outcome for $reply {
            fn reason(&self) -> ReasonCode {
                self.reason
            }

            fn fault(&self) -> Option<&Fault> {
                self.fault.as_ref()
            }
        }
    )*};
}
outcomes! { JobReply NodeReply PriorityClassReply QueueReply ReleaseReply RemoveGroupReply RenewedBody }

/// How the replies for single items are printed.
pub(super) struct Each<'a, I, R> {
    /// Returns the item as a message about a fault names it.
    pub(super) subject: fn(&I) -> String,
    /// Returns what people are told if it was done.
    pub(super) done: &'a dyn Fn(&I, &R) -> String,
    /// Returns the fields of the reply in JSON that come before the reason, and those that come after it.
    pub(super) fields: fn(&I, &R) -> (Value, Value),
}

impl<I, R: Outcome> Each<'_, I, R> {
    fn view(&self, item: &I, reply: &R) -> Value {
        let fields = (self.fields)(item, reply);
        let mut view = fields.0;
        view["reason"] = reply.reason().to_string().into();
        for (name, value) in fields.1.as_object().into_iter().flatten() {
            view[name] = value.clone();
        }
        view["fault"] = print::fault_view(reply.fault());
        view
    }

    fn say(&self, item: &I, reply: &R) {
        match reply.fault() {
            Some(fault) => print::say(format_args!("{}: {fault}", (self.subject)(item))),
            None => print::say(format_args!("{}", (self.done)(item, reply))),
        }
    }
}

impl ConnectArgs {
    /// Connects to the service.
    ///
    /// # Errors
    /// When the address cannot be resolved, the certificate cannot be read, or no connection is made.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        let addresses = resolve(&self.server)?;
        let host = self.server.rsplit_once(':').map_or(self.server.as_str(), |(host, _)| host);
        let server_name =
            self.server_name.clone().unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
        let ca = self.ca.clone().unwrap_or_else(|| default_data_dir().join(DEVELOPMENT_CERTIFICATE));
        let roots = read_certificates(&ca).context(
            "no certificate to trust: give --ca FILE (the server's data directory holds dev-cert.pem)",
        )?;
        let certificate = match (&self.cert, &self.key) {
            (Some(chain), Some(key)) => Some(client_certificate(chain, key)?),
            _ => None,
        };
        let name = concat!("wharf ", env!("CARGO_PKG_VERSION")).to_owned();
        // A name may have several addresses (`localhost` often has two), and the service may listen on only
        // one.
        let mut failed = None;
        for server in addresses {
            let server_name = server_name.clone();
            let roots = roots.clone();
            let name = name.clone();
            let certificate = certificate.clone();
            let config = ClientConfig { server, server_name, roots, certificate, name, retry_for: RETRY_FOR };
            match timeout(CONNECT_PATIENCE, Client::connect(config)).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => {
                    let message =
                        "nothing answers there: is the server running, and is the address right?".to_owned();
                    failed = Some(ClientError::Connect { server, message });
                }
            }
        }
        Err(failed.map_or_else(
            || Usage(format!("--server {}: the name has no address", self.server)).into(),
            Into::into,
        ))
    }

    /// Connects, asks the service, and closes the connection.
    pub(super) async fn ask<T, E: Into<anyhow::Error>>(
        &self,
        question: impl AsyncFnOnce(&Client) -> Result<T, E>,
    ) -> anyhow::Result<T> {
        let client = self.connect().await?;
        let reply = question(&client).await;
        // Also after a refusal: the service keeps a connection that is not closed until it has been silent for long.
        client.close().await;
        reply.map_err(Into::into)
    }

    /// Reads a list page by page. `page` gets the last item so far, and returns the next items and whether there are
    /// more.
    pub(super) async fn list<T>(
        &self,
        page: impl AsyncFn(&Client, Option<&T>) -> Result<(Vec<T>, bool), ClientError>,
    ) -> anyhow::Result<Vec<T>> {
        let all = async |client: &Client| {
            let mut all = Vec::new();
            loop {
                let (items, more) = page(client, all.last()).await?;
                let is_last = items.is_empty() || !more;
                all.extend(items);
                if is_last {
                    return Ok::<_, ClientError>(all);
                }
            }
        };
        self.ask(all).await
    }

    /// Asks about all `items`, at most `most` at a time, and prints the reply for each. If a question fails, the
    /// earlier replies are printed before the error is returned.
    pub(super) async fn ask_each<I, R: Outcome>(
        &self,
        items: &[I],
        most: usize,
        question: impl AsyncFn(&Client, &[I]) -> Result<Vec<R>, ClientError>,
        print: Each<'_, I, R>,
    ) -> anyhow::Result<Ended> {
        let client = self.connect().await?;
        let mut replies = Vec::new();
        let mut failed = None;
        for items in items.chunks(most) {
            match question(&client, items).await {
                Ok(more) => replies.extend(more),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        client.close().await;
        let printed = || items.iter().zip(&replies);
        let is_done = replies.iter().all(|reply| reply.reason().is_done());
        if let Some(error) = failed.take_if(|_| replies.is_empty()) {
            return Err(error.into());
        }
        let view = || printed().map(|(item, reply)| print.view(item, reply)).collect();
        let ended = self.show(is_done, view, || printed().for_each(|(item, reply)| print.say(item, reply)));
        failed.map_or(ended, |error| Err(error.into()))
    }

    /// Prints a reply, as JSON or for people. `is_done` tells whether the service did what was asked.
    pub(super) fn show(
        &self,
        is_done: bool,
        view: impl FnOnce() -> Value,
        say: impl FnOnce(),
    ) -> anyhow::Result<Ended> {
        if self.json {
            print::json(&view());
        } else {
            say();
        }
        Ok(if is_done { Ended::Done } else { Ended::Refused })
    }
}

fn resolve(server: &str) -> Result<Vec<SocketAddr>, Usage> {
    let addresses = server.to_socket_addrs();
    let wrong = |error| Usage(format!("--server {server}: {error}; give HOST:PORT, such as 127.0.0.1:7411"));
    addresses.map(Iterator::collect).map_err(wrong)
}

/// Runs a command on its own runtime.
pub(super) fn block_on(command: impl Future<Output = anyhow::Result<Ended>>) -> anyhow::Result<Ended> {
    block_on_any(command)?
}

/// Runs a part of a command on its own runtime.
pub(super) fn block_on_any<T>(part: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the runtime")?.block_on(part))
}
