//! `wharf job`: jobs and their tasks.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use wharf_core::jobs::{JobId, TaskId, TaskState};
use wharf_net::client::{Client, ClientError};
use wharf_net::convert::task_state_number;
use wharf_net::protocol::{
    CancelJobRequest, Fault, JobBody, JobReply, JobStatusReply, JobStatusRequest, JobSummaryBody,
    ListJobsRequest, Reason, ReasonCode, ReportTasksRequest, SubmitJobRequest, TASK_REPORTS_PER_MESSAGE_MAX,
    TaskReportBody,
};

use super::connect::{ConnectArgs, Each, Outcome, Usage};
use super::job_bodies::{self, Described};
use super::{Ended, job_view, print};
use crate::units;

#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// Submit the jobs of files.
    Submit(SubmitArgs),
    /// Show a job, and where its tasks run.
    Status(StatusArgs),
    /// List the jobs.
    List(ListArgs),
    /// End jobs, and release what their tasks hold.
    Cancel(CancelArgs),
    /// Report that tasks run or have ended, as a control plane does.
    Report(ReportArgs),
}

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// Files with the list `jobs`, in YAML or JSON. Their `priority_classes` are names for
    /// these jobs, and come before those of the service. The list `queues` is left alone: `wharf queue set` reads it.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The job id, as printed by `wharf job submit`.
    job: JobId,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Only jobs of this queue.
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The job ids.
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<JobId>,
    /// The time that tasks have to end, such as 30s. Without it, they end at once.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    grace: Option<Duration>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// The tasks, such as j1/0.
    #[arg(required = true, value_name = "TASK", value_parser = task_id)]
    tasks: Vec<TaskId>,
    /// What became of them: running, succeeded or failed.
    #[arg(long, value_parser = reported_state)]
    state: TaskState,
    /// The exit code of failed tasks. Policies of their job may depend on it.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    exit_code: Option<i32>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Parses `j1/0`.
pub(super) fn task_id(text: &str) -> Result<TaskId, Usage> {
    let wrong = || Usage(format!("`{text}` is not the id of a task: give JOB/INDEX, such as j1/0"));
    let (job, index) = text.split_once('/').ok_or_else(wrong)?;
    let job = job.parse().map_err(|_| wrong())?;
    Ok(TaskId { job, index: index.parse().map_err(|_| wrong())? })
}

fn reported_state(text: &str) -> Result<TaskState, Usage> {
    let known = [TaskState::Running, TaskState::Succeeded, TaskState::Failed];
    let named = known.into_iter().find(|state| state.name() == text);
    named.ok_or_else(|| {
        Usage(format!("`{text}` is no state that is reported: give running, succeeded or failed"))
    })
}

pub(super) async fn run(command: JobCommand) -> anyhow::Result<Ended> {
    match command {
        JobCommand::Submit(args) => submit(args).await,
        JobCommand::Status(args) => status(args).await,
        JobCommand::List(args) => list(args).await,
        JobCommand::Cancel(args) => cancel(args).await,
        JobCommand::Report(args) => report(args).await,
    }
}

async fn submit(args: SubmitArgs) -> anyhow::Result<Ended> {
    let jobs = job_bodies::jobs(&args.files)?;
    let ask = async |client: &Client, jobs: &[Described<JobBody>]| {
        let request = SubmitJobRequest { job: jobs[0].body.clone() };
        Ok(vec![client.submit_job(&request).await?])
    };
    let print = Each {
        subject: |job: &Described<JobBody>| {
            format!("{}: line {}: job {}", job.file.display(), job.line, job.body.name)
        },
        done: &|job, reply: &JobReply| {
            let JobBody { name, queue, .. } = &job.body;
            let id = JobId(reply.job);
            match queue.as_str() {
                "" => {
                    format!("job {id}: {name} submitted to the queue that the settings of the service name")
                }
                queue => format!("job {id}: {name} submitted to queue {queue}"),
            }
        },
        fields: |job, reply| {
            let id = print::given(reply.job).map(|job| JobId(job).to_string());
            (json!({ "name": job.body.name, "job": id }), json!({}))
        },
    };
    args.connect.ask_each(&jobs, 1, ask, print).await
}

/// Reads a job with all its tasks, page by page.
async fn whole_job(client: &Client, job: JobId) -> Result<JobStatusReply, ClientError> {
    let mut whole = client.job_status(&JobStatusRequest { job: job.0, from: 0, limit: 0 }).await?;
    while whole.more {
        let from = whole.tasks.last().map_or(0, |task| task.index.saturating_add(1));
        let page = client.job_status(&JobStatusRequest { job: job.0, from, limit: 0 }).await?;
        if !page.reason.is_done() {
            // It is gone by now.
            return Ok(page);
        }
        whole.more = page.more && !page.tasks.is_empty();
        whole.job = page.job;
        whole.tasks.extend(page.tasks);
    }
    Ok(whole)
}

async fn status(args: StatusArgs) -> anyhow::Result<Ended> {
    let reply = args.connect.ask(async |client| whole_job(client, args.job).await).await?;
    let view = || job_view::status_view(&reply);
    args.connect.show(reply.reason.is_done(), view, || job_view::say_status(&reply))
}

