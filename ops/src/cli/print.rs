//! Output of commands: text for people, JSON for programs. In JSON, amounts are exact decimal texts in the
//! resource's unit, and reasons are their stable names.

use std::fmt;
use std::io::Write;

use serde::Serialize;
use wharf_core::ids::AllocationId;
use wharf_core::resource::Amount;
use wharf_net::protocol::{
    AgentBody, BookBody, FailedCheck, Fault, GpuBody, InstanceBody, NODE_DRAINING, NODE_JOINING, NODE_LOST,
    NODE_LOST_DRAINING, NODE_READY, NamedUnits, NodeBooksReply, NodeReply, NodeStatus, PlaceReply, Reason,
    RefusalBody, ReleaseReply, Taint, UnhealthyBody,
};

use super::reserve::ReservationView;
use super::terms::effect_name;

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

/// Formats an amount from the wire.
pub(super) fn units(units: i64) -> String {
    Amount::try_from_units(units).map_or_else(|_| format!("{units}/10000"), |amount| amount.to_string())
}

/// Formats a sum from the wire.
pub(super) fn sum(units: i128) -> String {
    let scale = i128::from(Amount::SCALE);
    let whole = units / scale;
    let part = (units % scale).abs();
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:04}").trim_end_matches('0').to_owned() }
}

