//! The shard's invariants as code.
//!
//! Each check recomputes its expected value from the ledger and the capacities. It never derives the expected
//! value from the structure that it checks.

use std::fmt::Display;

use crate::broken::{Broken, broken};
use crate::shard::books::{ColdNode, FreeBooks, HotNode, InUse, Totals, add_withheld, shortfall_of};
mod run;

use run::Audits;

use crate::books::{CustomBook, ExactAmounts, WITHHELD};
use crate::index::Slot;
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{Amount, GPU_UNIT, ResourceKind, UnitBooks};
use crate::shard::{Pages, Shard, ShardWork};

/// Audits in progress, and the costs of commands.
#[derive(Default)]
pub(crate) struct AuditState {
    audits: Audits,
    pub(crate) work: ShardWork,
    pub(crate) pages: Pages,
}

impl AuditState {
    /// Returns whether an audit is in progress.
    pub(crate) fn is_running(&self) -> bool {
        self.audits.is_running()
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
    pub fn check_invariants(&self) -> Result<(), Broken> {
        let mut totals = Totals::default();
        let mut allocations = 0;
        for (slot, ..) in self.books.nodes.iter() {
            let in_use = self.in_use(slot);
            self.check_slot(slot, &in_use)?;
            allocations += in_use.allocations;
            self.add_to_totals(slot, &in_use, &mut totals);
        }
        self.books.ledger.check()?;
        self.books.adopted.check(|id| self.books.is_live(id))?;
        if allocations != self.books.ledger.len() as u64 {
            return Err(broken!(
                "nodes list {allocations} allocations, the ledger holds {}",
                self.books.ledger.len()
            ));
        }
        self.books.sums.kept.all().check(&totals)?;
        self.pending.check(&self.books)?;
        self.books.check_withheld()?;
        self.books.check_leases()?;
        self.check_statements()?;
        self.choose.check(&self.books)
    }

    /// Checks one node on its own. Its allocations must add up to its books, and each must be found by its id.
    /// The structures kept per node must agree with the node table.
    ///
    /// # Errors
    /// The first discrepancy.
    pub(crate) fn check_slot(&self, slot: Slot, in_use: &InUse) -> Result<(), Broken> {
        let hot = self.books.nodes.hot(slot);
        let cold = self.books.nodes.cold(slot);
        if in_use.allocations != u64::from(hot.allocations) {
            let id = hot.id;
            let counted = hot.allocations;
            let listed = in_use.allocations;
            return Err(broken!("node {id} counts {counted} allocations and lists {listed}"));
        }
        if let Some(id) = in_use.lost {
            return Err(broken!("allocation {id} of node {} is not found by its id", hot.id));
        }
        let room = self.books.nodes.room(slot);
        if (room.whole_gpus, room.largest_gpu_part) != (hot.gpus.whole_free(), hot.gpus.largest_free()) {
            return Err(broken!("node {}: the GPU books and what is kept of them differ", hot.id));
        }
        check_node(&self.books.free(slot, WITHHELD), hot, cold, &in_use.all)?;
        let books = self.books.node_books(slot, in_use);
        if let Some((kind, book)) = books.resources.iter().find(|(_, book)| !book.balances()) {
            return Err(broken!("node {}, {kind}: {book:?} does not balance", hot.id));
        }
        self.check_places(slot, hot)?;
        self.choose.check_node(&self.books, slot)?;
        self.books.check_entries(slot)
    }

    /// Adds one node to the sums.
    pub(crate) fn add_to_totals(&self, slot: Slot, in_use: &InUse, totals: &mut Totals) {
        let cold = self.books.nodes.cold(slot);
        *totals.nodes_in_mut(self.books.nodes.state(slot)) += 1;
        add_to_sums(totals, cold, in_use);
        for (kind, amount) in shortfall_of(&self.books.nodes, slot).resources() {
            totals.sum_mut(kind).shortfall += i128::from(amount);
        }
        self.books.entries(slot).iter().for_each(|entry| add_withheld(totals, entry, 1));
    }

    /// Returns the amounts in use on a node, summed from its allocations and holds.
    pub(crate) fn in_use(&self, slot: Slot) -> InUse {
        self.books.in_use(slot, self.statements.allocating_at(slot))
    }

    /// Checks the number of allocations against the maximum per node.
    fn check_places(&self, slot: Slot, hot: &HotNode) -> Result<(), Broken> {
        let live = self
            .books
            .ledger
            .of_node(slot, &self.books.nodes)
            .map(|allocation| 1 + self.books.count_inside(allocation.id));
        let held = self.statements.allocating_at(slot).count();
        let count = live.sum::<usize>() + held + self.books.claims(slot).count();
        let places = self.books.nodes.room(slot).places;
        if i64::from(places) + count as i64 == i64::from(self.books.nodes.places_max()) {
            return Ok(());
        }
        Err(broken!("node {} has {count} allocations, and places for {places} more", hot.id))
    }
}

/// Checks the books of a node. `free` is what it has free with nothing withheld.
fn check_node(free: &FreeBooks, hot: &HotNode, cold: &ColdNode, held: &ExactAmounts) -> Result<(), Broken> {
    let spec = &cold.registration.spec;
    check_book(hot, "cpu", spec.cpu, free.room.cpu, cold.short.cpu, held.cpu)?;
    check_book(hot, "memory", spec.memory, free.room.memory, cold.short.memory, held.memory)?;
    let part = |part: u32| Amount::from_parts(std::iter::once(part));
    for instance in 0..GPU_INSTANCES_MAX as u8 {
        let at = usize::from(instance);
        let total = if instance < spec.gpus { u32::from(GPU_UNIT) } else { 0 };
        let available = part(free.gpus.free(instance).into());
        let name = format_args!("gpu instance {instance}");
        check_book(hot, name, part(total), available, part(cold.short.gpus[at]), part(held.gpus[at]))?;
    }
    let mut unseen = held.custom.clone();
    for book in &free.custom {
        let used = unseen.remove(&book.id).unwrap_or_default();
        if let Some(units) = &book.units {
            check_units(hot, book, units, used, held)?;
            continue;
        }
        let name = format_args!("resource {}", book.id.0);
        check_book(hot, name, book.total, book.available, book.shortfall, used)?;
    }
    if let Some(id) = unseen.keys().next() {
        return Err(broken!("node {} has no book of resource {}, which its allocations hold", hot.id, id.0));
    }
    Ok(())
}

/// Checks the books of every unit, and that the sums match them.
fn check_units(
    hot: &HotNode,
    book: &CustomBook,
    units: &UnitBooks,
    used: Amount,
    held: &ExactAmounts,
) -> Result<(), Broken> {
    let part = |part: u32| Amount::from_parts(std::iter::once(part));
    let mut seen = Amount::ZERO;
    for (id, free, short) in units.iter() {
        let total = if id < units.count() { u32::from(GPU_UNIT) } else { 0 };
        let allocated = part(held.of_unit(book.id, id));
        let name = format_args!("resource {} unit {id}", book.id.index());
        check_book(hot, name, part(total), part(free.into()), part(short), allocated)?;
        seen = seen.plus(allocated);
    }
    let sums = (Amount::whole(u32::from(units.count())), units.free(), units.short(), seen);
    if sums != (book.total, book.available, book.shortfall, used) {
        return Err(broken!("node {}: the sums of {book:?} are not those of its units", hot.id));
    }
    Ok(())
}

/// Checks that `available + allocated = total + shortfall`, and that a shortfall implies that nothing is
/// available.
fn check_book(
    hot: &HotNode,
    resource: impl Display,
    total: Amount,
    available: Amount,
    shortfall: Amount,
    allocated: Amount,
) -> Result<(), Broken> {
    if available.plus(allocated) != total.plus(shortfall) {
        return Err(broken!(
            "node {}, {resource}: {available} available + {allocated} allocated is not {total} total + {shortfall} shortfall",
            hot.id
        ));
    }
    if !shortfall.is_zero() && !available.is_zero() {
        return Err(broken!(
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
    for (kind, amount) in in_use.allocated.resources() {
        totals.sum_mut(kind).allocated += i128::from(amount);
    }
    for (kind, amount) in in_use.held.resources() {
        totals.sum_mut(kind).held += i128::from(amount);
    }
    for (kind, amount) in in_use.releasing.resources() {
        totals.sum_mut(kind).releasing += i128::from(amount);
    }
}
