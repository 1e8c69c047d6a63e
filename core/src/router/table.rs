//! The routing table: the shard that serves each partition. It is replaced as a whole (`arc-swap`).

use std::sync::Arc;

use crate::ids::{PartitionId, ShardId};
use crate::link::ShardSummary;

/// The partitions and the shards that serve them.
pub struct RoutingTable {
    shard_of: Vec<ShardId>,
    summaries: Vec<Arc<ShardSummary>>,
}

impl RoutingTable {
    /// Spreads `partitions` evenly over `shards`, in contiguous runs.
    ///
    /// # Panics
    /// Panics if there is no shard, or a shard would have no partition.
    #[must_use]
    pub fn even(partitions: u16, shards: u16) -> Self {
        assert!(shards > 0 && shards <= partitions, "{shards} shards over {partitions} partitions");
        let shard_of = (0..u32::from(partitions))
            .map(|p| ShardId((p * u32::from(shards) / u32::from(partitions)) as u16))
            .collect();
        let summaries = (0..shards).map(|_| Arc::default()).collect();
        Self { shard_of, summaries }
    }

    /// Returns the number of partitions.
    #[must_use]
    pub fn partition_count(&self) -> u16 {
        u16::try_from(self.shard_of.len()).expect("PARTITIONS_MAX fits u16")
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shard_count(&self) -> u16 {
        u16::try_from(self.summaries.len()).expect("SHARDS_MAX fits u16")
    }

    /// Returns the shard that serves `partition`, if the store has that partition.
    #[must_use]
    pub fn shard(&self, partition: PartitionId) -> Option<ShardId> {
        self.shard_of.get(usize::from(partition.0)).copied()
    }

    /// Returns the partitions of one shard, ascending.
    pub fn partitions_of(&self, shard: ShardId) -> impl Iterator<Item = PartitionId> {
        (0..).map(PartitionId).zip(&self.shard_of).filter(move |&(_, &s)| s == shard).map(|(p, _)| p)
    }

    /// Returns the published summary of a shard.
    #[must_use]
    pub fn summary(&self, shard: ShardId) -> &Arc<ShardSummary> {
        &self.summaries[shard.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_serves_its_even_part() {
        for shards in [1, 2, 3, 7, 8, 255, 256] {
            let table = RoutingTable::even(256, shards);
            let counts: Vec<usize> = (0..shards).map(|s| table.partitions_of(ShardId(s)).count()).collect();
            let least = counts.iter().min().unwrap();
            let most = counts.iter().max().unwrap();
            assert!(most - least <= 1, "{shards} shards: {counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), 256);
        }
        assert_eq!(RoutingTable::even(4, 2).shard(PartitionId(4)), None);
    }
}
