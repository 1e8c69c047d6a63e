//! Invariant 4: a statement is applied exactly once, on all its shards or on none, and a discarded one leaves
//! no trace. Held capacity belongs to an undecided statement. Releasing allocations were evicted by a
//! statement.
//!
//! [`Statements::handle`] follows the answers of shards. It computes from them alone what must be held and
//! releasing, and the books must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::ids::{AllocationId, BundleId, GroupId, NodeId, OwnerId, ShardId, StatementId};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::request::Placement;
use wharf_core::resource::{Demand, ResourceKind};
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::{Applied, CommitMode, Granted, Operation, Part, Pipeline, Prepare, Prepared};
use wharf_core::time::Time;

use super::rules::Placed;
use super::{Verdict, ensure};
use crate::sim::facts::{Facts, Step};

/// An allocation or claim that a statement made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The id of the allocation, or the id that a claim will have.
    pub id: AllocationId,
    /// The bundle and its group, if there is one.
    pub bundle: Option<(GroupId, Placed)>,
    /// Set if it used the reservation of a ticket.
    pub by_ticket: bool,
}

/// One shard's part, as its answers show it.
#[derive(Clone, Debug)]
struct Seen {
    operations: BTreeMap<u16, Operation>,
    held: Vec<u16>,
    /// The result, once the part was finished.
    applied: Option<Applied>,
}

/// One statement.
#[derive(Debug, Default)]
struct Statement {
    cell: Option<Arc<DecisionCell>>,
    parts: BTreeMap<ShardId, Seen>,
}

/// All statements of a run.
#[derive(Debug, Default)]
pub struct Statements {
    known: BTreeMap<StatementId, Statement>,
    /// The releasing allocations and the end of their grace periods.
    releasing: BTreeMap<AllocationId, Time>,
    committed: u64,
    aborted: u64,
}

