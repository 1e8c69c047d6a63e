//! The JSON file of `wharf statement submit`. An error names the place in the file, and what may be there.

use std::fmt;
use std::num::NonZeroU64;

use anyhow::{anyhow, bail};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use wharf_core::ids::AllocationId;
use wharf_net::protocol::{
    COMMIT_ALL_OR_NOTHING, COMMIT_INCREMENTAL, CONFLICT_DETECTION_COARSE, CONFLICT_DETECTION_FINE,
    DemandBody, NamedAmount, OPERATION_ALLOCATE, OPERATION_EVICT, OPERATION_PIPELINE, OperationBody,
    StatementRequest,
};

use super::connect::Usage;
use super::node;
use crate::units;

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object with the list `operations`, such as {\"operations\": [{\"allocate\": {\"node\": \"gpu-1\", \"cpu\": 2}}]}"
)]
struct Statement {
    operations: Vec<Operation>,
    conflict_detection: Option<ConflictDetection>,
    mode: Option<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", expecting = "\"fine\" or \"coarse\"")]
#[repr(u8)]
enum ConflictDetection {
    Fine = CONFLICT_DETECTION_FINE,
    Coarse = CONFLICT_DETECTION_COARSE,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", expecting = "\"all-or-nothing\" or \"incremental\"")]
#[repr(u8)]
enum Mode {
    AllOrNothing = COMMIT_ALL_OR_NOTHING,
    Incremental = COMMIT_INCREMENTAL,
}

/// An operation, and the name of its node if the node is not given by id.
#[derive(Deserialize)]
#[serde(try_from = "OneOf")]
struct Operation(OperationBody, Option<String>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with one key, `allocate`, `pipeline` or `evict`")]
struct OneOf {
    allocate: Option<Ask>,
    pipeline: Option<Ask>,
    evict: Option<Evict>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"node\": \"gpu-1\", \"cpu\": 2}")]
struct Ask {
    node: Node,
    expected_version: Option<Whole>,
    #[serde(default, deserialize_with = "amount")]
    cpu: i64,
    #[serde(default, deserialize_with = "memory")]
    memory: i64,
    #[serde(default, deserialize_with = "amount")]
    gpu: i64,
    resources: Option<Resources>,
    gpus: Option<Vec<Instance>>,
    owner: Option<Whole>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"allocation\": \"a1-83-1\"}")]
struct Evict {
    #[serde(deserialize_with = "allocation")]
    allocation: Option<AllocationId>,
    expected_version: Option<Whole>,
    #[serde(default, deserialize_with = "grace")]
    grace: u64,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give the node's id as a number, or its name as a text")]
enum Node {
    Id(NonZeroU64),
    Name(#[serde(deserialize_with = "not_empty")] String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give GPU instances from 0 to 15")]
enum Instance {
    Number(u8),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give a whole number from 0 on")]
enum Whole {
    Number(u64),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give a text, such as \"a1-83-1\" for an allocation or \"30s\" for a time")]
enum Text {
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "give an amount: a number, or a text such as \"0.5\" or \"8GiB\"")]
enum Written {
    Number(serde_json::Number),
    Text(String),
}

fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() { Err(D::Error::custom("the name is empty")) } else { Ok(name) }
}

/// Reads a value of the form `W` and parses it. Null is read as the default.
fn parsed<'de, D: Deserializer<'de>, W: Deserialize<'de>, T: Default, E: fmt::Display>(
    deserializer: D,
    parse: impl FnOnce(W) -> Result<T, E>,
) -> Result<T, D::Error> {
    let written = Option::<W>::deserialize(deserializer)?;
    written.map_or_else(|| Ok(T::default()), parse).map_err(D::Error::custom)
}

/// Reads an amount in 1/10,000 of its unit.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    parsed(deserializer, |written: Written| written.amount(""))
}

/// Reads an amount of memory, in 1/10,000 MiB.
fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    parsed(deserializer, |written: Written| written.amount("memory"))
}

/// Reads a time, in ns.
fn grace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    parsed(deserializer, |Text::Text(time)| units::duration(&time).map(units::nanos))
}

fn allocation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AllocationId>, D::Error> {
    parsed(deserializer, |Text::Text(id)| id.parse().map(Some))
}

#[derive(Deserialize)]
struct Units(#[serde(deserialize_with = "amount")] i64);

/// Custom resources. The service refuses names that are given twice, so this is a list.
struct Resources(Vec<NamedAmount>);

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Resources {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of names and amounts, such as {\"licence\": 2}")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, Units(amount))) = map.next_entry()? {
            self.0.push(NamedAmount { name, amount });
        }
        Ok(self)
    }
}

impl Written {
    fn amount(self, resource: &str) -> Result<i64, Usage> {
        match self {
            Self::Number(number) => node::amount(resource, &number.to_string()),
            Self::Text(text) => node::amount(resource, &text),
        }
    }
}

