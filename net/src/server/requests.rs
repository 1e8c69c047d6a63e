//! A new request of a connection: what it asks, of its port or of the registrar, and how the
//! registrar's answer becomes its reply.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use wharf_core::router::PortRequest;
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::io_thread::Io;
use super::operation::Parts;
use super::placing::{enter, handle_place, handle_place_batch, handle_release_batch, take_room};
use super::planning::handle_planning;
use super::reader::{Asked, BODY_VERSION, read_any_version, read_body, read_body_up_to};
use super::registrar_task::{RegistrarReply, RegistrarRequest};
use super::{follow, wait};
use crate::codec::{Extension, encode_body};
use crate::protocol::{
    CancelReply, CancelRequest, DETAILS_VERSION, EXTENSION_RESERVATION, EXTENSION_RESERVATION_STANDING,
    EXTENSION_RESERVED, EXTENSION_RESERVED_NODES, EXTENSION_UNHEALTHY, EXTENSION_WAITING, Fault, Kind,
    ListDetailsReply, ListReply, NodeBooksReply, PLACE_VERSION_OWNER, PLACE_VERSION_PREFERENCES, PlaceBatch,
    PlaceBatchV2, PlaceBatchV3, PlaceRequest, PlaceRequestV2, PlaceRequestV3, Reason, ReasonCode,
    ReleaseBatch, ReleaseRequest, StatusDetailsReply, Waiting, reserved_nodes, unhealthy_extension,
};

/// Carries out a new request; a fault is the reply to it.
pub(super) async fn handle_request(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    asked: &Asked<'_>,
    now: Time,
) -> Result<(), Fault> {
    let (sequence, version) = (asked.frame.header.sequence, asked.frame.header.version);
    let kind = Kind::from_number(asked.frame.header.kind).ok_or_else(|| {
        Fault::new(
            Reason::UnknownKind,
            format!("message kind {} is unknown to version 1", asked.frame.header.kind),
        )
    })?;
    match kind {
        Kind::Hello => unreachable!("a second hello was refused before"),
        Kind::Place => handle_place(io, state, (sequence, version), read_place(asked)?, now).await,
        Kind::PlaceBatch => {
            handle_place_batch(io, state, (sequence, version), read_batch(asked)?, now).await;
        }
        Kind::Release => {
            let request: ReleaseRequest = read_body(asked)?;
            take_room(io, 1).await;
            let operation = enter(io, state, sequence, Parts::Release, now);
            io.submit(operation, 0, PortRequest::Release(request.allocation.into()), now);
        }
        Kind::ReleaseBatch => {
            let batch: ReleaseBatch = read_body(asked)?;
            handle_release_batch(io, state, sequence, batch, now).await;
        }
        Kind::CancelWait => {
            let request: CancelRequest = read_body(asked)?;
            let waited = wait::cancel(io, state, request.sequence, now);
            state.reply(kind, sequence, &CancelReply { waited });
            io.observe(kind, ReasonCode::default(), 0);
        }
        Kind::CreateGroup
        | Kind::GrowGroup
        | Kind::ShrinkGroup
        | Kind::RemoveGroup
        | Kind::GroupStatus
        | Kind::ListGroups
        | Kind::PlaceInto
        | Kind::SubmitStatement => return handle_planning(io, state, kind, asked, now).await,
        Kind::Follow => return follow::handle_follow(io, state, sequence, read_body(asked)?, now).await,
        _ => return ask_registrar(io, state, kind, asked, now).await,
    }
    Ok(())
}

fn read_place(asked: &Asked<'_>) -> Result<PlaceRequestV3, Fault> {
    Ok(match asked.frame.header.version {
        PLACE_VERSION_OWNER => read_any_version(asked)?,
        PLACE_VERSION_PREFERENCES => read_any_version::<PlaceRequestV2>(asked)?.into(),
        _ => read_body_up_to::<PlaceRequest>(asked, PLACE_VERSION_OWNER)?.into(),
    })
}

