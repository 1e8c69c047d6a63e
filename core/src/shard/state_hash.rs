//! The canonical hashes of a shard.

use crate::hash::{StateHash, StateHasher};
use crate::ids::PartitionId;
use crate::shard::Shard;
use crate::state::partition_hash;

/// The hashes of a shard's durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateHashes {
    /// The hash of the whole shard, including cursors and random state.
    pub shard: StateHash,
    /// The hash of each partition. It does not depend on the shard that serves the partition.
    pub partitions: Vec<(PartitionId, StateHash)>,
}

impl Shard {
    /// Returns the canonical hashes. O(state).
    pub(super) fn hashes(&self) -> StateHashes {
        let state = self.export();
        self.hashes_of(state.partitions.iter().map(|p| (p.id, partition_hash(p))).collect())
    }

    /// Combines the hashes of the shard's partitions, given in order of id.
    pub(super) fn hashes_of(&self, partitions: Vec<(PartitionId, StateHash)>) -> StateHashes {
        let mut hasher = StateHasher::new("shard");
        hasher.number(self.choose.policy_state().next_fit.0);
        hasher.number(self.choose.policy_state().rng.state());
        if let Some(granularity) = &self.choose.granularity_state() {
            granularity.thetas.iter().for_each(|&theta| hasher.amount(theta));
            hasher.number(granularity.changes);
        }
        for &(_, hash) in &partitions {
            hasher.state(hash);
        }
        StateHashes { shard: hasher.finish(), partitions }
    }

    /// Returns the canonical hash of the whole shard.
    #[must_use]
    pub fn state_hash(&self) -> StateHash {
        self.hashes().shard
    }
}
