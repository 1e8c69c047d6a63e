//! Claims: pipelined operations that wait for capacity that is being released on a node.
//!
//! The instances of a claim are planned in advance, from what will be free, so two claims never need the same
//! ones. Capacity that becomes free on a node is withheld for its claims first, in their order. A claim becomes
//! an allocation as soon as all of its capacity is withheld. A claim that is no longer possible, because the node
//! shrank or a GPU became unhealthy, is planned again or ends. Claims never exceed what is free or being
//! released.

use crate::broken::{Broken, broken};
use std::collections::BTreeSet;

use super::ledger::Allocation;
use super::table::COLD;
use super::{Books, Dirty, FreeBooks, shortfall_of};
use crate::books::{CLAIMED, Cause, Claim, Entry, ExactAmounts, WITHHELD};
use crate::ids::{AllocationId, BundleId, TenantId};
use crate::index::Slot;
use crate::journal::BeginCause;
use crate::limits::CLAIMS_PER_NODE_MAX;
use crate::map::FixedMap;
use crate::node::NodeState;
use crate::planted::{PlantedBug, is_planted};
use crate::request::Placement;
use crate::resource::{Amount, Demand, GPU_UNIT};
use crate::state::ClaimRecord;
use crate::statement::ConflictReason;
use crate::view::AllocationView;

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEvent {
    /// The claim became an allocation, under the promised id.
    Granted(Placement),
    /// The claim ended: its node was removed or can no longer hold it.
    Ended(AllocationId),
}

/// The ids and the outcomes of the claims of a shard.
#[derive(Default)]
pub(crate) struct Claims {
    /// The nodes of the claims that have ids.
    pub(super) by_id: FixedMap<AllocationId, Slot>,
    events: Vec<ClaimEvent>,
}

impl Claims {
    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        crate::memory::of_map(&self.by_id) + crate::memory::of_vec(&self.events)
    }
}

fn claim_of(entry: &Entry) -> Option<&Claim> {
    if let Cause::Claim(claim) = &entry.cause { Some(claim) } else { None }
}