fn read_batch(asked: &Asked<'_>) -> Result<Vec<PlaceRequestV3>, Fault> {
    Ok(match asked.frame.header.version {
        PLACE_VERSION_OWNER => read_any_version::<PlaceBatchV3>(asked)?.requests,
        PLACE_VERSION_PREFERENCES => {
            let batch: PlaceBatchV2 = read_any_version(asked)?;
            batch.requests.into_iter().map(Into::into).collect()
        }
        _ => {
            let batch: PlaceBatch = read_body_up_to(asked, PLACE_VERSION_OWNER)?;
            batch.requests.into_iter().map(Into::into).collect()
        }
    })
}

/// Puts a request to the registrar; its reply follows when the registrar has answered.
async fn ask_registrar(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    kind: Kind,
    asked: &Asked<'_>,
    now: Time,
) -> Result<(), Fault> {
    let request = match kind {
        Kind::AddNodes => RegistrarRequest::Add(read_body(asked)?),
        Kind::UpdateNodes => RegistrarRequest::Update(read_body(asked)?),
        Kind::DrainNodes => RegistrarRequest::Drain(read_body(asked)?),
        Kind::RemoveNodes => RegistrarRequest::Remove(read_body(asked)?),
        Kind::ListNodes => RegistrarRequest::List(read_body_up_to(asked, DETAILS_VERSION)?),
        Kind::Status => RegistrarRequest::Status(read_body_up_to(asked, DETAILS_VERSION)?),
        Kind::Report => RegistrarRequest::Report(Box::new(read_body(asked)?)),
        Kind::Heartbeat => RegistrarRequest::Heartbeat(read_body(asked)?),
        Kind::Adopt => RegistrarRequest::Adopt(read_body(asked)?),
        Kind::SetResources => RegistrarRequest::SetResources(read_body(asked)?),
        Kind::NodeBooks => RegistrarRequest::Books(read_body(asked)?),
        Kind::Reserve => RegistrarRequest::Reserve(read_body(asked)?),
        Kind::EndReservation => RegistrarRequest::EndReservation(read_body(asked)?),
        Kind::Hello
        | Kind::Place
        | Kind::PlaceBatch
        | Kind::Release
        | Kind::ReleaseBatch
        | Kind::CancelWait
        | Kind::CreateGroup
        | Kind::GrowGroup
        | Kind::ShrinkGroup
        | Kind::RemoveGroup
        | Kind::GroupStatus
        | Kind::ListGroups
        | Kind::PlaceInto
        | Kind::SubmitStatement
        | Kind::Follow => unreachable!("{kind:?} goes to the port"),
    };
    let (sequence, version) = (asked.frame.header.sequence, asked.frame.header.version);
    // A page takes memory at every shard, at the registrar and here: few are made at once.
    let list_room = if kind == Kind::ListNodes { Some(take_list_room(io).await) } else { None };
    let answer = io.registrar.ask(request).await?;
    let (io, state) = (Rc::clone(io), Rc::clone(state));
    tokio::task::spawn_local(async move {
        let answer = answer.await.unwrap_or_else(|_| {
            let gone = "the registrar is gone: the service is shutting down";
            RegistrarReply::Fault(Fault::new(Reason::Unavailable, gone))
        });
        let reason = answer_with(&io, &state, kind, (sequence, version), answer);
        drop(list_room);
        io.observe(kind, reason, io.shared.now().nanos_since(now));
    });
    Ok(())
}

/// Waits until one more page of nodes may be made, in order of arrival over all connections.
async fn take_list_room(io: &Io) -> OwnedSemaphorePermit {
    let room = &io.shared.list_room;
    if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
        return permit;
    }
    // What was submitted so far must be on its way before anybody waits.
    io.port.borrow_mut().flush();
    Arc::clone(room).acquire_owned().await.expect("the room is never closed")
}

