//! What would start if the planned nodes came: cycles on a copy of the books, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use crate::cycle::{Changes, LocalCluster};
use crate::ids::NodeId;
use crate::jobs::nodes::Start;
use crate::jobs::{JobId, RunTimes, TaskId, TaskState};
use crate::limits::{PLAN_EVENTS_MAX, PLAN_ROWS_MAX};
use crate::time::Time;

/// The most cycles at one time.
const CYCLES_MAX: usize = 64;

/// What starts, and whether the run was ended early.
pub(super) struct Starts {
    pub(super) starts: Vec<Start>,
    pub(super) waiting: Vec<JobId>,
    /// The number of tasks that ended as their measured run times say.
    pub(super) measured_ends: u64,
    pub(super) is_partial: bool,
}

/// Runs cycles from now to the horizon. `arrivals` are the nodes that come later, each with how long that takes, in ns.
pub(super) fn run(cluster: &mut LocalCluster, arrivals: &[(NodeId, u64)], horizon_ns: u64) -> Starts {
    let begin = cluster.now();
    let horizon = begin.plus_nanos(horizon_ns);
    let mut late: BTreeMap<Time, Vec<NodeId>> = BTreeMap::new();
    for &(node, after_ns) in arrivals.iter().filter(|&&(_, after_ns)| after_ns > 0) {
        cluster.set_draining(node, true);
        late.entry(begin.plus_nanos(after_ns)).or_default().push(node);
    }
    let jobs = cluster.scheduler().jobs();
    let waits = |id: &JobId| jobs.job(*id).count(TaskState::Pending) > 0;
    let waiting = jobs.queues().flat_map(|(_, queue)| queue.waiting()).filter(waits);
    let expected = Expected::new(cluster, (begin, horizon));
    let mut run = Run { begin, starts: Vec::new(), waiting: waiting.collect(), expected, is_partial: false };
    for event in 0.. {
        let due = run.cycles(cluster);
        let ends = cluster.scheduler().jobs().ends(None).map(|(end, _)| end).next();
        let arrival = late.keys().next().copied();
        let grace = cluster.shard().next_deadline();
        let next = [due, ends, run.expected.next(event), arrival, grace];
        let next = next.into_iter().flatten().filter(|&next| next > cluster.now()).min();
        let Some(next) = next.filter(|&next| next <= horizon) else { break };
        if event + 1 >= PLAN_EVENTS_MAX || run.starts.len() >= PLAN_ROWS_MAX {
            run.is_partial = true;
            break;
        }
        let changes = cluster.advance(next.nanos_since(cluster.now()));
        run.note(&changes, cluster);
        run.end_tasks(cluster);
        if let Some(nodes) = late.remove(&next) {
            nodes.into_iter().for_each(|node| cluster.set_draining(node, false));
        }
    }
    let mut waiting: Vec<JobId> = run.waiting.into_iter().collect();
    let is_partial = run.is_partial || waiting.len() > PLAN_ROWS_MAX || run.starts.len() > PLAN_ROWS_MAX;
    waiting.truncate(PLAN_ROWS_MAX);
    run.starts.truncate(PLAN_ROWS_MAX);
    Starts { starts: run.starts, waiting, measured_ends: run.expected.over, is_partial }
}

/// When the tasks that run and state no run time are expected to end, by measured run times.
struct Expected {
    /// As they were measured until now: what ends in a trial measures nothing.
    run_times: RunTimes,
    /// The ends, each with when the task was bound. An entry of which this is not so any more does not count.
    ends: BTreeSet<(Time, TaskId, Time)>,
    begin: Time,
    horizon: Time,
    /// The number of tasks that have ended so.
    over: u64,
}

impl Expected {
    /// Notes the ends of all tasks that run.
    fn new(cluster: &LocalCluster, (begin, horizon): (Time, Time)) -> Self {
        let jobs = cluster.scheduler().jobs();
        let run_times = jobs.run_times().clone();
        let mut expected = Self { run_times, ends: BTreeSet::new(), begin, horizon, over: 0 };
        if begin == horizon {
            return expected;
        }
        for node in jobs.nodes() {
            jobs.on_node(node).iter().for_each(|&task| expected.follow(cluster, task));
        }
        expected
    }

