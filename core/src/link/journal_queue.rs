//! The way of units from shards, planners and the registrar to the journal, and of durable positions back.
//!
//! A lock gives all units one order: a unit that was caused by another one is put in after it. The lock is held for the
//! time of one push or of one swap. It is taken once per batch, not per request.
//!
//! An I/O thread reads the [position](JournalQueue::position) when it has an answer, and lets the reply leave
//! when that position is [durable](JournalQueue::durable). A thread that holds replies back
//! [registers](JournalQueue::wait_for) and is rung. No wake-up is lost: it registers first and then looks at the durable
//! position again; the journal stores that position first and then looks at who registered. Both use read-modify-writes
//! on the word of the registered threads. Model-checked in `core/tests/loom_journal.rs`.

use std::sync::{Arc as StdArc, OnceLock};

use super::Doorbell;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The queue. `T` is a unit.
pub struct JournalQueue<T> {
    units: Mutex<Vec<T>>,
    /// The number of units that were ever put in.
    put: AtomicU64,
    /// The number of units that are durable, in their order.
    durable: AtomicU64,
    /// 1 while the storage is full.
    full: AtomicU64,
    /// The threads that hold replies back, one bit each.
    waiting: AtomicU64,
    /// The bells of those threads, and the bell of the journal's thread.
    bells: OnceLock<(Vec<StdArc<Doorbell>>, StdArc<Doorbell>)>,
}

impl<T> Default for JournalQueue<T> {
    fn default() -> Self {
        Self {
            units: Mutex::new(Vec::new()),
            put: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            full: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            bells: OnceLock::new(),
        }
    }
}

impl<T> JournalQueue<T> {
    /// Sets the bells of the threads that may wait, at most 64, and that of the journal's thread. Only the first call has
    /// an effect.
    pub fn set_bells(&self, waiting: Vec<StdArc<Doorbell>>, journal: StdArc<Doorbell>) {
        assert!(waiting.len() <= 64, "the waiting threads fit one word of bits");
        let _ = self.bells.set((waiting, journal));
    }

    /// Puts a unit in. Call it before anything that shows its effects is handed out.
    pub fn put(&self, unit: T) {
        let mut units = self.units.lock().expect("no thread panics with the lock");
        units.push(unit);
        // Relaxed: only a thread with the lock writes it.
        let put = self.put.load(Ordering::Relaxed) + 1;
        // Release pairs with `position`: who reads the number finds the unit in the queue.
        self.put.store(put, Ordering::Release);
        drop(units);
        if let Some((_, journal)) = self.bells.get() {
            journal.ring();
        }
    }

    /// Takes all units into `into`, which must be empty. Returns the position of the last one.
    pub fn take(&self, into: &mut Vec<T>) -> u64 {
        assert!(into.is_empty(), "units that were taken are written first");
        let mut units = self.units.lock().expect("no thread panics with the lock");
        std::mem::swap(&mut *units, into);
        // Relaxed: only a thread with the lock writes it.
        self.put.load(Ordering::Relaxed)
    }

    /// Returns whether no unit waits to be taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.lock().expect("no thread panics with the lock").is_empty()
    }

    /// Returns the number of units that were put in. What a thread knows now is durable when this many are.
    #[must_use]
    pub fn position(&self) -> u64 {
        // Acquire pairs with `put`.
        self.put.load(Ordering::Acquire)
    }

    /// Returns the number of units that are durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        // Acquire pairs with `set_durable`.
        self.durable.load(Ordering::Acquire)
    }

    /// Registers a thread that holds something back until `position` is durable. Returns false if it is already.
    #[must_use]
    pub fn wait_for(&self, thread: usize, position: u64) -> bool {
        // AcqRel: pairs with the swap in `set_durable`. If that came first, the load below sees its position.
        self.waiting.fetch_or(1 << thread, Ordering::AcqRel);
        self.durable() < position
    }

    /// Publishes that this many units are durable, and rings the threads that wait.
    pub fn set_durable(&self, durable: u64) {
        // Release pairs with `durable`.
        self.durable.store(durable, Ordering::Release);
        self.ring_waiting();
    }

    /// Returns whether nothing becomes durable for now, because the storage is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Relaxed: a thread that reads it late lets its reads wait a little longer.
        self.full.load(Ordering::Relaxed) == 1
    }

    /// Publishes whether the storage is full, and rings the threads that wait.
    pub fn set_full(&self, is_full: bool) {
        // Relaxed: see `is_full`. The ring below makes it visible to those that wait.
        self.full.store(u64::from(is_full), Ordering::Relaxed);
        self.ring_waiting();
    }

    fn ring_waiting(&self) {
        // AcqRel: pairs with the read-modify-write in `wait_for`.
        let mut waiting = self.waiting.swap(0, Ordering::AcqRel);
        let Some((bells, _)) = self.bells.get() else { return };
        while waiting != 0 {
            bells[waiting.trailing_zeros() as usize].ring();
            waiting &= waiting - 1;
        }
    }
}
