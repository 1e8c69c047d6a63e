//! The part of the oracle for reservations. A node as an owner sees it is a copy on which capacity that is
//! reserved for others counts as used.

use std::collections::BTreeMap;

use wharf_core::ids::{NodeId, OwnerId, ResourceId};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{Amount, Demand, ResourceKind};
use wharf_core::shard::{Outcome, ReservationChange, ReservationRejection, Reserve, UnknownNode};
use wharf_core::state::ReservationRecord;
use wharf_core::time::Time;

use super::linear_node::{DEVICE, INSTANCES, LinearNode, UNITS, custom_total};
use super::linear_shard::{LinearShard, differs};

/// The reserved capacity and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinearReservation {
    pub(super) owner: OwnerId,
    cpu: i64,
    memory: i64,
    gpu: i64,
    custom: BTreeMap<ResourceId, i64>,
    until: Option<Time>,
}

impl LinearReservation {
    fn of(reserve: &Reserve) -> Self {
        let Demand { cpu, memory, gpu, .. } = &reserve.demand;
        Self {
            owner: reserve.owner,
            cpu: cpu.units(),
            memory: memory.units(),
            gpu: gpu.amount().units(),
            custom: reserve.demand.custom().iter().map(|&(id, amount)| (id, amount.units())).collect(),
            until: reserve.until,
        }
    }

    /// Reduces the reservation by `demand`. Returns whether anything is still reserved.
    fn use_up(&mut self, demand: &Demand) -> bool {
        self.cpu = (self.cpu - demand.cpu.units()).max(0);
        self.memory = (self.memory - demand.memory.units()).max(0);
        self.gpu = (self.gpu - demand.gpu.amount().units()).max(0);
        for &(id, amount) in demand.custom() {
            if let Some(kept) = self.custom.get_mut(&id) {
                *kept = (*kept - amount.units()).max(0);
            }
        }
        self.cpu + self.memory + self.gpu + self.custom.values().sum::<i64>() > 0
    }

    pub(super) fn is(&self, record: &ReservationRecord) -> bool {
        let left = &record.left;
        let custom: Vec<(ResourceId, i64)> = left.custom.iter().map(|&(id, a)| (id, a.units())).collect();
        let kept = self.custom.iter().filter(|&(_, &amount)| amount > 0);
        let same = [left.cpu, left.memory, left.gpu].map(Amount::units) == [self.cpu, self.memory, self.gpu];
        same && kept.map(|(&id, &amount)| (id, amount)).eq(custom)
            && (record.owner, record.until) == (self.owner, self.until)
    }
}

/// Returns how much of each instance a reservation of `amount` keeps.
///
/// Whole devices keep the instances with most free capacity, one after the other. A remaining part keeps the
/// instance where it fits best, or else all of the freest of the remaining instances.
fn kept_of_instances(free: &[i64], amount: i64) -> Vec<i64> {
    let mut kept = vec![0; free.len()];
    let mut taken = vec![false; free.len()];
    let most_free = |taken: &mut Vec<bool>| {
        let mut most: Option<usize> = None;
        for at in 0..free.len() {
            if !taken[at] && most.is_none_or(|most| free[at] > free[most]) {
                most = Some(at);
            }
        }
        if let Some(at) = most {
            taken[at] = true;
        }
        most
    };
    let mut left = amount;
    while left >= DEVICE {
        if let Some(at) = most_free(&mut taken) {
            kept[at] = free[at];
        }
        left -= DEVICE;
    }
    if left > 0 {
        let mut best: Option<usize> = None;
        for at in 0..free.len() {
            if !taken[at] && free[at] >= left && best.is_none_or(|best| free[at] < free[best]) {
                best = Some(at);
            }
        }
        match best {
            Some(at) => kept[at] = left,
            None => {
                if let Some(at) = most_free(&mut taken) {
                    kept[at] = free[at];
                }
            }
        }
    }
    kept
}

impl LinearNode {
    /// Returns the node as requests of `owner` see it.
    pub(super) fn as_seen_by(&self, owner: Option<OwnerId>) -> Self {
        let mut seen = self.clone();
        let Some(reservation) = seen.reservation.take() else { return seen };
        if Some(reservation.owner) == owner {
            return seen;
        }
        seen.cpu_used += reservation.cpu.min(self.cpu_free());
        seen.memory_used += reservation.memory.min(self.memory_free());
        let free: Vec<i64> = (0..INSTANCES).map(|instance| self.gpu_free(instance)).collect();
        for (used, kept) in seen.gpu_used.iter_mut().zip(kept_of_instances(&free, reservation.gpu)) {
            *used += kept;
        }
        for (&id, &amount) in &reservation.custom {
            let mut sum = amount.min(self.custom_free(id));
            if id.is_unit_instance() {
                let free: Vec<i64> = (0..UNITS).map(|unit| self.unit_free(id, unit)).collect();
                let kept = kept_of_instances(&free, amount);
                sum = kept.iter().sum();
                for (unit, kept) in (0..).zip(kept) {
                    *seen.unit_used.entry((id, unit)).or_insert(0) += kept;
                }
            }
            *seen.custom_used.entry(id).or_insert(0) += sum;
        }
        seen
    }

    pub(super) fn is_kept_for(&self, owner: Option<OwnerId>) -> bool {
        self.reservation.as_ref().is_some_and(|there| Some(there.owner) == owner)
    }

