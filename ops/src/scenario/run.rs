//! Runs the steps of a scenario.

use serde_saphyr::Location;
use wharf_core::cycle::{Changes, Evictions};
use wharf_core::demand::IdleClock;
use wharf_core::jobs::{TaskId, TaskState};

use super::build::World;
use super::file::{ScenarioFile, StepFile};
use super::{LineError, expect, plan};
use crate::job_file::{Name, TIME_MAX_NS};

/// The largest number of cycles of a step.
const CYCLES_MAX: u32 = 10_000;

/// How a scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What differed from what was expected, with the step. Empty: all was as expected.
    pub differences: Vec<String>,
    /// The number of things that were expected and looked at.
    pub checks: usize,
    /// The number of tasks that were evicted.
    pub evictions: usize,
}

pub(super) fn run(file: &ScenarioFile) -> Result<Outcome, LineError> {
    let mut world = World::new(file)?;
    let mut outcome = Outcome { differences: Vec::new(), checks: 0, evictions: 0 };
    let mut clock = IdleClock::default();
    let mut evictions = Evictions::default();
    look(&mut world, &mut clock);
    for (number, step) in (1..).zip(&file.steps) {
        let changes = run_step(&mut world, step, &mut evictions)?;
        outcome.evictions += changes.evicted.len();
        check_books(&world, number)?;
        look(&mut world, &mut clock);
        let planned = match &step.plan {
            None => None,
            Some(ask) => {
                let Some(types) = &file.autoscaling else {
                    let message = "there are no node types to plan with: give `autoscaling`";
                    return Err(LineError::at(ask.referenced, message));
                };
                let planned = plan::run(&mut world, &types.value, &ask.value, &clock);
                Some(planned.map_err(|error| error.in_block(ask.referenced))?)
            }
        };
        if let Some(expected) = &step.expect {
            let found = expect::differences(&mut world, &expected.value, &changes, planned.as_ref())
                .map_err(|error| error.in_block(expected.referenced))?;
            outcome.checks += found.checks;
            outcome.differences.extend(found.differences.iter().map(|what| format!("step {number}: {what}")));
        }
    }
    outcome.differences.extend(wasted(&world, evictions));
    if outcome.checks == 0 {
        let message = "the scenario expects nothing: give a step `expect`".to_owned();
        return Err(LineError { line: 0, message });
    }
    Ok(outcome)
}

/// Returns what is to be said about evictions that were wasted.
fn wasted(world: &World, mut evictions: Evictions) -> Option<String> {
    evictions.close(world.cluster.scheduler().jobs());
    let names: Vec<&str> = evictions.wasted().iter().map(|&task| world.task_name(task)).collect();
    let what = "evicted for tasks that were not placed after all";
    (!names.is_empty()).then(|| format!("wasted evictions: {what}: {}", names.join(", ")))
}

/// Notes which nodes are idle now.
fn look(world: &mut World, clock: &mut IdleClock) {
    let view = world.cluster.view();
    clock.look([&*view].into_iter(), world.cluster.now());
}

/// Does what a step says. Returns what changed.
fn run_step(world: &mut World, step: &StepFile, evictions: &mut Evictions) -> Result<Changes, LineError> {
    let mut all = Changes::default();
    if let Some(objects) = &step.add {
        world.add(&objects.nodes, &objects.queues, &objects.jobs)?;
    }
    for name in step.finish.iter().flatten() {
        let task = running(world, name, "end")?;
        merge(&mut all, world.cluster.finish_task(task));
    }
    if step.exit_code.is_some() && step.fail.is_none() {
        let message = "`exit_code` is that of failed tasks: give `fail` too, or leave it out";
        return Err(LineError::at(Location::UNKNOWN, message));
    }
    for name in step.fail.iter().flatten() {
        let task = running(world, name, "end")?;
        merge(&mut all, world.cluster.fail_task(task, step.exit_code));
    }
    for name in step.evict.iter().flatten() {
        let task = running(world, name, "be evicted")?;
        world.cluster.evict(task, world.cluster.scheduler().config().grace_ns);
        all.evicted.push(task);
        // Without a grace period, it has ended.
        merge(&mut all, world.cluster.advance(0));
    }
    if let Some(time) = step.advance {
        if world.cluster.now().plus_nanos(time.0).0 > TIME_MAX_NS {
            let message = "the scenario takes more than 100,000 hours: give shorter times";
            return Err(LineError::at(Location::UNKNOWN, message));
        }
        merge(&mut all, world.cluster.advance(time.0));
    }
    // Before a cycle, which may give a task that has lost its claim another node.
    evictions.follow(world.cluster.scheduler().jobs());
    let cycles = step.cycle.unwrap_or(0);
    if cycles > CYCLES_MAX {
        let message = format!("a step runs {cycles} cycles: give at most {CYCLES_MAX}");
        return Err(LineError::at(Location::UNKNOWN, message));
    }
    for _ in 0..cycles {
        let (report, changes) = world.cluster.cycle();
        evictions.note(world.cluster.scheduler().jobs(), &report.plans);
        merge(&mut all, changes);
    }
    Ok(all)
}

/// Returns a task that runs, or is being released.
fn running(world: &World, name: &Name, what: &str) -> Result<TaskId, LineError> {
    let task = world.task_named(&name.value, name.referenced)?;
    let of = world.cluster.scheduler().jobs().task(task);
    let releases = of.state == TaskState::Releasing && what == "end";
    if of.allocation.is_none() || !(of.state.holds() || releases) {
        let state = of.state.name();
        let message =
            format!("task `{}` is {state} and cannot {what}: only a task that runs can", name.value);
        return Err(LineError::at(name.referenced, message));
    }
    Ok(task)
}

fn merge(all: &mut Changes, changes: Changes) {
    all.bound.extend(changes.bound);
    all.pipelined.extend(changes.pipelined);
    all.evicted.extend(changes.evicted);
    all.aborted += changes.aborted;
}

/// Checks the books of the shard and of the jobs after a step. A fault in them is not the scenario's.
fn check_books(world: &World, step: usize) -> Result<(), LineError> {
    let shard = world.cluster.shard().check_invariants();
    let jobs = world.cluster.scheduler().jobs().check();
    shard.and(jobs).map_err(|broken| {
        LineError::at(Location::UNKNOWN, format!("after step {step}, the books are wrong: {broken}"))
    })
}
