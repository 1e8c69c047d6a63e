//! The load of jobs: clients that change queues, submit and cancel jobs, and report what becomes of tasks.

use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    AmountsBody, CancelJobRequest, JobBody, JobStatusRequest, ListQueuesRequest, NamedAmount, QueueBody,
    RemoveQueueRequest, ReportTasksRequest, RoleBody, SetQueueRequest, SubmitJobRequest, TASK_BOUND,
    TASK_FAILED, TASK_RUNNING, TASK_SUCCEEDED, TaskGroupBody, TaskReportBody,
};

use super::job_reader::{self, SeenTask};
use super::load::{self, WHOLE, World, pick};
use super::told::AskedJobs;

/// The queue that contains all that the load uses. Its cap bounds jobs, direct placements and groups together.
pub const ALL: &str = "all";
/// The queue of direct placements, and that of groups.
pub const PLACED: &str = "placed";
pub const GROUPED: &str = "grouped";
/// The queues of jobs: where tasks may preempt each other, and where none may be evicted.
const MOVING: &str = "moving";
const FIXED: &str = "fixed";

/// The caps of queues: of cores, or of allocations.
const CORES: [(&str, i64); 3] = [(ALL, 56), (PLACED, 32), (MOVING, 8)];
const ALLOCATIONS: [(&str, u32); 2] = [(FIXED, 8), (GROUPED, 20)];

/// The numbers of jobs that are not over, and of queues without jobs, that the load keeps at most.
const JOBS_MAX: usize = 14;
const EMPTY_QUEUES: u64 = 3;

/// The grace period of a job that is not cancelled at once, in ns.
const GRACE: u64 = 5_000_000;

fn queue_body(name: &str, weight: u32) -> QueueBody {
    let cores = CORES.iter().find(|(of, _)| *of == name);
    let cap = cores.map(|&(_, cores)| NamedAmount { name: "cpu".to_owned(), amount: cores * WHOLE });
    QueueBody {
        name: name.to_owned(),
        parent: if name == ALL || name.starts_with("empty") { String::new() } else { ALL.to_owned() },
        weight,
        capability: AmountsBody { amounts: cap.into_iter().collect() },
        allocations_max: ALLOCATIONS.iter().find(|(of, _)| *of == name).map(|&(_, most)| most),
        ..QueueBody::default()
    }
}

/// Makes all queues of the load.
pub async fn add_queues(world: &World, client: &Client) -> Result<(), ClientError> {
    for name in [ALL, PLACED, GROUPED, MOVING, FIXED] {
        set(world, client, name).await?;
    }
    Ok(())
}

async fn set(world: &World, client: &Client, name: &str) -> Result<(), ClientError> {
    let weight = 1 + world.below(1000) as u32;
    let asked = AskedJobs::SetQueue { name: name.to_owned(), weight };
    let token = world.jobs.borrow_mut().ask(asked);
    let reply = client.set_queue(&SetQueueRequest { queue: queue_body(name, weight) }).await?;
    assert!(reply.reason.is_done(), "{reply:?}");
    world.jobs.borrow_mut().answer(token, true);
    world.count();
    Ok(())
}

/// Changes a queue, or makes or removes one that has no jobs.
pub async fn change_queue(world: &World, client: &Client) -> Result<(), ClientError> {
    let name = match world.below(3) {
        0 => [ALL, PLACED, GROUPED, MOVING, FIXED][world.below(5) as usize].to_owned(),
        _ => format!("empty-{}", world.below(EMPTY_QUEUES)),
    };
    if world.jobs.borrow().is_queue_busy(&name) {
        return look(client).await;
    }
    let is_there = world.jobs.borrow().queues.contains_key(&name);
    if !name.starts_with("empty") || !is_there || world.below(2) == 0 {
        return set(world, client, &name).await;
    }
    let token = world.jobs.borrow_mut().ask(AskedJobs::RemoveQueue { name: name.clone() });
    let reply = client.remove_queue(&RemoveQueueRequest { name: name.clone() }).await?;
    assert!(reply.reason.is_done(), "queue {name} is lost: {reply:?}");
    world.jobs.borrow_mut().answer(token, true);
    world.count();
    Ok(())
}

