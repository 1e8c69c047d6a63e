//! Dated reservations: as long as tasks run no longer than they state, and only cycles place anything, a job starts by its
//! date, and the date moves to no later time.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::{AllocationId, NodeId};
use wharf_core::jobs::{JobId, Jobs, TaskId, TaskState};
use wharf_core::node::NodeState;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// How much later than its date a job may start, in ns: cycles begin at intervals, and what they place is bound somewhat
/// later than they count.
pub const DATE_SLACK_NS: u64 = 1_000;

/// How far ahead a date is that counts, in ns. All tasks that end until a date are given time to end before it.
pub const DATE_AHEAD_NS: u64 = 3_500;

/// What is known of jobs and dates at a time.
pub struct Seen<'a> {
    /// The jobs.
    pub jobs: &'a Jobs,
    /// The dates of the jobs that have one.
    pub dates: BTreeMap<JobId, Time>,
    /// The books of the shards.
    pub facts: &'a [Facts],
    /// The time.
    pub now: Time,
}

/// What moves dates although no cycle has placed anything: if it changes, no date counts any longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outside {
    /// What is no task of a job.
    others: BTreeSet<AllocationId>,
    nodes: BTreeMap<NodeId, NodeState>,
    /// The tasks in their grace periods.
    releasing: BTreeSet<TaskId>,
}

impl Outside {
    fn of(seen: &Seen<'_>) -> Self {
        let tasks = || {
            seen.jobs.jobs().flat_map(|(id, job)| {
                (0..).zip(job.tasks()).map(move |(index, task)| (TaskId { job: id, index }, task))
            })
        };
        let is_task = |id: &TaskId| !seen.jobs.job(id.job).spec().is_direct;
        let of_tasks: BTreeSet<AllocationId> =
            tasks().filter(|(id, _)| is_task(id)).filter_map(|(_, task)| task.allocation).collect();
        let allocations = seen.facts.iter().flat_map(Facts::allocations).map(|record| record.id);
        let nodes = seen.facts.iter().flat_map(Facts::nodes);
        let releasing = tasks().filter(|(_, task)| task.state == TaskState::Releasing);
        Self {
            others: allocations.filter(|id| !of_tasks.contains(id)).collect(),
            nodes: nodes.map(|node| (node.registration.id, node.state)).collect(),
            releasing: releasing.map(|(id, _)| id).collect(),
        }
    }

    /// Returns whether nothing has come since another time. What has ended only frees capacity.
    fn is_within(&self, before: &Self) -> bool {
        self.nodes == before.nodes
            && self.others.is_subset(&before.others)
            && self.releasing.is_subset(&before.releasing)
    }
}

/// The dates that jobs were given.
#[derive(Debug, Default)]
pub struct Dates {
    told: BTreeMap<JobId, Time>,
    outside: Outside,
    /// The tasks that were bound when this was called last.
    bound: BTreeSet<TaskId>,
}

impl Dates {
    /// Checks the dates of jobs that come first in their queues, and follows them. Nothing is in progress. Every task that was
    /// about to run for longer than it states has ended.
    ///
    /// # Errors
    /// Returns the job and its dates.
    pub fn dates_are_kept(&mut self, seen: &Seen<'_>) -> Verdict {
        let outside = Outside::of(seen);
        if !outside.is_within(&self.outside) {
            self.told.clear();
        }
        self.outside = outside;
        let starts = self.follow_starts(seen.jobs);
        let is_first = |job: JobId| is_first(seen.jobs, job, &starts);
        self.told.retain(|&job, _| seen.jobs.has_job(job) && is_first(job));
        for (&job, &date) in &self.told {
            let most = date.plus_nanos(DATE_SLACK_NS);
            let started = seen.jobs.job(job).tasks().iter().filter_map(|task| task.started).min();
            let waited = started.unwrap_or(seen.now);
            ensure(waited <= most, || {
                format!("job {job} was to start by {date:?}, and waited until {waited:?}")
            })?;
            let next = seen.dates.get(&job).copied();
            ensure(next.is_none_or(|next| next <= most), || {
                format!("the date of job {job} moves from {date:?} to {next:?}")
            })?;
        }
        let waits = |job: JobId| {
            let mut tasks = seen.jobs.job(job).tasks().iter();
            tasks.all(|task| task.state == TaskState::Pending)
        };
        self.told.retain(|&job, _| waits(job));
        // Nobody ends its grace period early.
        let is_ahead =
            |date: Time| date > seen.now.plus_nanos(DATE_AHEAD_NS) && self.outside.releasing.is_empty();
        let is_told = |&(&job, &date): &(&JobId, &Time)| is_first(job) && waits(job) && is_ahead(date);
        for (&job, &date) in seen.dates.iter().filter(is_told) {
            let told = self.told.entry(job).or_insert(date);
            *told = date.min(*told);
        }
        Ok(())
    }

    /// Returns the jobs of which a task was bound since the last call.
    fn follow_starts(&mut self, jobs: &Jobs) -> BTreeSet<JobId> {
        let mut bound = BTreeSet::new();
        for (id, job) in jobs.jobs() {
            let of_job = (0..).zip(job.tasks()).filter(|(_, task)| task.state.has_node());
            bound.extend(of_job.map(|(index, _)| TaskId { job: id, index }));
        }
        let starts = bound.difference(&self.bound).map(|task| task.job).collect();
        self.bound = bound;
        starts
    }
}

/// Returns whether a job comes first in its queue, because all others of the queue that wait or have just started have lower
/// priorities, and caps on the number of allocations leave room for it: dates do not look at when allocations end.
fn is_first(jobs: &Jobs, id: JobId, starts: &BTreeSet<JobId>) -> bool {
    let job = jobs.job(id);
    let priority = |id: JobId| jobs.job(id).spec().priority;
    let queue = jobs.queue(job.spec().queue);
    let is_in_the_way = |other: JobId| {
        let waits = jobs.job(other).pending().len() > 0;
        other != id && priority(other) >= priority(id) && (waits || starts.contains(&other))
    };
    let has_room = jobs.chain(job.spec().queue).all(|queue| {
        let queue = jobs.queue(queue);
        let most = queue.spec().allocations_max.map(u64::from);
        most.is_none_or(|most| queue.usage().allocations() + job.tasks().len() as u64 <= most)
    });
    // A placement that waits in the queue is one of them.
    job.phase().is_admitted() && has_room && !queue.jobs().chain(queue.direct()).any(is_in_the_way)
}
