//! Nodes with tasks that may go: a cycle looks again only at those that changed. That the table is as if it had looked at all is
//! checked wherever tests evict (see `check_spots`).

use super::*;

const NODES: usize = 200;

/// A cluster full of tasks that may go, and a job that is too large for any node.
fn full() -> (Bed, JobId) {
    let actions = [Action::Enqueue, Action::Allocate, Action::Preempt, Action::Reclaim];
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang], &[PluginKind::Proportion]];
    let mut bed = Bed::new(&actions, tiers, &[2; NODES]);
    let queue = bed.queue("full", 1);
    let low = bed.job("low", queue, 1, 2 * NODES as u32, 1, 0);
    (0..2 * NODES).for_each(|task| bed.run(low, task % NODES));
    bed.job("large", queue, 1, 1, 3, 9);
    (bed, low)
}

fn looked_at(bed: &mut Bed) -> u64 {
    let before = bed.cluster.scheduler().spots.looked_at();
    let changes = bed.cycle();
    assert!(changes.evicted.is_empty() && changes.bound.is_empty(), "{changes:?}");
    bed.cluster.scheduler().spots.looked_at() - before
}

#[test]
fn what_waits_looks_again_only_at_nodes_that_changed() {
    let (mut bed, low) = full();
    assert_eq!(looked_at(&mut bed), NODES as u64, "all nodes, once for both actions");
    assert_eq!(looked_at(&mut bed), 0, "nothing has changed");
    for index in [0, 7, 7 + NODES as u32] {
        bed.cluster.finish_task(TaskId { job: low, index });
    }
    assert_eq!(looked_at(&mut bed), 2, "two nodes have changed");
    // A queue from which others may not reclaim concerns all nodes.
    let queue = bed.jobs().queue_named("full").unwrap();
    let spec = QueueSpec { reclaimable: false, ..bed.jobs().queue(queue).spec().clone() };
    let now = bed.cluster.now();
    bed.cluster.scheduler_mut().jobs_mut().update_queue(queue, spec, now).unwrap();
    assert!(looked_at(&mut bed) >= NODES as u64 - 2);
}

#[test]
fn a_task_that_has_not_run_for_long_enough_is_found_when_it_has() {
    let mut config = Bed::config(&[Action::Enqueue, Action::Preempt], &[&[PluginKind::Priority]]);
    config.min_run_time_ns = 60_000_000_000;
    let mut bed = Bed::with(config, &[1; NODES]);
    let queue = bed.queue("full", 1);
    let old = bed.job("old", queue, 1, NODES as u32 - 1, 1, 9);
    (0..NODES - 1).for_each(|node| bed.run(old, node));
    bed.advance(10_000_000_000);
    let low = bed.job("low", queue, 1, 1, 1, 0);
    bed.run(low, NODES - 1);
    bed.job("high", queue, 1, 1, 1, 5);
    bed.advance(10_000_000_000);
    assert!(bed.cycle().evicted.is_empty(), "it has run for 10 s");
    bed.advance(50_000_000_000);
    let evicted: Vec<TaskId> = bed.cycle().evicted;
    assert_eq!(evicted, [TaskId { job: low, index: 0 }]);
}
