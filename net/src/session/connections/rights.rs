//! Checks what the peer of a connection may do.
//!
//! A role is checked per message. What a message names is checked before it reaches the engine, so no id of another
//! tenant comes from the session of a tenant.

use std::sync::Arc;

use wharf_core::ids::{AllocationId, GroupId, SessionId, TenantId};

use super::input::{Asked, read_body};
use super::questions::Asker;
use super::{ConnectionKey, ConnectionService};
use crate::access::{Denied, Rights};
use crate::protocol::{
    BundleTemplate, CreateGroupRequest, ExplainWaitRequest, Fault, GroupStatusRequest, GrowGroupRequest,
    Kind, PlaceBatch, PlaceIntoRequest, PlaceRequest, PlanNodesRequest, Reason, ReleaseBatch, ReleaseRequest,
    RemoveGroupRequest, RenewRequest, ReportRequest, ReportTasksRequest, ShrinkGroupRequest,
    SubmitJobRequest, WireAllocation, WireGroup, WireSession,
};
use crate::session::Session;

/// What a request names that may belong to others, and the number of its parts.
pub(super) trait Scoped {
    /// Checks that a peer with these rights may name it.
    fn check(&self, rights: &Rights) -> Result<(), Fault>;

    /// Returns as how many requests it counts.
    fn parts(&self) -> usize {
        1
    }
}

/// Returns the fault for something of another tenant.
fn foreign(field: String, what: &str, rights: &Rights) -> Fault {
    let name = rights.tenant.as_ref().map_or("", |tenant| &tenant.limits.name);
    let message = format!(
        "{what} belongs to another tenant, and {} acts for tenant {name}: name what the tenant has",
        rights.shown()
    );
    Fault::of_field(Reason::Forbidden, field, message)
}

fn check_allocation(
    field: impl FnOnce() -> String,
    id: WireAllocation,
    rights: &Rights,
) -> Result<(), Fault> {
    if rights.owns(TenantId(id.tenant)) {
        return Ok(());
    }
    Err(foreign(field(), &format!("allocation {}", AllocationId::from(id)), rights))
}

fn check_group(id: WireGroup, rights: &Rights) -> Result<(), Fault> {
    if rights.owns(TenantId(id.tenant)) {
        return Ok(());
    }
    Err(foreign("group".to_owned(), &format!("group {}", GroupId::from(id)), rights))
}

fn check_bundles(bundles: &[BundleTemplate], rights: &Rights) -> Result<(), Fault> {
    for (at, bundle) in bundles.iter().enumerate() {
        let checked = rights.check_owner(bundle.request.owner);
        checked.map_err(|fault| fault.within(format_args!("bundles[{at}]")))?;
    }
    Ok(())
}

impl Scoped for PlaceRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        rights.check_owner(self.owner)
    }
}

impl Scoped for PlaceBatch {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        for (at, request) in self.requests.iter().enumerate() {
            let checked = rights.check_owner(request.owner);
            checked.map_err(|fault| fault.within(format_args!("requests[{at}]")))?;
        }
        Ok(())
    }

    fn parts(&self) -> usize {
        self.requests.len()
    }
}

impl Scoped for ReleaseRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_allocation(|| "allocation".to_owned(), self.allocation, rights)
    }
}

impl Scoped for ReleaseBatch {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        for (at, request) in self.requests.iter().enumerate() {
            check_allocation(|| format!("requests[{at}].allocation"), request.allocation, rights)?;
        }
        Ok(())
    }

    fn parts(&self) -> usize {
        self.requests.len()
    }
}

impl Scoped for RenewRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        for (at, &id) in self.allocations.iter().enumerate() {
            check_allocation(|| format!("allocations[{at}]"), id, rights)?;
        }
        Ok(())
    }

    fn parts(&self) -> usize {
        self.allocations.len() + usize::from(self.session.is_some())
    }
}

impl Scoped for PlaceIntoRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        if let Some(id) = self.allocation {
            check_allocation(|| "allocation".to_owned(), id, rights)?;
        }
        self.group.map_or(Ok(()), |id| check_group(id, rights))
    }
}

impl Scoped for CreateGroupRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_bundles(&self.bundles, rights)
    }

    fn parts(&self) -> usize {
        count_of(&self.bundles)
    }
}

impl Scoped for GrowGroupRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_group(self.group, rights)?;
        check_bundles(&self.bundles, rights)
    }

    fn parts(&self) -> usize {
        count_of(&self.bundles)
    }
}

/// Returns the number of bundles. It is bounded once the request is checked.
fn count_of(bundles: &[BundleTemplate]) -> usize {
    bundles.iter().map(|bundle| bundle.count as usize).fold(0, usize::saturating_add)
}

impl Scoped for ExplainWaitRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        // Of a session, it is looked up whose it is.
        self.group.map_or(Ok(()), |id| check_group(id, rights))
    }
}

