//! The cell that holds a shard's current view. One thread publishes, any thread reads.
//!
//! A reader pins the epoch only while it takes its own reference. After that, it no longer needs the cell.
//! Readers take no lock and never wait, and the publisher never waits for them. The cell holds one reference
//! to the current view. It drops the reference to the previous view once no thread can be between loading the
//! pointer and taking its own reference. The epoch tells when that is the case.
//!
//! The deferred work drops one reference only. `view/reader.rs` decides on which thread destructors run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_epoch::{Atomic, Owned, pin, unprotected};

use crate::planted::{PlantedBug, is_planted};

/// A cell with the current version of an immutable value.
pub struct ViewCell<T> {
    /// Never null. The `Arc` is boxed because a fat or counted pointer does not fit an atomic.
    current: Atomic<Arc<T>>,
}

impl<T: Send + Sync + 'static> ViewCell<T> {
    /// Creates a cell that holds `first`.
    #[must_use]
    pub fn new(first: Arc<T>) -> Self {
        Self { current: Atomic::new(first) }
    }

    /// Returns a reference to the current version.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        let guard = pin();
        // Acquire: pairs with the AcqRel in `publish`, so that the whole version is visible.
        let current = self.current.load(Ordering::Acquire, &guard);
        // SAFETY: the pointer is never null and points to a box that `new` or `publish` made. A box that
        // `publish` takes out is destroyed only after all guards that existed then are gone. So it lives as
        // long as our guard. Boxes are never written after they are published.
        let current = unsafe { current.deref() };
        Arc::clone(current)
    }

    /// Replaces the current version by `next`. Only one thread at a time may publish.
    pub fn publish(&self, next: Arc<T>) {
        let guard = pin();
        // AcqRel: Release pairs with the Acquire in `load`. Acquire pairs with the Release of the previous
        // publication, whose box is destroyed here.
        let before = self.current.swap(Owned::new(next), Ordering::AcqRel, &guard);
        if is_planted(PlantedBug::ViewDestroyedAtOnce) {
            // SAFETY: none. This is the planted bug: a reader may be between its load and its reference.
            drop(unsafe { before.into_owned() });
            return;
        }
        // SAFETY: the box was made by `new` or `publish`. It is no longer reachable, because the cell held
        // the only pointer to it. Nobody else takes it out, because a swap returns each pointer once.
        unsafe { guard.defer_destroy(before) };
        // Without the flush, deferred work stays in this thread's list until the list is full.
        guard.flush();
    }
}

impl<T> Drop for ViewCell<T> {
    fn drop(&mut self) {
        // Relaxed suffices: the dropping thread has exclusive access. SAFETY: for the same reason no guard is
        // needed, and nothing else destroys the box.
        let current = unsafe { self.current.load(Ordering::Relaxed, unprotected()) };
        // SAFETY: as above. The pointer is never null.
        drop(unsafe { current.into_owned() });
    }
}
