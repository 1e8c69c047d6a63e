//! `wharf statement submit`: commits operations of another scheduler from a JSON file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wharf_core::ids::{AllocationId, StatementId};
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    COMMIT_INCREMENTAL, CONFLICT_DETECTION_FINE, Fault, NodeBooksRequest, OPERATION_PIPELINE, OperationReply,
    Reason, StatementReply, StatementRequest,
};

use super::connect::{ConnectArgs, Usage};
use super::group_view::{conflict_text, conflict_view};
use super::{Ended, print, statement_file};

#[derive(Debug, Subcommand)]
pub(super) enum StatementCommand {
    /// Commit operations that another scheduler has planned: all or none, or those that do not conflict.
    Submit(SubmitArgs),
}

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// A JSON file, or `-` for standard input: {"operations": [{"allocate": {"node": "a", "cpu": 2,
    /// "expected_version": 7}}, {"pipeline": {"node": 7, "gpu": 1}}, {"evict": {"allocation": "a1-2-3",
    /// "grace": "30s"}}], "conflict_detection": "fine" or "coarse", "mode": "all-or-nothing" or
    /// "incremental"}.
    ///
    /// A `node` that is a text is a node name, and one that is a number is a node id: "n5" is a name, 5 is an
    /// id.
    ///
    /// `expected_version` is the version of the node that the operation was planned on, as printed by `wharf
    /// node list --json`. For `evict` it is the version of the node of the allocation. With conflict
    /// detection "coarse", every operation must name a version, and conflicts if the node's version has
    /// changed. With "fine", versions are not compared: an operation conflicts only if it is no longer
    /// possible. The answer says whether versions were compared.
    file: PathBuf,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn read_file(file: &Path) -> anyhow::Result<(StatementRequest, Vec<Option<String>>)> {
    let mut text = String::new();
    let read_all = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    let read = read_all.map_err(Into::into).and_then(|()| statement_file::read(&text));
    Ok(read.map_err(|error| Usage(format!("{}: {error}", file.display())))?)
}

/// Resolves nodes that are given by name to ids. In an incremental statement an unknown node gets id 0, so
/// that only its operation conflicts. In an all-or-nothing statement it is an error.
async fn resolve(
    client: &Client,
    request: &mut StatementRequest,
    names: &[Option<String>],
) -> Result<(), ClientError> {
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, (operation, name)) in request.operations.iter_mut().zip(names).enumerate() {
        let Some(name) = name.as_deref() else { continue };
        operation.node = match known.get(name) {
            Some(&id) => id,
            None => match find(client, name).await {
                Err(ClientError::Fault(fault)) if fault.reason == Reason::UnknownNode.into() => {
                    if request.mode != COMMIT_INCREMENTAL {
                        return Err(Fault { field: format!("operations[{at}].node"), ..fault }.into());
                    }
                    0
                }
                found => found?,
            },
        };
        known.insert(name, operation.node);
    }
    Ok(())
}

/// Adds the node name to each conflict about an unknown node.
fn name_unknown(request: &StatementRequest, names: &[Option<String>], reply: &mut StatementReply) {
    let operations = request.operations.iter().zip(names).zip(&mut reply.operations);
    for ((_, name), reply) in operations.filter(|((operation, _), _)| operation.node == 0) {
        if let (Some(name), Some(conflict)) = (name, &mut reply.conflict) {
            conflict.node_name.clone_from(name);
        }
    }
}

/// Returns the id of the node with this name.
async fn find(client: &Client, name: &str) -> Result<u64, ClientError> {
    Ok(client.node_books(&NodeBooksRequest { node: name.to_owned() }).await?.node)
}

/// Returns the result of one operation in JSON. `name` is the name of its node, if it was given by name.
fn operation_view(operation: usize, name: Option<&String>, reply: &OperationReply) -> Value {
    let placed = reply.placed.as_ref();
    json!({
        "operation": operation,
        "reason": reply.reason.to_string(),
        "node": placed.map(|placed| &placed.node_name).or(name),
        "node_id": placed.map(|placed| placed.node).or_else(|| print::given(reply.node)),
        "allocation": reply.allocation.map(|id| AllocationId::from(id).to_string()),
        "gpus": print::gpus(placed),
        "gpu_part": print::gpu_part(placed),
        // The time at which an eviction with grace ends by itself, in ns of service time.
        "until": print::given(reply.until),
        "conflict": reply.conflict.as_ref().map(conflict_view),
    })
}

