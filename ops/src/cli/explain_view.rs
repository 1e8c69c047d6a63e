//! Output of explanations: text for people, JSON for programs.

use serde_json::{Value, json};
use wharf_core::jobs::{JobId, PendingReason, QueueRule, TaskId};
use wharf_net::convert::{pending_reason, queue_rule};
use wharf_net::protocol::{
    CHANGE_CAPACITY, CHANGE_FREE_IN_DOMAIN, CHANGE_FREE_ON_NODE, CHANGE_LARGER_NODES,
    CHANGE_LARGER_NODES_IN_DOMAIN, CHANGE_MORE_NODES, CHANGE_MORE_NODES_IN_DOMAIN, CHANGE_RAISE_CAP,
    CHANGE_RELEASE, CHANGE_RUN_TIME, ChangeBody, DomainLackBody, ExplainJobReply, HOLDER_GROUP, HolderBody,
    NO_VICTIMS_PREEMPT, NO_VICTIMS_RECLAIM, NO_VICTIMS_STARVE, NodeRoomBody, QueueBoundBody,
    RULE_ALLOCATIONS, RefusalBody,
};

use super::job_view::{amounts_text, say_job, state_name, summary_view};
use super::print::{self, fault_view, given, given_text, say};

fn reason_name(number: u8) -> &'static str {
    // A newer service may have reasons that this program does not know.
    pending_reason("", number).map_or("other", PendingReason::name)
}

fn rule_name(number: u8) -> &'static str {
    queue_rule("", number).map_or("other", QueueRule::name)
}

fn change_name(number: u8) -> &'static str {
    match number {
        CHANGE_FREE_ON_NODE => "free_on_node",
        CHANGE_MORE_NODES => "more_nodes",
        CHANGE_LARGER_NODES => "larger_nodes",
        CHANGE_RAISE_CAP => "raise_cap",
        CHANGE_RELEASE => "release",
        CHANGE_CAPACITY => "capacity",
        CHANGE_RUN_TIME => "run_time",
        CHANGE_MORE_NODES_IN_DOMAIN => "more_nodes_in_domain",
        CHANGE_LARGER_NODES_IN_DOMAIN => "larger_nodes_in_domain",
        CHANGE_FREE_IN_DOMAIN => "free_in_domain",
        _ => "other",
    }
}

/// The actions that found nobody to evict.
fn no_victims(bits: u8) -> Vec<&'static str> {
    let actions =
        [("preempt", NO_VICTIMS_PREEMPT), ("reclaim", NO_VICTIMS_RECLAIM), ("starve", NO_VICTIMS_STARVE)];
    actions.into_iter().filter(|&(_, bit)| bits & bit != 0).map(|(name, _)| name).collect()
}

fn job_name(number: u64) -> Option<String> {
    given(number).map(|job| JobId(job).to_string())
}

/// Returns an amount of what a rule bounds.
fn shown(rule: u8, amount: i64) -> String {
    if rule == RULE_ALLOCATIONS { amount.to_string() } else { print::units(amount) }
}

fn holders_view(holders: &[HolderBody], rule: u8) -> Value {
    let view = |of: &HolderBody| {
        let is_group = of.job == HOLDER_GROUP;
        let job = if is_group { None } else { job_name(of.job) };
        let group = is_group.then_some(&of.name);
        json!({ "name": of.name, "job": job, "group": group, "amount": shown(rule, of.amount) })
    };
    holders.iter().map(view).collect()
}

fn bound_view(bound: &QueueBoundBody) -> Value {
    json!({
        "queue": given_text(&bound.queue),
        "rule": rule_name(bound.rule),
        "resource": bound.resource,
        "bound": shown(bound.rule, bound.bound),
        "used": shown(bound.rule, bound.used),
        "asked": shown(bound.rule, bound.asked),
        "holders": holders_view(&bound.holders, bound.rule),
    })
}

/// Returns whether a change is about the domain that the explanation names.
fn is_in_domain(change: &ChangeBody) -> bool {
    let in_domain = [CHANGE_MORE_NODES_IN_DOMAIN, CHANGE_LARGER_NODES_IN_DOMAIN, CHANGE_FREE_IN_DOMAIN];
    in_domain.contains(&change.change)
}