/// Looks at the caps of all queues.
async fn look(client: &Client) -> Result<(), ClientError> {
    let reply = client.list_queues(&ListQueuesRequest::default()).await?;
    job_reader::are_within_caps(&reply.queues);
    Ok(())
}

pub async fn submit(world: &World, client: &Client) -> Result<(), ClientError> {
    if world.jobs.borrow().live_jobs().count() >= JOBS_MAX {
        return report(world, client).await;
    }
    let number = world.next_job.get();
    world.next_job.set(number + 1);
    let is_fixed = world.below(2) == 0;
    let count = 1 + world.below(4) as u32;
    let tasks = TaskGroupBody {
        request: load::request(0, 0),
        count,
        preemptable: !is_fixed,
        ..TaskGroupBody::default()
    };
    let job = JobBody {
        name: format!("job-{number}"),
        queue: if is_fixed { FIXED } else { MOVING }.to_owned(),
        min_member: world.below(u64::from(count) + 1) as u32,
        roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
        tasks: vec![tasks],
        priority: Some(world.below(3) as i32),
        ..JobBody::default()
    };
    let asked = AskedJobs::Submit { name: job.name.clone(), tasks: count as usize, is_fixed };
    let token = world.jobs.borrow_mut().ask(asked);
    let reply = client.submit_job(&SubmitJobRequest { job }).await?;
    assert!(reply.reason.is_done(), "{reply:?}");
    world.jobs.borrow_mut().submitted(token, reply.job);
    world.count();
    Ok(())
}

/// Takes a job that no other worker has.
fn take(world: &World) -> Option<(u64, u64)> {
    let free = world.jobs.borrow().free_jobs();
    let job = pick(world, &free)?;
    Some((job, world.jobs.borrow_mut().ask(AskedJobs::Look { job })))
}

/// Looks at a job, and reports that one of its tasks runs or has ended.
pub async fn report(world: &World, client: &Client) -> Result<(), ClientError> {
    let Some((job, token)) = take(world) else { return look(client).await };
    let request = JobStatusRequest { job, ..JobStatusRequest::default() };
    let reply = client.job_status(&request).await?;
    let seen: Vec<SeenTask> = reply.tasks.iter().map(SeenTask::of).collect();
    world.jobs.borrow_mut().note_tasks(job, &seen);
    let placed: Vec<SeenTask> =
        seen.into_iter().filter(|task| [TASK_BOUND, TASK_RUNNING].contains(&task.state)).collect();
    let chosen = pick(world, &placed);
    world.jobs.borrow_mut().answer(token, true);
    let Some(SeenTask { index, state, allocation: Some(allocation), .. }) = chosen else {
        tokio::task::yield_now().await;
        return Ok(());
    };
    let state = match world.below(8) {
        0 => TASK_FAILED,
        1..4 => TASK_SUCCEEDED,
        _ if state == TASK_BOUND => TASK_RUNNING,
        _ => TASK_SUCCEEDED,
    };
    let token = world.jobs.borrow_mut().ask(AskedJobs::Report { job, index, allocation, state });
    let report = TaskReportBody { job, index, allocation: allocation.into(), state, exit_code: None };
    let reply = client.report_tasks(&ReportTasksRequest { tasks: vec![report] }).await?;
    assert!(reply.reason.is_done(), "{reply:?}");
    let is_taken = reply.outdated.is_empty();
    assert!(is_taken || !world.jobs.borrow().is_fixed(job), "nobody may evict {allocation}: {reply:?}");
    world.jobs.borrow_mut().answer(token, is_taken);
    world.count();
    Ok(())
}

pub async fn cancel(world: &World, client: &Client) -> Result<(), ClientError> {
    let free = world.jobs.borrow().free_jobs();
    let Some(job) = pick(world, &free) else { return submit(world, client).await };
    let token = world.jobs.borrow_mut().ask(AskedJobs::Cancel { job });
    let grace = GRACE * world.below(2);
    let reply = client.cancel_job(&CancelJobRequest { job, grace }).await?;
    assert!(reply.reason.is_done(), "job {job} is lost: {reply:?}");
    world.jobs.borrow_mut().answer(token, true);
    world.count();
    Ok(())
}
