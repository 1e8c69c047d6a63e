//! Commits a statement. Over one shard this takes one step. Over several shards it takes holds on all of
//! them, one decision, and then the execution of the decision on all of them.
//!
//! | stage | sent | awaited |
//! |---|---|---|
//! | one shard | `Apply` | what was done |
//! | preparing | `Prepare` to each shard | held, or conflicts |
//! | finishing | `Finish` to each shard that holds | what was done |
//!
//! The decision cell is set between the last two stages. A shard that waited beyond the deadline may have set
//! it first. Then the statement is aborted, even if every part was held.

use std::sync::Arc;

use crate::group::StatementReport;
use crate::ids::{ShardId, StatementId};
use crate::link::{Decision, DecisionCell};
use crate::reply::reply_of;
use crate::shard::{Command, Outcome, UnknownStatement};
use crate::statement::{Applied, CommitMode, Conflict, ConflictDetection, Operation, Part, Prepare};
use crate::time::Time;

/// The options for committing a statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitOptions {
    pub(super) conflict_detection: ConflictDetection,
    pub(super) mode: CommitMode,
    /// If set, the statement is applied on all its shards or on none. Otherwise, each shard does what it can.
    pub(super) atomic: bool,
}

/// The part of a statement for one shard.
#[derive(Debug)]
struct FlightPart {
    shard: ShardId,
    operations: Vec<(u16, Operation)>,
    /// Set if the shard holds any of it.
    holds: bool,
}

/// A statement in flight.
#[derive(Debug)]
pub(super) struct StatementInFlight {
    statement: StatementId,
    parts: Vec<FlightPart>,
    terms: CommitOptions,
    /// `None` if no decision is needed: over one shard, or over each shard separately.
    cell: Option<Arc<DecisionCell>>,
    /// The number of awaited answers.
    left: usize,
    conflicts: Vec<Conflict>,
    applied: Vec<Applied>,
    /// Set if shards ended the statement at its deadline. Then what they hold is unknown or gone.
    expired: bool,
}

impl StatementInFlight {
    /// Creates a statement of `parts`, each with its shard and operations. `conflicts` are of operations that
    /// conflict before any shard has seen them.
    pub(super) fn new(
        statement: StatementId,
        parts: Vec<(ShardId, Vec<(u16, Operation)>)>,
        conflicts: Vec<Conflict>,
        terms: CommitOptions,
    ) -> Self {
        assert!(!parts.is_empty(), "a statement has operations");
        let cell = (parts.len() > 1 && terms.atomic).then(|| Arc::new(DecisionCell::default()));
        let parts: Vec<FlightPart> = parts
            .into_iter()
            .map(|(shard, operations)| FlightPart { shard, operations, holds: false })
            .collect();
        let left = parts.len();
        Self { statement, left, parts, terms, cell, conflicts, applied: Vec::new(), expired: false }
    }

    /// Returns the first commands: the index of a part, its shard, and the command. The deadline of holds is
    /// set when the commands leave, so that earlier delays do not count.
    pub(super) fn begin(&mut self) -> Vec<(usize, ShardId, Command)> {
        let CommitOptions { conflict_detection, mode, .. } = self.terms;
        let statement = self.statement;
        let cell = self.cell.clone();
        let commands = self.parts.iter_mut().map(|part| {
            let operations = std::mem::take(&mut part.operations);
            let part_of = Part { statement, operations, conflict_detection, mode };
            let command = match &cell {
                None => Command::Apply(Box::new(part_of)),
                Some(cell) => {
                    let deadline = Time::default();
                    let cell = Arc::clone(cell);
                    Command::Prepare(Box::new(Prepare { part: part_of, deadline, cell }))
                }
            };
            (part.shard, command)
        });
        commands.enumerate().map(|(at, (shard, command))| (at, shard, command)).collect()
    }

