//! Statements in a shard. Parts are checked and held ([`holds`]), and finished when they are
//! decided.
//!
//! A step never reads a decision cell, because its effect must depend only on its batch. When the deadline of a
//! hold passes, the statement is listed ([`Shard::drain_due`]). The thread that runs the shard then asks the
//! cell to abort, and passes the decision to the shard as a command of the next batch.

mod holds;

use crate::broken::{Broken, broken};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::{AllocationId, NodeId, StatementId};
use crate::index::Slot;
use crate::limits::RESULT_KEPT_NS;
use crate::link::{Decision, DecisionCell};
use crate::map::FixedMap;
use crate::planted::{PlantedBug, is_planted};
use crate::shard::Shard;
use crate::shard::books::HeldAllocation;
use crate::shard::{NodeRejection, UnknownStatement};
use crate::statement::{Applied, CommitMode, Conflict, ConflictReason, Part, Prepare, Prepared};
use crate::time::Time;
use crate::timers::Timers;
use crate::view::HoldImage;
use holds::{Attempt, Hold};

/// The holds of one undecided statement.
struct HeldPart {
    cell: Arc<DecisionCell>,
    deadline: Time,
    /// True if its deadline has passed, so that the runner asks for an abort.
    asked: bool,
    held: Vec<(u16, Hold)>,
}

/// The statements in progress in a shard.
#[derive(Default)]
pub(crate) struct Statements {
    parts: FixedMap<StatementId, HeldPart>,
    /// The deadlines of parts that have not asked for an abort.
    deadlines: Timers<StatementId>,
    /// The statements that asked for an abort since the list was last drained.
    due: Vec<(StatementId, Arc<DecisionCell>)>,
    /// The results of statements that may be finished twice, by the coordinator and by the shard's runner.
    kept: FixedMap<StatementId, (Time, Applied)>,
    kept_until: Timers<StatementId>,
    /// The parts of statements over several shards that were committed since the last unit of the journal.
    finished: Vec<StatementId>,
    /// The statements that involve a node, once per operation. No entry is empty.
    by_slot: FixedMap<Slot, Vec<StatementId>>,
    /// Allocations that an undecided statement evicts.
    pub(crate) evicting: FixedMap<AllocationId, StatementId>,
    /// The scratch state of the current part. Meaningless between parts.
    pub(crate) attempt: Attempt,
}

impl Statements {
    /// Returns the time when a step is due.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Time {
        self.deadlines.next().min(self.kept_until.next())
    }

    /// Reports the bytes of each structure, without the boxed parts of demands.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        use crate::memory::{of_map, of_vec};
        let held = self.parts.values().map(|part| of_vec(&part.held));
        let results = self.kept.values().map(|(_, applied)| of_vec(&applied.granted));
        let listed = self.by_slot.values().map(of_vec);
        let statements = of_map(&self.parts)
            + of_map(&self.kept)
            + of_map(&self.by_slot)
            + of_map(&self.evicting)
            + self.deadlines.bytes()
            + self.kept_until.bytes();
        add("statements under way", statements + held.chain(results).chain(listed).sum::<u64>());
    }

    /// Returns the holds on a node as views show them.
    pub(crate) fn images_at(&self, slot: Slot) -> Box<[HoldImage]> {
        let Some(there) = self.by_slot.get(&slot) else { return Box::default() };
        let statements: std::collections::BTreeSet<StatementId> = there.iter().copied().collect();
        let mut images = Vec::with_capacity(there.len());
        for statement in statements {
            let held = self.parts.get(&statement).into_iter().flat_map(|part| &part.held);
            for &(operation, ref hold) in held.filter(|(_, hold)| hold.slot() == slot) {
                let (taken, evicts) = match hold {
                    Hold::Allocate(held) => (Some((held.demand.clone(), held.gpus)), None),
                    Hold::Pipeline { .. } => (None, None),
                    Hold::Evict { allocation, .. } => (None, Some(*allocation)),
                };
                images.push(HoldImage { statement, operation, taken, evicts });
            }
        }
        images.into_boxed_slice()
    }

    pub(crate) fn enter_at(&mut self, slot: Slot, statement: StatementId) {
        self.by_slot.entry(slot).or_default().push(statement);
    }

    pub(crate) fn leave_at(&mut self, slot: Slot, statement: StatementId) {
        let there = self.by_slot.get_mut(&slot).expect("a hold is known to its node");
        let at = there.iter().rposition(|&known| known == statement).expect("a hold is known to its node");
        there.remove(at);
        if there.is_empty() {
            self.by_slot.remove(&slot);
        }
    }

    /// Returns the statements that involve a node, ascending.
    fn of_slot(&self, slot: Slot) -> BTreeSet<StatementId> {
        self.by_slot.get(&slot).map(|there| there.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the allocations that statements hold on a node.
    pub(crate) fn allocating_at(&self, slot: Slot) -> impl Iterator<Item = (StatementId, &HeldAllocation)> {
        self.of_slot(slot).into_iter().flat_map(move |statement| {
            let held = self.parts.get(&statement).map_or(&[][..], |part| &part.held);
            let allocating = held.iter().filter_map(move |(_, hold)| match hold {
                Hold::Allocate(allocation) if allocation.slot == slot => Some(allocation),
                _ => None,
            });
            allocating.map(move |allocation| (statement, allocation))
        })
    }

    /// Returns the number of held allocations that are bundles.
    pub(crate) fn bundles_held(&self) -> usize {
        let held = self.parts.values().flat_map(|part| &part.held);
        held.filter(|(_, hold)| matches!(hold, Hold::Allocate(held) if held.bundle.is_some())).count()
    }

    fn enter(&mut self, statement: StatementId, part: HeldPart) {
        if !part.asked {
            self.deadlines.insert(part.deadline, statement);
        } else {
            self.due.push((statement, Arc::clone(&part.cell)));
        }
        assert!(!self.kept.contains_key(&statement), "statement {statement} has a result already");
        let before = self.parts.insert(statement, part);
        assert!(before.is_none(), "statement {statement} is held twice");
        assert!(self.deadlines.len() <= self.parts.len(), "a deadline is that of no statement");
    }

    /// Takes the parts that were committed since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<StatementId> {
        let finished = std::mem::take(&mut self.finished);
        let is_held = finished.iter().any(|statement| self.parts.contains_key(statement));
        assert!(!is_held, "a statement that was committed holds nothing");
        finished
    }

    fn leave(&mut self, statement: StatementId) -> Option<HeldPart> {
        let part = self.parts.remove(&statement)?;
        let waited = self.deadlines.remove(part.deadline, statement);
        assert!(waited != part.asked, "statement {statement} waits for its deadline until it is asked for");
        assert!(self.deadlines.len() <= self.parts.len(), "a deadline is that of no statement");
        Some(part)
    }
}

