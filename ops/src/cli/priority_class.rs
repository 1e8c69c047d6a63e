//! `wharf priority-class`: names of priorities for jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wharf_net::client::Client;
use wharf_net::protocol::{
    ListPriorityClassesRequest, PriorityClassBody, PriorityClassReply, RemovePriorityClassRequest,
    SetPriorityClassRequest,
};

use super::Ended;
use super::connect::{ConnectArgs, Each};
use super::job_bodies::{self, Described};
use super::print::{given_text, table};

#[derive(Debug, Subcommand)]
pub(super) enum PriorityClassCommand {
    /// Make the priority classes of files, or change those that are there. Jobs that were submitted do not change.
    Set(SetArgs),
    /// List the priority classes.
    List(ConnectArgs),
    /// Remove priority classes. Jobs of them keep their priorities.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// Files with `priority_classes`, in YAML or JSON. Their other lists are left alone.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The names of the classes.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(command: PriorityClassCommand) -> anyhow::Result<Ended> {
    match command {
        PriorityClassCommand::Set(args) => set(args).await,
        PriorityClassCommand::List(connect) => list(connect).await,
        PriorityClassCommand::Remove(args) => remove(args).await,
    }
}

async fn set(args: SetArgs) -> anyhow::Result<Ended> {
    let classes = job_bodies::classes(&args.files)?;
    let ask = async |client: &Client, classes: &[Described<PriorityClassBody>]| {
        let request = SetPriorityClassRequest { class: classes[0].body.clone() };
        Ok(vec![client.set_priority_class(&request).await?])
    };
    let print = Each {
        subject: |of: &Described<PriorityClassBody>| {
            format!("{}: line {}: priority class {}", of.file.display(), of.line, of.body.name)
        },
        done: &|class, _: &PriorityClassReply| format!("priority class {}: set", class.body.name),
        fields: |class, _| (json!({ "priority_class": class.body.name }), json!({})),
    };
    args.connect.ask_each(&classes, 1, ask, print).await
}

fn class_view(class: &PriorityClassBody) -> Value {
    json!({
        "priority_class": class.name,
        "value": class.value,
        "default": class.is_default,
        "preempts": class.preempts,
        "description": given_text(&class.description),
    })
}

async fn list(connect: ConnectArgs) -> anyhow::Result<Ended> {
    let page = async |client: &Client, last: Option<&PriorityClassBody>| {
        let after = last.map(|class| class.name.clone()).unwrap_or_default();
        let page = client.list_priority_classes(&ListPriorityClassesRequest { after, limit: 0 }).await?;
        Ok((page.classes, page.more))
    };
    let classes = connect.list(page).await?;
    let row = |class: &PriorityClassBody| {
        let mut row = class_view(class);
        row["default"] = if class.is_default { "default" } else { "" }.into();
        row["preempts"] = if class.preempts { "yes" } else { "no" }.into();
        row
    };
    let view = || classes.iter().map(class_view).collect();
    connect.show(true, view, || {
        table("priority_class:CLASS|value|default|preempts|description", &classes.iter().map(row).collect());
    })
}

async fn remove(args: RemoveArgs) -> anyhow::Result<Ended> {
    let ask = async |client: &Client, names: &[String]| {
        let request = RemovePriorityClassRequest { name: names[0].clone() };
        Ok(vec![client.remove_priority_class(&request).await?])
    };
    let print = Each {
        subject: |name: &String| format!("priority class {name}"),
        done: &|name, _: &PriorityClassReply| format!("priority class {name}: removed"),
        fields: |name, _| (json!({ "priority_class": name }), json!({})),
    };
    args.connect.ask_each(&args.names, 1, ask, print).await
}
