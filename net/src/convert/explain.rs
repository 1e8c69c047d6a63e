//! Conversion of explanations of pending jobs, and of placements and groups that wait, to the wire.

use wharf_core::fairness::{Amounts, Dim};
use wharf_core::group::{PlanRejection, WaitExplained, WaitsFor};
use wharf_core::ids::NodeId;
use wharf_core::jobs::{
    Change, DomainLack, Holder, JobExplanation, PendingReason, QueueBound, QueueRule, Remedy,
};
use wharf_core::registrar::Catalog;
use wharf_core::request::NodeRoom;
use wharf_core::resource::ResourceRegistry;

use super::direct::capped_name;
use super::groups::{plan_fault, summary as group_summary};
use super::job_replies::summary;
use super::jobs::{dim_name, wire_amounts};
use super::{chosen, number_of, refusal_body, task_state_number};
use crate::limits::FOUND_CHARS_MAX;
use crate::protocol::{
    CHANGE_CAPACITY, CHANGE_FREE_IN_DOMAIN, CHANGE_FREE_ON_NODE, CHANGE_LARGER_NODES,
    CHANGE_LARGER_NODES_IN_DOMAIN, CHANGE_MORE_NODES, CHANGE_MORE_NODES_IN_DOMAIN, CHANGE_RAISE_CAP,
    CHANGE_RELEASE, CHANGE_RUN_TIME, CHANGES_MAX, ChangeBody, DomainLackBody, ExplainJobReply,
    ExplainWaitReply, Fault, HOLDER_GROUP, HOLDERS_MAX, HolderBody, JOB_AMOUNTS_MAX, NO_VICTIMS_PREEMPT,
    NO_VICTIMS_RECLAIM, NO_VICTIMS_STARVE, NamedAmount, NodeRoomBody, PENDING_CAP, PENDING_CLAIM,
    PENDING_CONFLICT, PENDING_GANG, PENDING_NO_NODE, PENDING_NONE, PENDING_NOT_ADMITTED, PENDING_NOT_TRIED,
    PENDING_OVERUSED, PENDING_RESERVATION, PENDING_SHARE, PENDING_TOO_FEW_TASKS, PENDING_TOPOLOGY,
    QUEUE_BOUNDS_MAX, QueueBoundBody, RULE_ALLOCATIONS, RULE_CAPABILITY, RULE_DESERVED, RULE_GUARANTEES,
    RULE_OVERCOMMIT, WAITS_FOR_BUNDLES, WAITS_FOR_NODE, WAITS_FOR_NOTHING, WAITS_FOR_QUEUE, WAITS_FOR_TICKET,
    WAITS_FOR_TOGETHER, WAITS_FOR_TURN,
};

const REASONS: [(u8, PendingReason); PendingReason::ALL.len()] = [
    (PENDING_NONE, PendingReason::None),
    (PENDING_NOT_TRIED, PendingReason::NotTried),
    (PENDING_NOT_ADMITTED, PendingReason::NotAdmitted),
    (PENDING_TOO_FEW_TASKS, PendingReason::TooFewTasks),
    (PENDING_OVERUSED, PendingReason::Overused),
    (PENDING_SHARE, PendingReason::Share),
    (PENDING_CAP, PendingReason::Cap),
    (PENDING_NO_NODE, PendingReason::NoNode),
    (PENDING_GANG, PendingReason::Gang),
    (PENDING_RESERVATION, PendingReason::Reservation),
    (PENDING_CLAIM, PendingReason::Claim),
    (PENDING_CONFLICT, PendingReason::Conflict),
    (PENDING_TOPOLOGY, PendingReason::Topology),
];

const WAITS: [(u8, WaitsFor); WaitsFor::ALL.len()] = [
    (WAITS_FOR_NOTHING, WaitsFor::Nothing),
    (WAITS_FOR_NODE, WaitsFor::Node),
    (WAITS_FOR_BUNDLES, WaitsFor::Bundles),
    (WAITS_FOR_TOGETHER, WaitsFor::Together),
    (WAITS_FOR_TURN, WaitsFor::Turn),
    (WAITS_FOR_TICKET, WaitsFor::Ticket),
    (WAITS_FOR_QUEUE, WaitsFor::Queue),
];

const RULES: [(u8, QueueRule); QueueRule::ALL.len()] = [
    (RULE_CAPABILITY, QueueRule::Capability),
    (RULE_GUARANTEES, QueueRule::Guarantees),
    (RULE_DESERVED, QueueRule::Deserved),
    (RULE_OVERCOMMIT, QueueRule::Overcommit),
    (RULE_ALLOCATIONS, QueueRule::Allocations),
];

/// Returns the reason with this number why a job or a task waits.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn pending_reason(field: &str, number: u8) -> Result<PendingReason, Fault> {
    chosen(&REASONS, number, field, "reason why a job waits: give 0 (none) to 12 (topology)")
}

/// Returns what a placement or a group waits for, by its number.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn waits_for(field: &str, number: u8) -> Result<WaitsFor, Fault> {
    chosen(&WAITS, number, field, "thing to wait for: give 0 (nothing) to 5 (ticket)")
}

