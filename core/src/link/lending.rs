//! Work of a thread that other threads may do while it sleeps.
//!
//! A thread that asks a sleeping thread for something would wake it, and then wait until the system runs it. On an idle
//! machine that takes longer than the work itself. So the thread that asks may borrow the work for a moment.
//!
//! The owner holds the value whenever it is awake. It falls asleep by its [`Doorbell`] while it holds the value, and then
//! lets go of it. A borrower falls asleep in the owner's place, by the same bell and with the value in its hands. If it
//! cannot, because something came in the meantime, it wakes the owner. So no wake-up is lost: every ring comes before a
//! last poll that sees it, or after one of the two fell asleep.
//!
//! Model-checked in `core/tests/loom_lending.rs`.

use std::ops::DerefMut;
use std::sync::{Arc, TryLockError};

use super::Doorbell;
use crate::sync::Mutex;

/// A value that a thread owns, and that others may use while that thread sleeps.
pub struct Lending<T> {
    value: Mutex<T>,
    /// The bell that wakes the owner.
    bell: Arc<Doorbell>,
}

/// What a port may do for a shard that sleeps.
pub trait Lent: Send + Sync {
    /// Does the work of the owner if it sleeps. Returns whether nobody has to ring for it.
    fn try_run(&self) -> bool;
}

impl<T> Lending<T> {
    /// Creates a value whose owner sleeps by `bell`.
    #[must_use]
    pub fn new(value: T, bell: Arc<Doorbell>) -> Self {
        Self { value: Mutex::new(value), bell }
    }

    /// Takes the value for the owner, until the guard is dropped.
    ///
    /// # Panics
    /// Panics if a borrower panicked with the value: it may be half changed.
    pub fn hold(&self) -> impl DerefMut<Target = T> {
        self.value.lock().expect("no thread that borrowed this value panicked")
    }

    /// Lets `work` use the value if the owner sleeps. `work` polls a last time, as the owner does before it sleeps, and
    /// returns whether the owner may sleep on as it does now. If not, the owner is woken. Returns false if `work` was not
    /// called: the owner is awake, or another thread uses the value. The caller must ring the bell then.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn borrow(&self, work: impl FnOnce(&mut T) -> bool) -> bool {
        if !self.bell.is_asleep() {
            return false;
        }
        let mut value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => panic!("a thread that borrowed this value panicked"),
        };
        let sleeps_on = work(&mut value);
        drop(value);
        if !sleeps_on {
            self.bell.wake();
        }
        true
    }
}