impl Books {
    /// Returns the outcomes of claims since the last call, in order.
    pub(crate) fn drain_claim_events(&mut self) -> std::vec::Drain<'_, ClaimEvent> {
        self.claims.events.drain(..)
    }

    /// Returns the claims of a node, in order.
    pub(crate) fn claims(&self, slot: Slot) -> impl Iterator<Item = &Claim> {
        self.entries(slot).iter().filter_map(claim_of)
    }

    fn claim_mut(&mut self, slot: Slot, is: impl Fn(&Claim) -> bool) -> &mut Claim {
        let claim = self.causes_mut(slot).find_map(|cause| match cause {
            Cause::Claim(claim) if is(claim) => Some(claim),
            _ => None,
        });
        claim.expect("a node knows its claims")
    }

    /// Returns the number of claims that are bundles.
    pub(super) fn bundles_claimed(&self) -> usize {
        self.entries.iter().filter_map(claim_of).filter(|claim| claim.bundle.is_some()).count()
    }

    /// Adds a claim. It takes a place of the node.
    fn enter_claim(&mut self, slot: Slot, mut claim: Claim) -> u64 {
        let number = self.entries.next_number();
        claim.number = number;
        let is_live = claim.id.is_some_and(|id| self.is_live(id));
        assert!(!is_live, "{claim:?} is an allocation already");
        self.change(slot, WITHHELD, |books| {
            books.enter(slot, Entry::new(Cause::Claim(claim)));
            books.nodes.take_place(slot);
        });
        number
    }

    /// Takes out a claim and frees its place, while nothing is withheld.
    fn take_claim(&mut self, slot: Slot, is: impl Fn(&Claim) -> bool) -> Claim {
        let taken = self.leave(slot, |cause| matches!(cause, Cause::Claim(claim) if is(claim)));
        let Some(Cause::Claim(claim)) = taken else { panic!("slot {slot} does not know its claim") };
        self.nodes.give_places(slot, 1);
        claim
    }

    /// Ends a claim.
    fn remove_claim(&mut self, slot: Slot, is: impl Fn(&Claim) -> bool) {
        self.change(slot, WITHHELD, |books| {
            let claim = books.take_claim(slot, is);
            books.bundles.forget(claim.bundle);
        });
    }

    /// Returns what will be free on a node when all releasing allocations and those in `evicted` have ended,
    /// less `claimed`.
    fn future(
        &self,
        slot: Slot,
        evicted: impl Fn(AllocationId) -> bool,
        claimed: &ExactAmounts,
    ) -> FreeBooks {
        let mut leaving = ExactAmounts::default();
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            if evicted(id) || self.releasing.until(id).is_some() {
                leaving.hold(&demand, gpus, units.as_ref(), &id);
            }
        }
        let mut taken = shortfall_of(&self.nodes, slot);
        taken.add(claimed);
        let then = |free: Amount, leaving: Amount, taken: Amount| free.plus(leaving).saturating_minus(taken);
        let part_then = |free: u16, leaving: u32, taken: u32| {
            u16::try_from((u32::from(free) + leaving).saturating_sub(taken))
                .expect("one instance and no more")
        };
        let mut free = self.free(slot, CLAIMED);
        free.room.cpu = then(free.room.cpu, leaving.cpu, taken.cpu);
        free.room.memory = then(free.room.memory, leaving.memory, taken.memory);
        for (instance, (&leaving, &taken)) in (0u8..).zip(leaving.gpus.iter().zip(&taken.gpus)) {
            free.gpus.set_free(instance, part_then(free.gpus.free(instance), leaving, taken));
        }
        self.unhealthy(slot).iter().for_each(|&(instance, _)| free.gpus.set_free(instance, 0));
        free.room.follow(&free.gpus);
        for book in &mut free.custom {
            let id = book.id;
            let Some(units) = &mut book.units else {
                book.available = then(book.available, leaving.of(id), taken.of(id));
                continue;
            };
            for unit in 0..units.iter().count() as u8 {
                let part = part_then(units.free_of(unit), leaving.of_unit(id, unit), taken.of_unit(id, unit));
                units.set_free(unit, part);
            }
            book.available = units.free();
        }
        free
    }

    /// Returns what a reservation of the node may withhold: what will be free, less all claims. `None` if there
    /// are no claims. Within this limit, the owner and the planned claims never take capacity that the other
    /// needs. Nothing may be withheld for the reservation during the call.
    pub(super) fn without_claims(&self, slot: Slot) -> Option<FreeBooks> {
        let is_claimed = self.nodes.hot(slot).withheld & CLAIMED != 0;
        is_claimed.then(|| self.future(slot, |_| false, &self.claimed(slot)))
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
        assert!(self.nodes.state(slot) == NodeState::Ready, "a claim on a node that takes no new work");
        if self.claims(slot).count() >= CLAIMS_PER_NODE_MAX {
            return Err(ConflictReason::TooManyClaims);
        }
        if !self.will_have_place(slot, &evicted) {
            return Err(ConflictReason::TooManyAllocations);
        }
        let (gpus, units) = self.future(slot, evicted, &self.claimed(slot)).planned(demand)?;
        assert!(gpus.units() == demand.gpu.units(), "a claim plans other GPUs than it asks");
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

    /// Gives an id to a claim whose statement was committed. Its allocation will belong to `tenant`.
    pub(crate) fn commit_claim(&mut self, slot: Slot, number: u64, tenant: TenantId) -> AllocationId {
        let id = self.next_id(slot, tenant);
        let before = self.claim_mut(slot, |claim| claim.number == number).id.replace(id);
        assert!(before.is_none(), "claim {number} has an id already");
        let before = self.claims.by_id.insert(id, slot);
        assert!(before.is_none(), "claim {id} is granted twice");
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
        self.claims.events.retain(|event| match event {
            ClaimEvent::Granted(placement) if ids.contains(&placement.allocation) => {
                let before = granted.insert(placement.allocation, placement.clone());
                assert!(before.is_none(), "a claim is granted twice");
                false
            }
            _ => true,
        });
        granted
    }

    /// Returns the claims of a node as views show them.
    pub(crate) fn claim_images(&self, slot: Slot) -> Box<[AllocationView]> {
        let image = |claim: &Claim| {
            let Claim { id, demand, gpus, units, .. } = claim;
            Some(AllocationView { id: (*id)?, demand: demand.clone(), gpus: *gpus, units: units.clone() })
        };
        self.claims(slot).filter_map(image).collect()
    }

    /// Ends a claim at its caller's request. Returns `None` if there is none.
    pub(super) fn end_claim(&mut self, id: AllocationId) -> Option<Dirty> {
        let &slot = self.claims.by_id.get(&id)?;
        self.remove_claim(slot, |claim| claim.id == Some(id));
        self.bump_version(slot);
        Some(self.grew(slot))
    }

    /// Ends all claims of a node that is about to be removed.
    pub(crate) fn end_claims(&mut self, slot: Slot) {
        let ids: Vec<_> = self.claims(slot).filter_map(|claim| claim.id).collect();
        for id in ids {
            self.remove_claim(slot, |claim| claim.id == Some(id));
            self.claims.events.push(ClaimEvent::Ended(id));
        }
        let is_claimed = self.nodes.hot(slot).withheld & CLAIMED != 0;
        assert!(!is_claimed, "an undecided statement claims of a node that is removed");
    }

    /// Turns claims into allocations, in order, if all of their capacity is free.
    pub(super) fn grant_claims(&mut self, slot: Slot) {
        if self.nodes.hot(slot).withheld & CLAIMED == 0 {
            return;
        }
        self.withhold_again(slot);
        // Capacity that an earlier claim waits for is not withheld for a later one.
        let is_ready = |entry: &Entry| claim_of(entry)?.id.filter(|_| entry.has_all());
        let ready: Vec<AllocationId> = self.entries(slot).iter().filter_map(is_ready).collect();
        let events = self.claims.events.len() + ready.len();
        self.change(slot, WITHHELD, |books| ready.into_iter().for_each(|id| books.grant(slot, id)));
        assert!(self.claims.events.len() == events, "each claim that is granted is told once");
        if is_planted(PlantedBug::GrantedClaimUnseen)
            && let Some(dirty) = self.nodes.dirty_mut()
        {
            dirty.forget(slot);
        }
    }

    /// Turns one claim into an allocation, while nothing is withheld.
    fn grant(&mut self, slot: Slot, id: AllocationId) {
        // The allocation takes the place of the claim.
        let places = self.nodes.room(slot).places;
        let was_short = self.nodes.hot(slot).has_shortfall;
        let Claim { demand, gpus, units, bundle, .. } = self.take_claim(slot, |claim| claim.id == Some(id));
        self.nodes.take_held(slot, &demand, gpus, units.as_ref());
        assert!(self.nodes.room(slot).places == places, "{id} does not take the place of its claim");
        assert!(self.nodes.hot(slot).has_shortfall == was_short, "{id} is granted more than is free");
        self.sums.allocate(slot, &demand);
        self.sums.placed += 1;
        let node = self.nodes.hot(slot).id;
        self.bump_version(slot);
        let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot, is_leased: false };
        self.note_allocated(&allocation, BeginCause::Claimed);
        self.enter_bundle(bundle, &allocation);
        self.ledger.insert(allocation, &mut self.nodes);
        let placement = Placement { node, allocation: id, gpus, alternative: 0, units };
        self.claims.events.push(ClaimEvent::Granted(placement));
    }

    /// Plans the claims of a node again after the node may have lost capacity. Claims that it can no longer
    /// hold move to other instances or end. Claims of undecided statements stay as they are. Returns whether
    /// any claim changed.
    pub(super) fn replan_claims(&mut self, slot: Slot) -> bool {
        if self.nodes.hot(slot).withheld & CLAIMED == 0 {
            return false;
        }
        let changed = self.change(slot, WITHHELD, |books| books.replan(slot));
        self.nodes.hot_mut(slot).version += u64::from(changed);
        changed
    }

    /// Plans the claims of a node again, while nothing is withheld.
    fn replan(&mut self, slot: Slot) -> bool {
        let mut left = self.future(slot, |_| false, &ExactAmounts::default());
        let claims: Vec<Claim> = self.claims(slot).cloned().collect();
        let mut ended = Vec::new();
        let mut changed = false;
        // Claims of undecided statements stay, so the others may not move to their instances.
        for claim in claims.iter().filter(|claim| claim.id.is_none()) {
            left.claim(&claim.demand, claim.gpus, claim.units.as_ref());
        }
        for claim in claims {
            let Some(id) = claim.id else { continue };
            if left.covers_claim(&claim.demand, claim.gpus, claim.units.as_ref()) {
                left.claim(&claim.demand, claim.gpus, claim.units.as_ref());
                continue;
            }
            changed = true;
            let Ok((gpus, units)) = left.planned(&claim.demand) else {
                ended.push(id);
                continue;
            };
            let is_free = left.claim(&claim.demand, gpus, units.as_ref());
            assert!(is_free, "claim {id} is planned on what is not free");
            let moved = self.claim_mut(slot, |claim| claim.id == Some(id));
            (moved.gpus, moved.units) = (gpus, units);
        }
        for id in ended {
            let claim = self.take_claim(slot, |claim| claim.id == Some(id));
            self.bundles.forget(claim.bundle);
            self.claims.events.push(ClaimEvent::Ended(id));
        }
        changed
    }

    /// Returns the durable claims of a node. Claims of undecided statements are not durable.
    pub(crate) fn claim_records(&self, slot: Slot) -> Vec<ClaimRecord> {
        let node = self.nodes.hot(slot).id;
        let records = self.claims(slot).filter_map(|claim| {
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

    /// Grants the restored claims of a node that have all of their own. Holds of undecided statements end with a crash, and
    /// what was half done is taken back. Both may be what a claim waited for.
    pub(crate) fn grant_resumed(&mut self, slot: Slot) {
        assert!(self.nodes.is_node(slot), "a claim's node is registered");
        self.grant_claims(slot);
    }

    /// Returns the amounts claimed on a node, including claims of undecided statements.
    pub(crate) fn claimed(&self, slot: Slot) -> ExactAmounts {
        let mut sum = ExactAmounts::default();
        self.entries_of(slot, CLAIMED).filter_map(Entry::exact).for_each(|wanted| sum.add(&wanted));
        sum
    }

    /// Checks that the claims of a node stay within what will be free, and that none waits although all of its
    /// capacity is free.
    pub(super) fn check_claims(&self, slot: Slot) -> Result<(), Broken> {
        if self.nodes.hot(slot).withheld & CLAIMED == 0 {
            return Ok(());
        }
        let node = self.nodes.hot(slot).id;
        if self.claimed(slot).gpus.iter().any(|&wanted| wanted > u32::from(GPU_UNIT)) {
            return Err(broken!("node {node}: more than a GPU instance is claimed of one"));
        }
        let mut left = self.future(slot, |_| false, &ExactAmounts::default());
        for entry in self.entries(slot) {
            let Some(claim) = claim_of(entry) else { continue };
            let Claim { id, demand, gpus, units, .. } = claim;
            if let Some(id) = id {
                if self.claims.by_id.get(id) != Some(&slot) {
                    return Err(broken!("node {node}: {claim:?} is not found by its id"));
                }
                if !left.covers_claim(demand, *gpus, units.as_ref()) {
                    return Err(broken!("node {node}: {claim:?} is claimed beyond what will be free"));
                }
                if entry.has_all() {
                    return Err(broken!("node {node}: {claim:?} waits although its own is there"));
                }
            }
            left.claim(demand, *gpus, units.as_ref());
        }
        Ok(())
    }
}