impl Shard {
    /// Checks every operation of a part in order, and holds the capacity it needs.
    pub(crate) fn handle_prepare(&mut self, prepare: Prepare) -> Prepared {
        let Prepare { part, deadline, cell } = prepare;
        let statement = part.statement;
        if let Some(conflicts) = self.repeated(&part) {
            return Prepared { statement, held: Vec::new(), conflicts };
        }
        let (held, conflicts) = self.hold_part(&part, false);
        let is_whole = part.mode == CommitMode::AllOrNothing;
        assert!(!is_whole || held.is_empty() || conflicts.is_empty(), "a whole part is held or conflicts");
        let places = held.iter().map(|&(at, _)| at).collect();
        if !held.is_empty() || conflicts.is_empty() {
            let asked = deadline <= self.now;
            self.statements.enter(statement, HeldPart { cell, deadline, asked, held });
        }
        Prepared { statement, held: places, conflicts }
    }

    /// Carries out the decision on a statement.
    pub(crate) fn handle_finish(
        &mut self,
        statement: StatementId,
        decision: Decision,
    ) -> Result<Box<Applied>, UnknownStatement> {
        let Some(part) = self.statements.leave(statement) else {
            let kept = self.statements.kept.remove(&statement);
            let (until, applied) = kept.ok_or(UnknownStatement(statement))?;
            let waited = self.statements.kept_until.remove(until, statement);
            assert!(waited, "the result of {statement} is kept for a time");
            return Ok(Box::new(applied));
        };
        let granted = match decision {
            Decision::Committed => {
                if self.journaled.is_some() {
                    self.statements.finished.push(statement);
                }
                self.commit(statement, part.held, false)
            }
            Decision::Aborted => {
                self.undo(statement, part.held);
                Vec::new()
            }
        };
        let applied = Applied {
            statement,
            decision,
            granted,
            conflicts: Vec::new(),
            visible_from: self.visible_from(),
        };
        let forgets = is_planted(PlantedBug::LateResultForgotten);
        if part.asked && decision == Decision::Committed && !forgets {
            let until = Time(self.now.0.saturating_add(RESULT_KEPT_NS));
            let before = self.statements.kept.insert(statement, (until, applied.clone()));
            assert!(before.is_none(), "statement {statement} has one result");
            self.statements.kept_until.insert(until, statement);
        }
        let kept = self.statements.kept.len();
        assert!(self.statements.kept_until.len() == kept, "a result is kept without an end");
        Ok(Box::new(applied))
    }

