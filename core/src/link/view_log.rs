//! The way of changes from a shard to the readers of its views.
//!
//! A fixed number of buffers circulates in two [rings](super::channel): the shard fills one, readers empty it and
//! give it back. So the shard allocates no buffers, never waits, and never writes more than these. If no buffer is
//! free, the shard marks that it is behind. A reader that gave buffers back looks at that mark and rings the
//! shard's bell. Then the shard hands over what changed meanwhile.
//!
//! No wake-up is lost, because only read-modify-writes change the mark, and the shard looks for a free buffer once
//! more after it set the mark. If the reader's came first, the shard's reads from it and finds the buffer. If the
//! shard's came first, the reader sees the mark. Model-checked in `core/tests/loom_views.rs`.

use std::sync::{Arc as StdArc, OnceLock};

use super::{Consumer, Doorbell, Producer, channel};
use crate::planted::{PlantedBug, is_planted};
use crate::sync::{Arc, AtomicU64, Ordering};

/// The state of a log that both sides know.
#[derive(Default)]
struct Shared {
    /// Twice the sequence of the last publication, plus one if there are changes that it does not show.
    published: AtomicU64,
    /// The number of bundles that ended, shown or not.
    bundles_ended: AtomicU64,
    /// The bell of the shard's thread. A shard that a caller steps by hand has none.
    bell: OnceLock<StdArc<Doorbell>>,
}

/// The shard's end.
pub struct ViewLog<T> {
    full: Producer<Box<T>>,
    free: Consumer<Box<T>>,
    shared: Arc<Shared>,
    sequence: u64,
    is_behind: bool,
}

/// The readers' end. They share it by a lock of their own.
pub struct ViewSource<T> {
    full: Consumer<Box<T>>,
    free: Producer<Box<T>>,
}

/// What readers may ask without the lock.
#[derive(Clone)]
pub struct ViewProgress(Arc<Shared>);

/// Creates a log with this number of buffers, a power of two.
#[must_use]
pub fn view_log<T: Send + Default>(buffers: usize) -> (ViewLog<T>, ViewSource<T>, ViewProgress) {
    let (full, from_shard) = channel(buffers);
    let (mut to_shard, free) = channel(buffers);
    for _ in 0..buffers {
        assert!(to_shard.push(Box::default()).is_ok(), "the ring holds all buffers");
    }
    let shared = Arc::<Shared>::default();
    let source = ViewSource { full: from_shard, free: to_shard };
    let progress = ViewProgress(Arc::clone(&shared));
    (ViewLog { full, free, shared, sequence: 0, is_behind: false }, source, progress)
}

impl<T: Send> ViewLog<T> {
    /// Sets the bell of the shard's thread. Only the first call has an effect.
    pub fn set_bell(&self, bell: StdArc<Doorbell>) {
        let _ = self.shared.bell.set(bell);
    }

    /// Takes free buffers out of use, for a test.
    pub fn withdraw(&mut self, buffers: usize) {
        (0..buffers).for_each(|_| drop(self.free.pop()));
    }

    /// Returns the sequence of the last publication.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether a buffer is free.
    pub fn has_room(&mut self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free buffer to fill. If there is none, marks that the shard is behind.
    pub fn take(&mut self) -> Option<Box<T>> {
        self.free.pop().or_else(|| {
            self.fall_behind();
            self.free.pop()
        })
    }

    /// Marks that there are changes that no publication shows.
    pub fn fall_behind(&mut self) {
        if !std::mem::replace(&mut self.is_behind, true) {
            // AcqRel: Acquire pairs with the read-modify-write in `due`. See the module docs.
            self.shared.published.swap(self.sequence << 1 | 1, Ordering::AcqRel);
        }
    }

    /// Hands over a buffer that completes the next publication.
    pub fn publish(&mut self, buffer: Box<T>) {
        assert!(self.full.push(buffer).is_ok(), "the ring holds all buffers");
        self.sequence += 1;
        self.is_behind = false;
        // AcqRel: Release pairs with `due`, so that who sees the sequence finds the buffer. A read-modify-write, as
        // the module docs say.
        self.shared.published.swap(self.sequence << 1, Ordering::AcqRel);
    }

    /// Sets the number of bundles that ended. Call it before planners are told.
    pub fn set_bundles_ended(&self, count: u64) {
        // Release pairs with the Acquire in `bundles_ended`.
        self.shared.bundles_ended.store(count, Ordering::Release);
    }
}

impl<T: Send> ViewSource<T> {
    /// Takes the oldest full buffer.
    pub fn pop(&mut self) -> Option<Box<T>> {
        self.full.pop()
    }

    /// Returns whether no full buffer is there now.
    pub fn is_empty(&mut self) -> bool {
        self.full.is_empty()
    }

    /// Gives a buffer back. Call [`ViewProgress::due`] after the last one.
    pub fn give_back(&mut self, buffer: Box<T>) {
        assert!(self.free.push(buffer).is_ok(), "the ring holds all buffers");
    }
}

impl ViewProgress {
    /// Returns the sequence of the first publication that shows all that has changed until now. If it is still to be
    /// made, rings the shard's bell.
    #[must_use]
    pub fn due(&self) -> u64 {
        // A read-modify-write that changes nothing, so that it has a place in the modification order. AcqRel: Release
        // shows the shard which buffers are free. Acquire shows what was published.
        let published = self.0.published.fetch_or(0, Ordering::AcqRel);
        let is_behind = published & 1;
        if is_behind == 1
            && let Some(bell) = self.0.bell.get()
            && !is_planted(PlantedBug::RoomForViewUntold)
        {
            bell.ring();
        }
        (published >> 1) + is_behind
    }

    /// Returns the number of bundles that have ended.
    #[must_use]
    pub fn bundles_ended(&self) -> u64 {
        // Acquire pairs with the Release in `set_bundles_ended`.
        self.0.bundles_ended.load(Ordering::Acquire)
    }
}