/// Prints one JSON object.
pub(super) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    say(format_args!("{}", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints a table with a heading and aligned columns.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        say(format_args!("{}", padded.join("  ").trim_end()));
    };
    line(&heading.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
}

#[derive(Serialize)]
pub(super) struct FaultView {
    pub(super) reason: String,
    pub(super) field: String,
    pub(super) message: String,
}

impl From<&Fault> for FaultView {
    fn from(fault: &Fault) -> Self {
        let Fault { reason, field, message } = fault;
        Self { reason: reason.to_string(), field: field.clone(), message: message.clone() }
    }
}

#[derive(Serialize)]
pub(super) struct CheckView {
    reason: String,
    resource: String,
    nodes: u64,
    least_short: String,
}

impl From<&FailedCheck> for CheckView {
    fn from(check: &FailedCheck) -> Self {
        Self {
            reason: check.reason.to_string(),
            resource: check.resource.clone(),
            nodes: check.nodes,
            least_short: units(check.least_short),
        }
    }
}

#[derive(Serialize)]
pub(super) struct PlaceView {
    reason: String,
    node: Option<String>,
    node_id: Option<u64>,
    allocation: Option<String>,
    /// The selector that matched: 0 is the request's own, 1 the first fallback.
    alternative: Option<u8>,
    gpus: Vec<u8>,
    gpu_part: Option<String>,
    units: Vec<UnitsView>,
    nodes: Option<u64>,
    examined: Option<u64>,
    checks: Vec<CheckView>,
    fault: Option<FaultView>,
}

impl From<&PlaceReply> for PlaceView {
    fn from(reply: &PlaceReply) -> Self {
        let placed = reply.placed.as_ref();
        let refusal = reply.refusal.as_ref();
        let checks = refusal.map_or(&[][..], |refusal| &refusal.checks).iter().map(CheckView::from);
        Self {
            reason: reply.reason.to_string(),
            node: placed.map(|placed| placed.node_name.clone()),
            node_id: placed.map(|placed| placed.node),
            allocation: placed.map(|placed| AllocationId::from(placed.allocation).to_string()),
            alternative: placed.map(|_| reply.alternative),
            gpus: placed.map(|placed| placed.gpus.clone()).unwrap_or_default(),
            gpu_part: placed.filter(|p| !p.gpus.is_empty()).map(|p| units(i64::from(p.gpu_part))),
            units: placed.map_or(&[][..], |placed| &placed.units).iter().map(UnitsView::from).collect(),
            nodes: refusal.map(|refusal| refusal.nodes),
            examined: refusal.map(|refusal| refusal.examined),
            checks: checks.collect(),
            fault: reply.fault.as_ref().map(FaultView::from),
        }
    }
}

#[derive(Serialize)]
struct UnitsView {
    resource: String,
    instances: Vec<u8>,
    part: String,
}

impl From<&NamedUnits> for UnitsView {
    fn from(named: &NamedUnits) -> Self {
        let NamedUnits { name, instances, part } = named;
        Self { resource: name.clone(), instances: instances.clone(), part: units(i64::from(*part)) }
    }
}

/// Formats instances: `, 0.5 of GPU 0, 1`.
pub(super) fn instances(part: u16, name: &str, ids: &[u8]) -> String {
    let ids: Vec<String> = ids.iter().map(u8::to_string).collect();
    if ids.is_empty() {
        String::new()
    } else {
        format!(", {} of {name} {}", units(i64::from(part)), ids.join(", "))
    }
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
        format!("of the first {} of {} nodes (--explain-all counts all):", refusal.examined, refusal.nodes)
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

/// Formats a service time in ns as seconds with one decimal.
pub(super) fn seconds(nanos: u64) -> String {
    format!("{}.{}", nanos / 1_000_000_000, nanos / 100_000_000 % 10)
}

#[derive(Serialize)]
pub(super) struct ReleaseView {
    pub(super) allocation: String,
    pub(super) reason: String,
    /// For a bundle, the number of allocations inside that ended with it.
    pub(super) inside_ended: Option<u32>,
    pub(super) fault: Option<FaultView>,
}

impl ReleaseView {
    pub(super) fn new(allocation: AllocationId, reply: &ReleaseReply) -> Self {
        let fault = reply.fault.as_ref().map(FaultView::from);
        let allocation = allocation.to_string();
        let reason = reply.reason.to_string();
        Self { allocation, reason, inside_ended: reply.inside_ended, fault }
    }
}

#[derive(Serialize)]
pub(super) struct NodeReplyView {
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) id: u64,
    pub(super) allocations_ended: u32,
    pub(super) fault: Option<FaultView>,
}

impl NodeReplyView {
    pub(super) fn new(name: &str, reply: &NodeReply) -> Self {
        Self {
            name: name.to_owned(),
            reason: reply.reason.to_string(),
            id: reply.node,
            allocations_ended: reply.allocations_ended,
            fault: reply.fault.as_ref().map(FaultView::from),
        }
    }
}

fn taint(taint: &Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("{}{value}:{}", taint.key, effect_name(taint.effect))
}

/// A GPU instance that takes no new work.
#[derive(Serialize)]
pub(super) struct UnhealthyView {
    pub(super) instance: u8,
    pub(super) reason: String,
}

impl From<&UnhealthyBody> for UnhealthyView {
    fn from(body: &UnhealthyBody) -> Self {
        Self { instance: body.instance, reason: body.reason.clone() }
    }
}

/// A GPU as reported by its node's agent.
#[derive(Serialize)]
pub(super) struct GpuView {
    pub(super) instance: usize,
    pub(super) uuid: String,
    pub(super) model: String,
    pub(super) memory_mib: u64,
    pub(super) numa: Option<u16>,
    /// The instances that it is linked to.
    pub(super) links: Vec<u8>,
}

impl GpuView {
    pub(super) fn new(instance: usize, gpu: &GpuBody) -> Self {
        Self {
            instance,
            uuid: gpu.uuid.clone(),
            model: gpu.model.clone(),
            memory_mib: gpu.memory_mib,
            numa: gpu.numa,
            links: (0..16).filter(|i| gpu.links & (1 << i) != 0).collect(),
        }
    }
}

/// The latest report of a node's agent.
#[derive(Serialize)]
pub(super) struct AgentView {
    pub(super) boot: String,
    pub(super) gpus: Vec<GpuView>,
}

impl From<&AgentBody> for AgentView {
    fn from(agent: &AgentBody) -> Self {
        let gpus = agent.gpus.iter().enumerate().map(|(instance, gpu)| GpuView::new(instance, gpu));
        Self { boot: agent.boot.clone(), gpus: gpus.collect() }
    }
}

pub(super) fn state_name(state: u8) -> &'static str {
    match state {
        NODE_READY => "ready",
        NODE_DRAINING => "draining",
        NODE_JOINING => "joining",
        NODE_LOST | NODE_LOST_DRAINING => "lost",
        _ => "unknown",
    }
}

#[derive(Serialize)]
pub(super) struct NodeView {
    pub(super) name: String,
    pub(super) identity: String,
    pub(super) id: u64,
    pub(super) state: &'static str,
    pub(super) draining: bool,
    pub(super) partition: u16,
    pub(super) cpu: String,
    pub(super) cpu_available: String,
    pub(super) memory: String,
    pub(super) memory_available: String,
    pub(super) gpus: u32,
    pub(super) gpus_available: Vec<String>,
    pub(super) unhealthy: Vec<UnhealthyView>,
    pub(super) custom: std::collections::BTreeMap<String, String>,
    pub(super) labels: std::collections::BTreeMap<String, String>,
    /// `KEY=VALUE:EFFECT`.
    pub(super) taints: Vec<String>,
    pub(super) allocations: u32,
    pub(super) version: u64,
    pub(super) agent: Option<AgentView>,
    /// The owner that the node is reserved for.
    pub(super) reserved_for: Option<u64>,
}