impl TryFrom<OneOf> for Operation {
    type Error = anyhow::Error;

    fn try_from(of: OneOf) -> anyhow::Result<Self> {
        match of {
            OneOf { allocate: Some(ask), pipeline: None, evict: None } => {
                Ok(ask.operation(OPERATION_ALLOCATE))
            }
            OneOf { allocate: None, pipeline: Some(ask), evict: None } => {
                if ask.gpus.is_some() || ask.owner.is_some() {
                    bail!("`pipeline` has no `gpus` and no `owner`: leave them out");
                }
                Ok(ask.operation(OPERATION_PIPELINE))
            }
            OneOf { allocate: None, pipeline: None, evict: Some(evict) } => {
                let body = OperationBody {
                    operation: OPERATION_EVICT,
                    allocation: evict.allocation.map(Into::into),
                    expected_version: evict.expected_version.map(|Whole::Number(version)| version),
                    grace: evict.grace,
                    ..OperationBody::default()
                };
                Ok(Self(body, None))
            }
            _ => bail!("give one of `allocate`, `pipeline` and `evict`, in an object for each operation"),
        }
    }
}

impl Ask {
    fn operation(self, operation: u8) -> Operation {
        let (node, name) = match self.node {
            Node::Id(id) => (id.get(), None),
            Node::Name(name) => (0, Some(name)),
        };
        let body = OperationBody {
            operation,
            node,
            expected_version: self.expected_version.map(|Whole::Number(version)| version),
            demand: DemandBody {
                cpu: self.cpu,
                memory: self.memory,
                gpu: self.gpu,
                custom: self.resources.map_or_else(Vec::new, |Resources(custom)| custom),
            },
            gpus: self.gpus.into_iter().flatten().map(|Instance::Number(gpu)| gpu).collect(),
            owner: self.owner.map_or(0, |Whole::Number(owner)| owner),
            ..OperationBody::default()
        };
        Operation(body, name)
    }
}

