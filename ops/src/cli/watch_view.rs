//! Output of `wharf watch`: one line of text per change for people, one JSON object per line for programs.

use std::collections::BTreeMap;

use serde::Serialize;
use wharf_core::ids::{AllocationId, StatementId};
use wharf_net::protocol::{
    AllocationBegun, AllocationEnded, FollowPage, HoldBegun, HoldEnded, Holding, NamedAmount, NodeChange,
    NodeGone,
};

use super::print::{instances, say, state_name, units};

fn amounts(custom: &[NamedAmount]) -> BTreeMap<&str, String> {
    custom.iter().map(|amount| (amount.name.as_str(), units(amount.amount))).collect()
}

/// Held capacity, in JSON.
#[derive(Serialize)]
struct HoldingView<'a> {
    cpu: String,
    memory: String,
    gpu: String,
    gpus: &'a [u8],
    gpu_part: Option<String>,
    resources: BTreeMap<&'a str, String>,
    units: BTreeMap<&'a str, &'a [u8]>,
}

impl<'a> From<&'a Holding> for HoldingView<'a> {
    fn from(holds: &'a Holding) -> Self {
        Self {
            cpu: units(holds.demand.cpu),
            memory: units(holds.demand.memory),
            gpu: units(holds.demand.gpu),
            gpus: &holds.gpus,
            gpu_part: (!holds.gpus.is_empty()).then(|| units(i64::from(holds.gpu_part))),
            resources: amounts(&holds.demand.custom),
            units: holds.units.iter().map(|unit| (unit.name.as_str(), &unit.instances[..])).collect(),
        }
    }
}

/// Formats held capacity: `2 cpu, 512 memory, 1 of GPU 0`.
fn holding_text(holds: &Holding) -> String {
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

/// The rarely changing properties of a node, in JSON. Present only if they changed.
#[derive(Serialize)]
struct CapacityView<'a> {
    cpu: String,
    memory: String,
    gpus: u32,
    resources: BTreeMap<&'a str, String>,
    labels: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct UnhealthyView<'a> {
    instance: u8,
    reason: &'a str,
}

/// A releasing allocation, which ends at `until` (in ns of service time) at the latest.
#[derive(Serialize)]
struct ReleasingView {
    allocation: String,
    until: u64,
}

#[derive(Serialize)]
struct ClaimView<'a> {
    allocation: String,
    holds: HoldingView<'a>,
}

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Resync {
        shard: u16,
        reason: String,
    },
    Node {
        node: &'a str,
        node_id: u64,
        state: &'static str,
        version: u64,
        cpu: String,
        memory: String,
        gpus: Vec<String>,
        allocations: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        resources: Option<BTreeMap<&'a str, String>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        unhealthy: Option<Vec<UnhealthyView<'a>>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        releasing: Vec<ReleasingView>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        claims: Vec<ClaimView<'a>>,
        /// The number of entries of both lists that did not fit the page.
        #[serde(skip_serializing_if = "Option::is_none")]
        untold: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity: Option<CapacityView<'a>>,
    },
    NodeGone {
        node: &'a str,
        node_id: u64,
    },
    Allocation {
        allocation: String,
        node: &'a str,
        node_id: u64,
        holds: HoldingView<'a>,
    },
    AllocationEnded {
        allocation: String,
        node: &'a str,
        node_id: u64,
    },
    Hold {
        statement: String,
        operation: u16,
        node: &'a str,
        node_id: u64,
        holds: Option<HoldingView<'a>>,
        evicts: Option<String>,
    },
    HoldEnded {
        statement: String,
        operation: u16,
        node: &'a str,
        node_id: u64,
    },
    At {
        shard: u16,
        versions: &'a str,
    },
    Lost {
        message: &'a str,
    },
    Connected,
}

