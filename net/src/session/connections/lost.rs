//! Lost connections with requests that wait, and who they belong to.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::TenantId;
use wharf_core::time::Time;

use super::ConnectionKey;

/// Lost connections, by when their sessions end.
#[derive(Debug, Default)]
pub(super) struct Lost {
    all: BTreeSet<(Time, ConnectionKey)>,
    of_tenants: BTreeMap<TenantId, BTreeSet<(Time, ConnectionKey)>>,
}

impl Lost {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the one whose session ends first.
    pub(super) fn first(&self) -> Option<(Time, ConnectionKey)> {
        self.all.first().copied()
    }

    pub(super) fn insert(&mut self, due: Time, key: ConnectionKey, tenant: TenantId) {
        self.all.insert((due, key));
        self.of_tenants.entry(tenant).or_default().insert((due, key));
    }

    pub(super) fn remove(&mut self, due: Time, key: ConnectionKey, tenant: TenantId) {
        self.all.remove(&(due, key));
        if let Some(of_tenant) = self.of_tenants.get_mut(&tenant) {
            of_tenant.remove(&(due, key));
            if of_tenant.is_empty() {
                self.of_tenants.remove(&tenant);
            }
        }
    }

    /// Returns the one that ends first of the tenant that has the most.
    pub(super) fn first_of_most(&self) -> Option<(Time, ConnectionKey, TenantId)> {
        let (&tenant, most) = self.of_tenants.iter().max_by_key(|(_, of_tenant)| of_tenant.len())?;
        let &(due, key) = most.first()?;
        Some((due, key, tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_with_the_most_loses_its_first() {
        let mut lost = Lost::default();
        let [a, b] = [TenantId(1), TenantId(2)];
        lost.insert(Time(5), 0, a);
        lost.insert(Time(9), 1, b);
        lost.insert(Time(7), 2, b);
        assert_eq!((lost.len(), lost.first()), (3, Some((Time(5), 0))));
        assert_eq!(lost.first_of_most(), Some((Time(7), 2, b)));
        lost.remove(Time(7), 2, b);
        lost.remove(Time(9), 1, b);
        assert_eq!(lost.first_of_most(), Some((Time(5), 0, a)));
        lost.remove(Time(5), 0, a);
        assert_eq!((lost.len(), lost.first(), lost.first_of_most()), (0, None, None));
        assert!(lost.of_tenants.is_empty(), "nothing is kept of tenants that have none");
    }
}
