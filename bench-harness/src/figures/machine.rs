//! The origin of figures: commit, machine and date.

use std::fmt;
use std::process::Command;

use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// The data that a reader needs to repeat a measurement.
#[derive(Clone, Debug)]
pub struct Origin {
    commit: String,
    processor: String,
    cores: usize,
    date: String,
    quick: bool,
}

impl Origin {
    /// Returns the commit (`None`: that of the working directory), this machine, and today's date in UTC.
    #[must_use]
    pub fn of_this_run(quick: bool, named: Option<String>) -> Self {
        let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
        let processor = system.cpus().first().map_or("", |cpu| cpu.brand()).trim().to_owned();
        Self {
            commit: named.unwrap_or_else(commit),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            date: time::OffsetDateTime::now_utc().date().to_string(),
            quick,
        }
    }
}

/// Returns the short hash of the commit, with `+` if tracked files differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=10", "HEAD"]) else { return "unknown".to_owned() };
    // Only sources are compared, because the page itself changes while its sections are written.
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", "*.rs", "*.toml"]);
    if changed.is_some_and(|changed| !changed.is_empty()) { format!("{hash}+") } else { hash }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commit, processor, cores, date, quick } = self;
        if *quick {
            f.write_str("A quick run that only shows the columns: no measurement. ")?;
        }
        write!(f, "Commit {commit}, {processor}, {cores} cores, {date}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_says_that_it_measures_nothing() {
        let text = Origin::of_this_run(true, None).to_string();
        assert!(text.contains("no measurement"), "{text}");
        assert!(!Origin::of_this_run(false, None).to_string().contains("no measurement"));
    }
}
