//! The durable state of a store: plain data, which a checkpoint holds exactly.
//!
//! Everything else is rebuilt from it. A store has a fixed number of partitions; how many shards serve them is
//! decided at each start.

mod hash;

use std::sync::Arc;

pub(crate) use hash::PartitionHash;
pub use hash::{books_hash, partition_hash};

use crate::group::GroupSpec;
use crate::hash::StateHash;
use crate::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId};
use crate::index::PolicyState;
use crate::limits::{PARTITIONS_DEFAULT, PARTITIONS_MAX};
use crate::node::{NodeRegistration, NodeState, Unhealthy};
use crate::request::PlacementRequest;
use crate::resource::{Demand, GpuAssignment, ReservedAmounts, UnitAssignments};
use crate::time::Time;

/// A node in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Ids, capacity, labels.
    pub registration: NodeRegistration,
    /// Whether it takes new work.
    pub state: NodeState,
    /// Counts its changes.
    pub version: u64,
    /// GPU instances that offer nothing to new work.
    pub unhealthy: Unhealthy,
}

/// An allocation in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// Its id.
    pub id: AllocationId,
    /// The node that holds it.
    pub node: NodeId,
    /// What it holds.
    pub demand: Demand,
    /// Which GPU instances.
    pub gpus: GpuAssignment,
    /// Which units of its unit-instance kinds, if it has any.
    pub units: Option<Arc<UnitAssignments>>,
    /// The name that whoever made it elsewhere gave it, if it was adopted under one.
    pub external_id: Option<Arc<str>>,
}

/// A reservation in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRecord {
    /// The node that is reserved.
    pub node: NodeId,
    /// For whom.
    pub owner: OwnerId,
    /// What is reserved still.
    pub left: ReservedAmounts,
    /// When it ends by itself; none: it does not.
    pub until: Option<Time>,
}

/// A claim on what is being released, in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The id that its allocation will have.
    pub id: AllocationId,
    /// The node.
    pub node: NodeId,
    /// What it claims.
    pub demand: Demand,
    /// On which GPU instances.
    pub gpus: GpuAssignment,
    /// On which units of its unit-instance kinds, if it has any.
    pub units: Option<Arc<UnitAssignments>>,
    /// The bundle that it will be.
    pub bundle: Option<BundleId>,
}

/// An allocation that is on its way out, in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasingRecord {
    /// Which.
    pub allocation: AllocationId,
    /// When it ends by itself.
    pub until: Time,
}

/// An allocation that is a bundle, in the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleRecord {
    /// Which.
    pub allocation: AllocationId,
    /// The bundle of its group.
    pub bundle: BundleId,
}

/// What is placed into a bundle, in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsideRecord {
    /// Its id.
    pub id: AllocationId,
    /// The allocation of the bundle.
    pub bundle: AllocationId,
    /// What it holds of the bundle.
    pub demand: Demand,
    /// Which GPU instances.
    pub gpus: GpuAssignment,
    /// Which units of its unit-instance kinds, if it has any.
    pub units: Option<Arc<UnitAssignments>>,
}

/// One partition in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Which.
    pub id: PartitionId,
    /// The last allocation sequence granted. Goes on over restarts, although the incarnation in
    /// the ids would keep them apart: the books of a clean restart are then the same.
    pub sequence: u64,
    /// In order of id.
    pub nodes: Vec<NodeRecord>,
    /// In order of id.
    pub allocations: Vec<AllocationRecord>,
    /// In order of node.
    pub reservations: Vec<ReservationRecord>,
    /// In order of node, those of one node in the order in which they are served.
    pub claims: Vec<ClaimRecord>,
    /// In order of allocation.
    pub releasing: Vec<ReleasingRecord>,
    /// In order of allocation.
    pub bundles: Vec<BundleRecord>,
    /// In order of id.
    pub inside: Vec<InsideRecord>,
}

impl PartitionState {
    /// A partition without nodes.
    #[must_use]
    pub fn empty(id: PartitionId) -> Self {
        Self {
            id,
            sequence: 0,
            nodes: Vec::new(),
            allocations: Vec::new(),
            reservations: Vec::new(),
            claims: Vec::new(),
            releasing: Vec::new(),
            bundles: Vec::new(),
            inside: Vec::new(),
        }
    }
}

