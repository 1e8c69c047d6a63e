//! A bounded queue between one producer and one consumer (Lamport 1983).
//!
//! Each side caches the other's counter, as FastForward and MCRingBuffer do. In the common case, each side
//! touches only its own cache lines.
//!
//! | field | who writes it | when | why safe |
//! |---|---|---|---|
//! | `tail` | producer | after a slot was filled | Release: a side that sees the number sees the slot |
//! | `head` | consumer | after a slot was emptied | Release: a side that sees the number may fill the slot again |
//! | `slots[i % n]` | producer if `i` is outside `head..tail`, else consumer | | disjoint ranges |
//! | `Producer::head`, `Consumer::tail` | owner | if it looks full or empty | a stale copy looks fuller or emptier |
//!
//! Each side learns the other's end of `head..tail` by Acquire.
//!
//! The counters never wrap (2^64 messages), so `tail - head` is always the length.

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

struct Shared<T> {
    /// The number of messages taken so far.
    head: CachePadded<AtomicU64>,
    /// The number of messages put in so far.
    tail: CachePadded<AtomicU64>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: one side at a time accesses a slot, as the table above argues. The values themselves move between
// threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above. The last owner drops the remaining values.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, number: u64) -> &UnsafeCell<MaybeUninit<T>> {
        // The length is a power of two, so this is a mask. The result fits `usize` because the length does.
        &self.slots[(number & (self.slots.len() as u64 - 1)) as usize]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: both ends are gone, and the Arc that dropped last synchronised with them.
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        for number in head..tail {
            // SAFETY: slots in `head..tail` are filled, and no other owner is left.
            self.slot(number).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}

/// The end that puts messages in.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: u64,
    /// The last known head of the consumer.
    head: u64,
}

/// The end that takes messages out.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: u64,
    /// The last known tail of the producer.
    tail: u64,
}

/// Creates a queue for `capacity` messages.
///
/// # Panics
/// Panics if `capacity` is not a power of two.
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "a ring of {capacity} slots: give a power of two");
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicU64::new(0)),
        tail: CachePadded::new(AtomicU64::new(0)),
        slots,
    });
    (Producer { shared: Arc::clone(&shared), tail: 0, head: 0 }, Consumer { shared, head: 0, tail: 0 })
}

impl<T: Send> Producer<T> {
    /// Puts `value` into the queue.
    ///
    /// # Errors
    /// Returns the value if the queue is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.tail - self.head == self.shared.slots.len() as u64 {
            // Acquire pairs with the Release of `head` in `pop`: the emptied slot belongs to the producer
            // again.
            self.head = self.shared.head.load(Ordering::Acquire);
            if self.tail - self.head == self.shared.slots.len() as u64 {
                return Err(value);
            }
        }
        self.shared.slot(self.tail).with_mut(|slot| {
            // SAFETY: `tail` is outside `head..tail`, so the consumer does not touch this slot until the
            // store below. Its last value was taken out.
            unsafe { (*slot).write(value) };
        });
        self.tail += 1;
        // Release pairs with the Acquire of `tail` in `pop`: a consumer that sees the number sees the value.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest value.
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let value = self.shared.slot(self.head).with(|slot| {
            // SAFETY: `head` is inside `head..tail`. The producer filled this slot and does not touch it
            // until the store below. The value is moved out once, because `head` only grows.
            unsafe { (*slot).assume_init_read() }
        });
        self.head += 1;
        // Release pairs with the Acquire of `head` in `push`: the slot was read before it is refilled.
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Returns whether the queue is empty now.
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            // Acquire pairs with the Release of `tail` in `push`.
            self.tail = self.shared.tail.load(Ordering::Acquire);
        }
        self.head == self.tail
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_and_a_full_ring_hands_back() {
        let (mut producer, mut consumer) = channel(4);
        for round in 0..3u64 {
            for i in 0..4 {
                producer.push(round * 4 + i).unwrap();
            }
            assert_eq!(producer.push(99), Err(99));
            for i in 0..4 {
                assert_eq!(consumer.pop(), Some(round * 4 + i));
            }
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let value = std::sync::Arc::new(());
        let (mut producer, mut consumer) = channel(8);
        for _ in 0..5 {
            producer.push(std::sync::Arc::clone(&value)).unwrap();
        }
        drop(consumer.pop());
        assert_eq!(std::sync::Arc::strong_count(&value), 5);
        drop((producer, consumer));
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn two_threads_pass_everything_on() {
        let (mut producer, mut consumer) = channel(16);
        const COUNT: u64 = 100_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..COUNT {
                    while producer.push(i).is_err() {
                        std::hint::spin_loop();
                    }
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                if let Some(value) = consumer.pop() {
                    assert_eq!(value, expected);
                    expected += 1;
                }
            }
        });
    }
}
