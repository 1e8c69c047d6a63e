//! Output of `wharf events`: one line of text per event for people, one JSON object per line for programs.

use serde_json::{Value, json};
use wharf_core::ids::{AllocationId, GroupId, SessionId};
use wharf_core::jobs::{JobId, JobPhase, TaskState};
use wharf_net::convert::{job_phase, task_state};
use wharf_net::protocol::{
    BEGUN_ADOPTED, BEGUN_CLAIMED, BEGUN_COMMITTED, BEGUN_PLACED, BEGUN_WAITED, CHANGED_NEW, CHANGED_SPEC,
    CHANGED_STATE, ClaimBody, ENDED_EVICTED, ENDED_EXPIRED, ENDED_NODE_LOST, ENDED_NODE_REMOVED,
    ENDED_RELEASED, ENDED_TAKEN_BACK, EVENT_BEGUN, EVENT_BUNDLE, EVENT_ENDED, EVENT_GROUP,
    EVENT_GROUP_REMOVED, EVENT_INSIDE, EVENT_JOB, EVENT_JOB_PHASE, EVENT_JOB_REMOVED, EVENT_KINDS,
    EVENT_LEASE, EVENT_NODE, EVENT_NODE_COUNT, EVENT_NODE_REMOVED, EVENT_PRIORITY_CLASS,
    EVENT_PRIORITY_CLASS_REMOVED, EVENT_QUEUE, EVENT_QUEUE_REMOVED, EVENT_SESSION_ENDED,
    EVENT_SESSION_RENEWED, EVENT_STARTED, EVENT_TASK, EVENT_WAIT_ENDED, EventBody, EventGroup,
    EventGroupBundle, EventNode, ReleasingBody, SESSION_CLOSED, SESSION_EXPIRED, WAIT_CANCELLED,
    WAIT_EXPIRED, WAIT_PLACED, WAIT_REFUSED, WireAllocation, WireGroup, WireSession,
};

use super::node_view::{capacity, state_name};
use super::print::{amounts, given, given_text, say, seconds, units};
use super::watch_view::{holding_text, holding_view};

/// Returns the name of what happened.
fn name(event: &EventBody) -> &'static str {
    match (event.what, event.cause) {
        (EVENT_STARTED, _) => "started",
        (EVENT_BEGUN, BEGUN_PLACED) => "placed",
        (EVENT_BEGUN, BEGUN_WAITED) => "placed_after_wait",
        (EVENT_BEGUN, BEGUN_COMMITTED) => "committed",
        (EVENT_BEGUN, BEGUN_CLAIMED) => "claim_granted",
        (EVENT_BEGUN, BEGUN_ADOPTED) => "adopted",
        (EVENT_BEGUN, _) => "begun",
        (EVENT_BUNDLE, _) => "bundle",
        (EVENT_INSIDE, _) => "placed_into",
        (EVENT_ENDED, ENDED_RELEASED) => "released",
        (EVENT_ENDED, ENDED_EVICTED) => "evicted",
        (EVENT_ENDED, ENDED_NODE_REMOVED) => "ended_with_node",
        (EVENT_ENDED, ENDED_NODE_LOST) => "lost_with_node",
        (EVENT_ENDED, ENDED_EXPIRED) => "expired",
        (EVENT_ENDED, ENDED_TAKEN_BACK) => "taken_back",
        (EVENT_ENDED, _) => "ended",
        (EVENT_NODE, cause) if cause & CHANGED_NEW != 0 => "node_added",
        (EVENT_NODE, cause) if cause & CHANGED_SPEC != 0 => "node_updated",
        (EVENT_NODE, cause) if cause & CHANGED_STATE != 0 => "node_state",
        (EVENT_NODE, _) => "node_holds",
        (EVENT_NODE_COUNT, _) => "node_version",
        (EVENT_NODE_REMOVED, _) => "node_removed",
        (EVENT_GROUP, _) => "group",
        (EVENT_GROUP_REMOVED, _) => "group_removed",
        (EVENT_QUEUE, _) => "queue",
        (EVENT_QUEUE_REMOVED, _) => "queue_removed",
        (EVENT_PRIORITY_CLASS, _) => "priority_class",
        (EVENT_PRIORITY_CLASS_REMOVED, _) => "priority_class_removed",
        (EVENT_JOB, _) => "job",
        (EVENT_JOB_PHASE, _) => "job_phase",
        (EVENT_JOB_REMOVED, _) => "job_removed",
        (EVENT_TASK, _) => "task",
        (EVENT_KINDS, _) => "kinds",
        (EVENT_LEASE, _) => "lease",
        (EVENT_SESSION_RENEWED, _) => "session_renewed",
        (EVENT_SESSION_ENDED, SESSION_CLOSED) => "session_closed",
        (EVENT_SESSION_ENDED, SESSION_EXPIRED) => "session_expired",
        (EVENT_SESSION_ENDED, _) => "session_evicted",
        (EVENT_WAIT_ENDED, WAIT_PLACED) => "wait_placed",
        (EVENT_WAIT_ENDED, WAIT_EXPIRED) => "wait_expired",
        (EVENT_WAIT_ENDED, WAIT_CANCELLED) => "wait_cancelled",
        (EVENT_WAIT_ENDED, WAIT_REFUSED) => "wait_refused",
        (EVENT_WAIT_ENDED, _) => "wait_ended",
        _ => "other",
    }
}