impl From<&NodeStatus> for NodeView {
    fn from(node: &NodeStatus) -> Self {
        let body = &node.body;
        Self {
            name: body.name.clone(),
            identity: body.identity.clone(),
            id: node.id,
            state: state_name(node.state),
            draining: matches!(node.state, NODE_DRAINING | NODE_LOST_DRAINING),
            partition: node.partition,
            cpu: units(body.cpu),
            cpu_available: units(node.cpu_available),
            memory: units(body.memory),
            memory_available: units(node.memory_available),
            gpus: body.gpus,
            gpus_available: node.gpus_available.iter().map(|&part| units(i64::from(part))).collect(),
            custom: body.custom.iter().map(|named| (named.name.clone(), units(named.amount))).collect(),
            labels: body.labels.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect(),
            taints: body.taints.iter().map(taint).collect(),
            allocations: node.allocations,
            version: node.version,
            unhealthy: node.unhealthy.iter().map(UnhealthyView::from).collect(),
            agent: node.agent.as_ref().map(AgentView::from),
            reserved_for: node.reserved.map(|reserved| reserved.owner),
        }
    }
}

#[derive(Serialize)]
struct BookView {
    name: String,
    total: String,
    available: String,
    allocated: String,
    held: String,
    releasing: String,
    pipelined: String,
    reserved: String,
    unhealthy: String,
    shortfall: String,
    load: String,
}

#[derive(Serialize)]
struct InstanceView {
    name: String,
    instance: u8,
    available: String,
    allocated: String,
    shortfall: String,
    unhealthy: String,
    /// Why the instance is unhealthy; null if it is healthy.
    reason: Option<String>,
}

/// The books of a node.
#[derive(Serialize)]
pub(super) struct BooksView {
    name: String,
    id: u64,
    allocations: u32,
    resources: Vec<BookView>,
    instances: Vec<InstanceView>,
    reservation: Option<ReservationView>,
}

impl BooksView {
    pub(super) fn new(name: &str, reply: &NodeBooksReply) -> Self {
        let book = |book: &BookBody| BookView {
            name: book.name.clone(),
            total: units(book.total),
            available: units(book.available),
            allocated: units(book.allocated),
            held: units(book.held),
            releasing: units(book.releasing),
            pipelined: units(book.pipelined),
            reserved: units(book.reserved),
            unhealthy: units(book.unhealthy),
            shortfall: units(book.shortfall),
            load: units(book.load),
        };
        let instance = |instance: &InstanceBody| InstanceView {
            name: instance.name.clone(),
            instance: instance.instance,
            available: units(i64::from(instance.available)),
            allocated: units(i64::from(instance.allocated)),
            shortfall: units(i64::from(instance.shortfall)),
            unhealthy: units(i64::from(instance.unhealthy)),
            reason: (!instance.reason.is_empty()).then(|| instance.reason.clone()),
        };
        Self {
            name: name.to_owned(),
            id: reply.node,
            allocations: reply.allocations,
            resources: reply.resources.iter().map(book).collect(),
            instances: reply.instances.iter().map(instance).collect(),
            reservation: reply.reservation.as_ref().map(ReservationView::from),
        }
    }

    /// Prints the books for people.
    pub(super) fn print(self) {
        say(format_args!("{} (n{}), {} allocations", self.name, self.id, self.allocations));
        if let Some(reservation) = &self.reservation {
            say(format_args!("{}", reservation.line()));
        }
        let rows: Vec<Vec<String>> = self
            .resources
            .into_iter()
            .map(|b| {
                let BookView { name, total, available, allocated, held, .. } = b;
                let states = [b.releasing, b.pipelined, b.reserved, b.unhealthy, b.shortfall, b.load];
                [name, total, available, allocated, held].into_iter().chain(states).collect()
            })
            .collect();
        let heads = [
            "RESOURCE",
            "TOTAL",
            "AVAILABLE",
            "ALLOCATED",
            "HELD",
            "RELEASING",
            "PIPELINED",
            "RESERVED",
            "UNHEALTHY",
            "SHORTFALL",
            "LOAD",
        ];
        table(&heads, &rows);
        if !self.instances.is_empty() {
            let rows = self
                .instances
                .into_iter()
                .map(|i| {
                    let counts = [i.available, i.allocated, i.shortfall, i.unhealthy];
                    let reason = i.reason.unwrap_or_default();
                    [i.name, i.instance.to_string()].into_iter().chain(counts).chain([reason]).collect()
                })
                .collect::<Vec<_>>();
            let heads =
                ["RESOURCE", "INSTANCE", "AVAILABLE", "ALLOCATED", "SHORTFALL", "UNHEALTHY", "REASON"];
            table(&heads, &rows);
        }
    }
}
