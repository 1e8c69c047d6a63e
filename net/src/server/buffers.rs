//! Buffers for output, which are used again.
//!
//! quinn keeps written bytes until the peer has acknowledged them, and then drops them. Without these buffers, each write
//! would be a new allocation that grows in steps and is given back to the system.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use wharf_core::link::lock;

use crate::limits::{BUFFER_KEPT_BYTES_MAX, BUFFERS_KEPT_MAX};

/// The buffers of an I/O thread.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A buffer that quinn reads from.
struct Written {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Buffers {
    /// Takes an empty buffer.
    pub(super) fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    /// Returns bytes to be written. Their buffer comes back when they are dropped.
    pub(super) fn written(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Written { bytes, buffers: Arc::clone(self) })
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() > BUFFER_KEPT_BYTES_MAX {
            return;
        }
        buffer.clear();
        let mut kept = lock(&self.0);
        if kept.len() < BUFFERS_KEPT_MAX {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_when_the_last_part_of_it_is_dropped() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take();
        first.extend_from_slice(b"replies");
        let at = first.as_ptr();
        let mut written = buffers.written(first);
        let part = written.split_to(3);
        drop(written);
        assert_eq!(buffers.take().capacity(), 0, "a part is still to be sent");
        assert_eq!(&part[..], b"rep");
        drop(part);
        let again = buffers.take();
        assert!(again.is_empty());
        assert_eq!(again.as_ptr(), at);
    }

    #[test]
    fn few_buffers_are_kept_and_no_large_one() {
        let buffers = Arc::new(Buffers::default());
        drop(buffers.written(Vec::with_capacity(BUFFER_KEPT_BYTES_MAX + 1)));
        assert_eq!(lock(&buffers.0).len(), 0);
        let all: Vec<Bytes> = (0..BUFFERS_KEPT_MAX + 5).map(|_| buffers.written(vec![1])).collect();
        drop(all);
        assert_eq!(lock(&buffers.0).len(), BUFFERS_KEPT_MAX);
    }
}
