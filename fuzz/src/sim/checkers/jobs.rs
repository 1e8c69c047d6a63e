//! Jobs: tasks that run once, and what clients were told.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, BundleId, NodeId};
use wharf_core::jobs::{Job, JobId, JobPhase, Jobs, QueueId, Task, TaskState};
use wharf_core::request::PlacementRequest;
use wharf_core::state::NodeRecord;
use wharf_core::time::Time;
use wharf_net::protocol::{TASK_FAILED, TASK_SUCCEEDED};

use super::domains::may_join;
use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// The states of tasks that have ended, on the wire.
pub const TOLD_ENDED: [u8; 2] = [TASK_SUCCEEDED, TASK_FAILED];

/// What a client was told of a job. It is true from then on.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// It was cancelled, or had ended before.
    pub is_over: bool,
    /// How often it was restarted, or a task of it.
    pub restarts: u32,
    /// The tasks that have ended with so many restarts, each with its state.
    pub ended: BTreeMap<u32, u8>,
    /// How often its client allows that. `None`: it is not known.
    pub max_retry: Option<u32>,
}

/// Returns the allocations of tasks with their bundles.
pub(super) fn allocated(facts: &[Facts]) -> impl Iterator<Item = (AllocationId, BundleId)> {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    let bundles = partitions.flat_map(|partition| &partition.bundles);
    let of_job = |bundle: &BundleId| JobId::of_group(bundle.group).is_some();
    bundles.map(|record| (record.allocation, record.bundle)).filter(move |(_, bundle)| of_job(bundle))
}

/// Returns the allocations of groups in queues with their bundles.
pub(super) fn in_queues(facts: &[Facts]) -> impl Iterator<Item = (AllocationId, BundleId)> {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    let bundles = partitions.flat_map(|partition| &partition.bundles);
    bundles.map(|record| (record.allocation, record.bundle)).filter(|(_, bundle)| bundle.group.is_in_queue())
}

/// Checks that no task has two allocations.
///
/// # Errors
/// Returns the task.
pub fn tasks_run_once(facts: &[Facts]) -> Verdict {
    let mut seen = BTreeSet::new();
    for (id, bundle) in allocated(facts) {
        ensure(seen.insert(bundle), || format!("{bundle} has {id} and another allocation"))?;
    }
    Ok(())
}

/// Checks, at rest, that tasks have what the shards have of them: allocations and claims, and nothing else.
///
/// # Errors
/// Returns what only one side has.
pub fn tasks_are_in_the_books(jobs: &Jobs, facts: &[Facts]) -> Verdict {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    let claims = partitions.flat_map(|partition| &partition.claims);
    let claimed = claims.filter_map(|claim| Some((claim.id, claim.bundle?)));
    let in_books: BTreeSet<(AllocationId, u64, u32)> = allocated(facts)
        .chain(claimed.filter(|(_, bundle)| JobId::of_group(bundle.group).is_some()))
        .map(|(id, bundle)| (id, bundle.group.number, bundle.index))
        .collect();
    let (charges, tasks): (Vec<_>, Vec<_>) = jobs.jobs().partition(|(id, _)| id.is_charge());
    let charged = charges.into_iter().filter_map(|(_, job)| job.tasks()[0].allocation);
    let charged: BTreeSet<AllocationId> = charged.collect();
    let bundles: BTreeSet<AllocationId> = in_queues(facts).map(|(id, _)| id).collect();
    ensure(charged == bundles, || {
        format!("queues are charged for {charged:?}, and bundles have {bundles:?}")
    })?;
    let of_tasks = tasks.into_iter().flat_map(|(id, job)| {
        let tasks = (0..).zip(job.tasks());
        tasks.filter_map(move |(index, task)| Some((task.allocation?, id.0, index))).collect::<Vec<_>>()
    });
    let known: BTreeSet<(AllocationId, u64, u32)> = of_tasks.collect();
    ensure(known == in_books, || {
        let only_tasks: Vec<_> = known.difference(&in_books).collect();
        let only_books: Vec<_> = in_books.difference(&known).collect();
        format!("only tasks have {only_tasks:?}, and only the books {only_books:?}")
    })?;
    jobs.check().map_err(|broken| broken.to_string())
}

/// Checks that the queues that clients were told of are there. Nobody removes any.
///
/// # Errors
/// Returns the one that is gone.
pub fn queues_are_as_told(jobs: &Jobs, mut told: impl Iterator<Item = &'static str>) -> Verdict {
    let gone = told.find(|name| jobs.queue_named(name).is_none());
    ensure(gone.is_none(), || format!("queue {gone:?} was made, and is gone"))
}

/// Checks that the priority classes have the values that their client was told, by name. `None`: the class was removed.
///
/// # Errors
/// Returns the one that differs.
pub fn classes_are_as_told(jobs: &Jobs, told: &BTreeMap<&'static str, Option<i32>>) -> Verdict {
    told.iter().try_for_each(|(&name, &value)| {
        let found = jobs.priority_class(name).map(|class| class.value);
        ensure(found == value, || {
            format!("priority class `{name}` is {found:?}, and its client was told {value:?}")
        })
    })
}