/// Returns a change in JSON. `lack` names the domain that it may be about.
pub(super) fn change_view(change: &ChangeBody, lack: Option<&DomainLackBody>) -> Value {
    let domain = lack.filter(|_| is_in_domain(change)).and_then(|lack| given_text(&lack.best));
    json!({
        "change": change_name(change.change),
        "instead": change.instead,
        "queue": given_text(&change.queue),
        "node": given_text(&change.node_name),
        "node_id": given(change.node),
        "count": given(change.count),
        "amounts": print::amounts(&change.amounts),
        "domain": domain,
        // In seconds.
        "run_time": given(change.run_time).map(print::seconds),
        "text": change_text(change, lack),
    })
}

fn domain_view(lack: &DomainLackBody) -> Value {
    json!({
        "tier": lack.tier,
        "best": given_text(&lack.best),
        "holds": lack.holds,
        "needed": lack.needed,
        "missing": lack.missing,
        "text": domain_text(lack),
    })
}

fn domain_text(lack: &DomainLackBody) -> String {
    let DomainLackBody { tier, best, holds, needed, missing } = lack;
    if *missing {
        return format!(
            "the settings have no tier {tier} any longer: add it to `jobs.topology`, or submit the job without it"
        );
    }
    let tasks = if *needed == 1 { "the task".to_owned() } else { format!("all {needed} tasks") };
    let best = match given_text(best) {
        Some(best) => format!("the best, {best}, has room for {holds}"),
        None => format!("the best has room for {holds}"),
    };
    format!("no {tier} has room for {tasks}: {best}")
}

/// Returns an explanation in JSON.
pub(super) fn view(reply: &ExplainJobReply) -> Value {
    let mut view = reply.job.as_ref().map_or_else(|| json!({}), summary_view);
    let task = |index| TaskId { job: JobId(reply.job.as_ref().map_or(0, |job| job.id)), index }.to_string();
    let parts = json!({
        "task": reply.task.map(task),
        "state": given(u64::from(reply.state)).map(|_| state_name(reply.state)),
        "pending": reason_name(reply.pending),
        "cause": Some(reply.cause).filter(|&cause| cause > 0).map(reason_name),
        // Times in seconds of service time.
        "tried": reply.tried.map(print::seconds),
        "fit": reply.fit,
        "needed": reply.needed,
        "no_victims": no_victims(reply.no_victims),
        "before": reply.before,
        "waiting": reply.waiting,
        "claimed": reply.claimed,
        "capped": reply.capped,
        "date": reply.date.map(print::seconds),
        "held_until": reply.held_until.map(print::seconds),
        "held_by": job_name(reply.held_by),
        "reserved": reply.reserved,
        "nodes": reply.nodes.as_ref().map(|nodes| nodes.nodes),
        "examined": reply.nodes.as_ref().map(|nodes| nodes.examined),
        "checks": print::checks_view(reply.nodes.as_ref()),
        "fits": reply.room.fits,
        "places": reply.room.places,
        "fragmented": reply.room.fragmented,
        "free": print::amounts(&reply.room.free),
        "scarce": given_text(&reply.scarce),
        "scarce_holders": holders_view(&reply.scarce_holders, 0),
        "bounds": reply.bounds.iter().map(bound_view).collect::<Value>(),
        "changes": reply.changes.iter().map(|of| change_view(of, reply.domain.as_ref())).collect::<Value>(),
        "domain": reply.domain.as_ref().map(domain_view),
        "reason": reply.reason.to_string(),
        "fault": fault_view(reply.fault.as_ref()),
    });
    for (name, value) in parts.as_object().into_iter().flatten() {
        view[name] = value.clone();
    }
    view
}

fn reason_text(reason: u8) -> &'static str {
    use PendingReason as Why;
    match pending_reason("", reason) {
        Ok(Why::None) => "does not wait for anything",
        Ok(Why::NotTried) => "no cycle has tried it yet",
        Ok(Why::NotAdmitted) => "its queue has not admitted the job",
        Ok(Why::TooFewTasks) => "too many of its tasks have ended for it to have as many as it needs",
        Ok(Why::Overused) => "its queue has all that it deserves",
        Ok(Why::Share) => "its queue may have no more by the rules",
        Ok(Why::Cap) => "the cap of a queue is in the way",
        Ok(Why::NoNode) => "no node has room for it",
        Ok(Why::Gang) => "fewer tasks of the job fit than it needs at once",
        Ok(Why::Reservation) => "it would delay a job with a dated reservation",
        Ok(Why::Claim) => "it has a claim on capacity that is being released",
        Ok(Why::Conflict) => {
            "what was planned for it was not possible any longer: the next cycle tries again"
        }
        Ok(Why::Topology) => "no domain of the topology has room for the tasks that must be in one",
        Err(_) => "for a reason that this program does not know",
    }
}

