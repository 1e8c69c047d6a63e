//! Output of queues, jobs and tasks: text for people, JSON for programs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wharf_core::ids::AllocationId;
use wharf_core::jobs::{JobId, JobPhase, TaskId, TaskState};
use wharf_net::convert::{job_phase, task_state};
use wharf_net::protocol::{
    AmountsBody, JobStatusReply, JobSummaryBody, NamedAmount, ORDERING_DRF, ORDERING_FAIR, ORDERING_FIFO,
    QueueStatusBody, QueueUsageBody, TaskBody, TaskCountBody, UserBody,
};

use super::print::{self, fault_view, given, given_text, say, table};

pub(super) fn phase_name(number: u8) -> &'static str {
    job_phase("", number).map_or("unknown", JobPhase::name)
}

pub(super) fn state_name(number: u8) -> &'static str {
    // A newer service may have states that this program does not know.
    task_state("", number).map_or("other", TaskState::name)
}

fn ordering_name(number: u8) -> &'static str {
    match number {
        ORDERING_DRF => "drf",
        ORDERING_FIFO => "fifo",
        ORDERING_FAIR => "fair",
        _ => "other",
    }
}

/// Orders queues so that each comes after the one that contains it, and otherwise by name.
pub(super) fn parents_first(queues: Vec<QueueStatusBody>) -> Vec<QueueStatusBody> {
    let names: BTreeSet<String> = queues.iter().map(|status| status.queue.name.clone()).collect();
    let mut below: BTreeMap<String, Vec<QueueStatusBody>> = BTreeMap::new();
    for status in queues {
        // A tenant may not see what contains its queue.
        let parent = &status.queue.parent;
        let parent = if names.contains(parent) { parent.clone() } else { String::new() };
        below.entry(parent).or_default().push(status);
    }
    let mut sorted = Vec::with_capacity(names.len());
    let mut next: Vec<QueueStatusBody> = below.remove("").unwrap_or_default();
    next.sort_unstable_by(|a, b| b.queue.name.cmp(&a.queue.name));
    while let Some(status) = next.pop() {
        let mut inside = below.remove(&status.queue.name).unwrap_or_default();
        inside.sort_unstable_by(|a, b| b.queue.name.cmp(&a.queue.name));
        next.extend(inside);
        sorted.push(status);
    }
    // A page that was read while queues changed may show a circle.
    sorted.extend(below.into_values().flatten());
    sorted
}

fn amounts_view(body: &AmountsBody) -> Value {
    json!(print::amounts(&body.amounts))
}

/// Returns a queue of a list in JSON.
pub(super) fn queue_view(status: &QueueStatusBody) -> Value {
    let queue = &status.queue;
    let usage = &status.usage;
    let debt = debt(status);
    json!({
        "queue": queue.name,
        "parent": given_text(&queue.parent),
        "tenant": queue.tenant,
        "weight": queue.weight,
        "priority": queue.priority,
        "guarantee": amounts_view(&queue.guarantee),
        "deserved": queue.deserved.as_ref().map(amounts_view),
        "capability": amounts_view(&queue.capability),
        "allocations_max": queue.allocations_max,
        "reclaimable": queue.reclaimable,
        "open": queue.open,
        "ordering": ordering_name(queue.ordering),
        // A part of 1, and times in seconds.
        "starves_below": queue.starves_below.map(|part| print::units(i64::from(part))),
        "fair_share_patience": queue.fair_share_patience.map(print::seconds),
        "guarantee_patience": queue.guarantee_patience.map(print::seconds),
        "min_run_time": queue.min_run_time.map(print::seconds),
        "usage_half_life": queue.usage_half_life.map(print::seconds),
        "held": print::amounts(&usage.held),
        "pipelined": print::amounts(&usage.pipelined),
        "releasing": print::amounts(&usage.releasing),
        "pending": print::amounts(&usage.pending),
        // What was held on average, with the half-life.
        "past": print::amounts(&status.past),
        "users": status.users.iter().map(user_view).collect::<Value>(),
        "more_users": status.more_users,
        // By the rules, as of the last cycle.
        "share": status.has_deserved.then(|| print::amounts(&status.deserved)),
        // What the queue has beyond that.
        "debt": status.has_deserved.then(|| print::amounts(&debt)),
        "jobs": status.jobs,
        "waiting": status.waiting,
        // Placements that name the queue, and all allocations of it and of the queues below it.
        "direct": status.direct,
        "allocations": status.allocations,
    })
}

