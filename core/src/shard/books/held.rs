//! Capacity that undecided statements hold, and what is in use on a node in all.

use std::sync::Arc;

use super::reservations::Used;
use super::{Allocation, Books, COLD, Dirty, HOT, NodeTable, short_of};
use crate::books::{ExactAmounts, RESERVED, WITHHELD};
use crate::ids::{AllocationId, BundleId, StatementId, TenantId};
use crate::index::Slot;
use crate::journal::BeginCause;
use crate::link::Decision;
use crate::node::NodeState;
use crate::planted::{PlantedBug, is_planted};
use crate::request::{LeaseTerms, Placement};
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuRequest, ResourceKind, UnitAssignments};
use crate::statement::{Allocate, ConflictReason};

/// The amounts in use on a node, summed from its allocations and holds.
#[derive(Default)]
pub(crate) struct InUse {
    /// The number of allocations.
    pub(crate) allocations: u64,
    pub(crate) allocated: ExactAmounts,
    pub(crate) releasing: ExactAmounts,
    pub(crate) held: ExactAmounts,
    pub(crate) all: ExactAmounts,
    /// An allocation that the node lists but the ledger does not find by id.
    pub(crate) lost: Option<AllocationId>,
}

/// An allocation that is created if the statement is committed.
#[derive(Clone, Debug)]
pub(crate) struct HeldAllocation {
    pub(crate) slot: Slot,
    pub(crate) tenant: TenantId,
    pub(crate) demand: Demand,
    pub(crate) gpus: GpuAssignment,
    pub(crate) units: Option<Arc<UnitAssignments>>,
    pub(crate) bundle: Option<BundleId>,
    /// The amounts that it used of a reservation.
    pub(crate) used: Option<Used>,
    pub(crate) lease: Option<LeaseTerms>,
}

impl Books {
    /// Holds the amounts of an allocation for an undecided statement. An owner's amounts come out of its reservation.
    pub(crate) fn hold(
        &mut self,
        slot: Slot,
        allocate: &Allocate,
    ) -> Result<(HeldAllocation, Dirty), ConflictReason> {
        let &Allocate { ref demand, gpus: named, owner, bundle, tenant, lease, .. } = allocate;
        let is_of_group = bundle.is_none_or(|bundle| bundle.group.tenant == tenant);
        assert!(is_of_group, "a bundle belongs to the tenant of its group");
        assert!(self.nodes.state(slot) == NodeState::Ready, "a hold on a node that takes no new work");
        let taken = if self.own(slot, owner) == RESERVED {
            self.change(slot, RESERVED, |books| {
                let gpus = books.chosen(slot, demand, named)?;
                let taken = books.nodes.take_chosen(slot, demand, gpus);
                Ok((taken, Some(books.use_up(slot, demand))))
            })
        } else {
            self.chosen(slot, demand, named).map(|gpus| {
                let take = |nodes: &mut NodeTable| nodes.take_chosen(slot, demand, gpus);
                (self.change_visible(slot, take), None)
            })
        };
        let ((gpus, units), used) = taken.map_err(|reason| self.or_reserved(slot, demand, reason))?;
        self.sums.hold(slot, demand, 1);
        self.bundles.promise(bundle);
        let held = HeldAllocation { slot, tenant, demand: demand.clone(), gpus, units, bundle, used, lease };
        Ok((held, Dirty::changed(slot)))
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
            return Err(
                short_of(&self.free(slot, 0), demand).expect("what does not fit falls short of something")
            );
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
        match (self.reservation(slot), reason) {
            (Some(there), ConflictReason::Short { .. }) if self.fits(slot, RESERVED, demand) => {
                ConflictReason::Reserved(there.owner)
            }
            _ => reason,
        }
    }

    /// Gives back held amounts after an abort.
    pub(crate) fn give_held(&mut self, held: &HeldAllocation) -> Dirty {
        let slot = held.slot;
        assert!(self.nodes.is_node(slot), "a node was removed that a statement holds of");
        let forgotten = is_planted(PlantedBug::AbortForgetsGpu);
        let gpus = if forgotten { GpuAssignment::NONE } else { held.gpus };
        self.change(slot, WITHHELD, |books| {
            books.nodes.give(slot, &held.demand, gpus, held.units.as_ref());
            if let Some(used) = &held.used
                && !is_planted(PlantedBug::AbortKeepsReservationUsed)
                && books.end_use(slot, used, Decision::Aborted)
            {
                books.forget_reservation(slot);
            }
        });
        if !is_planted(PlantedBug::AbortKeepsBundle) {
            self.bundles.forget(held.bundle);
        }
        self.sums.hold(slot, &held.demand, -1);
        self.sums.shortfall_changed(&self.nodes, slot);
        self.grew(slot)
    }

    /// Makes an allocation of held amounts. Returns the node if a reservation ended with it.
    pub(crate) fn commit_held(&mut self, held: HeldAllocation) -> (Placement, Option<Dirty>) {
        let HeldAllocation { slot, tenant, demand, gpus, units, used, bundle, lease: _ } = held;
        let is_over = used.is_some_and(|used| self.end_use(slot, &used, Decision::Committed));
        let ended = if is_over { self.end_reservation(slot) } else { None };
        self.sums.hold(slot, &demand, -1);
        self.bump_version(slot);
        let placement = self.record(slot, &demand, tenant, (gpus, units), 0);
        self.note_cause(placement.allocation, BeginCause::Committed);
        let allocation = self.ledger.get(placement.allocation).expect("what was committed is live");
        self.enter_bundle(bundle, &allocation);
        (placement, ended)
    }

    /// Notes that the holds of a node changed, so that the next view shows them. With `is_listed`, views show the
    /// holds themselves.
    pub(crate) fn touch_hold(&mut self, slot: Slot, is_listed: bool) {
        self.nodes.touch(slot, if is_listed { HOT | COLD } else { HOT });
    }

    /// Returns the amounts in use on a node, summed from its allocations and from `held`.
    pub(crate) fn in_use<'a>(
        &self,
        slot: Slot,
        held: impl Iterator<Item = (StatementId, &'a HeldAllocation)>,
    ) -> InUse {
        let mut sums = InUse::default();
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            if self.ledger.slot_of(id) != Some(slot) {
                sums.lost = Some(id);
            }
            sums.allocations += 1;
            let is_releasing = self.releasing.until(id).is_some();
            let sum = if is_releasing { &mut sums.releasing } else { &mut sums.allocated };
            for sum in [sum, &mut sums.all] {
                sum.hold(&demand, gpus, units.as_ref(), &id);
            }
        }
        for (statement, hold) in held {
            for sum in [&mut sums.held, &mut sums.all] {
                sum.hold(&hold.demand, hold.gpus, hold.units.as_ref(), &statement);
            }
        }
        sums
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
