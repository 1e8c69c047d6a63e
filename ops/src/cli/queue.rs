//! `wharf queue`: queues of jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use wharf_net::client::Client;
use wharf_net::protocol::{
    ListQueuesRequest, QueueBody, QueueReply, QueueStatusBody, RemoveQueueRequest, SetQueueRequest,
};

use super::connect::{ConnectArgs, Each};
use super::job_bodies::{self, Described};
use super::{Ended, job_view};

#[derive(Debug, Subcommand)]
pub(super) enum QueueCommand {
    /// Make the queues of files, or change those that are there.
    Set(SetArgs),
    /// List the queues, with what is used of them.
    List(ConnectArgs),
    /// Remove queues without jobs and without queues below them.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// Files with the list `queues`, in YAML or JSON. A queue comes after the one that contains it. Their other
    /// lists are left alone.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The names of the queues.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(command: QueueCommand) -> anyhow::Result<Ended> {
    match command {
        QueueCommand::Set(args) => set(args).await,
        QueueCommand::List(connect) => list(connect).await,
        QueueCommand::Remove(args) => remove(args).await,
    }
}

async fn set(args: SetArgs) -> anyhow::Result<Ended> {
    let queues = job_bodies::queues(&args.files)?;
    let ask = async |client: &Client, queues: &[Described<QueueBody>]| {
        let request = SetQueueRequest { queue: queues[0].body.clone() };
        Ok(vec![client.set_queue(&request).await?])
    };
    let print = Each {
        subject: |of: &Described<QueueBody>| {
            format!("{}: line {}: queue {}", of.file.display(), of.line, of.body.name)
        },
        done: &|queue, _: &QueueReply| format!("queue {}: set", queue.body.name),
        fields: |queue, _| (json!({ "queue": queue.body.name }), json!({})),
    };
    args.connect.ask_each(&queues, 1, ask, print).await
}

async fn list(connect: ConnectArgs) -> anyhow::Result<Ended> {
    let page = async |client: &Client, last: Option<&QueueStatusBody>| {
        let after = last.map(|status| status.queue.name.clone()).unwrap_or_default();
        let page = client.list_queues(&ListQueuesRequest { after, limit: 0 }).await?;
        Ok((page.queues, page.more))
    };
    let queues = job_view::parents_first(connect.list(page).await?);
    let view = || queues.iter().map(job_view::queue_view).collect();
    connect.show(true, view, || job_view::say_queues(&queues))
}

async fn remove(args: RemoveArgs) -> anyhow::Result<Ended> {
    let ask = async |client: &Client, names: &[String]| {
        Ok(vec![client.remove_queue(&RemoveQueueRequest { name: names[0].clone() }).await?])
    };
    let print = Each {
        subject: |name: &String| format!("queue {name}"),
        done: &|name, _: &QueueReply| format!("queue {name}: removed"),
        fields: |name, _| (json!({ "queue": name }), json!({})),
    };
    args.connect.ask_each(&args.names, 1, ask, print).await
}
