//! The copy to try on, made of the views of all shards and the record of all jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cycle::{CopyError, CycleConfig, LocalCluster, LocalSettings};
use crate::ids::{AllocationId, Incarnation, NodeId, PartitionId, TenantId};
use crate::jobs::{JobsRecord, TaskState};
use crate::limits::PARTITIONS_MAX;
use crate::node::NodeState;
use crate::resource::{Demand, GpuAssignment};
use crate::state::{
    AllocationRecord, ClaimRecord, NodeRecord, PartitionState, ReleasingRecord, ReservationRecord,
};
use crate::time::Time;
use crate::view::{ColdImage, HotImage, View};

/// Makes a cluster of what views show, with the jobs of a record. It is one shard, whatever the number of views.
///
/// The views and the record may be of different moments. A task whose allocation no view shows is pending in the copy, as
/// it will be in the record. What an undecided statement holds is an allocation of nobody there.
///
/// # Errors
/// The first fault in the settings of cycles or in the record.
pub fn cluster_of_views(
    views: &[Arc<View>],
    mut jobs: JobsRecord,
    config: CycleConfig,
    settings: LocalSettings,
    now: Time,
) -> Result<LocalCluster, CopyError> {
    let mut partitions: BTreeMap<PartitionId, PartitionState> = BTreeMap::new();
    let mut held = 0;
    let mut live: BTreeSet<AllocationId> = BTreeSet::new();
    for view in views {
        view.nodes(|slot, hot, cold| {
            let id = hot.partition;
            assert!(id.0 < PARTITIONS_MAX, "a node is in a partition that there cannot be");
            let partition = partitions.entry(id).or_insert_with(|| PartitionState::empty(id));
            partition.nodes.push(node_record(hot, cold));
            for allocation in view.allocations(slot) {
                live.insert(allocation.id);
                partition.allocations.push(AllocationRecord {
                    id: allocation.id,
                    node: hot.id,
                    demand: allocation.demand,
                    gpus: allocation.gpus,
                    units: allocation.units,
                    external_id: None,
                });
            }
            let holds = cold.holds.iter().filter_map(|hold| hold.taken.as_ref());
            for (demand, gpus) in holds {
                held += 1;
                partition.allocations.push(hold_record(hot, demand, *gpus, held));
            }
            add_pending(partition, hot.id, cold, &mut live);
        });
    }
    if partitions.is_empty() {
        partitions.insert(PartitionId(0), PartitionState::empty(PartitionId(0)));
    }
    let mut partitions: Vec<PartitionState> = partitions.into_values().collect();
    partitions.iter_mut().for_each(PartitionState::sort);
    jobs.jobs.iter_mut().flat_map(|job| &mut job.tasks).for_each(|(_, task)| {
        let is_there = task.allocation.is_none_or(|allocation| live.contains(&allocation));
        if task.state.has_node() && !is_there {
            task.state = TaskState::Pending;
            task.node = None;
            task.allocation = None;
            task.started = None;
            task.bound = None;
        }
    });
    LocalCluster::of_records(config, settings, partitions, jobs, now)
}

fn node_record(hot: &HotImage, cold: &ColdImage) -> NodeRecord {
    let mut registration = (*cold.registration).clone();
    // Nobody reports for the node there, and nobody misses its agent.
    registration.agent = None;
    let state = match hot.state.expect("a node of a view") {
        NodeState::Ready => NodeState::Ready,
        NodeState::Joining | NodeState::Draining | NodeState::Lost { .. } => NodeState::Draining,
    };
    NodeRecord { registration, state, version: hot.version, unhealthy: cold.unhealthy().into() }
}

/// Makes an allocation of what an undecided statement holds. Custom kinds are left out, because their units are not known.
fn hold_record(hot: &HotImage, demand: &Demand, gpus: GpuAssignment, number: u64) -> AllocationRecord {
    let id = AllocationId {
        incarnation: Incarnation(0),
        partition: hot.partition,
        sequence: number,
        tenant: TenantId::OPERATOR,
    };
    let demand = Demand { custom: None, ..demand.clone() };
    AllocationRecord { id, node: hot.id, demand, gpus, units: None, external_id: None }
}

/// Adds what is due on a node: its reservation, what is releasing, and the claims.
fn add_pending(
    partition: &mut PartitionState,
    node: NodeId,
    cold: &ColdImage,
    live: &mut BTreeSet<AllocationId>,
) {
    if let Some((owner, left, until)) = cold.reservation() {
        partition.reservations.push(ReservationRecord { node, owner, left: left.clone(), until });
    }
    let Some(pending) = &cold.pending else { return };
    let releasing = pending.releasing.iter();
    partition.releasing.extend(releasing.map(|&(allocation, until)| ReleasingRecord { allocation, until }));
    for claim in &pending.claims {
        live.insert(claim.id);
        partition.claims.push(ClaimRecord {
            id: claim.id,
            node,
            demand: claim.demand.clone(),
            gpus: claim.gpus,
            units: claim.units.clone(),
            bundle: None,
        });
    }
}
