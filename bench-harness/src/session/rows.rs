//! The rows.

use std::sync::Arc;

use wharf_core::cycle::{Action, CycleConfig};
use wharf_core::jobs::{JobId, TaskId, TopologyRule, TopologyTier};
use wharf_core::node::Labels;

use super::{Bed, SessionError, SessionRow, Timed};

/// How often a change is made and followed, for the median.
const CHANGES: usize = 11;

/// Tasks that change at a time.
const CHANGED: u32 = 100;

/// A large cluster with much that runs and much that waits, all of which is placed; then small changes of it.
pub(super) fn whole(scale: u32) -> Result<Vec<SessionRow>, SessionError> {
    let nodes = 5_000_u32.div_ceil(scale);
    let pending = 10_000_u32.div_ceil(scale);
    let queues = 100_u32.div_ceil(scale);
    let mut bed = Bed::new(CycleConfig::default(), nodes, 64, queues)?;
    for number in 0..1_400_u32.div_ceil(scale) {
        bed.running_job(number as usize, 100, 1000, 0)?;
    }
    for number in 0..pending.div_ceil(10) {
        bed.job(number as usize, 10, 5, 1000, 0)?;
    }
    let timed = bed.cycle();
    expect("whole", &timed, pending.div_ceil(10) as usize * 10, 0)?;
    let mut rows = vec![bed.row("whole", pending, &timed)];
    bed.running += timed.changes.bound.len();
    let mut last = timed.changes.bound;
    let mut changes = Vec::new();
    for round in 0..CHANGES {
        for (task, _) in last.drain(..).take(CHANGED as usize) {
            bed.cluster.finish_task(task);
        }
        bed.job(round, CHANGED, CHANGED, 1000, 0)?;
        let timed = bed.cycle();
        expect("change", &timed, CHANGED as usize, 0)?;
        last.clone_from(&timed.changes.bound);
        changes.push(timed);
    }
    rows.push(median_row(&bed, "change", CHANGED, changes));
    Ok(rows)
}

/// Makes the row of the median of some cycles.
fn median_row(bed: &Bed, name: &'static str, pending: u32, mut timed: Vec<Timed>) -> SessionRow {
    timed.sort_by_key(|timed| timed.whole);
    bed.row(name, pending, &timed[timed.len() / 2])
}

/// Each time, another task of as many jobs ends. No node gets room for what waits.
fn after_ends(
    bed: &mut Bed,
    name: &'static str,
    pending: u32,
    running: &[JobId],
) -> Result<SessionRow, SessionError> {
    let mut changes = Vec::new();
    for index in 0..CHANGES as u32 {
        let ending = running.iter().cycle().step_by(7).take((CHANGED as usize).min(running.len()));
        ending.for_each(|&job| drop(bed.cluster.finish_task(TaskId { job, index })));
        let timed = bed.cycle();
        expect(name, &timed, 0, 0)?;
        changes.push(timed);
    }
    Ok(median_row(bed, name, pending, changes))
}

/// A full cluster, and much that waits and fits nowhere, not even if others were evicted; then the same after nothing changed,
/// and after some tasks ended.
pub(super) fn hard(scale: u32) -> Result<Vec<SessionRow>, SessionError> {
    let nodes = 50_000_u32.div_ceil(scale);
    let queues = 100_u32.div_ceil(scale);
    let mut bed = Bed::new(CycleConfig::default(), nodes, 20, queues)?;
    let jobs = nodes.div_ceil(50);
    let mut running = Vec::new();
    for number in 0..jobs {
        // What runs has the highest priority, except for one job in twenty.
        let priority = if number % 20 == 0 { 0 } else { 9 };
        running.push(bed.running_job(number as usize, 20 * nodes / jobs, 1000, priority)?);
    }
    let pending = 10_000_u32.div_ceil(scale);
    for number in 0..pending.div_ceil(100) {
        // Each job is a class of its own. A task needs more than the least valuable tasks of any node have.
        bed.job(number as usize, 100, 100, 15_000 + number, 5)?;
    }
    let timed = bed.cycle();
    expect("hard", &timed, 0, 0)?;
    let mut rows = vec![bed.row("hard", pending, &timed)];
    let timed = bed.cycle();
    expect("hard-again", &timed, 0, 0)?;
    rows.push(bed.row("hard-again", pending, &timed));
    rows.push(after_ends(&mut bed, "hard-change", pending, &running)?);
    Ok(rows)
}

