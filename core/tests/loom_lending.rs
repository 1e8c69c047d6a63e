//! Model checks that work which is lent while its owner sleeps is never forgotten.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_lending --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Consumer, Doorbell, Lending, Producer, channel};

/// What the owner does: it takes values from its rings.
struct Work {
    rings: Vec<Consumer<u32>>,
    taken: u32,
}

impl Work {
    fn take(&mut self) {
        for ring in &mut self.rings {
            while let Some(value) = ring.pop() {
                self.taken += value;
            }
        }
    }

    fn falls_asleep(&mut self, bell: &Doorbell) -> bool {
        bell.sleep_if(|| self.rings.iter_mut().all(|ring| ring.is_empty()))
    }
}

/// Puts a value into a ring. Then takes it in the owner's place, or rings. The owner is woken for the last of `all` values,
/// so that it ends.
fn ask(producer: &mut Producer<u32>, lending: &Lending<Work>, bell: &Doorbell, all: u32) {
    producer.push(1).unwrap();
    let is_done = lending.borrow(|work| {
        work.take();
        work.falls_asleep(bell) && work.taken < all
    });
    if !is_done {
        bell.ring();
    }
}

/// Runs an owner against threads that each put one value into a ring of theirs, and borrow or only ring. loom reports a
/// deadlock if the owner sleeps while a value is left.
fn model(askers: &'static [bool]) {
    loom::model(move || {
        let bed = StdArc::new(Bed::default());
        let bell = StdArc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let all = askers.len() as u32;
        let (producers, rings): (Vec<_>, Vec<_>) = askers.iter().map(|_| channel::<u32>(1)).unzip();
        let lending = Arc::new(Lending::new(Work { rings, taken: 0 }, StdArc::clone(&bell)));
        let mut threads = Vec::new();
        for (mut producer, &borrows) in producers.into_iter().zip(askers) {
            let lending = Arc::clone(&lending);
            let bell = StdArc::clone(&bell);
            threads.push(thread::spawn(move || {
                if borrows {
                    ask(&mut producer, &lending, &bell, all);
                } else {
                    producer.push(1).unwrap();
                    bell.ring();
                }
                producer
            }));
        }
        loop {
            let mut work = lending.hold();
            work.take();
            if work.taken == all {
                break;
            }
            let is_asleep = work.falls_asleep(&bell);
            drop(work);
            if is_asleep {
                bed.sleep();
            }
        }
        for thread in threads {
            drop(thread.join().unwrap());
        }
    });
}

#[test]
fn nothing_is_forgotten_by_one_borrower() {
    model(&[true]);
}

#[test]
fn nothing_is_forgotten_by_a_borrower_next_to_a_ringer() {
    model(&[true, false]);
}

#[test]
fn nothing_is_forgotten_by_two_borrowers() {
    model(&[true, true]);
}
