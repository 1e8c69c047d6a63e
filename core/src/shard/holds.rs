//! Holds: capacity that an undecided statement keeps in a shard.
//!
//! A held allocation takes the same amounts and instances from the books as a placement, but is recorded in its
//! own table. If the statement is aborted, the hold gives exactly these back. What it used of a reservation is
//! reserved again if the reservation is still the same one. A held eviction only marks the allocation.
//! Operations are checked in order, each on the state that the previous ones left, just as they are committed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ledger::Allocation;
use super::reservations::Used;
use super::table::{COLD, HOT};
use super::withhold::FreeBooks;
use super::{Shard, Slot};
use crate::books::Withheld;
use crate::ids::{AllocationId, BundleId, Incarnation, NodeId, StatementId};
use crate::link::Decision;
use crate::map::FixedMap;
use crate::planted::{PlantedBug, is_planted};
use crate::request::Placement;
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuRequest, ResourceKind, UnitAssignments};
use crate::statement::{
    Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation, Part,
    Pipeline,
};
use crate::time::Time;

/// One held operation.
pub(super) enum Hold {
    /// Amounts taken from the books.
    Allocate(HeldAllocation),
    /// A claim.
    Pipeline {
        /// The slot of the node.
        slot: Slot,
        /// The number of the claim.
        number: u64,
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
    pub(super) fn slot(&self) -> Slot {
        match self {
            Self::Allocate(allocation) => allocation.slot,
            Self::Pipeline { slot, .. } | Self::Evict { slot, .. } => *slot,
        }
    }
}

/// An allocation that is created if the statement is committed.
#[derive(Clone, Debug)]
pub(super) struct HeldAllocation {
    pub(super) slot: Slot,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
    pub(super) units: Option<Arc<UnitAssignments>>,
    pub(super) bundle: Option<BundleId>,
    /// The amounts that it used of a reservation.
    pub(super) used: Option<Used>,
}

/// The progress of one part. The tables are reused from part to part.
pub(super) struct Attempt {
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
        }
    }
}

impl Attempt {
    /// Starts a part.
    fn begin(&mut self, part: &Part, at_once: bool) {
        (self.statement, self.conflict_detection, self.at_once) =
            (part.statement, part.conflict_detection, at_once);
        self.nodes.clear();
        self.evicted.clear();
        self.ended.clear();
        self.bundles.clear();
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
    pub(super) fn hold_part(&mut self, part: &Part, at_once: bool) -> (Vec<(u16, Hold)>, Vec<Conflict>) {
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
        let whole = part.mode == CommitMode::AllOrNothing && !conflicts.is_empty();
        if whole {
            while let Some((_, hold)) = held.pop() {
                self.leave_hold(hold.slot(), part.statement, at_once);
                self.take_back(hold);
            }
        }
        let mut slots: Vec<(Slot, u64)> =
            attempt.nodes.iter().map(|(&slot, seen)| (slot, seen.version)).collect();
        slots.sort_unstable();
        for (slot, version) in slots {
            if whole {
                // No other command saw the versions in between.
                self.nodes.hot_mut(slot).version = version;
            }
            if self.nodes.hot(slot).version != version || whole {
                self.follow_books(slot);
            }
        }
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
        let slot = node.and_then(|node| self.nodes.slot(node));
        // The version before this statement: its own holds are irrelevant to others.
        let version = slot.map(|slot| {
            attempt.nodes.get(&slot).map_or_else(|| self.nodes.hot(slot).version, |seen| seen.version)
        });
        Conflict { operation: at, node, version, reason }
    }

    /// Marks what views show of a node with a hold. Holds are in the cold part. A part that is committed at
    /// once changes the cold part only if reservations are involved.
    fn touch_hold(&mut self, slot: Slot, at_once: bool) {
        let hot = at_once && self.reservations.is_empty();
        self.nodes.touch(slot, if hot { HOT } else { HOT | COLD });
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
        if !at_once {
            self.statements.leave_at(slot, statement);
        }
        self.touch_hold(slot, at_once);
    }

    /// Returns the node of the allocation that an operation evicts.
    fn node_evicted(&self, operation: &Operation) -> Option<NodeId> {
        let Operation::Evict(evict) = operation else { return None };
        self.ledger.slot_of(evict.allocation).map(|slot| self.nodes.hot(slot).id)
    }

    fn hold(
        &mut self,
        operation: &Operation,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        match operation {
            Operation::Allocate(allocate) => self.hold_allocation(allocate, at, attempt).map(Hold::Allocate),
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
        let version = self.nodes.hot(slot).version;
        let seen = attempt.nodes.entry(slot).or_insert(Seen { version, expected: None });
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
                let leaves = |&&id: &&AllocationId| self.bundles.id_of(id) == Some(bundle);
                let leaving = attempt.ended.iter().filter(leaves).count();
                let placed = self.bundles.count(bundle) as usize > leaving;
                if placed { Err(ConflictReason::BundlePlaced(bundle)) } else { Ok(()) }
            }
        }
    }

