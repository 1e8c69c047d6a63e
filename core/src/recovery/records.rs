//! The records of one partition during a recovery.

use super::RecoveryError;
use super::sorted::Sorted;
use crate::ids::{AllocationId, NodeId, PartitionId, SessionId};
use crate::journal::NodeImage;
use crate::map::FixedMap;
use crate::state::{
    AllocationRecord, BundleRecord, ClaimRecord, InsideRecord, LeaseRecord, NodeRecord, PartitionState,
    ReleasingRecord, ReservationRecord,
};
use crate::time::Time;

/// What a node has in addition to its record and its allocations. Most nodes have nothing.
#[derive(Clone, Default)]
pub(super) struct OfNode {
    pub(super) reservation: Option<ReservationRecord>,
    pub(super) claims: Vec<ClaimRecord>,
    pub(super) releasing: Vec<ReleasingRecord>,
}

/// The records of one partition.
#[derive(Default)]
pub(super) struct Records {
    pub(super) nodes: Sorted<NodeRecord>,
    /// By node. A node that is not recorded has nothing here.
    pub(super) of_nodes: FixedMap<NodeId, OfNode>,
    pub(super) allocations: Sorted<AllocationRecord>,
    pub(super) bundles: Sorted<BundleRecord>,
    pub(super) inside: Sorted<InsideRecord>,
    /// The deadline of a lease that belongs to a session is in `sessions`.
    pub(super) leases: Sorted<LeaseRecord>,
    /// The deadlines of the leases of sessions.
    pub(super) sessions: FixedMap<SessionId, Time>,
}

impl Records {
    /// Adds records of a checkpoint. Those of one node come together.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub(super) fn add(&mut self, partition: PartitionState) -> Result<(), RecoveryError> {
        let PartitionState {
            nodes,
            allocations,
            reservations,
            claims,
            releasing,
            bundles,
            inside,
            leases,
            ..
        } = partition;
        if !self.of_nodes.is_empty() {
            nodes.iter().for_each(|record| drop(self.of_nodes.remove(&record.registration.id)));
        }
        self.nodes.extend(nodes);
        self.allocations.extend(allocations);
        for record in reservations {
            let owner = record.owner;
            let of_node = self.of_node(record.node, || format!("a reservation for {}", owner.number()))?;
            of_node.reservation = Some(record);
        }
        for record in claims {
            let id = record.id;
            self.of_node(record.node, || format!("claim {id}"))?.claims.push(record);
        }
        for record in releasing {
            let id = record.allocation;
            let allocation = self.allocations.get(id);
            let node = allocation.ok_or_else(|| RecoveryError::Allocation(id, "its end".to_owned()))?.node;
            self.of_node(node, || format!("allocation {id}"))?.releasing.push(record);
        }
        self.bundles.extend(bundles);
        self.inside.extend(inside);
        for &lease in &leases {
            self.renew(lease);
        }
        self.leases.extend(leases);
        Ok(())
    }

    /// Returns what a node has, for a change.
    fn of_node(&mut self, node: NodeId, what: impl FnOnce() -> String) -> Result<&mut OfNode, RecoveryError> {
        if !self.nodes.contains(node) {
            return Err(RecoveryError::Node(node, what()));
        }
        Ok(self.of_nodes.entry(node).or_default())
    }

    /// Records a node as it is now.
    pub(super) fn set_node(&mut self, image: NodeImage) {
        let NodeImage { record, reservation, claims, releasing } = image;
        let node = record.registration.id;
        self.nodes.insert(record);
        if reservation.is_none() && claims.is_empty() && releasing.is_empty() {
            self.of_nodes.remove(&node);
        } else {
            self.of_nodes.insert(node, OfNode { reservation, claims, releasing });
        }
    }

    /// Returns a node as it is now.
    pub(super) fn image(&self, node: NodeId) -> Option<NodeImage> {
        let record = self.nodes.get(node)?.clone();
        let OfNode { reservation, claims, releasing } = self.of_nodes.get(&node).cloned().unwrap_or_default();
        Some(NodeImage { record, reservation, claims, releasing })
    }

    /// Removes a node.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.nodes.remove(node);
        self.of_nodes.remove(&node);
    }

    /// Removes an allocation, also one inside a bundle.
    pub(super) fn end(&mut self, id: AllocationId) {
        // Also if a page that was read later shows that it has ended: units before that may renew its lease.
        self.leases.remove(id);
        if self.allocations.remove(id) {
            self.bundles.remove(id);
        } else {
            self.inside.remove(id);
        }
    }

    /// Removes the allocation of a bundle, as if it had never been there. Returns its node, if that is recorded.
    pub(super) fn take_bundle(&mut self, id: AllocationId) -> Option<NodeId> {
        self.bundles.remove(id);
        self.leases.remove(id);
        let node = self.allocations.get(id).map(|allocation| allocation.node);
        self.allocations.remove(id);
        node.filter(|&node| self.nodes.contains(node))
    }

    /// Records a lease.
    pub(super) fn lease(&mut self, record: LeaseRecord) {
        self.renew(record);
        self.leases.insert(record);
    }

    /// Notes the deadline of a lease of a session. The latest one is that of all its leases here.
    fn renew(&mut self, record: LeaseRecord) {
        if let Some(session) = record.session {
            self.sessions.insert(session, record.until);
        }
    }

    /// Returns the partition in canonical form.
    ///
    /// # Errors
    /// When a record is of something that is not recorded.
    pub(super) fn state(self, id: PartitionId) -> Result<PartitionState, RecoveryError> {
        self.check()?;
        let mut state = PartitionState::empty(id);
        let Self { nodes, of_nodes, allocations, bundles, inside, leases, sessions } = self;
        state.nodes = nodes.into_vec();
        for of_node in of_nodes.into_values() {
            state.reservations.extend(of_node.reservation);
            state.claims.extend(of_node.claims);
            state.releasing.extend(of_node.releasing);
        }
        state.allocations = allocations.into_vec();
        state.bundles = bundles.into_vec();
        state.inside = inside.into_vec();
        state.leases = leases.into_vec();
        for lease in &mut state.leases {
            if let Some(session) = lease.session {
                lease.until = sessions[&session];
            }
        }
        state.sort();
        Ok(state)
    }

    /// Checks that each record is of something that is recorded.
    fn check(&self) -> Result<(), RecoveryError> {
        for allocation in self.allocations.iter() {
            if !self.nodes.contains(allocation.node) {
                return Err(RecoveryError::Node(allocation.node, format!("allocation {}", allocation.id)));
            }
        }
        let is_live = |id: AllocationId| self.allocations.contains(id);
        let missing = |id, what: &str| Err(RecoveryError::Allocation(id, what.to_owned()));
        let of_bundles = self.bundles.iter().map(|record| record.allocation);
        let mut of_bundles = of_bundles.chain(self.inside.iter().map(|inside| inside.bundle));
        if let Some(id) = of_bundles.find(|&id| !is_live(id)) {
            return missing(id, "its bundle");
        }
        if let Some(lease) = self.leases.iter().find(|lease| !is_live(lease.allocation)) {
            return missing(lease.allocation, "its lease");
        }
        let mut releasing = self.of_nodes.values().flat_map(|of_node| &of_node.releasing);
        match releasing.find(|releasing| !is_live(releasing.allocation)) {
            Some(releasing) => missing(releasing.allocation, "its end"),
            None => Ok(()),
        }
    }
}
