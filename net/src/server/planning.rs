//! Passes groups and statements from a connection to a planner, and places into bundles.

use std::rc::Rc;

use tokio::sync::oneshot;
use wharf_core::group::{BundleView, GroupView, PlanJob, PlanReply};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::limits::GROUP_BUNDLES_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::resource::Demand;
use wharf_core::router::{PortReply, PortRequest, WaitEnd};
use wharf_core::shard::{Command, Outcome, Rejection};
use wharf_core::time::Time;

use super::WAITING_GROUPS_MAX;
use super::connection::ConnectionState;
use super::io_thread::Io;
use super::operation::{Complete, Parts, cut_units};
use super::placing::{enter, learn_names, take_room};
use super::reader::{Asked, read_body};
use super::wait::stopped;
use crate::convert::{
    IntoTarget, bundles, fault_reply, group_fault, group_kinds_to_learn, group_reply, group_spec,
    groups_page, named_rejection_fault, page_limit, place_into, placed_reply, plan_fault, removed_group,
    statement, statement_fault, statement_reply, wait_until,
};
use crate::protocol::{
    CreateGroupRequest, Fault, GroupReply, GroupStatusRequest, GrowGroupRequest, Kind, ListGroupsReply,
    ListGroupsRequest, MODE_WAIT_UNTIL, PlaceIntoRequest, PlaceReply, Reason, ReasonCode, RemoveGroupReply,
    RemoveGroupRequest, ShrinkGroupRequest, StatementReply, StatementRequest,
};

/// The reply to a planner's job.
pub(super) enum PlanComplete {
    Group(GroupReply),
    Removed(RemoveGroupReply),
    Groups(ListGroupsReply),
    Statement(StatementReply),
}

impl PlanComplete {
    pub(super) fn reason(&self) -> ReasonCode {
        match self {
            Self::Group(reply) => reply.reason,
            Self::Removed(reply) => reply.reason,
            Self::Groups(_) => ReasonCode::default(),
            Self::Statement(reply) => reply.reason,
        }
    }

    pub(super) fn answer(&self, connection: &ConnectionState, kind: Kind, sequence: u64) {
        match self {
            Self::Group(reply) => connection.reply(kind, sequence, reply),
            Self::Removed(reply) => connection.reply(kind, sequence, reply),
            Self::Groups(reply) => connection.reply(kind, sequence, reply),
            Self::Statement(reply) => connection.reply(kind, sequence, reply),
        }
    }
}

impl Complete {
    /// Builds the reply to a job of `kind`. `size` is the number of a statement's operations, or the groups
    /// per page.
    pub(super) fn plan(kind: Kind, size: usize, reply: PortReply, catalog: &Catalog) -> Self {
        let PortReply::Plan(reply) = reply else { unreachable!("a planner answers with a plan's reply") };
        let complete = match kind {
            Kind::RemoveGroup => PlanComplete::Removed(removed_group(&reply)),
            Kind::ListGroups => PlanComplete::Groups(groups_page(&reply, size)),
            Kind::SubmitStatement => {
                let mut reply = statement_reply(&reply, size, catalog);
                cut_units(reply.operations.iter_mut().filter_map(|operation| operation.placed.as_mut()));
                PlanComplete::Statement(reply)
            }
            _ => PlanComplete::Group(group_reply(&reply, catalog)),
        };
        Self::Plan(Box::new(complete))
    }
}

impl Complete {
    /// Builds the reply to a waiting group that was ended early because of `end`.
    pub(super) fn waited_group(end: Option<WaitEnd>, reply: PortReply, catalog: &Catalog) -> Self {
        match (end, &reply) {
            (Some(WaitEnd::Stopped), PortReply::Plan(reply)) if matches!(**reply, PlanReply::Cancelled) => {
                Self::Plan(Box::new(PlanComplete::Group(group_fault(stopped()))))
            }
            _ => Self::plan(Kind::CreateGroup, 0, reply, catalog),
        }
    }
}

