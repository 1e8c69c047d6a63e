//! Gangs: jobs that start with as many tasks as they need, or not at all.

use std::collections::BTreeMap;

use wharf_core::ids::AllocationId;
use wharf_core::jobs::{Job, JobId, Jobs, Task, TaskState};
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// The allocation of a task that counts for its gang, and whether it was started there.
type Seen = Option<(AllocationId, bool)>;

/// What tasks had when the shards had agreed to their states last.
#[derive(Debug, Default)]
pub struct Starts {
    seen: BTreeMap<JobId, Vec<Seen>>,
    at: Time,
}

fn is_started(task: &Task) -> bool {
    matches!(task.state, TaskState::Bound | TaskState::Running)
}

/// Returns whether a task counts for its gang.
fn counts(task: &Task) -> bool {
    task.state == TaskState::Succeeded || task.state.holds() && task.allocation.is_some()
}

impl Starts {
    /// Notes what tasks have.
    #[must_use]
    pub fn of(jobs: &Jobs, now: Time) -> Self {
        let of_task = |task: &Task| Some((task.allocation.filter(|_| counts(task))?, is_started(task)));
        let of_job = |(id, job): (JobId, &Job)| (id, job.tasks().iter().map(of_task).collect());
        Self { seen: jobs.jobs().map(of_job).collect(), at: now }
    }

    /// Checks that each job of which a task was started since the last call had all that it needs: in all, and of each role.
    /// What it has lost since then counts. Afterwards, evictions and ends may leave less. The shards have agreed to the
    /// states of tasks.
    ///
    /// # Errors
    /// Returns the job and what it lacks.
    pub fn gangs_start_whole(&mut self, jobs: &Jobs, now: Time) -> Verdict {
        for (id, job) in jobs.jobs() {
            let before = self.seen.get(&id).map_or(&[][..], Vec::as_slice);
            let was = |index: usize| before.get(index).copied().flatten();
            let is_new = |(index, task): &(usize, &Task)| {
                is_started(task)
                    && task.allocation.is_some()
                    && was(*index) != task.allocation.map(|of| (of, true))
            };
            let tasks = || job.tasks().iter().enumerate();
            let Some((started, _)) = tasks().find(is_new) else { continue };
            // Since it was submitted, or since the last call. Several calls may be at one time.
            let since = self.at.max(job.spec().created);
            let was_lost =
                |index: usize, task: &Task| was(index).is_some() || task.since > since || task.since == now;
            let had = |role: Option<u32>| {
                let of_role = tasks().filter(|(_, task)| role.is_none_or(|role| task.role == role));
                of_role.filter(|&(index, task)| counts(task) || was_lost(index, task)).count()
            };
            let spec = job.spec();
            let roles = (0..).zip(&spec.roles).filter(|_| spec.roles_count());
            let lacking = roles.clone().find(|&(role, of)| had(Some(role)) < of.min_member as usize);
            let is_whole = lacking.is_none() && had(None) >= spec.min_member as usize;
            ensure(is_whole, || {
                let states: Vec<_> = job.tasks().iter().map(|task| (task.role, task.state)).collect();
                format!(
                    "task {started} of job {id} was started, and the job had {} tasks of {}, with too few of role {:?} of \
                     {:?}: {states:?}",
                    had(None),
                    spec.min_member,
                    lacking.map(|(role, _)| role),
                    spec.roles
                )
            })?;
        }
        *self = Self::of(jobs, now);
        Ok(())
    }
}

/// Checks that no job holds nodes for a start that will not come, now that everything is at rest: it lacks others of its tasks,
/// no claim is on its way, and it has no date.
///
/// # Errors
/// Returns the job and the states of its tasks.
pub fn no_start_is_held(jobs: &Jobs, has_date: impl Fn(JobId) -> bool) -> Verdict {
    let is_held = |job: &Job| job.count(TaskState::Allocated) > 0 && !job.tasks().iter().any(Task::has_claim);
    let held = jobs.jobs().find(|&(id, job)| is_held(job) && !has_date(id));
    ensure(held.is_none(), || {
        let (id, job) = held.expect("it was found");
        let states: Vec<_> = job.tasks().iter().map(|task| (task.role, task.state)).collect();
        format!("job {id} holds nodes and does not start: {states:?}")
    })
}
