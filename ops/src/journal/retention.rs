//! Which values are kept for those who follow events, after no start needs them any more.
//!
//! Each value says how many bytes came before it, so two values say how many are between them. The thread of the journal
//! looks at one value per step of [`STEP`] values, which the log then drops at once.

use wharf_core::journal::{JournalStore, StoreError};

use super::value::{Before, Value};

/// The number of values that a service drops together.
pub(super) const STEP: u64 = 256;

/// A value before which everything may be dropped.
#[derive(Clone, Copy, Debug)]
struct Cut {
    number: u64,
    /// The bytes before it.
    bytes: u64,
}

/// Decides what is dropped.
#[derive(Debug)]
pub(super) struct Retention {
    /// The number of newest bytes that are kept although no start needs them.
    kept_bytes: u64,
    /// The bytes of all values so far.
    total: u64,
    /// The bytes before the first value that is kept.
    dropped: u64,
    /// Values before this number are dropped, or about to be.
    dropped_to: u64,
    /// The next value before which values may be dropped, once it was looked at.
    next: Option<Cut>,
    /// The number of values that are dropped together.
    step: u64,
}

impl Retention {
    pub(super) fn new(kept_bytes: u64) -> Self {
        Self { kept_bytes, total: 0, dropped: 0, dropped_to: 0, next: None, step: STEP }
    }

    /// Sets the number of values that are dropped together. Nothing may have been dropped.
    pub(super) fn set_step(&mut self, values: u64) {
        assert!(values > 0, "some values are dropped");
        assert!(self.dropped_to == 0, "the step is set before the first value is dropped");
        self.step = values;
    }

    /// Notes that a value was appended.
    pub(super) fn appended(&mut self, after: Before) {
        self.total = after.bytes;
    }

    /// Returns the bytes of the values that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.total.saturating_sub(self.dropped)
    }

    /// Lets `store` drop values that neither a start needs, which begins at `needed_from`, nor those who follow events.
    pub(super) fn trim(&mut self, store: &mut impl JournalStore, needed_from: u64) -> Result<(), StoreError> {
        if self.dropped_to == 0 {
            self.dropped_to = store.bounds()?.first.max(1);
            self.dropped = bytes_before(store, self.dropped_to, 0)?.unwrap_or(self.total);
        }
        let number = self.dropped_to + self.step;
        if number > needed_from {
            return Ok(());
        }
        let cut = match self.next {
            Some(cut) => cut,
            // The value that a start needs first may not be appended yet.
            None => match bytes_before(store, number, self.dropped)? {
                Some(bytes) => *self.next.insert(Cut { number, bytes }),
                None => return Ok(()),
            },
        };
        if self.total.saturating_sub(cut.bytes) >= self.kept_bytes {
            store.trim(cut.number)?;
            self.dropped_to = cut.number;
            self.dropped = cut.bytes;
            self.next = None;
        }
        Ok(())
    }
}

/// Returns the bytes before value `number`, if that is there. If it is damaged, they are `unknown`: no start needs it.
fn bytes_before(store: &mut impl JournalStore, number: u64, unknown: u64) -> Result<Option<u64>, StoreError> {
    let mut found = None;
    store.read(number, &mut |at, bytes| {
        found = (at == number).then(|| Value::read(bytes).map_or(unknown, |value| value.header.before.bytes));
        false
    })?;
    Ok(found)
}
