//! The newest values of the journal, in memory, for those who follow events.
//!
//! The thread of the journal publishes each value once it is durable. That costs it a push and a few pops behind a
//! lock that nobody holds for longer. Older values are read from disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use wharf_core::link::{Doorbell, lock};
use wharf_core::resource::ResourceRegistry;
use wharf_net::session::events::EventsKept;

use super::value::Before;

/// Maximum number of values that are kept in memory.
const VALUES_MAX: usize = 4096;
/// Maximum bytes of values that are kept in memory.
const BYTES_MAX: usize = 16 << 20;

/// A value whose append is durable.
#[derive(Debug)]
pub(super) struct StoredValue {
    pub(super) number: u64,
    /// The position of the last event up to and with it.
    pub(super) last: u64,
    pub(super) bytes: Vec<u8>,
}

struct Inner {
    /// Successive values, the oldest first.
    values: VecDeque<Arc<StoredValue>>,
    bytes: usize,
    /// The number of the last append that is durable.
    append: u64,
    kept: EventsKept,
    kinds: Arc<ResourceRegistry>,
    /// The reader wants to be told of the next value.
    is_wanted: bool,
}

/// The newest values, and what there is of events.
pub struct Recent {
    inner: Mutex<Inner>,
    /// The bell of the reader.
    bell: Arc<Doorbell>,
}

impl Recent {
    /// Begins after append `append`, with which there are `before` events. `kinds` are the resource kinds so far, and
    /// `bell` is that of the reader.
    #[must_use]
    pub fn new(append: u64, before: Before, kinds: Arc<ResourceRegistry>, bell: Arc<Doorbell>) -> Self {
        let end = before.events + 1;
        let kept = EventsKept { first: end, end };
        let inner = Inner { values: VecDeque::new(), bytes: 0, append, kept, kinds, is_wanted: false };
        Self { inner: Mutex::new(inner), bell }
    }

    /// Publishes a value that is durable.
    pub(super) fn publish(&self, value: StoredValue) {
        let mut inner = lock(&self.inner);
        assert!(value.number == inner.append + 1, "value {} follows {}", value.number, inner.append);
        assert!(value.last + 1 >= inner.kept.end, "positions only grow");
        inner.append = value.number;
        inner.kept.end = value.last + 1;
        inner.bytes += value.bytes.len();
        inner.values.push_back(Arc::new(value));
        while inner.values.len() > VALUES_MAX || (inner.bytes > BYTES_MAX && inner.values.len() > 1) {
            let oldest = inner.values.pop_front().expect("there is more than one");
            inner.bytes -= oldest.bytes.len();
        }
        let is_wanted = std::mem::take(&mut inner.is_wanted);
        drop(inner);
        if is_wanted {
            self.bell.ring();
        }
    }

    /// Says that there are new resource kinds. Call it before a value that has them is published.
    pub(super) fn set_kinds(&self, kinds: &Arc<ResourceRegistry>) {
        lock(&self.inner).kinds = Arc::clone(kinds);
    }

    pub(super) fn kinds(&self) -> Arc<ResourceRegistry> {
        Arc::clone(&lock(&self.inner).kinds)
    }

    /// Sets the position of the oldest event that is kept.
    pub(super) fn set_first(&self, first: u64) {
        lock(&self.inner).kept.first = first;
    }

    /// Returns the positions that are there.
    #[must_use]
    pub fn kept(&self) -> EventsKept {
        lock(&self.inner).kept
    }

    /// Returns the number of the last append that is durable.
    pub(super) fn last_append(&self) -> u64 {
        lock(&self.inner).append
    }

    /// Returns the value of an append, if it is in memory.
    pub(super) fn get(&self, number: u64) -> Option<Arc<StoredValue>> {
        let inner = lock(&self.inner);
        let at = number.checked_sub(inner.values.front()?.number)?;
        inner.values.get(usize::try_from(at).ok()?).cloned()
    }

    /// Returns the number of the append with the event at `position`, if it is in memory and not the oldest one there.
    /// The oldest one may have the events before it too, as far as is known here.
    pub(super) fn find(&self, position: u64) -> Option<u64> {
        let inner = lock(&self.inner);
        let at = inner.values.partition_point(|value| value.last < position);
        (at > 0).then(|| inner.values.get(at)).flatten().map(|value| value.number)
    }

    /// Makes sure that the reader's bell is rung when there are events from `end` on. Returns false if there are
    /// already.
    pub(super) fn want(&self, end: u64) -> bool {
        let mut inner = lock(&self.inner);
        let waits = inner.kept.end == end;
        inner.is_wanted |= waits;
        waits
    }
}
