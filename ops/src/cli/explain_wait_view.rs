//! Output of explanations of placements and groups that wait: text for people, JSON for programs.

use serde_json::{Value, json};
use wharf_core::group::WaitsFor;
use wharf_core::ids::{GroupId, SessionId};
use wharf_net::convert::waits_for;
use wharf_net::protocol::{ExplainJobReply, ExplainWaitReply, ExplainWaitRequest};

use super::explain_view::{self, change_view, say_changes, say_counts};
use super::group_view;
use super::print::{self, fault_view, given_text, say};

fn waits_for_name(number: u8) -> &'static str {
    // A newer service may have more that this program does not know.
    waits_for("", number).map_or("other", WaitsFor::name)
}

/// Returns the id of what waits, as the command takes it.
fn id_text(request: &ExplainWaitRequest) -> String {
    match (request.group, request.session) {
        (Some(group), _) => GroupId::from(group).to_string(),
        (None, Some(session)) => wait_id(session.into(), request.sequence),
        (None, None) => String::new(),
    }
}

/// Returns the id of a placement that waits.
pub(super) fn wait_id(session: SessionId, sequence: u64) -> String {
    format!("{session}/{sequence}")
}

/// Returns an explanation in JSON. `of_job` is that of the job as which a placement waits in its queue.
pub(super) fn view(
    request: &ExplainWaitRequest,
    reply: &ExplainWaitReply,
    of_job: Option<&ExplainJobReply>,
) -> Value {
    json!({
        "id": id_text(request),
        "group": reply.group.as_ref().map(group_view::summary_view),
        "job": of_job.map(explain_view::view),
        "bundle": reply.bundle,
        "waits_for": waits_for_name(reply.waits_for),
        "priority": reply.priority,
        // Times in seconds of service time.
        "since": print::seconds(reply.since),
        "until": reply.until.map(print::seconds),
        "fit": reply.fit,
        "needed": reply.needed,
        "found": given_text(&reply.found),
        "before": reply.before,
        "waiting": reply.waiting,
        "nodes": reply.nodes.as_ref().map(|nodes| nodes.nodes),
        "examined": reply.nodes.as_ref().map(|nodes| nodes.examined),
        "checks": print::checks_view(reply.nodes.as_ref()),
        "fits": reply.room.fits,
        "places": reply.room.places,
        "fragmented": reply.room.fragmented,
        "free": print::amounts(&reply.room.free),
        "changes": reply.changes.iter().map(|of| change_view(of, None)).collect::<Value>(),
        "reason": reply.reason.to_string(),
        "fault": fault_view(reply.fault.as_ref()),
    })
}

fn waits_for_text(number: u8) -> &'static str {
    match waits_for("", number) {
        Ok(WaitsFor::Nothing) => "does not wait for anything",
        Ok(WaitsFor::Node) => "no node has room for it",
        Ok(WaitsFor::Bundles) => "fewer of its bundles have room than it needs at once",
        Ok(WaitsFor::Together) => {
            "its bundles have room one by one, but not together as its strategy or its rule wants"
        }
        Ok(WaitsFor::Turn) => "there is room for it: it is tried in its turn",
        Ok(WaitsFor::Queue) => "it waits in its queue",
        Ok(WaitsFor::Ticket) => "it waits for a ticket, because others took what came free",
        Err(_) => "for a reason that this program does not know",
    }
}

/// Prints an explanation for people. `of_job` is that of the job as which a placement waits in its queue.
pub(super) fn say_reply(
    request: &ExplainWaitRequest,
    reply: &ExplainWaitReply,
    of_job: Option<&ExplainJobReply>,
) {
    if !reply.reason.is_done() {
        return print::say_not_done(reply.reason, reply.fault.as_ref());
    }
    let id = id_text(request);
    let what = if reply.group.is_some() { "group" } else { "placement" };
    let name = waits_for_name(reply.waits_for);
    say(format_args!("{what} {id}: {} ({name})", waits_for_text(reply.waits_for)));
    if waits_for("", reply.waits_for) == Ok(WaitsFor::Nothing) {
        return;
    }
    if reply.group.is_some() {
        say(format_args!("{} of the {} bundles that it needs have a place or fit", reply.fit, reply.needed));
    }
    if let Some(found) = given_text(&reply.found) {
        say(format_args!("when it was tried last: {found}"));
    }
    let until = reply.until.map(|until| format!(", until second {}", print::seconds(until)));
    let since = format!(
        "waits since second {}{}, priority {}",
        print::seconds(reply.since),
        until.unwrap_or_default(),
        reply.priority
    );
    if let Some(of_job) = of_job {
        say(format_args!("{since}"));
        return explain_view::say_reply(of_job, false);
    }
    say(format_args!("{since}: {} of {} that wait come before it", reply.before, reply.waiting));
    let subject = match reply.bundle {
        Some(bundle) => format!("bundle {id}/{bundle}"),
        None => format!("placement {id}"),
    };
    if let Some(nodes) = &reply.nodes {
        let such = if reply.bundle.is_some() { "bundles" } else { "placements" };
        say_counts(nodes, &reply.room, &subject, such);
    }
    say_changes(&reply.changes, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_be_waited_for_has_a_name_and_a_text() {
        for (number, waited) in (0..).zip(WaitsFor::ALL) {
            assert_eq!(waits_for_name(number), waited.name());
            assert!(!waits_for_text(number).contains("does not know"), "{waited:?}");
        }
        assert!(waits_for_name(200) == "other" && waits_for_text(200).contains("does not know"));
    }
}
