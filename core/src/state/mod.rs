//! The durable state of a store: plain data that a checkpoint stores exactly.
//!
//! Everything else is rebuilt from it. A store has a fixed number of partitions. The number of shards that
//! serve them is decided at each start.

mod check;
mod hash;
mod sessions;

use std::sync::Arc;

pub(crate) use hash::PartitionHash;
pub use hash::{books_hash, partition_hash};
pub use sessions::{
    Deed, Done, KeptOutcome, Origin, OutcomeRecord, SessionChange, SessionEnd, SessionRecord, SessionTable,
    SessionToken, WaitOutcome, WaitRecord,
};

use crate::group::{BundlePlace, GroupSpec};
use crate::hash::StateHash;
use crate::ids::{
    AllocationId, BundleId, GroupId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, SessionId,
};
use crate::index::PolicyState;
use crate::jobs::JobsRecord;
use crate::limits::{PARTITIONS_DEFAULT, PARTITIONS_MAX};
use crate::node::{NodeRegistration, NodeState, Unhealthy};
use crate::request::PlacementRequest;
use crate::resource::{Demand, GpuAssignment, ReservedAmounts, UnitAssignments};
use crate::time::Time;

/// The number of bits of a node id below the incarnation, where [`skip_ids`](StoreState::skip_ids) has put it in.
const NODE_RANGE_BITS: u32 = 40;

/// A node in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Ids, capacity, labels.
    pub registration: NodeRegistration,
    /// The state, which says whether it takes new work.
    pub state: NodeState,
    /// The number of changes so far.
    pub version: u64,
    /// GPU instances that new work cannot use.
    pub unhealthy: Unhealthy,
}

/// An allocation in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// Its id.
    pub id: AllocationId,
    /// The node that holds it.
    pub node: NodeId,
    /// The amounts that it holds.
    pub demand: Demand,
    /// The GPU instances that it holds.
    pub gpus: GpuAssignment,
    /// The units of its unit-instance kinds, if any.
    pub units: Option<Arc<UnitAssignments>>,
    /// The name that another system gave it, if it was adopted under one.
    pub external_id: Option<Arc<str>>,
}

/// A reservation in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRecord {
    /// The node that is reserved.
    pub node: NodeId,
    /// The owner for whom it is reserved.
    pub owner: OwnerId,
    /// The amounts that are still reserved.
    pub left: ReservedAmounts,
    /// The time at which the reservation ends. `None` means that it has no end.
    pub until: Option<Time>,
}

/// A claim on capacity that is being released, in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The id that its allocation will have.
    pub id: AllocationId,
    /// The node.
    pub node: NodeId,
    /// The amounts that it claims.
    pub demand: Demand,
    /// The GPU instances that it claims.
    pub gpus: GpuAssignment,
    /// The units of its unit-instance kinds, if any.
    pub units: Option<Arc<UnitAssignments>>,
    /// The bundle that it will become.
    pub bundle: Option<BundleId>,
}

/// A releasing allocation in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasingRecord {
    /// The allocation.
    pub allocation: AllocationId,
    /// The time at which its grace period ends.
    pub until: Time,
}

/// The lease of an allocation, in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The allocation.
    pub allocation: AllocationId,
    /// The session that the lease belongs to, if any. All leases of a session in one partition have the same deadline.
    pub session: Option<SessionId>,
    /// The time at which the allocation ends unless the lease is renewed.
    pub until: Time,
}

/// An allocation that is a bundle, in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleRecord {
    /// The allocation.
    pub allocation: AllocationId,
    /// The bundle of its group.
    pub bundle: BundleId,
}

/// An allocation placed into a bundle, in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsideRecord {
    /// Its id.
    pub id: AllocationId,
    /// The allocation of the bundle.
    pub bundle: AllocationId,
    /// The amounts that it takes from the bundle.
    pub demand: Demand,
    /// The GPU instances that it holds.
    pub gpus: GpuAssignment,
    /// The units of its unit-instance kinds, if any.
    pub units: Option<Arc<UnitAssignments>>,
}

