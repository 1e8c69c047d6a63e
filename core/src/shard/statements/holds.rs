//! Holds: capacity that an undecided statement keeps in a shard.
//!
//! A held allocation takes the same amounts and instances from the books as a placement, but is recorded in its
//! own table. If the statement is aborted, the hold gives exactly these back. What it used of a reservation is
//! reserved again if the reservation is still the same one. A held eviction only marks the allocation.
//! Operations are checked in order, each on the state that the previous ones left, just as they are committed.

use std::collections::BTreeSet;

use crate::ids::{AllocationId, BundleId, Incarnation, NodeId, StatementId, TenantId};
use crate::index::Slot;
use crate::map::FixedMap;
use crate::node::NodeState;
use crate::request::Placement;
use crate::shard::Shard;
use crate::shard::books::{Dirty, HeldAllocation};
use crate::statement::{
    Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation, Part,
    Pipeline,
};
use crate::time::Time;
use crate::view::EndCause;

/// One held operation.
pub(crate) enum Hold {
    /// Amounts taken from the books.
    Allocate(HeldAllocation),
    /// A claim.
    Pipeline {
        /// The slot of the node.
        slot: Slot,
        /// The number of the claim.
        number: u64,
        /// Who its allocation will belong to.
        tenant: TenantId,
    },
    /// A marked allocation.
    Evict {
        /// The allocation.
        allocation: AllocationId,
        /// Its slot when it was marked.
        slot: Slot,
        /// The grace period from the commit on, in ns.
        grace_ns: u64,
    },
}

impl Hold {
    /// Returns the slot of the node that it involves.
    pub(crate) fn slot(&self) -> Slot {
        match self {
            Self::Allocate(allocation) => allocation.slot,
            Self::Pipeline { slot, .. } | Self::Evict { slot, .. } => *slot,
        }
    }
}

/// The progress of one part. The tables are reused from part to part.
pub(crate) struct Attempt {
    statement: StatementId,
    conflict_detection: ConflictDetection,
    /// The part is committed in the same step, so no other command sees its holds.
    at_once: bool,
    /// The nodes that the part changed or compared: the version before, and the first expected version.
    nodes: FixedMap<Slot, Seen>,
    evicted: FixedMap<AllocationId, u16>,
    /// The evicted allocations that end without grace.
    ended: Vec<AllocationId>,
    bundles: FixedMap<BundleId, u16>,
    /// The nodes whose books changed.
    dirty: Vec<Slot>,
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            statement: StatementId { incarnation: Incarnation(0), planner: 0, number: 0 },
            conflict_detection: ConflictDetection::Fine,
            at_once: false,
            nodes: FixedMap::default(),
            evicted: FixedMap::default(),
            ended: Vec::new(),
            bundles: FixedMap::default(),
            dirty: Vec::new(),
        }
    }
}

impl Attempt {
    /// Starts a part.
    fn begin(&mut self, part: &Part, at_once: bool) {
        assert!(self.dirty.is_empty(), "the nodes of the part before were followed");
        (self.statement, self.conflict_detection, self.at_once) =
            (part.statement, part.conflict_detection, at_once);
        self.nodes.clear();
        self.evicted.clear();
        self.ended.clear();
        self.bundles.clear();
        self.dirty.clear();
    }

    /// Notes that operation `at` changed the books of a node, and placed `bundle`.
    fn note(&mut self, at: u16, bundle: Option<BundleId>, dirty: Dirty) {
        if let Some(bundle) = bundle {
            let before = self.bundles.insert(bundle, at);
            assert!(before.is_none(), "a statement places a bundle once");
        }
        let is_seen = self.nodes.contains_key(&dirty.slot);
        assert!(is_seen, "a node changed, and its version before is not known");
        self.dirty.push(dirty.slot);
    }
}

/// The state of a node before the part.
struct Seen {
    version: u64,
    expected: Option<(u64, u16)>,
}

