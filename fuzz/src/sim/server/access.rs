//! What the clients of a simulation may do.

use wharf_core::ids::{OwnerId, TenantId};
use wharf_net::access::{AccessSettings, Identity, Role, Roles, TenantLimits};

/// The names in the certificates of users, by their tenant. The first one acts for the operator.
pub(in crate::sim) const USERS: [&str; 3] = ["user-0", "user-1", "user-2"];
/// The name in the certificate of the operator.
pub(in crate::sim) const OPERATOR: &str = "operator";
/// The name in the certificates of agents.
pub(in crate::sim) const AGENT: &str = "agent";

/// What the clients may do: what they ask, and no more.
pub(super) fn access() -> AccessSettings {
    let tenant = |id| TenantLimits {
        name: format!("tenant-{id}"),
        id: TenantId(id),
        requests_per_second: None,
        in_flight_max: None,
        owners: [1, 2].into_iter().filter_map(OwnerId::new).collect(),
        queue: None,
    };
    let identity = |name: &str, role, tenant: u16| {
        let tenant = (tenant > 0).then_some(TenantId(tenant));
        Identity { name: name.to_owned(), roles: Roles::of(&[role]), tenant, nodes: None }
    };
    let users = (0..).zip(USERS).map(|(tenant, name)| identity(name, Role::Submit, tenant));
    let others = [identity(OPERATOR, Role::Admin, 0), identity(AGENT, Role::NodeAgent, 0)];
    AccessSettings {
        tenants: vec![tenant(1), tenant(2)],
        identities: users.chain(others).collect(),
        by_certificate: true,
        ..AccessSettings::default()
    }
}
