//! Compares why jobs and tasks wait with what was expected.

use serde_saphyr::Location;
use wharf_core::jobs::{JobId, PendingReason};

use super::build::World;
use super::expect::Found;
use super::file::ExpectFile;
use crate::line_error::LineError;

/// Compares the reasons of the jobs and tasks that are named.
pub(super) fn check(world: &mut World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    for (name, reason) in &expected.reason {
        if PendingReason::named(reason).is_none() {
            let known = PendingReason::ALL.map(PendingReason::name).join(", ");
            let message = format!("there is no reason `{reason}`: name one of {known}");
            return Err(LineError::at(Location::UNKNOWN, message));
        }
        let (job, task) = subject(world, name)?;
        let actual = world.cluster.explain(job, task).reason.name();
        found.check(actual == reason, || format!("{name} waits by reason {actual}, {reason} expected"));
    }
    Ok(())
}

/// Returns the job of a name, or the task.
fn subject(world: &World, name: &str) -> Result<(JobId, Option<u32>), LineError> {
    if let Ok(job) = world.job_named(name) {
        return Ok((job, None));
    }
    let task = world.task_named(name, Location::UNKNOWN).map_err(|_| {
        LineError::at(Location::UNKNOWN, format!("there is no job and no task `{name}`: add it to `jobs`"))
    })?;
    Ok((task.job, Some(task.index)))
}
