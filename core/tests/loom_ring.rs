//! Model checks the ring and the doorbell with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_ring --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Doorbell, channel};

#[test]
fn values_cross_in_order_and_slots_are_reused_safely() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Box<u32>>(2);
        let giver = thread::spawn(move || {
            let mut next = 0;
            while next < 3 {
                match producer.push(Box::new(next)) {
                    Ok(()) => next += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(*value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        giver.join().unwrap();
    });
}

#[test]
fn what_is_left_is_dropped_by_whoever_goes_last() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Arc<()>>(2);
        let value = Arc::new(());
        let given = Arc::clone(&value);
        let giver = thread::spawn(move || {
            let _ = producer.push(Arc::clone(&given));
            let _ = producer.push(given);
        });
        drop(consumer.pop());
        drop(consumer);
        giver.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let bed = StdArc::new(Bed::default());
        let doorbell = Arc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let (mut producer, mut consumer) = channel::<u32>(2);
        let ringer = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                for value in 0..2 {
                    producer.push(value).unwrap();
                    doorbell.ring();
                }
            })
        };
        let mut taken = 0;
        while taken < 2 {
            if let Some(value) = consumer.pop() {
                assert_eq!(value, taken);
                taken += 1;
            } else if doorbell.sleep_if(|| consumer.is_empty()) {
                // loom reports a deadlock here if the ringer's wake-up can be lost.
                bed.sleep();
            }
        }
        ringer.join().unwrap();
    });
}
