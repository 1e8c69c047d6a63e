//! `wharf explain`: why a job or a task, a placement or a group waits, and what would help.

use clap::Args;
use wharf_core::ids::{GroupId, Incarnation, ParseGroupIdError, SessionId};
use wharf_core::jobs::{JobId, ParseJobIdError};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{ExplainJobRequest, ExplainWaitRequest};

use super::connect::{ConnectArgs, Usage};
use super::{Ended, explain_view, explain_wait_view, job};

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// A job, or a task of it.
    Job { job: JobId, task: Option<u32> },
    /// A group, or a bundle of it.
    Group { group: GroupId, bundle: Option<u32> },
    /// A placement: the session of its client, and its sequence there.
    Placement { session: SessionId, sequence: u64 },
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A job, such as j1, or a task, such as j1/0; a group, such as g1-0, or a bundle, such as g1-0/2; or a placement that
    /// waits, such as s1-4/2, as `wharf place --wait` prints it.
    #[arg(value_name = "ID", value_parser = subject)]
    of: Subject,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn subject(text: &str) -> Result<Subject, Usage> {
    match text.chars().next() {
        Some('g') => group(text),
        Some('s') => placement(text).ok_or_else(|| {
            let message = "is no placement that waits: give SESSION/SEQUENCE, such as s1-4/2";
            Usage(format!("`{text}` {message}"))
        }),
        _ if text.contains('/') => {
            let task = job::task_id(text)?;
            Ok(Subject::Job { job: task.job, task: Some(task.index) })
        }
        _ => {
            let job: JobId = text.parse().map_err(|error: ParseJobIdError| Usage(error.to_string()))?;
            Ok(Subject::Job { job, task: None })
        }
    }
}

fn group(text: &str) -> Result<Subject, Usage> {
    let (id, bundle) = match text.split_once('/') {
        None => (text, None),
        Some((id, bundle)) => {
            let none = |_| Usage(format!("`{bundle}` is no index of a bundle: give one such as g1-0/2"));
            (id, Some(bundle.parse().map_err(none)?))
        }
    };
    let group: GroupId = id.parse().map_err(|error: ParseGroupIdError| Usage(error.to_string()))?;
    Ok(Subject::Group { group, bundle })
}

/// Parses `sINCARNATION-NUMBER/SEQUENCE`.
fn placement(text: &str) -> Option<Subject> {
    let (session, sequence) = text.strip_prefix('s')?.split_once('/')?;
    let (incarnation, number) = session.split_once('-')?;
    let session =
        SessionId { incarnation: Incarnation(incarnation.parse().ok()?), number: number.parse().ok()? };
    Some(Subject::Placement { session, sequence: sequence.parse().ok()? })
}

pub(super) async fn run(args: ExplainArgs) -> anyhow::Result<Ended> {
    let request = match args.of {
        Subject::Job { job, task } => return explain_job(&args.connect, job, task).await,
        Subject::Group { group, bundle } => {
            ExplainWaitRequest { group: Some(group.into()), bundle, ..ExplainWaitRequest::default() }
        }
        Subject::Placement { session, sequence } => {
            ExplainWaitRequest { session: Some(session.into()), sequence, ..ExplainWaitRequest::default() }
        }
    };
    let ask = async |client: &Client| {
        let reply = client.explain_wait(&request).await?;
        let of_job = match reply.job {
            0 => None,
            job => Some(client.explain_job(&ExplainJobRequest { job, task: None }).await?),
        };
        Ok::<_, ClientError>((reply, of_job))
    };
    let (reply, of_job) = args.connect.ask(ask).await?;
    // It may have been placed between the two answers.
    let of_job = of_job.filter(|of_job| of_job.reason.is_done());
    let view = || explain_wait_view::view(&request, &reply, of_job.as_ref());
    let say = || explain_wait_view::say_reply(&request, &reply, of_job.as_ref());
    args.connect.show(reply.reason.is_done(), view, say)
}

async fn explain_job(connect: &ConnectArgs, job: JobId, task: Option<u32>) -> anyhow::Result<Ended> {
    let request = ExplainJobRequest { job: job.0, task };
    let reply = connect.ask(async |client| client.explain_job(&request).await).await?;
    let view = || explain_view::view(&reply);
    connect.show(reply.reason.is_done(), view, || explain_view::say_reply(&reply, task.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::ids::TenantId;

    #[test]
    fn what_waits_is_read_as_it_is_printed() {
        let of = |job, task| Subject::Job { job: JobId(job), task };
        assert_eq!(subject("j4").unwrap(), of(4, None));
        assert_eq!(subject("j4/7").unwrap(), of(4, Some(7)));
        let id = GroupId { incarnation: Incarnation(3), number: 5, tenant: TenantId(2) };
        let of = |bundle| Subject::Group { group: id, bundle };
        assert_eq!(subject(&id.to_string()).unwrap(), of(None));
        assert_eq!(subject(&format!("{id}/4")).unwrap(), of(Some(4)));
        let session = SessionId { incarnation: Incarnation(3), number: 8 };
        let of = Subject::Placement { session, sequence: 2 };
        assert_eq!(subject(&format!("{session}/2")).unwrap(), of);
        for broken in ["", "4", "j4/", "j4/x", "j/1", "g1", "g1-2/x", "s1-2", "s1/2", "s1-x/2", "a1-2-3"] {
            assert!(subject(broken).is_err(), "{broken}");
        }
    }
}
