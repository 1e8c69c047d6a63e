//! Wakes the thread at the end of a ring.

use std::sync::{Arc, OnceLock};
use std::task::Wake;

/// Wakes a thread once it has said which one it is.
#[derive(Default)]
pub struct ThreadWaker(OnceLock<std::thread::Thread>);

impl ThreadWaker {
    /// Called by the thread that is to be woken. A wake-up before this is not lost: that thread
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
