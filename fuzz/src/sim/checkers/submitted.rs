//! Operations that callers planned themselves. Each one is granted or conflicts, as the mode says. Under coarse
//! conflict detection, granted operations had the expected version. No node has a version twice.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::group::StatementReport;
use wharf_core::ids::NodeId;
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::{CommitMode, ConflictDetection, ConflictReason, Granted, Operation};

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, Step};

/// Checks that a statement's report covers every operation once, with an outcome of its kind.
///
/// # Errors
/// Returns what the report leaves out or adds.
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
            // Capacity released in the same statement may be available at once.
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

/// Checks that under coarse conflict detection, a shard takes an operation only on a node of the expected
/// version.
///
/// # Errors
/// Returns the operation that was taken on another version.
pub fn coarse_goes_by_versions(step: &Step<'_>) -> Verdict {
    let (part, taken): (_, BTreeSet<u16>) = match (step.command, step.outcome) {
        (Command::Prepare(prepare), Outcome::Prepared(prepared)) => {
            (&prepare.part, prepared.held.iter().copied().collect())
        }
        (Command::Apply(part), Outcome::Applied(Ok(applied))) => {
            (part.as_ref(), applied.granted.iter().map(|&(place, _)| place).collect())
        }
        _ => return Ok(()),
    };
    if part.conflict_detection != ConflictDetection::Coarse {
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

/// The last version seen of each node, including removed nodes. A node that comes back has the same id, and a
/// version that someone planned with must never mean another state.
#[derive(Debug, Default)]
pub struct NodeVersions(BTreeMap<NodeId, LastVersion>);

#[derive(Clone, Copy, Debug)]
struct LastVersion {
    version: u64,
    registered: bool,
}

impl NodeVersions {
    /// Checks a step of a shard from `before` to `after`.
    ///
    /// # Errors
    /// Returns a node whose version went back, or that came back with a version that it had before.
    pub fn check(&mut self, before: &Facts, after: &Facts) -> Verdict {
        for gone in before.nodes().filter(|node| after.node(node.registration.id).is_none()) {
            if let Some(last) = self.0.get_mut(&gone.registration.id) {
                last.registered = false;
            }
        }
        for node in after.nodes() {
            let id = node.registration.id;
            let version = node.version;
            let last = self.0.insert(id, LastVersion { version, registered: true });
            let grew = last.is_none_or(|last| match last.registered {
                true => version >= last.version,
                false => version > last.version,
            });
            ensure(grew, || format!("node {id} has version {version} after {last:?}"))?;
        }
        Ok(())
    }
}