/// Returns where a change helps that is about a domain.
fn where_text(lack: Option<&DomainLackBody>) -> String {
    match lack {
        Some(lack) if !lack.best.is_empty() => format!("in {}", lack.best),
        Some(lack) => format!("in one {}", lack.tier),
        None => "in one domain".to_owned(),
    }
}

fn change_text(change: &ChangeBody, lack: Option<&DomainLackBody>) -> String {
    let amounts = amounts_text(&change.amounts);
    let node = given_text(&change.node_name);
    let queue =
        given_text(&change.queue).map_or_else(|| "a queue".to_owned(), |name| format!("queue {name}"));
    let nodes = if change.count == 1 { "node" } else { "nodes" };
    let count = change.count;
    let inside = if is_in_domain(change) { format!(" {}", where_text(lack)) } else { String::new() };
    match change.change {
        CHANGE_FREE_ON_NODE => {
            let node = node.map_or_else(|| "a node".to_owned(), |name| format!("node {name}"));
            let from =
                if change.queue.is_empty() { String::new() } else { format!(", from tasks of {queue}") };
            format!("{amounts} more free on {node}{from}")
        }
        CHANGE_MORE_NODES | CHANGE_MORE_NODES_IN_DOMAIN => {
            let like = node.map_or_else(|| "the largest".to_owned(), str::to_owned);
            format!("{count} more {nodes} like {like}{inside}")
        }
        CHANGE_LARGER_NODES | CHANGE_LARGER_NODES_IN_DOMAIN => {
            format!("{count} {nodes} for it with at least {amounts} each{inside}")
        }
        CHANGE_FREE_IN_DOMAIN => {
            let tasks = if count == 1 { "task" } else { "tasks" };
            let each =
                if change.amounts.is_empty() { String::new() } else { format!(" with {amounts} each") };
            format!("room for {count} more {tasks}{each}{inside}, left by others")
        }
        CHANGE_RAISE_CAP if change.amounts.is_empty() => {
            format!("`allocations_max` of {queue} raised by {}", change.count)
        }
        CHANGE_RELEASE if change.amounts.is_empty() => {
            let what = if change.count == 1 { "allocation" } else { "allocations" };
            format!("{} {what} given back by others in {queue}", change.count)
        }
        CHANGE_RAISE_CAP => format!("capability of {queue} raised by {amounts}"),
        CHANGE_RELEASE => format!("{amounts} given back by tasks of {queue}"),
        CHANGE_CAPACITY => format!("{amounts} more in the cluster"),
        CHANGE_RUN_TIME => format!("a stated run time of at most {} s", print::seconds(change.run_time)),
        _ => "a change that this program does not know".to_owned(),
    }
}