impl Shard {
    /// Holds the operations of a part that are possible. If one operation of an all-or-nothing part conflicts,
    /// holds none. If the part is committed in the same step (`at_once`), its holds appear in no view and are
    /// not listed by node.
    pub(crate) fn hold_part(&mut self, part: &Part, at_once: bool) -> (Vec<(u16, Hold)>, Vec<Conflict>) {
        let mut held = Vec::with_capacity(part.operations.len());
        let mut conflicts = Vec::new();
        let mut attempt = std::mem::take(&mut self.statements.attempt);
        attempt.begin(part, at_once);
        for &(at, ref operation) in &part.operations {
            match self.hold(operation, at, &mut attempt) {
                Ok(hold) => {
                    self.enter_hold(hold.slot(), part.statement, at_once);
                    held.push((at, hold));
                }
                Err(reason) => conflicts.push(self.conflict(operation, at, reason, &attempt)),
            }
        }
        assert!(held.len() + conflicts.len() == part.operations.len(), "each operation is held or conflicts");
        let whole = part.mode == CommitMode::AllOrNothing && !conflicts.is_empty();
        if whole {
            while let Some((_, hold)) = held.pop() {
                self.leave_hold(hold.slot(), part.statement, at_once);
                self.take_back(hold, &mut attempt);
            }
        }
        if whole {
            for (&slot, seen) in &attempt.nodes {
                // No other command saw the versions in between.
                let version = self.books.nodes.hot(slot).version;
                assert!(version >= seen.version, "the version of slot {slot} went back");
                self.books.set_version(slot, seen.version);
            }
        }
        // Each node follows once, after all of the part.
        attempt.dirty.sort_unstable();
        attempt.dirty.dedup();
        attempt.dirty.drain(..).for_each(|slot| self.follow(Dirty::changed(slot)));
        self.statements.attempt = attempt;
        (held, conflicts)
    }

    /// Returns a conflict with the facts at the time.
    fn conflict(
        &self,
        operation: &Operation,
        at: u16,
        reason: ConflictReason,
        attempt: &Attempt,
    ) -> Conflict {
        let node = operation.node().or_else(|| self.node_evicted(operation));
        let slot = node.and_then(|node| self.books.nodes.slot(node));
        // The version before this statement: its own holds are irrelevant to others.
        let version = slot.map(|slot| {
            attempt.nodes.get(&slot).map_or_else(|| self.books.nodes.hot(slot).version, |seen| seen.version)
        });
        Conflict { operation: at, node, version, reason }
    }

    /// Marks what views show of a node with a hold. Holds are in the cold part. A part that is committed at
    /// once changes the cold part only if reservations are involved.
    fn touch_hold(&mut self, slot: Slot, at_once: bool) {
        let hot = at_once && self.books.entries(slot).is_empty();
        self.books.touch_hold(slot, !hot);
    }

    /// Lists a hold under its node, unless it is committed at once.
    fn enter_hold(&mut self, slot: Slot, statement: StatementId, at_once: bool) {
        if !at_once {
            self.statements.enter_at(slot, statement);
        }
        self.touch_hold(slot, at_once);
    }

    /// Removes a hold from its node.
    fn leave_hold(&mut self, slot: Slot, statement: StatementId, at_once: bool) {
        assert!(self.books.nodes.is_node(slot), "a node was removed that statement {statement} holds of");
        if !at_once {
            self.statements.leave_at(slot, statement);
        }
        self.touch_hold(slot, at_once);
    }

    /// Returns the node of the allocation that an operation evicts.
    fn node_evicted(&self, operation: &Operation) -> Option<NodeId> {
        let Operation::Evict(evict) = operation else { return None };
        self.books.ledger.slot_of(evict.allocation).map(|slot| self.books.nodes.hot(slot).id)
    }

    fn hold(
        &mut self,
        operation: &Operation,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        match operation {
            Operation::Allocate(allocate) => self.hold_allocation(allocate, at, attempt),
            Operation::Pipeline(pipeline) => self.hold_pipeline(pipeline, at, attempt),
            Operation::Evict(evict) => self.hold_eviction(evict, at, attempt),
        }
    }

