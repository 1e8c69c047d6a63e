//! Settings of who may do what: certificates of clients, identities and tenants.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use wharf_core::ids::{OwnerId, TenantId};
use wharf_core::jobs::QueueId;
use wharf_net::access::{AccessSettings, Identity, Role, Roles, TenantLimits};

use super::raw::{IdentityRaw, Raw, TenantRaw};
use super::{ConfigError, value};

/// The files that say which clients are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The PEM file of the authorities that sign the certificates of clients.
    pub authorities: PathBuf,
    /// The PEM file of the lists of revoked certificates, if there is one.
    pub revoked: Option<PathBuf>,
}

/// Checks whether clients show certificates, and returns the files for it.
pub(super) fn clients(raw: &Raw, listen: SocketAddr) -> Result<Option<ClientFiles>, ConfigError> {
    let is_local = listen.ip().is_loopback();
    let wanted = match raw.client_certificates.as_str() {
        "auto" => raw.tls_client_ca.is_some() || !is_local,
        "required" => true,
        "off" => false,
        other => {
            let message = format!("`{other}` is none: give auto, required or off");
            return Err(value("client_certificates", message));
        }
    };
    match (&raw.tls_client_ca, wanted) {
        (Some(authorities), true) => {
            if !is_local && raw.tls_certificate.is_none() {
                let message = format!(
                    "it is missing, and {listen} can be reached from other machines, for which the development \
                     certificate is not valid: `wharf cert init` makes one"
                );
                return Err(value("tls_certificate", message).or_at("listen"));
            }
            Ok(Some(ClientFiles { authorities: authorities.clone(), revoked: raw.tls_client_crl.clone() }))
        }
        (None, true) => {
            let message = format!(
                "it is missing, and clients of {listen} must show certificates: `wharf cert init` makes all that is \
                 needed (`client_certificates = \"off\"` lets everyone who reaches the port do everything)"
            );
            Err(value("tls_client_ca", message).or_at("client_certificates").or_at("listen"))
        }
        (Some(_), false) => {
            let message = "it is given, and `client_certificates` is off: leave one of the two out";
            Err(value("tls_client_ca", message))
        }
        (None, false) => Ok(None),
    }
}

/// Checks tenants, identities and the default queue. `keeps_jobs` says whether the service has queues.
pub(super) fn access(
    raw: &Raw,
    by_certificate: bool,
    keeps_jobs: bool,
) -> Result<AccessSettings, ConfigError> {
    let has_none = raw.identities.is_empty() && raw.tenants.is_empty();
    if !by_certificate && !has_none {
        let key = if raw.identities.is_empty() { "tenants" } else { "identities" };
        let message =
            "clients show no certificates, so none is known: set `tls_client_ca`, or leave this out";
        return Err(value(key, message));
    }
    if by_certificate && raw.identities.is_empty() {
        let message = "there are none, so nobody could do anything: give each client a name and roles, such as \
                       `[[identities]]`, `name = \"admin\"`, `roles = [\"admin\"]`";
        let asks = ["tls_client_ca", "client_certificates", "listen"];
        return Err(asks.into_iter().fold(value("identities", message), ConfigError::or_at));
    }
    let tenants = raw.tenants.iter().enumerate().map(|(at, tenant)| limits(at, tenant, &raw.tenants[..at]));
    let tenants = tenants.collect::<Result<Vec<_>, _>>()?;
    if let Some((at, of)) = tenants.iter().enumerate().find(|(_, of)| of.queue.is_some() && !keeps_jobs) {
        let message = format!(
            "entry {}: `{}` has a `queue`, and the service keeps none: leave it out, or set `jobs.enabled` and at least one \
             of `planners`",
            at + 1,
            of.name
        );
        return Err(value("tenants", message).at(format!("tenants.{at}.queue")));
    }
    let default_queue = default_queue(raw, keeps_jobs)?;
    let mut names = BTreeSet::new();
    let mut identities = Vec::with_capacity(raw.identities.len());
    for (at, written) in raw.identities.iter().enumerate() {
        let wrong = |field: &str, message: &str| {
            let message = format!("entry {}: {message}", at + 1);
            value("identities", message).at(format!("identities.{at}.{field}"))
        };
        let identity = identity(written, &tenants).map_err(|fault| wrong(fault.field, &fault.message))?;
        if !names.insert(written.name.as_str()) {
            let message = format!("`{}` is given twice: give each name once", written.name);
            return Err(wrong("name", &message));
        }
        identities.push(identity);
    }
    Ok(AccessSettings { tenants, identities, by_certificate, default_queue })
}

