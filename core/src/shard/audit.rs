//! The shard's invariants as code.
//!
//! Each check recomputes its expected value from the ledger and the capacities. It never derives the expected
//! value from the structure that it checks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use super::ledger::Allocation;
use super::sums::shortfall_of;
use super::table::{ColdNode, HotNode, Room};
use super::totals::Totals;
use super::withhold::add_reserved;
use super::{Shard, Slot};
use crate::books::{CustomBook, Withheld, units_of};
use crate::ids::{AllocationId, ResourceId};
use crate::index::Marks;
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, Demand, GPU_UNIT, GpuAssignment, ResourceKind, UnitAssignments, UnitBooks};

/// The amounts in use on a node, summed from its allocations and holds.
#[derive(Default)]
pub(super) struct InUse {
    pub(super) allocated: HeldAmounts,
    pub(super) releasing: HeldAmounts,
    pub(super) held: HeldAmounts,
    pub(super) all: HeldAmounts,
    /// An allocation that the node lists but the ledger does not find by id.
    lost: Option<AllocationId>,
}

impl InUse {
    /// Returns the number of allocations.
    pub(super) fn allocations(&self) -> u64 {
        u64::from(self.allocated.count) + u64::from(self.releasing.count)
    }
}

/// A sum of held amounts.
#[derive(Default)]
pub(super) struct HeldAmounts {
    pub(super) cpu: Amount,
    pub(super) memory: Amount,
    pub(super) gpus: [u32; GPU_INSTANCES_MAX],
    pub(super) custom: BTreeMap<ResourceId, Amount>,
    /// The part held of each unit of a unit-instance kind.
    pub(super) units: BTreeMap<(ResourceId, u8), u32>,
    count: u32,
}

impl HeldAmounts {
    pub(super) fn add(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
        who: &dyn Display,
    ) {
        self.count += 1;
        self.cpu = self.cpu.plus(demand.cpu);
        self.memory = self.memory.plus(demand.memory);
        for instance in gpus.instances() {
            self.gpus[usize::from(instance)] += u32::from(gpus.part);
        }
        for &(id, amount) in demand.custom() {
            let sum = self.custom.entry(id).or_default();
            *sum = sum.plus(amount);
            if id.is_unit_instance() {
                let units = units_of(units, id);
                assert!(units.units() == amount.units(), "{who} holds other units");
                for unit in units.instances() {
                    *self.units.entry((id, unit)).or_default() += u32::from(units.part);
                }
            }
        }
    }

    /// Returns the amount of one resource, in 1/10,000.
    pub(super) fn of(&self, kind: ResourceKind) -> i64 {
        match kind {
            ResourceKind::Cpu => self.cpu.units(),
            ResourceKind::Memory => self.memory.units(),
            ResourceKind::Gpu => self.gpus.iter().map(|&part| i64::from(part)).sum(),
            ResourceKind::Custom(id) => self.custom.get(&id).map_or(0, |amount| amount.units()),
        }
    }
}

