//! Model checks with loom the log of a shard's changes, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_views --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::thread;
use loom_bed::Bed;
use wharf_core::ids::ShardId;
use wharf_core::link::{Doorbell, ShardNews, ViewInterest, ViewLog, view_log};

/// The state that a publication shows: the number of changes before it.
#[derive(Default)]
struct Shown(u64);

/// Publishes the changes so far, if there is room. Returns how many are published.
fn publish(log: &mut ViewLog<Shown>, changes: u64, published: u64) -> u64 {
    if changes == published {
        return published;
    }
    let Some(mut buffer) = log.take() else { return published };
    buffer.0 = changes;
    log.publish(buffer);
    changes
}

/// A shard changes twice and has one buffer. It sleeps as in `executor.rs` while it has no room. A reader asks, reads
/// and sleeps as planners do, until a view shows both changes. loom reports a deadlock if a wake-up is lost.
#[test]
fn a_reader_that_waits_for_a_view_gets_it_although_the_shard_had_no_room() {
    loom::model(|| {
        let beds = [0; 2].map(|_| StdArc::new(Bed::default()));
        let bells = [0, 1].map(|at| StdArc::new(Doorbell::new(Waker::from(StdArc::clone(&beds[at])))));
        let [bell_of_shard, bell_of_reader] = bells;
        let [bed_of_shard, bed_of_reader] = beds;
        let (mut log, mut source, progress) = view_log::<Shown>(1);
        log.set_bell(StdArc::clone(&bell_of_shard));
        let interest = Arc::new(ViewInterest::default());
        let news = Arc::new(ShardNews::default());
        let shard = {
            let interest = Arc::clone(&interest);
            let news = Arc::clone(&news);
            let bell_of_reader = StdArc::clone(&bell_of_reader);
            thread::spawn(move || {
                let mut published = 0;
                let mut changes = 0;
                while published < 2 {
                    changes = 2.min(changes + 1);
                    let now = publish(&mut log, changes, published);
                    if now != published && interest.take(log.sequence()) & 1 != 0 {
                        news.put(ShardId(0));
                        bell_of_reader.ring();
                    }
                    published = now;
                    let is_idle = |log: &mut ViewLog<Shown>| changes == 2 && published < 2 && !log.has_room();
                    if bell_of_shard.sleep_if(|| is_idle(&mut log)) {
                        bed_of_shard.sleep();
                    }
                }
            })
        };
        let mut shown = 0;
        while shown < 2 {
            news.take(|_| {});
            interest.want_next(0);
            let mut taken = 0;
            while let Some(buffer) = source.pop() {
                assert!(buffer.0 > shown, "changes come in order");
                (shown, taken) = (buffer.0, taken + 1);
                source.give_back(buffer);
            }
            // Rings the shard if it waits for the buffer.
            let _ = progress.due();
            if shown < 2 && taken == 0 && bell_of_reader.sleep_if(|| news.is_empty()) {
                bed_of_reader.sleep();
            }
        }
        shard.join().unwrap();
    });
}

/// A reader that sees what a shard told after it published finds the publication, or that one is due.
#[test]
fn a_reader_that_hears_of_a_change_finds_it_or_learns_that_it_is_due() {
    loom::model(|| {
        let (mut log, mut source, progress) = view_log::<Shown>(1);
        let told = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let shard = {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                let mut published = 0;
                for changes in 1..=2 {
                    published = publish(&mut log, changes, published);
                    // Release, as an outcome that is handed out.
                    told.store(changes, loom::sync::atomic::Ordering::Release);
                }
                log
            })
        };
        let mut shown = 0;
        let mut sequence = 0;
        for _ in 0..2 {
            // Acquire, as an outcome that is taken.
            let heard = told.load(loom::sync::atomic::Ordering::Acquire);
            let due = progress.due();
            while let Some(buffer) = source.pop() {
                (shown, sequence) = (buffer.0, sequence + 1);
                source.give_back(buffer);
            }
            assert!(shown >= heard || due > sequence, "{heard} is told, {shown} is shown, {due} is due");
        }
        shard.join().unwrap();
    });
}
