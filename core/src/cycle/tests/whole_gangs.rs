//! Gangs that are evicted as a whole, or keep what they need.

use super::*;

fn bed(whole_gangs: bool, nodes: &[u32]) -> Bed {
    let plugin = |kind| plugin(kind, whole_gangs);
    let config = CycleConfig {
        actions: vec![Action::Enqueue, Action::Allocate, Action::Preempt],
        tiers: vec![[PluginKind::Priority, PluginKind::Gang].map(plugin).to_vec()],
        grace_ns: GRACE,
        ..CycleConfig::default()
    };
    Bed::with(config, nodes)
}

/// Runs a gang of four with a core each on two nodes of two cores, and has a job of a higher priority wait for one core.
fn changes(whole_gangs: bool, min_member: u32) -> (Bed, JobId, Changes) {
    let mut bed = bed(whole_gangs, &[2, 2]);
    let queue = bed.queue("q", 1);
    let gang = bed.job("gang", queue, min_member, 4, 1, 1);
    for task in 0..4 {
        bed.run(gang, task / 2);
    }
    bed.job("high", queue, 1, 1, 1, 9);
    let changes = bed.cycle();
    (bed, gang, changes)
}

#[test]
fn a_gang_that_needs_all_it_has_goes_as_a_whole_or_stays() {
    let (bed, gang, stays) = changes(false, 4);
    assert_eq!((stays, bed.count(gang, TaskState::Running)), (Changes::default(), 4));
    let (mut bed, gang, goes) = changes(true, 4);
    assert_eq!((goes.evicted.len(), goes.pipelined.len()), (4, 1), "also on the other node");
    bed.advance(GRACE);
    assert_eq!(bed.count(gang, TaskState::Pending), 4);
    assert_eq!(bed.cycle(), Changes::default(), "three cores are left, and it needs four");
}

#[test]
fn what_a_gang_does_not_need_goes_first() {
    let (bed, gang, changes) = changes(true, 3);
    assert_eq!((changes.evicted.len(), bed.count(gang, TaskState::Running)), (1, 3));
}

#[test]
fn a_gang_with_a_task_that_may_not_go_stays() {
    let mut bed = bed(true, &[2, 2]);
    let queue = bed.queue("q", 1);
    let gang = bed.job("gang", queue, 4, 4, 1, 1);
    (0..3).for_each(|task| bed.run(gang, task / 2));
    bed.job("high", queue, 1, 1, 2, 9);
    assert_eq!(bed.cycle().bound, [(TaskId { job: gang, index: 3 }, bed.nodes[1])], "it is whole again");
    // A task that is bound goes, too. One that has not run for long enough does not.
    let mut config = bed.cluster.scheduler().config().clone();
    config.min_run_time_ns = GRACE;
    let mut young = Bed::with(config, &[2, 2]);
    let queue = young.queue("q", 1);
    let gang = young.job("gang", queue, 4, 4, 1, 1);
    (0..4).for_each(|task| young.run(gang, task / 2));
    young.job("high", queue, 1, 1, 2, 9);
    assert_eq!(young.cycle(), Changes::default());
    young.advance(GRACE);
    assert_eq!(young.cycle().evicted.len(), 4);
}

#[test]
fn of_several_gangs_no_more_go_than_must() {
    let mut bed = bed(true, &[4]);
    let queue = bed.queue("q", 1);
    let gangs = [1, 2].map(|number| bed.job(&format!("gang{number}"), queue, 2, 2, 1, number));
    for gang in gangs {
        (0..2).for_each(|_| bed.run(gang, 0));
    }
    bed.job("high", queue, 1, 1, 2, 9);
    let changes = bed.cycle();
    assert_eq!(changes.evicted.len(), 2);
    assert_eq!(gangs.map(|gang| bed.count(gang, TaskState::Running)), [0, 2], "the one of less value goes");
}