/// Checks that a job is as its client was told. At rest, a job that is over has no task that has not ended.
///
/// # Errors
/// Returns what differs.
pub fn jobs_are_as_told(jobs: &Jobs, number: u64, told: &Told, at_rest: bool) -> Verdict {
    let id = JobId(number);
    ensure(jobs.has_job(id), || format!("job {id} was submitted, and is gone"))?;
    let job = jobs.job(id);
    let restarts = job.restarts();
    ensure(restarts >= told.restarts && told.max_retry.is_none_or(|most| restarts <= most), || {
        format!("job {id} was restarted {restarts} times, after {} of {:?}", told.restarts, told.max_retry)
    })?;
    let is_over = job.phase().is_end() || job.has_ended();
    ensure(!told.is_over || is_over && (!at_rest || job.has_ended()), || {
        format!("job {id} is over, and is {:?} with {:?}", job.phase(), job.tasks())
    })?;
    // A restart makes tasks pending that have ended.
    let lasting = told.ended.iter().filter(|_| restarts == told.restarts);
    for (&index, &state) in lasting {
        let expected = if state == TASK_FAILED { TaskState::Failed } else { TaskState::Succeeded };
        let found = job.tasks()[index as usize].state;
        ensure(found == expected, || format!("task {index} of job {id} was {expected:?}, and is {found:?}"))?;
    }
    Ok(())
}

/// Checks that a start keeps the jobs of the stop.
///
/// # Errors
/// Says that they differ.
pub fn a_start_keeps_the_jobs(
    before: &wharf_core::jobs::JobsRecord,
    after: &wharf_core::jobs::JobsRecord,
) -> Verdict {
    ensure(before == after, || format!("the jobs are others after a start: {before:?}, then {after:?}"))
}

/// Checks that a plan of nodes leaves the jobs and the books as they were.
///
/// # Errors
/// Says that they differ.
pub fn plans_change_nothing(
    (jobs, facts): (&wharf_core::jobs::JobsRecord, &[Facts]),
    (jobs_after, facts_after): (&wharf_core::jobs::JobsRecord, &[Facts]),
) -> Verdict {
    ensure(jobs == jobs_after && facts == facts_after, || {
        format!("a plan of nodes changes {jobs:?} to {jobs_after:?}, or the books")
    })
}

/// The dated reservations of other jobs at rest.
#[derive(Clone, Copy, Debug)]
pub struct Dated {
    /// The time.
    pub now: Time,
    /// The earliest date.
    pub date: Time,
}

impl Dated {
    /// Returns whether a task would have ended before the date.
    fn is_after(&self, task: &Task) -> bool {
        task.run_time_ns.is_some_and(|nanos| self.now.plus_nanos(nanos) <= self.date)
    }
}

/// Checks, at rest, that no task waits that a node offers and that every cap allows, if it is all that its job needs. With
/// dated reservations, this is so for tasks that would have ended before any of their dates. `may_wait` says of what jobs a node
/// by itself proves nothing.
///
/// # Errors
/// Returns the task and the node.
pub fn no_task_waits_that_would_fit(
    jobs: &Jobs,
    facts: &[Facts],
    dated: Option<Dated>,
    may_wait: impl Fn(JobId) -> bool,
) -> Verdict {
    for (id, job) in jobs.jobs() {
        if job.phase() == JobPhase::Pending || may_wait(id) {
            continue;
        }
        for (index, task) in (0..).zip(job.tasks()).filter(|(_, task)| is_all_that_it_needs(job, task.role)) {
            let is_allowed = || {
                jobs.chain(job.spec().queue).all(|queue: QueueId| {
                    let queue = jobs.queue(queue);
                    let used = queue.usage().planned().plus(&queue.usage().releasing);
                    let most = queue.spec().allocations_max.map(u64::from);
                    most.is_none_or(|most| queue.usage().allocations() < most)
                        && queue.spec().capability.exceeded(&used, &task.class.amounts).is_none()
                })
            };
            let ends_before = dated.is_none_or(|dated| dated.is_after(task));
            if task.state == TaskState::Pending && ends_before && is_allowed() {
                let may_be_on = |node: &NodeRecord| may_join(job, task.group, node, facts);
                let node = offering(facts, &task.class.request, may_be_on);
                ensure(node.is_none(), || {
                    format!(
                        "task {index} of job {id} waits, and {node:?} offers it: {:?}, {job:?}",
                        job.phase()
                    )
                })?;
            }
        }
    }
    Ok(())
}

/// Returns whether a job has all that it needs with one more task of a role.
fn is_all_that_it_needs(job: &Job, role: u32) -> bool {
    let spec = job.spec();
    let counts = |task: &&Task| task.state.holds() || task.state == TaskState::Succeeded;
    let of_role = |of: u32| job.tasks().iter().filter(counts).filter(|task| task.role == of).count();
    let mut roles = (0..).zip(&spec.roles).filter(|_| spec.roles_count());
    spec.min_member <= job.ready_tasks() + 1
        && roles.all(|(at, of)| of_role(at) + usize::from(at == role) >= of.min_member as usize)
}

fn offering(
    facts: &[Facts],
    request: &PlacementRequest,
    may_be_on: impl Fn(&NodeRecord) -> bool,
) -> Option<NodeId> {
    facts.iter().find_map(|facts| {
        let nodes = facts.nodes().filter(|node| may_be_on(node));
        let mut nodes = nodes.map(|node| node.registration.id);
        nodes.find(|&node| facts.offers(node, request))
    })
}
