//! The two ends of the way of units to the journal: those who put them in, and the thread that writes them.

use std::sync::Arc;

use super::Unit;
use crate::link::{Doorbell, JournalQueue, StopSignal, ThreadWaker};

/// The journal as one port sees it.
#[derive(Clone)]
pub struct JournalPort {
    queue: Arc<JournalQueue<Unit>>,
    /// The number of the port, whose bell is rung.
    number: usize,
}

impl JournalPort {
    pub(crate) fn new(queue: &Arc<JournalQueue<Unit>>, number: u16) -> Self {
        Self { queue: Arc::clone(queue), number: usize::from(number) }
    }

    /// Puts a unit in. Call it before anything that shows its effects is handed out.
    pub fn put(&self, unit: Unit) {
        self.queue.put(unit);
    }

    /// Returns the position that must be durable before what the caller knows now may leave the process.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.queue.position()
    }

    /// Returns the position up to which all units are durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.queue.durable()
    }

    /// Makes sure that the port's bell is rung when more is durable. Returns false if `position` is durable already.
    #[must_use]
    pub fn wait_for(&self, position: u64) -> bool {
        self.queue.wait_for(self.number, position)
    }

    /// Returns whether the storage is full, so that nothing becomes durable for now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue.is_full()
    }
}

/// The end of the thread that writes the journal.
pub struct JournalFeed {
    queue: Arc<JournalQueue<Unit>>,
    bell: Arc<Doorbell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
}

impl JournalFeed {
    pub(crate) fn new(queue: Arc<JournalQueue<Unit>>, bell: Arc<Doorbell>, waker: Arc<ThreadWaker>) -> Self {
        let stop = StopSignal::default();
        stop.watch(&bell);
        Self { queue, bell, waker, stop }
    }

    /// Returns the signal that ends the journal. Everything that puts units in must have ended before.
    #[must_use]
    pub fn stop(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Puts a unit in, before anything that puts units in runs.
    pub fn put(&self, unit: Unit) {
        self.queue.put(unit);
    }

    /// Says that the calling thread writes the journal.
    pub fn set_current(&self) {
        self.waker.set_current();
    }

    /// Takes all units into `into`, which must be empty. Returns the position of the last one.
    pub fn take(&self, into: &mut Vec<Unit>) -> u64 {
        self.queue.take(into)
    }

    /// Says that all units up to this position are durable.
    pub fn set_durable(&self, position: u64) {
        self.queue.set_durable(position);
    }

    /// Says whether the storage is full.
    pub fn set_full(&self, is_full: bool) {
        self.queue.set_full(is_full);
    }

    /// Returns the number of units that were put in.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.queue.position()
    }

    /// Returns whether the journal was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Looks a last time. Returns `true` if there is no unit; the next one wakes the thread.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.bell.sleep_if(|| !self.stop.is_stopped() && self.queue.is_empty())
    }

    /// Returns whether the thread sleeps although there are units. If so, a wake-up was lost.
    #[must_use]
    pub fn oversleeps(&self) -> bool {
        self.bell.is_asleep() && !self.queue.is_empty()
    }

    /// Returns the bell of the thread.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }
}
