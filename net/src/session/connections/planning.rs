//! Groups and statements, which planners serve.

use std::sync::Arc;

use wharf_core::group::{NoGroup, PlanJob, PlanReply};
use wharf_core::ids::{GroupId, TenantId};
use wharf_core::limits::{GROUP_BUNDLES_MAX, PLANNERS_MAX};
use wharf_core::registrar::Catalog;
use wharf_core::router::{PortRequest, WaitEnd};
use wharf_core::state::WaitRecord;
use wharf_core::time::Time;

use super::input::{Asked, body_fault, read_body};
use super::operation::{Complete, Operation, Parts, cut_units};
use super::placing::{Learning, Submission};
use super::questions::Asker;
use super::{ConnectionKey, ConnectionService, Stalled, stopped};
use crate::codec::{decode_body, encode_body};
use crate::convert::{
    PlacementDefaults, bundles, check_keeps_queues, check_no_queue, fill_queue, group_kinds_to_learn,
    group_reply, group_spec, groups_page, page_limit, removed_group, statement, statement_reply, wait_reply,
    wait_until,
};
use crate::limits::WAITING_GROUPS_MAX;
use crate::protocol::{
    CreateGroupRequest, Fault, GroupReply, GroupStatusRequest, GrowGroupRequest, Kind, ListGroupsRequest,
    MODE_WAIT_UNTIL, Reason, RemoveGroupRequest, ShrinkGroupRequest, StatementReply, StatementRequest,
};
use crate::session::waiting::weight_of;

/// Returns the number of bundles that a request names.
fn bundle_count(request: &CreateGroupRequest) -> usize {
    request.bundles.iter().map(|bundle| bundle.count as usize).fold(0, usize::saturating_add)
}

/// A request that may wait, as its client sent it.
pub(super) struct MayWait {
    pub(super) request: Arc<[u8]>,
    /// Since when it waits, if it did before.
    pub(super) resumed: Option<Time>,
}

/// Returns the bytes of a request, if it may wait.
fn may_wait(mode: u8, request: &impl serde::Serialize, resumed: Option<Time>) -> Option<MayWait> {
    (mode == MODE_WAIT_UNTIL).then(|| {
        let mut bytes = Vec::new();
        encode_body(request, &mut bytes);
        MayWait { request: bytes.into(), resumed }
    })
}

impl Complete {
    /// Builds the reply to a planner's job. `size` is the number of a statement's operations, or the groups per
    /// page.
    pub(super) fn plan(size: usize, reply: PlanReply, catalog: &Catalog) -> Self {
        match reply {
            PlanReply::Group(group) => Self::Group(Box::new(group_reply(&group, catalog))),
            PlanReply::Status(status) => {
                Self::Group(Box::new(group_reply(&status.map_err(NoGroup::Rejected), catalog)))
            }
            PlanReply::Jobs(_) | PlanReply::Placed(_) | PlanReply::PlacedBatch(_) | PlanReply::Waiting(_) => {
                unreachable!("what the keeper of jobs does has parts of its own")
            }
            PlanReply::Counted(_) => unreachable!("the port takes counts of groups"),
            PlanReply::Late => unreachable!("what is late was refused before"),
            PlanReply::Explained(explained) => Self::Explained(Box::new(wait_reply(&explained, catalog))),
            PlanReply::Removed(removed) => Self::Removed(removed_group(&removed)),
            PlanReply::Groups(groups) => Self::Groups(groups_page(&groups, size)),
            PlanReply::Statement(statement) => {
                let mut reply = statement_reply(&statement, size, catalog);
                cut_units(reply.operations.iter_mut().filter_map(|operation| operation.placed.as_mut()));
                Self::Statement(reply)
            }
        }
    }

