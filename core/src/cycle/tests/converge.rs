//! Soft shares: when queues begin to ask, what cycles plan is within two of them as it should be.

use super::*;
use crate::fairness::Dim;

/// Returns the cores that a queue has or has claimed, and those that it deserves, in 1/10,000.
fn planned_and_deserved(bed: &Bed, queue: QueueId) -> (i64, i64) {
    let planned = bed.jobs().queue(queue).usage().planned().get(Dim::CPU);
    let deserved = bed.cluster.scheduler().deserved(queue).expect("proportion says what it deserves");
    (planned, deserved.get(Dim::CPU))
}

proptest! {
    #[test]
    fn planned_books_are_fair_within_two_cycles(
        weights in prop::collection::vec(1_u32..5, 2..5),
        nodes in prop::collection::vec(4_u32..10, 4..10),
    ) {
        let actions = [Action::Enqueue, Action::Allocate, Action::Reclaim];
        let mut bed = Bed::new(&actions, &[&[PluginKind::Gang, PluginKind::Proportion]], &nodes);
        let queues: Vec<QueueId> =
            weights.iter().enumerate().map(|(at, &weight)| bed.queue(&format!("q{at}"), weight)).collect();
        let cores: u32 = nodes.iter().sum();
        // The first queue has everything before the others ask for as much.
        let first = bed.job("first", queues[0], 1, cores, 1, 0);
        for (node, &cpu) in nodes.iter().enumerate() {
            (0..cpu).for_each(|_| bed.run(first, node));
        }
        for (at, &queue) in queues.iter().enumerate().skip(1) {
            bed.job(&format!("j{at}"), queue, 1, cores, 1, 0);
        }
        bed.cycle();
        bed.cycle();
        for &queue in &queues[1..] {
            let (planned, deserved) = planned_and_deserved(&bed, queue);
            // A task is whole, so up to one core of what is deserved is left.
            prop_assert!(planned <= deserved && deserved - planned < Amount::SCALE, "{planned} of {deserved}");
        }
        // What was given up is free after the grace time, and nothing moves any more.
        bed.advance(GRACE);
        let before: Vec<_> = queues.iter().map(|&queue| planned_and_deserved(&bed, queue)).collect();
        let changes = bed.cycle();
        prop_assert!(changes.evicted.is_empty(), "{changes:?}");
        let after: Vec<_> = queues.iter().map(|&queue| planned_and_deserved(&bed, queue)).collect();
        prop_assert_eq!(before, after);
    }
}
