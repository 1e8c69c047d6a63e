//! Output of plans of nodes: text for people, JSON for programs.

use serde_json::{Value, json};
use wharf_core::jobs::JobId;
use wharf_net::protocol::{
    ASKER_FLOOR, ASKER_GROUP, ASKER_PLACEMENTS, ASKER_WAITING_GROUP, REMOVAL_ALL_LIMIT, REMOVAL_IDLE,
    REMOVAL_TYPE_LIMIT, RemovalBody, TypePlanBody, UNFIT_ALL_LIMIT, UNFIT_CAP, UNFIT_GANG, UNFIT_NEVER,
    UNFIT_ONLY_PRESENT, UNFIT_TOPOLOGY, UNFIT_TYPE_LIMIT, UNFIT_UNDECIDED, UnplacedBody,
};

use super::plan::Planned;
use super::print::{self, checks_view, fault_view, given_text, say as line};

/// Returns the name of a reason, and what it means.
fn reason(number: u8) -> (&'static str, &'static str) {
    match number {
        UNFIT_CAP => ("cap", "the cap of a queue forbids it"),
        UNFIT_NEVER => ("never", "no type could ever hold it"),
        UNFIT_ONLY_PRESENT => ("only-present", "only a present node could hold it, if it were empty"),
        UNFIT_TYPE_LIMIT => ("type-limit", "the types that could hold it have as many nodes as they may"),
        UNFIT_ALL_LIMIT => ("all-limit", "there are as many nodes as there may be"),
        UNFIT_GANG => ("gang", "its members do not fit together"),
        UNFIT_TOPOLOGY => ("topology", "no domain of the topology could have room for it"),
        UNFIT_UNDECIDED => ("undecided", "not decided, because the work of a plan is bounded"),
        _ => ("other", "for a reason that this program does not know"),
    }
}

fn cause(number: u8) -> &'static str {
    match number {
        REMOVAL_IDLE => "idle",
        REMOVAL_TYPE_LIMIT => "type-limit",
        REMOVAL_ALL_LIMIT => "all-limit",
        _ => "other",
    }
}

fn asker(left: &UnplacedBody) -> String {
    match left.asker {
        ASKER_FLOOR => format!("floor {}", left.number),
        ASKER_GROUP => format!("group {}", left.name),
        ASKER_WAITING_GROUP => format!("waiting group {}", left.name),
        ASKER_PLACEMENTS => "waiting placements".to_owned(),
        _ => format!("job {} ({})", JobId(left.number), left.name),
    }
}

fn type_name(planned: &Planned, at: usize) -> &str {
    planned.types.get(at).map_or("?", String::as_str)
}

fn removal_view(planned: &Planned, one: &RemovalBody) -> Value {
    json!({
        "node": given_text(&one.node_name),
        "node_id": one.node,
        "type": type_name(planned, one.of_type as usize),
        "idle": print::seconds(one.idle),
        "cause": cause(one.cause),
    })
}

fn unplaced_view(left: &UnplacedBody) -> Value {
    json!({
        "asker": match left.asker {
            ASKER_FLOOR => "floor",
            ASKER_GROUP => "group",
            ASKER_WAITING_GROUP => "waiting-group",
            ASKER_PLACEMENTS => "placements",
            _ => "job",
        },
        "number": left.number,
        "name": given_text(&left.name),
        "count": left.count,
        "reason": reason(left.reason).0,
        "queue": given_text(&left.queue),
        "resource": given_text(&left.resource),
        "checks": checks_view(left.refusal.as_ref()),
    })
}

/// Returns a plan in JSON. Times are in seconds.
pub(super) fn view(planned: &Planned) -> Value {
    let reply = &planned.reply;
    let of_type = |(at, of): (usize, &TypePlanBody)| {
        json!({
            "type": type_name(planned, at),
            "present": of.present,
            "launching": of.launching,
            "needed": of.needed,
            "launch": of.launch,
            "cancel": of.cancel,
        })
    };
    let starts = reply.starts.iter().map(|start| {
        json!({
            "job": JobId(start.job).to_string(),
            "name": start.name,
            "after": print::seconds(start.after),
            "tasks": start.tasks,
        })
    });
    let waiting = reply.waiting.iter();
    json!({
        "reason": reply.reason.to_string(),
        "types": reply.types.iter().enumerate().map(of_type).collect::<Value>(),
        "fit_present": reply.fit_present,
        "fit_needed": reply.fit_needed,
        "unplaced": reply.unplaced.iter().map(unplaced_view).collect::<Value>(),
        "removals": reply.removals.iter().map(|one| removal_view(planned, one)).collect::<Value>(),
        "starts": starts.collect::<Value>(),
        "waiting": waiting.map(|of| json!({ "job": JobId(of.job).to_string(), "name": of.name })).collect::<Value>(),
        "partial": reply.is_partial,
        "left_out": reply.left_out,
        "measured_ends": reply.measured_ends,
        "fault": fault_view(reply.fault.as_ref()),
    })
}

/// Prints a plan for people.
pub(super) fn say(planned: &Planned) {
    let reply = &planned.reply;
    if let Some(fault) = &reply.fault {
        return line(format_args!("no plan: {fault}"));
    }
    print::table("type|present|launching|needed|launch:launch now|cancel", &view(planned)["types"]);
    line(format_args!(
        "{} tasks and bundles fit on what is there, {} on what is needed",
        reply.fit_present, reply.fit_needed
    ));
    for left in &reply.unplaced {
        let mut why = reason(left.reason).1.to_owned();
        if left.reason == UNFIT_CAP {
            why = format!("the cap of queue {} on {} forbids it", left.queue, left.resource);
        }
        line(format_args!("no node for {} of {}: {why}", left.count, asker(left)));
        if let Some(refusal) = &left.refusal {
            line(format_args!("{}", print::refusal_text(refusal).replace(" nodes:", " types:")));
        }
    }
    for one in &reply.removals {
        let name = given_text(&one.node_name).unwrap_or("?");
        let of_type = type_name(planned, one.of_type as usize);
        let idle = print::seconds(one.idle);
        line(format_args!("remove {name} ({of_type}): {}, idle for {idle} s", cause(one.cause)));
    }
    for start in &reply.starts {
        let after = print::seconds(start.after);
        let job = JobId(start.job);
        line(format_args!("after {after} s: {} tasks of job {job} ({}) start", start.tasks, start.name));
    }
    for of in &reply.waiting {
        line(format_args!("job {} ({}) does not start", JobId(of.job), of.name));
    }
    if reply.measured_ends > 0 {
        let count = reply.measured_ends;
        line(format_args!("ends expected as for others of the same queue, user and role: {count}"));
    }
    if reply.left_out > 0 {
        let count = reply.left_out;
        line(format_args!("{count} groups and placements that wait were not looked at: there are too many"));
    }
    if reply.is_partial {
        line(format_args!("something was left out, because the work and the size of a plan are bounded"));
    }
}