    /// Builds the reply to a waiting group that was ended early because of `end`.
    pub(super) fn waited_group(end: Option<WaitEnd>, reply: PlanReply, catalog: &Catalog) -> Self {
        match (end, reply) {
            (Some(WaitEnd::Stopped), PlanReply::Group(Err(NoGroup::Cancelled))) => {
                Self::Group(stopped().into())
            }
            (_, reply) => Self::plan(0, reply, catalog),
        }
    }
}

impl ConnectionService {
    /// Executes a new request that a planner handles, or a placement into a bundle.
    pub(super) fn handle_planning(&mut self, asker: Asker, asked: &Asked<'_>) -> Result<(), Fault> {
        let kind = asker.kind;
        let connection = &mut self.connections[asker.connection];
        if matches!(kind, Kind::GrowGroup | Kind::ShrinkGroup | Kind::GroupStatus) {
            connection.expects_group(asker.sequence, asked.weight(), GROUP_BUNDLES_MAX);
        }
        if self.port.planner_count() == 0 {
            let message = format!(
                "this service has no planners (setting `planners` is 0), and so no groups and no statements: set it to 1 \
                 to {PLANNERS_MAX}, and start the service again"
            );
            return Err(Fault::new(Reason::NotServed, message));
        }
        match kind {
            Kind::CreateGroup => {
                let request: CreateGroupRequest = self.read_scoped(asker, asked)?;
                let connection = &mut self.connections[asker.connection];
                connection.expects_group(asker.sequence, asked.weight(), bundle_count(&request));
                self.handle_create(asked.timed(asker), request);
            }
            Kind::PlaceInto => {
                let request = self.read_scoped(asker, asked)?;
                self.handle_place_into(asked.timed(asker), request);
            }
            Kind::GrowGroup => {
                let request: GrowGroupRequest = self.read_scoped(asker, asked)?;
                self.check_growth(asker, &request)?;
                self.grow_group(asked.timed(asker), request, None);
            }
            Kind::SubmitStatement => {
                let request = read_body(asked)?;
                self.handle_statement(asked.timed(asker), request);
            }
            Kind::ShrinkGroup => {
                let ShrinkGroupRequest { group, bundles } = self.read_scoped(asker, asked)?;
                self.check_kept(group.into())?;
                self.submit_plan(
                    asked.timed(asker),
                    Parts::Plan(0),
                    PlanJob::ShrinkGroup(group.into(), bundles),
                );
            }
            Kind::RemoveGroup => {
                let RemoveGroupRequest { group } = self.read_scoped(asker, asked)?;
                self.check_kept(group.into())?;
                self.submit_plan(asked.timed(asker), Parts::Plan(0), PlanJob::RemoveGroup(group.into()));
            }
            Kind::GroupStatus => {
                let GroupStatusRequest { group } = self.read_scoped(asker, asked)?;
                self.check_kept(group.into())?;
                self.submit_plan(asked.timed(asker), Parts::Plan(0), PlanJob::GroupStatus(group.into()));
            }
            Kind::ListGroups => {
                let ListGroupsRequest { after, limit } = read_body(asked)?;
                let limit = page_limit(limit)?;
                let tenant =
                    self.connections[asker.connection].rights.tenant.as_ref().map(|tenant| tenant.limits.id);
                let job = PlanJob::ListGroups(after.map(Into::into), tenant, limit);
                self.submit_plan(asked.timed(asker), Parts::Plan(usize::from(limit)), job);
            }
            other => unreachable!("{other:?} is no planner's"),
        }
        Ok(())
    }

    /// Checks that somebody keeps a group: the keeper of jobs has those in queues.
    pub(super) fn check_kept(&self, group: GroupId) -> Result<(), Fault> {
        if self.port.keeps_jobs() || !group.is_in_queue() {
            return Ok(());
        }
        let message = format!(
            "group {group} is charged to a queue, and this service keeps no queues: let an administrator set \
             `jobs.enabled` to true"
        );
        Err(Fault::of_field(Reason::NotServed, "group", message))
    }