/// Executes a new request that a planner handles, or a placement into a bundle.
pub(super) async fn handle_planning(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    kind: Kind,
    asked: &Asked<'_>,
    now: Time,
) -> Result<(), Fault> {
    let sequence = asked.frame.header.sequence;
    if matches!(kind, Kind::GrowGroup | Kind::ShrinkGroup | Kind::GroupStatus) {
        state.expects_group(sequence, asked.weight(), GROUP_BUNDLES_MAX);
    }
    if io.port.borrow().planner_count() == 0 {
        let message = "this service has no planners (setting `planners` is 0), and so no groups and no \
                       statements: set it to 1 or more";
        return Err(Fault::new(Reason::NotServed, message));
    }
    let (size, job) = match kind {
        Kind::CreateGroup => {
            let request: CreateGroupRequest = read_body(asked)?;
            let bundles =
                request.bundles.iter().fold(0usize, |sum, bundle| sum.saturating_add(bundle.count as usize));
            state.expects_group(sequence, asked.weight(), bundles);
            handle_create(io, state, sequence, request, now).await;
            return Ok(());
        }
        Kind::PlaceInto => {
            handle_place_into(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::GrowGroup => {
            handle_grow(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::ShrinkGroup => {
            let ShrinkGroupRequest { group, bundles } = read_body(asked)?;
            (0, PlanJob::ShrinkGroup(group.into(), bundles))
        }
        Kind::RemoveGroup => (0, PlanJob::RemoveGroup(read_body::<RemoveGroupRequest>(asked)?.group.into())),
        Kind::GroupStatus => (0, PlanJob::GroupStatus(read_body::<GroupStatusRequest>(asked)?.group.into())),
        Kind::ListGroups => {
            let ListGroupsRequest { after, limit } = read_body(asked)?;
            let limit = page_limit(limit)?;
            (usize::from(limit), PlanJob::ListGroups(after.map(Into::into), limit))
        }
        Kind::SubmitStatement => {
            let request: StatementRequest = read_body(asked)?;
            let size = request.operations.len();
            let submit = statement(request, io.port.borrow_mut().catalog());
            match submit {
                Ok(submit) => (size, PlanJob::Submit(Box::new(submit))),
                Err(fault) => {
                    let reply = PlanComplete::Statement(statement_fault(fault));
                    answer_at_once(io, state, kind, sequence, reply);
                    return Ok(());
                }
            }
        }
        other => unreachable!("{other:?} is no planner's"),
    };
    submit_plan(io, state, sequence, (kind, size), job, now).await;
    Ok(())
}

fn answer_at_once(io: &Io, state: &ConnectionState, kind: Kind, sequence: u64, complete: PlanComplete) {
    io.observe(kind, complete.reason(), 0);
    complete.answer(state, kind, sequence);
}

async fn handle_create(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: CreateGroupRequest,
    now: Time,
) {
    let waits = request.mode == MODE_WAIT_UNTIL;
    let defaults = io.shared.settings.load().placement_defaults(&io.port.borrow());
    let names = if waits {
        group_kinds_to_learn(&request, io.port.borrow_mut().catalog(), defaults)
    } else {
        Ok(Vec::new())
    };
    let learnt = match names {
        Ok(names) => learn_names(io, names).await.map_err(|fault| Box::new(group_fault(fault))),
        Err(reply) => Err(reply),
    };
    let spec = learnt.and_then(|()| group_spec(request, io.port.borrow_mut().catalog(), defaults));
    let spec = match spec {
        Ok(spec) => spec,
        Err(reply) => {
            return answer_at_once(io, state, Kind::CreateGroup, sequence, PlanComplete::Group(*reply));
        }
    };
    let job = PlanJob::CreateGroup(spec.into());
    if waits {
        begin_wait(io, state, sequence, (Kind::CreateGroup, job), now);
    } else {
        submit_plan(io, state, sequence, (Kind::CreateGroup, 0), job, now).await;
    }
}

async fn handle_grow(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: GrowGroupRequest,
    now: Time,
) {
    let GrowGroupRequest { group, bundles: wire, mode, deadline } = request;
    let until = wait_until(mode, deadline).map_err(|fault| Box::new(group_fault(fault)));
    let made = until.and_then(|until| {
        let mut port = io.port.borrow_mut();
        let defaults = io.shared.settings.load().placement_defaults(&port);
        Ok((bundles(wire, port.catalog(), defaults)?, until))
    });
    let kind = Kind::GrowGroup;
    match made {
        Ok((bundles, until)) => {
            let job = PlanJob::GrowGroup(group.into(), bundles, until);
            if until.is_some() {
                begin_wait(io, state, sequence, (kind, job), now);
            } else {
                submit_plan(io, state, sequence, (kind, 0), job, now).await;
            }
        }
        Err(reply) => answer_at_once(io, state, kind, sequence, PlanComplete::Group(*reply)),
    }
}

/// Submits a job that may wait. It takes no room from jobs that are answered at once; waiting groups have
/// their own.
fn begin_wait(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    (kind, job): (Kind, PlanJob),
    now: Time,
) {
    if let Err(fault) = state.take_wait_room(sequence).and_then(|()| take_group_room(io, state)) {
        return answer_at_once(io, state, kind, sequence, PlanComplete::Group(group_fault(fault)));
    }
    let operation = enter(io, state, sequence, Parts::WaitGroup(kind, None), now);
    state.begins_wait(sequence, operation);
    io.submit(operation, 0, PortRequest::PlanFor(state.client(), job), now);
}

/// Takes room for one more waiting group, both at the connection and at the I/O thread. The limit per
/// connection keeps one client from taking all the room.
fn take_group_room(io: &Io, state: &ConnectionState) -> Result<(), Fault> {
    let limit = io.shared.settings.load().waiting_groups_max;
    let full = |message: String| Err(Fault::of_field(Reason::LimitExceeded, "mode", message));
    if state.groups_waiting() >= limit {
        return full(format!(
            "{limit} groups wait at this connection, which is all that may (setting `waiting_groups_max`): cancel \
             some, ask again later, or without waiting"
        ));
    }
    match io.group_room.try_acquire() {
        Ok(room) => room.forget(),
        Err(_) => {
            return full(format!(
                "{WAITING_GROUPS_MAX} groups wait at this I/O thread of the service, which is all that can: ask \
                 again later, or without waiting"
            ));
        }
    }
    state.counts_group(true);
    Ok(())
}

/// Submits a planner's job. `kind` and `size` determine how its reply is built.
async fn submit_plan(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    (kind, size): (Kind, usize),
    job: PlanJob,
    now: Time,
) {
    take_plan_room(io).await;
    let operation = enter(io, state, sequence, Parts::Plan(kind, size), now);
    io.submit(operation, 0, PortRequest::PlanFor(state.client(), job), now);
}

/// Waits until another job can enter the port, in order of arrival.
async fn take_plan_room(io: &Io) {
    if let Ok(room) = io.plan_room.try_acquire() {
        return room.forget();
    }
    // Flush the requests submitted so far before this task waits for their room.
    io.port.borrow_mut().flush();
    io.plan_room.acquire().await.expect("the room is never closed").forget();
}

async fn handle_place_into(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: PlaceIntoRequest,
    now: Time,
) {
    let converted = place_into(request, io.port.borrow_mut().catalog());
    match converted {
        Ok((IntoTarget::Allocation(bundle), demand)) => {
            take_room(io, 1).await;
            let operation = enter(io, state, sequence, Parts::Into, now);
            submit_into(io, operation, bundle, demand, now);
        }
        Ok((target @ IntoTarget::Group(..), demand)) => {
            let io = Rc::clone(io);
            let state = Rc::clone(state);
            tokio::task::spawn_local(async move {
                let reply = place_into_group(&io, &state, sequence, (target, demand), now).await;
                let nanos = io.shared.now().nanos_since(now);
                io.observe(Kind::PlaceInto, reply.reason, nanos);
                Complete::Place(reply).answer(&state, Kind::PlaceInto, sequence);
            });
        }
        Err(reply) => {
            io.observe(Kind::PlaceInto, reply.reason, 0);
            Complete::Place(*reply).answer(state, Kind::PlaceInto, sequence);
        }
    }
}

/// Sends a placement to the shard of its bundle.
fn submit_into(io: &Rc<Io>, operation: usize, bundle: AllocationId, demand: Demand, now: Time) {
    let shard = io.port.borrow_mut().shard_of(bundle.partition);
    match shard {
        Some(shard) => {
            let command = Command::PlaceInto { bundle, demand: Box::new(demand) };
            io.submit(operation, 0, PortRequest::Shard(shard, command), now);
        }
        None => {
            let rejected = Outcome::Rejected(Rejection::UnknownAllocation(bundle));
            io.handle_reply(operation, 0, PortReply::One(rejected), now);
        }
    }
}

/// Places into a bundle for a request that a task executes.
async fn ask_into(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    (bundle, demand): (AllocationId, Demand),
    now: Time,
) -> PortReply {
    take_room(io, 1).await;
    let (asker, answer) = oneshot::channel();
    let operation = enter(io, state, sequence, Parts::Ask(Some(asker)), now);
    submit_into(io, operation, bundle, demand, now);
    io.port.borrow_mut().flush();
    answer.await.expect("the port answers whatever it took")
}

/// Returns the status of a group for a request that a task executes.
async fn ask_status(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    group: GroupId,
    now: Time,
) -> PlanReply {
    take_plan_room(io).await;
    let (asker, answer) = oneshot::channel();
    let operation = enter(io, state, sequence, Parts::AskPlan(Some(asker)), now);
    io.submit(operation, 0, PortRequest::PlanFor(state.client(), PlanJob::GroupStatus(group)), now);
    io.port.borrow_mut().flush();
    match answer.await.expect("the port answers whatever it took") {
        PortReply::Plan(reply) => *reply,
        other => unreachable!("a planner answers with a plan's reply, not {other:?}"),
    }
}

/// Returns the placed bundles of a group that a placement may go into, in order of their index.
fn candidates(view: &GroupView, index: Option<u32>) -> Result<Vec<AllocationId>, Fault> {
    let asked = view.bundles.iter().filter(|&&(place, _)| index.is_none_or(|index| index == place));
    let placed = asked.clone().filter_map(|(_, bundle)| match bundle {
        BundleView::Placed { allocation, .. } => Some(*allocation),
        BundleView::Unplaced => None,
    });
    let placed: Vec<AllocationId> = placed.collect();
    if !placed.is_empty() {
        return Ok(placed);
    }
    let id = view.id;
    let message = match index {
        Some(index) if asked.count() == 0 => {
            format!("group {id} has no bundle {index}: ask for the status of the group to see which it has")
        }
        Some(index) => format!("bundle {index} of group {id} is not placed: ask again when it is"),
        None => format!("no bundle of group {id} is placed: ask again when one is"),
    };
    let field = if index.is_some() { "bundle" } else { "group" };
    Err(Fault::of_field(Reason::UnknownBundle, field, message))
}

async fn place_into_group(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    (target, demand): (IntoTarget, Demand),
    now: Time,
) -> PlaceReply {
    let IntoTarget::Group(group, index) = target else { unreachable!("a group is named") };
    let view = match ask_status(io, state, sequence, group, now).await {
        PlanReply::Group(view) => view,
        PlanReply::Rejected(rejection) => return fault_reply(plan_fault(&rejection)),
        other => unreachable!("no answer about one group: {other:?}"),
    };
    let bundles = match candidates(&view, index) {
        Ok(bundles) => bundles,
        Err(fault) => return fault_reply(fault),
    };
    let mut last = None;
    for bundle in bundles {
        match ask_into(io, state, sequence, (bundle, demand.clone()), now).await {
            // The bundle has no room, or it ended meanwhile with its node or group. Try the next one.
            rejected @ PortReply::One(Outcome::Rejected(_)) => last = Some(rejected),
            placed => return into_reply(placed, io.port.borrow_mut().catalog()),
        }
    }
    let rejected = last.expect("there was a bundle to try");
    into_reply(rejected, io.port.borrow_mut().catalog())
}

/// Returns the reply to a placement into a bundle.
pub(super) fn into_reply(reply: PortReply, catalog: &Catalog) -> PlaceReply {
    match reply {
        PortReply::One(Outcome::Placed(placement)) => placed_reply(&placement, catalog),
        PortReply::One(Outcome::Rejected(rejection)) => {
            fault_reply(named_rejection_fault(&rejection, &catalog.resources))
        }
        other => unreachable!("no answer to a placement into a bundle: {other:?}"),
    }
}