fn holders_text(holders: &[HolderBody], rule: u8) -> String {
    let text = |holder: &HolderBody| {
        let who = match job_name(holder.job) {
            _ if holder.job == HOLDER_GROUP => format!("group {}", holder.name),
            Some(job) => format!("job {job} ({})", holder.name),
            None => format!("queue {}", holder.name),
        };
        format!("{who} {}", shown(rule, holder.amount))
    };
    holders.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn bound_text(bound: &QueueBoundBody) -> String {
    let queue = given_text(&bound.queue).map_or_else(|| "a queue".to_owned(), |name| format!("queue {name}"));
    let rule = match queue_rule("", bound.rule) {
        Ok(QueueRule::Capability) => "may use at most",
        Ok(QueueRule::Guarantees) => "may use what others leave:",
        Ok(QueueRule::Deserved) => "deserves",
        Ok(QueueRule::Overcommit) => "admits jobs for",
        Ok(QueueRule::Allocations) => "may have at most",
        Err(_) => "has",
    };
    let [most, used, asked] = [bound.bound, bound.used, bound.asked].map(|of| shown(bound.rule, of));
    let of = &bound.resource;
    let note = if bound.rule == RULE_ALLOCATIONS { " (`allocations_max`)" } else { "" };
    format!("{queue} {rule} {most} {of}{note}: {used} are in use, {asked} are asked for")
}

/// Prints an explanation for people.
pub(super) fn say_reply(reply: &ExplainJobReply, of_task: bool) {
    let Some(job) = &reply.job else {
        return print::say_not_done(reply.reason, reply.fault.as_ref());
    };
    say_job(job);
    let task = reply.task.map(|index| TaskId { job: JobId(job.id), index });
    let subject = match task {
        Some(task) if of_task => format!("task {task}"),
        _ => format!("job {}", JobId(job.id)),
    };
    say(format_args!("{subject}: {} ({})", reason_text(reply.pending), reason_name(reply.pending)));
    if reply.pending == 0 {
        return;
    }
    say_gang(reply, task);
    if let Some(lack) = &reply.domain {
        say(format_args!("{}", domain_text(lack)));
    }
    if reply.waiting > 0 {
        say(format_args!(
            "{} of {} waiting jobs of queue {} are served before it",
            reply.before, reply.waiting, job.queue
        ));
    }
    say_dates(reply);
    for bound in &reply.bounds {
        say(format_args!("{}", bound_text(bound)));
        if !bound.holders.is_empty() {
            say(format_args!("  most of it: {}", holders_text(&bound.holders, bound.rule)));
        }
    }
    say_nodes(reply, task);
    let victims = no_victims(reply.no_victims);
    if !victims.is_empty() {
        say(format_args!("nobody may be evicted for it by {}", victims.join(" or ")));
    }
    say_changes(&reply.changes, reply.domain.as_ref());
}

fn say_gang(reply: &ExplainJobReply, task: Option<TaskId>) {
    if reply.needed > 1 {
        say(format_args!("{} of the {} tasks that it needs have a place or fit", reply.fit, reply.needed));
    }
    if let (true, Some(task)) = (reply.cause > 0, task) {
        say(format_args!("task {task}: {}", reason_text(reply.cause)));
    }
    if reply.claimed > 0 {
        say(format_args!("{} of its tasks have claims on what is being released", reply.claimed));
    }
    if reply.capped > 0 {
        say(format_args!("{} of its tasks wait until the cap of their queue allows them", reply.capped));
    }
}

fn say_dates(reply: &ExplainJobReply) {
    if let Some(date) = reply.date {
        say(format_args!("all that it needs will fit at second {}", print::seconds(date)));
    }
    if let Some(date) = reply.held_until {
        let job =
            job_name(reply.held_by).map_or_else(|| "another job".to_owned(), |job| format!("job {job}"));
        say(format_args!(
            "{job} has a reservation from second {} on ({} in all)",
            print::seconds(date),
            reply.reserved
        ));
    }
}

fn say_nodes(reply: &ExplainJobReply, task: Option<TaskId>) {
    let (Some(nodes), Some(task)) = (&reply.nodes, task) else { return };
    say_counts(nodes, &reply.room, &format!("task {task}"), "tasks");
    if !reply.scarce_holders.is_empty() {
        say(format_args!("most {}: {}", reply.scarce, holders_text(&reply.scarce_holders, 0)));
    }
}

/// Prints the counts over nodes for something that waits.
pub(super) fn say_counts(nodes: &RefusalBody, room: &NodeRoomBody, subject: &str, such: &str) {
    say(format_args!("nodes for {subject}: {} have room now, for {} such {such}", room.fits, room.places));
    if !nodes.checks.is_empty() {
        say(format_args!("{}", print::refusal_text(nodes)));
    }
    if room.fragmented > 0 {
        let fragmented = room.fragmented;
        say(format_args!(
            "  {fragmented:>8}  have enough GPU in total, but not in one device or in whole devices"
        ));
    }
    if !room.free.is_empty() {
        say(format_args!("free on all nodes that suit it: {}", amounts_text(&room.free)));
    }
}

/// Prints what would help. `lack` names the domain that changes may be about.
pub(super) fn say_changes(changes: &[ChangeBody], lack: Option<&DomainLackBody>) {
    if changes.is_empty() {
        return;
    }
    say(format_args!("this would help:"));
    for change in changes {
        let or = if change.instead { "or " } else { "" };
        say(format_args!("  {or}{}", change_text(change, lack)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_net::protocol::NamedAmount;

    fn change(change: u8) -> ChangeBody {
        ChangeBody {
            change,
            queue: "a".to_owned(),
            node: 3,
            node_name: "n3".to_owned(),
            count: 1,
            amounts: vec![NamedAmount { name: "cpu".to_owned(), amount: 20_000 }],
            run_time: 90_000_000_000,
            ..ChangeBody::default()
        }
    }

    #[test]
    fn changes_are_said_in_words() {
        let text = |change: &ChangeBody| change_text(change, None);
        let texts = (1..=7).map(|number| text(&change(number))).collect::<Vec<_>>();
        assert_eq!(
            texts,
            [
                "cpu 2 more free on node n3, from tasks of queue a",
                "1 more node like n3",
                "1 node for it with at least cpu 2 each",
                "capability of queue a raised by cpu 2",
                "cpu 2 given back by tasks of queue a",
                "cpu 2 more in the cluster",
                "a stated run time of at most 90.0 s",
            ]
        );
        let allocations = |number| text(&ChangeBody { amounts: Vec::new(), ..change(number) });
        assert_eq!(allocations(CHANGE_RAISE_CAP), "`allocations_max` of queue a raised by 1");
        assert_eq!(allocations(CHANGE_RELEASE), "1 allocation given back by others in queue a");
        let hidden = ChangeBody { node: 0, node_name: String::new(), count: 2, ..change(CHANGE_MORE_NODES) };
        assert_eq!(text(&hidden), "2 more nodes like the largest");
    }

    #[test]
    fn changes_in_domains_are_said_with_the_domain() {
        let lack = DomainLackBody {
            tier: "rack".to_owned(),
            best: "z1/r3".to_owned(),
            holds: 5,
            needed: 8,
            missing: false,
        };
        let texts = (8..=10).map(|number| change_text(&change(number), Some(&lack))).collect::<Vec<_>>();
        assert_eq!(
            texts,
            [
                "1 more node like n3 in z1/r3",
                "1 node for it with at least cpu 2 each in z1/r3",
                "room for 1 more task with cpu 2 each in z1/r3, left by others",
            ]
        );
        assert_eq!(change_view(&change(8), Some(&lack))["domain"], "z1/r3");
        assert_eq!(change_view(&change(2), Some(&lack))["domain"], Value::Null);
        let hidden = DomainLackBody { best: String::new(), ..lack };
        let unnamed = ChangeBody { node: 0, node_name: String::new(), count: 2, ..change(8) };
        assert_eq!(change_text(&unnamed, Some(&hidden)), "2 more nodes like the largest in one rack");
        let nothing = ChangeBody { count: 3, amounts: Vec::new(), ..change(10) };
        assert_eq!(change_text(&nothing, None), "room for 3 more tasks in one domain, left by others");
        for number in 1..=10 {
            assert_ne!(change_name(number), "other");
        }
    }

    #[test]
    fn what_domains_lack_is_said_in_words() {
        let lack = DomainLackBody {
            tier: "rack".to_owned(),
            best: "z1/r3".to_owned(),
            holds: 5,
            needed: 8,
            missing: false,
        };
        assert_eq!(domain_text(&lack), "no rack has room for all 8 tasks: the best, z1/r3, has room for 5");
        let hidden = DomainLackBody { best: String::new(), holds: 0, needed: 1, ..lack };
        assert_eq!(domain_text(&hidden), "no rack has room for the task: the best has room for 0");
        let missing = DomainLackBody { missing: true, ..hidden };
        assert!(
            domain_text(&missing).starts_with("the settings have no tier rack any longer"),
            "{missing:?}"
        );
    }

    #[test]
    fn every_reason_and_rule_has_a_name_and_a_text() {
        for (number, reason) in (0..).zip(PendingReason::ALL) {
            assert_eq!(reason_name(number), reason.name());
            assert!(!reason_text(number).contains("does not know"), "{reason:?}");
        }
        assert_eq!((reason_name(200), rule_name(200), change_name(200)), ("other", "other", "other"));
        assert!(reason_text(200).contains("does not know"));
    }
}