/// Checks the queue of what names none, if there is one. Whether it exists, only the running service knows.
fn default_queue(raw: &Raw, keeps_jobs: bool) -> Result<Option<String>, ConfigError> {
    let Some(queue) = &raw.jobs.default_queue else { return Ok(None) };
    let wrong = |message: String| Err(value("jobs.default_queue", message));
    if let Err(fault) = wharf_net::convert::check_name("queue", queue) {
        return wrong(format!("no queue can have this name: {}", fault.message));
    }
    if queue == QueueId::ROOT_NAME {
        return wrong(format!("{queue} contains all queues: name another one"));
    }
    if !keeps_jobs {
        let message = format!(
            "it is `{queue}`, and the service keeps no queues: leave it out, or set `jobs.enabled` and at least one of \
             `planners`"
        );
        return wrong(message);
    }
    Ok(Some(queue.clone()))
}

fn limits(at: usize, written: &TenantRaw, before: &[TenantRaw]) -> Result<TenantLimits, ConfigError> {
    let TenantRaw { name, number, requests_per_second, in_flight_max, owners, queue } = written.clone();
    let wrong = |field: &str, message: String| {
        value("tenants", format!("entry {}: {message}", at + 1)).at(format!("tenants.{at}.{field}"))
    };
    if name.is_empty() {
        return Err(wrong("name", "it has no name: give one".to_owned()));
    }
    if number == TenantId::OPERATOR.0 {
        let message = format!("`{name}` has number 0, which is the operator's: give 1 to {}", u16::MAX);
        return Err(wrong("number", message));
    }
    if let Some(other) = before.iter().find(|other| other.name == name || other.number == number) {
        let message = format!(
            "`{name}` (number {number}) and `{}` (number {}) are alike: give each tenant a name and a number of its own",
            other.name, other.number
        );
        return Err(wrong(if other.name == name { "name" } else { "number" }, message));
    }
    for (key, limit) in [("requests_per_second", requests_per_second), ("in_flight_max", in_flight_max)] {
        if limit == Some(0) {
            let message =
                format!("`{name}` has `{key}` 0, so it could do nothing: give 1 or more, or leave it out");
            return Err(wrong(key, message));
        }
    }
    let owners = owners.iter().map(|&owner| {
        let known = OwnerId::new(owner).filter(|owner| !owner.is_ticket());
        known.ok_or_else(|| wrong("owners", format!("`{name}`: {owner} is no owner: give 1 to {}", i64::MAX)))
    });
    let owners = owners.collect::<Result<_, _>>()?;
    if let Some(queue) = &queue {
        let checked = wharf_net::convert::check_name("queue", queue);
        checked.map_err(|fault| {
            wrong("queue", format!("`{name}` has a `queue` that none can be: {}", fault.message))
        })?;
        if queue == QueueId::ROOT_NAME {
            let message = format!("`{name}` has the `queue` {queue}, which contains all: name another one");
            return Err(wrong("queue", message));
        }
    }
    Ok(TenantLimits { name, id: TenantId(number), requests_per_second, in_flight_max, owners, queue })
}

/// An identity that cannot be used: the fault and the remedy.
struct Wrong {
    field: &'static str,
    message: String,
}

fn fault(field: &'static str, message: impl Into<String>) -> Wrong {
    Wrong { field, message: message.into() }
}

