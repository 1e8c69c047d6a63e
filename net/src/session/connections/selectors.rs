//! The selectors of the last plain placements, by their bytes.
//!
//! Clients ask for few different selectors, again and again. Reading one takes more than everything else that is done for
//! its placement, so an I/O thread keeps some that it has read and checked.

use std::sync::Arc;

use wharf_core::hash::stable_hash;
use wharf_core::node::Selector;

use crate::limits::{SELECTORS_BYTES_MAX, SELECTORS_KNOWN};

/// Selectors that were read and checked. Each has one place, by the hash of its bytes, and replaces what is there.
#[derive(Debug)]
pub(super) struct KnownSelectors(Vec<Option<Known>>);

/// The bytes of a selector, and what was read from them.
type Known = (Box<[u8]>, Arc<Selector>);

impl Default for KnownSelectors {
    fn default() -> Self {
        Self(vec![None; SELECTORS_KNOWN])
    }
}

fn place(bytes: &[u8]) -> usize {
    const { assert!(SELECTORS_KNOWN.is_power_of_two()) };
    stable_hash(bytes) as usize % SELECTORS_KNOWN
}

impl KnownSelectors {
    /// Returns the selector that these bytes encode, if it is known.
    pub(super) fn get(&self, bytes: &[u8]) -> Option<&Arc<Selector>> {
        let (known, selector) = self.0[place(bytes)].as_ref()?;
        (**known == *bytes).then_some(selector)
    }

    /// Learns a selector from the bytes that it was read from.
    pub(super) fn learn(&mut self, bytes: &[u8], selector: &Arc<Selector>) {
        if bytes.len() <= SELECTORS_BYTES_MAX {
            self.0[place(bytes)] = Some((bytes.into(), Arc::clone(selector)));
        }
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::node::{Operator, Term};

    use super::*;

    fn selector(value: &str) -> Arc<Selector> {
        let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec![value.to_owned()] };
        Arc::new(Selector::new(vec![term]))
    }

    #[test]
    fn a_selector_is_found_by_its_own_bytes_only() {
        let mut known = KnownSelectors::default();
        assert_eq!(known.get(b"a"), None);
        known.learn(b"a", &selector("a"));
        assert_eq!(known.get(b"a"), Some(&selector("a")));
        // More than there are places for: each is found as itself, or not at all.
        let bytes = |number: usize| number.to_le_bytes();
        for number in 0..4 * SELECTORS_KNOWN {
            known.learn(&bytes(number), &selector(&number.to_string()));
        }
        let found = |&number: &usize| known.get(&bytes(number)) == Some(&selector(&number.to_string()));
        let count = (0..4 * SELECTORS_KNOWN).filter(found).count();
        let other = |&number: &usize| !found(&number) && known.get(&bytes(number)).is_some();
        assert_eq!((0..4 * SELECTORS_KNOWN).find(other), None);
        assert!((1..=SELECTORS_KNOWN).contains(&count), "{count} are known");
    }

    #[test]
    fn long_selectors_are_not_kept() {
        let mut known = KnownSelectors::default();
        let bytes = [7; SELECTORS_BYTES_MAX + 1];
        known.learn(&bytes, &selector("a"));
        known.learn(&bytes[1..], &selector("b"));
        assert_eq!(known.get(&bytes), None);
        assert_eq!(known.get(&bytes[1..]), Some(&selector("b")));
    }
}
