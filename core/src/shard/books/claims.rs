//! Claims: pipelined operations that wait for capacity that is being released on a node.
//!
//! The instances of a claim are planned in advance, from what will be free, so two claims never need the same
//! ones. Capacity that becomes free on a node is withheld for its claims first, in their order. A claim becomes
//! an allocation as soon as all of its capacity is free. A claim that is no longer possible, because the node
//! shrank or a GPU became unhealthy, is planned again or ends. Claims never exceed what is free or being
//! released.

use crate::broken::{Broken, broken};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::held::HeldAmounts;
use super::ledger::Allocation;
use super::table::COLD;
use super::withhold::FreeBooks;
use super::{Books, Dirty};
use crate::books::Withheld;
use crate::ids::{AllocationId, BundleId};
use crate::index::Slot;
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
pub(crate) struct Claim {
    /// Identifies the claim while its statement is undecided.
    pub(crate) number: u64,
    /// The id of its future allocation. `None` while its statement is undecided.
    pub(crate) id: Option<AllocationId>,
    pub(crate) demand: Demand,
    pub(crate) gpus: GpuAssignment,
    pub(crate) units: Option<Arc<UnitAssignments>>,
    pub(crate) bundle: Option<BundleId>,
}

/// The claims of one node, in order, and the capacity withheld for them.
#[derive(Default)]
struct NodeClaims {
    claims: Vec<Claim>,
    withheld: Withheld,
}

/// The claims of a shard.
#[derive(Default)]
pub(crate) struct Claims {
    /// No entry is empty.
    by_slot: FixedMap<Slot, NodeClaims>,
    by_id: FixedMap<AllocationId, Slot>,
    last: u64,
    events: Vec<ClaimEvent>,
}

impl Claims {
    /// Returns the size in bytes, without the boxed parts of demands.
    pub(crate) fn bytes(&self) -> u64 {
        use crate::memory::{of_map, of_vec};
        let claims = self.by_slot.values().map(|node| of_vec(&node.claims)).sum::<u64>();
        of_map(&self.by_slot) + of_map(&self.by_id) + of_vec(&self.events) + claims
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.by_slot.len()
    }

    pub(crate) fn at(&self, slot: Slot) -> &[Claim] {
        self.by_slot.get(&slot).map_or(&[], |there| &there.claims)
    }

    pub(crate) fn withheld(&self, slot: Slot) -> Option<&Withheld> {
        self.by_slot.get(&slot).map(|there| &there.withheld)
    }

    /// Returns whether a claim has this id for its allocation.
    pub(crate) fn contains(&self, id: AllocationId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns the number of claims that are bundles.
    pub(crate) fn bundles_claimed(&self) -> usize {
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
            assert!(there.withheld == Withheld::default(), "what is withheld for claims is lost with them");
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

impl Books {
    /// Returns the outcomes of claims since the last call, in order.
    pub(crate) fn drain_claim_events(&mut self) -> std::vec::Drain<'_, ClaimEvent> {
        self.reservations.claims.events.drain(..)
    }

    /// Changes the claims of a node while nothing is withheld for them.
    fn change_claims<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Self) -> R) -> R {
        self.restore(slot);
        let changed = change(self);
        self.withhold(slot);
        changed
    }

    /// Adds a claim. It takes a place of the node.
    fn enter_claim(&mut self, slot: Slot, mut claim: Claim) -> u64 {
        self.change_claims(slot, |books| {
            let claims = &mut books.reservations.claims;
            claims.last += 1;
            claim.number = claims.last;
            claims.push(slot, claim);
            books.nodes.take_place(slot);
            books.nodes.touch(slot, COLD);
            books.reservations.claims.last
        })
    }

    /// Removes a claim and frees its place.
    fn remove_claim(&mut self, slot: Slot, is: impl Fn(&Claim) -> bool) -> Claim {
        self.change_claims(slot, |books| {
            let claim = books.reservations.claims.take(slot, is).expect("a node knows its claims");
            books.nodes.give_places(slot, 1);
            books.bundles.forget(claim.bundle);
            claim
        })
    }

