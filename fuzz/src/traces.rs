//! Cluster traces from any bytes: a file is refused with its line, or read the same after it is written again.
//!
//! The first byte of an input selects the reader, and how the rest is used: as the bytes of a file, or as choices of which
//! columns and cells make one.

use std::fmt::Write as _;
use std::path::Path;

use wharf_bench::trace::openb::{read_nodes, read_pods};
use wharf_bench::trace::{TraceError, TraceNode, TracePod};
use wharf_core::request::Policy;
use wharf_core::resource::{Amount, GpuRequest};
use wharf_ops::typical_pods;

use crate::finding::{Finding, found};
use crate::sim::choices::Choices;

/// The name of the file in error messages.
const FILE: &str = "trace.csv";

const NODE_COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];
const POD_COLUMNS: [&str; 9] = [
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "creation_time",
    "deletion_time",
    "count",
];

/// Cells of any column.
const CELLS: [&str; 24] = [
    "0",
    "1",
    "2",
    "8",
    "16",
    "17",
    "500",
    "1000",
    "1001",
    "4000",
    "-0",
    "-1",
    "900719925474099",
    "9223372036854775807",
    "18446744073",
    "1e3",
    "",
    " 7 ",
    "T4",
    "T4|P100",
    "|",
    "\"a\"\"b\"",
    "\"x,y\"",
    "größer",
];

/// Reads a file of a trace from `data`. Returns the number of its rows if it is valid.
///
/// # Errors
/// When a refusal does not name its file, or rows differ after they are written and read again.
pub fn run_trace(data: &[u8]) -> Result<usize, Finding> {
    let Some((&choice, rest)) = data.split_first() else { return Ok(0) };
    let columns: &[&str] = if choice.is_multiple_of(3) { &NODE_COLUMNS } else { &POD_COLUMNS };
    let made = (choice / 3 % 2 == 1).then(|| table(columns, &mut Choices::Given(rest)).into_bytes());
    let content = made.as_deref().unwrap_or(rest);
    match choice % 3 {
        0 => nodes(content),
        1 => pods(content),
        _ => typical(content),
    }
}

/// Makes a table whose header has most of the columns, in any order.
fn table(columns: &[&str], choices: &mut Choices<'_>) -> String {
    let mut left = columns.to_vec();
    let mut header = Vec::new();
    while !left.is_empty() {
        let column = left.remove(choices.place(left.len()));
        if !choices.one_in(16) {
            header.push(column);
        }
    }
    let mut text = header.join(",") + "\n";
    let mut number = 0;
    while !choices.is_spent() {
        number += 1;
        let cells: Vec<String> = header.iter().map(|column| cell(column, number, choices)).collect();
        text.push_str(&cells.join(","));
        if choices.one_in(32) {
            text.push_str(",more");
        }
        text.push('\n');
    }
    text
}

/// Makes a cell that usually fits its column.
fn cell(column: &str, number: usize, choices: &mut Choices<'_>) -> String {
    if choices.one_in(16) {
        return (*choices.pick(&CELLS)).to_owned();
    }
    match column {
        "sn" | "name" => format!("row-{number}"),
        "cpu_milli" | "memory_mib" => (choices.below(64) * 1000).to_string(),
        "gpu" | "num_gpu" => choices.below(3).to_string(),
        "gpu_milli" => (*choices.pick(&["1000", "500", "1"])).to_owned(),
        "model" | "gpu_spec" => (*choices.pick(&["", "T4", "T4|P100"])).to_owned(),
        "creation_time" => choices.below(1000).to_string(),
        "deletion_time" => (1000 + choices.below(1000)).to_string(),
        _ => (*choices.pick(&CELLS)).to_owned(),
    }
}

fn refused(error: &TraceError) -> Result<usize, Finding> {
    let shown = error.to_string();
    if shown.starts_with(FILE) {
        Ok(0)
    } else {
        found(format!("a trace is refused without a place: {shown}"))
    }
}

fn nodes(content: &[u8]) -> Result<usize, Finding> {
    let nodes = match read_nodes(content, FILE) {
        Ok(nodes) => nodes,
        Err(error) => return refused(&error),
    };
    let mut text = NODE_COLUMNS.join(",") + "\n";
    for node in &nodes {
        let TraceNode { name, cpu, memory, gpus, model } = node;
        if node.spec().gpus != *gpus {
            return found(format!("the spec of node {name} has other GPUs"));
        }
        let model = quoted(model.as_deref().unwrap_or(""));
        let row =
            format!("{},{},{},{gpus},{model}", quoted(name), milli(*cpu), memory.units() / Amount::SCALE);
        writeln!(text, "{row}").expect("a text takes all");
    }
    match read_nodes(text.as_bytes(), FILE) {
        Ok(again) if again == nodes => Ok(nodes.len()),
        again => found(format!("{nodes:?} were written, and read again as {again:?}")),
    }
}

fn pods(content: &[u8]) -> Result<usize, Finding> {
    let pods = match read_pods(content, FILE) {
        Ok(pods) => pods,
        Err(error) => return refused(&error),
    };
    let mut text = POD_COLUMNS[..8].join(",") + "\n";
    for pod in &pods {
        let TracePod { name, demand, selector, lifetime, .. } = pod;
        if pod.request(Policy::default()).demand != *demand {
            return found(format!("the request of pod {name} has another demand"));
        }
        let (devices, part) = match demand.gpu {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (1, i64::from(part) / (Amount::SCALE / 1000)),
            GpuRequest::Whole(devices) => (devices, 1000),
        };
        let models = selector.iter().flat_map(|selector| selector.terms()).flat_map(|term| &term.values);
        let models: Vec<&str> = models.map(String::as_str).collect();
        let time = |time: Option<u64>| time.map_or_else(String::new, |seconds| seconds.to_string());
        let row = [
            quoted(name),
            milli(demand.cpu).to_string(),
            (demand.memory.units() / Amount::SCALE).to_string(),
            devices.to_string(),
            part.to_string(),
            quoted(&models.join("|")),
            time(lifetime.created),
            time(lifetime.deleted),
        ];
        writeln!(text, "{}", row.join(",")).expect("a text takes all");
    }
    // Rows of the first file may have been on other lines.
    let without_lines = |pods: &[TracePod]| -> Vec<TracePod> {
        pods.iter().map(|pod| TracePod { line: 0, ..pod.clone() }).collect()
    };
    match read_pods(text.as_bytes(), FILE) {
        Ok(again) if without_lines(&again) == without_lines(&pods) => Ok(pods.len()),
        again => found(format!("{pods:?} were written, and read again as {again:?}")),
    }
}

fn typical(content: &[u8]) -> Result<usize, Finding> {
    match typical_pods::read_from(Path::new(FILE), content) {
        Ok(shapes) if shapes.shapes().is_empty() => found("no typical shape is left of some rows"),
        Ok(shapes) => Ok(shapes.shapes().len()),
        Err(error) if error.to_string().starts_with(FILE) => Ok(0),
        Err(error) => found(format!("typical pods are refused without a place: {error}")),
    }
}

fn milli(amount: Amount) -> i64 {
    amount.units() / (Amount::SCALE / 1000)
}

/// Returns a cell in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
