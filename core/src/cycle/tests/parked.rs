//! Classes of tasks that no node has room for are searched for again only if a change could help them. That no task of a
//! parked class would fit is checked wherever tests place (see `Cycle::place`).

use super::*;
use crate::jobs::JobPhase;

/// Nodes of four CPUs that are full of tasks of one, and two jobs that wait for a node with three: one class.
fn full() -> (Bed, JobId, [JobId; 2]) {
    let actions = [Action::Enqueue, Action::Allocate];
    let mut bed = Bed::new(&actions, &[&[PluginKind::Priority, PluginKind::Gang]], &[4; 10]);
    let queue = bed.queue("full", 1);
    let low = bed.job("low", queue, 1, 40, 1, 0);
    (0..40).for_each(|task| bed.run(low, task % 10));
    let large = ["a", "b"].map(|name| bed.job(name, queue, 1, 1, 3, 5));
    (bed, low, large)
}

/// Runs a cycle. Returns how often it searched for room, and how many tasks it bound.
fn searches(bed: &mut Bed) -> (u64, usize) {
    let before = bed.cluster.scheduler().parked.counts().1;
    let bound = bed.cycle().bound.len();
    (bed.cluster.scheduler().parked.counts().1 - before, bound)
}

fn finish(bed: &mut Bed, job: JobId, tasks: &[u32]) {
    for &index in tasks {
        bed.cluster.finish_task(TaskId { job, index });
    }
}

#[test]
fn a_class_is_searched_for_when_a_node_has_room_for_it() {
    let (mut bed, low, _) = full();
    assert_eq!(searches(&mut bed), (1, 0), "once for both jobs");
    assert_eq!(bed.cluster.scheduler().parked.counts().0, 1);
    // One more is free on each of three nodes, and then two on one of them.
    for ended in [&[0][..], &[1, 2], &[10]] {
        finish(&mut bed, low, ended);
        assert_eq!(searches(&mut bed), (0, 0), "no node has room for three");
    }
    finish(&mut bed, low, &[20]);
    // One of the jobs gets the node. The other finds none, and waits again.
    assert_eq!(searches(&mut bed), (2, 1));
    assert_eq!(bed.cluster.scheduler().parked.counts().0, 1);
    finish(&mut bed, low, &[3]);
    assert_eq!(searches(&mut bed), (0, 0));
}

#[test]
fn a_class_is_searched_for_when_a_node_comes() {
    let (mut bed, ..) = full();
    searches(&mut bed);
    bed.cluster.add_node(node(2)).unwrap();
    assert_eq!(searches(&mut bed), (0, 0), "it is too small");
    bed.cluster.add_node(node(6)).unwrap();
    assert_eq!(searches(&mut bed), (2, 2));
    assert_eq!(bed.cluster.scheduler().parked.counts().0, 0);
}

#[test]
fn a_class_is_searched_for_when_a_node_will_have_room() {
    let actions = [Action::Enqueue, Action::Allocate, Action::Preempt];
    let mut bed = Bed::new(&actions, &[&[PluginKind::Priority, PluginKind::Gang]], &[4]);
    let queue = bed.queue("full", 1);
    let low = bed.job("low", queue, 1, 4, 1, 0);
    (0..4).for_each(|_| bed.run(low, 0));
    // What has the lowest priority too may not evict the others.
    let waits = bed.job("waits", queue, 1, 1, 2, 0);
    assert_eq!(searches(&mut bed).1, 0);
    bed.job("high", queue, 1, 1, 1, 9);
    let evicted = bed.cycle().evicted;
    assert_eq!(evicted.len(), 1);
    // The one who evicted has a claim on all that is being released. The other still waits.
    assert_eq!(searches(&mut bed).1, 0);
    let others: Vec<u32> = (0..4).filter(|&index| index != evicted[0].index).take(2).collect();
    finish(&mut bed, low, &others);
    bed.advance(GRACE);
    bed.cycle();
    assert_eq!(bed.count(waits, TaskState::Bound), 1);
}

#[test]
fn what_no_task_asks_for_any_longer_is_forgotten() {
    let (mut bed, low, large) = full();
    searches(&mut bed);
    for job in large {
        let now = bed.cluster.now();
        let jobs = bed.cluster.scheduler_mut().jobs_mut();
        jobs.set_phase(job, JobPhase::Cancelled);
        jobs.end_job(job, 0, false, now);
        jobs.remove_job(job);
    }
    finish(&mut bed, low, &[0]);
    searches(&mut bed);
    assert_eq!(bed.cluster.scheduler().parked.counts().0, 0);
}
