//! Model checks the queue of the journal with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_journal --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Doorbell, JournalQueue};

fn bell(bed: &StdArc<Bed>) -> StdArc<Doorbell> {
    StdArc::new(Doorbell::new(Waker::from(StdArc::clone(bed))))
}

/// Writes until `units` are durable, as the thread of the journal does. Returns them in order.
fn write(queue: &JournalQueue<u32>, bell: &Doorbell, bed: &Bed, units: usize) -> Vec<u32> {
    let mut written = Vec::new();
    while written.len() < units {
        let mut taken = Vec::new();
        let position = queue.take(&mut taken);
        if !taken.is_empty() {
            written.append(&mut taken);
            assert_eq!(written.len() as u64, position, "a position counts the units before it");
            queue.set_durable(position);
        } else if bell.sleep_if(|| queue.is_empty()) {
            // loom reports a deadlock here if a unit can be put in without being seen.
            bed.sleep();
        }
    }
    written
}

/// A thread puts a unit in and holds its reply back, as in `net/src/session/connections/held.rs`.
#[test]
fn a_reply_that_is_held_back_leaves() {
    loom::model(|| {
        let journal_bed = StdArc::new(Bed::default());
        let reply_bed = StdArc::new(Bed::default());
        let journal_bell = bell(&journal_bed);
        let reply_bell = bell(&reply_bed);
        let queue = Arc::new(JournalQueue::default());
        queue.set_bells(vec![StdArc::clone(&reply_bell)], StdArc::clone(&journal_bell));
        let journal = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || write(&queue, &journal_bell, &journal_bed, 1))
        };
        queue.put(7);
        let position = queue.position();
        assert_eq!(position, 1, "the unit of this thread is counted");
        while queue.durable() < position {
            if reply_bell.sleep_if(|| queue.wait_for(0, position)) {
                // loom reports a deadlock here if a position can become durable without a ring.
                reply_bed.sleep();
            }
        }
        assert_eq!(journal.join().unwrap(), [7]);
    });
}

/// A unit that was caused by another one comes after it, and the position that a thread reads covers what it has seen.
#[test]
fn causes_come_before_effects() {
    loom::model(|| {
        let bed = StdArc::new(Bed::default());
        let journal_bell = bell(&bed);
        let queue = Arc::new(JournalQueue::default());
        queue.set_bells(Vec::new(), StdArc::clone(&journal_bell));
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.put(1);
                assert!(queue.position() >= 1);
            })
        };
        let has_seen = queue.position() == 1;
        queue.put(2);
        let written = write(&queue, &journal_bell, &bed, 2);
        assert!(!has_seen || written == [1, 2], "{written:?}");
        other.join().unwrap();
    });
}