fn user_view(user: &UserBody) -> Value {
    json!({
        "user": given_text(&user.name),
        "planned": print::amounts(&user.planned),
        "past": print::amounts(&user.past),
    })
}

/// Returns what a queue has in use beyond what it deserves: what its tasks hold, and what evicted ones hold in their grace
/// periods. Nothing if no rule says what it deserves.
fn debt(status: &QueueStatusBody) -> Vec<NamedAmount> {
    if !status.has_deserved {
        return Vec::new();
    }
    let of = |amounts: &[NamedAmount], name: &str| {
        amounts.iter().find(|named| named.name == name).map_or(0, |named| named.amount)
    };
    let QueueUsageBody { held, releasing, .. } = &status.usage;
    let only_releasing = releasing.iter().filter(|named| of(held, &named.name) == 0);
    let owed = |named: &NamedAmount| {
        let in_use = of(held, &named.name).saturating_add(of(releasing, &named.name));
        let amount = in_use.saturating_sub(of(&status.deserved, &named.name));
        (amount > 0).then(|| NamedAmount { name: named.name.clone(), amount })
    };
    held.iter().chain(only_releasing).filter_map(owed).collect()
}

pub(super) fn amounts_text(amounts: &[NamedAmount]) -> String {
    let texts = amounts.iter().map(|named| format!("{} {}", named.name, print::units(named.amount)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Prints a list of queues for people.
pub(super) fn say_queues(queues: &[QueueStatusBody]) {
    let row = |status: &QueueStatusBody| {
        json!({
            "queue": status.queue.name,
            "parent": status.queue.parent,
            "open": if status.queue.open { "open" } else { "closed" },
            "weight": status.queue.weight,
            "priority": status.queue.priority,
            "jobs": status.jobs,
            "waiting": status.waiting,
            "direct": status.direct,
            "held": amounts_text(&status.usage.held),
            "releasing": amounts_text(&status.usage.releasing),
            "share": amounts_text(&status.deserved),
            "debt": amounts_text(&debt(status)),
            "pending": amounts_text(&status.usage.pending),
            "past": amounts_text(&status.past),
        })
    };
    table(
        "queue|parent|open:STATE|weight|priority|jobs|waiting|direct|held:USES|releasing:GIVES BACK|past:HAS USED|share:DESERVES|debt:OWES|pending:ASKS FOR",
        &queues.iter().map(row).collect(),
    );
}

fn counts_view(counts: &[TaskCountBody]) -> Value {
    counts.iter().map(|count| (state_name(count.state).to_owned(), Value::from(count.count))).collect()
}

/// Returns a job of a list in JSON.
pub(super) fn summary_view(job: &JobSummaryBody) -> Value {
    json!({
        "job": JobId(job.id).to_string(),
        "name": job.name,
        "queue": job.queue,
        "tenant": job.tenant,
        "user": given_text(&job.user),
        "phase": phase_name(job.phase),
        "priority": job.priority,
        "priority_class": given_text(&job.priority_class),
        "min_member": job.min_member,
        "restarts": job.restarts,
        "counts": counts_view(&job.counts),
        // In seconds of service time.
        "created": print::seconds(job.created),
    })
}

fn task_view(job: u64, task: &TaskBody) -> Value {
    json!({
        "task": TaskId { job: JobId(job), index: task.index }.to_string(),
        "role": task.role,
        "state": state_name(task.state),
        "node": given_text(&task.node_name),
        "node_id": given(task.node),
        "allocation": task.allocation.map(|id| AllocationId::from(id).to_string()),
        // The labels of its tiers, the widest first.
        "domain": given_text(&task.domain),
        // In seconds of service time.
        "since": print::seconds(task.since),
    })
}

/// Returns a job with its tasks in JSON.
pub(super) fn status_view(reply: &JobStatusReply) -> Value {
    let mut view = match &reply.job {
        Some(job) => {
            let mut view = summary_view(job);
            view["tasks"] = reply.tasks.iter().map(|task| task_view(job.id, task)).collect();
            view
        }
        None => json!({}),
    };
    view["reason"] = reply.reason.to_string().into();
    view["fault"] = fault_view(reply.fault.as_ref());
    view
}

/// Formats the tasks of a job: `4 running, 2 pending`.
pub(super) fn counts_text(counts: &[TaskCountBody]) -> String {
    let texts = counts.iter().map(|count| format!("{} {}", count.count, state_name(count.state)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Formats a priority with the class that a job was submitted with: `100 (high)`.
fn priority_text(job: &JobSummaryBody) -> String {
    match given_text(&job.priority_class) {
        Some(class) => format!("{} ({class})", job.priority),
        None => job.priority.to_string(),
    }
}

/// Prints a job for people.
pub(super) fn say_job(job: &JobSummaryBody) {
    say(format_args!(
        "job {}: {} in queue {}, {}: {} (at least {}), priority {}",
        JobId(job.id),
        job.name,
        job.queue,
        phase_name(job.phase),
        counts_text(&job.counts),
        job.min_member,
        priority_text(job),
    ));
}

/// Prints a job with its tasks for people.
pub(super) fn say_status(reply: &JobStatusReply) {
    let Some(job) = &reply.job else {
        return print::say_not_done(reply.reason, reply.fault.as_ref());
    };
    say_job(job);
    let row = |task: &TaskBody| {
        let mut row = task_view(job.id, task);
        row["since"] = format!("second {}", print::seconds(task.since)).into();
        row
    };
    let has_domains = reply.tasks.iter().any(|task| !task.domain.is_empty());
    let domain = if has_domains { "|domain" } else { "" };
    let columns = format!("task|role|state|node{domain}|allocation|since");
    table(&columns, &reply.tasks.iter().map(row).collect());
}

/// Prints a list of jobs for people.
pub(super) fn say_summaries(jobs: &[JobSummaryBody]) {
    let row = |job: &JobSummaryBody| {
        let mut row = summary_view(job);
        row["counts"] = counts_text(&job.counts).into();
        row["priority"] = priority_text(job).into();
        row
    };
    table("job|name|queue|phase|counts:TASKS|min_member:AT LEAST|priority", &jobs.iter().map(row).collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_net::protocol::QueueBody;

    fn queue(name: &str, parent: &str) -> QueueStatusBody {
        let queue = QueueBody { name: name.to_owned(), parent: parent.to_owned(), ..QueueBody::default() };
        QueueStatusBody { queue, ..QueueStatusBody::default() }
    }

    #[test]
    fn a_queue_comes_after_the_one_that_contains_it() {
        let queues =
            vec![queue("a", "z"), queue("b", ""), queue("c", "a"), queue("d", "hidden"), queue("z", "")];
        let sorted = parents_first(queues);
        let names: Vec<_> = sorted.iter().map(|status| &*status.queue.name).collect();
        assert_eq!(names, ["b", "d", "z", "a", "c"]);
        let circle = parents_first(vec![queue("a", "b"), queue("b", "a")]);
        assert_eq!(circle.len(), 2);
    }

    #[test]
    fn a_queue_owes_what_it_has_in_use_beyond_what_it_deserves() {
        let amounts = |amounts: &[(&str, i64)]| {
            let named = |&(name, amount): &(&str, i64)| NamedAmount { name: name.to_owned(), amount };
            amounts.iter().map(named).collect::<Vec<_>>()
        };
        let usage = QueueUsageBody {
            held: amounts(&[("cpu", 50_000), ("memory", 10_000)]),
            releasing: amounts(&[("cpu", 10_000), ("gpu", 20_000)]),
            ..QueueUsageBody::default()
        };
        let deserved = amounts(&[("cpu", 40_000), ("memory", 10_000)]);
        let mut status = QueueStatusBody { usage, has_deserved: true, deserved, ..queue("q", "") };
        assert_eq!(debt(&status), amounts(&[("cpu", 20_000), ("gpu", 20_000)]));
        status.has_deserved = false;
        assert_eq!(debt(&status), []);
    }
}
