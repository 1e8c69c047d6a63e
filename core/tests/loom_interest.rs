//! Model checks a planner's interest with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_interest --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Doorbell, PlannerBell};

/// Shards publish that they grew and notify the planner. The planner becomes interested at some moment, as in
/// `executor.rs` and `runner.rs`.
fn growth_is_never_missed(shards: usize) {
    loom::model(move || {
        let bed = StdArc::new(Bed::default());
        let doorbell = StdArc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let bell = StdArc::new(PlannerBell::new(StdArc::clone(&doorbell)));
        let growth: Vec<Arc<AtomicU64>> = (0..shards).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let threads: Vec<_> = growth
            .iter()
            .map(|growth| {
                let growth = Arc::clone(growth);
                let bell = StdArc::clone(&bell);
                thread::spawn(move || {
                    // Relaxed: `tell` provides the ordering.
                    growth.store(1, Ordering::Relaxed);
                    bell.tell(true, false);
                })
            })
            .collect();
        let grown = || growth.iter().filter(|growth| growth.load(Ordering::Relaxed) == 1).count();
        let mut seen = 0;
        while seen < shards {
            let idle = || {
                bell.set_wanted(true, false);
                grown() == seen
            };
            if doorbell.sleep_if(idle) {
                // loom reports a deadlock here if a shard can grow without being seen.
                bed.sleep();
            }
            seen = grown();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn the_growth_of_one_shard_is_never_missed() {
    growth_is_never_missed(1);
}

#[test]
fn the_growth_of_two_shards_is_never_missed() {
    growth_is_never_missed(2);
}