impl Scoped for ShrinkGroupRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_group(self.group, rights)
    }
}

impl Scoped for RemoveGroupRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_group(self.group, rights)
    }
}

impl Scoped for GroupStatusRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        check_group(self.group, rights)
    }
}

impl Scoped for ReportRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        rights.check_node(&self.node.name)
    }
}

impl Scoped for PlanNodesRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        let of_groups = self.groups.iter().flat_map(|group| &group.bundles);
        for bundles in self.floors.iter().chain(of_groups) {
            rights.check_owner(bundles.request.owner)?;
        }
        Ok(())
    }

    /// What it names is looked at together.
    fn parts(&self) -> usize {
        1
    }
}

impl Scoped for SubmitJobRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        for (at, group) in self.job.tasks.iter().enumerate() {
            let checked = rights.check_owner(group.request.owner);
            checked.map_err(|fault| fault.within(format_args!("job.tasks[{at}]")))?;
        }
        Ok(())
    }

    /// Tasks wait for their turn in the queue, so that their number does not count.
    fn parts(&self) -> usize {
        self.job.tasks.len()
    }
}

impl Scoped for ReportTasksRequest {
    fn check(&self, rights: &Rights) -> Result<(), Fault> {
        for (at, report) in self.tasks.iter().enumerate() {
            check_allocation(|| format!("tasks[{at}].allocation"), report.allocation, rights)?;
        }
        Ok(())
    }

    fn parts(&self) -> usize {
        self.tasks.len()
    }
}

impl ConnectionService {
    /// Reads a request, and checks that its peer may ask for it.
    pub(super) fn read_scoped<T: Scoped + serde::de::DeserializeOwned>(
        &self,
        asker: Asker,
        asked: &Asked<'_>,
    ) -> Result<T, Fault> {
        self.check_scoped(asker, read_body(asked)?)
    }

    /// Checks that the peer of a request may ask for it.
    pub(super) fn check_scoped<T: Scoped>(&self, asker: Asker, request: T) -> Result<T, Fault> {
        let rights = &self.connections[asker.connection].rights;
        request.check(rights)?;
        // The first part was counted with the message.
        if rights.tenant.is_some() && request.parts() > 1 {
            let parts = u64::try_from(request.parts() - 1).unwrap_or(u64::MAX);
            rights.take(parts, 0, asker.started)?;
        }
        Ok(request)
    }

    /// Checks that a tenant names no session but that of the connection.
    pub(super) fn check_session(
        &self,
        key: ConnectionKey,
        session: Option<WireSession>,
    ) -> Result<(), Fault> {
        let rights = &self.connections[key].rights;
        match session.map(SessionId::from) {
            Some(session) if rights.tenant.is_some() && self.session_id(key) != Some(session) => {
                let message = format!("session {session} is not that of this connection: name no other");
                Err(Fault::of_field(Reason::Forbidden, "session", message))
            }
            _ => Ok(()),
        }
    }

    /// Takes over the rights of the peer by the settings of now.
    fn renew_rights(&mut self, key: ConnectionKey) {
        let version = self.shared.access_version();
        let connection = &mut self.connections[key];
        if connection.rights_version != version {
            connection.set_rights(self.shared.rights(&connection.peer.names), version);
        }
    }

    /// Checks that the peer may send a message of this kind now, and counts it.
    pub(super) fn authorize(&mut self, asker: Asker) -> Result<(), Fault> {
        self.check_rights(asker)?;
        self.count_request(asker)
    }

    /// Checks that the peer may send a message of this kind now.
    pub(super) fn check_rights(&mut self, asker: Asker) -> Result<(), Fault> {
        self.renew_rights(asker.connection);
        let connection = &self.connections[asker.connection];
        let rights = &connection.rights;
        rights.check_kind(asker.kind)?;
        if rights.tenant_id() != connection.session.as_ref().map_or(TenantId::OPERATOR, Session::tenant) {
            let message =
                format!("{} acts for another tenant now than this session: open a new one", rights.shown());
            return Err(Fault::new(Reason::Forbidden, message));
        }
        Ok(())
    }

    /// Counts a request for the limits of its tenant.
    pub(super) fn count_request(&mut self, asker: Asker) -> Result<(), Fault> {
        let connection = &mut self.connections[asker.connection];
        if connection.rights.tenant.is_some() {
            let begun = connection.uncounted();
            let rights = Arc::clone(&connection.rights);
            return rights.take(1, begun, asker.started);
        }
        Ok(())
    }

    /// Tells the observer of a call to which its peer has no right.
    pub(super) fn note_denied(&mut self, key: ConnectionKey, kind: Kind, fault: &Fault) {
        let connection = &self.connections[key];
        let session = connection.session.as_ref().map(Session::id);
        self.observer.handle_denied(&Denied { peer: &connection.peer, session, kind, fault });
    }
}
