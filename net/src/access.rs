//! Who may do what: identities, their roles, and the limits of tenants.
//!
//! A peer is known by the name in its certificate. The configuration gives each name roles and, for those who only
//! submit work, a tenant. A role says which messages a peer may send. A tenant says what they may touch: only what
//! belongs to the tenant. Peers without a tenant act for the operator and may touch everything.

mod roles;
pub use roles::{ParseRoleError, Role, Roles};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wharf_core::ids::{OwnerId, SessionId, TenantId};
use wharf_core::jobs::{Binding, TenantQueue};
use wharf_core::time::Time;

use crate::protocol::{Fault, Kind, Reason};

/// The limits of a tenant. They hold for all its connections together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// The tenant's name.
    pub name: String,
    /// The tenant's number, which is part of the ids of what belongs to it. Not the operator's.
    pub id: TenantId,
    /// The requests per second, at least 1. A batch counts as its parts. `None`: any number.
    pub requests_per_second: Option<u32>,
    /// The maximum number of unanswered requests. Waiting ones do not count. `None`: any number.
    pub in_flight_max: Option<u32>,
    /// The owners whose reservations its requests may use.
    pub owners: Vec<OwnerId>,
    /// The name of the queue to which all is charged that it gets from now on. `None`: it is as anybody's.
    pub queue: Option<String>,
}

impl TenantLimits {
    /// Returns the queue to which it is bound, if it is.
    fn binding(&self) -> Option<Binding> {
        let queue = self.queue.as_deref()?.into();
        Some(Binding::Tenant(TenantQueue { tenant: self.name.as_str().into(), queue }))
    }
}

/// The rate at which a tenant sends requests, as the time at which all of them so far would be through at its limit.
#[derive(Debug, Default)]
pub struct TenantUse {
    /// In ns of the service's clock.
    through_at: AtomicU64,
    /// The number of unanswered requests, over all connections.
    in_flight: AtomicU64,
}

/// How many ns of its rate a tenant may use at once.
const BURST_NS: u64 = 1_000_000_000;

impl TenantUse {
    /// Counts `requests` at `now`. Refuses them if `per_second` does not allow them, and returns the ns to wait.
    fn take(&self, requests: u64, per_second: u32, now: Time) -> Result<(), u64> {
        let each = 1_000_000_000 / u64::from(per_second.max(1));
        let cost = requests.saturating_mul(each);
        let mut wait = 0;
        let count = |through_at: u64| {
            let begins = through_at.max(now.0);
            // Who has used nothing for a while may send any batch once, even if it is larger than the burst.
            wait = (begins - now.0).saturating_sub(BURST_NS.saturating_sub(cost.min(BURST_NS)));
            (wait == 0).then(|| begins.saturating_add(cost))
        };
        // Relaxed: a counter of its own; no other memory depends on it.
        let counted = self.through_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        counted.map(drop).map_err(|_| wait)
    }