    /// Checks and commits a statement that concerns only this shard.
    pub(crate) fn handle_apply(&mut self, part: &Part) -> Applied {
        let statement = part.statement;
        let (held, conflicts) = match self.repeated(part) {
            Some(conflicts) => (Vec::new(), conflicts),
            None => self.hold_part(part, true),
        };
        let done = !held.is_empty() || conflicts.is_empty();
        let decision = if done { Decision::Committed } else { Decision::Aborted };
        let count = held.len();
        let granted = self.commit(statement, held, true);
        assert!(granted.len() == count, "each hold is granted");
        Applied { statement, decision, granted, conflicts, visible_from: self.visible_from() }
    }

    /// Returns the conflicts of a part whose statement is already known, or `None` if it is not.
    fn repeated(&self, part: &Part) -> Option<Vec<Conflict>> {
        let Statements { parts, kept, .. } = &self.statements;
        (parts.contains_key(&part.statement) || kept.contains_key(&part.statement)).then(|| {
            let operations = part.operations.iter();
            let conflict = operations.map(|&(operation, ref planned)| Conflict {
                operation,
                node: planned.node(),
                version: None,
                reason: ConflictReason::Repeated,
            });
            conflict.collect()
        })
    }

    /// Handles deadlines that have passed: ends grace periods, drops kept results, and lists holds.
    pub(crate) fn expire_statements(&mut self) {
        let now = self.now;
        self.end_grace();
        let statements = &mut self.statements;
        while let Some(statement) = statements.kept_until.pop_due(now) {
            statements.kept.remove(&statement).expect("a result is kept until its time");
        }
        while let Some(statement) = statements.deadlines.pop_due(now) {
            let part = statements.parts.get_mut(&statement).expect("a deadline is that of a held part");
            assert!(!part.asked, "statement {statement} is asked for once");
            part.asked = true;
            statements.due.push((statement, Arc::clone(&part.cell)));
        }
        assert!(statements.kept.len() == statements.kept_until.len(), "a result is kept without an end");
        if is_planted(PlantedBug::ClockEndsHold) {
            for (statement, _) in std::mem::take(&mut self.statements.due) {
                let part = self.statements.leave(statement).expect("what is due is held");
                self.undo(statement, part.held);
            }
        }
    }

    /// Returns the statements whose deadline has passed since the last call. The caller asks their cells to
    /// abort, and passes each decision back as [`Command::Finish`](crate::shard::Command::Finish).
    pub fn drain_due(&mut self) -> std::vec::Drain<'_, (StatementId, Arc<DecisionCell>)> {
        self.statements.due.drain(..)
    }

    /// Returns the statements with holds in this shard, ascending. There must be none when the shard is shut
    /// down.
    #[must_use]
    pub fn undecided(&self) -> Vec<(StatementId, Arc<DecisionCell>)> {
        let parts = self.statements.parts.iter();
        let mut undecided: Vec<_> = parts.map(|(&id, part)| (id, Arc::clone(&part.cell))).collect();
        undecided.sort_unstable_by_key(|&(id, _)| id);
        undecided
    }

    /// Fails if an undecided statement involves the node.
    pub(crate) fn check_not_held(&self, slot: Slot, node: NodeId) -> Result<(), NodeRejection> {
        match self.statements.of_slot(slot).first() {
            Some(&statement) => Err(NodeRejection::Held(node, statement)),
            None => Ok(()),
        }
    }

    /// Checks that every hold is listed under its node, and that evicted allocations are marked.
    pub(crate) fn check_statements(&self) -> Result<(), Broken> {
        let statements = &self.statements;
        let mut by_slot: FixedMap<Slot, Vec<StatementId>> = FixedMap::default();
        let mut evicting = 0;
        for (&statement, part) in &statements.parts {
            if !part.asked && !statements.deadlines.contains(part.deadline, statement) {
                return Err(broken!("statement {statement} would be held for ever"));
            }
            for (_, hold) in &part.held {
                by_slot.entry(hold.slot()).or_default().push(statement);
                if let Hold::Evict { allocation, .. } = hold {
                    evicting += 1;
                    if statements.evicting.get(allocation) != Some(&statement) {
                        return Err(broken!("statement {statement} lost its mark on {allocation}"));
                    }
                }
            }
        }
        let same = by_slot.len() == statements.by_slot.len()
            && by_slot.into_iter().all(|(slot, mut truth)| {
                let mut known = statements.by_slot.get(&slot).cloned().unwrap_or_default();
                truth.sort_unstable();
                known.sort_unstable();
                truth == known
            });
        if !same || evicting != statements.evicting.len() {
            return Err(Broken::new("the holds of nodes are not those of the statements"));
        }
        if statements.kept.len() != statements.kept_until.len() {
            return Err(Broken::new("results are kept without an end"));
        }
        self.books.check_bundles(statements.bundles_held())?;
        self.books.check_releasing()
    }
}