impl Statements {
    /// Returns the number of parts that were committed, and of those that were aborted.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.committed, self.aborted)
    }

    /// Returns whether a statement is done on all shards that hold a part of it.
    #[must_use]
    pub fn is_done(&self, id: StatementId) -> bool {
        let statement = self.known.get(&id);
        statement.is_none_or(|statement| statement.parts.values().all(|part| part.applied.is_some()))
    }

    /// Checks one step of a shard.
    ///
    /// # Errors
    /// Returns an illegal outcome of a statement.
    pub fn handle(&mut self, step: &Step<'_>) -> Verdict {
        match (step.command, step.outcome) {
            (Command::Prepare(prepare), Outcome::Prepared(prepared)) => {
                self.handle_prepared(step.shard, prepare, prepared)?;
            }
            (Command::Apply(part), Outcome::Applied(Ok(applied))) => self.handle_alone(part, applied)?,
            (Command::Finish { statement, decision }, Outcome::Applied(Ok(applied))) => {
                self.handle_finished(step.shard, *statement, *decision, applied)?;
            }
            (Command::Finish { statement, .. }, Outcome::Applied(Err(_))) => {
                let part = self.known.get(statement).and_then(|known| known.parts.get(&step.shard));
                let undone = part.is_some_and(|part| part.applied.is_none());
                ensure(!undone, || format!("{statement} is held, and the shard does not know it"))?;
            }
            _ => {}
        }
        if let Outcome::Applied(Ok(applied)) = step.outcome {
            self.follow_releasing(applied);
        }
        let live: BTreeSet<AllocationId> = step.after.allocations().map(|a| a.id).collect();
        let left: BTreeSet<AllocationId> = step.before.allocations().map(|a| a.id).collect();
        self.releasing.retain(|id, _| live.contains(id) || !left.contains(id));
        self.books_show_what_is_held(step.shard, step.after)
    }

    fn handle_prepared(&mut self, shard: ShardId, prepare: &Prepare, prepared: &Prepared) -> Verdict {
        let Prepare { part, cell, .. } = prepare;
        let conflicted: BTreeSet<u16> =
            prepared.conflicts.iter().map(|conflict| conflict.operation).collect();
        let held: BTreeSet<u16> = prepared.held.iter().copied().collect();
        let all: BTreeSet<u16> = part.operations.iter().map(|&(place, _)| place).collect();
        let whole = part.mode == CommitMode::AllOrNothing;
        let fair = held.is_disjoint(&conflicted)
            && if whole && !conflicted.is_empty() { held.is_empty() } else { &held | &conflicted == all };
        ensure(fair, || format!("{part:?} came to {prepared:?}"))?;
        if held.is_empty() && !conflicted.is_empty() {
            return Ok(());
        }
        let statement = self.known.entry(part.statement).or_default();
        statement.cell = Some(Arc::clone(cell));
        let operations = part.operations.iter().cloned().collect();
        let seen = Seen { operations, held: prepared.held.clone(), applied: None };
        let before = statement.parts.insert(shard, seen);
        ensure(before.is_none(), || format!("{} is held twice at shard {}", part.statement, shard.0))
    }

    fn handle_alone(&mut self, part: &Part, applied: &Applied) -> Verdict {
        let granted: BTreeSet<u16> = applied.granted.iter().map(|&(place, _)| place).collect();
        let conflicted: BTreeSet<u16> = applied.conflicts.iter().map(|conflict| conflict.operation).collect();
        let all: BTreeSet<u16> = part.operations.iter().map(|&(place, _)| place).collect();
        let whole = part.mode == CommitMode::AllOrNothing;
        let fair = granted.is_disjoint(&conflicted)
            && if whole && !conflicted.is_empty() {
                granted.is_empty()
            } else {
                &granted | &conflicted == all
            };
        ensure(fair, || format!("{part:?} came to {applied:?}"))
    }

    /// Checks that a decision is carried out for everything that was held, and that a repetition gives the same
    /// result.
    fn handle_finished(
        &mut self,
        shard: ShardId,
        id: StatementId,
        decision: Decision,
        applied: &Applied,
    ) -> Verdict {
        let statement = self.known.get_mut(&id).ok_or_else(|| format!("{id} was never prepared"))?;
        let decided = statement.cell.as_ref().and_then(|cell| cell.decision());
        ensure(decided == Some(decision) && applied.decision == decision, || {
            format!("{id} was decided as {decided:?}, and done as {applied:?}")
        })?;
        let part = statement.parts.get_mut(&shard);
        let part = part.ok_or_else(|| format!("{id} was never prepared at shard {}", shard.0))?;
        let granted: Vec<u16> = applied.granted.iter().map(|&(place, _)| place).collect();
        match decision {
            Decision::Committed => ensure(granted == part.held, || {
                format!("{id} holds {:?} and is granted {granted:?}", part.held)
            })?,
            Decision::Aborted => ensure(granted.is_empty(), || format!("{id} is aborted: {applied:?}"))?,
        }
        match &part.applied {
            None if decision == Decision::Committed => self.committed += 1,
            None => self.aborted += 1,
            Some(first) => {
                return ensure(first == applied, || format!("{id} was {first:?}, then {applied:?}"));
            }
        }
        part.applied = Some(applied.clone());
        Ok(())
    }

    fn follow_releasing(&mut self, applied: &Applied) {
        for (_, granted) in &applied.granted {
            if let Granted::Releasing { allocation, until } = granted {
                self.releasing.insert(*allocation, *until);
            }
        }
    }

    /// Checks, per node, that undecided statements hold exactly what is held, and that they evicted exactly
    /// what is releasing.
    fn books_show_what_is_held(&self, shard: ShardId, after: &Facts) -> Verdict {
        let mut held: BTreeMap<NodeId, [i64; 3]> = BTreeMap::new();
        let parts = self.known.values().filter_map(|statement| statement.parts.get(&shard));
        for part in parts.filter(|part| part.applied.is_none()) {
            for place in &part.held {
                if let Some(Operation::Allocate(allocate)) = part.operations.get(place) {
                    add(held.entry(allocate.node).or_default(), &allocate.demand);
                }
            }
        }
        let mut releasing: BTreeMap<NodeId, [i64; 3]> = BTreeMap::new();
        for allocation in after.allocations().filter(|a| self.releasing.contains_key(&a.id)) {
            add(releasing.entry(allocation.node).or_default(), &allocation.demand);
        }
        for books in &after.books {
            let kinds = [ResourceKind::Cpu, ResourceKind::Memory, ResourceKind::Gpu];
            for (at, kind) in kinds.into_iter().enumerate() {
                let expected = [&held, &releasing].map(|of| of.get(&books.node).map_or(0, |sum| sum[at]));
                let book = books.resources.iter().find(|(known, _)| *known == kind);
                let found = book.map(|(_, book)| [book.held, book.releasing]);
                ensure(found == Some(expected), || {
                    format!("node {}, {kind}: {expected:?} held and releasing, and {book:?}", books.node)
                })?;
            }
        }
        Ok(())
    }

    /// Checks that allocations that ended by themselves were releasing and past their grace period.
    ///
    /// # Errors
    /// Returns an allocation that ended otherwise.
    pub fn only_what_is_evicted_ends_by_itself(
        &mut self,
        before: &Facts,
        after: &Facts,
        now: Time,
    ) -> Result<Vec<AllocationId>, String> {
        let live: BTreeSet<AllocationId> = after.allocations().map(|allocation| allocation.id).collect();
        let ended: Vec<AllocationId> =
            before.allocations().map(|allocation| allocation.id).filter(|id| !live.contains(id)).collect();
        for id in &ended {
            let until = self.releasing.remove(id);
            ensure(until.is_some_and(|until| until <= now), || {
                format!("{id} ended by itself at {now:?}, its grace ends at {until:?}")
            })?;
        }
        Ok(ended)
    }

    /// Returns the allocations and claims that a step of a statement made, with the groups of bundles.
    #[must_use]
    pub fn made(&self, step: &Step<'_>) -> Vec<Made> {
        let Outcome::Applied(Ok(applied)) = step.outcome else { return Vec::new() };
        let held = self.known.get(&applied.statement).and_then(|known| known.parts.get(&step.shard));
        let operation = |place: u16| match step.command {
            Command::Apply(part) => part.operations.iter().find(|(at, _)| *at == place).map(|(_, o)| o),
            _ => held.and_then(|part| part.operations.get(&place)),
        };
        let made = applied.granted.iter().filter_map(|(place, granted)| match granted {
            Granted::Allocated(placement) => Some((*place, placement.allocation)),
            Granted::Pipelined { allocation, .. } => Some((*place, *allocation)),
            _ => None,
        });
        made.map(|(place, id)| match operation(place) {
            Some(Operation::Allocate(allocate)) => {
                let placed = |bundle: BundleId| {
                    let index = bundle.index;
                    let node = allocate.node;
                    let demand = allocate.demand.clone();
                    (bundle.group, Placed { index, node, demand })
                };
                let by_ticket = allocate.owner.is_some_and(OwnerId::is_ticket);
                Made { id, bundle: allocate.bundle.map(placed), by_ticket }
            }
            // The claim of a task.
            Some(Operation::Pipeline(Pipeline { bundle: Some(bundle), node, demand, .. })) => {
                let placed = Placed { index: bundle.index, node: *node, demand: demand.clone() };
                Made { id, bundle: Some((bundle.group, placed)), by_ticket: false }
            }
            _ => Made { id, bundle: None, by_ticket: false },
        })
        .collect()
    }

    /// Checks, at rest, that no statement is undecided. A committed one was done on every shard that held a
    /// part, and an aborted one on none.
    ///
    /// # Errors
    /// Returns the first statement that was done in part.
    pub fn all_or_none(&self) -> Verdict {
        for (id, statement) in &self.known {
            let decided = statement.cell.as_ref().and_then(|cell| cell.decision());
            for (shard, part) in &statement.parts {
                let done = part.applied.as_ref().map(|applied| applied.decision);
                ensure(done.is_some() && done == decided, || {
                    format!("{id} was decided as {decided:?}, and shard {} did {done:?}", shard.0)
                })?;
            }
        }
        Ok(())
    }

    /// Handles a stop. Everything held must be settled, because the shards of the next start have other
    /// numbers.
    ///
    /// # Errors
    /// Same as [`all_or_none`](Self::all_or_none).
    pub fn handle_stop(&mut self) -> Verdict {
        let verdict = self.all_or_none();
        self.known.clear();
        verdict
    }
}

impl Statements {
    /// Handles a crash. Nothing is held any more. What is releasing is known from the books.
    pub fn handle_crash(&mut self, facts: &[Facts]) {
        self.known.clear();
        let partitions = facts.iter().flat_map(|facts| &facts.partitions);
        let releasing = partitions.flat_map(|partition| &partition.releasing);
        self.releasing = releasing.map(|record| (record.allocation, record.until)).collect();
    }
}

fn add(sum: &mut [i64; 3], demand: &Demand) {
    let parts = [demand.cpu.units(), demand.memory.units(), demand.gpu.units()];
    for (sum, part) in sum.iter_mut().zip(parts) {
        *sum += part;
    }
}

/// Returns what a statement's part granted, and what it ended at once.
pub fn granted_and_ended(applied: &Applied) -> (Vec<&Placement>, Vec<AllocationId>) {
    let granted = applied.granted.iter().filter_map(|(_, granted)| match granted {
        Granted::Allocated(placement) => Some(placement),
        _ => None,
    });
    let ended = applied.granted.iter().filter_map(|(_, granted)| match granted {
        Granted::Ended(id) => Some(*id),
        _ => None,
    });
    (granted.collect(), ended.collect())
}
