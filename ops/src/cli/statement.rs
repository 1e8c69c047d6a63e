//! `wharf statement submit`: operations of a scheduler of its own, out of a JSON file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, StatementId};
use wharf_core::resource::Amount;
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    COMMIT_ALL_OR_NOTHING, COMMIT_INCREMENTAL, Fault, GRANULARITY_COARSE, GRANULARITY_FINE, NamedAmount,
    NodeBooksRequest, OPERATION_ALLOCATE, OPERATION_EVICT, OPERATION_PIPELINE, OperationBody, OperationReply,
    Reason, StatementReply, StatementRequest,
};

use super::connect::{ConnectArgs, Usage};
use super::group_view::{ConflictView, conflict_text};
use super::{Ended, node, place, print};

#[derive(Debug, Subcommand)]
pub(super) enum StatementCommand {
    /// Commit operations that are planned elsewhere: all of them or none, or as many as do not conflict.
    Submit(SubmitArgs),
}

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// A JSON file, or `-` for standard input: {"operations": [{"allocate": {"node": "a", "cpu": 2,
    /// "expected_version": 7}}, {"pipeline": {"node": 7, "gpu": 1}}, {"evict": {"allocation": "a1-2-3",
    /// "grace": "30s"}}], "granularity": "fine" or "coarse", "mode": "all-or-nothing" or "incremental"}.
    ///
    /// A `node` that is a text is the node of that name, one that is a number is the node of that id: "n5"
    /// is a name, 5 is an id.
    file: PathBuf,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A statement, as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatementText {
    /// Read one by one, so that an error names its operation.
    operations: Vec<serde_json::Value>,
    #[serde(default)]
    granularity: GranularityText,
    #[serde(default)]
    mode: ModeText,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GranularityText {
    #[default]
    Fine,
    Coarse,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeText {
    #[default]
    AllOrNothing,
    Incremental,
}

#[derive(Debug)]
enum OperationText {
    Allocate(AllocateText),
    Pipeline(PipelineText),
    Evict(EvictText),
}

impl OperationText {
    /// One of `{"allocate": …}`, `{"pipeline": …}`, `{"evict": …}`.
    fn read(value: serde_json::Value) -> Result<Self, String> {
        let one = "expected an object with one key: `allocate`, `pipeline` or `evict`";
        let serde_json::Value::Object(keys) = value else { return Err(one.to_owned()) };
        let named: Vec<String> = keys.keys().map(|key| format!("`{key}`")).collect();
        let mut keys = keys.into_iter();
        let (Some((key, of_it)), None) = (keys.next(), keys.next()) else {
            return Err(match named.len() {
                0 => format!("no key: {one}"),
                _ => format!("{}: {one}; write one operation for each", named.join(" and ")),
            });
        };
        let within = |error: serde_json::Error| format!("`{key}`: {error}");
        match key.as_str() {
            "allocate" => serde_json::from_value(of_it).map(Self::Allocate).map_err(within),
            "pipeline" => serde_json::from_value(of_it).map(Self::Pipeline).map_err(within),
            "evict" => serde_json::from_value(of_it).map(Self::Evict).map_err(within),
            _ => Err(format!("`{key}`: {one}")),
        }
    }
}

/// An amount: a number, or a text such as "0.5" or, for memory, "8GiB".
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected an amount: a number, or a text such as \"0.5\" or \"8GiB\"")]
enum AmountText {
    Number(serde_json::Number),
    Text(String),
}