fn node_line(change: &NodeChange) -> Line<'_> {
    let details = change.details.as_ref();
    let unhealthy = details.map(|details| {
        details.unhealthy.iter().map(|u| UnhealthyView { instance: u.instance, reason: &u.reason }).collect()
    });
    Line::Node {
        node: &change.node_name,
        node_id: change.node,
        state: state_name(change.state),
        version: change.version,
        cpu: units(change.cpu),
        memory: units(change.memory),
        gpus: change.gpus.iter().map(|&part| units(i64::from(part))).collect(),
        allocations: change.allocations,
        resources: details.map(|details| amounts(&details.custom)),
        unhealthy,
        owner: details.map(|details| details.owner),
        releasing: change
            .pending
            .releasing
            .iter()
            .map(|r| ReleasingView {
                allocation: AllocationId::from(r.allocation).to_string(),
                until: r.until,
            })
            .collect(),
        claims: change
            .pending
            .claims
            .iter()
            .map(|claim| ClaimView {
                allocation: AllocationId::from(claim.allocation).to_string(),
                holds: HoldingView::from(&claim.holds),
            })
            .collect(),
        untold: Some(change.pending.untold).filter(|&untold| untold > 0),
        capacity: change.body.as_ref().map(|body| CapacityView {
            cpu: units(body.cpu),
            memory: units(body.memory),
            gpus: body.gpus,
            resources: amounts(&body.custom),
            labels: body.labels.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect(),
        }),
    }
}

fn node_text(change: &NodeChange) -> String {
    let NodeChange { node, node_name, state, version, .. } = change;
    let gpus: Vec<String> = change.gpus.iter().map(|&part| units(i64::from(part))).collect();
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

/// Prints followed changes.
pub(super) struct Printer {
    json: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    fn line(&self, line: &Line<'_>, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            say(format_args!("{}", serde_json::to_string(line)?));
        } else {
            say(format_args!("{}", text()));
        }
        Ok(())
    }

    pub(super) fn lost(&self, message: &str) -> anyhow::Result<()> {
        self.line(&Line::Lost { message }, || format!("lost: {message}"))
    }

    pub(super) fn connected(&self) -> anyhow::Result<()> {
        self.line(&Line::Connected, || "connected again".to_owned())
    }

    /// Prints a page. `at` has the versions after it, if it was the last page of its step.
    pub(super) fn page(&self, page: &FollowPage, at: Option<String>) -> anyhow::Result<()> {
        let shard = page.to.shard;
        if page.is_resync() {
            let reason = page.resync.to_string();
            let text = format!("shard {shard}: resync ({reason}), what follows is all there is");
            self.line(&Line::Resync { shard, reason }, || text)?;
        }
        for HoldEnded { statement, operation, node, node_name } in &page.holds_ended {
            let statement = StatementId::from(*statement).to_string();
            let operation = *operation;
            let text = format!("hold {statement}/{operation} on {node_name} ended");
            self.line(&Line::HoldEnded { statement, operation, node: node_name, node_id: *node }, || text)?;
        }
        for AllocationEnded { allocation, node, node_name } in &page.allocations_ended {
            let allocation = AllocationId::from(*allocation).to_string();
            let text = format!("allocation {allocation} on {node_name} ended");
            self.line(&Line::AllocationEnded { allocation, node: node_name, node_id: *node }, || text)?;
        }
        for NodeGone { node, node_name } in &page.nodes_gone {
            let text = || format!("node {node_name} (n{node}) is gone");
            self.line(&Line::NodeGone { node: node_name, node_id: *node }, text)?;
        }
        for change in &page.nodes {
            self.line(&node_line(change), || node_text(change))?;
        }
        for AllocationBegun { allocation, node, node_name, holds } in &page.allocations {
            let allocation = AllocationId::from(*allocation).to_string();
            let text = format!("allocation {allocation} on {node_name}: {}", holding_text(holds));
            let holds = holds.into();
            self.line(&Line::Allocation { allocation, node: node_name, node_id: *node, holds }, || text)?;
        }
        for HoldBegun { statement, operation, node, node_name, holds, evicts } in &page.holds {
            let statement = StatementId::from(*statement).to_string();
            let operation = *operation;
            let evicts = evicts.map(|id| AllocationId::from(id).to_string());
            let what = match (holds, &evicts) {
                (Some(holds), _) => holding_text(holds),
                (None, Some(id)) => format!("is about to evict {id}"),
                (None, None) => "a claim on what is being released".to_owned(),
            };
            let text = format!("hold {statement}/{operation} on {node_name}: {what}");
            let holds = holds.as_ref().map(Into::into);
            let line = Line::Hold { statement, operation, node: node_name, node_id: *node, holds, evicts };
            self.line(&line, || text)?;
        }
        match at {
            Some(versions) if self.json => self.line(&Line::At { shard, versions: &versions }, String::new),
            _ => Ok(()),
        }
    }
}
