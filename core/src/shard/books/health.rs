//! Unhealthy GPU instances in the books. Their free part is hidden from new work. What runs on them stays
//! allocated.
//!
//! The whole free part moves out of the GPU books and back. The code that searches, chooses and takes needs no
//! knowledge of health. Per instance, `available + hidden + allocated = total + shortfall`.

use super::table::{ColdNode, HotNode, NodeTable};
use crate::books::UnhealthyBook;
use crate::broken::{Broken, broken};
use crate::index::Slot;
use crate::limits::GPU_INSTANCES_MAX;
use crate::node::Unhealthy;

/// Hides the free part of unhealthy instances.
pub(crate) fn hide(hot: &mut HotNode, cold: &mut ColdNode) {
    let Some(book) = &mut cold.unhealthy else { return };
    for (instance, hidden) in (0u8..).zip(&mut book.hidden) {
        if book.mask & (1 << instance) != 0 {
            *hidden += hot.gpus.free(instance);
            hot.gpus.set_free(instance, 0);
        }
    }
}

/// Restores the hidden parts, so that the books can be changed as if all instances were healthy. The caller
/// hides them again.
pub(crate) fn restore(hot: &mut HotNode, cold: &mut ColdNode) {
    let Some(book) = &mut cold.unhealthy else { return };
    for (instance, hidden) in (0u8..).zip(&mut book.hidden) {
        hot.gpus.set_free(instance, hot.gpus.free(instance) + std::mem::take(hidden));
    }
}

/// Removes instances that the node no longer has, between [`restore`] and [`hide`].
pub(crate) fn forget_absent(hot: &mut HotNode, cold: &mut ColdNode) {
    let Some(mut book) = cold.unhealthy.take() else { return };
    book.reasons.retain(|&(instance, _)| instance < cold.registration.spec.gpus);
    book.mask = mask(&book.reasons);
    hot.has_unhealthy = book.mask != 0;
    cold.unhealthy = hot.has_unhealthy.then_some(book);
}

fn mask(unhealthy: &Unhealthy) -> u16 {
    unhealthy.iter().fold(0, |mask, &(instance, _)| mask | 1 << instance)
}

impl NodeTable {
    /// Replaces the unhealthy instances of a node. Instances that the node does not have are ignored. Returns
    /// whether any instance became healthy.
    pub(super) fn set_health(&mut self, slot: Slot, mut unhealthy: Unhealthy) -> bool {
        let gpus = self.cold(slot).registration.spec.gpus;
        unhealthy.retain(|&(instance, _)| instance < gpus);
        assert!(unhealthy.is_sorted_by_key(|&(instance, _)| instance), "unhealthy instances are ascending");
        if unhealthy.as_slice() == self.unhealthy(slot) {
            return false;
        }
        let (hot, cold) = self.hot_and_cold_mut(slot);
        restore(hot, cold);
        let before = cold.unhealthy.as_ref().map_or(0, |book| book.mask);
        let after = mask(&unhealthy);
        let book = UnhealthyBook { mask: after, hidden: [0; GPU_INSTANCES_MAX], reasons: unhealthy };
        cold.unhealthy = (after != 0).then(|| Box::new(book));
        hot.has_unhealthy = after != 0;
        hide(hot, cold);
        hot.version += 1;
        self.follow_gpus(slot);
        before & !after != 0
    }

    /// Returns the unhealthy instances of a node in ascending order, each with its reason.
    pub(crate) fn unhealthy(&self, slot: Slot) -> &[(u8, std::sync::Arc<str>)] {
        self.cold(slot).unhealthy.as_ref().map_or(&[], |book| &book.reasons)
    }
}

impl ColdNode {
    /// Returns the hidden part of one instance, in 1/10,000.
    pub(crate) fn hidden(&self, instance: u8) -> u16 {
        self.unhealthy.as_ref().map_or(0, |book| book.hidden[usize::from(instance)])
    }

    /// Returns the hidden part of all instances, in 1/10,000.
    pub(crate) fn hidden_total(&self) -> i128 {
        (0..GPU_INSTANCES_MAX as u8).map(|instance| i128::from(self.hidden(instance))).sum()
    }
}

/// Checks that unhealthy instances offer nothing, and that healthy ones hide nothing.
pub(crate) fn check(hot: &HotNode, cold: &ColdNode) -> Result<(), Broken> {
    if hot.has_unhealthy != cold.unhealthy.is_some() {
        return Err(broken!("node {}: hot and cold parts disagree about health", hot.id));
    }
    let Some(book) = &cold.unhealthy else { return Ok(()) };
    if book.mask == 0 || book.mask != mask(&book.reasons) {
        return Err(broken!("node {}: unhealthy instances {:#x} without their reasons", hot.id, book.mask));
    }
    for instance in 0..GPU_INSTANCES_MAX as u8 {
        let unhealthy = book.mask & (1 << instance) != 0;
        let free = hot.gpus.free(instance);
        let hidden = cold.hidden(instance);
        if (unhealthy && free != 0) || (!unhealthy && hidden != 0) {
            return Err(broken!(
                "node {}, gpu instance {instance}: {free} free and {hidden} hidden, unhealthy: {unhealthy}",
                hot.id
            ));
        }
    }
    Ok(())
}
