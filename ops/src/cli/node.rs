//! `wharf node …`.

use clap::{Args, Subcommand};
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::resource::Amount;
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    DrainRequest, ListRequest, Name, NamedAmount, NodeBody, NodeBooksRequest, NodeStatus, NodesReply,
    NodesRequest, Pair, RemoveRequest, SetResourcesRequest,
};

use super::connect::{ConnectArgs, Usage};
use super::{Ended, node_view, print, terms};

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
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// A taint, KEY=VALUE:EFFECT or KEY:EFFECT, with the effect NoSchedule, PreferNoSchedule or
    /// NoExecute; may be given several times.
    #[arg(long = "taint", value_name = "KEY=VALUE:EFFECT")]
    taints: Vec<String>,
    /// A custom resource, NAME=AMOUNT; may be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    resources: Vec<String>,
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
    #[arg(required = true, value_name = "NAME=AMOUNT")]
    resources: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The names of the nodes.
    #[arg(required = true)]
    names: Vec<String>,
    /// Let the nodes take new work again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The names of the nodes.
    #[arg(required = true)]
    names: Vec<String>,
    /// Also end the allocations of the nodes.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Parses an amount of memory in MiB, or with a unit.
pub(super) fn memory(text: &str) -> Result<Amount, String> {
    let (number, mib) = ["MiB", "GiB", "TiB"]
        .iter()
        .zip([1, 1024, 1024 * 1024])
        .find_map(|(unit, mib)| text.strip_suffix(unit).map(|number| (number.trim(), mib)))
        .unwrap_or((text, 1));
    let amount: Amount = number.parse().map_err(|error: wharf_core::resource::AmountError| {
        format!("{error}, with MiB, GiB, TiB or no unit for MiB")
    })?;
    let units = amount.units().checked_mul(mib).ok_or_else(|| format!("{text} is out of range"))?;
    Amount::try_from_units(units).map_err(|error| error.to_string())
}

/// Splits `KEY=VALUE`.
pub(super) fn pair<'a>(flag: &str, text: &'a str) -> Result<(&'a str, &'a str), Usage> {
    text.split_once('=').ok_or_else(|| Usage(format!("{flag} {text}: give KEY=VALUE")))
}

/// Parses `NAME=AMOUNT` arguments of custom resources to wire amounts. `gpus` is the flag for GPUs.
pub(super) fn custom_amounts(gpus: &str, texts: &[String]) -> Result<Vec<NamedAmount>, Usage> {
    const FLAG: &str = "--resource";
    for text in texts {
        let (name, amount) = pair(FLAG, text)?;
        let own = match name {
            "cpu" => "--cpu",
            "memory" => "--memory",
            "gpu" | "gpus" | "gpu_part" => gpus,
            _ => continue,
        };
        return Err(Usage(format!("{FLAG} {text}: `{name}` has a flag of its own: give {own} {amount}")));
    }
    named_amounts(FLAG, texts)
}

/// Parses `NAME=AMOUNT` arguments to wire amounts.
fn named_amounts(flag: &str, texts: &[String]) -> Result<Vec<NamedAmount>, Usage> {
    let named = |text: &String| {
        let (name, amount) = pair(flag, text)?;
        let amount: Amount = amount.parse().map_err(|error| Usage(format!("{flag} {text}: {error}")))?;
        Ok(NamedAmount { name: name.to_owned(), amount: amount.units() })
    };
    texts.iter().map(named).collect()
}

/// Parses `NAME=AMOUNT` arguments in which memory may have a unit.
fn totals(texts: &[String]) -> Result<Vec<NamedAmount>, Usage> {
    let mut named = Vec::new();
    for text in texts {
        match text.split_once('=') {
            Some(("memory", amount)) => {
                let total = memory(amount).map_err(|error| Usage(format!("{text}: {error}")))?;
                named.push(NamedAmount { name: "memory".to_owned(), amount: total.units() });
            }
            Some((name @ ("gpus" | "gpu_part"), _)) => {
                return Err(Usage(format!(
                    "{text}: `{name}` is no total of a node: give gpu=N, in whole ones"
                )));
            }
            _ => named.extend(named_amounts("resource", std::slice::from_ref(text))?),
        }
    }
    Ok(named)
}

fn body(args: &SpecArgs) -> Result<NodeBody, Usage> {
    let mut labels = Vec::new();
    for text in &args.labels {
        let (key, value) = pair("--label", text)?;
        labels.push(Pair { key: key.to_owned(), value: value.to_owned() });
    }
    if let Some(model) = &args.gpu_model {
        labels.push(Pair { key: wharf_core::node::GPU_MODEL_LABEL.to_owned(), value: model.clone() });
    }
    Ok(NodeBody {
        name: args.name.clone(),
        identity: args.identity.clone(),
        cpu: args.cpu.units(),
        memory: args.memory.units(),
        gpus: args.gpus,
        custom: custom_amounts("--gpus", &args.resources)?,
        labels,
        taints: terms::each(&args.taints, terms::taint)?,
    })
}

