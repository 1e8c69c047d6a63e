//! Compares what a step led to with what was expected of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::Location;
use wharf_core::cycle::{Changes, Starving};
use wharf_core::fairness::{Amounts, Dim};
use wharf_core::ids::NodeId;
use wharf_core::jobs::{JobId, QueueId, TaskId, TaskState};

use super::build::World;
use super::file::{Choice, ExpectFile, StarvingFile};
use super::plan::{self, Planned};
use super::{reason, reserved};
use crate::job_file::AmountsFile;
use crate::line_error::LineError;

/// What was looked at, and what differed.
#[derive(Default)]
pub(super) struct Found {
    pub(super) checks: usize,
    pub(super) differences: Vec<String>,
}

impl Found {
    pub(super) fn check(&mut self, is_expected: bool, difference: impl FnOnce() -> String) {
        self.checks += 1;
        if !is_expected {
            self.differences.push(difference());
        }
    }
}

pub(super) fn differences(
    world: &mut World,
    expected: &ExpectFile,
    changes: &Changes,
    planned: Option<&Planned>,
) -> Result<Found, LineError> {
    let mut found = Found::default();
    let placed = [
        ("bound", &expected.bound, expected.bound_count, &expected.bound_of, &changes.bound),
        (
            "pipelined",
            &expected.pipelined,
            expected.pipelined_count,
            &expected.pipelined_of,
            &changes.pipelined,
        ),
    ];
    for (what, tasks, count, of_jobs, actual) in placed {
        if let Some(tasks) = tasks {
            check_nodes(world, what, tasks, actual, &mut found)?;
        }
        let tasks: Vec<TaskId> = actual.iter().map(|&(task, _)| task).collect();
        check_counts(world, what, count, of_jobs, &tasks, &mut found)?;
    }
    if let Some(evicted) = &expected.evicted {
        let actual: BTreeSet<&str> = changes.evicted.iter().map(|&task| world.task_name(task)).collect();
        let wanted: BTreeSet<&str> = evicted.iter().map(String::as_str).collect();
        found
            .check(actual == wanted, || format!("{} evicted, {} expected", listed(&actual), listed(&wanted)));
    }
    check_counts(
        world,
        "evicted",
        expected.evicted_count,
        &expected.evicted_of,
        &changes.evicted,
        &mut found,
    )?;
    check_states(world, expected, &mut found)?;
    reserved::check(world, expected, &mut found)?;
    check_shares(world, expected, &mut found)?;
    check_job_shares(world, expected, &mut found)?;
    check_starving(world, expected, &mut found)?;
    check_users(world, expected, &mut found)?;
    reason::check(world, expected, &mut found)?;
    reason::check_domains(world, expected, &mut found)?;
    plan::check(world, expected, planned, &mut found)?;
    Ok(found)
}

/// Compares the tasks that got nodes, each with the nodes that would do.
fn check_nodes(
    world: &World,
    what: &str,
    expected: &BTreeMap<String, Choice>,
    actual: &[(TaskId, NodeId)],
    found: &mut Found,
) -> Result<(), LineError> {
    for name in expected.keys() {
        world.task_named(name, Location::UNKNOWN)?;
    }
    let actual: BTreeMap<&str, &str> =
        actual.iter().map(|&(task, node)| (world.task_name(task), world.node_name(node))).collect();
    let fits = |(name, node): (&&str, &&str)| {
        expected.get(*name).is_some_and(|choice| choice.0.iter().any(|one| one == *node))
    };
    let is_expected = actual.len() == expected.len() && actual.iter().all(fits);
    found.check(is_expected, || {
        let shown = |pairs: Vec<String>| if pairs.is_empty() { "none".to_owned() } else { pairs.join(", ") };
        let is = shown(actual.iter().map(|(task, node)| format!("{task} on {node}")).collect());
        let wanted =
            expected.iter().map(|(task, choice)| format!("{task} on {}", choice.0.join(" or "))).collect();
        format!("{what}: {is}; expected: {}", shown(wanted))
    });
    Ok(())
}

