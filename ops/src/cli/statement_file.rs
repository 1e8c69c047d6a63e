//! Parser of the JSON file of `wharf statement submit`. It reads field by field, so that an error names the
//! place in the file, what is allowed there, and the remedy.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use wharf_core::ids::AllocationId;
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_net::protocol::{
    COMMIT_ALL_OR_NOTHING, COMMIT_INCREMENTAL, CONFLICT_DETECTION_COARSE, CONFLICT_DETECTION_FINE,
    NamedAmount, OPERATION_ALLOCATE, OPERATION_EVICT, OPERATION_PIPELINE, OperationBody, StatementRequest,
};

use super::{node, place};

/// A value of the file. Unlike `serde_json::Value` it keeps duplicate keys.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Self>),
    Object(#[serde(deserialize_with = "fields")] Vec<(String, Self)>),
}

/// Reads the fields of an object, in their order.
fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Json)>, D::Error> {
    struct Object;

    impl<'de> Visitor<'de> for Object {
        type Value = Vec<(String, Json)>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            std::iter::from_fn(|| map.next_entry().transpose()).collect()
        }
    }

    deserializer.deserialize_map(Object)
}

impl Json {
    /// Describes the value for an error message.
    fn kind(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => format!("the number {number}"),
            Self::Text(text) => format!("the text \"{text}\""),
            Self::List(_) => "a list".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// Formats the error that the value at `path` is not what is expected.
fn wrong(path: &str, found: &Json, give: &str) -> String {
    let at = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{at}{} was found: give {give}", found.kind())
}

/// The fields of an object that have not been read yet.
struct Fields {
    path: String,
    fields: Vec<(String, Json)>,
}

impl Fields {
    /// Returns the fields of an object, all of which must be in `known`. `give` describes the expected value
    /// in errors.
    fn of(path: &str, value: Json, known: &[&str], give: &str) -> Result<Self, String> {
        let fields = match value {
            Json::Object(fields) => fields,
            other => return Err(wrong(path, &other, give)),
        };
        let this = Self { path: path.to_owned(), fields };
        for (at, (name, _)) in this.fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(format!("{}: no such field: give {known}, or leave it out", this.path_of(name)));
            }
            if this.fields[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("{}: given twice: give it once", this.path_of(name)));
            }
        }
        Ok(this)
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field with its path; `None` if it is missing or null.
    fn take(&mut self, name: &str) -> Option<(String, Json)> {
        let at = self.fields.iter().position(|(known, _)| known == name)?;
        let (_, value) = self.fields.swap_remove(at);
        (!matches!(value, Json::Null)).then(|| (self.path_of(name), value))
    }

    /// Takes a required field.
    fn need(&mut self, name: &str, give: &str) -> Result<(String, Json), String> {
        self.take(name).ok_or_else(|| format!("{}: missing: give {give}", self.path_of(name)))
    }

    /// Takes one of a few words; the first of them if the field is missing.
    fn word(&mut self, name: &str, words: &[(&str, u8)]) -> Result<u8, String> {
        let Some((path, value)) = self.take(name) else { return Ok(words[0].1) };
        let known = words.iter().find(|(word, _)| matches!(&value, Json::Text(text) if text == word));
        known.map(|&(_, number)| number).ok_or_else(|| {
            let texts: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            wrong(&path, &value, &format!("{}, or leave it out", texts.join(" or ")))
        })
    }

    /// Takes a non-negative whole number.
    fn number(&mut self, name: &str, what: &str) -> Result<Option<u64>, String> {
        let Some((path, value)) = self.take(name) else { return Ok(None) };
        match &value {
            Json::Number(number) if number.is_u64() => Ok(number.as_u64()),
            other => Err(wrong(&path, other, &format!("{what}, a whole number from 0 on"))),
        }
    }

    fn text(&mut self, name: &str, give: &str) -> Result<Option<(String, String)>, String> {
        match self.take(name) {
            None => Ok(None),
            Some((path, Json::Text(text))) => Ok(Some((path, text))),
            Some((path, other)) => Err(wrong(&path, &other, give)),
        }
    }

