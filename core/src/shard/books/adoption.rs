//! Adoption: recording an allocation that another system made, for example a control plane that already bound
//! the pod.
//!
//! An adoption may exceed the capacity of the node, so that the books match reality. The excess is a shortfall,
//! which later releases reduce first.

use crate::broken::Broken;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::ledger::Allocation;
use super::{Books, Dirty};
use crate::books::{PROMISED, UNHEALTHY};
use crate::ids::{AllocationId, NodeId, ResourceId};
use crate::index::Slot;
use crate::journal::BeginCause;
use crate::limits::{AMOUNT_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::request::Placement;
use crate::resource::{
    Amount, Demand, GPU_UNIT, GpuAssignment, GpuRequest, ResourceKind, SHORTFALL_MAX, UnitAssignment,
    UnitAssignments, UnitBooks, least_overcommitted,
};
use crate::shard::command::Adoption;
use crate::shard::rejection::{AdoptionRejection, TooManyAllocations};
use crate::state::AllocationRecord;

/// The external ids of adopted allocations, per node.
#[derive(Default)]
pub(crate) struct ExternalIds {
    /// A B-tree, because callers choose the names and could attack a hash table.
    allocations: BTreeMap<(NodeId, Arc<str>), AllocationId>,
    names: FixedMap<AllocationId, (NodeId, Arc<str>)>,
}

impl ExternalIds {
    pub(crate) fn enter(&mut self, node: NodeId, name: Arc<str>, id: AllocationId) {
        let before = self.allocations.insert((node, Arc::clone(&name)), id);
        assert!(before.is_none(), "node {node} has two allocations called `{name}`");
        let before = self.names.insert(id, (node, name));
        assert!(before.is_none(), "allocation {id} has two names");
        assert!(self.names.len() == self.allocations.len(), "a name is known in one direction only");
    }

    /// Frees the name of an allocation that ended. Most shards adopt nothing.
    #[inline(always)]
    pub(crate) fn forget(&mut self, id: AllocationId) {
        if !self.names.is_empty() {
            self.forget_name(id);
        }
    }

    #[inline(never)]
    fn forget_name(&mut self, id: AllocationId) {
        if let Some(key) = self.names.remove(&id) {
            let named = self.allocations.remove(&key);
            assert!(named == Some(id), "the name of allocation {id} is that of another");
            assert!(self.names.len() == self.allocations.len(), "a name is known in one direction only");
        }
    }

    /// Returns whether an allocation has a name.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    pub(crate) fn external_id(&self, id: AllocationId) -> Option<Arc<str>> {
        self.names.get(&id).map(|(_, name)| Arc::clone(name))
    }

    /// Reports the bytes of the names and their tables.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        // Each text is stored once, with the two counters of its `Arc`.
        let texts: usize = self.names.values().map(|(_, name)| name.len() + 2 * size_of::<usize>()).sum();
        let entry = size_of::<((NodeId, Arc<str>), AllocationId)>();
        let tables = memory::of_btree(self.allocations.len(), entry) + memory::of_map(&self.names);
        add("external ids of adoptions", tables + texts as u64);
    }

    /// Checks that both directions agree and that `live` holds for every allocation.
    pub(crate) fn check(&self, live: impl Fn(AllocationId) -> bool) -> Result<(), Broken> {
        let agree = self.names.len() == self.allocations.len()
            && self.names.iter().all(|(&id, key)| self.allocations.get(key) == Some(&id) && live(id));
        if agree { Ok(()) } else { Err(Broken::new("the external ids disagree with the allocations")) }
    }
}

/// Returns `mask` if it names `asked` instances and all of them exist.
fn checked(
    node: NodeId,
    kind: ResourceKind,
    mask: u64,
    asked: u32,
    count: u8,
) -> Result<u64, AdoptionRejection> {
    if mask.count_ones() != asked {
        return Err(AdoptionRejection::InstanceCount { kind, given: mask.count_ones(), asked });
    }
    let last = (63 - mask.leading_zeros().min(63)) as u8;
    if mask != 0 && last >= count {
        return Err(AdoptionRejection::NoSuchInstance { node, kind, instance: last, count });
    }
    Ok(mask)
}

impl Books {
    /// Records an allocation made by another system. If an allocation with the same name and demand was adopted
    /// before, returns that one.
    pub(crate) fn adopt(&mut self, adoption: Adoption) -> Result<(Placement, Dirty), AdoptionRejection> {
        let slot = self.slot(adoption.node)?;
        let is_promised = self.nodes.hot(slot).withheld & PROMISED != 0;
        // Adopted allocations ignore reservations and claims. Capacity is withheld again from what remains.
        let placement = self.change(slot, PROMISED, |books| books.adopt_at(slot, adoption))?;
        assert!(self.nodes.hot(slot).allocations > 0, "an adopted allocation is not on its node");
        if !is_promised {
            return Ok((placement, Dirty::changed(slot)));
        }
        self.replan_claims(slot);
        Ok((placement, self.grew(slot)))
    }

