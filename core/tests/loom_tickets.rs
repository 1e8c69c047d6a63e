//! Model checks tickets with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_tickets --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_bed::Bed;
use wharf_core::link::{Doorbell, Tickets};

/// State that only the served planner may access.
struct Served {
    inside: AtomicBool,
    /// The count of numbers served so far. Accessed without an ordering of its own.
    done: AtomicU64,
}

/// A planner takes a number, sleeps until it is served, and passes it on, as in `ticket.rs` and `runner.rs`.
fn is_served(tickets: &Tickets, bell: &Doorbell, bed: &Bed, served: &Served) {
    let number = tickets.take();
    while !tickets.is_served(number) {
        if bell.sleep_if(|| !tickets.is_served(number)) {
            // loom reports a deadlock here if a number can be passed on without being seen.
            bed.sleep();
        }
    }
    // All Relaxed: the tickets provide the ordering.
    assert!(!served.inside.load(Ordering::Relaxed), "two numbers are served at a time");
    served.inside.store(true, Ordering::Relaxed);
    assert_eq!(served.done.load(Ordering::Relaxed), number, "a number is left out, or served out of turn");
    served.done.store(number + 1, Ordering::Relaxed);
    served.inside.store(false, Ordering::Relaxed);
    tickets.serve_next();
}

fn numbers_are_served_in_turn(planners: usize, times: usize) {
    loom::model(move || {
        let beds: Vec<_> = (0..planners).map(|_| StdArc::new(Bed::default())).collect();
        let bell = |bed: &StdArc<Bed>| StdArc::new(Doorbell::new(Waker::from(StdArc::clone(bed))));
        let bells: Vec<_> = beds.iter().map(bell).collect();
        let tickets = Arc::new(Tickets::default());
        tickets.set_bells(bells.clone());
        let served = Served { inside: AtomicBool::new(false), done: AtomicU64::new(0) };
        let served = Arc::new(served);
        let mut planners: Vec<_> = beds.into_iter().zip(bells).collect();
        let own = planners.pop().unwrap();
        let threads: Vec<_> = planners
            .into_iter()
            .map(|(bed, bell)| {
                let tickets = Arc::clone(&tickets);
                let served = Arc::clone(&served);
                thread::spawn(move || (0..times).for_each(|_| is_served(&tickets, &bell, &bed, &served)))
            })
            .collect();
        (0..times).for_each(|_| is_served(&tickets, &own.1, &own.0, &served));
        let all = threads.len() + 1;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(served.done.load(Ordering::Relaxed), (all * times) as u64);
    });
}

#[test]
fn two_planners_are_served_in_turn_and_nobody_sleeps_on() {
    numbers_are_served_in_turn(2, 2);
}

#[test]
fn three_planners_are_served_in_turn_and_nobody_sleeps_on() {
    numbers_are_served_in_turn(3, 1);
}
