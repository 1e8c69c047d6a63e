//! Output of commands: text for people, JSON for programs. In JSON, amounts are exact decimal texts in the
//! resource's unit, and reasons are their stable names.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use serde::Serialize;
use serde_json::{Value, json};
use wharf_core::ids::AllocationId;
use wharf_core::resource::Amount;
use wharf_net::protocol::{
    FailedCheck, Fault, NamedAmount, NamedUnits, Pair, PlaceReply, PlacedBody, Reason, ReasonCode,
    RefusalBody,
};

/// Prints one line. If the reader has closed the pipe (`wharf node list | head`), the process exits with
/// status 0. On other errors it exits with status 3.
pub fn say(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        let seen_enough = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !seen_enough {
            eprintln!("wharf: cannot write to standard output: {error}");
        }
        std::process::exit(if seen_enough { 0 } else { 3 });
    }
}

/// Formats the identity of a store.
pub(super) fn store_id(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats an amount from the wire.
pub(super) fn units(units: impl Into<i64>) -> String {
    let units = units.into();
    Amount::try_from_units(units).map_or_else(|_| format!("{units}/10000"), |amount| amount.to_string())
}

/// Formats a sum from the wire.
pub(super) fn sum(units: i128) -> String {
    let scale = i128::from(Amount::SCALE);
    let whole = units / scale;
    let part = (units % scale).abs();
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:04}").trim_end_matches('0').to_owned() }
}

/// Formats a service time in ns as seconds with one decimal.
pub(super) fn seconds(nanos: u64) -> String {
    format!("{}.{}", nanos / 1_000_000_000, nanos / 100_000_000 % 10)
}

/// Returns a number of the wire, where 0 means none.
pub(super) fn given(number: u64) -> Option<u64> {
    Some(number).filter(|&number| number > 0)
}

