//! Model checks the box of woken requests with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_woken --release`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Doorbell, WokenBox};

/// A shard wakes requests; a port takes them and sleeps, as in `executor.rs` and `wait.rs`.
#[test]
fn every_woken_request_is_taken_once_and_in_order() {
    loom::model(|| {
        let bed = StdArc::new(Bed::default());
        let doorbell = Arc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let woken = Arc::new(WokenBox::default());
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
            if !woken.is_empty() {
                taken.extend(woken.take());
            } else if doorbell.sleep_if(|| woken.is_empty()) {
                // loom reports a deadlock here if a request can be put without being seen.
                bed.sleep();
            }
        }
        assert_eq!(taken, [0, 1]);
        assert!(woken.is_empty() && woken.take().is_empty());
        shard.join().unwrap();
    });
}
