//! The last allocation sequence granted, per partition that the shard owns.

use crate::ids::PartitionId;

/// Indexed by partition, because every placement increments one. There are at most a few thousand.
pub(crate) struct Sequences(Vec<Option<u64>>);

impl Sequences {
    /// Creates counters for `partitions`, with nothing granted.
    pub(crate) fn new(partitions: Vec<PartitionId>) -> Self {
        let mut last = Vec::new();
        for partition in partitions {
            let at = usize::from(partition.0);
            if last.len() <= at {
                last.resize(at + 1, None);
            }
            last[at] = Some(0);
        }
        Self(last)
    }

    /// Returns whether the shard owns `partition`.
    pub(crate) fn owns(&self, partition: PartitionId) -> bool {
        self.0.get(usize::from(partition.0)).is_some_and(Option::is_some)
    }

    /// Returns the sequence of one more allocation.
    pub(super) fn next(&mut self, partition: PartitionId) -> u64 {
        let last = self.0[usize::from(partition.0)].as_mut().expect("the shard owns its nodes' partitions");
        *last += 1;
        *last
    }

    /// Continues after `last`, which an earlier start granted.
    pub(super) fn resume(&mut self, partition: PartitionId, last: u64) {
        assert!(self.owns(partition), "partition {} is another shard's", partition.0);
        self.0[usize::from(partition.0)] = Some(last);
    }

    /// Returns the owned partitions in order, each with the last sequence granted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartitionId, u64)> {
        (0..).map(PartitionId).zip(&self.0).filter_map(|(partition, last)| Some((partition, (*last)?)))
    }
}