    /// Takes an amount in 1/10,000 of its unit; 0 if the field is missing.
    fn amount(&mut self, name: &str) -> Result<i64, String> {
        self.take(name).map_or(Ok(0), |(path, value)| amount(&path, name, &value))
    }
}

fn amount(path: &str, name: &str, value: &Json) -> Result<i64, String> {
    let text = match value {
        Json::Number(number) => number.to_string(),
        Json::Text(text) => text.clone(),
        other => {
            return Err(wrong(path, other, "an amount: a number, or a text such as \"0.5\" or \"8GiB\""));
        }
    };
    node::amount(name, &text).map_err(|error| format!("{path}: {error}"))
}

/// Reads the node and the resources of an operation into `body`. Returns the node's name if it is not given
/// by id.
fn asks(fields: &mut Fields, body: &mut OperationBody) -> Result<Option<String>, String> {
    let of_node = "the node's id as a number, or its name as a text";
    let name = match fields.need("node", of_node)? {
        (_, Json::Number(id)) if id.as_u64().is_some_and(|id| id > 0) => {
            body.node = id.as_u64().expect("it was looked at");
            None
        }
        (_, Json::Text(name)) if !name.is_empty() => Some(name),
        (path, other) => return Err(wrong(&path, &other, of_node)),
    };
    body.expected_version = expected_version(fields)?;
    body.demand.cpu = fields.amount("cpu")?;
    body.demand.gpu = fields.amount("gpu")?;
    body.demand.memory = fields.amount("memory")?;
    match fields.take("resources") {
        None => {}
        Some((path, Json::Object(resources))) => {
            for (name, value) in resources {
                let path = format!("{path}.{name}");
                if body.demand.custom.iter().any(|known| known.name == name) {
                    return Err(format!("{path}: given twice: give it once"));
                }
                body.demand.custom.push(NamedAmount { amount: amount(&path, &name, &value)?, name });
            }
        }
        Some((path, other)) => {
            return Err(wrong(&path, &other, "an object of names and amounts, such as {\"licence\": 2}"));
        }
    }
    Ok(name)
}

fn expected_version(fields: &mut Fields) -> Result<Option<u64>, String> {
    fields.number("expected_version", "the node's version, as `wharf node list --json` tells it")
}

fn allocate(path: &str, value: Json) -> Result<(OperationBody, Option<String>), String> {
    let known = ["node", "expected_version", "cpu", "memory", "gpu", "resources", "gpus", "owner"];
    let mut fields = Fields::of(path, value, &known, "an object such as {\"node\": \"gpu-1\", \"cpu\": 2}")?;
    let mut body = OperationBody { operation: OPERATION_ALLOCATE, ..OperationBody::default() };
    let name = asks(&mut fields, &mut body)?;
    if let Some((path, value)) = fields.take("gpus") {
        let give = format!("a list of GPU instances, each from 0 to {}", GPU_INSTANCES_MAX - 1);
        let Json::List(gpus) = value else { return Err(wrong(&path, &value, &give)) };
        for (at, gpu) in gpus.iter().enumerate() {
            let number = match gpu {
                Json::Number(number) => number.as_u64().and_then(|number| u8::try_from(number).ok()),
                _ => None,
            };
            let number = number.filter(|&number| usize::from(number) < GPU_INSTANCES_MAX);
            body.gpus.push(number.ok_or_else(|| wrong(&format!("{path}[{at}]"), gpu, &give))?);
        }
    }
    let of_owner = "the number of an owner of reservations, as `wharf reserve --owner` takes it";
    body.owner = fields.number("owner", of_owner)?.unwrap_or(0);
    Ok((body, name))
}

fn pipeline(path: &str, value: Json) -> Result<(OperationBody, Option<String>), String> {
    let known = ["node", "expected_version", "cpu", "memory", "gpu", "resources"];
    let mut fields = Fields::of(path, value, &known, "an object such as {\"node\": \"gpu-1\", \"gpu\": 1}")?;
    let mut body = OperationBody { operation: OPERATION_PIPELINE, ..OperationBody::default() };
    let name = asks(&mut fields, &mut body)?;
    Ok((body, name))
}

