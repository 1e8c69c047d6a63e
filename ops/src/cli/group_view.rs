//! Output of groups and conflicts: text for people, JSON for programs.

use serde::Serialize;
use wharf_core::group::Strategy;
use wharf_core::ids::{AllocationId, GroupId, StatementId};
use wharf_net::convert::strategy_number;
use wharf_net::protocol::{
    BundleBody, ConflictBody, GROUP_COMMITTING, GROUP_DEGRADED, GROUP_PLACED, GROUP_WAITING, GroupBody,
    GroupRefusalBody, GroupReply, GroupSummary, PlacedBody, RemoveGroupReply, TOPOLOGY_PACK, TOPOLOGY_SPREAD,
    TOPOLOGY_STRICT_PACK, TopologyBody,
};

use super::print::{self, CheckView, FaultView, say, table, units};

fn strategy_name(number: u8) -> &'static str {
    let known = Strategy::NAMES.iter().find(|(strategy, _)| strategy_number(*strategy) == number);
    known.map_or("unknown", |&(_, name)| name)
}

fn state_name(number: u8) -> &'static str {
    match number {
        GROUP_WAITING => "waiting",
        GROUP_COMMITTING => "committing",
        GROUP_PLACED => "placed",
        GROUP_DEGRADED => "degraded",
        _ => "unknown",
    }
}

/// Formats a topology rule, in the notation of `wharf group create`.
fn topology_text(rule: &TopologyBody) -> String {
    match rule.rule {
        TOPOLOGY_PACK => format!("packed by {}", rule.key),
        TOPOLOGY_STRICT_PACK => format!("packed by {}!", rule.key),
        TOPOLOGY_SPREAD => format!("spread by {}:{}", rule.key, rule.max_skew),
        other => format!("by {}, rule {other}", rule.key),
    }
}

#[derive(Serialize)]
struct BundleView {
    bundle: u32,
    cpu: String,
    memory: String,
    gpu: String,
    node: Option<String>,
    node_id: Option<u64>,
    /// The id that `wharf place --into` takes.
    allocation: Option<String>,
    gpus: Vec<u8>,
    gpu_part: Option<String>,
    /// For a releasing bundle, the time at which it ends at the latest, in ns of service time.
    releasing_until: Option<u64>,
}

impl From<&BundleBody> for BundleView {
    fn from(body: &BundleBody) -> Self {
        let placed = body.placed.as_ref();
        Self {
            bundle: body.index,
            cpu: units(body.cpu),
            memory: units(body.memory),
            gpu: units(body.gpu),
            node: placed.map(|placed| placed.node_name.clone()),
            node_id: placed.map(|placed| placed.node),
            allocation: placed.map(|placed| AllocationId::from(placed.allocation).to_string()),
            gpus: placed.map(|placed| placed.gpus.clone()).unwrap_or_default(),
            gpu_part: placed.filter(|p| !p.gpus.is_empty()).map(|p| units(i64::from(p.gpu_part))),
            releasing_until: Some(body.releasing_until).filter(|&until| until > 0),
        }
    }
}

#[derive(Serialize)]
struct GroupView {
    group: String,
    state: &'static str,
    strategy: &'static str,
    topology: Option<String>,
    min_members: u32,
    placed: usize,
    priority: i32,
    attempts: u32,
    bundles: Vec<BundleView>,
}

impl From<&GroupBody> for GroupView {
    fn from(body: &GroupBody) -> Self {
        Self {
            group: GroupId::from(body.id).to_string(),
            state: state_name(body.state),
            strategy: strategy_name(body.strategy),
            topology: body.topology.as_ref().map(topology_text),
            min_members: body.min_members,
            placed: body.bundles.iter().filter(|bundle| bundle.placed.is_some()).count(),
            priority: body.priority,
            attempts: body.attempts,
            bundles: body.bundles.iter().map(BundleView::from).collect(),
        }
    }
}