    /// Takes one shard's answer. Returns the next commands. `record` is called with the number of shards before they can
    /// commit, and with 0 if they were aborted instead.
    pub(super) fn handle(
        &mut self,
        part: usize,
        outcome: Outcome,
        mut record: impl FnMut(StatementId, u16),
    ) -> Vec<(usize, ShardId, Command)> {
        self.left -= 1;
        match outcome {
            Outcome::Prepared(prepared) => {
                self.parts[part].holds = !prepared.held.is_empty();
                self.conflicts.extend(prepared.conflicts);
            }
            applied => match reply_of::<Result<Box<Applied>, _>, _>(applied) {
                Ok(mut applied) => {
                    self.conflicts.append(&mut applied.conflicts);
                    if applied.decision == Decision::Committed {
                        self.applied.push(*applied);
                    }
                }
                // The shard asked to abort before the coordinator decided, and nobody had committed.
                Err(UnknownStatement(_)) => self.expired = true,
            },
        }
        let Some(cell) = self.cell.as_ref().filter(|_| self.left == 0 && self.holds()) else {
            return Vec::new();
        };
        let all = self.conflicts.is_empty() || self.terms.mode == CommitMode::Incremental;
        let shards = self.parts.iter().filter(|part| part.holds).count();
        let shards = u16::try_from(shards).expect("SHARDS_MAX fits u16");
        if all {
            record(self.statement, shards);
        }
        let decision = cell.decide(if all { Decision::Committed } else { Decision::Aborted });
        if all && decision == Decision::Aborted {
            record(self.statement, 0);
        }
        self.expired |= all && decision == Decision::Aborted;
        let mut commands = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate().filter(|(_, part)| part.holds) {
            part.holds = false;
            commands.push((at, part.shard, Command::Finish { statement: self.statement, decision }));
        }
        self.left = commands.len();
        commands
    }

    fn holds(&self) -> bool {
        self.parts.iter().any(|part| part.holds)
    }

