//! Lost connections with requests that wait, and who they belong to.

use std::collections::BTreeSet;

use wharf_core::ids::TenantId;
use wharf_core::time::Time;

use super::ConnectionKey;
use crate::shares::{Most, Shares};

/// Lost connections, by when their sessions end.
#[derive(Debug, Default)]
pub(super) struct Lost {
    all: BTreeSet<(Time, ConnectionKey)>,
    of_tenants: Shares<TenantId, (Time, ConnectionKey)>,
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
        self.of_tenants.insert(tenant, (due, key), 0);
    }

    pub(super) fn remove(&mut self, due: Time, key: ConnectionKey, tenant: TenantId) {
        self.all.remove(&(due, key));
        self.of_tenants.remove(tenant, (due, key), 0);
    }

    /// Returns the one that ends first of the tenant that has the most.
    pub(super) fn first_of_most(&self) -> Option<(Time, ConnectionKey, TenantId)> {
        let (tenant, (due, key)) = self.of_tenants.first_of_most(Most::Keys)?;
        Some((due, key, tenant))
    }
}
