//! `wharf explain`: why a job or a task waits, and what would help.

use clap::Args;
use wharf_core::jobs::{JobId, ParseJobIdError};
use wharf_net::protocol::ExplainJobRequest;

use super::connect::{ConnectArgs, Usage};
use super::{Ended, explain_view, job};

/// A job, or a task of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subject {
    job: JobId,
    task: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A job, such as j1, or a task, such as j1/0.
    #[arg(value_name = "JOB|TASK", value_parser = subject)]
    of: Subject,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn subject(text: &str) -> Result<Subject, Usage> {
    if text.contains('/') {
        let task = job::task_id(text)?;
        return Ok(Subject { job: task.job, task: Some(task.index) });
    }
    let job: JobId = text.parse().map_err(|error: ParseJobIdError| Usage(error.to_string()))?;
    Ok(Subject { job, task: None })
}

pub(super) async fn run(args: ExplainArgs) -> anyhow::Result<Ended> {
    let Subject { job, task } = args.of;
    let request = ExplainJobRequest { job: job.0, task };
    let reply = args.connect.ask(async |client| client.explain_job(&request).await).await?;
    let view = || explain_view::view(&reply);
    args.connect.show(reply.reason.is_done(), view, || explain_view::say_reply(&reply, task.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_tasks_are_read_as_they_are_printed() {
        let of = |job, task| Subject { job: JobId(job), task };
        assert_eq!(subject("j4").unwrap(), of(4, None));
        assert_eq!(subject("j4/7").unwrap(), of(4, Some(7)));
        for broken in ["", "4", "j4/", "j4/x", "j/1"] {
            assert!(subject(broken).is_err(), "{broken}");
        }
    }
}