    /// Checks that a group may grow: nothing that a bound tenant gets is charged to no queue.
    fn check_growth(&self, asker: Asker, request: &GrowGroupRequest) -> Result<(), Fault> {
        check_no_queue(&request.bundles)?;
        if GroupId::from(request.group).is_in_queue() {
            return Ok(());
        }
        let remedy =
            "create another group, which is charged to the queue, or let an administrator end the binding";
        self.connections[asker.connection].rights.check_unbound(asker.kind, remedy)
    }

    fn handle_statement(&mut self, asker: Asker, request: StatementRequest) {
        let size = request.operations.len();
        match statement(request, self.port.catalog()) {
            Ok(submit) => {
                self.submit_plan(asker, Parts::Plan(size), PlanJob::Submit(Box::new(submit)));
            }
            Err(fault) => self.answer(asker, &StatementReply::from(fault), asker.started),
        }
    }

    fn handle_create(&mut self, asker: Asker, mut request: CreateGroupRequest) {
        if let Some(of) = self.connections[asker.connection].rights.bound() {
            fill_queue(&mut request.bundles, of.queue());
        }
        if request.mode != MODE_WAIT_UNTIL {
            return self.create_group(asker, request, None);
        }
        let defaults = self.placement_defaults(asker.connection);
        match group_kinds_to_learn(&request, self.port.catalog(), defaults) {
            Err(reply) => self.answer(asker, &*reply, asker.started),
            Ok(names) if names.is_empty() => self.create_group(asker, request, None),
            Ok(names) => self.ask_to_learn(asker, names, Learning::CreateGroup(Box::new(request))),
        }
    }

    /// Creates a group whose resource kinds are known. `resumed` is since when it waits, if it did before.
    pub(super) fn create_group(&mut self, asker: Asker, request: CreateGroupRequest, resumed: Option<Time>) {
        let defaults = self.placement_defaults(asker.connection);
        let wait = may_wait(request.mode, &request, resumed);
        match group_spec(request, self.port.catalog(), defaults) {
            Ok(mut spec) => {
                let bound = self.connections[asker.connection].rights.bound().cloned();
                if spec.queue.is_some()
                    && let Err(fault) = check_keeps_queues(self.port.keeps_jobs(), bound.as_deref())
                {
                    return self.refuse_wait(asker, &GroupReply::from(fault), resumed.is_some());
                }
                spec.bound = bound.filter(|_| spec.queue.is_some());
                self.submit_group(asker, PlanJob::CreateGroup(spec.into()), wait);
            }
            Err(reply) => self.refuse_wait(asker, &*reply, resumed.is_some()),
        }
    }

    /// Lets a group grow. `resumed` is as in [`create_group`](Self::create_group).
    fn grow_group(&mut self, asker: Asker, request: GrowGroupRequest, resumed: Option<Time>) {
        let wait = may_wait(request.mode, &request, resumed);
        let GrowGroupRequest { group, bundles: wire, mode, deadline } = request;
        let tenant = TenantId(group.tenant);
        let defaults = PlacementDefaults { tenant, ..self.placement_defaults(asker.connection) };
        let until = self.check_kept(group.into()).and_then(|()| wait_until(mode, deadline));
        let until = until.map_err(Box::<GroupReply>::from);
        match until.and_then(|until| Ok((bundles(wire, self.port.catalog(), defaults)?, until))) {
            Ok((bundles, until)) => {
                self.submit_group(asker, PlanJob::GrowGroup(group.into(), bundles, until), wait);
            }
            Err(reply) => self.refuse_wait(asker, &*reply, resumed.is_some()),
        }
    }

    /// Submits a job about a group that may wait.
    fn submit_group(&mut self, asker: Asker, job: PlanJob, wait: Option<MayWait>) {
        let Some(wait) = wait else {
            return self.submit_plan(asker, Parts::Plan(0), job);
        };
        let is_resumed = wait.resumed.is_some();
        if let Err(fault) = self.submit_waiting(asker, Parts::WaitGroup(None), job, wait) {
            self.refuse_wait(asker, &GroupReply::from(fault), is_resumed);
        }
    }

