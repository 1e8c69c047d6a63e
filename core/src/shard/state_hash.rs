//! The canonical hashes of a shard.

use super::Shard;
use crate::hash::{StateHash, StateHasher};
use crate::ids::PartitionId;
use crate::state::partition_hash;

/// The hashes of a shard's durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateHashes {
    /// Of the whole shard, cursors and random state included.
    pub shard: StateHash,
    /// Of each partition: equal whichever shard serves it.
    pub partitions: Vec<(PartitionId, StateHash)>,
}

impl Shard {
    /// The canonical hashes: O(state).
    pub(super) fn hashes(&self) -> StateHashes {
        let state = self.export();
        self.hashes_of(state.partitions.iter().map(|p| (p.id, partition_hash(p))).collect())
    }

    /// The hashes of a shard whose partitions have these, in order of id.
    pub(super) fn hashes_of(&self, partitions: Vec<(PartitionId, StateHash)>) -> StateHashes {
        let mut hasher = StateHasher::new("shard");
        hasher.number(self.policy_state.next_fit.0);
        hasher.number(self.policy_state.rng.state());
        if let Some(granularity) = &self.granularity_state() {
            granularity.thetas.iter().for_each(|&theta| hasher.amount(theta));
            hasher.number(granularity.changes);
        }
        for &(_, hash) in &partitions {
            hasher.state(hash);
        }
        StateHashes { shard: hasher.finish(), partitions }
    }

    /// The canonical hash of the whole shard.
    #[must_use]
    pub fn state_hash(&self) -> StateHash {
        self.hashes().shard
    }
}