    /// Returns whether only its reservation keeps the request off the node.
    pub(super) fn is_kept_from(&self, request: &PlacementRequest) -> bool {
        let kept = self.reservation.is_some() && !self.is_kept_for(request.owner);
        kept && self.lacks(&request.demand).is_empty()
    }
}

impl LinearShard {
    /// Sets the share of nodes that may be reserved, in percent.
    pub fn set_reserved_nodes_percent(&mut self, percent: u8) {
        self.reserved_percent = percent;
    }

    /// Returns the owner of each reserved node.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<NodeId, OwnerId> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|node| Some((node.registration.id, node.reservation.as_ref()?.owner))).collect()
    }

    /// Advances the time and ends the reservations that are due.
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
        for node in &mut self.nodes {
            let until = node.reservation.as_ref().and_then(|there| there.until);
            if until.is_some_and(|until| until <= now) {
                node.reservation = None;
                node.version += 1;
                self.settled_growth = None;
            }
        }
    }

    /// Returns all nodes as requests of `owner` see them.
    pub(super) fn seen_by(&self, owner: Option<OwnerId>) -> Vec<LinearNode> {
        self.nodes.iter().map(|node| node.as_seen_by(owner)).collect()
    }

    /// Reduces the reservation of a node by a placement of its owner.
    pub(super) fn use_reservation(&mut self, at: usize, request: &PlacementRequest) {
        let node = &mut self.nodes[at];
        if node.is_kept_for(request.owner) {
            self.settled_growth = None;
            node.reservation = node.reservation.take().and_then(|mut there| {
                let left = there.use_up(&request.demand);
                left.then_some(there)
            });
        }
    }

    fn refused(&self, at: usize, reserve: &Reserve) -> Option<ReservationRejection> {
        let there = &self.nodes[at];
        let node = reserve.node;
        let wanted = LinearReservation::of(reserve);
        let spec = &there.registration.spec;
        if wanted.cpu + wanted.memory + wanted.gpu == 0 && wanted.custom.is_empty() {
            return Some(ReservationRejection::Nothing(node));
        }
        if reserve.until.is_some_and(|until| until <= self.now) {
            return Some(ReservationRejection::DeadlinePassed(node));
        }
        let mut asked = vec![
            (ResourceKind::Cpu, wanted.cpu, spec.cpu.units()),
            (ResourceKind::Memory, wanted.memory, spec.memory.units()),
            (ResourceKind::Gpu, wanted.gpu, i64::from(spec.gpus) * DEVICE),
        ];
        asked.extend(
            wanted.custom.iter().map(|(&id, &a)| (ResourceKind::Custom(id), a, custom_total(spec, id))),
        );
        if let Some((kind, _, has)) = asked.into_iter().find(|(_, asked, has)| asked > has) {
            let capacity = Amount::try_from_units(has).expect("a capacity");
            return Some(ReservationRejection::TooMuch(node, kind, capacity));
        }
        if let Some(LinearReservation { owner, until, .. }) = &there.reservation {
            let owner = *owner;
            let until = *until;
            return (owner != reserve.owner).then_some(ReservationRejection::Taken(node, owner, until));
        }
        let percent = self.reserved_percent;
        let part = self.nodes.len() as u32 * u32::from(percent) / 100;
        let most = if percent > 0 && part == 0 { 1 } else { part };
        let reserved = self.nodes.iter().filter(|node| node.reservation.is_some()).count();
        (reserved as u32 >= most).then_some(ReservationRejection::TooManyNodes(node, most, percent))
    }

    pub(super) fn compare_reserve(&mut self, reserve: &Reserve, outcome: &Outcome) -> Result<(), String> {
        let Some(at) = self.nodes.iter().position(|node| node.registration.id == reserve.node) else {
            return compare_rejection(outcome, UnknownNode(reserve.node).into());
        };
        if let Some(refused) = self.refused(at, reserve) {
            return compare_rejection(outcome, refused);
        }
        let node = &mut self.nodes[at];
        let before = node.reservation.replace(LinearReservation::of(reserve));
        node.version += 1;
        if before.is_some() {
            self.settled_growth = None;
        }
        match outcome {
            Outcome::Reserve(Ok(ReservationChange::Made(view)))
                if (view.node, view.owner) == (reserve.node, reserve.owner) =>
            {
                Ok(())
            }
            other => differs(other, reserve),
        }
    }

    pub(super) fn compare_end(
        &mut self,
        id: NodeId,
        owner: OwnerId,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let Some(node) = self.nodes.iter_mut().find(|node| node.registration.id == id) else {
            return compare_rejection(outcome, UnknownNode(id).into());
        };
        let holder = node.reservation.as_ref().map(|there| there.owner);
        if holder != Some(owner) {
            return compare_rejection(outcome, ReservationRejection::NotReserved(id, owner, holder));
        }
        node.reservation = None;
        node.version += 1;
        self.settled_growth = None;
        match outcome {
            Outcome::Reserve(Ok(ReservationChange::Ended(ended))) if *ended == id => Ok(()),
            other => differs(other, id),
        }
    }
}

fn compare_rejection(outcome: &Outcome, expected: ReservationRejection) -> Result<(), String> {
    match outcome {
        Outcome::Reserve(Err(rejection)) if *rejection == expected => Ok(()),
        other => differs(other, expected),
    }
}