/// Makes the reply of what the registrar answered; its reason.
fn answer_with(
    io: &Io,
    state: &ConnectionState,
    kind: Kind,
    (sequence, version): (u64, u8),
    answer: RegistrarReply,
) -> ReasonCode {
    match answer {
        RegistrarReply::Nodes(reply) => {
            state.reply(kind, sequence, &reply);
            io.observe_parts(kind, reply.replies.iter().map(|reply| reply.reason));
        }
        RegistrarReply::List(reply) if version == BODY_VERSION => {
            let ListDetailsReply { nodes, more } = reply;
            let nodes = nodes.into_iter().map(|node| node.status).collect();
            state.reply(kind, sequence, &ListReply { nodes, more });
        }
        RegistrarReply::List(reply) => reply_list(state, version, sequence, &reply),
        RegistrarReply::Status(reply) => reply_status(state, version, sequence, &reply),
        RegistrarReply::Report(reply) => {
            state.reply(kind, sequence, &reply);
            return reply.reason;
        }
        RegistrarReply::Heartbeat(reply) => {
            state.reply(kind, sequence, &reply);
            return reply.reason;
        }
        RegistrarReply::Books(reply) => reply_books(state, sequence, &reply),
        RegistrarReply::Reserved(reply) => {
            state.reply(kind, sequence, &*reply);
            return reply.reason;
        }
        RegistrarReply::Adopted(reply) => {
            state.reply_placed(kind, BODY_VERSION, sequence, &*reply, [&*reply]);
            return reply.reason;
        }
        RegistrarReply::Fault(fault) => {
            state.reply_fault(kind.number(), sequence, &fault);
            return fault.reason;
        }
        RegistrarReply::Learnt | RegistrarReply::Exported(_) => {
            unreachable!("no connection asks for this alone")
        }
    }
    ReasonCode::default()
}

/// For whom the node is reserved stands in an extension.
fn reply_books(state: &ConnectionState, sequence: u64, reply: &NodeBooksReply) {
    let (mut unhealthy, mut reservation, mut standing) = (Vec::new(), Vec::new(), Vec::new());
    unhealthy_extension(reply, &mut unhealthy);
    if let Some(there) = &reply.reservation {
        encode_body(there, &mut reservation);
        encode_body(&there.standing, &mut standing);
    }
    let extensions = [
        Extension { tag: EXTENSION_UNHEALTHY, bytes: &unhealthy },
        Extension { tag: EXTENSION_RESERVATION, bytes: &reservation },
        Extension { tag: EXTENSION_RESERVATION_STANDING, bytes: &standing },
    ];
    let there: Vec<_> = extensions.into_iter().filter(|extension| !extension.bytes.is_empty()).collect();
    state.reply_extended(Kind::NodeBooks, BODY_VERSION, sequence, &there, reply);
}

/// Which nodes are reserved stands in an extension.
fn reply_list(state: &ConnectionState, version: u8, sequence: u64, page: &ListDetailsReply) {
    let (reserved, mut bytes) = (reserved_nodes(page), Vec::new());
    if reserved.nodes.is_empty() {
        return state.reply_version(Kind::ListNodes, version, sequence, page);
    }
    encode_body(&reserved, &mut bytes);
    let extension = [Extension { tag: EXTENSION_RESERVED_NODES, bytes: &bytes }];
    state.reply_extended(Kind::ListNodes, version, sequence, &extension, page);
}

/// What waits and what is reserved stand in extensions, whatever the version of the body.
fn reply_status(state: &ConnectionState, version: u8, sequence: u64, reply: &StatusDetailsReply) {
    let status = &reply.status;
    let (mut waiting, mut reserved) = (Vec::new(), Vec::new());
    let mut extensions = Vec::new();
    if status.waiting != Waiting::default() {
        encode_body(&status.waiting, &mut waiting);
        extensions.push(Extension { tag: EXTENSION_WAITING, bytes: &waiting });
    }
    // Also where no node is reserved: what waits for a claim is set aside as well.
    let set_aside = &status.reserved;
    if set_aside.nodes.iter().any(|&nodes| nodes > 0) || set_aside.amounts.iter().any(|&amount| amount > 0) {
        encode_body(&status.reserved, &mut reserved);
        extensions.push(Extension { tag: EXTENSION_RESERVED, bytes: &reserved });
    }
    let extensions = &extensions[..];
    if version == BODY_VERSION {
        state.reply_extended(Kind::Status, version, sequence, extensions, status);
    } else {
        state.reply_extended(Kind::Status, version, sequence, extensions, reply);
    }
}