/// One partition in the durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// Its id.
    pub id: PartitionId,
    /// In order of id.
    pub nodes: Vec<NodeRecord>,
    /// In order of id.
    pub allocations: Vec<AllocationRecord>,
    /// In order of node.
    pub reservations: Vec<ReservationRecord>,
    /// In order of node. The claims of one node are in the order in which they are served.
    pub claims: Vec<ClaimRecord>,
    /// In order of allocation.
    pub releasing: Vec<ReleasingRecord>,
    /// In order of allocation.
    pub bundles: Vec<BundleRecord>,
    /// In order of id.
    pub inside: Vec<InsideRecord>,
    /// In order of allocation.
    pub leases: Vec<LeaseRecord>,
}

impl PartitionState {
    /// Puts the records into their canonical order: by id, and what a node has by the id of the node. The claims of a node
    /// keep their order.
    pub fn sort(&mut self) {
        self.nodes.sort_unstable_by_key(|record| record.registration.id);
        self.allocations.sort_unstable_by_key(|record| record.id);
        self.reservations.sort_unstable_by_key(|record| record.node);
        self.claims.sort_by_key(|record| record.node);
        self.releasing.sort_unstable_by_key(|record| record.allocation);
        self.bundles.sort_unstable_by_key(|record| record.allocation);
        self.inside.sort_unstable_by_key(|record| record.id);
        self.leases.sort_unstable_by_key(|record| record.allocation);
    }

    /// Creates a partition without nodes.
    #[must_use]
    pub fn empty(id: PartitionId) -> Self {
        Self { id, ..Self::default() }
    }
}

/// The part of the durable state that one shard contributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its partitions, in order of id.
    pub partitions: Vec<PartitionState>,
    /// The cursor and the random state.
    pub policy: PolicyState,
    /// The state of granularity, if it follows the nodes.
    pub granularity: Option<GranularityState>,
}

/// The durable state of a whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreState {
    /// The last start of the store. The next start has a larger one.
    pub incarnation: Incarnation,
    /// The time when the store stopped.
    pub now: Time,
    /// The global records.
    pub registrar: RegistrarState,
    /// Every partition, in order of id. The number of partitions is fixed when the store is created.
    pub partitions: Vec<PartitionState>,
    /// One entry per shard of the last start. Used only if the next start has the same number of shards.
    pub policies: Vec<PolicyState>,
    /// One entry per shard of the last start, used under the same condition as the policies.
    pub granularities: Vec<Option<GranularityState>>,
    /// Placement groups, in order of id.
    pub groups: Vec<GroupRecord>,
    /// Queues and jobs.
    pub jobs: JobsRecord,
    /// Client sessions, in order of id.
    pub sessions: Vec<SessionRecord>,
}

impl StoreState {
    /// Creates a new store.
    ///
    /// # Panics
    /// If the number of partitions is zero or above the limit.
    #[must_use]
    pub fn create(partition_count: u16) -> Self {
        assert!(
            (1..=PARTITIONS_MAX).contains(&partition_count),
            "{partition_count} partitions: give 1 to {PARTITIONS_MAX}"
        );
        Self {
            incarnation: Incarnation(0),
            now: Time::default(),
            registrar: RegistrarState { next_node: 1, ..RegistrarState::default() },
            partitions: (0..partition_count).map(|p| PartitionState::empty(PartitionId(p))).collect(),
            policies: Vec::new(),
            granularities: Vec::new(),
            groups: Vec::new(),
            jobs: JobsRecord::default(),
            sessions: Vec::new(),
        }
    }

