//! Stops the threads of an engine.

use std::sync::Arc;

use super::Doorbell;
use crate::sync::{AtomicBool, Ordering};

/// Asks runners to stop. They process what is in their rings, then return.
#[derive(Clone, Default)]
pub struct StopSignal {
    stopped: Arc<AtomicBoolOff>,
    bells: Arc<std::sync::Mutex<Vec<Arc<Doorbell>>>>,
}

struct AtomicBoolOff(AtomicBool);

impl Default for AtomicBoolOff {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl StopSignal {
    pub(crate) fn watch(&self, bell: &Arc<Doorbell>) {
        self.bells.lock().expect("no holder of the bells panics").push(Arc::clone(bell));
    }

    /// Stops every runner that was made with this signal. Call it only when nothing more will be submitted.
    pub fn stop(&self) {
        // Release pairs with the Acquire in `is_stopped`: what was submitted before is visible.
        self.stopped.0.store(true, Ordering::Release);
        for bell in self.bells.lock().expect("no holder of the bells panics").iter() {
            bell.ring();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire pairs with the Release in `stop`.
        self.stopped.0.load(Ordering::Acquire)
    }
}