    /// Submits a job that waits at its planner. It takes no room from jobs that are answered at once: what waits has its
    /// own.
    ///
    /// # Errors
    /// Returns a fault if too much waits.
    pub(super) fn submit_waiting(
        &mut self,
        asker: Asker,
        parts: Parts,
        mut job: PlanJob,
        MayWait { request, resumed }: MayWait,
    ) -> Result<(), Fault> {
        let Asker { connection: key, kind, sequence, started: now, .. } = asker;
        if let Some(since) = resumed {
            job = PlanJob::Resume(since, Box::new(job));
        } else {
            self.connections[key].take_wait_room(sequence)?;
            self.check_group_room(key)?;
        }
        self.group_room -= 1;
        self.connections[key].groups_waiting += 1;
        let operation = self.enter(Operation { asker, parts });
        let connection = &mut self.connections[key];
        connection.begins_wait(sequence, operation);
        let client = connection.client();
        let record = WaitRecord { since: resumed.unwrap_or(now), kind: kind.number(), request };
        self.note_wait(asker, record, resumed.is_some());
        // It waits for capacity from now on, for as long as the job says.
        self.submit(operation, 0, PortRequest::PlanFor(client, job, Time::NEVER), now);
        Ok(())
    }

    /// Goes on with a job that waited before, since this time.
    ///
    /// # Errors
    /// Returns a fault if the request cannot be read.
    pub(super) fn resume_group(&mut self, asker: Asker, wait: &WaitRecord) -> Result<(), Fault> {
        let weight = weight_of(wait);
        let connection = &mut self.connections[asker.connection];
        if asker.kind == Kind::GrowGroup {
            connection.expects_group(asker.sequence, weight, GROUP_BUNDLES_MAX);
            let (request, _) = decode_body(&wait.request).map_err(body_fault)?;
            self.grow_group(asker, request, Some(wait.since));
        } else {
            let (request, _) = decode_body(&wait.request).map_err(body_fault)?;
            connection.expects_group(asker.sequence, weight, bundle_count(&request));
            self.create_group(asker, request, Some(wait.since));
        }
        Ok(())
    }

    /// Checks whether one more group, or placement in a queue, may wait, both at the connection and at the I/O thread. The
    /// limit per connection keeps one client from taking all the room.
    fn check_group_room(&self, key: ConnectionKey) -> Result<(), Fault> {
        let limit = self.shared.settings.load().waiting_groups_max;
        let full = |message: String| Err(Fault::of_field(Reason::LimitExceeded, "mode", message));
        if self.connections[key].groups_waiting >= limit {
            return full(format!(
                "{limit} groups and placements in queues wait at this connection, which is all that may (setting \
                 `waiting_groups_max`): cancel some, ask again later, or without waiting"
            ));
        }
        // Below 0: groups that waited in an earlier start have room in any case.
        if self.group_room <= 0 {
            return full(format!(
                "{WAITING_GROUPS_MAX} groups and placements in queues wait at this I/O thread of the service, which is \
                 all that can: ask again later, or without waiting"
            ));
        }
        Ok(())
    }

    /// Submits a planner's job, or stalls the connection until the planner has room.
    pub(super) fn submit_plan(&mut self, asker: Asker, parts: Parts, job: PlanJob) {
        let key = asker.connection;
        let client = self.connections[key].client();
        let request = PortRequest::PlanFor(client, job, asker.due);
        let operation = Operation { asker, parts };
        if self.plan_room.take(client.tenant, key, operation.parts.planner_room()) {
            let operation = self.enter(operation);
            self.submit(operation, 0, request, asker.started);
        } else {
            self.stall(key, Stalled::Submit(Submission { operation, request }));
        }
    }
}
