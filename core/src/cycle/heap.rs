//! A heap whose order comes from outside: shares change between two steps, so the order is asked for at each step.

use std::cmp::Ordering;

/// A binary heap with the first entry on top.
pub(super) struct Heap<T> {
    entries: Vec<T>,
}

impl<T> Heap<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first entry.
    pub(super) fn first(&self) -> Option<&T> {
        self.entries.first()
    }

    /// Removes and returns all entries, in no order.
    pub(super) fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.entries)
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, entry: T, order: impl Fn(&T, &T) -> Ordering) {
        self.entries.push(entry);
        let mut at = self.entries.len() - 1;
        while at > 0 {
            let above = (at - 1) / 2;
            if order(&self.entries[at], &self.entries[above]).is_ge() {
                break;
            }
            self.entries.swap(at, above);
            at = above;
        }
    }

    /// Removes and returns the first entry.
    pub(super) fn pop(&mut self, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
        let last = self.entries.len().checked_sub(1)?;
        self.entries.swap(0, last);
        let first = self.entries.pop();
        let mut at = 0;
        loop {
            let mut least = at;
            for below in [2 * at + 1, 2 * at + 2] {
                if below < self.entries.len() && order(&self.entries[below], &self.entries[least]).is_lt() {
                    least = below;
                }
            }
            if least == at {
                return first;
            }
            self.entries.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_out_in_order(entries in prop::collection::vec(0..50_u32, 0..40)) {
            let mut heap = Heap::new();
            entries.iter().for_each(|&entry| heap.push(entry, u32::cmp));
            let mut out = Vec::new();
            while let Some(entry) = heap.pop(u32::cmp) {
                out.push(entry);
            }
            let mut sorted = entries;
            sorted.sort_unstable();
            prop_assert_eq!(out, sorted);
            prop_assert!(heap.is_empty());
        }
    }
}
