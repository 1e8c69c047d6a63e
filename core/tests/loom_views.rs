//! Model checking of the publication of views by loom: every interleaving within the bound.
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_views --release`
//!
//! This is a model of the protocol and not `core/src/link/cell.rs` itself: that file rests on
//! crossbeam-epoch, whose queues make a model too large. The epoch here is the one that crossbeam
//! implements (Fraser, "Practical lock-freedom", 2004), with its orderings: a reader announces the
//! epoch it saw and a sequentially consistent fence follows; what is taken out in one epoch is
//! destroyed two epochs later, and no epoch passes while a reader announces an older one. The cell's own
//! orderings are those of `ViewCell`: `AcqRel` on the swap, `Acquire` on the load.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

/// Boxes of views: the first is there from the start.
const BOXES: usize = 3;
/// More make the model too large.
const READERS: usize = 1;
/// What a box holds once it was destroyed.
const DESTROYED: usize = usize::MAX;

/// A cell, its epoch, and a place per reader.
struct Cell {
    current: AtomicUsize,
    boxes: [UnsafeCell<usize>; BOXES],
    epoch: AtomicUsize,
    /// 0: not pinned; else the epoch, doubled, and one.
    pinned: [AtomicUsize; READERS],
}

// The protocol is what makes it so; loom looks at every access.
struct Shared(Cell);

impl Cell {
    fn new() -> Self {
        Self {
            current: AtomicUsize::new(0),
            boxes: [0; BOXES].map(UnsafeCell::new),
            epoch: AtomicUsize::new(2),
            pinned: [0; READERS].map(AtomicUsize::new),
        }
    }

    /// What `ViewCell::load` does; gives the number of the view.
    fn load(&self, reader: usize) -> usize {
        // Relaxed: the fence below orders it with what the writer does after its own.
        let epoch = self.epoch.load(Ordering::Relaxed);
        // By read-modify-write, as crossbeam pins on x86: a plain store would end the release
        // sequence of the store that ended the look before.
        self.pinned[reader].swap(2 * epoch + 1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Acquire: pairs with the AcqRel in `publish`.
        let at = self.current.load(Ordering::Acquire);
        // SAFETY: the model is what shows it.
        let view = self.boxes[at].with(|view| unsafe { *view });
        // Release: pairs with the Acquire fence in `advance`: the look is over.
        self.pinned[reader].store(0, Ordering::Release);
        view
    }

    /// What `ViewCell::publish` does; gives the box taken out and the epoch in which it was.
    fn publish(&self, at: usize) -> (usize, usize) {
        // SAFETY: nobody knows of this box yet.
        self.boxes[at].with_mut(|view| unsafe { *view = at });
        let before = self.current.swap(at, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Relaxed: only the writer advances it here.
        (before, self.epoch.load(Ordering::Relaxed))
    }

    /// Moves to the next epoch unless a reader announces an older one than this.
    fn advance(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for pinned in &self.pinned {
            // Relaxed: the fences before and after order it.
            let seen = pinned.load(Ordering::Relaxed);
            if seen != 0 && seen != 2 * epoch + 1 {
                return;
            }
        }
        fence(Ordering::Acquire);
        self.epoch.store(epoch + 1, Ordering::Release);
    }

    fn destroy(&self, at: usize) {
        // SAFETY: the model is what shows it.
        self.boxes[at].with_mut(|view| unsafe { *view = DESTROYED });
    }
}

// SAFETY: the model is what shows it.
unsafe impl Send for Shared {}
// SAFETY: the model is what shows it.
unsafe impl Sync for Shared {}

/// A reader that looks twice beside a writer that destroys what it took out `wait` epochs later.
fn run(wait: usize) {
    loom::model(move || {
        let cell = Arc::new(Shared(Cell::new()));
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    let first = cell.0.load(reader);
                    let second = cell.0.load(reader);
                    assert!(first != DESTROYED && second != DESTROYED, "a destroyed view is read");
                    assert!(first <= second, "views go back from {first} to {second}");
                })
            })
            .collect();
        let mut retired = Vec::new();
        for at in 1..BOXES {
            retired.push(cell.0.publish(at));
            cell.0.advance();
            cell.0.advance();
            let epoch = cell.0.epoch.load(Ordering::Relaxed);
            retired.retain(|&(at, since)| {
                let due = epoch >= since + wait;
                if due {
                    cell.0.destroy(at);
                }
                !due
            });
        }
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(cell.0.load(0), BOXES - 1);
    });
}

#[test]
fn no_reader_meets_a_view_that_was_destroyed_and_none_goes_back() {
    run(2);
}

/// The model can tell: destroyed at once, some reader is still there.
#[test]
#[should_panic]
fn a_view_that_is_destroyed_at_once_is_met() {
    run(0);
}