/// Returns a text of the wire, where the empty one means none.
pub(super) fn given_text(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns amounts by name.
pub(super) fn amounts(custom: &[NamedAmount]) -> BTreeMap<&str, String> {
    custom.iter().map(|named| (named.name.as_str(), units(named.amount))).collect()
}

/// Returns labels by key.
pub(super) fn labels(labels: &[Pair]) -> BTreeMap<&str, &str> {
    labels.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect()
}

/// Returns a body in JSON. Its numbers are amounts, except in the fields `plain`.
pub(super) fn amounts_view(body: &impl Serialize, plain: &[&str]) -> Value {
    let mut view = json!(body);
    for (name, value) in view.as_object_mut().into_iter().flatten() {
        if let Some(amount) = value.as_i64().filter(|_| !plain.contains(&name.as_str())) {
            *value = units(amount).into();
        }
    }
    view
}

/// Prints a JSON value over several lines.
pub(super) fn json(value: &Value) {
    say(format_args!("{value:#}"));
}

/// Prints JSON objects as a table with aligned columns. `columns` has the names of the fields to print,
/// separated by `|`. The heading is the name, or what follows it after a colon.
pub(super) fn table(columns: &str, rows: &Value) {
    let columns: Vec<_> =
        columns.split('|').map(|column| column.split_once(':').unwrap_or((column, column))).collect();
    let mut lines = vec![columns.iter().map(|(_, heading)| heading.to_uppercase()).collect()];
    for row in rows.as_array().into_iter().flatten() {
        lines.push(columns.iter().map(|&(field, _)| cell(&row[field])).collect::<Vec<_>>());
    }
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in &lines {
        let padded = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        say(format_args!("{}", padded.collect::<Vec<_>>().join("  ").trim_end()));
    }
}

/// Formats a field for a table.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Prints for people why something was not done: the fault of the request if there is one, else the reason.
pub(super) fn say_not_done(reason: ReasonCode, fault: Option<&Fault>) {
    match fault {
        Some(fault) => say(format_args!("not done: {fault}")),
        None => say(format_args!("not done: {reason}")),
    }
}

/// Returns a fault in JSON; null if there is none.
pub(super) fn fault_view(fault: Option<&Fault>) -> Value {
    let view = |fault: &Fault| json!({ "reason": fault.reason.to_string(), "field": fault.field, "message": fault.message });
    fault.map(view).into()
}

/// Returns the failed checks of a refusal in JSON.
pub(super) fn checks_view(refusal: Option<&RefusalBody>) -> Value {
    let view = |check: &FailedCheck| {
        json!({
            "reason": check.reason.to_string(),
            "resource": check.resource,
            "nodes": check.nodes,
            "least_short": units(check.least_short),
        })
    };
    refusal.map_or(&[][..], |refusal| &refusal.checks).iter().map(view).collect()
}

/// Returns the GPU instances of a placement; none if there is no placement.
pub(super) fn gpus(placed: Option<&PlacedBody>) -> &[u8] {
    placed.map_or(&[], |placed| &placed.gpus)
}

/// Returns the held part of each GPU instance of a placement; `None` without instances.
pub(super) fn gpu_part(placed: Option<&PlacedBody>) -> Option<String> {
    placed.filter(|placed| !placed.gpus.is_empty()).map(|placed| units(placed.gpu_part))
}

/// Returns the result of a placement in JSON. Of the selectors, `alternative` 0 is the request's own, and 1
/// the first fallback.
pub(super) fn place_view(reply: &PlaceReply) -> Value {
    let placed = reply.placed.as_ref();
    let refusal = reply.refusal.as_ref();
    let of_kind = |named: &NamedUnits| json!({ "resource": named.name, "instances": named.instances, "part": units(named.part) });
    json!({
        "reason": reply.reason.to_string(),
        "node": placed.map(|placed| &placed.node_name),
        "node_id": placed.map(|placed| placed.node),
        "allocation": placed.map(|placed| AllocationId::from(placed.allocation).to_string()),
        "alternative": placed.map(|_| reply.alternative),
        "gpus": gpus(placed),
        "gpu_part": gpu_part(placed),
        "units": placed.map_or(&[][..], |placed| &placed.units).iter().map(of_kind).collect::<Value>(),
        "nodes": refusal.map(|refusal| refusal.nodes),
        "examined": refusal.map(|refusal| refusal.examined),
        "checks": checks_view(refusal),
        "fault": fault_view(reply.fault.as_ref()),
    })
}

/// Formats instances: `, 0.5 of GPU 0, 1`.
pub(super) fn instances(part: u16, name: &str, ids: &[u8]) -> String {
    let ids: Vec<String> = ids.iter().map(u8::to_string).collect();
    if ids.is_empty() { String::new() } else { format!(", {} of {name} {}", units(part), ids.join(", ")) }
}

/// Prints a placement's reply for people. `done` is the completed action.
pub(super) fn place(done: &str, reply: &PlaceReply) {
    if let Some(placed) = &reply.placed {
        let id = AllocationId::from(placed.allocation);
        let gpus = instances(placed.gpu_part, "GPU", &placed.gpus);
        let of_kinds = placed.units.iter().map(|named| instances(named.part, &named.name, &named.instances));
        let of_kinds: String = of_kinds.collect();
        let fallback = match reply.alternative {
            0 => String::new(),
            alternative => format!(", by fallback {alternative}"),
        };
        say(format_args!("{done} on {} as {id}{gpus}{of_kinds}{fallback}", placed.node_name));
    } else if let Some(refusal) = &reply.refusal {
        say(format_args!("not placed: {}", reply.reason));
        say(format_args!("{}", refusal_text(refusal)));
        if let Some(fault) = &reply.fault {
            say(format_args!("{fault}"));
        }
    } else if let Some(fault) = &reply.fault {
        say(format_args!("not {done}: {fault}"));
    }
}

pub(super) fn refusal_text(refusal: &RefusalBody) -> String {
    let over = if refusal.examined == refusal.nodes {
        format!("of {} nodes:", refusal.nodes)
    } else {
        format!("of {} of {} nodes (--explain-all counts all):", refusal.examined, refusal.nodes)
    };
    let lines = refusal.checks.iter().map(|check| {
        let what = if check.resource.is_empty() {
            check.reason.to_string()
        } else if check.reason.known() == Some(Reason::NodeAffinity) {
            format!("{}: not {}", check.reason, check.resource)
        } else {
            format!("{} {}, the best by {}", check.reason, check.resource, units(check.least_short))
        };
        format!("  {:>8}  {what}", check.nodes)
    });
    std::iter::once(over).chain(lines).collect::<Vec<_>>().join("\n")
}