fn evict(path: &str, value: Json) -> Result<(OperationBody, Option<String>), String> {
    let known = ["allocation", "expected_version", "grace"];
    let mut fields = Fields::of(path, value, &known, "an object such as {\"allocation\": \"a1-83-1\"}")?;
    let mut body = OperationBody { operation: OPERATION_EVICT, ..OperationBody::default() };
    let give = "the id of an allocation as a text, such as \"a1-83-1\"";
    let (path, id) = match fields.need("allocation", give)? {
        (path, Json::Text(id)) => (path, id),
        (path, other) => return Err(wrong(&path, &other, give)),
    };
    let id: AllocationId = id.parse().map_err(|error| format!("{path}: {error}"))?;
    body.allocation = Some(id.into());
    body.expected_version = expected_version(&mut fields)?;
    if let Some((path, grace)) = fields.text("grace", "a time as a text, such as \"30s\" or \"5m\"")? {
        let grace = place::duration(&grace).map_err(|error| format!("{path}: {error}"))?;
        body.grace = place::nanos(grace);
    }
    Ok((body, None))
}

/// Parses an operation. Returns it with the name of its node, if the node is not given by id.
fn operation(path: &str, value: Json) -> Result<(OperationBody, Option<String>), String> {
    const ONE: &str = "an object with one key, `allocate`, `pipeline` or `evict`";
    let fields = match value {
        Json::Object(fields) => fields,
        other => return Err(wrong(path, &other, ONE)),
    };
    let named: Vec<String> = fields.iter().map(|(key, _)| format!("`{key}`")).collect();
    let Ok([(key, of_it)]) = <[_; 1]>::try_from(fields) else {
        return Err(match named.len() {
            0 => format!("{path}: no key was found: give {ONE}"),
            _ => format!("{path}: {} were found: give {ONE}; one operation for each", named.join(" and ")),
        });
    };
    let within = format!("{path}.{key}");
    match key.as_str() {
        "allocate" => allocate(&within, of_it),
        "pipeline" => pipeline(&within, of_it),
        "evict" => evict(&within, of_it),
        _ => Err(format!("{path}: `{key}` is no operation: give {ONE}")),
    }
}