    /// Replaces what a connection has in flight.
    pub(crate) fn set_in_flight(&self, before: u64, now: u64) {
        // Relaxed: see above. A sum of differences wraps around to the right number.
        self.in_flight.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    fn in_flight(&self) -> u64 {
        // Relaxed: see above.
        self.in_flight.load(Ordering::Relaxed)
    }
}

/// A tenant as it is configured now, and its use.
#[derive(Debug)]
pub struct Tenant {
    /// The limits.
    pub limits: TenantLimits,
    pub(crate) usage: Arc<TenantUse>,
}

/// What a peer may do.
#[derive(Debug, Default)]
pub struct Rights {
    /// The name in its certificate. Empty if peers have no certificates.
    pub name: String,
    /// The messages that it may send.
    pub roles: Roles,
    /// Who it acts for. `None`: the operator.
    pub tenant: Option<Arc<Tenant>>,
    /// The nodes that it may report, if not all: names, or beginnings of names with a star.
    pub nodes: Option<Vec<String>>,
    /// The queue of its requests that name none, as they bring it along.
    bound: Option<Arc<Binding>>,
}

impl Rights {
    fn none(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), ..Self::default() })
    }

    /// Returns the tenant that it acts for.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        self.tenant.as_ref().map_or(TenantId::OPERATOR, |tenant| tenant.limits.id)
    }

    /// Returns whether it may touch what belongs to `tenant`.
    #[must_use]
    pub fn owns(&self, tenant: TenantId) -> bool {
        self.tenant.as_ref().is_none_or(|own| own.limits.id == tenant)
    }

    /// Returns the queue of its requests that name none, if there is one: that of its tenant, or the default queue.
    #[inline]
    #[must_use]
    pub fn bound(&self) -> Option<&Arc<Binding>> {
        self.bound.as_ref()
    }

    /// Checks that what its tenant gets by this kind of request need not be charged to a queue. `remedy` says what to do
    /// instead. Only a tenant has to be charged for all: the default queue is for requests that may name a queue.
    ///
    /// # Errors
    /// Returns a fault that names the tenant and its queue.
    pub(crate) fn check_unbound(&self, kind: Kind, remedy: &str) -> Result<(), Fault> {
        let Some(Binding::Tenant(bound)) = self.bound().map(Arc::as_ref) else { return Ok(()) };
        let message = format!(
            "tenant `{}` is bound to queue `{}` (setting `tenants.queue`), and `{}` is charged to no queue: {remedy}",
            bound.tenant,
            bound.queue,
            kind.name()
        );
        Err(Fault::of_field(Reason::NotSupportedYet, "queue", message))
    }

    /// Checks that it may send messages of this kind.
    ///
    /// # Errors
    /// Returns a fault that names the missing role.
    pub fn check_kind(&self, kind: Kind) -> Result<(), Fault> {
        if self.roles.has_any(kind.roles()) {
            return Ok(());
        }
        let message = format!(
            "`{}` needs one of the roles {}, and {} has {}: ask the operator for the role (`identities` in the \
             settings of the service)",
            kind.name(),
            kind.roles(),
            self.shown(),
            self.roles
        );
        Err(Fault::new(Reason::Forbidden, message))
    }

    /// Checks that it may report a node of this name.
    ///
    /// # Errors
    /// Returns a fault that says which names it may report.
    pub fn check_node(&self, node: &str) -> Result<(), Fault> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        let is_it = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => node.starts_with(start),
            None => node == pattern,
        };
        if nodes.iter().any(is_it) {
            return Ok(());
        }
        let message = format!("{} may report {} only, and not `{node}`", self.shown(), nodes.join(", "));
        Err(Fault::of_field(Reason::Forbidden, "node.name", message))
    }

    /// Checks that it may use what is reserved for this owner.
    ///
    /// # Errors
    /// Returns a fault that names `owner`.
    pub fn check_owner(&self, owner: u64) -> Result<(), Fault> {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let limits = &tenant.limits;
        if owner == 0 || limits.owners.iter().any(|known| known.number() == owner) {
            return Ok(());
        }
        let message =
            format!("reservations of owner {owner} are not for tenant {}: leave it out", limits.name);
        Err(Fault::of_field(Reason::Forbidden, "owner", message))
    }

    /// Counts requests of its tenant. `begun` is how many of the tenant's requests the connection has in flight and has
    /// not counted yet.
    ///
    /// # Errors
    /// Returns a fault with the time to wait if the tenant has used up its limit.
    pub(crate) fn take(&self, requests: u64, begun: u64, now: Time) -> Result<(), Fault> {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let TenantLimits { name, requests_per_second, in_flight_max, .. } = &tenant.limits;
        let in_flight = tenant.usage.in_flight().saturating_add(begun);
        if let Some(most) = in_flight_max
            && in_flight > u64::from(*most)
        {
            let message =
                format!("tenant {name} has {most} requests in flight, which is all it may: wait for replies");
            return Err(Fault { retry_after_ms: 1, ..Fault::new(Reason::Overloaded, message) });
        }
        let Some(per_second) = requests_per_second else { return Ok(()) };
        tenant.usage.take(requests, *per_second, now).map_err(|wait| {
            let wait_ms = u32::try_from(wait.div_ceil(1_000_000)).unwrap_or(u32::MAX);
            let message = format!(
                "tenant {name} has used up its {per_second} requests per second: ask again in {wait_ms} ms"
            );
            Fault { retry_after_ms: wait_ms, ..Fault::new(Reason::Overloaded, message) }
        })
    }

    /// Returns its name as messages say it.
    #[must_use]
    pub fn shown(&self) -> String {
        if self.name.is_empty() { "this peer".to_owned() } else { format!("`{}`", self.name) }
    }
}