    /// Returns what will be free on a node when all releasing allocations and those in `evicted` have ended,
    /// less `claimed`.
    fn future(&self, slot: Slot, evicted: impl Fn(AllocationId) -> bool, claimed: &HeldAmounts) -> FreeBooks {
        let mut leaving = HeldAmounts::default();
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            if evicted(id) || self.releasing.until(id).is_some() {
                leaving.add(&demand, gpus, units.as_ref(), &id);
            }
        }
        let none = Withheld::default();
        let withheld = self.reservations.claims.withheld(slot).unwrap_or(&none);
        let now = self.nodes.restored(slot, withheld);
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
    pub(crate) fn without_claims(&self, slot: Slot) -> Option<FreeBooks> {
        let claims = self.reservations.claims.at(slot);
        (!claims.is_empty()).then(|| self.future(slot, |_| false, &sum(claims)))
    }

    /// Plans a claim on what will be free, and returns its number. The claim has no id until its statement is
    /// committed.
    pub(crate) fn hold_claim(
        &mut self,
        slot: Slot,
        demand: &Demand,
        bundle: Option<BundleId>,
        evicted: impl Fn(AllocationId) -> bool,
    ) -> Result<(u64, Dirty), ConflictReason> {
        if self.reservations.claims.at(slot).len() >= CLAIMS_PER_NODE_MAX {
            return Err(ConflictReason::TooManyClaims);
        }
        if !self.will_have_place(slot, &evicted) {
            return Err(ConflictReason::TooManyAllocations);
        }
        let claimed = sum(self.reservations.claims.at(slot));
        let (gpus, units) = self.future(slot, evicted, &claimed).planned(demand)?;
        self.bundles.promise(bundle);
        let demand = demand.clone();
        let number = self.enter_claim(slot, Claim { number: 0, id: None, demand, gpus, units, bundle });
        self.bump_version(slot);
        Ok((number, Dirty::changed(slot)))
    }

    /// Returns whether the node has room for one more allocation once all releasing allocations and those in
    /// `evicted` have ended.
    fn will_have_place(&self, slot: Slot, evicted: impl Fn(AllocationId) -> bool) -> bool {
        let places = i64::from(self.nodes.room(slot).places);
        if places > 0 {
            return true;
        }
        let goes =
            |allocation: &Allocation| self.releasing.until(allocation.id).is_some() || evicted(allocation.id);
        places + self.ledger.of_node(slot, &self.nodes).filter(goes).count() as i64 > 0
    }

    /// Removes a claim whose statement was aborted.
    pub(crate) fn drop_claim(&mut self, slot: Slot, number: u64) -> Dirty {
        self.remove_claim(slot, |claim| claim.number == number);
        self.bump_version(slot);
        self.grew(slot)
    }

    /// Gives an id to a claim whose statement was committed.
    pub(crate) fn commit_claim(&mut self, slot: Slot, number: u64) -> AllocationId {
        let id = self.next_id(slot);
        let claims = &mut self.reservations.claims;
        let there = claims.by_slot.get_mut(&slot).expect("a claim that is held is there");
        let claim = there.claims.iter_mut().find(|claim| claim.number == number);
        claim.expect("a claim that is held is there").id = Some(id);
        claims.by_id.insert(id, slot);
        self.bump_version(slot);
        self.nodes.touch(slot, COLD);
        id
    }

    /// Settles claims that were just committed. The capacity that they were planned on may have changed since.
    pub(crate) fn settle_claims(&mut self, slot: Slot) -> Dirty {
        self.replan_claims(slot);
        self.grew(slot)
    }