/// Returns the result of a statement in JSON. `names` has the name of each operation's node, if it was given
/// by name.
fn statement_view(request: &StatementRequest, names: &[Option<String>], reply: &StatementReply) -> Value {
    let operations = reply.operations.iter().zip(names).enumerate();
    let compares = request.conflict_detection != CONFLICT_DETECTION_FINE;
    json!({
        "reason": reply.reason.to_string(),
        "statement": reply.statement.map(|id| StatementId::from(id).to_string()),
        // Null if no operation has an expected version.
        "versions_compared": expects(request).then_some(compares),
        "operations": operations
            .map(|(at, (reply, name))| operation_view(at, name.as_ref(), reply))
            .collect::<Value>(),
        "fault": print::fault_view(reply.fault.as_ref()),
    })
}

/// Returns whether any operation has an expected version.
fn expects(request: &StatementRequest) -> bool {
    request.operations.iter().any(|operation| operation.expected_version.is_some())
}

/// Formats the result of one operation for people.
fn operation_text(asked: u8, name: Option<&str>, reply: &OperationReply) -> String {
    let id = reply.allocation.map(|id| AllocationId::from(id).to_string()).unwrap_or_default();
    if let Some(conflict) = &reply.conflict {
        return conflict_text(conflict);
    }
    if !reply.reason.is_done() {
        return reply.reason.to_string();
    }
    match (&reply.placed, asked) {
        (Some(placed), _) => {
            let gpus = print::instances(placed.gpu_part, "GPU", &placed.gpus);
            format!("allocated on {} as {id}{gpus}", placed.node_name)
        }
        (None, OPERATION_PIPELINE) => {
            let node = name.map_or_else(|| format!("n{}", reply.node), str::to_owned);
            format!("claimed on {node} as {id}")
        }
        (None, _) if reply.until > 0 => format!(
            "{id} is being released, until second {} of service time at the latest",
            print::seconds(reply.until)
        ),
        (None, _) => format!("{id} has ended"),
    }
}

fn say_statement(request: &StatementRequest, names: &[Option<String>], reply: &StatementReply) {
    if let Some(fault) = &reply.fault {
        return print::say(format_args!("not done: {fault}"));
    }
    let done = reply.operations.iter().filter(|operation| operation.reason.is_done()).count();
    let id = reply.statement.map(|id| StatementId::from(id).to_string()).unwrap_or_default();
    let all = reply.operations.len();
    let uncompared = expects(request) && request.conflict_detection == CONFLICT_DETECTION_FINE;
    let versions = if uncompared { "; fine: expected versions were not compared" } else { "" };
    print::say(format_args!("statement {id}: {}, {done} of {all} operations done{versions}", reply.reason));
    let asked = request.operations.iter().zip(names);
    for (at, ((asked, name), reply)) in asked.zip(&reply.operations).enumerate() {
        print::say(format_args!("  {at:>4}  {}", operation_text(asked.operation, name.as_deref(), reply)));
    }
}

pub(super) async fn run(command: StatementCommand) -> anyhow::Result<Ended> {
    let StatementCommand::Submit(args) = command;
    let (mut request, nodes) = read_file(&args.file)?;
    let client = args.connect.connect().await?;
    let reply = match resolve(&client, &mut request, &nodes).await {
        Ok(()) => client.submit_statement(&request).await,
        Err(error) => Err(error),
    };
    client.close().await;
    let mut reply = match reply {
        // The same reply as for an unknown node id.
        Err(ClientError::Fault(fault)) if fault.reason == Reason::UnknownNode.into() => {
            StatementReply { reason: fault.reason, fault: Some(fault), ..StatementReply::default() }
        }
        reply => reply?,
    };
    name_unknown(&request, &nodes, &mut reply);
    let view = || statement_view(&request, &nodes, &reply);
    args.connect.show(reply.reason.is_done(), view, || say_statement(&request, &nodes, &reply))
}