    /// Combines the states of the shards and the registrar of one start. The caller fills in the
    /// [groups](Self::groups), the [jobs](Self::jobs) and the [sessions](Self::sessions).
    #[must_use]
    pub fn collect(
        incarnation: Incarnation,
        now: Time,
        registrar: RegistrarState,
        shards: Vec<ShardState>,
    ) -> Self {
        let groups = Vec::new();
        let jobs = JobsRecord::default();
        let sessions = Vec::new();
        let mut partitions = Vec::new();
        let mut policies = Vec::new();
        let mut granularities = Vec::new();
        for shard in shards {
            partitions.extend(shard.partitions);
            policies.push(shard.policy);
            granularities.push(shard.granularity);
        }
        partitions.sort_unstable_by_key(|partition: &PartitionState| partition.id);
        Self { incarnation, now, registrar, partitions, policies, granularities, groups, jobs, sessions }
    }

    /// Copies the global records: everything that belongs to no partition and no shard.
    ///
    /// # Panics
    /// If the number of partitions is zero or above the limit.
    #[must_use]
    pub fn globals(&self) -> Self {
        let count = u16::try_from(self.partitions.len()).expect("PARTITIONS_MAX fits u16");
        Self {
            incarnation: self.incarnation,
            now: self.now,
            registrar: self.registrar.clone(),
            groups: self.groups.clone(),
            jobs: self.jobs.clone(),
            sessions: self.sessions.clone(),
            ..Self::create(count)
        }
    }

    /// Skips the ids that runs up to the incarnation `issued` may have given out, although these books do not say so. The
    /// next start has a later incarnation, and its nodes get ids of a range of its own.
    pub fn skip_ids(&mut self, issued: Incarnation) {
        self.incarnation = self.incarnation.max(issued);
        let range = (u64::from(issued.0) + 1).saturating_mul(1 << NODE_RANGE_BITS);
        self.registrar.next_node = self.registrar.next_node.max(range);
    }

    /// Returns the canonical hash of the partitions and the global records. Equal books have equal hashes,
    /// regardless of the number of shards.
    #[must_use]
    pub fn books_hash(&self) -> StateHash {
        let partitions = self.partitions.iter().map(partition_hash);
        books_hash(&self.registrar, partitions)
    }
}

impl Default for StoreState {
    fn default() -> Self {
        Self::create(PARTITIONS_DEFAULT)
    }
}

/// The progress of granularity in following the nodes of a shard. Part of the shard's durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GranularityState {
    /// θ per dimension of the geometry.
    pub thetas: Vec<i64>,
    /// The number of nodes that joined, changed or left since `thetas` last changed.
    pub changes: u64,
}

/// The durable part of the registrar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrarState {
    /// The id of the next node. It also counts registrations, and ordinals are derived from it.
    pub next_node: u64,
    /// Resource kinds, in order of their ids.
    pub resources: Vec<String>,
    /// Removed machines that get their old id when they return. The one removed first comes first.
    pub removed: Vec<RemovedNode>,
    /// The indexes of the unit-instance kinds in `resources`, ascending.
    pub unit_instances: Vec<u16>,
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// The name that it had.
    pub name: Arc<str>,
    /// The machine's identity.
    pub identity: Arc<str>,
    /// The id that it gets when it returns.
    pub id: NodeId,
    /// Its position in the order of registration, which it also gets back.
    pub ordinal: Ordinal,
    /// The last version that it had.
    pub version: u64,
}

/// A group in the durable state. Pending groups are not durable: their callers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// Its id.
    pub id: GroupId,
    /// The group as it was requested. Later changes to its bundles are in `bundles`.
    pub spec: Arc<GroupSpec>,
    /// In order of index.
    pub bundles: Vec<GroupBundleRecord>,
    /// The index of the next bundle.
    pub next_index: u32,
}

/// A bundle in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupBundleRecord {
    /// Its index in the group, which never changes.
    pub index: u32,
    /// Its demand and the constraints on its node.
    pub request: Arc<PlacementRequest>,
    /// Where it is placed.
    pub place: Option<BundlePlace>,
    /// Its allocation on a node that was lost. It ends with the statement that places the bundle again.
    pub lost: Option<AllocationId>,
}