    /// Takes the grants of `ids` out of the pending events. The caller that committed them reports them.
    pub(crate) fn grants_of(&mut self, ids: &BTreeSet<AllocationId>) -> FixedMap<AllocationId, Placement> {
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
    pub(crate) fn claim_images(&self, slot: Slot) -> Box<[ClaimImage]> {
        let image = |claim: &Claim| {
            let Claim { id, demand, gpus, units, .. } = claim;
            Some(ClaimImage { id: (*id)?, demand: demand.clone(), gpus: *gpus, units: units.clone() })
        };
        self.reservations.claims.at(slot).iter().filter_map(image).collect()
    }

    /// Ends a claim at its caller's request. Returns `None` if there is none.
    pub(super) fn end_claim(&mut self, id: AllocationId) -> Option<Dirty> {
        let &slot = self.reservations.claims.by_id.get(&id)?;
        self.remove_claim(slot, |claim| claim.id == Some(id));
        self.bump_version(slot);
        Some(self.grew(slot))
    }

    /// Ends all claims of a node that is about to be removed.
    pub(crate) fn end_claims(&mut self, slot: Slot) {
        let ids: Vec<_> = self.reservations.claims.at(slot).iter().filter_map(|claim| claim.id).collect();
        for id in ids {
            self.remove_claim(slot, |claim| claim.id == Some(id));
            self.reservations.claims.events.push(ClaimEvent::Ended(id));
        }
    }

    /// Withholds free capacity for the claims of a node.
    pub(super) fn withhold_claims(&mut self, slot: Slot) {
        if is_planted(PlantedBug::ClaimNotWithheld) {
            return;
        }
        if let Some(there) = self.reservations.claims.by_slot.get_mut(&slot) {
            let wanted = sum(&there.claims);
            there.withheld = self.nodes.withhold_exactly(slot, &wanted);
        }
    }

    /// Puts the capacity withheld for the claims of a node back into its books, temporarily.
    pub(super) fn restore_claims(&mut self, slot: Slot) {
        if let Some(there) = self.reservations.claims.by_slot.get_mut(&slot) {
            self.nodes.put_back(slot, &std::mem::take(&mut there.withheld));
            // Views must show any change made while the capacity is restored.
            self.nodes.touch(slot, COLD);
        }
    }

    /// Turns claims into allocations, in order, if all of their capacity is free.
    pub(super) fn grant_claims(&mut self, slot: Slot) {
        if self.reservations.claims.at(slot).is_empty() {
            return;
        }
        self.withhold_again(slot);
        let withheld = self.reservations.claims.withheld(slot).cloned().unwrap_or_default();
        let mut left = self.nodes.restored(slot, &withheld);
        let mut ready = Vec::new();
        for claim in self.reservations.claims.at(slot) {
            // Capacity that an earlier claim waits for is not available to a later one.
            if left.claim(&claim.demand, claim.gpus, claim.units.as_ref())
                && let Some(id) = claim.id
            {
                ready.push(id);
            }
        }
        self.change_claims(slot, |books| ready.into_iter().for_each(|id| books.grant(slot, id)));
        if is_planted(PlantedBug::GrantedClaimUnseen)
            && let Some(dirty) = self.nodes.dirty_mut()
        {
            dirty.forget(slot);
        }
    }

    /// Turns one claim into an allocation, while nothing is withheld.
    fn grant(&mut self, slot: Slot, id: AllocationId) {
        let claim = self.reservations.claims.take(slot, |claim| claim.id == Some(id));
        let Claim { demand, gpus, units, bundle, .. } = claim.expect("just listed");
        // The allocation takes the place of the claim.
        self.nodes.give_places(slot, 1);
        self.nodes.take_held(slot, &demand, gpus, units.as_ref());
        self.sums.allocate(slot, &demand);
        self.sums.placed += 1;
        let node = self.nodes.hot(slot).id;
        self.bump_version(slot);
        let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot };
        self.enter_bundle(bundle, &allocation);
        self.ledger.insert(allocation, &mut self.nodes);
        let placement = Placement { node, allocation: id, gpus, alternative: 0, units };
        self.reservations.claims.events.push(ClaimEvent::Granted(placement));
    }

    /// Plans the claims of a node again after the node may have lost capacity. Claims that it can no longer
    /// hold move to other instances or end. Claims of undecided statements stay as they are. Returns whether
    /// any claim changed.
    pub(super) fn replan_claims(&mut self, slot: Slot) -> bool {
        if self.reservations.claims.at(slot).is_empty() {
            return false;
        }
        let changed = self.change_claims(slot, |books| books.replan(slot));
        self.nodes.hot_mut(slot).version += u64::from(changed);
        changed
    }

