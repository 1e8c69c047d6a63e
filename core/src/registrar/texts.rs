//! Texts of labels and taints, shared between nodes. Whenever a new text is added, a few texts that no node
//! uses any more are dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The number of texts that are checked for each new one. With two, there are at most as many unused texts as
/// used ones.
const SWEPT_PER_TEXT: usize = 2;

#[derive(Default)]
pub(super) struct Texts {
    /// Ordered, because clients choose these texts and could attack a hash of them.
    known: BTreeSet<Arc<str>>,
    /// The same texts in a list, for the sweep.
    all: Vec<Arc<str>>,
    /// The index at which the sweep continues.
    next: usize,
}

impl Texts {
    /// Returns the shared copy of the text.
    pub(super) fn share(&mut self, text: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        for _ in 0..SWEPT_PER_TEXT {
            self.sweep_one();
        }
        self.known.insert(Arc::clone(text));
        self.all.push(Arc::clone(text));
        Arc::clone(text)
    }

    fn sweep_one(&mut self) {
        if self.next >= self.all.len() {
            self.next = 0;
        }
        let Some(text) = self.all.get(self.next) else { return };
        // The two references are `known` and `all`.
        if Arc::strong_count(text) == 2 {
            let gone = self.all.swap_remove(self.next);
            self.known.remove(&gone);
        } else {
            self.next += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.known.len(), self.all.len());
        self.all.len()
    }
}
