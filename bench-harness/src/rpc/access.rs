//! A service as in production: clients show certificates, which are mapped to roles and to a tenant with limits.
//!
//! The load acts for the tenant. Nodes, and the audit of the books, are for an administrator.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use rustls::pki_types::CertificateDer;
use wharf_net::client::{Client, ClientConfig, ClientError};
use wharf_net::protocol::{NodesRequest, Reason};
use wharf_net::tls::ClientCertificate;
use wharf_ops::certs::{self, Authority};
use wharf_ops::config::{IdentityRaw, Raw, TenantRaw};
use wharf_ops::daemon::{client_certificate, read_certificates};

/// The days for which certificates of a run are valid.
const DAYS: u16 = 1;
/// The name under which clients reach the service.
pub(super) const SERVER_NAME: &str = "localhost";
/// The tenant of the load.
const TENANT: &str = "load";
/// Limits that are checked and counted with each request, and that no load reaches.
const REQUESTS_PER_SECOND: u32 = 100_000_000;
const IN_FLIGHT_MAX: u32 = 1 << 24;

/// Who a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// A client of the tenant, with the role `submit`.
    Tenant,
    /// An administrator.
    Admin,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Tenant => "load",
            Self::Admin => "admin",
        }
    }

    fn identity(self) -> IdentityRaw {
        let (role, tenant) = match self {
            Self::Tenant => ("submit", Some(TENANT.to_owned())),
            Self::Admin => ("admin", None),
        };
        IdentityRaw {
            name: self.name().to_owned(),
            roles: vec![role.to_owned()],
            tenant,
            ..IdentityRaw::default()
        }
    }
}

/// The files of a service and its clients.
#[derive(Clone, Debug)]
pub(super) struct Access(PathBuf);

impl Access {
    /// Makes an authority and all certificates, in a directory that has none.
    pub(super) fn create(directory: &Path) -> anyhow::Result<Self> {
        let (authority, of_authority) = Authority::new(DAYS)?;
        of_authority.write(directory, certs::AUTHORITY)?;
        authority.server(&[SERVER_NAME.to_owned()], DAYS)?.write(directory, certs::SERVER)?;
        for who in [Who::Tenant, Who::Admin] {
            authority.client(who.name(), DAYS)?.write(directory, who.name())?;
        }
        Ok(Self::of(directory))
    }

    /// Returns what was created in a directory.
    pub(super) fn of(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    fn authority(&self) -> PathBuf {
        let [certificate, _] = certs::files(&self.0, certs::AUTHORITY);
        certificate
    }

    /// Returns the settings of the service.
    pub(super) fn settings(&self, raw: Raw) -> Raw {
        let [certificate, key] = certs::files(&self.0, certs::SERVER);
        let tenant = TenantRaw {
            name: TENANT.to_owned(),
            number: 1,
            requests_per_second: Some(REQUESTS_PER_SECOND),
            in_flight_max: Some(IN_FLIGHT_MAX),
            ..TenantRaw::default()
        };
        Raw {
            tls_certificate: Some(certificate),
            tls_key: Some(key),
            tls_client_ca: Some(self.authority()),
            audit_log: Some(self.audit_log()),
            tenants: vec![tenant],
            identities: [Who::Tenant, Who::Admin].map(Who::identity).to_vec(),
            ..raw
        }
    }

    /// Returns the file of the log.
    pub(super) fn log(&self) -> PathBuf {
        self.0.join("service.log")
    }

    fn audit_log(&self) -> PathBuf {
        self.0.join("audit")
    }

    /// Returns the certificates that clients trust.
    pub(super) fn roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        Ok(read_certificates(&self.authority())?)
    }

    /// Returns the certificate that a client shows.
    pub(super) fn certificate(&self, who: Who) -> anyhow::Result<ClientCertificate> {
        let [certificate, key] = certs::files(&self.0, who.name());
        Ok(client_certificate(&certificate, &key)?)
    }

    /// Checks that the service refuses a client without a certificate, and what a client of the tenant may not do.
    ///
    /// # Errors
    /// When it does not refuse it, or refuses it for another cause.
    pub(super) async fn check_refusals(&self, tenant: &ClientConfig, client: &Client) -> anyhow::Result<()> {
        let stranger = ClientConfig { certificate: None, ..tenant.clone() };
        let Err(refused) = Client::connect(stranger).await else {
            anyhow::bail!("the service took a client without a certificate");
        };
        let refused = refused.to_string();
        ensure!(refused.contains("certificate"), "a client without a certificate was refused: {refused}");
        let answer = client.add_nodes(&NodesRequest { nodes: Vec::new() }).await;
        let is_forbidden =
            matches!(&answer, Err(ClientError::Fault(fault)) if fault.reason == Reason::Forbidden.into());
        ensure!(is_forbidden, "a client of a tenant asked for a call of administrators, and got {answer:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_as_in_production() {
        let directory = tempfile::tempdir().unwrap();
        let access = Access::create(directory.path()).unwrap();
        let config = wharf_ops::config::Config::check(access.settings(Raw::default())).unwrap();
        assert!(config.access.by_certificate && config.clients.is_some() && config.audit_log.is_some());
        let tenant = &config.access.tenants[0];
        assert!(tenant.requests_per_second.is_some() && tenant.in_flight_max.is_some());
        let load = config.access.identities.iter().find(|known| known.name == Who::Tenant.name()).unwrap();
        assert_eq!((load.tenant, load.roles.to_string()), (Some(tenant.id), "submit".to_owned()));
        assert!(!access.roots().unwrap().is_empty());
        assert!(access.certificate(Who::Admin).is_ok());
        assert!(Access::create(directory.path()).is_err(), "a key in use is never lost");
    }
}
