//! Export and import of a shard's durable state. Everything that can be computed (availability, shortfalls,
//! sums, both trees) is rebuilt rather than stored, so it cannot disagree with the stored state.

use crate::ids::PartitionId;
use crate::index::Slot;
use crate::shard::Shard;
use crate::shard::books::{Allocation, Dirty};
use crate::state::{AllocationRecord, NodeRecord, PartitionState, ReleasingRecord, ShardState};

impl Shard {
    /// Returns the durable state of all partitions in canonical form: equal states give equal values. O(state).
    #[must_use]
    pub fn export(&self) -> ShardState {
        let mut partitions: Vec<PartitionState> =
            self.books.partitions.iter().map(|&id| PartitionState::empty(id)).collect();
        let at = |id: PartitionId, partitions: &[PartitionState]| {
            partitions.binary_search_by_key(&id, |p| p.id).expect("the shard owns its nodes' partitions")
        };
        for (slot, hot, _) in self.books.nodes.iter() {
            let partition = at(hot.partition, &partitions);
            self.export_node(slot, &mut partitions[partition]);
        }
        partitions.iter_mut().for_each(PartitionState::sort);
        ShardState {
            partitions,
            policy: self.choose.policy_state().clone(),
            granularity: self.choose.granularity_state(),
        }
    }

    /// Adds the records of one node to its partition.
    pub(super) fn export_node(&self, slot: Slot, partition: &mut PartitionState) {
        self.export_node_only(slot, partition);
        let exported = partition.allocations.len() + self.books.nodes.hot(slot).allocations as usize;
        let node = self.books.nodes.hot(slot).id;
        for allocation in self.books.ledger.of_node(slot, &self.books.nodes) {
            let Allocation { id, demand, gpus, units, is_leased, .. } = allocation;
            let external_id = self.books.adopted.external_id(id);
            partition.allocations.push(AllocationRecord { id, node, demand, gpus, units, external_id });
            if is_leased {
                partition.leases.push(self.books.lease_record(id));
            }
        }
        assert!(partition.allocations.len() == exported, "node {node} counts others than it lists");
        self.export_bundles(slot, partition);
    }

    /// Adds the records of a node without its allocations and bundles.
    pub(super) fn export_node_only(&self, slot: Slot, partition: &mut PartitionState) {
        let hot = self.books.nodes.hot(slot);
        let cold = self.books.nodes.cold(slot);
        assert!(hot.partition == partition.id, "node {} is exported with another partition", hot.id);
        let registration = cold.registration.clone();
        let state = self.books.nodes.state(slot);
        let version = hot.version;
        let unhealthy = self.books.unhealthy(slot).to_vec();
        let held = self.statements.allocating_at(slot).filter_map(|(_, held)| held.used.as_ref());
        partition.reservations.extend(self.books.reservation_record(slot, held));
        partition.claims.extend(self.books.claim_records(slot));
        partition.nodes.push(NodeRecord { registration, state, version, unhealthy });
        if !self.books.has_only_allocations() {
            for Allocation { id, .. } in self.books.ledger.of_node(slot, &self.books.nodes) {
                let until = self.releasing_until(id);
                partition.releasing.extend(until.map(|until| ReleasingRecord { allocation: id, until }));
            }
        }
    }

    /// Adds the bundles of a node, and the allocations inside.
    fn export_bundles(&self, slot: Slot, partition: &mut PartitionState) {
        if self.books.has_only_allocations() {
            return;
        }
        for Allocation { id, .. } in self.books.ledger.of_node(slot, &self.books.nodes) {
            if let Some((bundle, inside)) = self.books.bundles.records(id) {
                partition.bundles.push(bundle);
                partition.inside.extend(inside);
            }
        }
    }

