//! Statements that external schedulers planned. The shards arbitrate between any number of schedulers.

use super::in_flight::CommitOptions;
use super::{JobTag, Planner, Purpose};
use crate::group::{PlanRejection, PlanReply, StatementReport, Submit};
use crate::ids::{AllocationId, ShardId};
use crate::limits::STATEMENT_OPERATIONS_MAX;
use crate::statement::{CommitMode, Conflict, ConflictReason, Evict, Operation};

/// Operations with their shards, and the conflicts of operations that belong to no shard.
type Routed = (Vec<(ShardId, Operation)>, Vec<Conflict>);

impl Planner {
    pub(super) fn submit_operations(&mut self, tag: JobTag, submit: Submit) {
        let Submit { operations, conflict_detection, mode } = submit;
        match self.routed(operations, mode) {
            Ok((operations, conflicts)) if operations.is_empty() => {
                let statement = self.next_statement();
                let applied = Vec::new();
                let expired = false;
                let report = StatementReport { statement, applied, conflicts, expired };
                self.reply(tag, PlanReply::Statement(Ok(Box::new(report))));
            }
            Ok((operations, conflicts)) => {
                let terms = CommitOptions { conflict_detection, mode, atomic: true };
                self.commit(operations, conflicts, terms, Purpose::Submit(tag));
            }
            Err(rejection) => self.reply(tag, PlanReply::Statement(Err(rejection))),
        }
    }

    /// Finds the shard of each operation. In an incremental statement, an operation without a shard is a
    /// conflict.
    fn routed(&mut self, operations: Vec<Operation>, mode: CommitMode) -> Result<Routed, PlanRejection> {
        if operations.is_empty() || operations.len() > STATEMENT_OPERATIONS_MAX {
            return Err(PlanRejection::Operations(operations.len()));
        }
        let mut routed = Vec::with_capacity(operations.len());
        let mut conflicts = Vec::new();
        for (at, operation) in (0u16..).zip(operations) {
            let (shard, unknown) = match (&operation, operation.node()) {
                (_, Some(node)) => {
                    let partition = self.port.catalog().node_partition(node);
                    let shard = partition.and_then(|partition| self.port.shard_of(partition));
                    (shard, PlanRejection::UnknownNode { operation: at, node })
                }
                (&Operation::Evict(Evict { allocation, .. }), None) => {
                    let shard = self.port.shard_of(allocation.partition);
                    (shard, PlanRejection::UnknownAllocation { operation: at, allocation })
                }
                (operation, None) => {
                    unreachable!("an operation names a node or an allocation: {operation:?}")
                }
            };
            match shard {
                Some(shard) => routed.push((shard, operation)),
                None if mode == CommitMode::Incremental => conflicts.push(unknown_conflict(at, &operation)),
                None => return Err(unknown),
            }
        }
        Ok((routed, conflicts))
    }

    /// Returns the shard that serves an allocation of this store.
    pub(super) fn shard_of_allocation(&mut self, allocation: AllocationId) -> ShardId {
        self.port.shard_of(allocation.partition).expect("an allocation that was granted has a partition")
    }
}

/// Returns the conflict of an operation that names an unknown node or allocation.
fn unknown_conflict(at: u16, operation: &Operation) -> Conflict {
    let reason = match operation {
        Operation::Evict(evict) => ConflictReason::UnknownAllocation(evict.allocation),
        Operation::Allocate(_) | Operation::Pipeline(_) => ConflictReason::UnknownNode,
    };
    Conflict { operation: at, node: operation.node(), version: None, reason }
}