/// Compares how many tasks there are, in all and of single jobs.
fn check_counts(
    world: &World,
    what: &str,
    count: Option<usize>,
    of_jobs: &BTreeMap<String, usize>,
    tasks: &[TaskId],
    found: &mut Found,
) -> Result<(), LineError> {
    if let Some(count) = count {
        found.check(tasks.len() == count, || format!("{} {what}, {count} expected", tasks.len()));
    }
    for (job, &count) in of_jobs {
        let id = world.job_named(job)?;
        let actual = tasks.iter().filter(|task| task.job == id).count();
        found.check(actual == count, || format!("{actual} of job {job} {what}, {count} expected"));
    }
    Ok(())
}

fn check_states(world: &World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    let jobs = world.cluster.scheduler().jobs();
    for (name, state) in &expected.states {
        let task = world.task_named(name, Location::UNKNOWN)?;
        if TaskState::ALL.iter().all(|known| known.name() != state) {
            let known = TaskState::ALL.map(TaskState::name).join(", ");
            let message = format!("there is no state `{state}`: name one of {known}");
            return Err(LineError::at(Location::UNKNOWN, message));
        }
        let actual = jobs.task(task).state.name();
        found.check(actual == state, || format!("{name} is {actual}, {state} expected"));
    }
    let placed = |job: JobId| {
        let job = jobs.job(job);
        job.ready_tasks() - job.count(TaskState::Succeeded)
    };
    for (name, &count) in &expected.placed {
        let actual = placed(world.job_named(name)?);
        found.check(actual == count, || format!("{actual} of job {name} are placed, {count} expected"));
    }
    for (name, phase) in &expected.jobs {
        let actual = jobs.job(world.job_named(name)?).phase().name();
        found.check(actual == phase, || format!("job {name} is {actual}, {phase} expected"));
    }
    for (name, &count) in &expected.restarts {
        let actual = jobs.job(world.job_named(name)?).restarts();
        found.check(actual == count, || format!("job {name} has {actual} restarts, {count} expected"));
    }
    Ok(())
}

