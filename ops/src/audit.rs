//! The audit log: calls that were refused because the peer has no right to them.
//!
//! Each is one event with the target [`TARGET`]. It goes to the log of the service and, if `audit_log` is set, to a file
//! per day in that directory. A peer can cause any number of refusals, so only some per second are written; the next one
//! says how many were left out.

use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::warn;
use tracing_appender::non_blocking::NonBlocking;
use tracing_appender::rolling::{Builder, InitError, Rotation};
use wharf_net::access::Denied;

/// The target of audit events, for log filters.
pub const TARGET: &str = "wharf_audit";

/// The maximum number of refusals written per second.
const PER_SECOND_MAX: u64 = 100;

/// The number of days whose files are kept.
const DAYS_KEPT: usize = 30;

/// Writes refusals, up to a number per second.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// The second of the last refusal, since the epoch.
    second: AtomicU64,
    /// The refusals of that second.
    count: AtomicU64,
    left_out: AtomicU64,
}

impl Audit {
    /// Writes a refusal, or counts it as left out.
    pub(crate) fn note(&self, denied: &Denied<'_>) {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let Some(left_out) = self.admit(second) else { return };
        let Denied { peer, session, kind, fault } = denied;
        let name = peer.names.first().map_or("", String::as_str);
        let session = session.map(|session| session.to_string()).unwrap_or_default();
        warn!(
            target: TARGET,
            peer = peer.address, name, session, call = kind.name(), field = fault.field, left_out,
            "refused: {}", fault.message
        );
    }

    /// Returns how many were left out before this one, or `None` if this one is left out too.
    fn admit(&self, second: u64) -> Option<u64> {
        // Relaxed: counters of their own. Two threads at the turn of a second may write a few more.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < PER_SECOND_MAX {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Opens the files of the audit log in a directory. They are written by a thread of their own, until the second
/// value is dropped.
///
/// # Errors
/// When the directory cannot be created or written.
pub fn files(directory: &Path) -> Result<(NonBlocking, impl Any), InitError> {
    let files = Builder::new()
        .rotation(Rotation::DAILY)
        .filename_prefix("audit")
        .filename_suffix("jsonl")
        .max_log_files(DAYS_KEPT)
        .build(directory)?;
    Ok(tracing_appender::non_blocking(files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writes_so_many_and_the_next_one_says_how_many_were_left_out() {
        let audit = Audit::default();
        let written = (0..PER_SECOND_MAX + 50).filter(|_| audit.admit(7).is_some()).count() as u64;
        assert_eq!(written, PER_SECOND_MAX);
        assert_eq!(audit.admit(8), Some(50));
        assert_eq!(audit.admit(8), Some(0));
    }
}