/// Returns the rule of a queue with this number.
///
/// # Errors
/// Returns a fault that names `field`.
pub fn queue_rule(field: &str, number: u8) -> Result<QueueRule, Fault> {
    chosen(&RULES, number, field, "rule of a queue: give 1 (capability) to 5 (allocations)")
}

fn name_of(name: Option<&std::sync::Arc<str>>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

fn holders(holders: &[Holder]) -> Vec<HolderBody> {
    let body = |holder: &Holder| HolderBody {
        name: holder.name.to_string(),
        job: holder.job.map_or(if holder.is_group { HOLDER_GROUP } else { 0 }, |job| job.0),
        amount: holder.amount,
    };
    holders.iter().take(HOLDERS_MAX).map(body).collect()
}

fn bound(bound: &QueueBound, resources: &ResourceRegistry) -> QueueBoundBody {
    QueueBoundBody {
        queue: name_of(bound.queue.as_ref()),
        rule: number_of(&RULES, bound.rule),
        resource: capped_name(bound.of, resources),
        bound: bound.bound,
        used: bound.used,
        asked: bound.asked,
        holders: holders(&bound.holders),
    }
}

fn amounts(amounts: &Amounts, resources: &ResourceRegistry) -> Vec<NamedAmount> {
    wire_amounts(amounts.iter(), JOB_AMOUNTS_MAX, resources)
}

fn change(change: &Change, catalog: &Catalog) -> ChangeBody {
    let resources = &catalog.resources;
    let of_node = |node: Option<NodeId>| {
        let name = node.and_then(|node| catalog.node_name(node)).map(ToString::to_string);
        let node = node.map_or(0, |node| node.0);
        ChangeBody { node, node_name: name.unwrap_or_default(), ..ChangeBody::default() }
    };
    let each = |change: u8, count: u64, of_each: &Amounts| ChangeBody {
        change,
        count,
        amounts: amounts(of_each, resources),
        ..ChangeBody::default()
    };
    let body = match &change.remedy {
        Remedy::FreeOnNode { node, amounts: free, of } => ChangeBody {
            change: CHANGE_FREE_ON_NODE,
            queue: name_of(of.as_ref()),
            amounts: amounts(free, resources),
            ..of_node(*node)
        },
        Remedy::MoreNodes { count, like } => {
            ChangeBody { change: CHANGE_MORE_NODES, count: *count, ..of_node(*like) }
        }
        Remedy::MoreNodesInDomain { count, like } => {
            ChangeBody { change: CHANGE_MORE_NODES_IN_DOMAIN, count: *count, ..of_node(*like) }
        }
        Remedy::LargerNodes { count, amounts } => each(CHANGE_LARGER_NODES, *count, amounts),
        Remedy::LargerNodesInDomain { count, amounts } => {
            each(CHANGE_LARGER_NODES_IN_DOMAIN, *count, amounts)
        }
        Remedy::FreeInDomain { tasks, amounts } => each(CHANGE_FREE_IN_DOMAIN, *tasks, amounts),
        Remedy::RaiseCap { queue, dim, by } => ChangeBody {
            change: CHANGE_RAISE_CAP,
            queue: name_of(queue.as_ref()),
            amounts: vec![NamedAmount { name: dim_name(*dim, resources), amount: *by }],
            ..ChangeBody::default()
        },
        Remedy::RaiseAllocations { queue, by } => ChangeBody {
            change: CHANGE_RAISE_CAP,
            queue: name_of(queue.as_ref()),
            count: *by,
            ..ChangeBody::default()
        },
        Remedy::EndAllocations { queue, count } => ChangeBody {
            change: CHANGE_RELEASE,
            queue: name_of(queue.as_ref()),
            count: *count,
            ..ChangeBody::default()
        },
        Remedy::Release { queue, amounts: back } => ChangeBody {
            change: CHANGE_RELEASE,
            queue: name_of(queue.as_ref()),
            amounts: amounts(back, resources),
            ..ChangeBody::default()
        },
        Remedy::Capacity { amounts: more } => {
            ChangeBody { change: CHANGE_CAPACITY, amounts: amounts(more, resources), ..ChangeBody::default() }
        }
        Remedy::RunTime(nanos) => {
            ChangeBody { change: CHANGE_RUN_TIME, run_time: *nanos, ..ChangeBody::default() }
        }
    };
    ChangeBody { instead: change.instead, ..body }
}

fn room_body(room: &NodeRoom, resources: &ResourceRegistry) -> NodeRoomBody {
    let free = room.free.iter().map(|&(kind, amount)| (Dim::of(kind), amount));
    NodeRoomBody {
        fits: room.fits,
        places: room.places,
        fragmented: room.fragmented,
        free: wire_amounts(free, JOB_AMOUNTS_MAX, resources),
    }
}

fn domain_body(lack: &DomainLack) -> DomainLackBody {
    let DomainLack { tier, is_missing, best, holds, needed } = lack;
    DomainLackBody {
        tier: tier.to_string(),
        best: name_of(best.as_ref()),
        holds: *holds,
        needed: *needed,
        missing: *is_missing,
    }
}

/// Converts an explanation to the wire.
pub(super) fn explain_reply(of: &JobExplanation, catalog: &Catalog) -> ExplainJobReply {
    let resources = &catalog.resources;
    let scarce = of.scarce.as_ref();
    let victims =
        [("preempt", NO_VICTIMS_PREEMPT), ("reclaim", NO_VICTIMS_RECLAIM), ("starve", NO_VICTIMS_STARVE)];
    let no_victims = victims.into_iter().filter(|(name, _)| of.no_victims.contains(name));
    ExplainJobReply {
        job: Some(summary(&of.job)),
        task: of.task,
        state: of.state.map_or(0, task_state_number),
        pending: number_of(&REASONS, of.reason),
        cause: number_of(&REASONS, of.cause),
        tried: of.tried.map(|time| time.0),
        fit: of.fit,
        needed: of.needed,
        no_victims: no_victims.map(|(_, bit)| bit).sum(),
        before: of.place.before,
        waiting: of.place.waiting,
        claimed: of.claims.claimed,
        capped: of.claims.capped,
        date: of.date.map(|time| time.0),
        held_until: of.held_by.map(|held| held.date.0),
        held_by: of.held_by.and_then(|held| held.job).map_or(0, |job| job.0),
        reserved: of.held_by.map_or(0, |held| held.jobs),
        nodes: of.nodes.as_ref().map(|counts| refusal_body(&counts.refusal, catalog)),
        room: of.nodes.as_ref().map(|counts| room_body(&counts.room, resources)).unwrap_or_default(),
        scarce: scarce.map(|scarce| dim_name(scarce.dim, resources)).unwrap_or_default(),
        scarce_holders: scarce.map(|scarce| holders(&scarce.holders)).unwrap_or_default(),
        bounds: of.bounds.iter().take(QUEUE_BOUNDS_MAX).map(|of| bound(of, resources)).collect(),
        changes: of.changes.iter().take(CHANGES_MAX).map(|of| change(of, catalog)).collect(),
        domain: of.domain.as_ref().map(domain_body),
        ..ExplainJobReply::default()
    }
}

/// Converts the explanation of a placement or a group to the wire.
pub(crate) fn wait_reply(explained: &WaitExplained, catalog: &Catalog) -> ExplainWaitReply {
    let resources = &catalog.resources;
    let of = match explained {
        Ok(of) => of,
        Err(rejection) => {
            let mut fault = plan_fault(rejection);
            if matches!(rejection, PlanRejection::UnknownBundle(..)) {
                // This request names one bundle.
                fault.field = "bundle".to_owned();
            }
            return fault.into();
        }
    };
    let found = of.found.as_deref().unwrap_or_default();
    ExplainWaitReply {
        group: of.group.as_deref().map(group_summary),
        job: of.job.map_or(0, |job| job.0),
        bundle: of.bundle,
        waits_for: number_of(&WAITS, of.waits_for),
        priority: of.priority,
        since: of.since.0,
        until: of.until.map(|time| time.0),
        fit: of.fit,
        needed: of.needed,
        found: found.chars().take(FOUND_CHARS_MAX).collect(),
        before: of.place.before,
        waiting: of.place.waiting,
        nodes: of.nodes.as_ref().map(|counts| refusal_body(&counts.refusal, catalog)),
        room: of.nodes.as_ref().map(|counts| room_body(&counts.room, resources)).unwrap_or_default(),
        changes: of.changes.iter().take(CHANGES_MAX).map(|of| change(of, catalog)).collect(),
        ..ExplainWaitReply::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_rules_are_read_back() {
        for reason in PendingReason::ALL {
            assert_eq!(pending_reason("pending", number_of(&REASONS, reason)), Ok(reason));
            assert_eq!(PendingReason::named(reason.name()), Some(reason));
        }
        for rule in QueueRule::ALL {
            assert_eq!(queue_rule("rule", number_of(&RULES, rule)), Ok(rule));
        }
        for waited in WaitsFor::ALL {
            assert_eq!(waits_for("waits_for", number_of(&WAITS, waited)), Ok(waited));
        }
        let fault = pending_reason("pending", 99).unwrap_err();
        assert!(fault.field == "pending" && fault.message.contains("0 (none) to 12"), "{fault}");
    }

    #[test]
    fn what_may_not_be_seen_is_left_out() {
        let hidden = Remedy::RaiseCap { queue: None, dim: Dim::CPU, by: 5 };
        let body = change(&Change { instead: true, remedy: hidden }, &Catalog::default());
        assert_eq!((&*body.queue, body.instead, body.change), ("", true, CHANGE_RAISE_CAP));
        let node = Remedy::MoreNodes { count: 2, like: None };
        let body = change(&Change { instead: false, remedy: node }, &Catalog::default());
        assert_eq!((body.node, &*body.node_name, body.count), (0, "", 2));
        let in_domain = Remedy::MoreNodesInDomain { count: 2, like: None };
        let of_domain = change(&Change { instead: false, remedy: in_domain }, &Catalog::default());
        assert_eq!(of_domain, ChangeBody { change: CHANGE_MORE_NODES_IN_DOMAIN, ..body });
    }
}
