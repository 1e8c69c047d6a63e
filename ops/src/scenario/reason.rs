//! Compares why jobs and tasks wait, and the domains of tasks, with what was expected.

use serde_saphyr::Location;
use wharf_core::jobs::{JobId, PendingReason};

use super::build::World;
use super::expect::Found;
use super::file::{ExpectFile, LackFile};
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

/// Compares the domains of tasks, and what domains lack for jobs.
pub(super) fn check_domains(
    world: &mut World,
    expected: &ExpectFile,
    found: &mut Found,
) -> Result<(), LineError> {
    for (name, wanted) in &expected.domains {
        let task = world.task_named(name, Location::UNKNOWN)?;
        let scheduler = world.cluster.scheduler();
        let node = scheduler.jobs().task(task).node;
        let path = node.and_then(|node| scheduler.domain_path(node));
        let actual = path.as_deref().unwrap_or("none");
        found.check(actual == wanted, || format!("{name} is in domain {actual}, {wanted} expected"));
    }
    for (name, wanted) in &expected.lacks {
        let job = world.job_named(name)?;
        let actual = world.cluster.explain(job, None).domain.map(|lack| LackFile {
            tier: lack.tier.to_string(),
            best: lack.best.map(|best| best.to_string()),
            holds: lack.holds,
            needed: lack.needed,
        });
        let is_expected = actual.as_ref() == Some(wanted);
        found.check(is_expected, || format!("domains lack {actual:?} for {name}, {wanted:?} expected"));
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