/// A full cluster, and many equal gangs that fit nowhere, because all that runs is worth as much. Each gang is a job.
pub(super) fn hard_gangs(scale: u32) -> Result<SessionRow, SessionError> {
    let nodes = 200_u32.div_ceil(scale);
    let mut bed = Bed::new(CycleConfig::default(), nodes, 20, 2)?;
    for number in 0..nodes {
        bed.running_job(number as usize, 20, 1000, 0)?;
    }
    let gangs = 5_000_u32.div_ceil(scale);
    for number in 0..gangs {
        bed.job(number as usize, 2, 2, 1000, 0)?;
    }
    let timed = bed.cycle();
    expect("hard-gangs", &timed, 0, 0)?;
    let mut row = bed.row("hard-gangs", 2 * gangs, &timed);
    row.per_second = Some(f64::from(gangs) / row.seconds);
    Ok(row)
}

/// A full cluster, and much that waits and would fit if others went. No rule lets any of them go: half of the jobs have the same
/// priority, and the others are gangs of a lower one that need all their tasks. Then the same after some tasks ended.
pub(super) fn kept(scale: u32) -> Result<Vec<SessionRow>, SessionError> {
    let nodes = 50_000_u32.div_ceil(scale);
    let mut bed = Bed::new(CycleConfig::default(), nodes, 20, 1)?;
    let jobs = nodes.div_ceil(50);
    let size = 20 * nodes / jobs;
    let mut equal = Vec::new();
    for number in 0..jobs {
        if number % 2 == 0 {
            equal.push(bed.running_job(0, size, 1000, 5)?);
        } else {
            let gang = bed.job(0, size, size, 1000, 0)?;
            bed.run_tasks(gang, size)?;
        }
    }
    let pending = 10_000_u32.div_ceil(scale);
    for number in 0..pending.div_ceil(100) {
        // Each job is a class of its own.
        bed.job(0, 100, 100, 2_000 + number, 5)?;
    }
    let timed = bed.cycle();
    expect("kept", &timed, 0, 0)?;
    let mut rows = vec![bed.row("kept", pending, &timed)];
    let mut changes = Vec::new();
    for index in 0..CHANGES as u32 {
        // No node loses two tasks: one that waits would fit in their place. Some jobs begin on the same node.
        let place = |at: u32| (index * CHANGED + at) * size / ((CHANGES as u32 + 1) * CHANGED);
        for (at, &job) in (0..CHANGED).zip(&equal) {
            bed.cluster.finish_task(TaskId { job, index: place(at) });
        }
        let timed = bed.cycle();
        expect("kept-change", &timed, 0, 0)?;
        changes.push(timed);
    }
    rows.push(median_row(&bed, "kept-change", pending, changes));
    Ok(rows)
}

/// A full cluster in racks of 50 nodes and blocks of 4 racks, and jobs that must each be in one rack or block. None has the room,
/// not even if others were evicted. Then the same after some tasks ended.
pub(super) fn topology(scale: u32) -> Result<Vec<SessionRow>, SessionError> {
    let nodes = 50_000_u32.div_ceil(scale);
    let queues = 100_u32.div_ceil(scale);
    let rack = 50_u32.div_ceil(scale);
    let tiers = ["rack", "block"].map(|tier| TopologyTier::labelled(tier, tier)).to_vec();
    let config = CycleConfig { topology: tiers, ..CycleConfig::default() };
    let mut bed = Bed::with_labels(config, (nodes, 20), queues, |node| {
        let value = |nodes: u32| Arc::<str>::from((node / nodes).to_string());
        let labels = vec![("rack".into(), value(rack)), ("block".into(), value(4 * rack))];
        Labels::new(labels).expect("each label once")
    })?;
    let jobs = nodes.div_ceil(50);
    let mut running = Vec::new();
    for number in 0..jobs {
        let priority = if number % 20 == 0 { 0 } else { 9 };
        running.push(bed.running_job(number as usize, 20 * nodes / jobs, 1000, priority)?);
    }
    let mut pending = 0;
    for number in 0..100_u32.div_ceil(scale) {
        // One task fits on an empty node. Each job needs more nodes than there are in its domain.
        let (tier, tasks) = if number % 10 == 9 { ("block", 5 * rack) } else { ("rack", 2 * rack) };
        let cpu_milli = 11_000 + 100 * (number % 20);
        let rule = TopologyRule::hard(tier);
        bed.job_within(number as usize, (tasks, tasks), cpu_milli, 5, Some(rule))?;
        pending += tasks;
    }
    let timed = bed.cycle();
    expect("topology", &timed, 0, 0)?;
    let mut rows = vec![bed.row("topology", pending, &timed)];
    rows.push(after_ends(&mut bed, "topology-change", pending, &running)?);
    Ok(rows)
}