/// An identity in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name in its certificate: the common name of the subject, or a URI among the alternative names.
    pub name: String,
    /// Its roles.
    pub roles: Roles,
    /// The tenant for which it submits work. `None`: the operator.
    pub tenant: Option<TenantId>,
    /// The nodes that it may report, if not all.
    pub nodes: Option<Vec<String>>,
}

/// Who may do what, as settings say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSettings {
    /// The tenants, each number once.
    pub tenants: Vec<TenantLimits>,
    /// The identities, each name once. Their tenants are among `tenants`.
    pub identities: Vec<Identity>,
    /// Peers are known by their certificates. Otherwise everyone may do everything.
    pub by_certificate: bool,
    /// The name of the queue to which placements, groups and jobs go that name none and whose tenant is bound to none. `None`:
    /// such placements and groups are charged to no queue, and such jobs are refused.
    pub default_queue: Option<String>,
}

/// The peer of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The names in its certificate, in order of preference. Empty without a certificate.
    pub names: Vec<String>,
    /// Its address, for messages.
    pub address: String,
}

/// A call that was refused because its peer has no right to it.
#[derive(Clone, Debug)]
pub struct Denied<'a> {
    /// The peer.
    pub peer: &'a Peer,
    /// The session, if it has one.
    pub session: Option<SessionId>,
    /// The kind of the message.
    pub kind: Kind,
    /// The reply.
    pub fault: &'a Fault,
}

/// Who may do what.
#[derive(Debug)]
pub struct Access {
    /// `None` if everyone may do everything.
    by_name: Option<BTreeMap<String, Arc<Rights>>>,
    everyone: Arc<Rights>,
    usage: BTreeMap<TenantId, Arc<TenantUse>>,
}

impl Default for Access {
    fn default() -> Self {
        Self::new(&AccessSettings::default(), None)
    }
}

impl Access {
    /// Creates it from settings. What tenants used before stays counted.
    ///
    /// # Panics
    /// Panics if an identity names a tenant that is not among the tenants. Settings are checked before.
    #[must_use]
    pub fn new(settings: &AccessSettings, before: Option<&Self>) -> Self {
        let default = settings.default_queue.as_deref().map(|queue| Arc::new(Binding::Default(queue.into())));
        let everyone = Rights {
            name: String::new(),
            roles: Roles::EVERY,
            tenant: None,
            nodes: None,
            bound: default.clone(),
        };
        let used =
            |id: TenantId| before.and_then(|before| before.usage.get(&id)).cloned().unwrap_or_default();
        let usage: BTreeMap<_, Arc<TenantUse>> =
            settings.tenants.iter().map(|limits| (limits.id, used(limits.id))).collect();
        let tenant = |limits: &TenantLimits| {
            let usage = Arc::clone(&usage[&limits.id]);
            (limits.id, Arc::new(Tenant { limits: limits.clone(), usage }))
        };
        let tenants: BTreeMap<_, _> = settings.tenants.iter().map(tenant).collect();
        let rights = |identity: &Identity| {
            let Identity { name, roles, tenant, nodes } = identity.clone();
            let tenant = tenant.map(|id| Arc::clone(&tenants[&id]));
            let own = tenant.as_ref().and_then(|tenant| tenant.limits.binding());
            let bound = own.map(Arc::new).or_else(|| default.clone());
            (name.clone(), Arc::new(Rights { name, roles, tenant, nodes, bound }))
        };
        let by_name = settings.by_certificate.then(|| settings.identities.iter().map(rights).collect());
        Self { by_name, everyone: Arc::new(everyone), usage }
    }