/// What one shard contributes to the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its partitions, in order of id.
    pub partitions: Vec<PartitionState>,
    /// Cursor and random state.
    pub policy: PolicyState,
    /// Where some granularity follows the nodes: how far it has.
    pub granularity: Option<GranularityState>,
}

/// The durable state of a whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreState {
    /// The last start of the store; the next has a larger one.
    pub incarnation: Incarnation,
    /// The clock when it stopped.
    pub now: Time,
    /// The global records.
    pub registrar: RegistrarState,
    /// Every partition, in order of id: their number is fixed when the store is created.
    pub partitions: Vec<PartitionState>,
    /// Per shard of the last start: resumed when the next start has as many shards.
    pub policies: Vec<PolicyState>,
    /// Per shard of the last start, likewise.
    pub granularities: Vec<Option<GranularityState>>,
    /// Placement groups, in order of id.
    pub groups: Vec<GroupRecord>,
}

impl StoreState {
    /// A new store.
    ///
    /// # Panics
    /// When the number of partitions is zero or above the limit.
    #[must_use]
    pub fn create(partition_count: u16) -> Self {
        assert!(
            (1..=PARTITIONS_MAX).contains(&partition_count),
            "{partition_count} partitions: give 1 to {PARTITIONS_MAX}"
        );
        Self {
            incarnation: Incarnation(0),
            now: Time::default(),
            registrar: RegistrarState {
                next_node: 1,
                resources: Vec::new(),
                removed: Vec::new(),
                unit_instances: Vec::new(),
            },
            partitions: (0..partition_count).map(|p| PartitionState::empty(PartitionId(p))).collect(),
            policies: Vec::new(),
            granularities: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Puts together what the shards and the registrar of one start hold; groups are put in
    /// [beside](Self::groups).
    #[must_use]
    pub fn collect(
        incarnation: Incarnation,
        now: Time,
        registrar: RegistrarState,
        shards: Vec<ShardState>,
    ) -> Self {
        let groups = Vec::new();
        let mut partitions = Vec::new();
        let mut policies = Vec::new();
        let mut granularities = Vec::new();
        for shard in shards {
            partitions.extend(shard.partitions);
            policies.push(shard.policy);
            granularities.push(shard.granularity);
        }
        partitions.sort_unstable_by_key(|partition: &PartitionState| partition.id);
        Self { incarnation, now, registrar, partitions, policies, granularities, groups }
    }

    /// The canonical hash of the partitions and the global records: equal for equal books,
    /// whatever the number of shards.
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

/// How far granularity has followed the nodes of a shard: part of its durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GranularityState {
    /// θ per dimension of the geometry.
    pub thetas: Vec<i64>,
    /// Nodes that joined, changed or left since these moved.
    pub changes: u64,
}

/// The durable part of the registrar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrarState {
    /// The id of the next node; also counts registrations, so ordinals come from it.
    pub next_node: u64,
    /// Resource kinds in the order of their ids.
    pub resources: Vec<String>,
    /// Machines that get their old id again when they come back, longest gone first.
    pub removed: Vec<RemovedNode>,
    /// Which of them are unit-instance kinds, by place, ascending.
    pub unit_instances: Vec<u16>,
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// The name that it had.
    pub name: Arc<str>,
    /// The machine behind it.
    pub identity: Arc<str>,
    /// The id that it gets again.
    pub id: NodeId,
    /// Its place in the order of registration, which it gets again too.
    pub ordinal: Ordinal,
    /// The last version that it had.
    pub version: u64,
}

/// A group in the durable state. Groups that only wait are not durable: who asked is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// Its id.
    pub id: GroupId,
    /// What was asked when it was made; its bundles since then stand below.
    pub spec: Arc<GroupSpec>,
    /// In order of index.
    pub bundles: Vec<GroupBundleRecord>,
    /// The index of the next bundle.
    pub next_index: u32,
}

/// A bundle in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupBundleRecord {
    /// Its index in the group.
    pub index: u32,
    /// What it takes, and where it may stand.
    pub request: Arc<PlacementRequest>,
    /// Node, allocation and GPU instances, where it is placed.
    pub place: Option<(NodeId, AllocationId, GpuAssignment)>,
    /// Its allocation on a node that was lost.
    pub lost: Option<AllocationId>,
}
