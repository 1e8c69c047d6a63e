//! Where the current view stands: published by one thread, taken by any.
//!
//! A reader pins the epoch only to take a reference of its own; from then on it has nothing to do
//! with the cell. It takes no lock, waits for nobody, and nobody waits for it. The cell holds a
//! reference to the current view; the one before it is let go of once no thread can be between
//! loading it and taking its reference, which is what the epoch tells.
//!
//! What is deferred is no more than letting go of one reference. Whose destructors then run is
//! decided by `view/reader.rs`: not here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_epoch::{Atomic, Owned, pin, unprotected};

use crate::planted::{PlantedBug, is_planted};

/// The current version of something immutable.
pub struct ViewCell<T> {
    /// Never null. In a box of its own, because a fat or counted pointer does not fit an atomic.
    current: Atomic<Arc<T>>,
}

impl<T: Send + Sync + 'static> ViewCell<T> {
    /// A cell that holds `first`.
    #[must_use]
    pub fn new(first: Arc<T>) -> Self {
        Self { current: Atomic::new(first) }
    }

    /// A reference to the current version.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        let guard = pin();
        // Acquire: pairs with the AcqRel in `publish`, so that all of the version is seen.
        let current = self.current.load(Ordering::Acquire, &guard);
        // SAFETY: the pointer is never null and points to a box that `new` or `publish` made. What
        // `publish` takes out is destroyed only when no guard is left that was there before, so it
        // is alive while ours is. Boxes are never written after they are published.
        let current = unsafe { current.deref() };
        Arc::clone(current)
    }

    /// Puts `next` in the place of the current version. By one thread at a time.
    pub fn publish(&self, next: Arc<T>) {
        let guard = pin();
        // AcqRel: Release pairs with the Acquire in `load`; Acquire pairs with the Release of the
        // publication before, whose box is destroyed here.
        let before = self.current.swap(Owned::new(next), Ordering::AcqRel, &guard);
        if is_planted(PlantedBug::ViewDestroyedAtOnce) {
            // SAFETY: none, which is the bug: a reader may be between its load and its reference.
            drop(unsafe { before.into_owned() });
            return;
        }
        // SAFETY: the box was made by `new` or `publish`, is not reachable any more (the cell held
        // the only pointer to it), and is taken out by nobody else: a swap gives each out once.
        unsafe { guard.defer_destroy(before) };
        // Deferred work would otherwise wait in a list of this thread until that is full.
        guard.flush();
    }
}

impl<T> Drop for ViewCell<T> {
    fn drop(&mut self) {
        // Relaxed would do: who drops the cell is alone with it. SAFETY: for the same reason no
        // guard is needed, and the box is not destroyed elsewhere.
        let current = unsafe { self.current.load(Ordering::Relaxed, unprotected()) };
        // SAFETY: as above; the pointer is never null.
        drop(unsafe { current.into_owned() });
    }
}
