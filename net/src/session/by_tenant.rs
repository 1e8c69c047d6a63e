//! Who gives up what it has when all together have too much.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::TenantId;

/// What keys of a tenant are counted by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Most {
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

/// Keys, each with its tenant and its bytes. The tenant with the most gives up its first key. Of tenants with as much, it is
/// the one with the first key.
#[derive(Debug)]
pub(super) struct ByTenant<K>(BTreeMap<TenantId, Share<K>>);

impl<K> Default for ByTenant<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy> ByTenant<K> {
    pub(super) fn insert(&mut self, tenant: TenantId, key: K, bytes: usize) {
        let share = self.0.entry(tenant).or_insert_with(|| Share { keys: BTreeSet::new(), bytes: 0 });
        share.keys.insert(key);
        share.bytes += bytes;
    }

    /// Removes a key with the bytes that it was inserted with.
    ///
    /// # Panics
    /// Panics if the tenant does not have the key.
    pub(super) fn remove(&mut self, tenant: TenantId, key: K, bytes: usize) {
        let share = self.0.get_mut(&tenant).expect("the tenant of a key has a share");
        assert!(share.keys.remove(&key), "tenant {} does not have the key", tenant.0);
        share.bytes -= bytes;
        if share.keys.is_empty() {
            self.0.remove(&tenant);
        }
    }

    /// Returns the first key of the tenant with the most.
    pub(super) fn first_of_most(&self, most: Most) -> Option<(TenantId, K)> {
        let amount = |share: &Share<K>| match most {
            Most::Keys => share.keys.len(),
            Most::Bytes => share.bytes,
        };
        let share = self.0.iter().max_by_key(|(_, share)| (amount(share), Reverse(share.keys.first())));
        share.and_then(|(&tenant, share)| Some((tenant, *share.keys.first()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_with_the_most_gives_up_its_first() {
        let mut of = ByTenant::default();
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
        assert!(of.0.is_empty(), "nothing is kept of tenants that have nothing");
    }
}
