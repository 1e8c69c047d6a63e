//! Model checks the publication of views with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_views --release`
//!
//! This is a model of the protocol and not `core/src/link/cell.rs` itself. That file uses crossbeam-epoch,
//! whose queues make a model too large.
//!
//! The epoch here is the one that crossbeam implements (Fraser, "Practical lock-freedom", 2004), with its
//! orderings. A reader announces the epoch it saw, followed by a sequentially consistent fence. A box that is
//! removed in one epoch is destroyed two epochs later. The epoch does not advance while a reader announces an
//! older one. The orderings of the cell are those of `ViewCell`: `AcqRel` on the swap, `Acquire` on the load.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

/// The boxes for views. The first one exists from the start.
const BOXES: usize = 3;
/// With more, the model is too large.
const READERS: usize = 1;
/// The value of a destroyed box.
const DESTROYED: usize = usize::MAX;

/// A cell, its epoch, and a slot per reader.
struct Cell {
    current: AtomicUsize,
    boxes: [UnsafeCell<usize>; BOXES],
    epoch: AtomicUsize,
    /// 0: not pinned. Otherwise twice the epoch, plus one.
    pinned: [AtomicUsize; READERS],
}

// The protocol makes sharing sound. loom checks every access.
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

    /// Does what `ViewCell::load` does. Returns the number of the view.
    fn load(&self, reader: usize) -> usize {
        // Relaxed: the fence below orders it with what the writer does after its own fence.
        let epoch = self.epoch.load(Ordering::Relaxed);
        // A read-modify-write, as crossbeam pins on x86. A plain store would end the release sequence of the
        // store that ended the previous look.
        self.pinned[reader].swap(2 * epoch + 1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Acquire: pairs with the AcqRel in `publish`.
        let at = self.current.load(Ordering::Acquire);
        // SAFETY: the model verifies it.
        let view = self.boxes[at].with(|view| unsafe { *view });
        // Release: pairs with the Acquire fence in `advance`. The look is over.
        self.pinned[reader].store(0, Ordering::Release);
        view
    }

    /// Does what `ViewCell::publish` does. Returns the removed box and the epoch of its removal.
    fn publish(&self, at: usize) -> (usize, usize) {
        // SAFETY: no other thread knows this box yet.
        self.boxes[at].with_mut(|view| unsafe { *view = at });
        let before = self.current.swap(at, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Relaxed: only the writer advances the epoch here.
        (before, self.epoch.load(Ordering::Relaxed))
    }

    /// Moves to the next epoch, unless a reader announces an older one than this.
    fn advance(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for pinned in &self.pinned {
            // Relaxed: ordered by the fences before and after.
            let seen = pinned.load(Ordering::Relaxed);
            if seen != 0 && seen != 2 * epoch + 1 {
                return;
            }
        }
        fence(Ordering::Acquire);
        self.epoch.store(epoch + 1, Ordering::Release);
    }

    fn destroy(&self, at: usize) {
        // SAFETY: the model verifies it.
        self.boxes[at].with_mut(|view| unsafe { *view = DESTROYED });
    }
}

// SAFETY: the model verifies it.
unsafe impl Send for Shared {}
// SAFETY: the model verifies it.
unsafe impl Sync for Shared {}

/// Runs a reader that looks twice, and a writer that destroys removed boxes `wait` epochs later.
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

/// Checks the model itself: if boxes are destroyed at once, a reader may still use one.
#[test]
#[should_panic]
fn a_view_that_is_destroyed_at_once_is_met() {
    run(0);
}
