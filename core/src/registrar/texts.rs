//! Texts of labels and taints, shared between nodes. Texts that no node has any more are dropped a few at
//! a time, whenever a new one comes.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Texts that are looked at for each new one. With two, at most as many unused texts are kept as are in use.
const SWEPT_PER_TEXT: usize = 2;

#[derive(Default)]
pub(super) struct Texts {
    /// In order: peers choose these texts, and a hash of them could be attacked.
    known: BTreeSet<Arc<str>>,
    /// The same, one after the other.
    all: Vec<Arc<str>>,
    /// Where the sweep goes on.
    next: usize,
}

impl Texts {
    /// The text as it is shared.
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
        // The two references are the ones here.
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
