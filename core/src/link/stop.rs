//! Stops the threads of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Doorbell;

/// Asks runners to stop. They process what is in their rings, then return.
#[derive(Clone, Default)]
pub struct StopSignal {
    stopped: Arc<AtomicBool>,
    bells: Arc<std::sync::Mutex<Vec<Arc<Doorbell>>>>,
}

impl StopSignal {
    pub(crate) fn watch(&self, bell: &Arc<Doorbell>) {
        self.bells.lock().expect("no holder of the bells panics").push(Arc::clone(bell));
    }

    /// Stops every runner that was made with this signal. Call it only when nothing more will be submitted.
    pub fn stop(&self) {
        // Release pairs with the Acquire in `is_stopped`: what was submitted before is visible.
        self.stopped.store(true, Ordering::Release);
        for bell in self.bells.lock().expect("no holder of the bells panics").iter() {
            bell.ring();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }
}
