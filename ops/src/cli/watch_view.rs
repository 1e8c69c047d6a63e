//! Output of `wharf watch`: one line of text per change for people, one JSON object per line for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_core::ids::{AllocationId, StatementId};
use wharf_net::protocol::{
    AllocationBegun, AllocationEnded, ClaimBody, FollowPage, HoldBegun, HoldEnded, Holding, NodeChange,
    NodeGone, ReleasingBody,
};

use super::node_view::{capacity, state_name};
use super::print::{amounts, instances, say, units};

/// Returns held capacity in JSON.
pub(super) fn holding_view(holds: &Holding) -> Value {
    let of_kinds = holds.units.iter().map(|of_kind| (of_kind.name.as_str(), &of_kind.instances));
    json!({
        "cpu": units(holds.demand.cpu),
        "memory": units(holds.demand.memory),
        "gpu": units(holds.demand.gpu),
        "gpus": holds.gpus,
        "gpu_part": (!holds.gpus.is_empty()).then(|| units(holds.gpu_part)),
        "resources": amounts(&holds.demand.custom),
        "units": of_kinds.collect::<BTreeMap<_, _>>(),
    })
}

/// Formats held capacity: `2 cpu, 512 memory, 1 of GPU 0`.
pub(super) fn holding_text(holds: &Holding) -> String {
    let plain = [(holds.demand.cpu, "cpu"), (holds.demand.memory, "memory")];
    let plain = plain.into_iter().filter(|(amount, _)| *amount > 0);
    let mut parts: Vec<String> = plain.map(|(amount, name)| format!("{} {name}", units(amount))).collect();
    parts
        .extend(holds.demand.custom.iter().map(|amount| format!("{} {}", units(amount.amount), amount.name)));
    let text =
        if parts.is_empty() && holds.demand.gpu == 0 { "nothing".to_owned() } else { parts.join(", ") };
    let gpus = instances(holds.gpu_part, "GPU", &holds.gpus);
    let of_kinds = holds.units.iter().map(|named| instances(named.part, &named.name, &named.instances));
    let text = format!("{text}{gpus}{}", of_kinds.collect::<String>());
    text.trim_start_matches(", ").to_owned()
}

/// Returns the line of a node in JSON. What a node rarely has, or what rarely changes, is left out if there is
/// nothing to tell.
fn node_line(change: &NodeChange) -> Value {
    let mut line = json!({
        "event": "node",
        "node": change.node_name,
        "node_id": change.node,
        "state": state_name(change.state),
        "version": change.version,
        "cpu": units(change.cpu),
        "memory": units(change.memory),
        "gpus": change.gpus.iter().copied().map(units).collect::<Vec<_>>(),
        "allocations": change.allocations,
    });
    if let Some(details) = &change.details {
        line["resources"] = json!(amounts(&details.custom));
        line["unhealthy"] = json!(details.unhealthy);
        line["owner"] = details.owner.into();
    }
    let pending = &change.pending;
    if !pending.releasing.is_empty() {
        // `until` is the time at which the allocation ends at the latest, in ns of service time.
        let view = |releasing: &ReleasingBody| {
            let allocation = AllocationId::from(releasing.allocation).to_string();
            json!({ "allocation": allocation, "until": releasing.until })
        };
        line["releasing"] = pending.releasing.iter().map(view).collect();
    }
    if !pending.claims.is_empty() {
        let view = |claim: &ClaimBody| {
            let allocation = AllocationId::from(claim.allocation).to_string();
            json!({ "allocation": allocation, "holds": holding_view(&claim.holds) })
        };
        line["claims"] = pending.claims.iter().map(view).collect();
    }
    if pending.untold > 0 {
        // The number of entries of both lists that did not fit the page.
        line["untold"] = pending.untold.into();
    }
    if let Some(body) = &change.body {
        line["capacity"] = capacity(body);
    }
    line
}

fn node_text(change: &NodeChange) -> String {
    let NodeChange { node, node_name, state, version, .. } = change;
    let gpus: Vec<String> = change.gpus.iter().copied().map(units).collect();
    let gpus = if gpus.is_empty() { String::new() } else { format!(", GPUs {}", gpus.join(" ")) };
    let custom = change.details.iter().flat_map(|details| &details.custom);
    let custom: String = custom.map(|amount| format!(", {} {}", units(amount.amount), amount.name)).collect();
    let owner = change.details.as_ref().map_or(0, |details| details.owner);
    let owner = if owner == 0 { String::new() } else { format!(", reserved for {owner}") };
    let pending = &change.pending;
    let releasing = match pending.releasing.len() {
        0 => String::new(),
        count => format!(", {count} being released"),
    };
    let claims =
        if pending.claims.is_empty() { String::new() } else { format!(", {} claimed", pending.claims.len()) };
    let state = state_name(*state);
    let cpu = units(change.cpu);
    let memory = units(change.memory);
    format!(
        "node {node_name} (n{node}) {state}, version {version}: free {cpu} cpu, {memory} memory{gpus}{custom}{owner}{releasing}{claims}"
    )
}