impl Shard {
    /// Checks every invariant over the whole state. O(state).
    ///
    /// The numbers are those of ARCHITECTURE.md: (1) nothing is held beyond capacity, (2) the books balance per
    /// node, resource and GPU instance, (3) the index agrees with the table.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut totals = Totals::default();
        let mut reserved = Totals::default();
        let mut allocations = 0;
        for (slot, ..) in self.nodes.iter() {
            let in_use = self.in_use(slot);
            self.check_slot(slot, &in_use)?;
            allocations += in_use.allocations();
            self.add_to_totals(slot, &in_use, &mut totals, &mut reserved);
        }
        self.ledger.check()?;
        self.adopted.check(|id| self.is_live(id))?;
        if allocations != self.ledger.len() as u64 {
            return Err(format!(
                "nodes list {allocations} allocations, the ledger holds {}",
                self.ledger.len()
            ));
        }
        self.check_totals(&totals, &reserved)?;
        self.check_waiting()?;
        self.check_reservations()?;
        self.check_statements()?;
        self.index.check()?;
        self.capacities.check()?;
        self.selectors.check(&self.nodes)?;
        self.rankings.check(&self.nodes)
    }

    /// Checks one node on its own. Its allocations must add up to its books, and each must be found by its id.
    /// The structures kept per node must agree with the node table.
    ///
    /// # Errors
    /// The first discrepancy.
    pub(super) fn check_slot(&self, slot: Slot, in_use: &InUse) -> Result<(), String> {
        let hot = self.nodes.hot(slot);
        let cold = self.nodes.cold(slot);
        if in_use.allocations() != u64::from(hot.allocations) {
            let id = hot.id;
            let counted = hot.allocations;
            let listed = in_use.allocations();
            return Err(format!("node {id} counts {counted} allocations and lists {listed}"));
        }
        if let Some(id) = in_use.lost {
            return Err(format!("allocation {id} of node {} is not found by its id", hot.id));
        }
        check_node(self.nodes.room(slot), hot, cold, &in_use.all, &self.aside(slot))?;
        let books = self.books_of(slot, in_use);
        if let Some((kind, book)) = books.resources.iter().find(|(_, book)| !book.balances()) {
            return Err(format!("node {}, {kind}: {book:?} does not balance", hot.id));
        }
        self.check_places(slot, hot)?;
        self.check_index(slot, hot)?;
        self.index.check_slot(slot)?;
        self.capacities.check_slot(slot)?;
        self.selectors.check_node(slot, hot.id, &cold.registration.spec.labels)?;
        self.rankings.check_node(slot, hot.id, &cold.registration.spec)?;
        self.check_reservation(slot)
    }

    /// Adds one node to the sums and to their reserved part.
    pub(super) fn add_to_totals(
        &self,
        slot: Slot,
        in_use: &InUse,
        totals: &mut Totals,
        reserved: &mut Totals,
    ) {
        let cold = self.nodes.cold(slot);
        *totals.nodes_in_mut(self.nodes.state(slot)) += 1;
        add_to_sums(totals, cold, in_use);
        totals.sum_mut(ResourceKind::Gpu).unhealthy += cold.hidden_total();
        for (kind, amount) in shortfall_of(&self.nodes, slot) {
            totals.sum_mut(kind).shortfall += amount;
        }
        add_reserved(reserved, &self.aside(slot), 1);
    }

    /// Checks the maintained sums against those over all nodes.
    ///
    /// # Errors
    /// The first sum that differs.
    pub(super) fn check_totals(&self, totals: &Totals, reserved: &Totals) -> Result<(), String> {
        self.sums.kept.all.check(totals)?;
        self.nodes.reserved.all.check(reserved)
    }

    /// Returns the amounts in use on a node, summed from its allocations and holds.
    pub(super) fn in_use(&self, slot: Slot) -> InUse {
        let mut sums = InUse::default();
        for Allocation { id, demand, gpus, units, .. } in self.ledger.of_node(slot, &self.nodes) {
            if self.ledger.slot_of(id) != Some(slot) {
                sums.lost = Some(id);
            }
            let sum = if self.is_releasing(id) { &mut sums.releasing } else { &mut sums.allocated };
            for sum in [sum, &mut sums.all] {
                sum.add(&demand, gpus, units.as_ref(), &id);
            }
        }
        for (statement, hold) in self.statements.allocating_at(slot) {
            for sum in [&mut sums.held, &mut sums.all] {
                sum.add(&hold.demand, hold.gpus, hold.units.as_ref(), &statement);
            }
        }
        sums
    }

    /// Checks the number of allocations against the maximum per node.
    fn check_places(&self, slot: Slot, hot: &HotNode) -> Result<(), String> {
        let live =
            self.ledger.of_node(slot, &self.nodes).map(|allocation| 1 + self.count_inside(allocation.id));
        let held = self.statements.allocating_at(slot).count();
        let count = live.sum::<usize>() + held + self.reservations.claims.at(slot).len();
        let places = self.nodes.room(slot).places;
        if i64::from(places) + count as i64 == i64::from(self.nodes.places_max()) {
            return Ok(());
        }
        Err(format!("node {} has {count} allocations, and places for {places} more", hot.id))
    }

    pub(super) fn check_index(&self, slot: Slot, hot: &HotNode) -> Result<(), String> {
        let available = self.nodes.available(slot);
        let expected = self.nodes.takes_work(slot).then(|| self.index.geometry().coordinate(&available));
        if self.index.coordinate(slot) != expected {
            return Err(format!(
                "node {} is at {:?} in the index, expected {expected:?}",
                hot.id,
                self.index.coordinate(slot)
            ));
        }
        let capacity = self.capacities.geometry().coordinate(&self.nodes.capacity(slot));
        if self.capacities.coordinate(slot) != Some(capacity) {
            return Err(format!("node {} is not where its capacity says", hot.id));
        }
        for (mark, set) in self.selectors.marks_given() {
            for index in [&self.index, &self.capacities] {
                let marks = index.marks(slot);
                if marks.is_some_and(|marks| marks.hold(Marks::only(mark)) != set.contains(slot)) {
                    return Err(format!("node {}: mark {} is wrong", hot.id, mark.number()));
                }
            }
        }
        for (mark, ranking, rank) in self.rankings.marks_given() {
            for index in [&self.index, &self.capacities] {
                let marks = index.marks(slot);
                if marks.is_some_and(|marks| marks.hold(Marks::only(mark)) != (ranking.rank(slot) == rank)) {
                    return Err(format!("node {}: mark {} of a rank is wrong", hot.id, mark.number()));
                }
            }
        }
        self.check_hybrid(slot)
    }
}

