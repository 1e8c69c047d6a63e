//! `wharf-bench session`: what a scheduling cycle costs, by what runs, what waits and what changed.
//!
//! A shard and a scheduler run in one thread, in virtual time. What is measured is a cycle: following the shard's view,
//! deciding, and committing the plans as statements.

mod fairness;
mod rows;

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use wharf_core::cycle::{Changes, CycleConfig, CycleConfigError, LocalCluster, LocalError};
use wharf_core::ids::NodeId;
use wharf_core::jobs::{
    JobError, JobId, JobPhase, JobSpec, QueueError, QueueId, QueueSpec, TaskGroup, TaskId, TaskState,
    TopologyRule,
};
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};

use crate::process::Process;
pub use fairness::Fairness;
use fairness::Rule;

/// The names of the rows, in order.
pub const ROWS: [&str; 18] = [
    "whole",
    "change",
    "hard",
    "hard-again",
    "hard-change",
    "hard-gangs",
    "kept",
    "kept-change",
    "topology",
    "topology-change",
    "gang-8",
    "gang-1000",
    "preempt-1000",
    "reclaim-1000",
    "fairness",
    "fairness-capacity",
    "fairness-drf",
    "fairness-starve",
];

/// The virtual time of the rows `fairness…`, in seconds.
const FAIRNESS_SECONDS: u32 = 600;

/// Which rows to measure, and at which size.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The names of the rows.
    pub rows: Vec<String>,
    /// Divides all sizes, for a quick look. 1: the sizes as they are stated.
    pub scale: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { rows: ROWS.map(str::to_owned).to_vec(), scale: 1 }
    }
}

/// A measurement that failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] CycleConfigError),
    /// A queue is wrong.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A job is wrong.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A node or a running task is wrong.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A cycle did not do what the row is about.
    #[error("row {row}: {placed} tasks have a place and {evicted} were evicted, {expected}")]
    Unexpected {
        /// The row.
        row: &'static str,
        /// The tasks that were bound or have claims.
        placed: usize,
        /// The tasks that were evicted.
        evicted: usize,
        /// What was expected.
        expected: String,
    },
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct SessionRow {
    /// Its name.
    pub name: &'static str,
    /// The number of nodes.
    pub nodes: usize,
    /// The tasks that run before the cycle.
    pub running: usize,
    /// The tasks that wait before the cycle.
    pub pending: usize,
    /// The number of queues.
    pub queues: usize,
    /// The tasks that the cycle gave a place.
    pub placed: usize,
    /// The tasks that it evicted.
    pub evicted: usize,
    /// How long the cycle took, with committing what it planned.
    pub seconds: f64,
    /// How long it took to decide.
    pub deciding_seconds: f64,
    /// How long the cycle took, in milliseconds.
    pub milliseconds: f64,
    /// How long it took to decide, in milliseconds.
    pub deciding_milliseconds: f64,
    /// How many gangs or tasks were placed per second, for rows about a rate.
    pub per_second: Option<f64>,
    /// The memory of the process, in bytes.
    pub memory_bytes: u64,
    /// What was seen over time, in the row about that.
    pub fairness: Option<Fairness>,
}

impl SessionRow {
    /// The head of the table.
    pub const HEAD: &str = "row                 nodes    running  pending queues  placed evicted    seconds   deciding  per second   memory";
}

impl fmt::Display for SessionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
        write!(
            f,
            "{:<17} {:>7} {:>10} {:>8} {:>6} {:>7} {:>7} {:>10.4} {:>10.4} {rate:>11} {:>4} MiB",
            self.name,
            self.nodes,
            self.running,
            self.pending,
            self.queues,
            self.placed,
            self.evicted,
            self.seconds,
            self.deciding_seconds,
            self.memory_bytes >> 20
        )?;
        let Some(fairness) = self.fairness else { return Ok(()) };
        let Fairness { virtual_seconds, demand_changes, deviation_max, deviation_mean, .. } = fairness;
        write!(
            f,
            "\n  over {virtual_seconds} s of virtual time with {demand_changes} changes of demand: queues are within \
             {:.2} % of the cluster from what they deserve (mean with changes: {:.2} %); evictions: {} useful, {} wasted",
            100.0 * deviation_max,
            100.0 * deviation_mean,
            fairness.evictions_useful,
            fairness.evictions_wasted
        )
    }
}

/// Measures the rows and hands each to `report`.
///
/// # Errors
/// When a cycle does not do what its row is about.
pub fn run(
    options: &SessionOptions,
    mut report: impl FnMut(&SessionRow),
) -> Result<Vec<SessionRow>, SessionError> {
    let mut all = Vec::new();
    let wants = |name: &str| options.rows.iter().any(|row| row == name);
    let mut add = |rows: Vec<SessionRow>| {
        for row in rows.into_iter().filter(|row| wants(row.name)) {
            report(&row);
            all.push(row);
        }
    };
    let scale = options.scale.max(1);
    if wants("whole") || wants("change") {
        add(rows::whole(scale)?);
    }
    if ["hard", "hard-again", "hard-change"].into_iter().any(&wants) {
        add(rows::hard(scale)?);
    }
    if wants("hard-gangs") {
        add(vec![rows::hard_gangs(scale)?]);
    }
    if wants("kept") || wants("kept-change") {
        add(rows::kept(scale)?);
    }
    if wants("topology") || wants("topology-change") {
        add(rows::topology(scale)?);
    }
    if wants("gang-8") {
        add(vec![rows::gangs("gang-8", 8, 10_000 / scale)?]);
    }
    if wants("gang-1000") {
        add(vec![rows::gangs("gang-1000", 1000, 100_u32.div_ceil(scale))?]);
    }
    if wants("preempt-1000") {
        add(vec![rows::preempt(scale)?]);
    }
    if wants("reclaim-1000") {
        add(vec![rows::reclaim(scale)?]);
    }
    for rule in Rule::ALL.into_iter().filter(|rule| wants(rule.row())) {
        add(vec![fairness::fairness(rule, scale, FAIRNESS_SECONDS)?]);
    }
    Ok(all)
}

