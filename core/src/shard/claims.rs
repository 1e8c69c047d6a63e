//! Claims: pipelined operations that wait for capacity that is being released on a node.
//!
//! The instances of a claim are planned in advance, from what will be free, so two claims never need the same
//! ones. Capacity that becomes free on a node is withheld for its claims first, in their order. A claim becomes
//! an allocation as soon as all of its capacity is free. A claim that is no longer possible, because the node
//! shrank or a GPU became unhealthy, is planned again or ends. Claims never exceed what is free or being
//! released.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::audit::HeldAmounts;
use super::ledger::Allocation;
use super::table::COLD;
use super::withhold::FreeBooks;
use super::{Shard, Slot};
use crate::books::Withheld;
use crate::ids::{AllocationId, BundleId};
use crate::limits::{CLAIMS_PER_NODE_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::planted::{PlantedBug, is_planted};
use crate::request::Placement;
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, GpuBooks, UnitAssignments, UnitBooks};
use crate::state::ClaimRecord;
use crate::statement::ConflictReason;
use crate::view::ClaimImage;

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEvent {
    /// The claim became an allocation, under the promised id.
    Granted(Placement),
    /// The claim ended: its node was removed or can no longer hold it.
    Ended(AllocationId),
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// Identifies the claim while its statement is undecided.
    pub(super) number: u64,
    /// The id of its future allocation. `None` while its statement is undecided.
    pub(super) id: Option<AllocationId>,
    pub(super) demand: Demand,
    pub(super) gpus: GpuAssignment,
    pub(super) units: Option<Arc<UnitAssignments>>,
    pub(super) bundle: Option<BundleId>,
}

/// The claims of one node, in order, and the capacity withheld for them.
#[derive(Default)]
struct NodeClaims {
    claims: Vec<Claim>,
    aside: Withheld,
}

/// The claims of a shard.
#[derive(Default)]
pub(super) struct Claims {
    /// No entry is empty.
    by_slot: FixedMap<Slot, NodeClaims>,
    by_id: FixedMap<AllocationId, Slot>,
    last: u64,
    events: Vec<ClaimEvent>,
}

impl Claims {
    /// Returns the size in bytes, without the boxed parts of demands.
    pub(super) fn bytes(&self) -> u64 {
        use crate::memory::{of_map, of_vec};
        let claims = self.by_slot.values().map(|node| of_vec(&node.claims)).sum::<u64>();
        of_map(&self.by_slot) + of_map(&self.by_id) + of_vec(&self.events) + claims
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.by_slot.len()
    }

    pub(super) fn at(&self, slot: Slot) -> &[Claim] {
        self.by_slot.get(&slot).map_or(&[], |there| &there.claims)
    }

    pub(super) fn aside(&self, slot: Slot) -> Option<&Withheld> {
        self.by_slot.get(&slot).map(|there| &there.aside)
    }

    /// Returns whether a claim has this id for its allocation.
    pub(super) fn contains(&self, id: AllocationId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns the number of claims that are bundles.
    pub(super) fn bundles_claimed(&self) -> usize {
        self.by_slot.values().flat_map(|there| &there.claims).filter(|claim| claim.bundle.is_some()).count()
    }

    fn push(&mut self, slot: Slot, claim: Claim) {
        self.by_id.extend(claim.id.map(|id| (id, slot)));
        self.by_slot.entry(slot).or_default().claims.push(claim);
    }

    /// Removes a claim. Nothing may be withheld for claims on its node at that time.
    fn take(&mut self, slot: Slot, is: impl Fn(&Claim) -> bool) -> Option<Claim> {
        let there = self.by_slot.get_mut(&slot)?;
        let at = there.claims.iter().position(is)?;
        let claim = there.claims.remove(at);
        if there.claims.is_empty() {
            assert!(there.aside == Withheld::default(), "what is set aside for claims is lost with them");
            self.by_slot.remove(&slot);
        }
        if let Some(id) = claim.id {
            self.by_id.remove(&id);
        }
        Some(claim)
    }
}

fn sum<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> HeldAmounts {
    let mut sum = HeldAmounts::default();
    for claim in claims {
        sum.add(&claim.demand, claim.gpus, claim.units.as_ref(), &"a claim");
    }
    sum
}

impl Shard {
    /// Returns the outcomes of claims since the last call, in order.
    pub fn drain_claim_events(&mut self) -> std::vec::Drain<'_, ClaimEvent> {
        self.reservations.claims.events.drain(..)
    }

