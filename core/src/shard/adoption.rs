//! Adoption: an allocation that somebody else made (a control plane that bound the pod already)
//! is recorded as it is, also above capacity, so that the books follow a world that they do not
//! own. What exceeds the capacity is a shortfall, which releases pay back first.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Shard;
use super::command::{Adoption, Outcome, Rejection};
use super::ledger::Allocation;
use crate::ids::{AllocationId, NodeId, ResourceId};
use crate::index::Slot;
use crate::limits::{AMOUNT_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::request::Placement;
use crate::resource::{
    Amount, Demand, GPU_UNIT, GpuAssignment, GpuRequest, ResourceKind, SHORTFALL_MAX, UnitAssignment,
    UnitAssignments, UnitBooks, least_overcommitted,
};

/// The names that those who made adopted allocations gave them, per node.
#[derive(Default)]
pub(super) struct ExternalIds {
    /// In order: names are others' choice, and no hash of them can be attacked then.
    allocations: BTreeMap<(NodeId, Arc<str>), AllocationId>,
    names: FixedMap<AllocationId, (NodeId, Arc<str>)>,
}

impl ExternalIds {
    pub(super) fn enter(&mut self, node: NodeId, name: Arc<str>, id: AllocationId) {
        let before = self.allocations.insert((node, Arc::clone(&name)), id);
        assert!(before.is_none(), "node {node} has two allocations called `{name}`");
        self.names.insert(id, (node, name));
    }

    /// An allocation ended: its name is free again. Most shards adopt nothing.
    pub(super) fn forget(&mut self, id: AllocationId) {
        if !self.names.is_empty()
            && let Some(key) = self.names.remove(&id)
        {
            self.allocations.remove(&key);
        }
    }

    pub(super) fn external_id(&self, id: AllocationId) -> Option<Arc<str>> {
        self.names.get(&id).map(|(_, name)| Arc::clone(name))
    }

    /// The bytes of the names and their tables.
    pub(super) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        // A text stands once, with the two counts of its `Arc`.
        let texts: usize = self.names.values().map(|(_, name)| name.len() + 2 * size_of::<usize>()).sum();
        let entry = size_of::<((NodeId, Arc<str>), AllocationId)>();
        let tables = memory::of_btree(self.allocations.len(), entry) + memory::of_map(&self.names);
        add("external ids of adoptions", tables + texts as u64);
    }

    /// Checks that both directions agree, over `live` allocations.
    pub(super) fn check(&self, live: impl Fn(AllocationId) -> bool) -> Result<(), String> {
        let agree = self.names.len() == self.allocations.len()
            && self.names.iter().all(|(&id, key)| self.allocations.get(key) == Some(&id) && live(id));
        if agree { Ok(()) } else { Err("the external ids disagree with the allocations".to_owned()) }
    }
}

/// The mask that was given, if it names as many instances as are asked and all are there.
fn checked(node: NodeId, kind: ResourceKind, mask: u64, asked: u32, count: u8) -> Result<u64, Rejection> {
    if mask.count_ones() != asked {
        return Err(Rejection::InstanceCount { kind, given: mask.count_ones(), asked });
    }
    let last = (63 - mask.leading_zeros().min(63)) as u8;
    if mask != 0 && last >= count {
        return Err(Rejection::NoSuchInstance { node, kind, instance: last, count });
    }
    Ok(mask)
}

impl Shard {
    /// Records an allocation made elsewhere; one that was adopted before under the same name
    /// and with the same demand is answered again.
    pub(super) fn handle_adopt(&mut self, adoption: Adoption) -> Result<Outcome, Rejection> {
        let slot = self.slot(adoption.node)?;
        if self.reservations.at(slot).is_none() && self.reservations.claims.at(slot).is_empty() {
            return self.adopt_at(slot, adoption);
        }
        // What others made knows of no reservations and claims; what is set aside moves to what is left.
        self.restore(slot);
        let done = self.adopt_at(slot, adoption);
        self.withhold(slot);
        if done.is_ok() {
            self.replan_claims(slot);
            self.available_grew(slot);
        }
        done
    }

