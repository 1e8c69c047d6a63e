//! What would start if the planned nodes came: cycles on a copy of the books, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use crate::cycle::{Changes, LocalCluster};
use crate::ids::NodeId;
use crate::jobs::nodes::Start;
use crate::jobs::{JobId, TaskState};
use crate::limits::{PLAN_EVENTS_MAX, PLAN_ROWS_MAX};
use crate::time::Time;

/// The most cycles at one time.
const CYCLES_MAX: usize = 64;

/// What starts, and whether the run was ended early.
pub(super) struct Starts {
    pub(super) starts: Vec<Start>,
    pub(super) waiting: Vec<JobId>,
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
    let mut run = Run { begin, starts: Vec::new(), waiting: waiting.collect(), is_partial: false };
    for event in 0.. {
        let due = run.cycles(cluster);
        let ends = cluster.scheduler().jobs().ends(None).map(|(end, _)| end).next();
        let arrival = late.keys().next().copied();
        let grace = cluster.shard().next_deadline();
        let next =
            [due, ends, arrival, grace].into_iter().flatten().filter(|&next| next > cluster.now()).min();
        let Some(next) = next.filter(|&next| next <= horizon) else { break };
        if event + 1 >= PLAN_EVENTS_MAX || run.starts.len() >= PLAN_ROWS_MAX {
            run.is_partial = true;
            break;
        }
        let changes = cluster.advance(next.nanos_since(cluster.now()));
        run.note(&changes, cluster.now());
        run.end_tasks(cluster);
        if let Some(nodes) = late.remove(&next) {
            nodes.into_iter().for_each(|node| cluster.set_draining(node, false));
        }
    }
    let mut waiting: Vec<JobId> = run.waiting.into_iter().collect();
    let is_partial = run.is_partial || waiting.len() > PLAN_ROWS_MAX || run.starts.len() > PLAN_ROWS_MAX;
    waiting.truncate(PLAN_ROWS_MAX);
    run.starts.truncate(PLAN_ROWS_MAX);
    Starts { starts: run.starts, waiting, is_partial }
}

struct Run {
    begin: Time,
    starts: Vec<Start>,
    /// The jobs that waited at the beginning and of which no task was bound since.
    waiting: BTreeSet<JobId>,
    is_partial: bool,
}

impl Run {
    /// Runs cycles until one changes nothing. Returns when another one may.
    fn cycles(&mut self, cluster: &mut LocalCluster) -> Option<Time> {
        for _ in 0..CYCLES_MAX {
            let (report, changes) = cluster.cycle();
            self.note(&changes, cluster.now());
            if report.plans.is_empty() && report.admitted == 0 {
                return report.due;
            }
        }
        self.is_partial = true;
        None
    }

    /// Notes what was bound.
    fn note(&mut self, changes: &Changes, now: Time) {
        let mut counts: BTreeMap<JobId, u32> = BTreeMap::new();
        for &(task, _) in &changes.bound {
            self.waiting.remove(&task.job);
            *counts.entry(task.job).or_default() += 1;
        }
        let after_ns = now.nanos_since(self.begin);
        self.starts.extend(counts.into_iter().map(|(job, tasks)| Start { after_ns, job, tasks }));
    }

    /// Ends the tasks whose stated run time is over: they succeed.
    fn end_tasks(&mut self, cluster: &mut LocalCluster) {
        let now = cluster.now();
        let jobs = cluster.scheduler().jobs();
        let over: Vec<_> = jobs.ends(None).take_while(|&(end, _)| end <= now).map(|(_, task)| task).collect();
        for task in over {
            let changes = cluster.finish_task(task);
            self.note(&changes, now);
        }
    }
}
