//! Output of groups and conflicts: text for people, JSON for programs.

use serde_json::{Value, json};
use wharf_core::group::Strategy;
use wharf_core::ids::{AllocationId, GroupId, StatementId};
use wharf_net::convert::strategy_number;
use wharf_net::protocol::{
    BundleBody, ConflictBody, GROUP_COMMITTING, GROUP_DEGRADED, GROUP_NOT_SHOWN, GROUP_PLACED, GROUP_WAITING,
    GroupBody, GroupRefusalBody, GroupReply, GroupSummary, TOPOLOGY_PACK, TOPOLOGY_SPREAD,
    TOPOLOGY_STRICT_PACK, TopologyBody,
};

use super::print::{self, checks_view, fault_view, given, given_text, say, table, units};

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
        GROUP_NOT_SHOWN => "not shown, because this service has no planners",
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

fn bundle_view(body: &BundleBody) -> Value {
    let placed = body.placed.as_ref();
    json!({
        "bundle": body.index,
        "cpu": units(body.cpu),
        "memory": units(body.memory),
        "gpu": units(body.gpu),
        "node": placed.map(|placed| &placed.node_name),
        "node_id": placed.map(|placed| placed.node),
        // The id that `wharf place --into` takes.
        "allocation": placed.map(|placed| AllocationId::from(placed.allocation).to_string()),
        "gpus": print::gpus(placed),
        "gpu_part": print::gpu_part(placed),
        // Of a releasing bundle, the time at which it ends at the latest, in ns of service time.
        "releasing_until": given(body.releasing_until),
    })
}

fn placed_count(group: &GroupBody) -> usize {
    group.bundles.iter().filter(|bundle| bundle.placed.is_some()).count()
}

fn group_view(reason: &str, body: &GroupBody) -> Value {
    json!({
        "reason": reason,
        "group": GroupId::from(body.id).to_string(),
        "state": state_name(body.state),
        "strategy": strategy_name(body.strategy),
        "topology": body.topology.as_ref().map(topology_text),
        "min_members": body.min_members,
        "placed": placed_count(body),
        "priority": body.priority,
        "attempts": body.attempts,
        "bundles": body.bundles.iter().map(bundle_view).collect::<Value>(),
    })
}

/// Returns the reason of a conflict in JSON.
pub(super) fn conflict_view(body: &ConflictBody) -> Value {
    let resource = given_text(&body.resource);
    json!({
        "operation": body.operation,
        "reason": body.reason.to_string(),
        "node": given_text(&body.node_name),
        "node_id": given(body.node),
        "version": body.version,
        "expected_version": body.expected_version,
        "resource": resource,
        "asked": resource.map(|_| units(body.asked)),
        "available": resource.map(|_| units(body.available)),
        "instance": body.instance,
        "owner": given(body.owner),
        "allocation": body.allocation.map(|id| AllocationId::from(id).to_string()),
        "statement": body.statement.map(|id| StatementId::from(id).to_string()),
        "other": body.other,
        "bundle": body.group.map(|group| format!("{}/{}", GroupId::from(group), body.bundle)),
        "message": body.message,
    })
}

/// Formats a conflict for people: `insufficient on a: 4 of cpu is asked, and 2 can be had (version 9)`.
pub(super) fn conflict_text(body: &ConflictBody) -> String {
    let on = if body.node_name.is_empty() { String::new() } else { format!(" on {}", body.node_name) };
    let version = body.version.map_or_else(String::new, |version| format!(" (version {version})"));
    format!("{}{on}: {}{version}", body.reason, body.message)
}

fn refusal_view(body: &GroupRefusalBody) -> Value {
    let counts = body.refusal.as_ref();
    json!({
        "cause": body.cause.to_string(),
        "attempts": body.attempts,
        "bundle": body.bundle,
        "bundles": body.bundles,
        "nodes": counts.map(|counts| counts.nodes).or_else(|| given(body.nodes.into())),
        "examined": counts.map(|counts| counts.examined),
        "checks": checks_view(counts),
        "resource": given_text(&body.resource),
        "conflicts": body.conflicts.iter().map(conflict_view).collect::<Value>(),
        "message": body.message,
    })
}

/// Returns the result of a request about a group in JSON. The fields of the group, if there is one, follow
/// the reason.
pub(super) fn reply_view(reply: &GroupReply) -> Value {
    let reason = reply.reason.to_string();
    let mut view = match &reply.group {
        Some(group) => group_view(&reason, group),
        None => json!({ "reason": reason }),
    };
    view["refusal"] = reply.refusal.as_ref().map(refusal_view).into();
    view["fault"] = fault_view(reply.fault.as_ref());
    view
}

/// Returns a group of a list in JSON.
pub(super) fn summary_view(group: &GroupSummary) -> Value {
    json!({
        "group": GroupId::from(group.id).to_string(),
        "state": state_name(group.state),
        "strategy": strategy_name(group.strategy),
        "bundles": group.bundles,
        "placed": group.placed,
        "min_members": group.min_members,
        "priority": group.priority,
    })
}

fn bundle_row(bundle: &BundleBody) -> Value {
    let mut row = bundle_view(bundle);
    if bundle.placed.is_none() {
        row["node"] = "not placed".into();
    }
    let until = given(bundle.releasing_until);
    row["releasing_until"] = until.map(|until| format!("second {}", print::seconds(until))).into();
    row
}

/// Prints the group for people, or why it is refused. `done` is the completed action, such as "created".
pub(super) fn say_group(reply: &GroupReply, done: Option<&str>) {
    if let Some(group) = &reply.group {
        let placed = placed_count(group);
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
        table(
            "bundle|node|allocation|cpu|memory:MEMORY MIB|gpu|gpus:INSTANCES|releasing_until:RELEASING UNTIL",
            &group.bundles.iter().map(bundle_row).collect(),
        );
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
    } else {
        print::say_not_done(reply.reason, reply.fault.as_ref());
    }
}

/// Prints a list of groups for people.
pub(super) fn say_summaries(groups: &[GroupSummary]) {
    let row = |group: &GroupSummary| {
        let mut row = summary_view(group);
        row["placed"] = format!("{}/{}", group.placed, group.bundles).into();
        row
    };
    table("group|state|placed|min_members:AT LEAST|strategy|priority", &groups.iter().map(row).collect());
}
