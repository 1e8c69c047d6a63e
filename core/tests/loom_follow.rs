//! Model checks with loom how followers are notified of views, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_follow --profile loom`
#![cfg(loom)]

mod loom_bed;

use std::sync::Arc as StdArc;
use std::task::Waker;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use loom_bed::Bed;
use wharf_core::ids::ShardId;
use wharf_core::link::{Doorbell, ShardNews, ViewInterest};

/// A shard publishes and notifies; a port asks, looks and sleeps, as in `executor.rs` and the server. The
/// published view is a number.
#[test]
fn whoever_asks_before_looking_sees_the_last_view() {
    loom::model(|| {
        let bed = StdArc::new(Bed::default());
        let doorbell = Arc::new(Doorbell::new(Waker::from(StdArc::clone(&bed))));
        let interest = Arc::new(ViewInterest::default());
        let news = Arc::new(ShardNews::default());
        let view = Arc::new(AtomicU64::new(0));
        let shard = {
            let doorbell = Arc::clone(&doorbell);
            let interest = Arc::clone(&interest);
            let news = Arc::clone(&news);
            let view = Arc::clone(&view);
            thread::spawn(move || {
                for sequence in 1..=2 {
                    // Release, as in the cell; pairs with the Acquire of the look.
                    view.store(sequence, Ordering::Release);
                    if interest.take(sequence) & 1 != 0 {
                        news.put(ShardId(0));
                        doorbell.ring();
                    }
                }
            })
        };
        loop {
            interest.want_next(0);
            // Acquire, as when a reader takes the view.
            if view.load(Ordering::Acquire) == 2 {
                break;
            }
            // Nothing is new yet, so wait for a notification. loom reports a deadlock here if a view can be
            // missed.
            while news.is_empty() {
                if doorbell.sleep_if(|| news.is_empty()) {
                    bed.sleep();
                }
            }
            news.take(|_| {});
        }
        shard.join().unwrap();
    });
}