fn check_shares(world: &mut World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    type Kind = (&'static str, fn(&World, QueueId, Dim) -> i64);
    let kinds: [(Kind, &BTreeMap<String, AmountsFile>); 5] = [
        (("deserves", deserved), &expected.deserved),
        (("uses", used), &expected.used),
        (("has held", held), &expected.past),
        (("has the fair share", |world, queue, dim| fair(world, queue, dim, true)), &expected.fair_share),
        (
            ("has the steady fair share", |world, queue, dim| fair(world, queue, dim, false)),
            &expected.steady_fair_share,
        ),
    ];
    for ((what, actual), queues) in kinds {
        for (name, amounts) in queues {
            let queue = world.queue_named(name, Location::UNKNOWN)?;
            let amounts = world.expected(amounts)?;
            let there = amounts.iter().map(|&(dim, _)| (dim, actual(world, queue, dim))).collect();
            check_amounts(world, &format!("queue {name} {what}"), &amounts, &there, found);
        }
    }
    Ok(())
}

/// Compares the kinds that are named.
fn check_amounts(world: &World, what: &str, wanted: &[(Dim, i64)], there: &Amounts, found: &mut Found) {
    // A division by weights leaves less than one part of 1/10,000 per queue.
    let is = |&(dim, wanted): &(Dim, i64)| (there.get(dim) - wanted).abs() <= ROUNDING;
    let there: Amounts = wanted.iter().map(|&(dim, _)| (dim, there.get(dim))).collect();
    let is_expected = wanted.iter().all(is);
    let wanted: Amounts = wanted.iter().copied().collect();
    found.check(is_expected, || format!("{what} {}, {} expected", world.shown(&there), world.shown(&wanted)));
}

fn check_job_shares(world: &mut World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    for (name, amounts) in &expected.job_fair_share {
        let job = world.job_named(name)?;
        let amounts = world.expected(amounts)?;
        let there = world.cluster.scheduler().job_fair_share(job);
        check_amounts(world, &format!("job {name} has the fair share"), &amounts, &there, found);
    }
    Ok(())
}

/// Compares the jobs that starved in the last cycle, with how much and why.
fn check_starving(world: &mut World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    let starving: BTreeMap<JobId, Starving> =
        world.cluster.scheduler().starving().iter().map(|one| (one.job, one.clone())).collect();
    if let Some(jobs) = &expected.starving {
        let mut wanted = BTreeSet::new();
        for (name, amounts) in jobs {
            let job = world.job_named(name)?;
            wanted.insert(name.as_str());
            let amounts = world.expected(amounts)?;
            if let Some(one) = starving.get(&job) {
                let lacks = one.fair_share.plus(&one.guarantee);
                check_amounts(world, &format!("job {name} starves for"), &amounts, &lacks, found);
            }
        }
        let jobs = world.cluster.scheduler().jobs();
        let actual: BTreeSet<&str> = starving.keys().map(|&job| &*jobs.job(job).spec().name).collect();
        let difference = || format!("{} starve, {} expected", listed(&actual), listed(&wanted));
        found.check(actual == wanted, difference);
    }
    for (name, &rule) in &expected.starving_by {
        let actual = starving.get(&world.job_named(name)?).map(rule_of);
        found.check(actual == Some(rule), || {
            let actual = actual.map_or("nothing", shown);
            format!("job {name} starves by {actual}, {} expected", shown(rule))
        });
    }
    Ok(())
}

fn rule_of(starving: &Starving) -> StarvingFile {
    match (starving.fair_share.is_zero(), starving.guarantee.is_zero()) {
        (false, false) => StarvingFile::Both,
        (false, true) => StarvingFile::FairShare,
        (true, _) => StarvingFile::Guarantee,
    }
}

fn shown(rule: StarvingFile) -> &'static str {
    match rule {
        StarvingFile::FairShare => "fair-share",
        StarvingFile::Guarantee => "guarantee",
        StarvingFile::Both => "both",
    }
}

/// The name under which a scenario expects something of jobs that name no user.
const NO_USER: &str = "-";

/// The largest difference of shares that is rounding, in 1/10,000 of a unit.
const ROUNDING: i64 = 10;

fn deserved(world: &World, queue: QueueId, dim: Dim) -> i64 {
    world.cluster.scheduler().deserved(queue).map_or(0, |amounts| amounts.get(dim))
}

fn used(world: &World, queue: QueueId, dim: Dim) -> i64 {
    world.cluster.scheduler().jobs().queue(queue).usage().planned().get(dim)
}

/// Returns what a queue has held on average.
fn held(world: &World, queue: QueueId, dim: Dim) -> i64 {
    world.cluster.scheduler().jobs().past_use(queue, world.cluster.now()).get(dim)
}

/// Compares what users have held on average.
fn check_users(world: &mut World, expected: &ExpectFile, found: &mut Found) -> Result<(), LineError> {
    for (queue, users) in &expected.past_of_users {
        let id = world.queue_named(queue, Location::UNKNOWN)?;
        for (user, amounts) in users {
            let amounts = world.expected(amounts)?;
            let name = if user == NO_USER { "" } else { user };
            let view = world.cluster.scheduler().jobs().user(id, name, world.cluster.now());
            let there = view.map(|view| view.past).unwrap_or_default();
            check_amounts(world, &format!("user {user} of queue {queue} has held"), &amounts, &there, found);
        }
    }
    Ok(())
}

fn fair(world: &World, queue: QueueId, dim: Dim, active: bool) -> i64 {
    world.cluster.scheduler().fair_shares(dim, active)[queue.0 as usize]
}

fn listed(names: &BTreeSet<&str>) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().copied().collect::<Vec<_>>().join(", ") }
}
