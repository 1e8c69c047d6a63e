//! The ids of allocations. Which ids a shard grants is its own choice, but it grants none of them twice.

use std::collections::{BTreeSet, VecDeque};

use wharf_core::ids::{AllocationId, Incarnation, PartitionId, TenantId};
use wharf_core::shard::Outcome;
use wharf_core::statement::Granted;

/// The ids that a shard granted, ever.
#[derive(Clone, Debug, Default)]
pub(super) struct GrantedIds {
    /// Those of the current outcome, in order.
    told: VecDeque<AllocationId>,
    granted: BTreeSet<AllocationId>,
}

impl GrantedIds {
    /// Notes the ids in an outcome. They are checked when the model grants them.
    pub(super) fn tell(&mut self, outcome: &Outcome) {
        self.told.clear();
        match outcome {
            Outcome::Place(Ok(placement)) => self.told.push_back(placement.allocation),
            Outcome::Adopt(Ok(placement)) | Outcome::PlaceInto(Ok(placement)) => {
                self.told.push_back(placement.allocation);
            }
            Outcome::Applied(Ok(applied)) => {
                self.told.extend(applied.granted.iter().filter_map(|(_, granted)| match granted {
                    Granted::Allocated(placement) => Some(placement.allocation),
                    Granted::Pipelined { allocation, .. } => Some(*allocation),
                    _ => None,
                }));
            }
            _ => {}
        }
    }

    /// Returns the next id of the outcome if the shard may grant it to `tenant` for a node of `partition`, and otherwise
    /// an id that no shard grants.
    pub(super) fn next(
        &mut self,
        incarnation: Incarnation,
        partition: PartitionId,
        tenant: TenantId,
    ) -> AllocationId {
        let sequence = u64::MAX - self.granted.len() as u64;
        let none = AllocationId { incarnation, partition, sequence, tenant };
        let is_right = |id: &AllocationId| AllocationId { sequence: id.sequence, ..none } == *id;
        let told = self.told.pop_front().filter(is_right).unwrap_or(none);
        let id = if self.granted.contains(&told) { none } else { told };
        self.granted.insert(id);
        id
    }
}