fn allocation(id: WireAllocation) -> String {
    AllocationId::from(id).to_string()
}

fn group(id: WireGroup) -> String {
    GroupId::from(id).to_string()
}

fn session(id: WireSession) -> String {
    SessionId::from(id).to_string()
}

/// Adds the fields of a node to a line.
fn add_node(line: &mut Value, node: &EventNode) {
    let body = &node.body;
    line["name"] = json!(body.name);
    line["state"] = json!(state_name(node.state));
    line["capacity"] = capacity(body);
    line["unhealthy"] = json!(node.unhealthy);
    if let Some(reservation) = &node.reservation {
        line["reservation"] = json!({ "owner": reservation.owner, "until": given(reservation.until) });
    }
    let pending = &node.pending;
    let releasing = |releasing: &ReleasingBody| json!({ "allocation": allocation(releasing.allocation), "until": releasing.until });
    line["releasing"] = pending.releasing.iter().map(releasing).collect();
    let claim = |claim: &ClaimBody| json!({ "allocation": allocation(claim.allocation), "holds": holding_view(&claim.holds) });
    line["claims"] = pending.claims.iter().map(claim).collect();
    line["untold"] = pending.untold.into();
}

/// Adds the fields of a group to a line.
fn add_group(line: &mut Value, now: &EventGroup) {
    let bundle = |bundle: &EventGroupBundle| {
        json!({
            "index": bundle.index,
            "cpu": units(bundle.demand.cpu),
            "memory": units(bundle.demand.memory),
            "gpu": units(bundle.demand.gpu),
            "resources": amounts(&bundle.demand.custom),
            "node_id": given(bundle.node),
            "allocation": bundle.allocation.map(allocation),
            "lost": bundle.lost.map(allocation),
        })
    };
    line["min_members"] = now.min_members.into();
    line["priority"] = now.priority.into();
    line["bundles"] = now.bundles.iter().map(bundle).collect();
}