    /// Adopts on a node where only unhealthy instances are withheld.
    fn adopt_at(&mut self, slot: Slot, adoption: Adoption) -> Result<Placement, AdoptionRejection> {
        let Adoption { node, demand, gpus, units, external_id, tenant } = adoption;
        if let Some(external_id) = &external_id
            && let Some(&id) = self.adopted.allocations.get(&(node, Arc::clone(external_id)))
        {
            let known = self.ledger.get(id).expect("external ids name live allocations");
            assert!(known.node == slot, "the name of allocation {id} is that of another node");
            if known.demand != demand || id.tenant != tenant {
                return Err(AdoptionRejection::ExternalIdTaken(node, id));
            }
            let Allocation { gpus, units, .. } = known;
            return Ok(Placement { node, allocation: id, gpus, alternative: 0, units });
        }
        if self.nodes.room(slot).places <= 0 {
            return Err(TooManyAllocations(node).into());
        }
        let gpus = self.adopted_gpus(slot, demand.gpu, gpus)?;
        let units = self.adopted_units(slot, &demand, &units)?;
        if !self.can_take_held(slot, &demand, gpus, units.as_ref()) {
            return Err(AdoptionRejection::ShortfallTooLarge(node));
        }
        assert!(gpus.units() == demand.gpu.units(), "an adoption on {node} holds other GPUs than it says");
        self.bump_version(slot);
        let id = self.next_id(slot, tenant);
        if let Some(external_id) = external_id {
            self.adopted.enter(node, external_id, id);
        }
        let allocation = Allocation { id, demand, gpus, units: units.clone(), node: slot, is_leased: false };
        self.note_allocated(&allocation, BeginCause::Adopted);
        self.enter_held(allocation);
        Ok(Placement { node, allocation: id, gpus, alternative: 0, units })
    }

    /// Records an allocation that holds these amounts already, even beyond capacity.
    fn enter_held(&mut self, allocation: Allocation) {
        let &Allocation { id, node: slot, ref demand, gpus, ref units, .. } = &allocation;
        assert!(id.partition == self.nodes.hot(slot).partition, "{id} is on a node of another partition");
        self.change(slot, UNHEALTHY, |books| books.nodes.take_held(slot, demand, gpus, units.as_ref()));
        self.sums.allocate(slot, demand);
        self.sums.shortfall_changed(&self.nodes, slot);
        self.ledger.insert(allocation, &mut self.nodes);
    }

    /// Restores an allocation on the node in `slot` from the durable state.
    pub(crate) fn resume_allocation(&mut self, slot: Slot, record: &AllocationRecord) -> Dirty {
        let AllocationRecord { id, node, demand, gpus, units, external_id } = record.clone();
        assert!(self.nodes.is_node(slot), "an allocation's node is in its partition");
        if let Some(external_id) = external_id {
            self.adopted.enter(node, external_id, id);
        }
        self.enter_held(Allocation { id, demand, gpus, units, node: slot, is_leased: false });
        Dirty::changed(slot)
    }

    /// Returns the GPUs that an adopted allocation holds: the named ones, else the best fit, else the least
    /// overcommitted.
    fn adopted_gpus(
        &self,
        slot: Slot,
        request: GpuRequest,
        named: Option<u16>,
    ) -> Result<GpuAssignment, AdoptionRejection> {
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
            let state = |i: u8| (hot.gpus.free(i), i < gpus, cold.short.gpus[usize::from(i)]);
            let mask = least_overcommitted(count as usize, GPU_INSTANCES_MAX as u8, state);
            GpuAssignment { mask: mask as u16, part }
        }))
    }

    /// Like [`adopted_gpus`](Self::adopted_gpus), for the unit-instance kinds of the demand.
    fn adopted_units(
        &self,
        slot: Slot,
        demand: &Demand,
        named: &[(ResourceId, u64)],
    ) -> Result<Option<Arc<UnitAssignments>>, AdoptionRejection> {
        let node = self.nodes.hot(slot).id;
        if let Some(&(id, mask)) = named.iter().find(|(id, _)| {
            !id.is_unit_instance() || demand.custom().binary_search_by_key(id, |&(id, _)| id).is_err()
        }) {
            let kind = ResourceKind::Custom(id);
            return Err(AdoptionRejection::InstanceCount { kind, given: mask.count_ones(), asked: 0 });
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

    /// Returns whether the amounts in use on the node stay within the limits of the counters.
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
        fits(spec.cpu, room.cpu, cold.short.cpu, demand.cpu)
            && fits(spec.memory, room.memory, cold.short.memory, demand.memory)
            && demand.custom().iter().all(|&(id, amount)| custom(id, amount))
            && gpus.instances().all(|i| cold.short.gpus[usize::from(i)] < SHORTFALL_MAX)
            && units.is_none_or(|units| {
                units.iter().all(|&(id, assignment)| {
                    let books = self.nodes.book(slot, id).and_then(|book| book.units.as_ref());
                    books.is_none_or(|books| books.can_take_held(assignment))
                })
            })
    }
}
