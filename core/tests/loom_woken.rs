//! Model checks the box of woken requests with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_woken --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::ids::ShardId;
use wharf_core::link::{Doorbell, ShardNews, WokenBox};

/// A shard wakes requests; a port takes them and sleeps, as in `executor.rs` and `wait.rs`.
#[test]
fn every_woken_request_is_taken_once_and_in_order() {
    loom::model(|| {
        let bed = StdArc::new(Bed::default());
        let doorbell = Arc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let shards = StdArc::new(ShardNews::default());
        let woken = Arc::new(WokenBox::new(ShardId(3), StdArc::clone(&shards)));
        let shard = {
            let doorbell = Arc::clone(&doorbell);
            let woken = Arc::clone(&woken);
            thread::spawn(move || {
                for number in 0..2 {
                    woken.put(number);
                    doorbell.ring();
                }
            })
        };
        let mut taken = Vec::new();
        while taken.len() < 2 {
            if !shards.is_empty() {
                shards.take(|shard| {
                    assert_eq!(shard, ShardId(3));
                    taken.extend(woken.take());
                });
            } else if doorbell.sleep_if(|| shards.is_empty()) {
                // loom reports a deadlock here if a request can be put without being seen.
                bed.sleep();
            }
        }
        assert_eq!(taken, [0, 1]);
        shard.join().unwrap();
        assert!(woken.take().is_empty());
    });
}
