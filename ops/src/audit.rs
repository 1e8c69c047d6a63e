//! The audit log: calls that were refused because the peer has no right to them.
//!
//! Each is one event with the target [`TARGET`]. It goes to the log of the service and, if `audit_log` is set, to a file
//! per day in that directory. A peer can cause any number of refusals, so only some per second are written; the next one
//! says how many were left out.

use std::any::Any;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use time::{Date, OffsetDateTime};
use tracing::warn;
use tracing_appender::non_blocking::NonBlocking;
use wharf_net::access::Denied;
use wharf_net::log_limit::LogLimit;

/// The target of audit events, for log filters.
pub const TARGET: &str = "wharf_audit";

/// The maximum number of refusals written per second.
const PER_SECOND_MAX: u64 = 100;

/// The number of days whose files are kept.
const DAYS_KEPT: usize = 30;

/// The mode of the directory and of the files: they name clients and what these tried.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

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
/// The files are for that user alone in any case. They are written by a thread of their own, until the second value is
/// dropped.
///
/// # Errors
/// When the directory cannot be created or written.
pub fn files(directory: &Path) -> io::Result<(NonBlocking, impl Any)> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    let days = Days::open(directory, today())?;
    Ok(tracing_appender::non_blocking(days))
}

/// Returns the day of the files: that of UTC.
fn today() -> Date {
    OffsetDateTime::now_utc().date()
}

/// The files of the audit log, one per day.
#[derive(Debug)]
struct Days {
    directory: PathBuf,
    day: Date,
    file: File,
}

impl Days {
    fn open(directory: &Path, day: Date) -> io::Result<Self> {
        let file = open_day(directory, day)?;
        forget_old(directory);
        Ok(Self { directory: directory.to_owned(), day, file })
    }

    /// Goes on to the file of a day. If that cannot be opened, the lines go on to the file before, and the next line tries
    /// again.
    fn go_to(&mut self, day: Date) {
        if day != self.day
            && let Ok(next) = Self::open(&self.directory, day)
        {
            *self = next;
        }
    }
}

impl Write for Days {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.go_to(today());
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn name_of(day: Date) -> String {
    format!("audit.{day}.jsonl")
}

/// Opens the file of a day for its user alone, even if it was there before with another mode.
fn open_day(directory: &Path, day: Date) -> io::Result<File> {
    let file =
        OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(directory.join(name_of(day)))?;
    if file.metadata()?.permissions().mode() & 0o777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Removes the files of the oldest days. What cannot be removed stays: it is tried again the next day.
fn forget_old(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let is_ours = |name: &String| name.starts_with("audit.") && name.ends_with(".jsonl");
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(is_ours).collect();
    // The names have the order of their days.
    names.sort_unstable();
    let old = names.len().saturating_sub(DAYS_KEPT);
    for name in &names[..old] {
        let _ = fs::remove_file(directory.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(ordinal: u16) -> Date {
        Date::from_ordinal_date(2026, ordinal).expect("a day of the year")
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn the_files_of_days_are_for_their_user_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = directory.path().join(name_of(day(1)));
        assert_eq!(first.file_name().expect("a name"), "audit.2026-01-01.jsonl");
        fs::write(&first, "before\n").expect("it is written");
        fs::set_permissions(&first, Permissions::from_mode(0o644)).expect("it is ours");
        let mut days = Days::open(directory.path(), day(1)).expect("it can be written");
        days.file.write_all(b"one\n").expect("written");
        days.go_to(day(2));
        days.file.write_all(b"two\n").expect("written");
        let second = directory.path().join(name_of(day(2)));
        assert_eq!([mode(&first), mode(&second)], [FILE_MODE; 2]);
        let [one, two] = [&first, &second].map(|path| fs::read_to_string(path).expect("text"));
        assert_eq!((one.as_str(), two.as_str()), ("before\none\n", "two\n"));
    }

    #[test]
    fn the_oldest_days_are_forgotten_and_other_files_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("audit.notes"), "mine").expect("written");
        let mut days = Days::open(directory.path(), day(1)).expect("it can be written");
        for number in 2..=40 {
            days.go_to(day(number));
        }
        let is_there = |day| directory.path().join(name_of(day)).exists();
        assert!(!is_there(day(10)) && is_there(day(11)) && is_there(day(40)));
        assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), DAYS_KEPT + 1);
    }

    /// A directory that is gone loses no line before the next day, and stops nothing then.
    #[test]
    fn a_day_that_cannot_begin_goes_on_in_the_file_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut days = Days::open(directory.path(), day(1)).expect("it can be written");
        fs::remove_dir_all(directory.path()).expect("it is ours");
        days.go_to(day(2));
        assert_eq!(days.day, day(1));
        days.file.write_all(b"one\n").expect("the file is still open");
    }
}
