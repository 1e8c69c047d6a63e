//! Waiting placements: how they begin, end early, and are answered. Waiting groups end the same way.

use std::rc::Rc;

use wharf_core::limits::{CANDIDATES_WAITING_MAX, CONNECTION_WAITING_MAX, PORT_CANDIDATES_WAITING_MAX};
use wharf_core::registrar::Catalog;
use wharf_core::request::PlacementRequest;
use wharf_core::router::{PortReply, PortRequest, WaitEnd, WaitRequest};
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::io_thread::Io;
use super::operation::{Complete, Operation, Parts, place_reply};
use crate::convert::{fault_reply, refused_reply};
use crate::protocol::{Fault, Kind, PlaceReply, Reason};
use crate::session::tags::tag;

/// The priority and the deadline of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// Requests of higher priority go first.
    pub(super) priority: i32,
    /// In ns of service time. 0 means no deadline.
    pub(super) deadline: u64,
}

/// Starts a wait. Waiting requests take no room from other requests, neither at the connection nor at the
/// port.
pub(super) fn begin(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: PlacementRequest,
    waits: Waits,
    now: Time,
) {
    let named = request.candidates.as_ref().map_or(0, |ids| ids.len());
    let full = if state.waits.borrow().len() >= CONNECTION_WAITING_MAX {
        Some(format!(
            "{CONNECTION_WAITING_MAX} requests wait at this connection: cancel some, or ask again later"
        ))
    } else if named > 0 && !has_room_for(io, state, named) {
        Some("as many candidates as can be held are named by requests that wait: name fewer, or ask again later, or without waiting".to_owned())
    } else if io.port.borrow().can_wait() {
        None
    } else {
        Some("as many requests wait at this service as can: ask again later, or without waiting".to_owned())
    };
    let full = full.map(|message| Fault::of_field(Reason::LimitExceeded, "mode", message));
    if let Some(fault) = full.or_else(|| state.take_wait_room(sequence).err()) {
        let reply = fault_reply(fault);
        io.observe(Kind::Place, reply.reason, 0);
        return Complete::Place(reply).answer(state, Kind::Place, sequence);
    }
    let until = if waits.deadline == 0 { Time(u64::MAX) } else { Time(waits.deadline) };
    let parts = Parts::Wait(request.candidates.clone());
    let operation = Operation { connection: Rc::clone(state), sequence, started: now, parts };
    let key = io.enter(operation);
    state.begins_wait(sequence, key);
    let wait = WaitRequest { request, priority: waits.priority, until };
    io.submit(key, 0, PortRequest::Wait(Box::new(wait)), now);
}

/// Returns whether another request that names `named` candidates may wait.
fn has_room_for(io: &Io, state: &ConnectionState, named: usize) -> bool {
    state.candidates_waiting() + named <= CANDIDATES_WAITING_MAX
        && io.candidates_waiting.get() + named <= PORT_CANDIDATES_WAITING_MAX
}

/// Cancels the wait of one request. Returns whether it was still waiting.
pub(super) fn cancel(io: &Io, state: &ConnectionState, sequence: u64, now: Time) -> bool {
    let entry = state.waits.borrow_mut().get_mut(&sequence).map(|entry| {
        entry.is_cancelled = true;
        *entry
    });
    if let Some(entry) = entry {
        end(io, entry.key, WaitEnd::Cancelled, now);
    }
    entry.is_some()
}

/// Ends all waits of a connection that is no longer read.
pub(super) fn end_all(io: &Io, state: &ConnectionState, why: WaitEnd, now: Time) {
    let keys: Vec<usize> = state.waits.borrow().values().map(|entry| entry.key).collect();
    for key in keys {
        end(io, key, why, now);
    }
}

fn end(io: &Io, key: usize, why: WaitEnd, now: Time) {
    if let Parts::WaitGroup(_, ended) = &mut io.operations.borrow_mut()[key].parts {
        // Tell the planner only once. It answers when it has taken the group back or placed it.
        if ended.replace(why).is_none() {
            let mut port = io.port.borrow_mut();
            port.cancel_plan(tag(key, 0));
            // The connection may have no reader left that would flush the port.
            port.flush();
        }
        return;
    }
    let done = io.port.borrow_mut().end_wait(tag(key, 0), why, now);
    if let Some((_, reply)) = done {
        io.handle_reply(key, 0, reply, now);
    }
}

/// Returns the fault for waiting requests when the service stops.
pub(super) fn stopped() -> Fault {
    let message = "the service stops, and what waits does not wait on: ask again once it is back";
    Fault::new(Reason::ShuttingDown, message)
}

/// Returns the reply to a placement that waited.
pub(super) fn wait_reply(reply: PortReply, catalog: &Catalog) -> PlaceReply {
    match reply {
        PortReply::WaitEnded(WaitEnd::Expired, verdict, refusal) => refused_reply(verdict, &refusal, catalog),
        PortReply::WaitEnded(WaitEnd::Cancelled, verdict, refusal) => {
            PlaceReply { reason: Reason::Cancelled.into(), ..refused_reply(verdict, &refusal, catalog) }
        }
        PortReply::WaitEnded(WaitEnd::Stopped, ..) => fault_reply(stopped()),
        other => place_reply(other, catalog),
    }
}
