//! Queues and jobs: caps that nothing exceeds, tasks that run once, and what clients were told.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, BundleId, NodeId};
use wharf_core::jobs::{JobId, JobPhase, Jobs, QueueId, TaskState};
use wharf_core::request::PlacementRequest;
use wharf_net::protocol::{TASK_FAILED, TASK_SUCCEEDED};

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// A queue of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct QueueOfSim {
    /// Its name.
    pub name: &'static str,
    /// The name of the queue that contains it. Empty: the root.
    pub parent: &'static str,
    /// The most cpu that it may use, in 1/10,000.
    pub cpu_max: Option<i64>,
    /// Whether it has jobs.
    pub is_leaf: bool,
    /// The half-life of what it has held, in ns. `None`: that of all queues.
    pub half_life: Option<u64>,
}

/// The queues of the simulation. They never change, so a cap that is exceeded is always a fault.
pub const QUEUES: [QueueOfSim; 4] = [
    QueueOfSim { name: "team", parent: "", cpu_max: Some(60_000), is_leaf: false, half_life: None },
    QueueOfSim {
        name: "capped",
        parent: "team",
        cpu_max: Some(35_000),
        is_leaf: true,
        half_life: Some(5_000),
    },
    QueueOfSim { name: "other", parent: "team", cpu_max: None, is_leaf: true, half_life: Some(0) },
    QueueOfSim { name: "free", parent: "", cpu_max: None, is_leaf: true, half_life: None },
];

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
fn allocated(facts: &[Facts]) -> impl Iterator<Item = (AllocationId, BundleId)> {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    let bundles = partitions.flat_map(|partition| &partition.bundles);
    let of_job = |bundle: &BundleId| JobId::of_group(bundle.group).is_some();
    bundles.map(|record| (record.allocation, record.bundle)).filter(move |(_, bundle)| of_job(bundle))
}

/// Checks that no queue uses more than its cap, at this moment in the books of the shards. `queue_of` names the queue of a
/// job.
///
/// # Errors
/// Returns the queue and what it uses.
pub fn caps_hold(facts: &[Facts], queue_of: impl Fn(JobId) -> Option<&'static str>) -> Verdict {
    let bundles: BTreeMap<AllocationId, BundleId> = allocated(facts).collect();
    let mut used: BTreeMap<&str, i64> = BTreeMap::new();
    for record in facts.iter().flat_map(Facts::allocations) {
        let Some(job) = bundles.get(&record.id).and_then(|bundle| JobId::of_group(bundle.group)) else {
            continue;
        };
        let mut name = queue_of(job).ok_or_else(|| format!("job {job} has {}, and no queue", record.id))?;
        while let Some(queue) = QUEUES.iter().find(|queue| queue.name == name) {
            *used.entry(name).or_default() += record.demand.cpu.units();
            name = queue.parent;
        }
    }
    for QueueOfSim { name, cpu_max, .. } in QUEUES {
        let used = used.get(name).copied().unwrap_or_default();
        ensure(cpu_max.is_none_or(|most| used <= most), || {
            format!("queue `{name}` uses {used} of {cpu_max:?}")
        })?;
    }
    Ok(())
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
    let of_tasks = jobs.jobs().flat_map(|(id, job)| {
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

/// Checks, at rest, that no task waits that a node offers and that every cap allows, if it is all that its job needs.
///
/// # Errors
/// Returns the task and the node.
pub fn no_task_waits_that_would_fit(jobs: &Jobs, facts: &[Facts]) -> Verdict {
    for (id, job) in jobs.jobs() {
        let may_start = job.phase() != JobPhase::Pending && job.spec().min_member <= job.ready_tasks() + 1;
        if !may_start {
            continue;
        }
        for (index, task) in (0..).zip(job.tasks()) {
            let is_allowed = || {
                jobs.chain(job.spec().queue).all(|queue: QueueId| {
                    let queue = jobs.queue(queue);
                    let used = queue.usage().planned().plus(&queue.usage().releasing);
                    queue.spec().capability.exceeded(&used, &task.class.amounts).is_none()
                })
            };
            if task.state == TaskState::Pending && is_allowed() {
                let node = offering(facts, &task.class.request);
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

fn offering(facts: &[Facts], request: &PlacementRequest) -> Option<NodeId> {
    facts.iter().find_map(|facts| {
        let mut nodes = facts.nodes().map(|node| node.registration.id);
        nodes.find(|&node| facts.offers(node, request))
    })
}