/// Returns an event in JSON. Fields that do not belong to it are left out.
fn event_line(event: &EventBody) -> Value {
    let mut line = json!({
        "position": event.position,
        "time": event.time,
        "event": name(event),
        "whole": event.is_whole,
    });
    let fields = [
        ("allocation", event.allocation.map(|id| json!(allocation(id)))),
        ("into", event.into.map(|id| json!(allocation(id)))),
        ("group", event.group.map(|id| json!(group(id)))),
        ("session", event.session.map(|id| json!(session(id)))),
        ("sequence", given(event.sequence).map(Into::into)),
        ("partition", (event.what == EVENT_SESSION_RENEWED).then(|| json!(event.partition))),
        ("until", given(event.until).map(Into::into)),
        ("bundle", (event.what == EVENT_BUNDLE).then(|| json!(event.bundle))),
        ("node_id", given(event.node).map(Into::into)),
        ("version", given(event.version).map(Into::into)),
        ("incarnation", given(event.incarnation.into()).map(Into::into)),
        ("kinds", (event.what == EVENT_KINDS).then(|| json!(event.kinds))),
        ("holds", event.holds.as_deref().map(holding_view)),
        ("external_id", given_text(&event.external_id).map(Into::into)),
        ("job", given(event.job).map(|job| json!(JobId(job).to_string()))),
        ("task", (event.what == EVENT_TASK).then(|| json!(event.task))),
        ("state", job_state(event).map(Into::into)),
        ("restarts", given(event.restarts.into()).map(Into::into)),
        ("queue", given_text(&event.queue).map(Into::into)),
        ("priority_class", given_text(&event.priority_class).map(Into::into)),
    ];
    for (field, value) in fields {
        value.into_iter().for_each(|value| line[field] = value);
    }
    event.node_now.iter().for_each(|node| add_node(&mut line, node));
    event.group_now.iter().for_each(|now| add_group(&mut line, now));
    if let Some(job) = &event.job_now {
        line["name"] = json!(job.name);
        line["tenant"] = job.tenant.into();
        line["priority"] = job.priority.into();
        line["min_member"] = job.min_member.into();
        line["tasks"] = job.tasks.into();
    }
    line
}

/// Returns the name of the phase of a job, or of the state of a task.
fn job_state(event: &EventBody) -> Option<&'static str> {
    match event.what {
        EVENT_JOB_PHASE => Some(job_phase("state", event.state).map_or("other", JobPhase::name)),
        EVENT_TASK => Some(task_state("state", event.state).map_or("other", TaskState::name)),
        _ => None,
    }
}

fn event_text(event: &EventBody) -> String {
    let mut text = format!("{} {} s {}", event.position, seconds(event.time), name(event));
    let mut add = |part: String| {
        text.push(' ');
        text.push_str(&part);
    };
    event.allocation.into_iter().for_each(|id| add(allocation(id)));
    event.into.into_iter().for_each(|id| add(format!("into {}", allocation(id))));
    event.group.into_iter().for_each(|id| add(group(id)));
    event.session.into_iter().for_each(|id| add(session(id)));
    if let Some(job) = given(event.job) {
        let job = JobId(job);
        add(if event.what == EVENT_TASK { format!("{job}/{}", event.task) } else { job.to_string() });
    }
    event.job_now.iter().for_each(|now| add(format!("{} with {} tasks", now.name, now.tasks)));
    given_text(&event.queue).into_iter().for_each(|queue| add(format!("queue {queue}")));
    given_text(&event.priority_class).into_iter().for_each(|class| add(class.to_owned()));
    job_state(event).into_iter().for_each(|state| add(state.to_owned()));
    given(event.until).into_iter().for_each(|until| add(format!("until {} s", seconds(until))));
    if event.what == EVENT_BUNDLE {
        add(format!("bundle {}", event.bundle));
    }
    match &event.node_now {
        Some(node) => add(format!("{} (n{}) {}", node.body.name, event.node, state_name(node.state))),
        None => given(event.node).into_iter().for_each(|node| add(format!("n{node}"))),
    }
    if event.what == EVENT_STARTED {
        add(event.incarnation.to_string());
    }
    event.holds.iter().for_each(|holds| add(format!("{{{}}}", holding_text(holds))));
    given_text(&event.external_id).into_iter().for_each(|name| add(format!("`{name}`")));
    text
}

/// Prints events.
pub(super) struct Printer {
    json: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(super) fn event(&self, event: &EventBody) {
        if self.json {
            say(format_args!("{}", event_line(event)));
        } else if event.what != EVENT_NODE_COUNT {
            say(format_args!("{}", event_text(event)));
        }
    }
}
