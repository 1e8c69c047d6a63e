//! Placements into the bundles of groups.
//!
//! A placement into a group first asks the planner for the group's bundles. Then it asks the shards of the
//! bundles, one after the other, until one places it. Each shard is asked once, for all of its bundles.

use std::collections::VecDeque;

use wharf_core::group::{GroupView, PlanJob, PlanReply};
use wharf_core::ids::{AllocationId, PartitionId, ShardId};
use wharf_core::registrar::Catalog;
use wharf_core::reply::reply_of;
use wharf_core::request::Placement;
use wharf_core::resource::Demand;
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{BundleRejection, Command, UnknownAllocation};
use wharf_core::time::Time;

use super::operation::{Parts, of_shard};
use super::{Asker, ConnectionService};
use crate::convert::{IntoTarget, bundle_fault, place_into, placed_reply, plan_fault};
use crate::protocol::{Fault, PlaceIntoRequest, PlaceReply, Reason};

/// A placement into some bundle of a group.
pub(super) struct IntoGroup {
    /// The index of the bundle, if only one may be used.
    index: Option<u32>,
    demand: Demand,
    /// The requests that are left, one for each shard. `None` until the planner has named the bundles.
    steps: Option<VecDeque<PortRequest>>,
}

impl IntoGroup {
    /// Returns whether it waits for the planner's answer.
    pub(super) fn is_asking(&self) -> bool {
        self.steps.is_none()
    }

    /// Handles the reply to the last step. Returns the whole reply, or `None` if there is a next step.
    pub(super) fn handle_reply(&mut self, reply: PortReply, port: &mut Port) -> Option<PlaceReply> {
        if let Some(left) = &self.steps {
            return match of_shard::<Result<_, BundleRejection>>(reply) {
                // The bundles of this shard have no room, or they ended meanwhile. Try the next shard.
                Err(_) if !left.is_empty() => None,
                placed => Some(into_reply(placed, port.catalog())),
            };
        }
        let placed = match reply_of::<Result<Box<GroupView>, _>, _>(*reply_of::<Box<PlanReply>, _>(reply)) {
            Ok(view) => candidates(&view, self.index),
            Err(rejection) => Err(plan_fault(&rejection)),
        };
        match placed {
            Ok(placed) => {
                let all = steps(&placed, &self.demand, |partition| port.shard_of(partition));
                assert!(!all.is_empty(), "a shard serves each placed bundle");
                self.steps = Some(all.into());
                None
            }
            Err(fault) => Some(fault.into()),
        }
    }
}

impl ConnectionService {
    pub(super) fn handle_place_into(&mut self, asker: Asker, request: PlaceIntoRequest) {
        match place_into(request, self.port.catalog()) {
            Ok((IntoTarget::Allocation(bundle), demand)) => {
                match steps(&[bundle], &demand, |partition| self.port.shard_of(partition)).pop() {
                    Some(request) => self.submit_one(asker, Parts::Into, request),
                    None => {
                        let unknown = UnknownAllocation(bundle).into();
                        let reply = into_reply(Err(unknown), self.port.catalog());
                        self.answer(asker, &reply, asker.started);
                    }
                }
            }
            Ok((IntoTarget::Group(group, index), demand)) => match self.check_kept(group) {
                Ok(()) => {
                    let into = Box::new(IntoGroup { index, demand, steps: None });
                    self.submit_plan(asker, Parts::IntoGroup(into), PlanJob::GroupStatus(group));
                }
                Err(fault) => self.answer(asker, &PlaceReply::from(fault), asker.started),
            },
            Err(reply) => self.answer(asker, &*reply, asker.started),
        }
    }

    /// Asks the next shard for a placement into a group. The room for the request was taken.
    pub(super) fn submit_next(&mut self, at: usize, now: Time) {
        let next = match &mut self.operations[at].parts {
            Parts::IntoGroup(into) => into.steps.as_mut().and_then(VecDeque::pop_front),
            _ => None,
        };
        self.submit(at, 0, next.expect("there is a shard to ask"), now);
    }
}

/// Returns one request for each shard that has some of the `bundles`, in the order of its first bundle. Bundles that no
/// shard serves are left out.
fn steps(
    bundles: &[AllocationId],
    demand: &Demand,
    mut shard_of: impl FnMut(PartitionId) -> Option<ShardId>,
) -> Vec<PortRequest> {
    let mut by_shard: Vec<(ShardId, Vec<AllocationId>)> = Vec::new();
    for &bundle in bundles {
        let Some(shard) = shard_of(bundle.partition) else { continue };
        match by_shard.iter_mut().find(|(known, _)| *known == shard) {
            Some((_, bundles)) => bundles.push(bundle),
            None => by_shard.push((shard, vec![bundle])),
        }
    }
    let request = |(shard, bundles): (ShardId, Vec<AllocationId>)| {
        let demand = Box::new(demand.clone());
        PortRequest::Shard(shard, Command::PlaceInto { bundles: bundles.into(), demand })
    };
    by_shard.into_iter().map(request).collect()
}

/// Returns the placed bundles of a group that a placement may go into, in order of their index.
fn candidates(view: &GroupView, index: Option<u32>) -> Result<Vec<AllocationId>, Fault> {
    let asked = view.bundles.iter().filter(|&&(place, _)| index.is_none_or(|index| index == place));
    let placed = asked.clone().filter_map(|(_, bundle)| bundle.map(|place| place.allocation));
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

/// Returns the reply to a placement into a bundle.
pub(super) fn into_reply(placed: Result<Box<Placement>, BundleRejection>, catalog: &Catalog) -> PlaceReply {
    match placed {
        Ok(placement) => placed_reply(&placement, catalog),
        Err(rejection) => bundle_fault(&rejection, &catalog.resources).into(),
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::{Incarnation, TenantId};

    use super::*;

    #[test]
    fn each_shard_is_asked_once_for_all_of_its_bundles() {
        let bundle = |partition, sequence| AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(partition),
            sequence,
            tenant: TenantId::OPERATOR,
        };
        // Even partitions belong to shard 0, odd ones to shard 1, and the last one to none.
        let shard_of = |partition: PartitionId| (partition.0 < 9).then_some(ShardId(partition.0 % 2));
        let bundles: Vec<AllocationId> = (1..=1000).map(|at| bundle((at % 10) as u16, at)).collect();
        let mut asked = Vec::new();
        for request in steps(&bundles, &Demand::default(), shard_of) {
            let PortRequest::Shard(shard, Command::PlaceInto { bundles, .. }) = request else {
                panic!("{request:?}")
            };
            assert!(bundles.is_sorted_by_key(|bundle| bundle.sequence), "in order of their index");
            assert!(bundles.iter().all(|bundle| shard_of(bundle.partition) == Some(shard)));
            asked.push((shard, bundles.len()));
        }
        assert_eq!(asked, [(ShardId(1), 400), (ShardId(0), 500)]);
        assert!(steps(&[bundle(9, 1)], &Demand::default(), shard_of).is_empty());
    }
}