    /// Notes that a bundle is held.
    fn promise(&mut self, bundle: Option<BundleId>, at: u16, attempt: &mut Attempt) {
        self.bundles.promise(bundle);
        attempt.bundles.extend(bundle.map(|bundle| (bundle, at)));
    }

    fn hold_pipeline(
        &mut self,
        pipeline: &Pipeline,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<Hold, ConflictReason> {
        let Pipeline { node, expected, demand, bundle } = pipeline;
        let slot = self.nodes.slot(*node).ok_or(ConflictReason::UnknownNode)?;
        self.expect_version(slot, *expected, at, attempt)?;
        self.ready(slot)?;
        self.expect_unplaced(*bundle, attempt)?;
        let evicted = &attempt.evicted;
        let number = self.hold_claim(slot, demand, *bundle, |id| evicted.contains_key(&id))?;
        self.promise(*bundle, at, attempt);
        Ok(Hold::Pipeline { slot, number })
    }

    fn hold_allocation(
        &mut self,
        allocate: &Allocate,
        at: u16,
        attempt: &mut Attempt,
    ) -> Result<HeldAllocation, ConflictReason> {
        let Allocate { node, expected, demand, gpus: named, owner, bundle } = allocate;
        let slot = self.nodes.slot(*node).ok_or(ConflictReason::UnknownNode)?;
        self.expect_version(slot, *expected, at, attempt)?;
        self.ready(slot)?;
        self.expect_unplaced(*bundle, attempt)?;
        let own = self.reservations.own(slot, *owner).is_some();
        if own {
            self.restore_reserved(slot);
        }
        let gpus = match self.chosen(slot, demand, *named) {
            Ok(gpus) => gpus,
            Err(reason) => {
                if own {
                    self.withhold_reserved(slot);
                }
                return Err(self.or_reserved(slot, demand, reason));
            }
        };
        let (gpus, units) = self.nodes.take_chosen(slot, demand, gpus);
        let used = own.then(|| self.reservations.use_up(slot, demand));
        if own {
            self.withhold_reserved(slot);
        } else if !self.reservations.is_empty() {
            // The withheld amounts depend on what is free.
            self.restore(slot);
            self.withhold(slot);
        }
        self.sums.hold(slot, demand, 1);
        self.promise(*bundle, at, attempt);
        Ok(HeldAllocation { slot, demand: demand.clone(), gpus, units, bundle: *bundle, used })
    }

    /// Returns the GPU instances that `demand` takes of what is free on a node: the named ones, else chosen
    /// ones.
    fn chosen(
        &self,
        slot: Slot,
        demand: &Demand,
        named: Option<u16>,
    ) -> Result<GpuAssignment, ConflictReason> {
        if self.nodes.room(slot).places <= 0 {
            return Err(ConflictReason::TooManyAllocations);
        }
        if !self.nodes.fits(slot, demand) {
            let free = self.nodes.restored(slot, &Withheld::default());
            return Err(short_of(&free, demand).expect("what does not fit falls short of something"));
        }
        let books = &self.nodes.hot(slot).gpus;
        let Some(mask) = named else {
            return Ok(books.choose(demand.gpu).expect("the node was checked to fit"));
        };
        let gpus = named_gpus(demand.gpu, mask)?;
        match gpus.instances().find(|&instance| books.free(instance) < gpus.part) {
            Some(instance) => Err(ConflictReason::InstanceTaken(instance)),
            None => Ok(gpus),
        }
    }

    /// Replaces `reason` if `demand` would fit without the reservation.
    fn or_reserved(&self, slot: Slot, demand: &Demand, reason: ConflictReason) -> ConflictReason {
        match (self.reservations.at(slot), reason) {
            (Some(there), ConflictReason::Short { .. })
                if self.nodes.fits_restored(slot, &there.aside, demand) =>
            {
                ConflictReason::Reserved(there.owner)
            }
            _ => reason,
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
        let slot = self.ledger.slot_of(id).ok_or_else(|| match self.bundles.holder(id) {
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
        attempt.evicted.insert(id, at);
        attempt.ended.extend((grace_ns == 0).then_some(id));
        if !attempt.at_once {
            self.statements.evicting.insert(id, attempt.statement);
        }
        self.nodes.hot_mut(slot).version += 1;
        Ok(Hold::Evict { allocation: id, slot, grace_ns })
    }

    /// Gives back a hold. The caller must update the books of its node.
    fn take_back(&mut self, hold: Hold) {
        match hold {
            Hold::Allocate(held) => {
                let slot = held.slot;
                self.restore(slot);
                let forgotten = is_planted(PlantedBug::AbortForgetsGpu);
                let gpus = if forgotten { GpuAssignment::NONE } else { held.gpus };
                self.nodes.give(slot, &held.demand, gpus, held.units.as_ref());
                if let Some(used) = &held.used
                    && !is_planted(PlantedBug::AbortKeepsReservationUsed)
                    && self.reservations.end_use(slot, used, Decision::Aborted)
                {
                    // The withheld amounts were already restored.
                    self.forget_reservation(slot);
                }
                self.withhold(slot);
                if !is_planted(PlantedBug::AbortKeepsBundle) {
                    self.bundles.forget(held.bundle);
                }
                self.sums.hold(slot, &held.demand, -1);
                self.sums.exceptions_changed(&self.nodes, slot);
            }
            Hold::Pipeline { slot, number } => {
                let claim = self.drop_claim(slot, number);
                self.bundles.forget(claim.bundle);
            }
            Hold::Evict { allocation, slot, .. } => {
                self.statements.evicting.remove(&allocation);
                self.nodes.hot_mut(slot).version += 1;
            }
        }
    }

    /// Aborts: restores the state before the holds, except for changes made by others since.
    pub(super) fn undo(&mut self, statement: StatementId, held: Vec<(u16, Hold)>) {
        for (_, hold) in held.into_iter().rev() {
            let slot = hold.slot();
            self.leave_hold(slot, statement, false);
            let grows = !matches!(hold, Hold::Evict { .. });
            self.take_back(hold);
            if grows {
                self.available_grew(slot);
            }
        }
    }

    /// Commits the holds. Returns the result of each operation, by index in the statement. `at_once` is as for
    /// holding.
    pub(super) fn commit(
        &mut self,
        statement: StatementId,
        held: Vec<(u16, Hold)>,
        at_once: bool,
    ) -> Vec<(u16, Granted)> {
        let mut granted = Vec::with_capacity(held.len());
        let mut claimed: BTreeSet<Slot> = BTreeSet::new();
        for (at, hold) in held {
            self.leave_hold(hold.slot(), statement, at_once);
            let came_to = match hold {
                Hold::Allocate(held) => Granted::Allocated(self.commit_allocation(held)),
                Hold::Pipeline { slot, number } => {
                    claimed.insert(slot);
                    let allocation = self.commit_claim(slot, number);
                    let node = self.nodes.hot(slot).id;
                    Granted::Pipelined { allocation, node }
                }
                Hold::Evict { allocation, grace_ns, .. } => self.commit_eviction(allocation, grace_ns),
            };
            granted.push((at, came_to));
        }
        if !claimed.is_empty() {
            self.settle_claims(claimed, &mut granted);
        }
        granted.sort_by_key(|&(at, _)| at);
        granted
    }

    /// Settles claims that were just committed. Claims whose capacity is free become allocations at once.
    fn settle_claims(&mut self, slots: BTreeSet<Slot>, granted: &mut [(u16, Granted)]) {
        for slot in slots {
            // The capacity that they were planned on may have changed since.
            self.replan_claims(slot);
            self.available_grew(slot);
        }
        let pipelined = granted.iter().filter_map(|(_, came_to)| match came_to {
            Granted::Pipelined { allocation, .. } => Some(*allocation),
            _ => None,
        });
        let mut at_once = self.grants_of(&pipelined.collect());
        for (_, came_to) in granted {
            if let Granted::Pipelined { allocation, .. } = came_to
                && let Some(placement) = at_once.remove(allocation)
            {
                *came_to = Granted::Allocated(placement);
            }
        }
    }

    fn commit_allocation(&mut self, held: HeldAllocation) -> Placement {
        let HeldAllocation { slot, demand, gpus, units, used, bundle } = held;
        if let Some(used) = &used
            && self.reservations.end_use(slot, used, Decision::Committed)
        {
            self.end_reservation(slot);
        }
        self.sums.hold(slot, &demand, -1);
        self.sums.allocate(slot, &demand);
        self.sums.placed += 1;
        let id = self.next_id(slot);
        let node = self.nodes.hot(slot).id;
        self.nodes.hot_mut(slot).version += 1;
        let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot };
        self.bundles.enter(bundle, &allocation);
        self.ledger.insert(allocation, &mut self.nodes);
        Placement { node, allocation: id, gpus, alternative: 0, units }
    }

    fn commit_eviction(&mut self, id: AllocationId, grace_ns: u64) -> Granted {
        self.statements.evicting.remove(&id);
        if grace_ns == 0 {
            // The allocation may have ended since it was held.
            let _ = self.end_with_reservations(id);
            return Granted::Ended(id);
        }
        let Some(allocation) = self.ledger.get(id) else { return Granted::Ended(id) };
        let until = Time(self.now.0.saturating_add(grace_ns));
        self.begin_release(&allocation, until);
        Granted::Releasing { allocation: id, until }
    }
}

/// Returns the instances of a mask, checked against the request.
fn named_gpus(request: GpuRequest, mask: u16) -> Result<GpuAssignment, ConflictReason> {
    let (count, part) = match request {
        GpuRequest::None => (0, 0),
        GpuRequest::Fraction(part) => (1, part),
        GpuRequest::Whole(count) => (u32::from(count), GPU_UNIT),
    };
    if mask.count_ones() != count {
        return Err(ConflictReason::Short {
            kind: ResourceKind::Gpu,
            asked: request.amount(),
            available: Amount::whole(mask.count_ones()),
        });
    }
    Ok(GpuAssignment { mask, part })
}

/// Returns the first resource of which `demand` takes more than is free, and the amount that is free.
pub(super) fn short_of(free: &FreeBooks, demand: &Demand) -> Option<ConflictReason> {
    let room = &free.room;
    let gpus = match demand.gpu {
        GpuRequest::Whole(_) => Amount::whole(u32::from(room.whole_gpus)),
        _ => Amount::from_parts(std::iter::once(u32::from(room.largest_gpu_part))),
    };
    let known = [
        (ResourceKind::Cpu, demand.cpu, room.cpu),
        (ResourceKind::Memory, demand.memory, room.memory),
        (ResourceKind::Gpu, demand.gpu.amount(), gpus),
    ];
    let custom = demand.custom().iter().map(|&(id, asked)| {
        let room = free.book(id).map_or(Amount::ZERO, |book| book.room_for(asked));
        (ResourceKind::Custom(id), asked, room)
    });
    let mut all = known.into_iter().chain(custom);
    let short = all.find(|&(_, asked, available)| asked > available)?;
    Some(ConflictReason::Short { kind: short.0, asked: short.1, available: short.2 })
}