fn check_node(
    room: &Room,
    hot: &HotNode,
    cold: &ColdNode,
    held: &HeldAmounts,
    aside: &Withheld,
) -> Result<(), String> {
    let spec = &cold.registration.spec;
    check_book(hot, "cpu", spec.cpu, room.cpu.plus(aside.cpu), cold.cpu_shortfall, held.cpu)?;
    let memory = room.memory.plus(aside.memory);
    check_book(hot, "memory", spec.memory, memory, cold.memory_shortfall, held.memory)?;
    if (room.whole_gpus, room.largest_gpu_part) != (hot.gpus.whole_free(), hot.gpus.largest_free()) {
        return Err(format!("node {}: the GPU books and what is kept of them differ", hot.id));
    }
    for instance in 0..GPU_INSTANCES_MAX as u8 {
        let at = usize::from(instance);
        let amount = |units: u32| Amount::try_from_units(i64::from(units)).unwrap_or_default();
        let total = if instance < spec.gpus { u32::from(GPU_UNIT) } else { 0 };
        let unoffered = u32::from(cold.hidden(instance)) + u32::from(aside.gpus[at]);
        let available = u32::from(hot.gpus.free(instance)) + unoffered;
        let short = cold.gpu_shortfall[at];
        let name = format!("gpu instance {instance}");
        check_book(hot, &name, amount(total), amount(available), amount(short), amount(held.gpus[at]))?;
    }
    super::health::check(hot, cold)?;
    let mut unseen = held.custom.clone();
    for book in &cold.custom {
        let used = unseen.remove(&book.id).unwrap_or_default();
        if let Some(units) = &book.units {
            check_units(hot, book, units, used, held, aside)?;
            continue;
        }
        check_book(
            hot,
            &format!("resource {}", book.id.0),
            book.total,
            book.available.plus(aside.of(book.id)),
            book.shortfall,
            used,
        )?;
    }
    if let Some(id) = unseen.keys().next() {
        return Err(format!("node {} has no book of resource {}, which its allocations hold", hot.id, id.0));
    }
    Ok(())
}

/// Checks the books of every unit, and that the sums match them.
fn check_units(
    hot: &HotNode,
    book: &CustomBook,
    units: &UnitBooks,
    used: Amount,
    held: &HeldAmounts,
    aside: &Withheld,
) -> Result<(), String> {
    let part = |part: u32| Amount::from_parts(std::iter::once(part));
    let mut seen = Amount::ZERO;
    for (id, free, short) in units.iter() {
        let total = if id < units.count() { u32::from(GPU_UNIT) } else { 0 };
        let allocated = part(held.units.get(&(book.id, id)).copied().unwrap_or(0));
        let name = format!("resource {} unit {id}", book.id.index());
        let available = u32::from(free) + u32::from(aside.of_unit(book.id, id));
        check_book(hot, &name, part(total), part(available), part(short), allocated)?;
        seen = seen.plus(allocated);
    }
    let sums = (Amount::whole(u32::from(units.count())), units.free(), units.short(), seen);
    if sums != (book.total, book.available, book.shortfall, used) {
        return Err(format!("node {}: the sums of {book:?} are not those of its units", hot.id));
    }
    Ok(())
}

/// Checks that `available + allocated = total + shortfall`, and that a shortfall implies that nothing is
/// available.
fn check_book(
    hot: &HotNode,
    resource: &str,
    total: Amount,
    available: Amount,
    shortfall: Amount,
    allocated: Amount,
) -> Result<(), String> {
    if available.plus(allocated) != total.plus(shortfall) {
        return Err(format!(
            "node {}, {resource}: {available} available + {allocated} allocated is not {total} total + {shortfall} shortfall",
            hot.id
        ));
    }
    if !shortfall.is_zero() && !available.is_zero() {
        return Err(format!(
            "node {}, {resource}: {available} available with a shortfall of {shortfall}",
            hot.id
        ));
    }
    Ok(())
}

fn add_to_sums(totals: &mut Totals, cold: &ColdNode, in_use: &InUse) {
    let spec = &cold.registration.spec;
    let units = |amount: Amount| i128::from(amount.units());
    let known = [
        (ResourceKind::Cpu, units(spec.cpu)),
        (ResourceKind::Memory, units(spec.memory)),
        (ResourceKind::Gpu, i128::from(spec.gpus) * i128::from(GPU_UNIT)),
    ];
    let custom = spec.custom.as_deref().unwrap_or(&[]);
    let custom = custom.iter().map(|&(id, total)| (ResourceKind::Custom(id), units(total)));
    for (kind, total) in known.into_iter().chain(custom) {
        totals.sum_mut(kind).total += total;
    }
    let used = in_use.all.custom.keys().map(|&id| ResourceKind::Custom(id));
    for kind in known.map(|(kind, _)| kind).into_iter().chain(used) {
        let sum = totals.sum_mut(kind);
        sum.allocated += i128::from(in_use.allocated.of(kind));
        sum.held += i128::from(in_use.held.of(kind));
        sum.releasing += i128::from(in_use.releasing.of(kind));
    }
}