async fn list(args: ListArgs) -> anyhow::Result<Ended> {
    let queue = args.queue.unwrap_or_default();
    let page = async |client: &Client, last: Option<&JobSummaryBody>| {
        let after = last.map_or(0, |job| job.id);
        let page = client.list_jobs(&ListJobsRequest { queue: queue.clone(), after, limit: 0 }).await?;
        Ok((page.jobs, page.more))
    };
    let jobs = args.connect.list(page).await?;
    let view = || jobs.iter().map(job_view::summary_view).collect();
    args.connect.show(true, view, || job_view::say_summaries(&jobs))
}

async fn cancel(args: CancelArgs) -> anyhow::Result<Ended> {
    let grace = args.grace.map_or(0, units::nanos);
    let ask = async |client: &Client, jobs: &[JobId]| {
        Ok(vec![client.cancel_job(&CancelJobRequest { job: jobs[0].0, grace }).await?])
    };
    let print = Each {
        subject: |job: &JobId| format!("job {job}"),
        done: &|job, _: &JobReply| format!("job {job}: cancelled"),
        fields: |job, _| (json!({ "job": job.to_string() }), json!({})),
    };
    args.connect.ask_each(&args.jobs, 1, ask, print).await
}

/// What became of the report about a task: done, or why it changed nothing.
type Reported = Result<(), Fault>;

impl Outcome for Reported {
    fn reason(&self) -> ReasonCode {
        self.as_ref().err().map_or_else(ReasonCode::default, |fault| fault.reason)
    }

    fn fault(&self) -> Option<&Fault> {
        self.as_ref().err()
    }
}

/// Reports the state of tasks in the allocations that they have now.
async fn report_tasks(
    client: &Client,
    tasks: &[TaskId],
    state: TaskState,
    exit_code: Option<i32>,
) -> Result<Vec<Reported>, ClientError> {
    let mut reported: Vec<Reported> = Vec::with_capacity(tasks.len());
    let mut places = Vec::new();
    let mut request = ReportTasksRequest::default();
    for (place, &TaskId { job, index }) in tasks.iter().enumerate() {
        let status = client.job_status(&JobStatusRequest { job: job.0, from: index, limit: 1 }).await?;
        let task = status.tasks.first().filter(|task| task.index == index);
        match (status.fault, task.and_then(|task| task.allocation)) {
            (Some(fault), _) => reported.push(Err(fault)),
            (None, Some(allocation)) => {
                let state = task_state_number(state);
                request.tasks.push(TaskReportBody { job: job.0, index, allocation, state, exit_code });
                places.push(place);
                reported.push(Ok(()));
            }
            (None, None) => reported.push(Err(match task {
                None => Fault::new(
                    Reason::InvalidField,
                    "the job has no such task: show the job to see which it has",
                ),
                Some(_) => Fault::new(
                    Reason::UnknownAllocation,
                    "the task holds nothing now: show the job to see its state",
                ),
            })),
        }
    }
    if request.tasks.is_empty() {
        return Ok(reported);
    }
    let reply = client.report_tasks(&request).await?;
    for outdated in reply.outdated {
        if let Some(&place) = places.get(outdated as usize) {
            let message = "the task has left its allocation meanwhile: show the job to see its state";
            reported[place] = Err(Fault::new(Reason::UnknownAllocation, message));
        }
    }
    if let Some(fault) = reply.fault {
        places.into_iter().for_each(|place| reported[place] = Err(fault.clone()));
    }
    Ok(reported)
}

async fn report(args: ReportArgs) -> anyhow::Result<Ended> {
    let ReportArgs { state, exit_code, .. } = args;
    if exit_code.is_some() && state != TaskState::Failed {
        return Err(Usage(
            "--exit-code is that of failed tasks: give --state failed, or leave it out".to_owned(),
        )
        .into());
    }
    let ask = async |client: &Client, tasks: &[TaskId]| report_tasks(client, tasks, state, exit_code).await;
    let print = Each {
        subject: |task: &TaskId| format!("task {task}"),
        done: &|task, _| format!("task {task}: reported as {}", state.name()),
        fields: |task, _| (json!({ "task": task.to_string() }), json!({})),
    };
    args.connect.ask_each(&args.tasks, TASK_REPORTS_PER_MESSAGE_MAX, ask, print).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_tasks_are_read_as_they_are_printed() {
        let task = TaskId { job: JobId(42), index: 7 };
        assert_eq!(task_id(&task.to_string()).unwrap(), task);
        for broken in ["", "j1", "1/2", "j1/", "j1/x", "/2", "j1/2/3"] {
            assert!(task_id(broken).unwrap_err().0.contains("such as j1/0"), "{broken}");
        }
    }

    #[test]
    fn only_states_that_a_control_plane_knows_are_reported() {
        assert_eq!(reported_state("failed").unwrap(), TaskState::Failed);
        assert!(reported_state("pending").unwrap_err().0.contains("give running"));
    }
}