/// The reason of a conflict.
#[derive(Serialize)]
pub(super) struct ConflictView {
    pub(super) operation: u16,
    reason: String,
    node: Option<String>,
    node_id: Option<u64>,
    version: Option<u64>,
    expected_version: Option<u64>,
    resource: Option<String>,
    asked: Option<String>,
    available: Option<String>,
    instance: Option<u8>,
    owner: Option<u64>,
    allocation: Option<String>,
    statement: Option<String>,
    other: Option<u16>,
    bundle: Option<String>,
    message: String,
}

impl From<&ConflictBody> for ConflictView {
    fn from(body: &ConflictBody) -> Self {
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let resource = given(&body.resource);
        let amount = |amount: i64| resource.as_ref().map(|_| units(amount));
        Self {
            operation: body.operation,
            reason: body.reason.to_string(),
            node: given(&body.node_name),
            node_id: Some(body.node).filter(|&node| node > 0),
            version: body.version,
            expected_version: body.expected_version,
            asked: amount(body.asked),
            available: amount(body.available),
            resource,
            instance: body.instance,
            owner: Some(body.owner).filter(|&owner| owner > 0),
            allocation: body.allocation.map(|id| AllocationId::from(id).to_string()),
            statement: body.statement.map(|id| StatementId::from(id).to_string()),
            other: body.other,
            bundle: body.group.map(|group| format!("{}/{}", GroupId::from(group), body.bundle)),
            message: body.message.clone(),
        }
    }
}

/// Formats a conflict for people: `insufficient on a: 4 of cpu is asked, and 2 can be had (version 9)`.
pub(super) fn conflict_text(body: &ConflictBody) -> String {
    let on = if body.node_name.is_empty() { String::new() } else { format!(" on {}", body.node_name) };
    let version = body.version.map_or_else(String::new, |version| format!(" (version {version})"));
    format!("{}{on}: {}{version}", body.reason, body.message)
}

#[derive(Serialize)]
struct RefusalView {
    cause: String,
    attempts: u32,
    bundle: Option<u32>,
    bundles: u32,
    nodes: Option<u64>,
    examined: Option<u64>,
    checks: Vec<CheckView>,
    resource: Option<String>,
    conflicts: Vec<ConflictView>,
    message: String,
}

impl From<&GroupRefusalBody> for RefusalView {
    fn from(body: &GroupRefusalBody) -> Self {
        let counts = body.refusal.as_ref();
        Self {
            cause: body.cause.to_string(),
            attempts: body.attempts,
            bundle: body.bundle,
            bundles: body.bundles,
            nodes: counts
                .map(|counts| counts.nodes)
                .or_else(|| Some(u64::from(body.nodes)).filter(|&nodes| nodes > 0)),
            examined: counts.map(|counts| counts.examined),
            checks: counts.map_or(&[][..], |counts| &counts.checks).iter().map(CheckView::from).collect(),
            resource: Some(body.resource.clone()).filter(|resource| !resource.is_empty()),
            conflicts: body.conflicts.iter().map(ConflictView::from).collect(),
            message: body.message.clone(),
        }
    }
}

/// The result of a request about a group.
#[derive(Serialize)]
pub(super) struct GroupReplyView {
    reason: String,
    #[serde(flatten)]
    group: Option<GroupView>,
    refusal: Option<RefusalView>,
    fault: Option<FaultView>,
}

impl From<&GroupReply> for GroupReplyView {
    fn from(reply: &GroupReply) -> Self {
        Self {
            reason: reply.reason.to_string(),
            group: reply.group.as_ref().map(GroupView::from),
            refusal: reply.refusal.as_ref().map(RefusalView::from),
            fault: reply.fault.as_ref().map(FaultView::from),
        }
    }
}

/// The result of removing a group.
#[derive(Serialize)]
pub(super) struct RemoveView {
    group: String,
    reason: String,
    bundles_ended: u32,
    fault: Option<FaultView>,
}

impl RemoveView {
    pub(super) fn new(group: GroupId, reply: &RemoveGroupReply) -> Self {
        Self {
            group: group.to_string(),
            reason: reply.reason.to_string(),
            bundles_ended: reply.bundles_ended,
            fault: reply.fault.as_ref().map(FaultView::from),
        }
    }
}