    /// Returns the rights of a peer with these names in its certificate, in order of preference. Anyone who is not
    /// configured has none.
    #[must_use]
    pub fn rights(&self, names: &[String]) -> Arc<Rights> {
        let Some(by_name) = &self.by_name else { return Arc::clone(&self.everyone) };
        let known = names.iter().find_map(|name| by_name.get(name)).cloned();
        known.unwrap_or_else(|| Rights::none(names.first().map_or("", String::as_str)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: u16, requests_per_second: Option<u32>) -> TenantLimits {
        let id = TenantId(id);
        let name = format!("t{}", id.0);
        TenantLimits { name, id, requests_per_second, in_flight_max: None, owners: vec![], queue: None }
    }

    fn settings(limits: TenantLimits) -> AccessSettings {
        let identity = Identity {
            name: "a".to_owned(),
            roles: Roles::of(&[Role::Submit]),
            tenant: Some(limits.id),
            nodes: None,
        };
        AccessSettings {
            tenants: vec![limits],
            identities: vec![identity],
            by_certificate: true,
            ..AccessSettings::default()
        }
    }

    #[test]
    fn roles_have_names_that_are_read_back() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
        assert_eq!(Roles::of(&[Role::Submit, Role::Planner]).to_string(), "submit, planner");
        assert_eq!(Roles::default().to_string(), "none");
    }

    #[test]
    fn each_message_needs_a_role_and_an_admin_has_all() {
        for &kind in Kind::ALL {
            let rights = |roles| Rights { name: "a".to_owned(), roles, ..Rights::default() };
            assert_eq!(rights(Roles::of(&[Role::Admin])).check_kind(kind), Ok(()), "{kind:?}");
            let refused = rights(Roles::default()).check_kind(kind).expect_err("no role");
            assert!(
                refused.message.contains(kind.name()) && refused.message.contains("admin"),
                "{refused:?}"
            );
        }
    }

    /// The roles of each kind, next to those in the table of kinds. A role that is wrong there opens the service.
    #[test]
    fn each_role_may_send_its_kinds_and_no_others() {
        let submits = [
            "place",
            "place_batch",
            "release",
            "release_batch",
            "cancel_wait",
            "create_group",
            "grow_group",
            "shrink_group",
            "remove_group",
            "place_into",
            "renew",
            "submit_job",
            "cancel_job",
            "report_tasks",
        ];
        let plans = ["adopt", "reserve", "end_reservation", "submit_statement"];
        let observes = ["list_nodes", "status", "node_books", "follow", "events"];
        let shared = [
            "group_status",
            "list_groups",
            "list_queues",
            "list_priority_classes",
            "job_status",
            "list_jobs",
            "explain_job",
            "explain_wait",
            "plan_nodes",
        ];
        let administers = [
            "add_nodes",
            "update_nodes",
            "drain_nodes",
            "remove_nodes",
            "set_resources",
            "export",
            "set_queue",
            "remove_queue",
            "set_priority_class",
            "remove_priority_class",
        ];
        let agents = ["report", "heartbeat"];
        let mut known = 0;
        let all = [Role::Submit, Role::NodeAgent, Role::Observer, Role::Planner];
        for (kinds, roles) in [
            (&submits[..], &[Role::Submit][..]),
            (&plans, &[Role::Planner]),
            (&observes, &[Role::Observer, Role::Planner]),
            (&shared, &[Role::Submit, Role::Observer, Role::Planner]),
            (&administers, &[]),
            (&agents, &[Role::NodeAgent]),
            (&["hello"], &all),
        ] {
            for name in kinds {
                let kind = Kind::ALL.iter().find(|kind| kind.name() == *name).expect("a kind");
                for role in all {
                    let may = kind.roles().has_any(Roles::of(&[role]));
                    assert_eq!(may, roles.contains(&role), "{role:?} and `{name}`");
                }
            }
            known += kinds.len();
        }
        assert_eq!(known, Kind::ALL.len(), "each kind is in one list");
    }

    #[test]
    fn who_is_not_configured_has_no_rights() {
        let access = Access::new(&settings(tenant(1, None)), None);
        assert_eq!(access.rights(&["b".to_owned()]).roles, Roles::default());
        assert_eq!(access.rights(&[]).roles, Roles::default());
        let both = access.rights(&["b".to_owned(), "a".to_owned()]);
        assert!(both.owns(TenantId(1)) && !both.owns(TenantId(2)) && !both.owns(TenantId::OPERATOR));
        let open = Access::default().rights(&[]);
        assert!(open.roles == Roles::EVERY && open.owns(TenantId(2)));
    }

    #[test]
    fn a_rate_holds_over_any_second_and_survives_new_settings() {
        let access = Access::new(&settings(tenant(1, Some(10))), None);
        let rights = access.rights(&["a".to_owned()]);
        let start = 5_000_000_000;
        let taken = (0..100).filter(|_| rights.take(1, 0, Time(start)).is_ok()).count();
        assert_eq!(taken, 10, "what a second allows, at once");
        let access = Access::new(&settings(tenant(1, Some(10))), Some(&access));
        let rights = access.rights(&["a".to_owned()]);
        let refused = rights.take(1, 0, Time(start)).expect_err("it is used up");
        assert_eq!((refused.reason, refused.retry_after_ms), (Reason::Overloaded.into(), 100));
        assert!(rights.take(1, 0, Time(start + 100_000_000)).is_ok(), "after the time that the fault says");
        assert!(rights.take(1, 0, Time(start + 100_000_000)).is_err());
        let mut taken = 0;
        for at in (0..10_000_000_000).step_by(1_000_000) {
            taken += usize::from(rights.take(1, 0, Time(start + 200_000_000 + at)).is_ok());
        }
        assert!((99..=102).contains(&taken), "ten per second for ten seconds: {taken}");
    }

    #[test]
    fn a_batch_counts_as_its_parts() {
        let access = Access::new(&settings(tenant(1, Some(10))), None);
        let rights = access.rights(&["a".to_owned()]);
        assert!(rights.take(8, 0, Time(0)).is_ok());
        assert!(rights.take(4, 0, Time(0)).is_err());
        assert!(rights.take(2, 0, Time(0)).is_ok());
        // A batch above the rate is served if nothing else was, and is paid for afterwards.
        assert!(rights.take(30, 0, Time(2_000_000_000)).is_ok());
        assert!(rights.take(1, 0, Time(4_000_000_000)).is_err());
        assert!(rights.take(1, 0, Time(5_000_000_000)).is_ok());
    }

    #[test]
    fn requests_in_flight_count_over_all_connections() {
        let limits = TenantLimits { in_flight_max: Some(4), ..tenant(1, None) };
        let access = Access::new(&settings(limits), None);
        let rights = access.rights(&["a".to_owned()]);
        let usage = &rights.tenant.as_ref().unwrap().usage;
        usage.set_in_flight(0, 3);
        assert!(rights.take(1, 1, Time(0)).is_ok());
        assert!(rights.take(1, 2, Time(0)).is_err());
        usage.set_in_flight(3, 1);
        assert!(rights.take(1, 2, Time(0)).is_ok());
    }

    #[test]
    fn an_agent_reports_the_nodes_that_it_may() {
        let nodes = Some(vec!["gpu-*".to_owned(), "login".to_owned()]);
        let rights = Rights { name: "a".to_owned(), roles: Roles::EVERY, nodes, ..Rights::default() };
        let may = |node| rights.check_node(node).is_ok();
        assert_eq!(["gpu-7", "login", "login2", "cpu-1"].map(may), [true, true, false, false]);
    }

    #[test]
    fn a_tenant_uses_reservations_of_its_owners_only() {
        let owners = vec![OwnerId::new(7).unwrap()];
        let access = Access::new(&settings(TenantLimits { owners, ..tenant(1, None) }), None);
        let rights = access.rights(&["a".to_owned()]);
        assert_eq!([0, 7, 8].map(|owner| rights.check_owner(owner).is_ok()), [true, true, false]);
        assert!(Access::default().rights(&[]).check_owner(8).is_ok());
    }

    #[test]
    fn the_default_queue_is_that_of_all_who_are_bound_to_no_other() {
        let mut of = settings(tenant(1, None));
        let operator = Identity { name: "op".to_owned(), tenant: None, ..of.identities[0].clone() };
        of.identities.push(operator);
        let queue_of = |of: &AccessSettings, name: &str| {
            Access::new(of, None).rights(&[name.to_owned()]).bound().map(|bound| (**bound).clone())
        };
        let default = Binding::Default("all".into());
        assert_eq!((queue_of(&of, "a"), queue_of(&of, "op")), (None, None));
        of.default_queue = Some("all".to_owned());
        assert_eq!(queue_of(&of, "a"), Some(default.clone()));
        assert_eq!(queue_of(&of, "op"), Some(default.clone()));
        of.tenants[0].queue = Some("own".to_owned());
        let own = Binding::Tenant(TenantQueue { tenant: "t1".into(), queue: "own".into() });
        assert_eq!(queue_of(&of, "a"), Some(own));
        assert_eq!(queue_of(&of, "op"), Some(default.clone()));
        let open = AccessSettings { default_queue: of.default_queue, ..AccessSettings::default() };
        assert_eq!(queue_of(&open, ""), Some(default), "everyone may do everything");
    }
}
