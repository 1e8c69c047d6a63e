//! Output of nodes and their books: text for people, JSON for programs.

use serde_json::{Value, json};
use wharf_net::protocol::{
    AgentBody, BookBody, InstanceBody, NODE_DRAINING, NODE_JOINING, NODE_LOST, NODE_LOST_DRAINING,
    NODE_READY, NodeBody, NodeBooksReply, NodeStatus, Taint,
};

use super::print::{amounts, amounts_view, given_text, labels, say, table, units};
use super::reserve::{reservation_text, reservation_view};
use crate::terms::effect_name;

pub(super) fn state_name(state: u8) -> &'static str {
    match state {
        NODE_READY => "ready",
        NODE_DRAINING => "draining",
        NODE_JOINING => "joining",
        NODE_LOST | NODE_LOST_DRAINING => "lost",
        _ => "unknown",
    }
}

/// Returns what a node has in JSON.
pub(super) fn capacity(body: &NodeBody) -> Value {
    json!({
        "cpu": units(body.cpu),
        "memory": units(body.memory),
        "gpus": body.gpus,
        "resources": amounts(&body.custom),
        "labels": labels(&body.labels),
    })
}

/// Formats a taint as `KEY=VALUE:EFFECT`.
fn taint(taint: &Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("{}{value}:{}", taint.key, effect_name(taint.effect))
}

/// Returns the latest report of a node's agent in JSON.
fn agent_view(agent: &AgentBody) -> Value {
    let gpus = agent.gpus.iter().enumerate().map(|(instance, gpu)| {
        json!({
            "instance": instance,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": gpu.memory_mib,
            "numa": gpu.numa,
            // The instances that it is linked to.
            "links": (0..16).filter(|i| gpu.links & (1 << i) != 0).collect::<Vec<u8>>(),
        })
    });
    json!({ "boot": agent.boot, "gpus": gpus.collect::<Value>() })
}

/// Returns a node in JSON.
pub(super) fn node_view(node: &NodeStatus) -> Value {
    let body = &node.body;
    json!({
        "name": body.name,
        "identity": body.identity,
        "id": node.id,
        "state": state_name(node.state),
        "draining": is_draining(node),
        "partition": node.partition,
        "cpu": units(body.cpu),
        "cpu_available": units(node.cpu_available),
        "memory": units(body.memory),
        "memory_available": units(node.memory_available),
        "gpus": body.gpus,
        "gpus_available": node.gpus_available.iter().copied().map(units).collect::<Vec<_>>(),
        "unhealthy": node.unhealthy,
        "custom": amounts(&body.custom),
        "labels": labels(&body.labels),
        "taints": body.taints.iter().map(taint).collect::<Vec<_>>(),
        "allocations": node.allocations,
        "version": node.version,
        "agent": node.agent.as_ref().map(agent_view),
        "reserved_for": node.reserved.map(|reserved| reserved.owner),
    })
}

fn is_draining(node: &NodeStatus) -> bool {
    matches!(node.state, NODE_DRAINING | NODE_LOST_DRAINING)
}

/// Prints nodes for people.
pub(super) fn say_nodes(nodes: &[NodeStatus]) {
    let row = |node: &NodeStatus| {
        let body = &node.body;
        let state = state_name(node.state);
        let lost = if node.state == NODE_LOST_DRAINING { ", draining" } else { "" };
        let gpus: Vec<_> = node.gpus_available.iter().copied().map(units).collect();
        let labels: Vec<_> =
            labels(&body.labels).iter().map(|(key, value)| format!("{key}={value}")).collect();
        json!({
            "name": body.name,
            "id": format!("n{}", node.id),
            "state": format!("{state}{lost}"),
            "cpu free": format!("{}/{}", units(node.cpu_available), units(body.cpu)),
            "memory free": format!("{}/{}", units(node.memory_available), units(body.memory)),
            "gpus free": if body.gpus == 0 { "-".to_owned() } else { gpus.join(" ") },
            "allocations": node.allocations,
            "reserved": node.reserved.map_or_else(|| "-".to_owned(), |of| format!("owner {}", of.owner)),
            "labels": labels,
        })
    };
    table(
        "name|id|state|cpu free|memory free|gpus free|allocations|reserved|labels",
        &nodes.iter().map(row).collect(),
    );
    for node in nodes {
        for unhealthy in &node.unhealthy {
            let instance = unhealthy.instance;
            let reason = &unhealthy.reason;
            say(format_args!("{}: GPU {instance} is unhealthy: {reason}", node.body.name));
        }
    }
}

fn book_view(book: &BookBody) -> Value {
    amounts_view(book, &[])
}

fn instance_view(instance: &InstanceBody) -> Value {
    let mut view = amounts_view(instance, &["instance"]);
    view["reason"] = given_text(&instance.reason).into();
    view
}

/// Returns the books of a node in JSON.
pub(super) fn books_view(name: &str, reply: &NodeBooksReply) -> Value {
    json!({
        "name": name,
        "id": reply.node,
        "allocations": reply.allocations,
        "resources": reply.resources.iter().map(book_view).collect::<Value>(),
        "instances": reply.instances.iter().map(instance_view).collect::<Value>(),
        "reservation": reply.reservation.as_ref().map(reservation_view),
    })
}

/// Prints the books of a node for people.
pub(super) fn say_books(name: &str, reply: &NodeBooksReply) {
    say(format_args!("{name} (n{}), {} allocations", reply.node, reply.allocations));
    if let Some(reservation) = &reply.reservation {
        say(format_args!("{}", reservation_text(reservation)));
    }
    table(
        "name:RESOURCE|total|available|allocated|held|releasing|pipelined|reserved|unhealthy|shortfall|load",
        &reply.resources.iter().map(book_view).collect(),
    );
    if !reply.instances.is_empty() {
        table(
            "name:RESOURCE|instance|available|allocated|shortfall|unhealthy|reason",
            &reply.instances.iter().map(instance_view).collect(),
        );
    }
}
