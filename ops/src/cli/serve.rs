//! `wharf serve`: the daemon, its metrics and its signals.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use clap::Args;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use super::Ended;
use crate::config::{Config, Overrides, log_filter};
use crate::daemon::Daemon;
use crate::journal;
use crate::logging::{self, LogFilter, LogFormat};
use crate::metrics::Metrics;
use wharf_net::server::RegistrarHandle;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// TOML file of settings. Environment variables (WHARF_LISTEN, …) and flags override it.
    #[arg(long, env = "WHARF_CONFIG")]
    config: Option<PathBuf>,
    /// Address of the QUIC service [default: 127.0.0.1:7411].
    #[arg(long)]
    listen: Option<String>,
    /// Address of the Prometheus metrics over HTTP, or "" for none [default: 127.0.0.1:7412].
    #[arg(long)]
    metrics_listen: Option<String>,
    /// Directory of the store and the development certificate.
    #[arg(long)]
    data_dir: Option<String>,
    /// When a reply leaves: sync, os or memory [default: sync].
    #[arg(long)]
    durability: Option<String>,
    /// The number of shards [default: one per core that is not used by an I/O thread].
    #[arg(long)]
    shards: Option<String>,
    /// The number of I/O threads [default: one per four cores, at most 16].
    #[arg(long)]
    io_threads: Option<String>,
    /// Do not pin shard threads to cores.
    #[arg(long)]
    no_pin: bool,
    /// The policy of requests that name none [default: least-stranded].
    #[arg(long)]
    policy: Option<String>,
    /// The log filter, such as info or wharf_net=debug [default: info].
    #[arg(long)]
    log: Option<String>,
    /// The format of logs on standard error.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

impl ServeArgs {
    fn overrides(&self) -> Overrides {
        let given = [
            ("listen", self.listen.clone()),
            ("metrics_listen", self.metrics_listen.clone()),
            ("data_dir", self.data_dir.clone()),
            ("durability", self.durability.clone()),
            ("shards", self.shards.clone()),
            ("io_threads", self.io_threads.clone()),
            ("pin", self.no_pin.then(|| "false".to_owned())),
            ("policy", self.policy.clone()),
            ("log", self.log.clone()),
        ];
        let settings = given.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Overrides { file: self.config.clone(), settings }
    }
}

/// Aborts the process when a thread panics. A panic is a broken invariant, and the service must not answer
/// from books that may be wrong. A panic of the database over a damaged file becomes an error of the start.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if journal::becomes_error() {
            return;
        }
        report(panic);
        error!(%panic, "a broken invariant stops the service");
        std::process::abort();
    }));
}

pub(super) fn run(args: ServeArgs) -> anyhow::Result<Ended> {
    let config = Config::load(&args.overrides())?;
    // Its files name clients, and have keys and tokens of sessions. So each is made for the user of the service alone, also by
    // libraries that give no mode.
    umask(Mode::RWXG | Mode::RWXO);
    let (log, _audit) =
        logging::start(&config, args.log_format, std::io::stderr, std::io::stderr().is_terminal())?;
    abort_on_panic();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, config, log))
}

async fn serve(args: ServeArgs, config: Config, log: LogFilter) -> anyhow::Result<Ended> {
    // Before the daemon starts, so that a signal during startup is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let metrics_listen = config.metrics_listen;
    let listener = match metrics_listen {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| {
            format!("cannot serve metrics on {address} (`metrics_listen` chooses the address, \"\" turns them off)")
        })?),
        None => None,
    };
    let mut daemon = Daemon::start(config)?;
    let metrics = match listener {
        Some(listener) => {
            let address = listener.local_addr().context("the metrics' socket has no address")?;
            greet(format_args!("metrics on {address}"));
            Some(tokio::spawn(serve_metrics(listener, &daemon)))
        }
        None => None,
    };
    // Last: a reader of this line may connect at once.
    greet(format_args!("serving on {}", daemon.address));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = daemon.failed() => break,
            _ = hangup.recv() => reload_settings(&mut daemon, &args, &log),
        }
    }
    info!("stopping: what was accepted is answered first");
    if let Some(metrics) = metrics {
        metrics.abort();
        let _ = metrics.await;
    }
    daemon.stop().await?;
    Ok(Ended::Done)
}

/// Prints a line for the process that started the service. A closed standard output does not stop the
/// service, because its start has already begun a new run.
fn greet(line: std::fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        warn!(%error, "standard output cannot be written: {line}");
    }
}

/// Reloads the settings that can change. If any is invalid, nothing changes.
fn reload_settings(daemon: &mut Daemon, args: &ServeArgs, log: &LogFilter) {
    let reloaded = (|| -> anyhow::Result<()> {
        let config = Config::load(&args.overrides())?;
        let filter = log_filter(config.log())?;
        daemon.reload(config)?;
        log.reload(filter).context("logging is gone")
    })();
    match reloaded {
        Ok(()) => info!("settings reloaded"),
        Err(error) => warn!(error = super::message(&error), "settings not reloaded: the old ones stay"),
    }
}

fn serve_metrics(listener: TcpListener, daemon: &Daemon) -> impl Future<Output = ()> + use<> {
    let metrics = Arc::clone(&daemon.metrics);
    let registrar = daemon.registrar.clone();
    async move {
        let scrape = move || scrape(Arc::clone(&metrics), registrar.clone());
        let routes = Router::new().route("/metrics", get(scrape)).route("/healthz", get(async || "ok\n"));
        if let Err(error) = axum::serve(listener, routes).await {
            warn!(%error, "metrics are not served any more");
        }
    }
}

async fn scrape(
    metrics: Arc<Metrics>,
    registrar: RegistrarHandle,
) -> Result<([(axum::http::HeaderName, &'static str); 1], String), (StatusCode, String)> {
    let text = metrics.scrape(&registrar).await.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(axum::http::header::CONTENT_TYPE, content_type)], text))
}
