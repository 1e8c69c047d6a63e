//! The audit log: calls that were refused because the peer has no right to them.
//!
//! Each is one event with the target [`TARGET`]. It goes to the log of the service and, if `audit_log` is set, to a file
//! per day in that directory. A peer can cause any number of refusals, so only some per second are written; the next one
//! says how many were left out.

use std::any::Any;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tracing::warn;
use tracing_appender::non_blocking::NonBlocking;
use tracing_appender::rolling::{Builder, InitError, Rotation};
use wharf_net::access::Denied;
use wharf_net::log_limit::LogLimit;

/// The target of audit events, for log filters.
pub const TARGET: &str = "wharf_audit";

/// The maximum number of refusals written per second.
const PER_SECOND_MAX: u64 = 100;

/// The number of days whose files are kept.
const DAYS_KEPT: usize = 30;

/// Writes refusals, up to a number per second.
#[derive(Debug)]
pub(crate) struct Audit {
    limit: LogLimit,
}

impl Default for Audit {
    fn default() -> Self {
        Self { limit: LogLimit::new(PER_SECOND_MAX) }
    }
}

impl Audit {
    /// Writes a refusal, or counts it as left out.
    pub(crate) fn note(&self, denied: &Denied<'_>) {
        let Some(left_out) = self.limit.admit() else { return };
        let Denied { peer, session, kind, fault } = denied;
        let name = peer.names.first().map_or("", String::as_str);
        let session = session.map(|session| session.to_string()).unwrap_or_default();
        warn!(
            target: TARGET,
            peer = peer.address, name, session, call = kind.name(), field = fault.field, left_out,
            "refused: {}", fault.message
        );
    }
}

/// Opens the files of the audit log in a directory, which is made for the user of the service alone if it does not exist.
/// They are written by a thread of their own, until the second value is dropped.
///
/// # Errors
/// When the directory cannot be created or written.
pub fn files(directory: &Path) -> Result<(NonBlocking, impl Any), InitError> {
    // The caller that opens the files says what is wrong with the directory, so this fault need not be told.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let files = Builder::new()
        .rotation(Rotation::DAILY)
        .filename_prefix("audit")
        .filename_suffix("jsonl")
        .max_log_files(DAYS_KEPT)
        .build(directory)?;
    Ok(tracing_appender::non_blocking(files))
}
