//! The means by which threads sleep in a model.

use std::sync::Arc as StdArc;
use std::task::Wake;

use loom::sync::{Condvar, Mutex};

/// Lets a thread sleep. As with `thread::park`, a wake-up that comes first is remembered.
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