/// A cluster that a row is measured on.
struct Bed {
    cluster: LocalCluster,
    nodes: Vec<NodeId>,
    queues: Vec<QueueId>,
    running: usize,
}

/// How long a cycle took.
struct Timed {
    changes: Changes,
    deciding: Duration,
    whole: Duration,
}

impl Bed {
    /// Creates a cluster of equal nodes.
    fn new(config: CycleConfig, nodes: u32, cpu: u32, queues: u32) -> Result<Self, SessionError> {
        Self::with_labels(config, (nodes, cpu), queues, |_| Labels::default())
    }

    /// Creates a cluster of nodes that are equal except for their labels.
    fn with_labels(
        config: CycleConfig,
        (nodes, cpu): (u32, u32),
        queues: u32,
        labels: impl Fn(u32) -> Labels,
    ) -> Result<Self, SessionError> {
        let mut cluster = LocalCluster::new(config, 1)?;
        let spec = |node| NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::whole(cpu),
            memory: Amount::whole(cpu * 4096),
            gpus: 0,
            custom: None,
            labels: labels(node),
            taints: Taints::default(),
        };
        let nodes = (0..nodes).map(|node| cluster.add_node(spec(node))).collect::<Result<_, _>>()?;
        let jobs = cluster.scheduler_mut().jobs_mut();
        let add = |number| jobs.add_queue(QueueSpec::new(&format!("queue-{number}")));
        let queues = (0..queues).map(add).collect::<Result<_, _>>()?;
        Ok(Self { cluster, nodes, queues, running: 0 })
    }

    /// Submits a job of equal tasks, each of so many thousandths of a core and MiB.
    fn job(
        &mut self,
        queue: usize,
        tasks: u32,
        min_member: u32,
        cpu_milli: u32,
        priority: i32,
    ) -> Result<JobId, JobError> {
        self.job_within(queue, (tasks, min_member), cpu_milli, priority, None)
    }

    /// Submits a job of equal tasks that perhaps must be in one domain.
    fn job_within(
        &mut self,
        queue: usize,
        (tasks, min_member): (u32, u32),
        cpu_milli: u32,
        priority: i32,
        topology: Option<TopologyRule>,
    ) -> Result<JobId, JobError> {
        let demand = Demand {
            cpu: Amount::from_milli(cpu_milli),
            memory: Amount::whole(cpu_milli.max(1)),
            ..Demand::default()
        };
        let jobs = self.cluster.scheduler().jobs();
        let name = format!("job-{}", jobs.queues().map(|(_, queue)| queue.jobs().len()).sum::<usize>());
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let group = TaskGroup { priority, ..TaskGroup::new(request, tasks) };
        let spec = JobSpec {
            queue: self.queues[queue % self.queues.len()],
            min_member,
            priority,
            topology,
            created: self.cluster.now(),
            phase: JobPhase::Inqueue,
            ..JobSpec::new(&name, vec![group])
        };
        self.cluster.scheduler_mut().jobs_mut().submit(spec)
    }

    /// Submits a job whose tasks run, on node after node.
    fn running_job(
        &mut self,
        queue: usize,
        tasks: u32,
        cpu_milli: u32,
        priority: i32,
    ) -> Result<JobId, SessionError> {
        let job = self.job(queue, tasks, 1, cpu_milli, priority)?;
        self.run_tasks(job, tasks)?;
        Ok(job)
    }

    /// Has the tasks of a job run, on node after node.
    fn run_tasks(&mut self, job: JobId, tasks: u32) -> Result<(), SessionError> {
        for index in 0..tasks {
            let node = self.nodes[self.running % self.nodes.len()];
            self.cluster.run_on(TaskId { job, index }, node, TaskState::Running)?;
            self.running += 1;
        }
        Ok(())
    }

    fn cycle(&mut self) -> Timed {
        let start = Instant::now();
        let report = self.cluster.plan();
        let deciding = start.elapsed();
        let changes = self.cluster.commit(&report);
        Timed { changes, deciding, whole: start.elapsed() }
    }

    /// Makes a row of a cycle.
    fn row(&self, name: &'static str, pending: u32, timed: &Timed) -> SessionRow {
        SessionRow {
            name,
            nodes: self.nodes.len(),
            running: self.running,
            pending: pending as usize,
            queues: self.queues.len(),
            placed: timed.changes.bound.len() + timed.changes.pipelined.len(),
            evicted: timed.changes.evicted.len(),
            seconds: timed.whole.as_secs_f64(),
            deciding_seconds: timed.deciding.as_secs_f64(),
            milliseconds: timed.whole.as_secs_f64() * 1e3,
            deciding_milliseconds: timed.deciding.as_secs_f64() * 1e3,
            per_second: None,
            memory_bytes: Process::This.resident_bytes().unwrap_or(0),
            fairness: None,
        }
    }
}