impl AmountText {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A node: its id as a number, or its name as a text. A text is never an id.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a node: its id as a number, or its name")]
enum NodeText {
    Id(u64),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllocateText {
    node: NodeText,
    expected_version: Option<u64>,
    cpu: Option<AmountText>,
    memory: Option<AmountText>,
    gpu: Option<AmountText>,
    #[serde(default)]
    resources: BTreeMap<String, AmountText>,
    #[serde(default)]
    gpus: Vec<u8>,
    #[serde(default)]
    owner: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PipelineText {
    node: NodeText,
    expected_version: Option<u64>,
    cpu: Option<AmountText>,
    memory: Option<AmountText>,
    gpu: Option<AmountText>,
    #[serde(default)]
    resources: BTreeMap<String, AmountText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvictText {
    allocation: String,
    expected_version: Option<u64>,
    grace: Option<String>,
}

/// What an operation asks of a node.
struct Asks<'a> {
    cpu: &'a Option<AmountText>,
    memory: &'a Option<AmountText>,
    gpu: &'a Option<AmountText>,
    resources: &'a BTreeMap<String, AmountText>,
}

impl Asks<'_> {
    fn put(&self, body: &mut OperationBody) -> Result<(), String> {
        let amount = |name: &str, text: &AmountText| {
            text.text().parse::<Amount>().map(Amount::units).map_err(|error| format!("`{name}`: {error}"))
        };
        let of =
            |name: &str, text: &Option<AmountText>| text.as_ref().map_or(Ok(0), |text| amount(name, text));
        (body.cpu, body.gpu) = (of("cpu", self.cpu)?, of("gpu", self.gpu)?);
        if let Some(text) = self.memory {
            body.memory = node::memory(&text.text()).map_err(|error| format!("`memory`: {error}"))?.units();
        }
        for (name, text) in self.resources {
            body.custom.push(NamedAmount { name: name.clone(), amount: amount(name, text)? });
        }
        Ok(())
    }
}

/// The operation for the wire, and the name of its node where that is no id.
fn operation(text: OperationText) -> Result<(OperationBody, Option<String>), String> {
    let mut body = OperationBody::default();
    let named = match text {
        OperationText::Allocate(text) => {
            (body.operation, body.expected_version) = (OPERATION_ALLOCATE, text.expected_version);
            let AllocateText { cpu, memory, gpu, resources, .. } = &text;
            Asks { cpu, memory, gpu, resources }.put(&mut body)?;
            (body.gpus, body.owner) = (text.gpus, text.owner);
            Some(text.node)
        }
        OperationText::Pipeline(text) => {
            (body.operation, body.expected_version) = (OPERATION_PIPELINE, text.expected_version);
            let PipelineText { cpu, memory, gpu, resources, .. } = &text;
            Asks { cpu, memory, gpu, resources }.put(&mut body)?;
            Some(text.node)
        }
        OperationText::Evict(text) => {
            (body.operation, body.expected_version) = (OPERATION_EVICT, text.expected_version);
            let id: AllocationId =
                text.allocation.parse().map_err(|error| format!("`allocation`: {error}"))?;
            body.allocation = Some(id.into());
            if let Some(grace) = text.grace {
                let grace = place::duration(&grace).map_err(|error| format!("`grace`: {error}"))?;
                body.grace = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
            }
            None
        }
    };
    let name = match named {
        Some(NodeText::Id(id)) => {
            body.node = id;
            None
        }
        Some(NodeText::Name(name)) => Some(name),
        None => None,
    };
    Ok((body, name))
}

/// What the file says: the request, and per operation the name of its node.
fn read(text: &str) -> Result<(StatementRequest, Vec<Option<String>>), String> {
    let statement: StatementText = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let read = |(at, value)| {
        let read = OperationText::read(value).and_then(operation);
        read.map_err(|message| format!("operations[{at}]: {message}"))
    };
    let read: Vec<_> = statement.operations.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let (operations, nodes) = read.into_iter().unzip();
    let granularity = match statement.granularity {
        GranularityText::Fine => GRANULARITY_FINE,
        GranularityText::Coarse => GRANULARITY_COARSE,
    };
    let mode = match statement.mode {
        ModeText::AllOrNothing => COMMIT_ALL_OR_NOTHING,
        ModeText::Incremental => COMMIT_INCREMENTAL,
    };
    Ok((StatementRequest { operations, granularity, mode }, nodes))
}

fn read_file(file: &Path) -> anyhow::Result<(StatementRequest, Vec<Option<String>>)> {
    let mut text = String::new();
    let read_all = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    let wrong = |message: String| Usage(format!("{}: {message}", file.display()));
    read_all.map_err(|error| wrong(error.to_string()))?;
    Ok(read(&text).map_err(wrong)?)
}

/// Finds the ids of nodes that are given by name. A node that is not there is 0 in an incremental statement,
/// where only its operation conflicts; it ends one that is done as a whole.
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

/// Says of each conflict about a node that was not found by its name which name that was.
fn name_unknown(request: &StatementRequest, names: &[Option<String>], reply: &mut StatementReply) {
    let operations = request.operations.iter().zip(names).zip(&mut reply.operations);
    for ((_, name), reply) in operations.filter(|((operation, _), _)| operation.node == 0) {
        if let (Some(name), Some(conflict)) = (name, &mut reply.conflict) {
            conflict.node_name.clone_from(name);
        }
    }
}

/// The id of the node of that name.
async fn find(client: &Client, name: &str) -> Result<u64, ClientError> {
    Ok(client.node_books(&NodeBooksRequest { node: name.to_owned() }).await?.node)
}

#[derive(Serialize)]
struct OperationView {
    operation: usize,
    reason: String,
    node: Option<String>,
    node_id: Option<u64>,
    allocation: Option<String>,
    gpus: Vec<u8>,
    gpu_part: Option<String>,
    /// When an eviction with grace is done by itself, in ns of service time.
    until: Option<u64>,
    conflict: Option<ConflictView>,
}

impl OperationView {
    fn new(operation: usize, name: Option<&str>, reply: &OperationReply) -> Self {
        let placed = reply.placed.as_ref();
        Self {
            operation,
            reason: reply.reason.to_string(),
            node: placed.map(|placed| placed.node_name.clone()).or_else(|| name.map(str::to_owned)),
            node_id: placed.map(|placed| placed.node).or_else(|| Some(reply.node).filter(|&node| node > 0)),
            allocation: reply.allocation.map(|id| AllocationId::from(id).to_string()),
            gpus: placed.map(|placed| placed.gpus.clone()).unwrap_or_default(),
            gpu_part: placed.filter(|p| !p.gpus.is_empty()).map(|p| print::units(i64::from(p.gpu_part))),
            until: Some(reply.until).filter(|&until| until > 0),
            conflict: reply.conflict.as_ref().map(ConflictView::from),
        }
    }
}

#[derive(Serialize)]
struct StatementView {
    reason: String,
    statement: Option<String>,
    operations: Vec<OperationView>,
    fault: Option<print::FaultView>,
}

impl StatementView {
    /// `names`: of their nodes, where they were given by name.
    fn new(names: &[Option<String>], reply: &StatementReply) -> Self {
        let operations = reply.operations.iter().zip(names).enumerate();
        Self {
            reason: reply.reason.to_string(),
            statement: reply.statement.map(|id| StatementId::from(id).to_string()),
            operations: operations
                .map(|(at, (reply, name))| OperationView::new(at, name.as_deref(), reply))
                .collect(),
            fault: reply.fault.as_ref().map(print::FaultView::from),
        }
    }
}

/// What became of one operation, for people.
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
            "{id} is being released, until second {}.{} of service time at the latest",
            reply.until / 1_000_000_000,
            reply.until / 100_000_000 % 10
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
    print::say(format_args!("statement {id}: {}, {done} of {all} operations done", reply.reason));
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
        // As the service answers where a node is given by its id.
        Err(ClientError::Fault(fault)) if fault.reason == Reason::UnknownNode.into() => {
            StatementReply { reason: fault.reason, fault: Some(fault), ..StatementReply::default() }
        }
        reply => reply?,
    };
    name_unknown(&request, &nodes, &mut reply);
    if args.connect.json {
        print::json(&StatementView::new(&nodes, &reply))?;
    } else {
        say_statement(&request, &nodes, &reply);
    }
    Ok(if reply.reason.is_done() { Ended::Done } else { Ended::Refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_read() {
        let text = r#"{"operations": [
            {"allocate": {"node": "a", "expected_version": 7, "cpu": 0.5, "memory": "8GiB", "gpu": "1",
                          "resources": {"npu": 2}, "gpus": [1], "owner": 9}},
            {"pipeline": {"node": 3, "cpu": "1"}},
            {"evict": {"allocation": "a1-2-3", "grace": "30s"}}
        ], "granularity": "coarse", "mode": "incremental"}"#;
        let (request, nodes) = read(text).unwrap();
        assert_eq!((request.granularity, request.mode), (GRANULARITY_COARSE, COMMIT_INCREMENTAL));
        assert_eq!(nodes, [Some("a".to_owned()), None, None]);
        assert_eq!(request.operations[1].node, 3);
        let [allocate, claim, evict] = &request.operations[..] else { panic!("{request:?}") };
        assert_eq!((allocate.cpu, allocate.memory, allocate.gpu), (5000, 81_920_000, 10_000));
        assert_eq!((allocate.expected_version, allocate.owner, &allocate.gpus[..]), (Some(7), 9, &[1][..]));
        assert_eq!(allocate.custom[0].amount, 20_000);
        assert_eq!((claim.operation, claim.cpu), (OPERATION_PIPELINE, 10_000));
        assert_eq!((evict.grace, evict.allocation.unwrap().sequence), (30_000_000_000, 3));
        let (request, _) = read(r#"{"operations": []}"#).unwrap();
        assert_eq!((request.granularity, request.mode), (GRANULARITY_FINE, COMMIT_ALL_OR_NOTHING));
    }

    #[test]
    fn what_is_wrong_with_a_statement_is_named() {
        for (text, says) in [
            ("", "EOF"),
            ("{}", "operations"),
            (r#"{"operations": [{"allocate": {"cpu": 1}}]}"#, "node"),
            (
                r#"{"operations": [{"allocate": {"node": "a", "cpus": 1}}]}"#,
                "operations[0]: `allocate`: unknown field `cpus`",
            ),
            (r#"{"operations": [{"move": {}}]}"#, "operations[0]: `move`: expected"),
            (
                r#"{"operations": [{"evict": {"allocation": "a1-1-1"}}, {"allocate": {}, "evict": {}}]}"#,
                "operations[1]: `allocate` and `evict`: expected an object with one key",
            ),
            (r#"{"operations": [{}]}"#, "operations[0]: no key"),
            (r#"{"operations": ["evict"]}"#, "operations[0]: expected an object"),
            (r#"{"operations": [{"pipeline": {"node": []}}]}"#, "operations[0]: `pipeline`: expected a node"),
            (r#"{"operations": [{"allocate": {"node": "a", "cpu": "x"}}]}"#, "operations[0]: `cpu`"),
            (r#"{"operations": [{"evict": {"allocation": "x"}}]}"#, "operations[0]: `allocation`"),
            (
                r#"{"operations": [{"evict": {"allocation": "a1-1-1", "grace": "1d"}}]}"#,
                "operations[0]: `grace`",
            ),
            (r#"{"operations": [], "mode": "some"}"#, "all-or-nothing"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
