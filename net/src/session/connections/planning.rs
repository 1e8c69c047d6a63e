//! Groups and statements, which planners serve.

use wharf_core::group::{NoGroup, PlanJob, PlanReply};
use wharf_core::limits::GROUP_BUNDLES_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::router::{PortRequest, WaitEnd};

use super::input::{Asked, read_body};
use super::operation::{Complete, Operation, Parts, cut_units};
use super::placing::{Learning, Submission};
use super::questions::Asker;
use super::room::Waiter;
use super::{ConnectionKey, ConnectionService, Stalled, stopped};
use crate::convert::{
    bundles, group_kinds_to_learn, group_reply, group_spec, groups_page, page_limit, removed_group,
    statement, statement_reply, wait_until,
};
use crate::limits::WAITING_GROUPS_MAX;
use crate::protocol::{
    CreateGroupRequest, Fault, GroupReply, GroupStatusRequest, GrowGroupRequest, Kind, ListGroupsRequest,
    MODE_WAIT_UNTIL, Reason, RemoveGroupRequest, ShrinkGroupRequest, StatementReply, StatementRequest,
};

impl Complete {
    /// Builds the reply to a planner's job. `size` is the number of a statement's operations, or the groups per
    /// page.
    pub(super) fn plan(size: usize, reply: PlanReply, catalog: &Catalog) -> Self {
        match reply {
            PlanReply::Group(group) => Self::Group(Box::new(group_reply(&group, catalog))),
            PlanReply::Status(status) => {
                Self::Group(Box::new(group_reply(&status.map_err(NoGroup::Rejected), catalog)))
            }
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
            let message = "this service has no planners (setting `planners` is 0), and so no groups and no \
                           statements: set it to 1 or more";
            return Err(Fault::new(Reason::NotServed, message));
        }
        match kind {
            Kind::CreateGroup => {
                let request: CreateGroupRequest = read_body(asked)?;
                let counts = request.bundles.iter().map(|bundle| bundle.count as usize);
                let bundles = counts.fold(0, usize::saturating_add);
                connection.expects_group(asker.sequence, asked.weight(), bundles);
                self.handle_create(asker, request);
            }
            Kind::PlaceInto => self.handle_place_into(asker, read_body(asked)?),
            Kind::GrowGroup => self.handle_grow(asker, read_body(asked)?),
            Kind::SubmitStatement => self.handle_statement(asker, read_body(asked)?),
            Kind::ShrinkGroup => {
                let ShrinkGroupRequest { group, bundles } = read_body(asked)?;
                self.submit_plan(asker, Parts::Plan(0), PlanJob::ShrinkGroup(group.into(), bundles));
            }
            Kind::RemoveGroup => {
                let RemoveGroupRequest { group } = read_body(asked)?;
                self.submit_plan(asker, Parts::Plan(0), PlanJob::RemoveGroup(group.into()));
            }
            Kind::GroupStatus => {
                let GroupStatusRequest { group } = read_body(asked)?;
                self.submit_plan(asker, Parts::Plan(0), PlanJob::GroupStatus(group.into()));
            }
            Kind::ListGroups => {
                let ListGroupsRequest { after, limit } = read_body(asked)?;
                let limit = page_limit(limit)?;
                let job = PlanJob::ListGroups(after.map(Into::into), limit);
                self.submit_plan(asker, Parts::Plan(usize::from(limit)), job);
            }
            other => unreachable!("{other:?} is no planner's"),
        }
        Ok(())
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

    fn handle_create(&mut self, asker: Asker, request: CreateGroupRequest) {
        if request.mode != MODE_WAIT_UNTIL {
            return self.create_group(asker, request);
        }
        let defaults = self.placement_defaults(asker.connection);
        match group_kinds_to_learn(&request, self.port.catalog(), defaults) {
            Err(reply) => self.answer(asker, &*reply, asker.started),
            Ok(names) if names.is_empty() => self.create_group(asker, request),
            Ok(names) => self.ask_to_learn(asker, names, Learning::CreateGroup(Box::new(request))),
        }
    }

    /// Creates a group whose resource kinds are known.
    pub(super) fn create_group(&mut self, asker: Asker, request: CreateGroupRequest) {
        let defaults = self.placement_defaults(asker.connection);
        let waits = request.mode == MODE_WAIT_UNTIL;
        match group_spec(request, self.port.catalog(), defaults) {
            Ok(spec) => self.submit_group(asker, PlanJob::CreateGroup(spec.into()), waits),
            Err(reply) => self.answer(asker, &*reply, asker.started),
        }
    }

    fn handle_grow(&mut self, asker: Asker, request: GrowGroupRequest) {
        let GrowGroupRequest { group, bundles: wire, mode, deadline } = request;
        let defaults = self.placement_defaults(asker.connection);
        let until = wait_until(mode, deadline).map_err(Box::<GroupReply>::from);
        match until.and_then(|until| Ok((bundles(wire, self.port.catalog(), defaults)?, until))) {
            Ok((bundles, until)) => {
                self.submit_group(asker, PlanJob::GrowGroup(group.into(), bundles, until), until.is_some());
            }
            Err(reply) => self.answer(asker, &*reply, asker.started),
        }
    }

    /// Submits a job that may wait. A job that waits takes no room from jobs that are answered at once: waiting
    /// groups have their own.
    fn submit_group(&mut self, asker: Asker, job: PlanJob, waits: bool) {
        if !waits {
            return self.submit_plan(asker, Parts::Plan(0), job);
        }
        let Asker { connection: key, sequence, started: now, .. } = asker;
        let room = self.connections[key].take_wait_room(sequence);
        if let Err(fault) = room.and_then(|()| self.take_group_room(key)) {
            return self.answer(asker, &GroupReply::from(fault), now);
        }
        let operation = self.enter(Operation { asker, parts: Parts::WaitGroup(None) });
        let connection = &mut self.connections[key];
        connection.begins_wait(sequence, operation);
        let client = connection.client();
        self.note_wait(asker, None);
        self.submit(operation, 0, PortRequest::PlanFor(client, job), now);
    }

    /// Takes room for one more waiting group, both at the connection and at the I/O thread. The limit per
    /// connection keeps one client from taking all the room.
    fn take_group_room(&mut self, key: ConnectionKey) -> Result<(), Fault> {
        let limit = self.shared.settings.load().waiting_groups_max;
        let full = |message: String| Err(Fault::of_field(Reason::LimitExceeded, "mode", message));
        let connection = &mut self.connections[key];
        if connection.groups_waiting >= limit {
            return full(format!(
                "{limit} groups wait at this connection, which is all that may (setting `waiting_groups_max`): cancel \
                 some, ask again later, or without waiting"
            ));
        }
        let Some(left) = self.group_room.checked_sub(1) else {
            return full(format!(
                "{WAITING_GROUPS_MAX} groups wait at this I/O thread of the service, which is all that can: ask \
                 again later, or without waiting"
            ));
        };
        self.group_room = left;
        connection.groups_waiting += 1;
        Ok(())
    }

    /// Submits a planner's job, or stalls the connection until the planner has room.
    pub(super) fn submit_plan(&mut self, asker: Asker, parts: Parts, job: PlanJob) {
        let key = asker.connection;
        let request = PortRequest::PlanFor(self.connections[key].client(), job);
        let operation = Operation { asker, parts };
        if self.plan_room.take(Waiter::Connection(key), 1) {
            let operation = self.enter(operation);
            self.submit(operation, 0, request, asker.started);
        } else {
            self.stall(key, Stalled::Submit(Submission { operation, requests: vec![(0, request)] }));
        }
    }
}