    /// Returns what will be free on a node when all releasing allocations and those in `evicted` have ended,
    /// less `claimed`.
    fn future(&self, slot: Slot, evicted: impl Fn(AllocationId) -> bool, claimed: &HeldAmounts) -> FreeBooks {
        let mut leaving = HeldAmounts::default();
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            if evicted(id) || self.is_releasing(id) {
                leaving.add(&demand, gpus, units.as_ref(), &id);
            }
        }
        let none = Withheld::default();
        let aside = self.reservations.claims.aside(slot).unwrap_or(&none);
        let now = self.nodes.restored(slot, aside);
        let cold = self.nodes.cold(slot);
        let then = |free: Amount, leaving: Amount, short: Amount, claimed: Amount| {
            free.plus(leaving).saturating_minus(short.plus(claimed))
        };
        let mut gpus = GpuBooks::default();
        let ill: Vec<u8> = self.nodes.unhealthy(slot).iter().map(|&(instance, _)| instance).collect();
        for instance in (0..GPU_INSTANCES_MAX as u8).filter(|instance| !ill.contains(instance)) {
            let at = usize::from(instance);
            let free = u32::from(now.gpus.free(instance)) + leaving.gpus[at];
            let free = free.saturating_sub(cold.gpu_shortfall[at] + claimed.gpus[at]);
            gpus.set_free(instance, u16::try_from(free).expect("a device and no more"));
        }
        let mut room = now.room;
        room.cpu = then(room.cpu, leaving.cpu, cold.cpu_shortfall, claimed.cpu);
        room.memory = then(room.memory, leaving.memory, cold.memory_shortfall, claimed.memory);
        room.follow(&gpus);
        let mut custom = now.custom;
        for book in &mut custom {
            let of = |held: &HeldAmounts| held.custom.get(&book.id).copied().unwrap_or_default();
            if let Some(units) = &book.units {
                let parts: Vec<u16> = units
                    .iter()
                    .map(|(unit, free, short)| {
                        let of = |held: &HeldAmounts| held.units.get(&(book.id, unit)).copied().unwrap_or(0);
                        let free = (u32::from(free) + of(&leaving)).saturating_sub(short + of(claimed));
                        u16::try_from(free).expect("a unit and no more")
                    })
                    .collect();
                let units = UnitBooks::of_parts(&parts);
                book.available = units.free();
                book.units = Some(Box::new(units));
            } else {
                book.available = then(book.available, of(&leaving), book.shortfall, of(claimed));
            }
        }
        FreeBooks { room, gpus, custom }
    }

    /// Returns what a reservation of the node may withhold: what will be free, less all claims. `None` if there
    /// are no claims. Within this limit, the owner and the planned claims never take capacity that the other
    /// needs. Nothing may be withheld for the reservation during the call.
    pub(super) fn without_claims(&self, slot: Slot) -> Option<FreeBooks> {
        let claims = self.reservations.claims.at(slot);
        (!claims.is_empty()).then(|| self.future(slot, |_| false, &sum(claims)))
    }

    /// Plans a claim on what will be free, and returns its number.
    pub(super) fn hold_claim(
        &mut self,
        slot: Slot,
        demand: &Demand,
        bundle: Option<BundleId>,
        evicted: impl Fn(AllocationId) -> bool,
    ) -> Result<u64, ConflictReason> {
        if self.reservations.claims.at(slot).len() >= CLAIMS_PER_NODE_MAX {
            return Err(ConflictReason::TooManyClaims);
        }
        if !self.will_have_place(slot, &evicted) {
            return Err(ConflictReason::TooManyAllocations);
        }
        let claimed = sum(self.reservations.claims.at(slot));
        let (gpus, units) = self.future(slot, evicted, &claimed).planned(demand)?;
        self.restore(slot);
        let claims = &mut self.reservations.claims;
        claims.last += 1;
        let number = claims.last;
        claims.push(slot, Claim { number, id: None, demand: demand.clone(), gpus, units, bundle });
        self.nodes.take_place(slot);
        self.withhold(slot);
        self.nodes.hot_mut(slot).version += 1;
        Ok(number)
    }

    /// Returns whether the node has room for one more allocation once all releasing allocations and those in
    /// `evicted` have ended.
    fn will_have_place(&self, slot: Slot, evicted: impl Fn(AllocationId) -> bool) -> bool {
        let places = i64::from(self.nodes.room(slot).places);
        if places > 0 {
            return true;
        }
        let goes = |allocation: &Allocation| self.is_releasing(allocation.id) || evicted(allocation.id);
        places + self.ledger.of_node(slot, &self.nodes).filter(goes).count() as i64 > 0
    }

    /// Removes a claim whose statement was aborted.
    pub(super) fn drop_claim(&mut self, slot: Slot, number: u64) -> Claim {
        self.restore(slot);
        let claim = self.reservations.claims.take(slot, |claim| claim.number == number);
        self.nodes.give_places(slot, 1);
        self.withhold(slot);
        self.nodes.hot_mut(slot).version += 1;
        claim.expect("a claim that is held is there")
    }

    /// Gives an id to a claim whose statement was committed.
    pub(super) fn commit_claim(&mut self, slot: Slot, number: u64) -> AllocationId {
        let id = self.next_id(slot);
        let claims = &mut self.reservations.claims;
        let there = claims.by_slot.get_mut(&slot).expect("a claim that is held is there");
        let claim = there.claims.iter_mut().find(|claim| claim.number == number);
        claim.expect("a claim that is held is there").id = Some(id);
        claims.by_id.insert(id, slot);
        self.nodes.hot_mut(slot).version += 1;
        self.nodes.touch(slot, COLD);
        id
    }

    /// Takes the grants of `ids` out of the pending events. The caller that committed them reports them.
    pub(super) fn grants_of(&mut self, ids: &BTreeSet<AllocationId>) -> FixedMap<AllocationId, Placement> {
        let mut granted = FixedMap::default();
        self.reservations.claims.events.retain(|event| match event {
            ClaimEvent::Granted(placement) if ids.contains(&placement.allocation) => {
                granted.insert(placement.allocation, placement.clone());
                false
            }
            _ => true,
        });
        granted
    }

    /// Returns the claims of a node as views show them.
    pub(super) fn claim_images(&self, slot: Slot) -> Box<[ClaimImage]> {
        let image = |claim: &Claim| {
            let Claim { id, demand, gpus, units, .. } = claim;
            Some(ClaimImage { id: (*id)?, demand: demand.clone(), gpus: *gpus, units: units.clone() })
        };
        self.reservations.claims.at(slot).iter().filter_map(image).collect()
    }

    /// Ends a claim at its caller's request. Returns false if there is none.
    pub(super) fn end_claim(&mut self, id: AllocationId) -> bool {
        let Some(&slot) = self.reservations.claims.by_id.get(&id) else { return false };
        self.restore(slot);
        let claim = self.reservations.claims.take(slot, |claim| claim.id == Some(id));
        self.nodes.give_places(slot, 1);
        self.withhold(slot);
        self.nodes.hot_mut(slot).version += 1;
        self.bundles.forget(claim.expect("a claim is known to its node").bundle);
        self.available_grew(slot);
        self.statements_changed();
        true
    }

    /// Ends all claims of a node that is about to be removed.
    pub(super) fn end_claims(&mut self, slot: Slot) {
        let ids: Vec<_> = self.reservations.claims.at(slot).iter().filter_map(|claim| claim.id).collect();
        for id in ids {
            self.restore(slot);
            let claim = self.reservations.claims.take(slot, |claim| claim.id == Some(id));
            self.nodes.give_places(slot, 1);
            self.withhold(slot);
            self.bundles.forget(claim.expect("just listed").bundle);
            self.reservations.claims.events.push(ClaimEvent::Ended(id));
        }
        self.statements_changed();
    }

    /// Withholds free capacity for the claims of a node.
    pub(super) fn withhold_claims(&mut self, slot: Slot) {
        if is_planted(PlantedBug::ClaimNotSetAside) {
            return;
        }
        if let Some(there) = self.reservations.claims.by_slot.get_mut(&slot) {
            let wanted = sum(&there.claims);
            there.aside = self.nodes.withhold_exactly(slot, &wanted);
        }
    }

    /// Puts the capacity withheld for the claims of a node back into its books, temporarily.
    pub(super) fn restore_claims(&mut self, slot: Slot) {
        if let Some(there) = self.reservations.claims.by_slot.get_mut(&slot) {
            self.nodes.put_back(slot, &std::mem::take(&mut there.aside));
            // Views must show any change made while the capacity is restored.
            self.nodes.touch(slot, COLD);
        }
    }

    /// Turns claims into allocations, in order, if all of their capacity is free. The caller updates the books.
    pub(super) fn grant_claims(&mut self, slot: Slot) {
        if self.reservations.claims.at(slot).is_empty() {
            return;
        }
        self.restore(slot);
        self.withhold(slot);
        let aside = self.reservations.claims.aside(slot).cloned().unwrap_or_default();
        let mut left = self.nodes.restored(slot, &aside);
        let mut ready = Vec::new();
        for claim in self.reservations.claims.at(slot) {
            // Capacity that an earlier claim waits for is not available to a later one.
            if left.claim(&claim.demand, claim.gpus, claim.units.as_ref())
                && let Some(id) = claim.id
            {
                ready.push(id);
            }
        }
        self.restore(slot);
        for id in ready {
            let claim = self.reservations.claims.take(slot, |claim| claim.id == Some(id));
            let Claim { demand, gpus, units, bundle, .. } = claim.expect("just listed");
            // The allocation takes the place of the claim.
            self.nodes.give_places(slot, 1);
            self.nodes.take_held(slot, &demand, gpus, units.as_ref());
            self.sums.allocate(slot, &demand);
            self.sums.placed += 1;
            let node = self.nodes.hot(slot).id;
            self.nodes.hot_mut(slot).version += 1;
            let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot };
            self.bundles.enter(bundle, &allocation);
            self.ledger.insert(allocation, &mut self.nodes);
            let placement = Placement { node, allocation: id, gpus, alternative: 0, units };
            self.reservations.claims.events.push(ClaimEvent::Granted(placement));
        }
        self.withhold(slot);
        if is_planted(PlantedBug::GrantedClaimUnseen)
            && let Some(dirty) = self.nodes.dirty_mut()
        {
            dirty.forget(slot);
        }
        self.statements_changed();
    }

    /// Plans the claims of a node again after the node may have lost capacity. Claims that it can no longer
    /// hold move to other instances or end. Claims of undecided statements stay as they are. Returns whether
    /// any claim changed.
    pub(super) fn replan_claims(&mut self, slot: Slot) -> bool {
        if self.reservations.claims.at(slot).is_empty() {
            return false;
        }
        self.restore(slot);
        let mut left = self.future(slot, |_| false, &HeldAmounts::default());
        let claims = self.reservations.claims.at(slot).to_vec();
        let mut ended = Vec::new();
        let mut changed = false;
        for claim in claims {
            let own = left.covers_claim(&claim.demand, claim.gpus, claim.units.as_ref());
            let Some(id) = claim.id.filter(|_| !own) else {
                left.claim(&claim.demand, claim.gpus, claim.units.as_ref());
                continue;
            };
            changed = true;
            let Ok((gpus, units)) = left.planned(&claim.demand) else {
                ended.push(id);
                continue;
            };
            left.claim(&claim.demand, gpus, units.as_ref());
            let there = self.reservations.claims.by_slot.get_mut(&slot).expect("its claims were listed");
            let moved = there.claims.iter_mut().find(|known| known.id == Some(id));
            let moved = moved.expect("its claims were listed");
            (moved.gpus, moved.units) = (gpus, units);
        }
        for id in ended {
            let claim = self.reservations.claims.take(slot, |claim| claim.id == Some(id));
            self.nodes.give_places(slot, 1);
            self.bundles.forget(claim.expect("just listed").bundle);
            self.reservations.claims.events.push(ClaimEvent::Ended(id));
        }
        self.withhold(slot);
        self.nodes.hot_mut(slot).version += u64::from(changed);
        self.statements_changed();
        changed
    }

    /// Returns the durable claims of a node. Claims of undecided statements are not durable.
    pub(super) fn claim_records(&self, slot: Slot) -> Vec<ClaimRecord> {
        let node = self.nodes.hot(slot).id;
        let claims = self.reservations.claims.at(slot).iter();
        let records = claims.filter_map(|claim| {
            let Claim { id, demand, gpus, units, bundle, .. } = claim.clone();
            Some(ClaimRecord { id: id?, node, demand, gpus, units, bundle })
        });
        records.collect()
    }

    /// Restores a claim from the durable state.
    pub(super) fn resume_claim(&mut self, record: ClaimRecord) {
        let ClaimRecord { id, node, demand, gpus, units, bundle } = record;
        let slot = self.nodes.slot(node).expect("a claimed node is in its partition");
        self.restore(slot);
        self.bundles.promise(bundle);
        let claims = &mut self.reservations.claims;
        claims.last += 1;
        let number = claims.last;
        claims.push(slot, Claim { number, id: Some(id), demand, gpus, units, bundle });
        self.nodes.take_place(slot);
        self.nodes.touch(slot, COLD);
        self.withhold(slot);
        self.follow_books(slot);
    }

    /// Returns the amounts claimed on a node, including claims of undecided statements.
    pub(super) fn claimed(&self, slot: Slot) -> HeldAmounts {
        sum(self.reservations.claims.at(slot))
    }

    /// Checks that the capacity withheld for claims is what they claim, as far as it is free. Also checks that
    /// no claim waits although its capacity is free.
    pub(super) fn check_claims(&self) -> Result<(), String> {
        let claims = &self.reservations.claims;
        let ids: usize =
            claims.by_slot.values().flat_map(|there| &there.claims).filter(|c| c.id.is_some()).count();
        if ids != claims.by_id.len() {
            return Err(format!("{ids} claims have an id, {} are found by it", claims.by_id.len()));
        }
        for (&slot, there) in &claims.by_slot {
            let node = self.nodes.hot(slot).id;
            if there.claims.is_empty() {
                return Err(format!("node {node} has no claims, and is among those that have"));
            }
            let mut left = self.future(slot, |_| false, &HeldAmounts::default());
            let mut free = self.nodes.restored(slot, &there.aside);
            let visible = self.nodes.room(slot);
            let wanted = sum(&there.claims);
            let aside = &there.aside;
            let wrong = |wanted: Amount, aside: Amount, visible: Amount| {
                aside > wanted || (aside < wanted && !visible.is_zero())
            };
            if wrong(wanted.cpu, aside.cpu, visible.cpu) || wrong(wanted.memory, aside.memory, visible.memory)
            {
                return Err(format!("node {node}: {aside:?} is withheld for claims with {visible:?}"));
            }
            for instance in 0..GPU_INSTANCES_MAX {
                let wanted = wanted.gpus[instance];
                let aside = u32::from(aside.gpus[instance]);
                let free = self.nodes.hot(slot).gpus.free(instance as u8);
                if aside > wanted || (aside < wanted && free > 0) || wanted > u32::from(GPU_UNIT) {
                    return Err(format!(
                        "node {node}, gpu instance {instance}: {aside} of {wanted} set aside"
                    ));
                }
            }
            for claim in &there.claims {
                let demand = &claim.demand;
                let gpus = claim.gpus;
                let units = claim.units.as_ref();
                if claim.id.is_some() && !left.covers_claim(demand, gpus, units) {
                    return Err(format!("node {node}: {claim:?} is claimed beyond what will be free"));
                }
                left.claim(demand, gpus, units);
                if free.claim(demand, gpus, units) && claim.id.is_some() {
                    return Err(format!("node {node}: {claim:?} waits although its own is there"));
                }
            }
        }
        Ok(())
    }
}
