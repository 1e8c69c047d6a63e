//! The log of a service, and its audit log.

use std::any::Any;

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::audit;
use crate::config::{Config, log_filter};

/// The format of logs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// An object per line.
    Json,
}

/// Changes the filter of the log.
pub type LogFilter = reload::Handle<EnvFilter, Registry>;

/// Starts the logs of this process, as its settings say. The audit log is written until the guard is dropped.
///
/// # Errors
/// When the filter is none, the audit log cannot be written, or the process has logs already.
pub fn start(
    config: &Config,
    format: LogFormat,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    in_colour: bool,
) -> anyhow::Result<(LogFilter, Option<Box<dyn Any>>)> {
    let (layer, handle) = reload::Layer::new(log_filter(config.log())?);
    let writer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(in_colour);
    // Each log has a filter of its own: what `log` leaves out is in the audit log.
    let writer = match format {
        LogFormat::Text => writer.boxed(),
        LogFormat::Json => writer.json().boxed(),
    };
    let mut guard = None;
    let mut audit_layer = None;
    if let Some(directory) = &config.audit_log {
        let (files, until_dropped) = audit::files(directory)
            .with_context(|| format!("the audit log cannot be written to {}", directory.display()))?;
        guard = Some(Box::new(until_dropped) as Box<dyn Any>);
        let of_audit = Targets::new().with_target(audit::TARGET, tracing::Level::INFO);
        audit_layer = Some(tracing_subscriber::fmt::layer().json().with_writer(files).with_filter(of_audit));
    }
    let registry = tracing_subscriber::registry().with(writer.with_filter(layer)).with(audit_layer);
    registry.try_init().context("logging is set up twice")?;
    Ok((handle, guard))
}