/// Parses the file. Returns the request and, per operation, the name of its node if given by name.
pub(super) fn read(text: &str) -> anyhow::Result<(StatementRequest, Vec<Option<String>>)> {
    let mut json = serde_json::Deserializer::from_str(text);
    let statement = serde_path_to_error::deserialize(&mut json).map_err(anyhow::Error::from);
    let statement =
        statement.and_then(|statement: Statement| json.end().map(|()| statement).map_err(Into::into));
    let statement =
        statement.map_err(|error| anyhow!("{error}; `wharf statement submit --help` shows a statement"))?;
    let conflict_detection = statement.conflict_detection.unwrap_or(ConflictDetection::Fine) as u8;
    let mode = statement.mode.unwrap_or(Mode::AllOrNothing) as u8;
    let operations = statement.operations.into_iter().map(|Operation(body, name)| (body, name));
    let (operations, nodes) = operations.unzip();
    Ok((StatementRequest { operations, conflict_detection, mode }, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_read() {
        let text = r#"{"operations": [
            {"allocate": {"node": "a", "expected_version": 7, "cpu": 0.5, "memory": "8GiB", "gpu": "1",
                          "resources": {"npu": 2}, "gpus": [1], "owner": 9}},
            {"pipeline": {"node": 3, "cpu": "1", "memory": null}},
            {"evict": {"allocation": "a1-2-3", "grace": "30s"}}
        ], "conflict_detection": "coarse", "mode": "incremental"}"#;
        let (request, nodes) = read(text).unwrap();
        assert_eq!(
            (request.conflict_detection, request.mode),
            (CONFLICT_DETECTION_COARSE, COMMIT_INCREMENTAL)
        );
        assert_eq!(nodes, [Some("a".to_owned()), None, None]);
        assert_eq!(request.operations[1].node, 3);
        let [allocate, claim, evict] = &request.operations[..] else { panic!("{request:?}") };
        assert_eq!(
            (allocate.demand.cpu, allocate.demand.memory, allocate.demand.gpu),
            (5000, 81_920_000, 10_000)
        );
        assert_eq!((allocate.expected_version, allocate.owner, &allocate.gpus[..]), (Some(7), 9, &[1][..]));
        assert_eq!(allocate.demand.custom[0].amount, 20_000);
        assert_eq!((claim.operation, claim.demand.cpu), (OPERATION_PIPELINE, 10_000));
        assert_eq!((evict.grace, evict.allocation.unwrap().sequence), (30_000_000_000, 3));
        let (request, _) = read(r#"{"operations": []}"#).unwrap();
        assert_eq!(
            (request.conflict_detection, request.mode),
            (CONFLICT_DETECTION_FINE, COMMIT_ALL_OR_NOTHING)
        );
    }

    #[track_caller]
    fn says(text: &str, expected: &str) {
        let error = read(text).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("; `wharf statement submit --help` shows"), "no remedy: {error}");
    }

    #[test]
    fn what_is_wrong_with_a_statement_is_named() {
        for (text, expected) in [
            ("", "line 1 column 0"),
            ("{\n\"operations\": [}", "expected value at line 2 column 16"),
            ("[]", "expected an object with the list `operations`"),
            ("{}", "missing field `operations`"),
            (r#"{"operations": {}}"#, "operations: invalid type: map, expected a sequence"),
            (
                r#"{"operation": []}"#,
                "operation: unknown field `operation`, expected one of `operations`, `conflict_detection`, `mode`",
            ),
            (r#"{"operations": [], "operations": []}"#, "duplicate field `operations`"),
            (
                r#"{"operations": [], "mode": "some"}"#,
                "mode: unknown variant `some`, expected `all-or-nothing` or `incremental`",
            ),
            (r#"{"operations": [], "mode": []}"#, "mode: "),
            (r#"{"operations": [], "conflict_detection": 3}"#, "conflict_detection: "),
        ] {
            says(text, expected);
        }
    }

    #[test]
    fn what_is_wrong_with_an_operation_is_named_with_its_place() {
        for (operation, expected) in [
            (r#"{"allocate": {"cpu": 1}}"#, ".allocate: missing field `node`"),
            (r#"{"allocate": {"node": 0}}"#, ".allocate.node: give the node's id as a number, or its name"),
            (
                r#"{"allocate": {"node": "a", "cpus": 1}}"#,
                ".allocate.cpus: unknown field `cpus`, expected one of `node`, `expected",
            ),
            (r#"{"allocate": {"node": "a", "cpu": 1, "cpu": 2}}"#, ".allocate: duplicate field `cpu`"),
            (r#"{"allocate": []}"#, ".allocate: invalid length 0, expected an object such as"),
            (
                r#"{"move": {}}"#,
                ".move: unknown field `move`, expected one of `allocate`, `pipeline`, `evict`",
            ),
            (
                r#"{"allocate": {"node": "a"}, "evict": {"allocation": "a1-1-1"}}"#,
                ": give one of `allocate`, `pipeline` and `evict`, in an object for each",
            ),
            ("{}", ": give one of `allocate`, `pipeline` and `evict`"),
            ("[]", ": invalid length 0, expected an object with one key"),
            (r#""evict""#, r#": invalid type: string "evict", expected an object with one key"#),
            (r#"{"allocate": {"node": ""}}"#, ".allocate.node: give the node's id"),
            (r#"{"pipeline": {"node": []}}"#, ".pipeline.node: give the node's id"),
            (
                r#"{"pipeline": {"node": "a", "gpus": [1]}}"#,
                ": `pipeline` has no `gpus` and no `owner`: leave them out",
            ),
            (r#"{"allocate": {"node": "a", "cpu": "x"}}"#, ".allocate.cpu: "),
            (r#"{"allocate": {"node": "a", "cpu": true}}"#, ".allocate.cpu: give an amount"),
            (
                r#"{"allocate": {"node": "a", "resources": 2}}"#,
                ".allocate.resources: invalid type: integer `2`, expected an object of names and amounts",
            ),
            (
                r#"{"allocate": {"node": "a", "resources": {"npu": []}}}"#,
                ".allocate.resources.npu: give an amount",
            ),
            (
                r#"{"allocate": {"node": "a", "gpus": 1}}"#,
                ".allocate.gpus: invalid type: integer `1`, expected a sequence",
            ),
            (
                r#"{"allocate": {"node": "a", "gpus": [0, 999]}}"#,
                ".allocate.gpus[1]: give GPU instances from 0 to 15",
            ),
            (r#"{"allocate": {"node": "a", "owner": -1}}"#, ".allocate.owner: give a whole number from 0 on"),
            (
                r#"{"allocate": {"node": "a", "expected_version": "7"}}"#,
                ".allocate.expected_version: give a whole number",
            ),
            (r#"{"evict": {}}"#, ".evict: missing field `allocation`"),
            (r#"{"evict": {"allocation": 7}}"#, ".evict.allocation: give a text, such as \"a1-83-1\""),
            (r#"{"evict": {"allocation": "a1-1-1", "grace": 30}}"#, ".evict.grace: give a text, such as"),
        ] {
            let fine = r#"{"evict": {"allocation": "a1-1-1"}}"#;
            says(&format!(r#"{{"operations": [{fine}, {operation}]}}"#), &format!("operations[1]{expected}"));
        }
        for (operation, expected) in [
            (r#"{"evict": {"allocation": "x"}}"#, "operations[0].evict.allocation: "),
            (r#"{"evict": {"allocation": "a1-1-1", "grace": "1d"}}"#, "operations[0].evict.grace: "),
        ] {
            let error = read(&format!(r#"{{"operations": [{operation}]}}"#)).map(drop).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