fn identity(written: &IdentityRaw, tenants: &[TenantLimits]) -> Result<Identity, Wrong> {
    let IdentityRaw { name, roles, tenant, nodes } = written.clone();
    if name.is_empty() {
        let message = "it has no name: give the common name, or a URI, of the client's certificate";
        return Err(fault("name", message));
    }
    let roles = roles.iter().map(|role| role.parse::<Role>());
    let roles =
        roles.collect::<Result<Vec<_>, _>>().map_err(|error| fault("roles", format!("`{name}`: {error}")))?;
    if roles.is_empty() {
        let message = format!("`{name}` has no roles, so it could do nothing: give at least one");
        return Err(fault("roles", message));
    }
    let known = |wanted: &String| {
        let found = tenants.iter().find(|tenant| tenant.name == *wanted);
        found.map(|tenant| tenant.id).ok_or_else(|| {
            let message =
                format!("`{name}` is of tenant `{wanted}`, which is not among `tenants`: add it there");
            fault("tenant", message)
        })
    };
    let tenant = tenant.as_ref().map(known).transpose()?;
    if tenant.is_some() && roles != [Role::Submit] {
        let message = format!(
            "`{name}` has a tenant, and roles that reach beyond it: give it the role submit alone, or no tenant"
        );
        return Err(fault("tenant", message));
    }
    if nodes.is_some() && !roles.contains(&Role::NodeAgent) {
        let message = format!("`{name}` has `nodes`, and not the role node-agent: leave `nodes` out");
        return Err(fault("nodes", message));
    }
    Ok(Identity { name, roles: Roles::of(&roles), tenant, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn check(text: &str) -> anyhow::Result<Config> {
        Ok(Config::check(toml::from_str(text)?)?)
    }

    #[track_caller]
    fn refused(text: &str) -> String {
        check(text).expect_err("it is refused").to_string()
    }

    const BY_CERTIFICATE: &str = "tls_client_ca = \"ca.pem\"\n";

    #[test]
    fn clients_show_certificates_unless_only_this_machine_is_served() {
        assert!(check("").unwrap().clients.is_none());
        let beyond = "listen = \"0.0.0.0:7411\"\n";
        let said = refused(beyond);
        assert!(said.contains("tls_client_ca") && said.contains("wharf cert init"), "{said}");
        let off = format!("{beyond}client_certificates = \"off\"");
        assert!(check(&off).unwrap().clients.is_none());
        let admin = "[[identities]]\nname = \"admin\"\nroles = [\"admin\"]";
        let no_own = refused(&format!("{beyond}{BY_CERTIFICATE}{admin}"));
        assert!(no_own.contains("tls_certificate"), "{no_own}");
        let own = "tls_certificate = \"server.pem\"\ntls_key = \"server-key.pem\"\n";
        let config = check(&format!("{beyond}{BY_CERTIFICATE}{own}{admin}")).unwrap();
        assert_eq!(config.clients.unwrap().authorities, PathBuf::from("ca.pem"));
        assert!(config.access.by_certificate);
        assert!(refused("client_certificates = \"maybe\"").contains("auto, required or off"));
        assert!(check("client_certificates = \"required\"").is_err());
        assert!(check(&format!("{BY_CERTIFICATE}client_certificates = \"off\"")).is_err());
    }

    #[test]
    fn tenants_and_identities_are_read() {
        let text = format!(
            "{BY_CERTIFICATE}[[tenants]]\nname = \"ray\"\nnumber = 7\nrequests_per_second = 100\nowners = [3]\nqueue = \"research\"\n\
             [[identities]]\nname = \"ray-head\"\ntenant = \"ray\"\nroles = [\"submit\"]\n\
             [[identities]]\nname = \"agents\"\nroles = [\"node-agent\"]\nnodes = [\"gpu-*\"]"
        );
        let access = check(&text).unwrap().access;
        assert_eq!((access.tenants[0].id, access.tenants[0].requests_per_second), (TenantId(7), Some(100)));
        assert_eq!(access.tenants[0].queue.as_deref(), Some("research"));
        assert_eq!(access.identities[0].tenant, Some(TenantId(7)));
        assert_eq!(access.identities[1].nodes.as_deref(), Some(&["gpu-*".to_owned()][..]));
    }

    #[test]
    fn a_default_queue_needs_no_tenants() {
        let of = |text: &str| check(text).unwrap().access;
        assert_eq!(of("").default_queue, None);
        let access = of("[jobs]\ndefault_queue = \"all\"\n");
        assert_eq!((access.default_queue.as_deref(), access.by_certificate), (Some("all"), false));
        let without = refused("planners = 0\n[jobs]\ndefault_queue = \"all\"\n");
        assert!(
            without.contains("`jobs.default_queue`: it is `all`") && without.contains("`planners`"),
            "{without}"
        );
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused_by_name() {
        let tenant = "[[tenants]]\nname = \"a\"\nnumber = 1\n";
        let identity = "[[identities]]\nname = \"x\"\nroles = [\"submit\"]\n";
        for (text, named) in [
            ("[[tenants]]\nname = \"a\"\nnumber = 0\n".to_owned(), "number 0"),
            ("[[tenants]]\nname = \"\"\nnumber = 1\n".to_owned(), "no name"),
            (format!("{tenant}[[tenants]]\nname = \"b\"\nnumber = 1\n"), "alike"),
            (format!("{tenant}[[tenants]]\nname = \"a\"\nnumber = 2\n"), "alike"),
            ("[[tenants]]\nname = \"a\"\nnumber = 1\nin_flight_max = 0\n".to_owned(), "in_flight_max"),
            ("[[tenants]]\nname = \"a\"\nnumber = 1\nowners = [0]\n".to_owned(), "no owner"),
            (format!("{tenant}queue = \"\"\n"), "`a` has a `queue` that none can be"),
            (format!("{tenant}queue = \"root\"\n"), "contains all"),
            (format!("{tenant}queue = \"q\"\n[jobs]\nenabled = false\n"), "`jobs.enabled`"),
            ("[jobs]\ndefault_queue = \"\"\n".to_owned(), "no queue can have this name"),
            ("[jobs]\ndefault_queue = \"root\"\n".to_owned(), "contains all queues"),
            (
                "[jobs]\ndefault_queue = \"q\"\nenabled = false\n".to_owned(),
                "`jobs.default_queue`: it is `q`",
            ),
            ("[[tenants]]\nname = \"a\"\nnumbr = 1\n".to_owned(), "numbr"),
            ("[[identities]]\nname = \"y\"\nroles = [\"root\"]\n".to_owned(), "`root` is no role"),
            ("[[identities]]\nname = \"y\"\nroles = []\n".to_owned(), "no roles"),
            ("[[identities]]\nname = \"\"\nroles = [\"submit\"]\n".to_owned(), "no name"),
            ("[[identities]]\nname = \"y\"\ntenant = \"b\"\nroles = [\"submit\"]\n".to_owned(), "`b`"),
            (
                format!(
                    "{tenant}[[identities]]\nname = \"y\"\ntenant = \"a\"\nroles = [\"submit\", \"admin\"]\n"
                ),
                "submit alone",
            ),
            (
                "[[identities]]\nname = \"y\"\nroles = [\"submit\"]\nnodes = [\"n\"]\n".to_owned(),
                "node-agent",
            ),
            ("[[identities]]\nname = \"x\"\nroles = [\"admin\"]\n".to_owned(), "twice"),
        ] {
            let said = refused(&format!("{BY_CERTIFICATE}{identity}{text}"));
            assert!(said.contains(named), "{text}: {said}");
        }
        assert!(refused(BY_CERTIFICATE).contains("identities"));
        assert!(refused(identity).contains("tls_client_ca"));
        assert!(refused(tenant).contains("tls_client_ca"));
    }
}