    /// Restores what [`export_bundles`](Self::export_bundles) exported, and the claims. The allocations
    /// must already be restored. Claims are granted that have all of their own.
    fn adopt_statements(&mut self, state: PartitionState) {
        let mut dirty: Vec<Dirty> = Vec::new();
        let books = &mut self.books;
        state.leases.iter().for_each(|record| books.resume_lease(record));
        for record in state.releasing {
            let allocation = books.ledger.get(record.allocation).expect("what is releasing is live");
            dirty.push(books.resume_release(&allocation, record.until));
        }
        state.bundles.iter().for_each(|record| books.resume_bundle(record));
        dirty.extend(state.inside.into_iter().map(|record| books.resume_inside(record)));
        let claimed: Vec<Dirty> = state.claims.into_iter().map(|record| books.resume_claim(record)).collect();
        claimed.iter().for_each(|claimed| books.grant_resumed(claimed.slot));
        dirty.extend(claimed);
        dirty.into_iter().for_each(|dirty| self.follow(dirty));
    }

    /// Restores partitions as an earlier start of the store left them.
    ///
    /// Nodes are added in order of registration. Allocations are added by partition and node, and those of a node in order
    /// of id. The result does not depend on how the partitions were distributed over shards before.
    ///
    /// # Panics
    /// If a partition does not belong to this shard, or an allocation names a node of another partition.
    pub(crate) fn adopt(&mut self, mut partitions: Vec<PartitionState>) {
        let mut nodes = Vec::with_capacity(partitions.iter().map(|partition| partition.nodes.len()).sum());
        let mut reservations = Vec::new();
        for partition in &mut partitions {
            assert!(self.books.owns(partition.id), "partition {} is another shard's", partition.id.0);
            nodes.append(&mut partition.nodes);
            reservations.append(&mut partition.reservations);
        }
        nodes.sort_unstable_by_key(|node| node.registration.ordinal);
        self.books.nodes.reserve(nodes.len());
        let mut states = Vec::new();
        for node in nodes {
            states.push((node.registration.id, node.state, node.version, node.unhealthy));
            self.add_node(node.registration);
        }
        assert!(self.books.nodes.len() == states.len(), "a node is restored twice or not at all");
        let allocations = partitions.iter().map(|partition| partition.allocations.len()).sum();
        self.books.ledger.reserve(allocations);
        for partition in &mut partitions {
            // Dropped at once, so that the memory is used again.
            self.adopt_allocations(std::mem::take(&mut partition.allocations));
        }
        assert!(self.books.ledger.len() == allocations, "an allocation is restored twice or not at all");
        for (node, state, version, unhealthy) in states {
            let slot = self.books.nodes.slot(node).expect("just added");
            if !unhealthy.is_empty() {
                let dirty = self.books.set_health(slot, unhealthy);
                self.follow(dirty);
            }
            if self.books.nodes.state(slot) != state {
                self.change_state(slot, state);
            }
            self.books.set_version(slot, version);
        }
        for record in reservations {
            let dirty = self.books.resume_reservation(record);
            self.follow(dirty);
        }
        partitions.into_iter().for_each(|partition| self.adopt_statements(partition));
    }

    /// Restores the allocations of a partition node by node. So what is read together later is recorded together, and
    /// searches follow a node once.
    fn adopt_allocations(&mut self, allocations: Vec<AllocationRecord>) {
        let mut by_node: Vec<(Slot, &AllocationRecord)> = Vec::with_capacity(allocations.len());
        for record in &allocations {
            let slot = self.books.nodes.slot(record.node);
            by_node.push((slot.expect("an allocation's node is in its partition"), record));
        }
        by_node.sort_unstable_by_key(|&(slot, record)| (slot, record.id));
        for of_node in by_node.chunk_by(|one, next| one.0 == next.0) {
            let dirty = of_node.iter().map(|&(slot, record)| self.books.resume_allocation(slot, record));
            if let Some(dirty) = dirty.last() {
                self.follow(dirty);
            }
        }
    }

    /// Continues with the policy state of an earlier start.
    pub(crate) fn resume_policies(&mut self, policy: crate::index::PolicyState) {
        assert!(self.replica.is_none(), "the policies of a replica are those of its planner");
        self.choose.set_policy_state(policy);
    }
}
