//! Operations that somebody else planned: each is granted or conflicts, as the mode says; what is granted under
//! coarse granularity had the version that was expected.

use std::collections::BTreeSet;

use wharf_core::ids::NodeId;
use wharf_core::planner::StatementReport;
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::{CommitMode, ConflictReason, Granted, Granularity, Operation};

use super::{Verdict, ensure};
use crate::sim::facts::Step;

/// The report of a statement speaks of all its operations, each once, and truly of their kinds.
///
/// # Errors
/// What it leaves out or adds.
pub fn statements_are_answered_fairly(
    operations: &[Operation],
    mode: CommitMode,
    report: &StatementReport,
) -> Verdict {
    let granted: Vec<(u16, &Granted)> =
        report.applied.iter().flat_map(|a| &a.granted).map(|(place, granted)| (*place, granted)).collect();
    let done: BTreeSet<u16> = granted.iter().map(|&(place, _)| place).collect();
    let lost: BTreeSet<u16> = report.conflicts.iter().map(|conflict| conflict.operation).collect();
    let all: BTreeSet<u16> = (0..).take(operations.len()).collect();
    let fair = done.len() == granted.len()
        && done.is_disjoint(&lost)
        && match mode {
            CommitMode::AllOrNothing => done == all && !report.expired || done.is_empty(),
            CommitMode::Incremental => report.expired || &done | &lost == all,
        }
        && (!done.is_empty() || !lost.is_empty() || report.expired)
        && lost.is_subset(&all);
    ensure(fair, || format!("{operations:?} came to {report:?}"))?;
    for (place, granted) in granted {
        let kind = match (&operations[usize::from(place)], granted) {
            (Operation::Allocate(asked), Granted::Allocated(placement)) => asked.node == placement.node,
            // What is released in the same statement may be there at once.
            (Operation::Pipeline(asked), Granted::Allocated(placement)) => asked.node == placement.node,
            (Operation::Pipeline(asked), Granted::Pipelined { node, .. }) => asked.node == *node,
            (Operation::Evict(evict), Granted::Ended(id)) => evict.allocation == *id,
            (Operation::Evict(evict), Granted::Releasing { allocation, .. }) => {
                evict.allocation == *allocation
            }
            _ => false,
        };
        ensure(kind, || format!("operation {place} of {operations:?} came to {granted:?}"))?;
    }
    for conflict in &report.conflicts {
        if let ConflictReason::VersionChanged { expected, found } = conflict.reason {
            let operation = &operations[usize::from(conflict.operation)];
            let stale = expected_of(operation) == Some(expected) && expected != found;
            ensure(stale, || format!("{operation:?} conflicts as {conflict:?}"))?;
        }
    }
    Ok(())
}

fn expected_of(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Allocate(allocate) => allocate.expected,
        Operation::Pipeline(pipeline) => pipeline.expected,
        Operation::Evict(evict) => evict.expected,
    }
}

/// Under coarse granularity a shard takes an operation only on a node that has the version which the operation
/// expects.
///
/// # Errors
/// The operation that was taken on another version.
pub fn coarse_goes_by_versions(step: &Step<'_>) -> Verdict {
    let (part, taken): (_, BTreeSet<u16>) = match (step.command, step.outcome) {
        (Command::Prepare(prepare), Outcome::Prepared(prepared)) => {
            (&prepare.part, prepared.held.iter().copied().collect())
        }
        (Command::Apply(part), Outcome::Applied(applied)) => {
            (part.as_ref(), applied.granted.iter().map(|&(place, _)| place).collect())
        }
        _ => return Ok(()),
    };
    if part.granularity != Granularity::Coarse {
        return Ok(());
    }
    for (place, operation) in part.operations.iter().filter(|(place, _)| taken.contains(place)) {
        let of = |id| step.before.allocations().find(|known| known.id == id).map(|known| known.node);
        let node: Option<NodeId> = match operation {
            Operation::Evict(evict) => of(evict.allocation),
            other => other.node(),
        };
        let found = node.and_then(|node| step.before.node(node)).map(|node| node.version);
        ensure(found.is_some() && found == expected_of(operation), || {
            format!("operation {place}, {operation:?}, was taken at version {found:?}")
        })?;
    }
    Ok(())
}
