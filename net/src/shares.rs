//! Who gives up what it has when all together have too much.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// What keys of a party are counted by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Most {
    /// Their number.
    Keys,
    /// Their bytes.
    Bytes,
}

#[derive(Debug)]
struct Share<K> {
    keys: BTreeSet<K>,
    bytes: usize,
}

/// Keys, each with its bytes and the party that has it: a tenant, or a network. The party with the most gives up its first key.
/// Of parties with as much, it is the one with the first key.
#[derive(Debug)]
pub(crate) struct Shares<P, K>(BTreeMap<P, Share<K>>);

impl<P, K> Default for Shares<P, K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<P: Ord + Copy + Debug, K: Ord + Copy> Shares<P, K> {
    pub(crate) fn insert(&mut self, party: P, key: K, bytes: usize) {
        let share = self.0.entry(party).or_insert_with(|| Share { keys: BTreeSet::new(), bytes: 0 });
        share.keys.insert(key);
        share.bytes += bytes;
    }

    /// Removes a key with the bytes that it was inserted with.
    ///
    /// # Panics
    /// Panics if the party does not have the key.
    pub(crate) fn remove(&mut self, party: P, key: K, bytes: usize) {
        let share = self.0.get_mut(&party).expect("the party of a key has a share");
        assert!(share.keys.remove(&key), "{party:?} does not have the key");
        share.bytes -= bytes;
        if share.keys.is_empty() {
            self.0.remove(&party);
        }
    }

    /// Returns the first key of the party with the most.
    pub(crate) fn first_of_most(&self, most: Most) -> Option<(P, K)> {
        let amount = |share: &Share<K>| match most {
            Most::Keys => share.keys.len(),
            Most::Bytes => share.bytes,
        };
        let share = self.0.iter().max_by_key(|(_, share)| (amount(share), Reverse(share.keys.first())));
        share.and_then(|(&party, share)| Some((party, *share.keys.first()?)))
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::TenantId;

    use super::*;

    #[test]
    fn the_party_with_the_most_gives_up_its_first() {
        let mut of = Shares::default();
        let [a, b] = [TenantId(1), TenantId(2)];
        of.insert(a, 5, 100);
        of.insert(b, 9, 1);
        of.insert(b, 7, 1);
        assert_eq!(of.first_of_most(Most::Keys), Some((b, 7)));
        assert_eq!(of.first_of_most(Most::Bytes), Some((a, 5)));
        of.remove(b, 7, 1);
        // Both have one.
        assert_eq!(of.first_of_most(Most::Keys), Some((a, 5)));
        of.insert(b, 3, 1);
        of.remove(b, 9, 1);
        assert_eq!(of.first_of_most(Most::Keys), Some((b, 3)));
        of.remove(b, 3, 1);
        of.remove(a, 5, 100);
        assert_eq!(of.first_of_most(Most::Keys), None);
        assert!(of.0.is_empty(), "nothing is kept of parties that have nothing");
    }
}