    /// Returns whether no answer is awaited.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Returns the result.
    pub(super) fn conclude(self) -> StatementReport {
        let Self { statement, applied, conflicts, expired, .. } = self;
        StatementReport { statement, applied, conflicts, expired }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes an answer. Nothing is recorded.
    fn handle(
        flight: &mut StatementInFlight,
        part: usize,
        outcome: Outcome,
    ) -> Vec<(usize, ShardId, Command)> {
        flight.handle(part, outcome, |_, _| {})
    }
    use crate::ids::{AllocationId, Incarnation, PartitionId, TenantId};
    use crate::statement::{ConflictReason, Evict, Prepared};

    const ID: StatementId = StatementId { incarnation: Incarnation(1), planner: 0, number: 7 };

    fn operation(sequence: u64) -> Operation {
        let allocation = AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence,
            tenant: TenantId::OPERATOR,
        };
        Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 })
    }

    fn flight(mode: CommitMode) -> (StatementInFlight, Arc<DecisionCell>) {
        let parts = vec![(ShardId(0), vec![(0, operation(1))]), (ShardId(3), vec![(1, operation(2))])];
        let terms = CommitOptions { conflict_detection: ConflictDetection::Fine, mode, atomic: true };
        let mut flight = StatementInFlight::new(ID, parts, Vec::new(), terms);
        let commands = flight.begin();
        let [(0, ShardId(0), Command::Prepare(first)), (1, ShardId(3), Command::Prepare(_))] = &commands[..]
        else {
            panic!("{commands:?}");
        };
        let cell = Arc::clone(&first.cell);
        (flight, cell)
    }

    fn prepared(held: &[u16], conflicting: &[u16]) -> Outcome {
        let reason = ConflictReason::AlreadyReleasing;
        let conflict = |&operation: &u16| Conflict { operation, node: None, version: None, reason };
        let conflicts = conflicting.iter().map(conflict).collect();
        Outcome::Prepared(Box::new(Prepared { statement: ID, held: held.to_vec(), conflicts }))
    }

    fn decisions(commands: &[(usize, ShardId, Command)]) -> Vec<(u16, Decision)> {
        let decision = |(_, shard, command): &(usize, ShardId, Command)| match command {
            Command::Finish { statement: ID, decision } => (shard.0, *decision),
            other => panic!("{other:?}"),
        };
        commands.iter().map(decision).collect()
    }

    #[test]
    fn all_that_is_held_is_committed_once() {
        let (mut flight, cell) = flight(CommitMode::AllOrNothing);
        assert!(handle(&mut flight, 1, prepared(&[1], &[])).is_empty());
        assert_eq!(cell.decision(), None);
        let commands = handle(&mut flight, 0, prepared(&[0], &[]));
        assert_eq!(decisions(&commands), [(0, Decision::Committed), (3, Decision::Committed)]);
        assert_eq!(cell.decision(), Some(Decision::Committed));
        assert!(!flight.is_over());
    }

    #[test]
    fn one_conflict_aborts_all_or_nothing_where_something_is_held() {
        let (mut flight, cell) = flight(CommitMode::AllOrNothing);
        handle(&mut flight, 0, prepared(&[], &[0]));
        let commands = handle(&mut flight, 1, prepared(&[1], &[]));
        assert_eq!(decisions(&commands), [(3, Decision::Aborted)]);
        assert_eq!(cell.decision(), Some(Decision::Aborted));
    }

    #[test]
    fn the_rest_of_an_incremental_one_is_committed() {
        let (mut flight, cell) = flight(CommitMode::Incremental);
        handle(&mut flight, 0, prepared(&[], &[0]));
        let commands = handle(&mut flight, 1, prepared(&[1], &[]));
        assert_eq!(decisions(&commands), [(3, Decision::Committed)]);
        assert_eq!(cell.decision(), Some(Decision::Committed));
    }

    #[test]
    fn where_nothing_is_held_nothing_is_decided_and_it_is_over() {
        let (mut flight, cell) = flight(CommitMode::AllOrNothing);
        handle(&mut flight, 0, prepared(&[], &[0]));
        assert!(handle(&mut flight, 1, prepared(&[], &[1])).is_empty());
        assert!(flight.is_over());
        assert_eq!(cell.decision(), None);
        assert_eq!(flight.conclude().conflicts.len(), 2);
    }

    #[test]
    fn a_shard_that_asked_first_has_aborted_it() {
        let (mut flight, cell) = flight(CommitMode::AllOrNothing);
        handle(&mut flight, 0, prepared(&[0], &[]));
        assert_eq!(cell.decide(Decision::Aborted), Decision::Aborted);
        let commands = handle(&mut flight, 1, prepared(&[1], &[]));
        assert_eq!(decisions(&commands), [(0, Decision::Aborted), (3, Decision::Aborted)]);
        handle(&mut flight, 0, Outcome::Applied(Err(UnknownStatement(ID))));
        handle(&mut flight, 1, Outcome::Applied(Err(UnknownStatement(ID))));
        assert!(flight.is_over());
        assert!(flight.conclude().expired);
    }

    #[test]
    fn a_statement_that_a_shard_aborted_has_expired_also_where_the_shards_know_it_still() {
        let (mut flight, cell) = flight(CommitMode::AllOrNothing);
        handle(&mut flight, 0, prepared(&[0], &[]));
        assert_eq!(cell.decide(Decision::Aborted), Decision::Aborted);
        handle(&mut flight, 1, prepared(&[1], &[]));
        for part in 0..2 {
            let decision = Decision::Aborted;
            let granted = Vec::new();
            let conflicts = Vec::new();
            let applied = Applied { statement: ID, decision, granted, conflicts, visible_from: 1 };
            handle(&mut flight, part, Outcome::Applied(Ok(Box::new(applied))));
        }
        let concluded = flight.conclude();
        assert!(concluded.expired && concluded.applied.is_empty());
    }
}