/// Parses the file. Returns the request and, per operation, the name of its node if given by name.
pub(super) fn read(text: &str) -> Result<(StatementRequest, Vec<Option<String>>), String> {
    const WHOLE: &str = "an object with the list `operations`, such as {\"operations\": [{\"allocate\": \
                         {\"node\": \"gpu-1\", \"cpu\": 2}}]}";
    const LIST: &str = "a list of operations, such as [{\"evict\": {\"allocation\": \"a1-83-1\"}}]";
    let json: Json = serde_json::from_str(text).map_err(|error| {
        let line = error.line();
        let column = error.column();
        format!("this is no JSON from line {line}, column {column} on: give {WHOLE}")
    })?;
    let mut fields = Fields::of("", json, &["operations", "conflict_detection", "mode"], WHOLE)?;
    let conflict_detection = fields.word(
        "conflict_detection",
        &[("fine", CONFLICT_DETECTION_FINE), ("coarse", CONFLICT_DETECTION_COARSE)],
    )?;
    let modes = [("all-or-nothing", COMMIT_ALL_OR_NOTHING), ("incremental", COMMIT_INCREMENTAL)];
    let mode = fields.word("mode", &modes)?;
    let operations = match fields.need("operations", LIST)? {
        (_, Json::List(operations)) => operations,
        (path, other) => return Err(wrong(&path, &other, LIST)),
    };
    let read = |(at, value)| operation(&format!("operations[{at}]"), value);
    let read: Vec<_> = operations.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let (operations, nodes) = read.into_iter().unzip();
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
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        let raw = ["invalid type", "unknown variant", "expected struct", "missing field", "EOF"];
        assert!(!raw.iter().any(|raw| error.contains(raw)), "{error}");
        assert!(error.contains(": give ") || error.contains("such as"), "no remedy: {error}");
    }

    #[test]
    fn what_is_wrong_with_a_statement_is_named() {
        for (text, expected) in [
            ("", "no JSON from line 1, column 0 on: give an object"),
            ("{\n\"operations\": [}", "line 2, column 16"),
            ("[]", "a list was found: give an object with the list `operations`"),
            ("{}", "operations: missing: give a list of operations"),
            (r#"{"operations": {}}"#, "operations: an object was found: give a list"),
            (r#"{"operation": []}"#, "operation: no such field: give operations, conflict_detection, mode"),
            (r#"{"operations": [], "operations": []}"#, "operations: given twice"),
            (
                r#"{"operations": [], "mode": "some"}"#,
                r#"mode: the text "some" was found: give "all-or-nothing" or "incremental""#,
            ),
            (r#"{"operations": [], "mode": []}"#, "mode: a list was found"),
            (
                r#"{"operations": [], "conflict_detection": 3}"#,
                r#"conflict_detection: the number 3 was found: give "fine" or "coarse""#,
            ),
        ] {
            says(text, expected);
        }
    }

    #[test]
    fn what_is_wrong_with_an_operation_is_named_with_its_place() {
        for (operation, expected) in [
            (
                r#"{"allocate": {"cpu": 1}}"#,
                ".allocate.node: missing: give the node's id as a number, or its",
            ),
            (r#"{"allocate": {"node": 0}}"#, ".allocate.node: the number 0 was found"),
            (
                r#"{"allocate": {"node": "a", "cpus": 1}}"#,
                ".allocate.cpus: no such field: give node, expected",
            ),
            (r#"{"allocate": {"node": "a", "cpu": 1, "cpu": 2}}"#, ".allocate.cpu: given twice"),
            (r#"{"allocate": []}"#, ".allocate: a list was found: give an object such as"),
            (r#"{"move": {}}"#, ": `move` is no operation: give an object with one key, `allocate`,"),
            (
                r#"{"allocate": {}, "evict": {}}"#,
                ": `allocate` and `evict` were found: give an object with one",
            ),
            ("{}", ": no key was found: give an object"),
            ("[]", ": a list was found: give an object with one key"),
            (r#""evict""#, r#": the text "evict" was found: give an object with one key"#),
            (r#"{"pipeline": {"node": []}}"#, ".pipeline.node: a list was found: give the node's id"),
            (r#"{"pipeline": {"node": "a", "gpus": [1]}}"#, ".pipeline.gpus: no such field"),
            (r#"{"allocate": {"node": "a", "cpu": "x"}}"#, ".allocate.cpu: "),
            (r#"{"allocate": {"node": "a", "cpu": true}}"#, ".allocate.cpu: true was found: give an amount"),
            (
                r#"{"allocate": {"node": "a", "resources": 2}}"#,
                ".allocate.resources: the number 2 was found: give an object of names and amounts",
            ),
            (r#"{"allocate": {"node": "a", "resources": {"npu": []}}}"#, ".allocate.resources.npu: a list"),
            (r#"{"allocate": {"node": "a", "gpus": 1}}"#, ".allocate.gpus: the number 1 was found: give a"),
            (r#"{"allocate": {"node": "a", "gpus": [0, 99]}}"#, ".allocate.gpus[1]: the number 99"),
            (r#"{"allocate": {"node": "a", "owner": -1}}"#, ".allocate.owner: the number -1 was found: give"),
            (
                r#"{"allocate": {"node": "a", "expected_version": "7"}}"#,
                r#".allocate.expected_version: the text "7" was found: give the node's version"#,
            ),
            (r#"{"evict": {}}"#, ".evict.allocation: missing: give the id of an allocation"),
            (r#"{"evict": {"allocation": 7}}"#, ".evict.allocation: the number 7 was found: give the id"),
            (r#"{"evict": {"allocation": "a1-1-1", "grace": 30}}"#, ".evict.grace: the number 30 was found"),
        ] {
            let fine = r#"{"evict": {"allocation": "a1-1-1"}}"#;
            says(&format!(r#"{{"operations": [{fine}, {operation}]}}"#), &format!("operations[1]{expected}"));
        }
        for (operation, expected) in [
            (r#"{"evict": {"allocation": "x"}}"#, "operations[0].evict.allocation: "),
            (r#"{"evict": {"allocation": "a1-1-1", "grace": "1d"}}"#, "operations[0].evict.grace: "),
        ] {
            let error = read(&format!(r#"{{"operations": [{operation}]}}"#)).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