/// A group in a list.
#[derive(Serialize)]
pub(super) struct SummaryView {
    group: String,
    state: &'static str,
    strategy: &'static str,
    bundles: u32,
    placed: u32,
    min_members: u32,
    priority: i32,
}

impl From<&GroupSummary> for SummaryView {
    fn from(summary: &GroupSummary) -> Self {
        let GroupSummary { bundles, placed, min_members, priority, .. } = *summary;
        Self {
            group: GroupId::from(summary.id).to_string(),
            state: state_name(summary.state),
            strategy: strategy_name(summary.strategy),
            bundles,
            placed,
            min_members,
            priority,
        }
    }
}

fn instances(placed: &PlacedBody) -> String {
    let ids: Vec<String> = placed.gpus.iter().map(u8::to_string).collect();
    ids.join(",")
}

fn bundle_row(bundle: &BundleBody) -> Vec<String> {
    let (node, allocation, gpus) = bundle.placed.as_ref().map_or_else(
        || ("not placed".to_owned(), String::new(), String::new()),
        |placed| {
            (placed.node_name.clone(), AllocationId::from(placed.allocation).to_string(), instances(placed))
        },
    );
    let taken = [bundle.cpu, bundle.memory, bundle.gpu].map(units);
    let [cpu, memory, gpu] = taken;
    let until = bundle.releasing_until;
    let until = if until > 0 { format!("second {}", print::seconds(until)) } else { String::new() };
    vec![bundle.index.to_string(), node, allocation, cpu, memory, gpu, gpus, until]
}

/// Prints the group for people, or why it is refused. `done` is the completed action, such as "created".
pub(super) fn say_group(reply: &GroupReply, done: Option<&str>) {
    if let Some(group) = &reply.group {
        let placed = group.bundles.iter().filter(|bundle| bundle.placed.is_some()).count();
        let done = done.map_or_else(String::new, |done| format!("{done}, "));
        let topology =
            group.topology.as_ref().map_or_else(String::new, |rule| format!(", {}", topology_text(rule)));
        say(format_args!(
            "group {}: {done}{}, {placed} of {} bundles placed (at least {}), {}{topology}",
            GroupId::from(group.id),
            state_name(group.state),
            group.bundles.len(),
            group.min_members,
            strategy_name(group.strategy),
        ));
        let rows: Vec<_> = group.bundles.iter().map(bundle_row).collect();
        let columns =
            ["BUNDLE", "NODE", "ALLOCATION", "CPU", "MEMORY MIB", "GPU", "INSTANCES", "RELEASING UNTIL"];
        table(&columns, &rows);
    } else if let Some(refusal) = &reply.refusal {
        say(format_args!("not placed: {}, {}: {}", reply.reason, refusal.cause, refusal.message));
        if let Some(counts) = &refusal.refusal {
            say(format_args!("{}", print::refusal_text(counts)));
        }
        for conflict in &refusal.conflicts {
            say(format_args!("  operation {}: {}", conflict.operation, conflict_text(conflict)));
        }
        if let Some(fault) = &reply.fault {
            say(format_args!("{fault}"));
        }
    } else if let Some(fault) = &reply.fault {
        say(format_args!("not done: {fault}"));
    } else {
        say(format_args!("not done: {}", reply.reason));
    }
}

/// Prints a list of groups for people.
pub(super) fn say_summaries(groups: &[GroupSummary]) {
    let row = |group: &GroupSummary| {
        vec![
            GroupId::from(group.id).to_string(),
            state_name(group.state).to_owned(),
            format!("{}/{}", group.placed, group.bundles),
            group.min_members.to_string(),
            strategy_name(group.strategy).to_owned(),
            group.priority.to_string(),
        ]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    table(&["GROUP", "STATE", "PLACED", "AT LEAST", "STRATEGY", "PRIORITY"], &rows);
}