    /// Plans the claims of a node again, while nothing is withheld.
    fn replan(&mut self, slot: Slot) -> bool {
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
        changed
    }

    /// Returns the durable claims of a node. Claims of undecided statements are not durable.
    pub(crate) fn claim_records(&self, slot: Slot) -> Vec<ClaimRecord> {
        let node = self.nodes.hot(slot).id;
        let claims = self.reservations.claims.at(slot).iter();
        let records = claims.filter_map(|claim| {
            let Claim { id, demand, gpus, units, bundle, .. } = claim.clone();
            Some(ClaimRecord { id: id?, node, demand, gpus, units, bundle })
        });
        records.collect()
    }

    /// Restores a claim from the durable state.
    pub(crate) fn resume_claim(&mut self, record: ClaimRecord) -> Dirty {
        let ClaimRecord { id, node, demand, gpus, units, bundle } = record;
        let slot = self.nodes.slot(node).expect("a claimed node is in its partition");
        self.bundles.promise(bundle);
        self.enter_claim(slot, Claim { number: 0, id: Some(id), demand, gpus, units, bundle });
        Dirty::changed(slot)
    }

    /// Returns the amounts claimed on a node, including claims of undecided statements.
    pub(crate) fn claimed(&self, slot: Slot) -> HeldAmounts {
        sum(self.reservations.claims.at(slot))
    }

    /// Checks that the capacity withheld for claims is what they claim, as far as it is free. Also checks that
    /// no claim waits although its capacity is free.
    pub(crate) fn check_claims(&self) -> Result<(), Broken> {
        let claims = &self.reservations.claims;
        let ids: usize =
            claims.by_slot.values().flat_map(|there| &there.claims).filter(|c| c.id.is_some()).count();
        if ids != claims.by_id.len() {
            return Err(broken!("{ids} claims have an id, {} are found by it", claims.by_id.len()));
        }
        for (&slot, there) in &claims.by_slot {
            let node = self.nodes.hot(slot).id;
            if there.claims.is_empty() {
                return Err(broken!("node {node} has no claims, and is among those that have"));
            }
            let mut left = self.future(slot, |_| false, &HeldAmounts::default());
            let mut free = self.nodes.restored(slot, &there.withheld);
            let visible = self.nodes.room(slot);
            let wanted = sum(&there.claims);
            let withheld = &there.withheld;
            let wrong = |wanted: Amount, withheld: Amount, visible: Amount| {
                withheld > wanted || (withheld < wanted && !visible.is_zero())
            };
            if wrong(wanted.cpu, withheld.cpu, visible.cpu)
                || wrong(wanted.memory, withheld.memory, visible.memory)
            {
                return Err(broken!("node {node}: {withheld:?} is withheld for claims with {visible:?}"));
            }
            for instance in 0..GPU_INSTANCES_MAX {
                let wanted = wanted.gpus[instance];
                let withheld = u32::from(withheld.gpus[instance]);
                let free = self.nodes.hot(slot).gpus.free(instance as u8);
                if withheld > wanted || (withheld < wanted && free > 0) || wanted > u32::from(GPU_UNIT) {
                    return Err(broken!(
                        "node {node}, gpu instance {instance}: {withheld} of {wanted} withheld"
                    ));
                }
            }
            for claim in &there.claims {
                let demand = &claim.demand;
                let gpus = claim.gpus;
                let units = claim.units.as_ref();
                if claim.id.is_some() && !left.covers_claim(demand, gpus, units) {
                    return Err(broken!("node {node}: {claim:?} is claimed beyond what will be free"));
                }
                left.claim(demand, gpus, units);
                if free.claim(demand, gpus, units) && claim.id.is_some() {
                    return Err(broken!("node {node}: {claim:?} waits although its own is there"));
                }
            }
        }
        Ok(())
    }
}
