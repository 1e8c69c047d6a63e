//! Jobs that ask for the same are decided together, and as if each was looked at alone.

use super::*;

const TIERS: &[&[PluginKind]] = &[&[PluginKind::Priority, PluginKind::Gang, PluginKind::Proportion]];

/// What a cycle looks at does not grow with the number of equal jobs for which there is no room, whether their first task
/// would fit or not.
#[test]
fn equal_jobs_without_room_cost_one_look() {
    for (cpu, action) in [(3, Action::Preempt), (9, Action::Preempt), (3, Action::Reclaim)] {
        let looked_at = [1, 100].map(|waiting| {
            let mut bed = Bed::new(&[Action::Enqueue, Action::Allocate, action], TIERS, &[4, 4]);
            let queues = [bed.queue("q", 1), bed.queue("other", 1)];
            let low = bed.job("low", queues[0], 7, 8, 1, 0);
            for task in 0..8 {
                bed.run(low, task / 4);
            }
            for number in 0..waiting {
                let queue = queues[usize::from(action == Action::Reclaim)];
                bed.job(&format!("waits{number}"), queue, 2, 2, cpu, 5);
            }
            let (report, changes) = bed.cluster.cycle();
            assert_eq!(changes, Changes::default(), "one of eight may go");
            report.victim_nodes
        });
        assert!(looked_at[0] > 0 || cpu == 9, "no node was looked at");
        assert_eq!(looked_at[0], looked_at[1]);
    }
}

/// A plan for another job may leave room for one that had none.
#[test]
fn equal_jobs_are_tried_again_once_a_plan_was_made() {
    let actions = [Action::Enqueue, Action::Allocate, Action::Preempt];
    let mut bed = Bed::new(&actions, &[&[PluginKind::Gang]], &[4]);
    let queue = bed.queue("q", 1);
    let large = bed.job("large", queue, 0, 1, 4, 7);
    bed.run(large, 0);
    // Without a rule for the order of jobs, the first one is tried first.
    let jobs = [("first", 5), ("high", 9), ("second", 5)]
        .map(|(name, priority)| bed.job(name, queue, 1, 1, 2, priority));
    let changes = bed.cycle();
    assert_eq!((changes.evicted.len(), changes.pipelined.len()), (1, 2));
    assert_eq!(jobs.map(|job| bed.count(job, TaskState::Pipelined)), [0, 1, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Jobs of different numbers of roles are never equal, although roles that need nothing change no decision. So they
    /// show what would be decided if each job was looked at alone.
    #[test]
    fn equal_jobs_are_decided_as_if_each_was_alone(
        nodes in prop::collection::vec(2..9_u32, 1..4),
        running in prop::collection::vec((0..2_usize, 1..4_u32, 0..3_i32), 4..16),
        waiting in prop::collection::vec((0..2_usize, 1..3_u32, 1..3_u32, 1..4_u32, 0..4_i32), 1..5),
        copies in 2..6_usize,
        rules in 0..4_usize,
    ) {
        use PluginKind::{Drf, Gang, Priority, Proportion};
        let tiers: [&[&[PluginKind]]; 4] = [
            &[&[Priority, Gang, Proportion], &[Drf]],
            &[&[Gang], &[Drf, Proportion]],
            &[&[Drf, Gang, Proportion]],
            &[&[Gang, Proportion]],
        ];
        let decided = [false, true].map(|alone| {
            let mut bed = Bed::new(&Action::DEFAULT, tiers[rules], &nodes);
            let queues = [bed.queue("a", 1), bed.queue("b", 2)];
            for (number, &(queue, cpu, priority)) in running.iter().enumerate() {
                let job = bed.job(&format!("r{number}"), queues[queue], 1, 1, cpu, priority);
                let task = TaskId { job, index: 0 };
                let fits = |node: &NodeId| bed.cluster.run_on(task, *node, TaskState::Running).is_ok();
                let _ = bed.nodes.clone().iter().any(fits);
            }
            for copy in 0..copies {
                for (number, &(queue, min_member, more, cpu, priority)) in waiting.iter().enumerate() {
                    bed.roles = if alone { 1 + copy * waiting.len() + number } else { 1 };
                    let name = format!("w{number}.{copy}");
                    bed.job(&name, queues[queue], min_member, min_member + more - 1, cpu, priority);
                }
            }
            let cycles: Vec<Changes> = (0..4).map(|_| {
                let changes = bed.cycle();
                bed.advance(GRACE);
                changes
            }).collect();
            cycles
        });
        prop_assert_eq!(&decided[0], &decided[1]);
    }
}
