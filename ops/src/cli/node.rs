//! `wharf node …`.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use serde_json::json;
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::resource::Amount;
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    DrainRequest, ListRequest, Name, NamedAmount, NodeBody, NodeBooksRequest, NodeReply, NodeStatus,
    NodesReply, NodesRequest, Pair, RemoveRequest, SetResourcesRequest, Taint,
};

use super::connect::{ConnectArgs, Each, Usage};
use super::{Ended, node_view};
use crate::terms;
use crate::units::{UnitError, memory};

/// The number of nodes in one page of a list.
const NODES_PER_PAGE: u16 = 512;

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Register a node.
    Add(SpecArgs),
    /// Replace the capacity, labels and taints of a registered node.
    Update(SpecArgs),
    /// List the nodes, in order of registration.
    List(ConnectArgs),
    /// Show the books of a node, per resource and instance.
    Show(ShowArgs),
    /// Replace the capacity of single resources of a node, even below what is in use.
    SetResource(SetResourceArgs),
    /// Keep new work away from nodes; running work stays.
    Drain(DrainArgs),
    /// Remove nodes.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct SpecArgs {
    /// The node's name.
    name: String,
    /// Cores, such as 64 or 0.5.
    #[arg(long, allow_hyphen_values = true)]
    cpu: Amount,
    /// Memory in MiB, or with a unit: 4096, 512MiB, 64GiB.
    #[arg(long, value_parser = memory, allow_hyphen_values = true)]
    memory: Amount,
    /// GPU devices.
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// The model of the GPUs, set as the label `gpu-model`.
    #[arg(long)]
    gpu_model: Option<String>,
    /// A label, KEY=VALUE; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<Pair>,
    /// A taint, KEY=VALUE:EFFECT or KEY:EFFECT, with the effect NoSchedule, PreferNoSchedule or
    /// NoExecute; may be given several times.
    #[arg(long = "taint", value_name = "KEY=VALUE:EFFECT", value_parser = terms::taint)]
    taints: Vec<Taint>,
    /// A custom resource, NAME=AMOUNT; may be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = |text: &str| custom("--gpus", text))]
    resources: Vec<NamedAmount>,
    /// The identity of the machine, such as its machine id.
    #[arg(long, default_value = "")]
    identity: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The node's name (not its id).
    name: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct SetResourceArgs {
    /// The node's name.
    name: String,
    /// The new total of cpu, memory (in MiB, or with a unit), gpu or a custom resource; 0 removes the
    /// resource.
    #[arg(required = true, value_name = "NAME=AMOUNT", value_parser = total)]
    resources: Vec<NamedAmount>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The names of the nodes.
    #[arg(required = true, value_parser = name)]
    names: Vec<Name>,
    /// Let the nodes take new work again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The names of the nodes.
    #[arg(required = true, value_parser = name)]
    names: Vec<Name>,
    /// Also end the allocations of the nodes.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn name(text: &str) -> Result<Name, Infallible> {
    Ok(Name(text.to_owned()))
}

/// Splits `KEY=VALUE`.
fn pair(text: &str) -> Result<(&str, &str), Usage> {
    text.split_once('=').ok_or_else(|| Usage("give KEY=VALUE".to_owned()))
}

/// Parses a label.
pub(super) fn label(text: &str) -> Result<Pair, Usage> {
    let (key, value) = pair(text)?;
    Ok(Pair { key: key.to_owned(), value: value.to_owned() })
}

/// Parses the amount of a resource, in 1/10,000 of its unit. Memory is in MiB, or has a unit.
pub(super) fn amount(name: &str, text: &str) -> Result<i64, Usage> {
    let amount = if name == "memory" { memory(text) } else { text.parse().map_err(UnitError::from) };
    amount.map(Amount::units).map_err(|error| Usage(error.to_string()))
}

/// Parses `NAME=AMOUNT`.
fn named_amount(text: &str) -> Result<NamedAmount, Usage> {
    let (name, text) = pair(text)?;
    Ok(NamedAmount { name: name.to_owned(), amount: amount(name, text)? })
}

/// Parses `NAME=AMOUNT` of a custom resource. `gpus` is the flag for GPUs.
pub(super) fn custom(gpus: &str, text: &str) -> Result<NamedAmount, Usage> {
    let (name, amount) = text.split_once('=').unwrap_or((text, ""));
    let own = match name {
        "cpu" => "--cpu",
        "memory" => "--memory",
        "gpu" | "gpus" | "gpu_part" => gpus,
        _ => return named_amount(text),
    };
    let remedy = format!("`{name}` has a flag of its own: give {own} {amount}");
    Err(Usage(remedy.trim_end().to_owned()))
}

