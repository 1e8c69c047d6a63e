//! Wakes the thread at the end of a ring.

use std::sync::{Arc, OnceLock};
use std::task::Wake;

/// Wakes a thread once the thread has registered itself.
#[derive(Default)]
pub struct ThreadWaker(OnceLock<std::thread::Thread>);

impl ThreadWaker {
    /// Registers the calling thread as the one to wake. An earlier wake-up is not lost, because the thread
    /// has not looked at its rings yet.
    pub fn set_current(&self) {
        let _ = self.0.set(std::thread::current());
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}
