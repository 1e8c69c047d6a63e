//! Reads the queues, jobs and tasks of a service over the wire, independently of the load.

use std::collections::BTreeSet;

use wharf_core::ids::AllocationId;
use wharf_net::client::Client;
use wharf_net::protocol::{
    JobStatusRequest, JobSummaryBody, ListJobsRequest, ListQueuesRequest, NamedAmount, QueueStatusBody,
    TASK_ALLOCATED, TASK_BOUND, TASK_FAILED, TASK_PIPELINED, TASK_RELEASING, TASK_RUNNING, TASK_SUCCEEDED,
    TaskBody,
};

use super::load::WHOLE;
use crate::harness::within;

/// A task as the service shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenTask {
    pub index: u32,
    pub state: u8,
    /// What it has, and where. A claim is not meant.
    pub allocation: Option<AllocationId>,
    pub node: Option<u64>,
}

impl SeenTask {
    pub fn of(body: &TaskBody) -> Self {
        let has_one = [TASK_ALLOCATED, TASK_BOUND, TASK_RUNNING, TASK_RELEASING].contains(&body.state);
        let allocation = body.allocation.filter(|_| has_one).map(AllocationId::from);
        assert_eq!(allocation.is_some(), has_one, "{body:?}");
        let node = has_one.then_some(body.node);
        Self { index: body.index, state: body.state, allocation, node }
    }

    pub fn is_over(&self) -> bool {
        [TASK_SUCCEEDED, TASK_FAILED].contains(&self.state)
    }

    /// Returns whether the state will change by itself.
    fn is_moving(&self) -> bool {
        [TASK_ALLOCATED, TASK_PIPELINED, TASK_RELEASING].contains(&self.state)
    }
}

/// A job as the service shows it. The tasks of jobs that were over before are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenJob {
    pub id: u64,
    pub name: String,
    pub queue: String,
    pub phase: u8,
    pub counts: Vec<(u8, u32)>,
    pub tasks: Vec<SeenTask>,
}

/// A queue as the service shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenQueue {
    pub name: String,
    pub parent: String,
    pub weight: u32,
    /// What is held of it: whole cores, and memory.
    pub cores: i64,
    pub memory: i64,
    pub allocations: u64,
    pub direct: u32,
}

/// The queues and jobs of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenJobs {
    pub queues: Vec<SeenQueue>,
    pub jobs: Vec<SeenJob>,
}

impl SeenJobs {
    /// Returns the tasks with their jobs.
    pub fn tasks(&self) -> impl Iterator<Item = (u64, &SeenTask)> {
        self.jobs.iter().flat_map(|job| job.tasks.iter().map(|task| (job.id, task)))
    }

    /// Returns the number of tasks that have an allocation on a node.
    pub fn on_node(&self, node: u64) -> i64 {
        self.tasks().filter(|(_, task)| task.node == Some(node)).count() as i64
    }
}

fn amount(of: &[NamedAmount], name: &str) -> i64 {
    of.iter().find(|amount| amount.name == name).map_or(0, |amount| amount.amount)
}

/// Checks that no queue has more than its cap.
pub fn are_within_caps(queues: &[QueueStatusBody]) {
    for status in queues {
        let usage = &status.usage;
        let used = amount(&usage.held, "cpu") + amount(&usage.releasing, "cpu");
        let cap = &status.queue.capability.amounts;
        let has_room = cap.iter().all(|cap| cap.name != "cpu" || used <= cap.amount);
        assert!(has_room, "over its cap: {status:?}");
        // A task has one core. What waits for a cap is listed with the others, and holds nothing.
        let most = status.queue.allocations_max.map_or(i64::MAX, |most| i64::from(most) * WHOLE);
        assert!(used <= most, "over its cap: {status:?}");
    }
}

/// Returns what is under way if something is being evicted or released.
fn settled(status: &QueueStatusBody) -> Result<SeenQueue, String> {
    let usage = &status.usage;
    if !usage.releasing.is_empty() || !usage.pipelined.is_empty() {
        return Err(format!("{status:?}"));
    }
    Ok(SeenQueue {
        name: status.queue.name.clone(),
        parent: status.queue.parent.clone(),
        weight: status.queue.weight,
        cores: amount(&usage.held, "cpu") / WHOLE,
        memory: amount(&usage.held, "memory"),
        allocations: status.allocations,
        direct: status.direct,
    })
}

/// Reads all queues and jobs, and the tasks of those that are not `over`. Returns what is under way if something is.
pub async fn read(client: &Client, over: &BTreeSet<u64>) -> Result<SeenJobs, String> {
    let mut jobs = Vec::new();
    let mut request = ListJobsRequest::default();
    loop {
        let page = within(client.list_jobs(&request)).await.expect("the service lists its jobs");
        for summary in page.jobs {
            request.after = summary.id;
            let tasks = if over.contains(&summary.id) { Vec::new() } else { tasks(client, summary.id).await };
            jobs.push(job(summary, tasks));
        }
        if !page.more {
            break;
        }
    }
    let request = ListQueuesRequest::default();
    let reply = within(client.list_queues(&request)).await.expect("the service lists its queues");
    assert!(!reply.more, "a page has them all");
    are_within_caps(&reply.queues);
    let queues = reply.queues.iter().map(settled).collect::<Result<Vec<_>, _>>()?;
    let seen = SeenJobs { queues, jobs };
    if let Some(job) = seen.jobs.iter().find(|job| job.tasks.iter().any(SeenTask::is_moving)) {
        return Err(format!("{job:?} of {:?}", seen.queues));
    }
    Ok(seen)
}

fn job(summary: JobSummaryBody, tasks: Vec<SeenTask>) -> SeenJob {
    let counts = summary.counts.iter().map(|of| (of.state, of.count)).collect();
    let JobSummaryBody { id, name, queue, phase, .. } = summary;
    SeenJob { id, name, queue, phase, counts, tasks }
}

/// Returns the tasks of a job.
pub async fn tasks(client: &Client, job: u64) -> Vec<SeenTask> {
    let request = JobStatusRequest { job, ..JobStatusRequest::default() };
    let reply = within(client.job_status(&request)).await.expect("the service shows its jobs");
    assert!(reply.reason.is_done() && !reply.more, "{reply:?}");
    reply.tasks.iter().map(SeenTask::of).collect()
}
