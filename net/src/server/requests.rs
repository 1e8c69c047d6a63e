//! Dispatches a connection's new requests to its port or to the registrar, and turns the registrar's answers
//! into replies.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::io_thread::Io;
use super::placing::{handle_place, handle_place_batch, handle_release, handle_release_batch};
use super::planning::handle_planning;
use super::reader::{Asked, read_body};
use super::{follow, wait};
use crate::protocol::{CancelReply, CancelRequest, Fault, Kind, Reason, ReasonCode};
use crate::session::registrar::{RegistrarReply, RegistrarRequest};

/// Executes a new request. A returned fault is its reply.
pub(super) async fn handle_request(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    asked: &Asked<'_>,
    now: Time,
) -> Result<(), Fault> {
    let sequence = asked.frame.header.sequence;
    let kind = Kind::from_number(asked.frame.header.kind).ok_or_else(|| {
        Fault::new(
            Reason::UnknownKind,
            format!("message kind {} is unknown to version 1", asked.frame.header.kind),
        )
    })?;
    let question = match kind {
        Kind::Hello => unreachable!("a second hello was refused before"),
        Kind::Place => {
            handle_place(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::PlaceBatch => {
            handle_place_batch(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::Release => {
            handle_release(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::ReleaseBatch => {
            handle_release_batch(io, state, sequence, read_body(asked)?, now).await;
            return Ok(());
        }
        Kind::CancelWait => {
            let request: CancelRequest = read_body(asked)?;
            let waited = wait::cancel(io, state, request.sequence, now);
            state.reply(kind, sequence, &CancelReply { waited });
            io.observe(kind, ReasonCode::default(), 0);
            return Ok(());
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
        _ => {
            let request = RegistrarRequest::read(kind, asked);
            request.expect("all other kinds are served above")?
        }
    };
    ask_registrar(io, state, (kind, sequence), question, now).await
}

/// Sends a request to the registrar. The reply follows when the registrar has answered.
async fn ask_registrar(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    (kind, sequence): (Kind, u64),
    request: RegistrarRequest,
    now: Time,
) -> Result<(), Fault> {
    // A page takes memory at every shard, at the registrar and here, so few are built at once.
    let list_room = if kind == Kind::ListNodes { Some(take_list_room(io).await) } else { None };
    let answer = io.registrar.ask(request).await?;
    let io = Rc::clone(io);
    let state = Rc::clone(state);
    tokio::task::spawn_local(async move {
        let answer = answer.await.unwrap_or_else(|_| {
            let gone = "the registrar is gone: the service is shutting down";
            RegistrarReply::Fault(Fault::new(Reason::Unavailable, gone))
        });
        let reason = answer_with(&io, &state, kind, sequence, answer);
        drop(list_room);
        io.observe(kind, reason, io.shared.now().nanos_since(now));
    });
    Ok(())
}

/// Waits until another page of nodes may be built. Connections are served in order of arrival.
async fn take_list_room(io: &Io) -> OwnedSemaphorePermit {
    let room = &io.shared.list_room;
    if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
        return permit;
    }
    // Flush the requests submitted so far before this task waits.
    io.port.borrow_mut().flush();
    Arc::clone(room).acquire_owned().await.expect("the room is never closed")
}

/// Sends the registrar's answer as the reply. Returns its reason.
fn answer_with(
    io: &Io,
    state: &ConnectionState,
    kind: Kind,
    sequence: u64,
    answer: RegistrarReply,
) -> ReasonCode {
    match answer {
        RegistrarReply::Nodes(reply) => {
            state.reply(kind, sequence, &reply);
            io.observe_parts(kind, reply.replies.iter().map(|reply| reply.reason));
        }
        RegistrarReply::List(reply) => state.reply(kind, sequence, &reply),
        RegistrarReply::Status(reply) => state.reply(kind, sequence, &*reply),
        RegistrarReply::Report(reply) => {
            state.reply(kind, sequence, &reply);
            return reply.reason;
        }
        RegistrarReply::Heartbeat(reply) => {
            state.reply(kind, sequence, &reply);
            return reply.reason;
        }
        RegistrarReply::Books(reply) => state.reply(kind, sequence, &*reply),
        RegistrarReply::Reserved(reply) => {
            state.reply(kind, sequence, &*reply);
            return reply.reason;
        }
        RegistrarReply::Adopted(reply) => {
            state.reply(kind, sequence, &*reply);
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