    /// Notes when a task is expected to end, if it is bound and this is known.
    fn follow(&mut self, cluster: &LocalCluster, id: TaskId) {
        let jobs = cluster.scheduler().jobs();
        let Some(bound) = bound(cluster, id) else { return };
        let end = self.run_times.expected_end(jobs, id, bound, cluster.now());
        self.ends.extend(end.filter(|&end| end <= self.horizon).map(|end| (end, id, bound)));
    }

    /// Returns when the next task ends. After many events, several tasks end at once, up to a part of the horizon late: so
    /// there are events left for what comes later, and that is known exactly.
    fn next(&self, event: usize) -> Option<Time> {
        let &(end, ..) = self.ends.first()?;
        if event < PLAN_EVENTS_MAX / 2 {
            return Some(end);
        }
        let step = self.horizon.nanos_since(self.begin).div_ceil(PLAN_EVENTS_MAX as u64 / 4).max(1);
        let steps = end.nanos_since(self.begin).div_ceil(step);
        Some(self.begin.plus_nanos(steps.saturating_mul(step)).min(self.horizon))
    }

    /// Takes the tasks that have ended by now.
    fn take(&mut self, cluster: &LocalCluster) -> Vec<TaskId> {
        let mut over = Vec::new();
        while let Some(&entry @ (end, id, since)) = self.ends.first() {
            if end > cluster.now() {
                break;
            }
            self.ends.remove(&entry);
            if bound(cluster, id) == Some(since) {
                over.push(id);
            }
        }
        over
    }
}

/// Returns when a task was bound, if it is there and still bound.
fn bound(cluster: &LocalCluster, id: TaskId) -> Option<Time> {
    let jobs = cluster.scheduler().jobs();
    let task = jobs.has_task(id).then(|| jobs.task(id))?;
    task.bound.filter(|_| task.state.is_bound())
}

struct Run {
    begin: Time,
    starts: Vec<Start>,
    /// The jobs that waited at the beginning and of which no task was bound since.
    waiting: BTreeSet<JobId>,
    expected: Expected,
    is_partial: bool,
}

impl Run {
    /// Runs cycles until one changes nothing. Returns when another one may.
    fn cycles(&mut self, cluster: &mut LocalCluster) -> Option<Time> {
        for _ in 0..CYCLES_MAX {
            let (report, changes) = cluster.cycle();
            self.note(&changes, cluster);
            if report.plans.is_empty() && report.admitted == 0 {
                return report.due;
            }
        }
        self.is_partial = true;
        None
    }

    /// Notes what was bound.
    fn note(&mut self, changes: &Changes, cluster: &LocalCluster) {
        let mut counts: BTreeMap<JobId, u32> = BTreeMap::new();
        for &(task, _) in &changes.bound {
            self.waiting.remove(&task.job);
            self.expected.follow(cluster, task);
            *counts.entry(task.job).or_default() += 1;
        }
        let after_ns = cluster.now().nanos_since(self.begin);
        self.starts.extend(counts.into_iter().map(|(job, tasks)| Start { after_ns, job, tasks }));
    }

    /// Ends the tasks whose run time is over, as stated or as expected: they succeed.
    fn end_tasks(&mut self, cluster: &mut LocalCluster) {
        let now = cluster.now();
        let ends = cluster.scheduler().jobs().ends(None);
        let stated: Vec<TaskId> = ends.take_while(|&(end, _)| end <= now).map(|(_, task)| task).collect();
        for task in stated {
            self.end_task(cluster, task);
        }
        for task in self.expected.take(cluster) {
            self.expected.over += u64::from(self.end_task(cluster, task));
        }
    }

    /// Ends a task that is bound. Returns whether it is: one that ended before it may have completed their job.
    fn end_task(&mut self, cluster: &mut LocalCluster, task: TaskId) -> bool {
        let is_bound = bound(cluster, task).is_some();
        if is_bound {
            let changes = cluster.finish_task(task);
            self.note(&changes, cluster);
        }
        is_bound
    }
}