    fn adopt_at(&mut self, slot: Slot, adoption: Adoption) -> Result<Outcome, Rejection> {
        let Adoption { node, demand, gpus, units, external_id } = adoption;
        if let Some(external_id) = &external_id
            && let Some(&id) = self.adopted.allocations.get(&(node, Arc::clone(external_id)))
        {
            let known = self.ledger.get(id).expect("external ids name live allocations");
            if known.demand != demand {
                return Err(Rejection::ExternalIdTaken { node, allocation: id });
            }
            let gpus = known.gpus;
            let units = known.units;
            return Ok(Outcome::Adopted(Placement { node, allocation: id, gpus, alternative: 0, units }));
        }
        if self.nodes.room(slot).places <= 0 {
            return Err(Rejection::TooManyAllocations(node));
        }
        let gpus = self.adopted_gpus(slot, demand.gpu, gpus)?;
        let units = self.adopted_units(slot, &demand, &units)?;
        if !self.can_take_held(slot, &demand, gpus, units.as_ref()) {
            return Err(Rejection::ShortfallTooLarge(node));
        }
        self.nodes.take_held(slot, &demand, gpus, units.as_ref());
        self.nodes.hot_mut(slot).version += 1;
        let id = self.next_id(slot);
        self.fragmentation.touch(slot);
        self.follow_index(slot);
        self.follow_hybrid(slot);
        self.sums.allocate(slot, &demand);
        self.sums.exceptions_changed(&self.nodes, slot);
        let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot };
        self.ledger.insert(allocation, &mut self.nodes);
        if let Some(external_id) = external_id {
            self.adopted.enter(node, external_id, id);
        }
        Ok(Outcome::Adopted(Placement { node, allocation: id, gpus, alternative: 0, units }))
    }

    /// The GPUs that an adopted allocation holds: those named, or those of the best fit, or
    /// those that it overcommits least.
    fn adopted_gpus(
        &self,
        slot: Slot,
        request: GpuRequest,
        named: Option<u16>,
    ) -> Result<GpuAssignment, Rejection> {
        let (count, part) = match request {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (1, part),
            GpuRequest::Whole(count) => (u32::from(count), GPU_UNIT),
        };
        let hot = self.nodes.hot(slot);
        let cold = self.nodes.cold(slot);
        let gpus = cold.registration.spec.gpus;
        if let Some(mask) = named {
            let mask = checked(hot.id, ResourceKind::Gpu, u64::from(mask), count, gpus)?;
            return Ok(GpuAssignment { mask: mask as u16, part });
        }
        Ok(hot.gpus.choose(request).unwrap_or_else(|| {
            let state = |i: u8| (hot.gpus.free(i), i < gpus, cold.gpu_shortfall[usize::from(i)]);
            let mask = least_overcommitted(count as usize, GPU_INSTANCES_MAX as u8, state);
            GpuAssignment { mask: mask as u16, part }
        }))
    }

    /// As [`adopted_gpus`](Self::adopted_gpus), for the unit-instance kinds of the demand.
    fn adopted_units(
        &self,
        slot: Slot,
        demand: &Demand,
        named: &[(ResourceId, u64)],
    ) -> Result<Option<Arc<UnitAssignments>>, Rejection> {
        let node = self.nodes.hot(slot).id;
        if let Some(&(id, mask)) = named.iter().find(|(id, _)| {
            !id.is_unit_instance() || demand.custom().binary_search_by_key(id, |&(id, _)| id).is_err()
        }) {
            let kind = ResourceKind::Custom(id);
            return Err(Rejection::InstanceCount { kind, given: mask.count_ones(), asked: 0 });
        }
        let mut units = UnitAssignments::new();
        for &(id, amount) in demand.custom().iter().filter(|(id, _)| id.is_unit_instance()) {
            let none = UnitBooks::default();
            let books = self.nodes.book(slot, id).and_then(|book| book.units.as_deref()).unwrap_or(&none);
            let mut assignment = books.choose_anyway(amount);
            if let Some(&(_, mask)) = named.iter().find(|&&(named, _)| named == id) {
                let asked = assignment.mask.count_ones();
                let mask = checked(node, ResourceKind::Custom(id), mask, asked, books.count())?;
                assignment = UnitAssignment { mask, ..assignment };
            }
            units.push((id, assignment));
        }
        Ok((!units.is_empty()).then(|| Arc::new(units)))
    }

    /// Whether what is in use on the node stays within what is counted.
    fn can_take_held(
        &self,
        slot: Slot,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> bool {
        let cold = self.nodes.cold(slot);
        let room = self.nodes.room(slot);
        let spec = &cold.registration.spec;
        let fits = |total: Amount, available: Amount, short: Amount, amount: Amount| {
            total.units() - available.units() + short.units() + amount.units() <= AMOUNT_MAX
        };
        let custom = |id: ResourceId, amount| {
            let book = self.nodes.book(slot, id);
            book.is_none_or(|book| fits(book.total, book.available, book.shortfall, amount))
        };
        fits(spec.cpu, room.cpu, cold.cpu_shortfall, demand.cpu)
            && fits(spec.memory, room.memory, cold.memory_shortfall, demand.memory)
            && demand.custom().iter().all(|&(id, amount)| custom(id, amount))
            && gpus.instances().all(|i| cold.gpu_shortfall[usize::from(i)] < SHORTFALL_MAX)
            && units.is_none_or(|units| {
                units.iter().all(|&(id, assignment)| {
                    let books = self.nodes.book(slot, id).and_then(|book| book.units.as_ref());
                    books.is_none_or(|books| books.can_take_held(assignment))
                })
            })
    }
}
