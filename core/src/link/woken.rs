//! The waiting requests and bundles that a shard woke, passed to their port separately from answers.
//!
//! Model-checked in `core/tests/loom_woken.rs`, together with the port's doorbell.

use std::sync::Arc;

use super::ShardNews;
use crate::ids::ShardId;
use crate::sync::Mutex;

/// Numbers of woken copies between a shard and their port. A lock protects them. It is taken only when a
/// copy was woken. The port finds the boxes with numbers by one set of shards, so an empty box costs it nothing.
#[derive(Debug)]
pub struct WokenBox {
    numbers: Mutex<Vec<u64>>,
    shard: ShardId,
    /// The shards whose boxes have numbers, the same in all boxes of a port.
    of_port: Arc<ShardNews>,
}

impl WokenBox {
    /// Creates the empty box of a shard. `of_port` is shared by all boxes of its port.
    #[must_use]
    pub fn new(shard: ShardId, of_port: Arc<ShardNews>) -> Self {
        Self { numbers: Mutex::new(Vec::new()), shard, of_port }
    }

    /// Returns the shards whose boxes have numbers, over all boxes of the port.
    #[must_use]
    pub fn of_port(&self) -> &Arc<ShardNews> {
        &self.of_port
    }

    /// Adds one request. Ring the port's bell after this.
    ///
    /// # Panics
    /// Panics if another thread panicked while it held the lock.
    pub fn put(&self, number: u64) {
        self.numbers.lock().expect("no holder of the woken panics").push(number);
        // After the number: a port that takes the shard from the set finds it.
        self.of_port.put(self.shard);
    }

    /// Takes all numbers, in order. The port calls it after it took the shard from the set.
    ///
    /// # Panics
    /// Panics as [`put`](Self::put) does.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.numbers.lock().expect("no holder of the woken panics"))
    }
}
