//! Passes placements and releases from a connection to its port.

use std::cmp::Reverse;
use std::rc::Rc;

use wharf_core::limits::PLACEMENTS_PER_MESSAGE_MAX;
use wharf_core::router::PortRequest;
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::io_thread::Io;
use super::operation::{Complete, Operation, Parts};
use super::wait;
use crate::convert::{PlacementDefaults, fault_reply, kinds_to_learn, placement_request};
use crate::protocol::{
    Fault, Kind, MODE_WAIT_UNTIL, PlaceBatch, PlaceReply, PlaceRequest, Reason, ReasonCode, ReleaseBatch,
    ReleaseBatchReply, ReleaseReply, ReleaseRequest,
};
use crate::session::registrar::{RegistrarReply, RegistrarRequest};

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
    // Flush the requests submitted so far before this task waits for their room.
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
    let asked = &request;
    let waits = (asked.mode == MODE_WAIT_UNTIL)
        .then_some(wait::Waits { priority: asked.priority, deadline: asked.deadline });
    let defaults = io.shared.settings.load().placement_defaults(&io.port.borrow());
    let learnt = if waits.is_some() { learn(io, &request, defaults).await } else { Ok(()) };
    let request = learnt.and_then(|()| {
        let mut port = io.port.borrow_mut();
        placement_request(request, port.catalog(), defaults)
    });
    match (request, waits) {
        (Ok(request), Some(waits)) => wait::begin(io, state, sequence, request, waits, now),
        (Ok(request), None) => {
            take_room(io, 1).await;
            let parts = Parts::Place(request.candidates.clone());
            let operation = enter(io, state, sequence, parts, now);
            io.submit(operation, 0, PortRequest::Place(request), now);
        }
        (Err(reply), _) => {
            io.observe(Kind::Place, reply.reason, 0);
            Complete::Place(*reply).answer(state, Kind::Place, sequence);
        }
    }
}

/// Asks the registrar to learn resource kinds that no node has yet and that `request` will wait for.
async fn learn(io: &Io, request: &PlaceRequest, defaults: PlacementDefaults) -> Result<(), Box<PlaceReply>> {
    let names = kinds_to_learn(request, io.port.borrow_mut().catalog(), defaults)?;
    learn_names(io, names).await.map_err(|fault| Box::new(fault_reply(fault)))
}

/// Asks the registrar to learn these resource kinds.
pub(super) async fn learn_names(io: &Io, names: Vec<String>) -> Result<(), Fault> {
    if names.is_empty() {
        return Ok(());
    }
    // Flush the requests submitted so far before this task waits for the registrar.
    io.port.borrow_mut().flush();
    match io.registrar.ask(RegistrarRequest::Learn(names)).await?.await {
        Ok(RegistrarReply::Learnt) => Ok(()),
        Ok(RegistrarReply::Fault(fault)) => Err(fault),
        Ok(other) => unreachable!("no answer to what is to be learnt: {other:?}"),
        Err(_) => Err(Fault::new(Reason::Unavailable, "the service is shutting down")),
    }
}

pub(super) async fn handle_place_batch(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    PlaceBatch { requests }: PlaceBatch,
    now: Time,
) {
    debug_assert!(requests.len() <= PLACEMENTS_PER_MESSAGE_MAX);
    let mut replies = Vec::with_capacity(requests.len());
    let mut valid = Vec::with_capacity(requests.len());
    let mut named = Vec::new();
    {
        let mut port = io.port.borrow_mut();
        let defaults = io.shared.settings.load().placement_defaults(&port);
        let catalog = port.catalog();
        for (part, mut request) in requests.into_iter().enumerate() {
            if request.mode == MODE_WAIT_UNTIL {
                let message = "requests of a batch do not wait: give it a request of its own";
                let fault = Fault::of_field(Reason::InvalidField, "mode", message);
                replies.push(fault_reply(fault));
                continue;
            }
            // In a batch, the priority orders the requests of the batch. It means nothing for a single
            // request that does not wait.
            let priority = std::mem::take(&mut request.priority);
            match placement_request(request, catalog, defaults) {
                Ok(request) => {
                    named.extend(request.candidates.clone().map(|ids| (part, ids)));
                    valid.push((priority, part, request));
                    replies.push(PlaceReply::default());
                }
                Err(reply) => replies.push(*reply),
            }
        }
    }
    if valid.is_empty() {
        let complete = Complete::place_batch(replies);
        complete.answer(state, Kind::PlaceBatch, sequence);
        io.observe(Kind::PlaceBatch, ReasonCode::default(), 0);
        return io.observe_parts(Kind::PlaceBatch, complete.part_reasons().into_iter());
    }
    // The sort happens here because a shard decides in the order of its recorded input, however that input is
    // split into batches. The sort is stable, so equal priorities keep the order of the frame.
    valid.sort_by_key(|&(priority, ..)| Reverse(priority));
    take_room(io, valid.len()).await;
    let parts = Parts::PlaceBatch { replies, named, left: valid.len() };
    let operation = enter(io, state, sequence, parts, now);
    for (_, part, request) in valid {
        io.submit(operation, part, PortRequest::Place(request), now);
    }
}

pub(super) async fn handle_release(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: ReleaseRequest,
    now: Time,
) {
    take_room(io, 1).await;
    let operation = enter(io, state, sequence, Parts::Release, now);
    io.submit(operation, 0, PortRequest::Release(request.allocation.into()), now);
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
