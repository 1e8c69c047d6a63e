//! Placements into the bundles of groups.
//!
//! A placement into a group first asks the planner for the group's bundles. Then it asks the shards of the
//! bundles, one after the other, until one places it.

use std::collections::VecDeque;

use wharf_core::group::{BundleView, GroupView, PlanJob, PlanReply};
use wharf_core::ids::AllocationId;
use wharf_core::registrar::Catalog;
use wharf_core::resource::Demand;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome, Rejection};
use wharf_core::time::Time;

use super::operation::{Operation, Parts};
use super::room::Waiter;
use super::{ConnectionKey, ConnectionService};
use crate::convert::{IntoTarget, fault_reply, named_rejection_fault, place_into, placed_reply, plan_fault};
use crate::protocol::{Fault, Kind, PlaceIntoRequest, PlaceReply, Reason};

/// A placement into some bundle of a group.
pub(super) struct IntoGroup {
    /// The index of the bundle, if only one may be used.
    index: Option<u32>,
    demand: Demand,
    /// The bundles to try. `None` until the planner has named them.
    bundles: Option<VecDeque<AllocationId>>,
}

impl IntoGroup {
    /// Returns whether it waits for the planner's answer.
    pub(super) fn is_asking(&self) -> bool {
        self.bundles.is_none()
    }
}

impl ConnectionService {
    pub(super) fn handle_place_into(
        &mut self,
        key: ConnectionKey,
        sequence: u64,
        request: PlaceIntoRequest,
        now: Time,
    ) {
        match place_into(request, self.port.catalog()) {
            Ok((IntoTarget::Allocation(bundle), demand)) => match self.bundle_request(bundle, demand) {
                Ok(request) => self.submit_one(key, sequence, Parts::Into, request, now),
                Err(rejected) => {
                    let reply = into_reply(rejected, self.port.catalog());
                    self.answer_into(key, sequence, &reply);
                }
            },
            Ok((IntoTarget::Group(group, index), demand)) => {
                let into = Box::new(IntoGroup { index, demand, bundles: None });
                let job = PlanJob::GroupStatus(group);
                self.submit_plan(key, sequence, Parts::IntoGroup(into), job, now);
            }
            Err(reply) => self.answer_into(key, sequence, &reply),
        }
    }

    fn answer_into(&mut self, key: ConnectionKey, sequence: u64, reply: &PlaceReply) {
        self.answer_at_once(key, Kind::PlaceInto, sequence, reply, reply.reason);
    }

    /// Returns the request that places into a bundle, or its rejection if no shard has the bundle.
    fn bundle_request(&mut self, bundle: AllocationId, demand: Demand) -> Result<PortRequest, PortReply> {
        let Some(shard) = self.port.shard_of(bundle.partition) else {
            return Err(PortReply::One(Outcome::Rejected(Rejection::UnknownAllocation(bundle))));
        };
        let command = Command::PlaceInto { bundle, demand: Box::new(demand) };
        Ok(PortRequest::Shard(shard, command))
    }

    /// Handles the answer to the last step of a placement into a group: takes the next step, or replies.
    pub(super) fn step_into_group(&mut self, at: usize, reply: PortReply, now: Time) {
        let Parts::IntoGroup(into) = &mut self.operations[at].parts else {
            unreachable!("it is a placement into a group")
        };
        let done = match (&mut into.bundles, reply) {
            (bundles @ None, PortReply::Plan(reply)) => match *reply {
                PlanReply::Group(view) => match candidates(&view, into.index) {
                    Ok(placed) => {
                        *bundles = Some(placed);
                        None
                    }
                    Err(fault) => Some(fault_reply(fault)),
                },
                PlanReply::Rejected(rejection) => Some(fault_reply(plan_fault(&rejection))),
                other => unreachable!("no answer about one group: {other:?}"),
            },
            // The bundle has no room, or it ended meanwhile with its node or group. Try the next one.
            (Some(bundles), PortReply::One(Outcome::Rejected(_))) if !bundles.is_empty() => None,
            (_, reply) => Some(into_reply(reply, self.port.catalog())),
        };
        match done {
            None => self.port_room.wait(Waiter::Operation(at), 1),
            Some(reply) => {
                let Operation { connection, sequence, started, .. } = self.operations.remove(at);
                self.connections[connection].reply(Kind::PlaceInto, sequence, &reply);
                self.touch(connection);
                self.observer.handle_reply(Kind::PlaceInto, reply.reason, now.nanos_since(started));
            }
        }
    }

    /// Asks for a place in the next bundle. The room for it was taken.
    pub(super) fn submit_next(&mut self, at: usize, now: Time) {
        let Parts::IntoGroup(into) = &mut self.operations[at].parts else {
            unreachable!("only placements into groups have a next step")
        };
        let bundle = into.bundles.as_mut().and_then(VecDeque::pop_front).expect("there is a bundle to try");
        let demand = into.demand.clone();
        match self.bundle_request(bundle, demand) {
            Ok(request) => self.submit(at, 0, request, now),
            Err(rejected) => self.handle_reply(at, 0, rejected, now),
        }
    }
}

/// Returns the placed bundles of a group that a placement may go into, in order of their index.
fn candidates(view: &GroupView, index: Option<u32>) -> Result<VecDeque<AllocationId>, Fault> {
    let asked = view.bundles.iter().filter(|&&(place, _)| index.is_none_or(|index| index == place));
    let placed = asked.clone().filter_map(|(_, bundle)| match bundle {
        BundleView::Placed { allocation, .. } => Some(*allocation),
        BundleView::Unplaced => None,
    });
    let placed: VecDeque<AllocationId> = placed.collect();
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
