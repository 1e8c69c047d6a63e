//! Jobs for which more is evicted than one statement holds: they get it in several cycles.

use super::*;
use crate::limits::STATEMENT_OPERATIONS_MAX;

/// The claims that one statement has room for, each with a victim.
const AT_ONCE: u32 = STATEMENT_OPERATIONS_MAX as u32 / 2;

/// A cluster that low tasks of one core fill.
fn full(actions: &[Action], tiers: &[&[PluginKind]], cores: u32) -> (Bed, QueueId) {
    let mut bed = Bed::new(actions, tiers, &[100; 43][..cores.div_ceil(100) as usize]);
    let queue = bed.queue("full", 1);
    let low = bed.job("low", queue, 1, cores, 1, 0);
    for task in 0..cores {
        bed.run(low, (task / 100) as usize);
    }
    (bed, queue)
}

/// Runs two cycles. A job gets room for `tasks` in them.
fn gets_room_in_turns(mut bed: Bed, job: JobId, tasks: u32) {
    for (cycle, room) in [AT_ONCE, tasks - AT_ONCE].into_iter().enumerate() {
        assert_eq!(bed.cycle().evicted.len(), room as usize, "cycle {cycle}");
        bed.advance(GRACE);
    }
    assert_eq!(bed.count(job, TaskState::Bound), tasks);
}

#[test]
fn a_large_job_preempts_in_turns() {
    let tasks = AT_ONCE + 52;
    let (mut bed, queue) = full(&[Action::Enqueue, Action::Preempt], &[&[PluginKind::Priority]], tasks);
    let high = bed.job("high", queue, 1, tasks, 1, 9);
    gets_room_in_turns(bed, high, tasks);
}

#[test]
fn a_large_job_reclaims_in_turns() {
    let tasks = AT_ONCE + 52;
    let tiers: &[&[PluginKind]] = &[&[PluginKind::Gang, PluginKind::Proportion]];
    let (mut bed, _) = full(&[Action::Enqueue, Action::Reclaim], tiers, 2 * tasks);
    let other = bed.queue("other", 1);
    let job = bed.job("takes", other, 1, tasks, 1, 0);
    gets_room_in_turns(bed, job, tasks);
}