/// Returns the line of a change at a node in JSON: what it is about, the node, and the rest.
fn event(
    name: &str,
    about: &[(&str, Value)],
    (node, node_name): (u64, &str),
    rest: &[(&str, Value)],
) -> Value {
    let at = [("node", json!(node_name)), ("node_id", json!(node))];
    let fields = [("event", json!(name))]
        .into_iter()
        .chain(about.iter().cloned())
        .chain(at)
        .chain(rest.iter().cloned());
    fields.collect()
}

/// Prints followed changes.
pub(super) struct Printer {
    json: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    fn line(&self, line: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        say(format_args!("{}", if self.json { line().to_string() } else { text() }));
    }

    pub(super) fn lost(&self, message: &str) {
        self.line(|| json!({ "event": "lost", "message": message }), || format!("lost: {message}"));
    }

    pub(super) fn connected(&self) {
        self.line(|| json!({ "event": "connected" }), || "connected again".to_owned());
    }

    /// Prints a page. `at` has the versions after it, if it was the last page of its step.
    pub(super) fn page(&self, page: &FollowPage, at: Option<String>) {
        let shard = page.to.shard;
        if page.is_resync() {
            let reason = page.resync.to_string();
            let line = || json!({ "event": "resync", "shard": shard, "reason": reason });
            self.line(line, || format!("shard {shard}: resync ({reason}), what follows is all there is"));
        }
        for HoldEnded { statement, operation, node, node_name } in &page.holds_ended {
            let statement = StatementId::from(*statement).to_string();
            let about = || [("statement", json!(statement)), ("operation", json!(operation))];
            let line = || event("hold_ended", &about(), (*node, node_name), &[]);
            self.line(line, || format!("hold {statement}/{operation} on {node_name} ended"));
        }
        for AllocationEnded { allocation, node, node_name, reason } in &page.allocations_ended {
            let id = AllocationId::from(*allocation).to_string();
            let about = || [("allocation", json!(id))];
            let rest = [("reason", json!(reason.to_string()))];
            let rest = if reason.is_done() { &[][..] } else { &rest };
            let line = || event("allocation_ended", &about(), (*node, node_name), rest);
            let why = if reason.is_done() { String::new() } else { format!(" ({reason})") };
            self.line(line, || format!("allocation {id} on {node_name} ended{why}"));
        }
        for NodeGone { node, node_name } in &page.nodes_gone {
            let line = || event("node_gone", &[], (*node, node_name), &[]);
            self.line(line, || format!("node {node_name} (n{node}) is gone"));
        }
        page.nodes.iter().for_each(|change| self.line(|| node_line(change), || node_text(change)));
        for AllocationBegun { allocation, node, node_name, holds } in &page.allocations {
            let id = AllocationId::from(*allocation).to_string();
            let rest = || [("holds", holding_view(holds))];
            let line = || event("allocation", &[("allocation", json!(id))], (*node, node_name), &rest());
            self.line(line, || format!("allocation {id} on {node_name}: {}", holding_text(holds)));
        }
        page.holds.iter().for_each(|begun| self.hold(begun));
        if let Some(versions) = at.filter(|_| self.json) {
            self.line(|| json!({ "event": "at", "shard": shard, "versions": versions }), String::new);
        }
    }

    fn hold(&self, begun: &HoldBegun) {
        let HoldBegun { operation, node, node_name, holds, .. } = begun;
        let statement = StatementId::from(begun.statement).to_string();
        let evicts = begun.evicts.map(|id| AllocationId::from(id).to_string());
        let line = || {
            let about = [("statement", json!(statement)), ("operation", json!(operation))];
            let rest = [("holds", holds.as_ref().map(holding_view).into()), ("evicts", json!(evicts))];
            event("hold", &about, (*node, node_name), &rest)
        };
        let text = || {
            let what = match (holds, &evicts) {
                (Some(holds), _) => holding_text(holds),
                (None, Some(id)) => format!("is about to evict {id}"),
                (None, None) => "a claim on what is being released".to_owned(),
            };
            format!("hold {statement}/{operation} on {node_name}: {what}")
        };
        self.line(line, text);
    }
}
