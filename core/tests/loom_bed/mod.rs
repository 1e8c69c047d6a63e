//! What threads sleep on in a model.

use std::sync::Arc as StdArc;
use std::task::Wake;

use loom::sync::{Condvar, Mutex};

/// What a thread sleeps on: a wake-up that comes first is kept, as `thread::park` keeps it.
#[derive(Default)]
pub(crate) struct Bed {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Bed {
    pub(crate) fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Bed {
    fn wake(self: StdArc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}
