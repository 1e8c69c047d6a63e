//! The canonical hash of durable state.
//!
//! A partition's hash is the sum of the hashes of its records. It does not depend on the order of the records,
//! and an audit can build it page by page.

use std::sync::Arc;

use super::{
    AllocationRecord, BundleRecord, ClaimRecord, InsideRecord, LeaseRecord, NodeRecord, PartitionState,
    RegistrarState, ReleasingRecord, ReservationRecord,
};
use crate::hash::{StateHash, StateHasher};
use crate::ids::{AllocationId, BundleId, PartitionId, ResourceId};
use crate::node::AgentFacts;
use crate::resource::{Amount, Demand, GpuAssignment, UnitAssignments};

/// The hash of a partition while records are added, in any order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartitionHash {
    /// The sum modulo 2^128.
    sum: u128,
    records: u64,
}

impl PartitionHash {
    fn add(&mut self, hasher: &StateHasher) {
        self.sum = self.sum.wrapping_add(hasher.finish().0);
        self.records += 1;
    }

    /// Adds all records of `state`. The order of the claims of a node matters.
    pub(crate) fn add_records(&mut self, state: &PartitionState) {
        state.nodes.iter().for_each(|record| self.add(&of_node(record)));
        state.allocations.iter().for_each(|record| self.add(&of_allocation(record)));
        state.reservations.iter().for_each(|record| self.add(&of_reservation(record)));
        for claims in state.claims.chunk_by(|one, next| one.node == next.node) {
            (0..).zip(claims).for_each(|(place, record)| self.add(&of_claim(place, record)));
        }
        state.releasing.iter().for_each(|record| self.add(&of_releasing(record)));
        state.bundles.iter().for_each(|record| self.add(&of_bundle(record)));
        state.inside.iter().for_each(|record| self.add(&of_inside(record)));
        state.leases.iter().for_each(|record| self.add(&of_lease(record)));
    }

    /// Returns the hash of the partition.
    pub(crate) fn finish(self, id: PartitionId) -> StateHash {
        let mut hasher = StateHasher::new("partition");
        hasher.number(u64::from(id.0));
        hasher.number(self.records);
        hasher.state(StateHash(self.sum));
        hasher.finish()
    }
}

/// Returns the canonical hash of one partition's durable state.
#[must_use]
pub fn partition_hash(partition: &PartitionState) -> StateHash {
    let mut hash = PartitionHash::default();
    hash.add_records(partition);
    hash.finish(partition.id)
}

fn of_node(node: &NodeRecord) -> StateHasher {
    let mut hasher = StateHasher::new("node");
    let spec = &node.registration.spec;
    hasher.number(node.registration.id.0);
    hasher.number(node.registration.ordinal.0);
    hasher.text(&spec.name);
    hasher.text(spec.identity.as_deref().unwrap_or(""));
    hasher.amount(spec.cpu.units());
    hasher.amount(spec.memory.units());
    hasher.number(u64::from(spec.gpus));
    add_custom(&mut hasher, spec.custom.as_deref().unwrap_or(&[]));
    hasher.number(spec.labels.len() as u64);
    for (key, value) in spec.labels.iter() {
        hasher.text(key);
        hasher.text(value);
    }
    hasher.number(spec.taints.as_slice().len() as u64);
    for taint in spec.taints.as_slice() {
        hasher.text(&taint.key);
        hasher.text(&taint.value);
        hasher.number(taint.effect as u64 + 1);
    }
    hasher.number(u64::from(node.state.number()));
    add_agent(&mut hasher, node.registration.agent.as_deref());
    hasher.number(node.unhealthy.len() as u64);
    for (instance, reason) in &node.unhealthy {
        hasher.number(u64::from(*instance));
        hasher.text(reason);
    }
    hasher.number(node.version);
    hasher
}

fn of_allocation(record: &AllocationRecord) -> StateHasher {
    let mut hasher = StateHasher::new("allocation");
    add_held(&mut hasher, record.id, &record.demand, record.gpus, record.units.as_ref());
    hasher.number(record.node.0);
    hasher.text(record.external_id.as_deref().unwrap_or(""));
    hasher
}

fn of_reservation(record: &ReservationRecord) -> StateHasher {
    let mut hasher = StateHasher::new("reservation");
    hasher.number(record.node.0);
    hasher.number(record.owner.number());
    hasher.number(record.until.map_or(0, |until| until.0));
    hasher.amount(record.left.cpu.units());
    hasher.amount(record.left.memory.units());
    hasher.amount(record.left.gpu.units());
    add_custom(&mut hasher, &record.left.custom);
    hasher
}