pub(super) async fn run(command: NodeCommand) -> anyhow::Result<Ended> {
    match command {
        NodeCommand::Add(args) => {
            let request = NodesRequest { nodes: vec![body(&args)?] };
            let reply = args.connect.ask(async |client| client.add_nodes(&request).await).await?;
            finish(&args.connect, "added", &[args.name], &reply)
        }
        NodeCommand::Update(args) => {
            let request = NodesRequest { nodes: vec![body(&args)?] };
            let reply = args.connect.ask(async |client| client.update_nodes(&request).await).await?;
            finish(&args.connect, "updated", &[args.name], &reply)
        }
        NodeCommand::List(connect) => {
            let nodes = connect.ask(list).await?;
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
            let resources = totals(&args.resources)?;
            let request = SetResourcesRequest { node: args.name.clone(), resources };
            let reply = args.connect.ask(async |client| client.set_resources(&request).await).await?;
            finish(&args.connect, "updated", &[args.name], &reply)
        }
        NodeCommand::Drain(args) => {
            let undo = args.undo;
            let drain =
                async |client: &Client, names| client.drain_nodes(&DrainRequest { names, undo }).await;
            let reply = ask_about(&args.connect, &args.names, drain).await?;
            let done = if undo { "takes work again" } else { "takes no new work" };
            finish(&args.connect, done, &args.names, &reply)
        }
        NodeCommand::Remove(args) => {
            let force = args.force;
            let remove =
                async |client: &Client, names| client.remove_nodes(&RemoveRequest { names, force }).await;
            let reply = ask_about(&args.connect, &args.names, remove).await?;
            finish(&args.connect, "removed", &args.names, &reply)
        }
    }
}

/// Asks about nodes, with as many messages as they need.
async fn ask_about(
    connect: &ConnectArgs,
    names: &[String],
    question: impl AsyncFn(&Client, Vec<Name>) -> Result<NodesReply, ClientError>,
) -> anyhow::Result<NodesReply> {
    let ask_all = async |client: &Client| {
        let mut all = NodesReply::default();
        for names in names.chunks(NODES_PER_MESSAGE_MAX) {
            let names = names.iter().cloned().map(Name).collect();
            all.replies.extend(question(client, names).await?.replies);
        }
        Ok::<_, ClientError>(all)
    };
    connect.ask(ask_all).await
}

fn finish(connect: &ConnectArgs, done: &str, names: &[String], reply: &NodesReply) -> anyhow::Result<Ended> {
    let replies = || names.iter().zip(&reply.replies);
    let view = || replies().map(|(name, reply)| node_view::reply_view(name, reply)).collect();
    let say = || {
        for (name, reply) in replies() {
            match (&reply.fault, reply.allocations_ended) {
                (Some(fault), _) => print::say(format_args!("{name}: {fault}")),
                (None, 0) => print::say(format_args!("{name}: {done}")),
                (None, ended) => {
                    print::say(format_args!("{name}: {done}, {ended} allocations ended with it"));
                }
            }
        }
    };
    let is_done = reply.replies.iter().all(|reply| reply.reason.is_done());
    connect.show(is_done, view, say)
}

/// Reads all nodes, page by page.
async fn list(client: &Client) -> Result<Vec<NodeStatus>, ClientError> {
    const PAGE: u16 = 512;
    let mut nodes: Vec<NodeStatus> = Vec::new();
    loop {
        let after = nodes.last().map_or(0, |node| node.ordinal);
        let page = client.list_nodes(&ListRequest { after, limit: PAGE }).await?;
        nodes.extend(page.nodes);
        if !page.more {
            return Ok(nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_with_a_flag_are_refused_with_it() {
        let refused = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            custom_amounts("--gpu", &texts).unwrap_err().to_string()
        };
        assert!(refused(&["npu=1", "cpu=1"]).contains("`cpu` has a flag of its own: give --cpu 1"));
        assert!(refused(&["memory=64"]).contains("give --memory 64"));
        assert!(refused(&["gpus=2"]).contains("give --gpu 2"));
        assert!(custom_amounts("--gpu", &["npu=1".to_owned()]).is_ok());
        let totals = |text: &str| totals(&[text.to_owned()]);
        assert!(totals("gpus=2").unwrap_err().to_string().contains("gpu=N"));
        assert!(totals("gpu=2").is_ok() && totals("memory=1GiB").is_ok());
    }

    #[test]
    fn memory_is_read_with_and_without_units() {
        for (text, mib) in [("512", 512), ("512MiB", 512), ("1.5GiB", 1536), ("2 TiB", 2 * 1024 * 1024)] {
            assert_eq!(memory(text).unwrap(), Amount::whole(mib), "{text}");
        }
        for text in ["", "GiB", "-1", "1GB", "99999999999TiB"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
