//! Placements and releases on their way from a connection to its port.

use std::rc::Rc;

use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::router::PortRequest;
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::io_thread::Io;
use super::operation::{Operation, Parts, batch_reply};
use super::wait;
use crate::convert::{fault_reply, placement_request};
use crate::protocol::{
    Fault, Kind, MODE_WAIT_UNTIL, PlaceBatch, PlaceReply, PlaceRequest, Reason, ReasonCode, ReleaseBatch,
    ReleaseBatchReply, ReleaseReply,
};

pub(super) fn enter(
    io: &Io,
    state: &Rc<ConnectionState>,
    sequence: u64,
    parts: Parts,
    started: Time,
) -> usize {
    io.enter(Operation { connection: Rc::clone(state), sequence, started, parts })
}

/// Waits until `parts` requests can enter the port, in order of arrival.
pub(super) async fn take_room(io: &Io, parts: usize) {
    let parts = u32::try_from(parts).expect("a batch is bounded");
    if let Ok(room) = io.room.try_acquire_many(parts) {
        return room.forget();
    }
    // What was submitted so far must be on its way before anybody waits for it.
    io.port.borrow_mut().flush();
    io.room.acquire_many(parts).await.expect("the room is never closed").forget();
}

pub(super) async fn handle_place(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: PlaceRequest,
    now: Time,
) {
    let default_policy = io.shared.settings.load().default_policy;
    let waits = (request.mode == MODE_WAIT_UNTIL)
        .then_some(wait::Waits { priority: request.priority, deadline: request.deadline });
    let request = {
        let mut port = io.port.borrow_mut();
        placement_request(request, port.catalog(), default_policy)
    };
    match request {
        Ok(request) if waits.is_some() => {
            let waits = waits.expect("looked at just now");
            wait::begin(io, state, sequence, request, waits, now);
        }
        Ok(request) => {
            take_room(io, 1).await;
            let operation = enter(io, state, sequence, Parts::Place, now);
            io.submit(operation, 0, PortRequest::Place(request), now);
        }
        Err(reply) => {
            state.reply(Kind::Place, sequence, &*reply);
            io.observe(Kind::Place, reply.reason, 0);
        }
    }
}

pub(super) async fn handle_place_batch(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    batch: PlaceBatch,
    now: Time,
) {
    debug_assert!(batch.requests.len() <= PLACEMENTS_PER_MESSAGE_MAX);
    let default_policy = io.shared.settings.load().default_policy;
    let mut replies = Vec::with_capacity(batch.requests.len());
    let mut valid = Vec::with_capacity(batch.requests.len());
    {
        let mut port = io.port.borrow_mut();
        let catalog = port.catalog();
        for (part, request) in batch.requests.into_iter().enumerate() {
            if request.mode == MODE_WAIT_UNTIL {
                let message = "requests of a batch do not wait: give it a request of its own";
                replies.push(fault_reply(Fault::of_field(Reason::InvalidField, "mode", message)));
                continue;
            }
            match placement_request(request, catalog, default_policy) {
                Ok(request) => {
                    valid.push((part, request));
                    replies.push(PlaceReply::default());
                }
                Err(reply) => replies.push(*reply),
            }
        }
    }
    if valid.is_empty() {
        let reply = batch_reply(replies);
        state.reply(Kind::PlaceBatch, sequence, &reply);
        io.observe(Kind::PlaceBatch, ReasonCode::default(), 0);
        return io.observe_parts(Kind::PlaceBatch, reply.replies.iter().map(|reply| reply.reason));
    }
    take_room(io, valid.len()).await;
    let operation = enter(io, state, sequence, Parts::PlaceBatch { replies, left: valid.len() }, now);
    for (part, request) in valid {
        io.submit(operation, part, PortRequest::Place(request), now);
    }
}

pub(super) async fn handle_release_batch(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    batch: ReleaseBatch,
    now: Time,
) {
    if batch.requests.is_empty() {
        state.reply(Kind::ReleaseBatch, sequence, &ReleaseBatchReply::default());
        return io.observe(Kind::ReleaseBatch, ReasonCode::default(), 0);
    }
    let left = batch.requests.len();
    take_room(io, left).await;
    let replies = vec![ReleaseReply::default(); left];
    let operation = enter(io, state, sequence, Parts::ReleaseBatch { replies, left }, now);
    for (part, request) in batch.requests.into_iter().enumerate() {
        io.submit(operation, part, PortRequest::Release(request.allocation.into()), now);
    }
}