    /// Checks the expected version of an operation against the current one and against other operations of the
    /// statement.
    fn expect_version(
        &self,
        slot: Slot,
        expected: Option<u64>,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<(), ConflictReason> {
        let version = self.books.nodes.hot(slot).version;
        let seen = attempt.nodes.entry(slot).or_insert(Seen { version, expected: None });
        assert!(seen.version <= version, "the version of slot {slot} only grows within a part");
        match (expected, seen.expected) {
            (Some(this), Some((other, operation))) if this != other => {
                return Err(ConflictReason::Contradicts(operation));
            }
            (Some(this), None) => seen.expected = Some((this, at)),
            _ => {}
        }
        match (attempt.conflict_detection, expected) {
            (ConflictDetection::Coarse, None) => Err(ConflictReason::NoVersion),
            (ConflictDetection::Coarse, Some(expected)) if expected != seen.version => {
                Err(ConflictReason::VersionChanged { expected, found: seen.version })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a bundle is not placed on this shard, and occurs once in its statement.
    fn expect_unplaced(&self, bundle: Option<BundleId>, attempt: &Attempt) -> Result<(), ConflictReason> {
        let Some(bundle) = bundle else { return Ok(()) };
        match attempt.bundles.get(&bundle) {
            Some(&operation) => Err(ConflictReason::Contradicts(operation)),
            None => {
                // Evictions of the same statement without grace free the bundle.
                let leaves = |&&id: &&AllocationId| self.books.bundles.id_of(id) == Some(bundle);
                let leaving = attempt.ended.iter().filter(leaves).count();
                let placed = self.books.bundles.count(bundle) as usize > leaving;
                if placed { Err(ConflictReason::BundlePlaced(bundle)) } else { Ok(()) }
            }
        }
    }

    fn hold_pipeline(
        &mut self,
        pipeline: &Pipeline,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        let &Pipeline { node, expected, ref demand, bundle, tenant } = pipeline;
        let slot = self.expect_ready(node, expected, at, attempt)?;
        self.expect_unplaced(bundle, attempt)?;
        let evicted = &attempt.evicted;
        let (number, dirty) = self.books.hold_claim(slot, demand, bundle, |id| evicted.contains_key(&id))?;
        attempt.note(at, bundle, dirty);
        Ok(Hold::Pipeline { slot, number, tenant })
    }

    fn hold_allocation(
        &mut self,
        allocate: &Allocate,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        let &Allocate { node, expected, bundle, .. } = allocate;
        let slot = self.expect_ready(node, expected, at, attempt)?;
        self.expect_unplaced(bundle, attempt)?;
        let (held, dirty) = self.books.hold(slot, allocate)?;
        attempt.note(at, bundle, dirty);
        Ok(Hold::Allocate(held))
    }

    /// Checks that a node is registered at the expected version and takes new work.
    fn expect_ready(
        &self,
        node: NodeId,
        expected: Option<u64>,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Slot, ConflictReason> {
        let slot = self.books.nodes.slot(node).ok_or(ConflictReason::UnknownNode)?;
        self.expect_version(slot, expected, at, attempt)?;
        match self.books.nodes.state(slot) {
            NodeState::Ready => Ok(slot),
            state => Err(ConflictReason::NotReady(state)),
        }
    }

    fn hold_eviction(
        &mut self,
        evict: &Evict,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        let &Evict { allocation: id, expected, grace_ns } = evict;
        if let Some(&operation) = attempt.evicted.get(&id) {
            return Err(ConflictReason::Contradicts(operation));
        }
        let slot = self.books.ledger.slot_of(id).ok_or_else(|| match self.books.bundles.holder(id) {
            Some(bundle) => ConflictReason::InBundle(bundle),
            None => ConflictReason::UnknownAllocation(id),
        })?;
        self.expect_version(slot, expected, at, attempt)?;
        if let Some(&statement) = self.statements.evicting.get(&id) {
            return Err(ConflictReason::HeldBy(statement));
        }
        if self.is_releasing(id) {
            return Err(ConflictReason::AlreadyReleasing);
        }
        let before = attempt.evicted.insert(id, at);
        assert!(before.is_none(), "a statement evicts {id} once");
        attempt.ended.extend((grace_ns == 0).then_some(id));
        if !attempt.at_once {
            let before = self.statements.evicting.insert(id, attempt.statement);
            assert!(before.is_none(), "one statement at a time evicts {id}");
        }
        self.books.bump_version(slot);
        Ok(Hold::Evict { allocation: id, slot, grace_ns })
    }

    /// Gives back a hold of a part that is not held after all.
    fn take_back(&mut self, hold: Hold, attempt: &mut Attempt) {
        let dirty = self.give_back(attempt.statement, hold);
        attempt.dirty.extend(dirty.map(|dirty| dirty.slot));
    }

    /// Gives back what a hold has. Returns the node if its books changed.
    fn give_back(&mut self, statement: StatementId, hold: Hold) -> Option<Dirty> {
        match hold {
            Hold::Allocate(held) => Some(self.books.give_held(&held)),
            Hold::Pipeline { slot, number, .. } => Some(self.books.drop_claim(slot, number)),
            Hold::Evict { allocation, slot, .. } => {
                let marked = self.statements.evicting.remove(&allocation);
                assert!(marked.is_none_or(|by| by == statement), "another statement evicts {allocation}");
                self.books.bump_version(slot);
                None
            }
        }
    }

    /// Aborts: restores the state before the holds, except for changes made by others since.
    pub(super) fn undo(&mut self, statement: StatementId, held: Vec<(u16, Hold)>) {
        for (_, hold) in held.into_iter().rev() {
            self.leave_hold(hold.slot(), statement, false);
            if let Some(dirty) = self.give_back(statement, hold) {
                self.follow(dirty);
            }
        }
    }

    /// Commits the holds. Returns the result of each operation, by index in the statement. `at_once` is as for
    /// holding.
    pub(crate) fn commit(
        &mut self,
        statement: StatementId,
        held: Vec<(u16, Hold)>,
        at_once: bool,
    ) -> Vec<(u16, Granted)> {
        let count = held.len();
        let mut granted = Vec::with_capacity(count);
        let mut claimed: BTreeSet<Slot> = BTreeSet::new();
        for (at, hold) in held {
            self.leave_hold(hold.slot(), statement, at_once);
            let came_to = match hold {
                Hold::Allocate(held) => Granted::Allocated(self.commit_allocation(held)),
                Hold::Pipeline { slot, number, tenant } => {
                    claimed.insert(slot);
                    let allocation = self.books.commit_claim(slot, number, tenant);
                    let node = self.books.nodes.hot(slot).id;
                    Granted::Pipelined { allocation, node }
                }
                Hold::Evict { allocation, grace_ns, .. } => {
                    let marked = self.statements.evicting.remove(&allocation);
                    let is_own = marked.is_none_or(|by| by == statement);
                    assert!(is_own, "another statement evicts {allocation}");
                    self.commit_eviction(allocation, grace_ns)
                }
            };
            granted.push((at, came_to));
        }
        if !claimed.is_empty() {
            self.settle_claims(claimed, &mut granted);
        }
        granted.sort_by_key(|&(at, _)| at);
        assert!(granted.len() == count, "each hold is granted");
        granted
    }

    /// Settles claims that were just committed. Claims whose capacity is free become allocations at once.
    fn settle_claims(&mut self, slots: BTreeSet<Slot>, granted: &mut [(u16, Granted)]) {
        for slot in slots {
            let dirty = self.books.settle_claims(slot);
            self.follow(dirty);
        }
        let pipelined = granted.iter().filter_map(|(_, came_to)| match came_to {
            Granted::Pipelined { allocation, .. } => Some(*allocation),
            _ => None,
        });
        let mut at_once = self.books.grants_of(&pipelined.collect());
        for (_, came_to) in granted {
            if let Granted::Pipelined { allocation, .. } = came_to
                && let Some(placement) = at_once.remove(allocation)
            {
                *came_to = Granted::Allocated(placement);
            }
        }
        assert!(at_once.is_empty(), "each grant is that of an operation");
    }

    fn commit_allocation(&mut self, held: HeldAllocation) -> Placement {
        let lease = held.lease;
        let (placement, ended) = self.books.commit_held(held);
        if let Some(terms) = &lease {
            self.books.begin_lease(placement.allocation, terms, self.now);
        }
        // A reservation that ended with it made room for others.
        if let Some(dirty) = ended {
            self.follow(dirty);
        }
        placement
    }

    fn commit_eviction(&mut self, id: AllocationId, grace_ns: u64) -> Granted {
        if grace_ns == 0 {
            // The allocation may have ended since it was held.
            let _ = self.end_allocation(id, EndCause::Evicted);
            return Granted::Ended(id);
        }
        let Some(allocation) = self.books.ledger.get(id) else { return Granted::Ended(id) };
        let until = Time(self.now.0.saturating_add(grace_ns));
        let dirty = self.books.begin_release(&allocation, until);
        self.follow(dirty);
        Granted::Releasing { allocation: id, until }
    }
}