/// Parses `NAME=AMOUNT` of a node's total.
fn total(text: &str) -> Result<NamedAmount, Usage> {
    match text.split_once('=') {
        Some((name @ ("gpus" | "gpu_part"), _)) => {
            Err(Usage(format!("`{name}` is no total of a node: give gpu=N, in whole ones")))
        }
        _ => named_amount(text),
    }
}

fn body(args: &SpecArgs) -> NodeBody {
    let mut labels = args.labels.clone();
    let model = args.gpu_model.clone().into_iter();
    labels.extend(model.map(|value| Pair { key: wharf_core::node::GPU_MODEL_LABEL.to_owned(), value }));
    NodeBody {
        name: args.name.clone(),
        identity: args.identity.clone(),
        cpu: args.cpu.units(),
        memory: args.memory.units(),
        gpus: args.gpus,
        custom: args.resources.clone(),
        labels,
        taints: args.taints.clone(),
    }
}

pub(super) async fn run(command: NodeCommand) -> anyhow::Result<Ended> {
    match command {
        NodeCommand::Add(args) => {
            let request = NodesRequest { nodes: vec![body(&args)] };
            let add = async |client: &Client, _| client.add_nodes(&request).await;
            change(&args.connect, "added", &[Name(args.name)], add).await
        }
        NodeCommand::Update(args) => {
            let request = NodesRequest { nodes: vec![body(&args)] };
            let update = async |client: &Client, _| client.update_nodes(&request).await;
            change(&args.connect, "updated", &[Name(args.name)], update).await
        }
        NodeCommand::List(connect) => {
            let page = async |client: &Client, last: Option<&NodeStatus>| {
                let after = last.map_or(0, |node| node.ordinal);
                let page = client.list_nodes(&ListRequest { after, limit: NODES_PER_PAGE }).await?;
                Ok((page.nodes, page.more))
            };
            let nodes = connect.list(page).await?;
            let view = || nodes.iter().map(node_view::node_view).collect();
            connect.show(true, view, || node_view::say_nodes(&nodes))
        }
        NodeCommand::Show(args) => {
            let request = NodeBooksRequest { node: args.name };
            let books = args.connect.ask(async |client| client.node_books(&request).await).await?;
            let name = &request.node;
            let view = || node_view::books_view(name, &books);
            args.connect.show(true, view, || node_view::say_books(name, &books))
        }
        NodeCommand::SetResource(args) => {
            let request = SetResourcesRequest { node: args.name.clone(), resources: args.resources };
            let set = async |client: &Client, _| client.set_resources(&request).await;
            change(&args.connect, "updated", &[Name(args.name)], set).await
        }
        NodeCommand::Drain(DrainArgs { names, undo, connect }) => {
            let drain =
                async |client: &Client, names| client.drain_nodes(&DrainRequest { names, undo }).await;
            let done = if undo { "takes work again" } else { "takes no new work" };
            change(&connect, done, &names, drain).await
        }
        NodeCommand::Remove(RemoveArgs { names, force, connect }) => {
            let remove =
                async |client: &Client, names| client.remove_nodes(&RemoveRequest { names, force }).await;
            change(&connect, "removed", &names, remove).await
        }
    }
}

/// Changes the nodes of these names, with as many messages as they need, and prints the replies. `done` is the
/// completed action, such as "added".
async fn change(
    connect: &ConnectArgs,
    done: &str,
    names: &[Name],
    question: impl AsyncFn(&Client, Vec<Name>) -> Result<NodesReply, ClientError>,
) -> anyhow::Result<Ended> {
    let ask = async |client: &Client, names: &[Name]| Ok(question(client, names.to_vec()).await?.replies);
    let print = Each {
        subject: |Name(name)| name.clone(),
        done: &|Name(name), reply: &NodeReply| match reply.allocations_ended {
            0 => format!("{name}: {done}"),
            ended => format!("{name}: {done}, {ended} allocations ended with it"),
        },
        fields: |Name(name), reply| {
            let after = json!({ "id": reply.node, "allocations_ended": reply.allocations_ended });
            (json!({ "name": name }), after)
        },
    };
    connect.ask_each(names, NODES_PER_MESSAGE_MAX, ask, print).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_with_a_flag_are_refused_with_it() {
        let refused = |text: &str| custom("--gpu", text).unwrap_err().to_string();
        assert!(refused("cpu=1").contains("`cpu` has a flag of its own: give --cpu 1"));
        assert!(refused("memory=64").contains("give --memory 64"));
        assert!(refused("gpus=2").contains("give --gpu 2"));
        assert!(custom("--gpu", "npu=1").is_ok());
        assert!(total("gpus=2").unwrap_err().to_string().contains("gpu=N"));
        assert!(total("gpu=2").is_ok() && total("memory=1GiB").is_ok());
        assert_eq!(total("x").unwrap_err().to_string(), "give KEY=VALUE");
    }
}
