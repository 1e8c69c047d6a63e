//! Operations that somebody else planned: shards are the arbiter between any number of schedulers.

use super::flight::Concluded;
use super::job::{PlanRejection, PlanReply, StatementReport, Submit};
use super::{JobTag, Planner, Purpose};
use crate::ids::{AllocationId, ShardId};
use crate::limits::STATEMENT_OPERATIONS_MAX;
use crate::statement::{Evict, Operation};
use crate::time::Time;

impl Planner {
    pub(super) fn submit_operations(&mut self, tag: JobTag, submit: Submit, now: Time) {
        match self.routed(submit.operations) {
            Ok(operations) => {
                self.commit(operations, (submit.granularity, submit.mode), Purpose::Submit(tag), now);
            }
            Err(rejection) => self.reply(tag, PlanReply::Rejected(rejection)),
        }
    }

    /// Each operation with the shard that it concerns.
    fn routed(&mut self, operations: Vec<Operation>) -> Result<Vec<(ShardId, Operation)>, PlanRejection> {
        if operations.is_empty() || operations.len() > STATEMENT_OPERATIONS_MAX {
            return Err(PlanRejection::Operations(operations.len()));
        }
        let mut routed = Vec::with_capacity(operations.len());
        for (at, operation) in (0u16..).zip(operations) {
            let shard = match (&operation, operation.node()) {
                (_, Some(node)) => {
                    let partition = self.port.catalog().node_partition(node);
                    let shard = partition.and_then(|partition| self.port.shard_of(partition));
                    shard.ok_or(PlanRejection::UnknownNode { operation: at, node })?
                }
                (&Operation::Evict(Evict { allocation, .. }), None) => {
                    let shard = self.port.shard_of(allocation.partition);
                    shard.ok_or(PlanRejection::UnknownAllocation { operation: at, allocation })?
                }
                (operation, None) => {
                    unreachable!("an operation names a node or an allocation: {operation:?}")
                }
            };
            routed.push((shard, operation));
        }
        Ok(routed)
    }

    pub(super) fn submit_concluded(&mut self, tag: JobTag, concluded: Concluded) {
        let Concluded { statement, applied, conflicts, expired } = concluded;
        let report = StatementReport { statement, applied, conflicts, expired };
        self.reply(tag, PlanReply::Statement(Box::new(report)));
    }

    /// The shard that serves an allocation of this store.
    pub(super) fn shard_of_allocation(&mut self, allocation: AllocationId) -> ShardId {
        self.port.shard_of(allocation.partition).expect("an allocation that was granted has a partition")
    }
}