/// Hashes a claim. `place` is its index among the claims of its node.
fn of_claim(place: u64, record: &ClaimRecord) -> StateHasher {
    let mut hasher = StateHasher::new("claim");
    hasher.number(place);
    add_held(&mut hasher, record.id, &record.demand, record.gpus, record.units.as_ref());
    hasher.number(record.node.0);
    add_bundle(&mut hasher, record.bundle);
    hasher
}

fn of_releasing(record: &ReleasingRecord) -> StateHasher {
    let mut hasher = StateHasher::new("releasing");
    add_id(&mut hasher, record.allocation);
    hasher.number(record.until.0);
    hasher
}

fn of_bundle(record: &BundleRecord) -> StateHasher {
    let mut hasher = StateHasher::new("bundle");
    add_id(&mut hasher, record.allocation);
    add_bundle(&mut hasher, Some(record.bundle));
    hasher
}

fn of_inside(record: &InsideRecord) -> StateHasher {
    let mut hasher = StateHasher::new("inside");
    add_held(&mut hasher, record.id, &record.demand, record.gpus, record.units.as_ref());
    add_id(&mut hasher, record.bundle);
    hasher
}

fn of_lease(record: &LeaseRecord) -> StateHasher {
    let mut hasher = StateHasher::new("lease");
    add_id(&mut hasher, record.allocation);
    hasher.number(record.session.map_or(0, |session| u64::from(session.incarnation.0)));
    hasher.number(record.session.map_or(0, |session| session.number));
    hasher.number(record.until.0);
    hasher
}

fn add_id(hasher: &mut StateHasher, id: AllocationId) {
    hasher.number(u64::from(id.incarnation.0));
    hasher.number(id.sequence);
    hasher.number(u64::from(id.tenant.0));
}

fn add_bundle(hasher: &mut StateHasher, bundle: Option<BundleId>) {
    let Some(BundleId { group, index }) = bundle else { return hasher.number(0) };
    hasher.number(1);
    hasher.number(u64::from(group.incarnation.0));
    hasher.number(group.number);
    hasher.number(u64::from(group.tenant.0));
    hasher.number(u64::from(index));
}

fn add_held(
    hasher: &mut StateHasher,
    id: AllocationId,
    demand: &Demand,
    gpus: GpuAssignment,
    units: Option<&Arc<UnitAssignments>>,
) {
    add_id(hasher, id);
    hasher.amount(demand.cpu.units());
    hasher.amount(demand.memory.units());
    hasher.amount(demand.gpu.amount().units());
    add_custom(hasher, demand.custom());
    hasher.number(u64::from(gpus.mask));
    hasher.number(u64::from(gpus.part));
    let units = units.map_or(&[][..], |units| units.as_slice());
    hasher.number(units.len() as u64);
    for &(id, assignment) in units {
        hasher.number(u64::from(id.0));
        hasher.number(assignment.mask);
        hasher.number(u64::from(assignment.part));
    }
}

fn add_agent(hasher: &mut StateHasher, agent: Option<&AgentFacts>) {
    let Some(agent) = agent else { return hasher.number(0) };
    hasher.number(1);
    hasher.text(&agent.boot);
    hasher.number(agent.gpus.len() as u64);
    for gpu in &agent.gpus {
        hasher.text(&gpu.uuid);
        hasher.text(&gpu.model);
        hasher.number(gpu.memory_mib);
        hasher.number(gpu.numa.map_or(0, |numa| u64::from(numa) + 1));
        hasher.number(u64::from(gpu.links));
    }
}

fn add_custom(hasher: &mut StateHasher, custom: &[(ResourceId, Amount)]) {
    hasher.number(custom.len() as u64);
    for &(id, amount) in custom {
        hasher.number(u64::from(id.0));
        hasher.amount(amount.units());
    }
}

/// Returns the canonical hash of a store's books: the global records, then the hash of every partition in order
/// of id.
#[must_use]
pub fn books_hash(registrar: &RegistrarState, partitions: impl IntoIterator<Item = StateHash>) -> StateHash {
    let mut hasher = StateHasher::new("store");
    hasher.number(registrar.next_node);
    hasher.number(registrar.resources.len() as u64);
    for name in &registrar.resources {
        hasher.text(name);
    }
    hasher.number(registrar.removed.len() as u64);
    for node in &registrar.removed {
        hasher.text(&node.name);
        hasher.text(&node.identity);
        hasher.number(node.id.0);
        hasher.number(node.ordinal.0);
        hasher.number(node.version);
    }
    hasher.number(registrar.unit_instances.len() as u64);
    for &kind in &registrar.unit_instances {
        hasher.number(u64::from(kind));
    }
    for partition in partitions {
        hasher.state(partition);
    }
    hasher.finish()
}