/// Gangs that are placed in one cycle.
pub(super) fn gangs(name: &'static str, size: u32, count: u32) -> Result<SessionRow, SessionError> {
    let tasks = size * count;
    let mut bed = Bed::new(CycleConfig::default(), tasks.div_ceil(32), 64, 10)?;
    for number in 0..count {
        bed.job(number as usize, size, size, 1000, 0)?;
    }
    let timed = bed.cycle();
    expect(name, &timed, tasks as usize, 0)?;
    let mut row = bed.row(name, tasks, &timed);
    row.per_second = Some(f64::from(count) / row.seconds);
    Ok(row)
}

/// Tasks of a high priority on a cluster that is full of tasks of a low one, in the same queue.
pub(super) fn preempt(scale: u32) -> Result<SessionRow, SessionError> {
    let tasks = 1_000_u32.div_ceil(scale);
    let nodes = 2_000_u32.div_ceil(scale);
    let config = CycleConfig { actions: vec![Action::Allocate, Action::Preempt], ..CycleConfig::default() };
    let mut bed = Bed::new(config, nodes, 20, 1)?;
    // Twenty tasks fill a node.
    for _ in 0..20 {
        bed.running_job(0, nodes, 1000, 0)?;
    }
    bed.job(0, tasks, tasks, 2000, 9)?;
    let timed = bed.cycle();
    expect("preempt-1000", &timed, tasks as usize, 2 * tasks as usize)?;
    let mut row = bed.row("preempt-1000", tasks, &timed);
    row.per_second = Some(f64::from(tasks) / row.seconds);
    Ok(row)
}

/// Tasks of a queue that has nothing, on a cluster that another queue fills.
pub(super) fn reclaim(scale: u32) -> Result<SessionRow, SessionError> {
    let tasks = 1_000_u32.div_ceil(scale);
    let nodes = 2_000_u32.div_ceil(scale);
    let config = CycleConfig { actions: vec![Action::Allocate, Action::Reclaim], ..CycleConfig::default() };
    let mut bed = Bed::new(config, nodes, 20, 2)?;
    // Twenty tasks fill a node.
    for _ in 0..20 {
        bed.running_job(0, nodes, 1000, 0)?;
    }
    bed.job(1, tasks, tasks, 2000, 0)?;
    let timed = bed.cycle();
    expect("reclaim-1000", &timed, tasks as usize, 2 * tasks as usize)?;
    let mut row = bed.row("reclaim-1000", tasks, &timed);
    row.per_second = Some(f64::from(tasks) / row.seconds);
    Ok(row)
}

/// Checks that a cycle did what the row is about, and that nobody was in its way.
fn expect(row: &'static str, timed: &Timed, placed: usize, evicted: usize) -> Result<(), SessionError> {
    let changes = &timed.changes;
    let mut tasks: Vec<TaskId> =
        changes.bound.iter().chain(&changes.pipelined).map(|&(task, _)| task).collect();
    tasks.sort_unstable();
    tasks.dedup();
    if tasks.len() == placed && changes.evicted.len() == evicted && changes.aborted == 0 {
        return Ok(());
    }
    let expected =
        format!("{placed} and {evicted} were expected, and {} statements were aborted", changes.aborted);
    Err(SessionError::Unexpected { row, placed: tasks.len(), evicted: changes.evicted.len(), expected })
}
