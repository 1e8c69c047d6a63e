//! Reserved amounts in the books of a node. They are moved out of the free amounts, so the code that searches
//! and takes needs no knowledge of reservations. Unhealthy instances are handled the same way.
//!
//! The withheld amount depends only on what is free and what is reserved. It is recomputed whenever either
//! changes, and never exceeds either.

use super::available::custom_values;
use super::held::HeldAmounts;
use super::table::{NodeTable, Room};
use super::totals::Totals;
use crate::books::{CustomBook, Withheld, WithheldCustom};
use crate::ids::ResourceId;
use crate::index::{ResourceVector, Slot};
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{
    Amount, Demand, GpuBooks, GpuRequest, ReservedAmounts, ResourceKind, UnitBooks, parts_withheld,
};

/// Free amounts as a value, for example those of a node with nothing withheld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeBooks {
    pub(crate) room: Room,
    pub(crate) gpus: GpuBooks,
    pub(crate) custom: Vec<CustomBook>,
}

impl FreeBooks {
    /// Returns the indexed amounts. `indexed` lists the custom kinds in the index.
    pub(crate) fn vector(&self, indexed: &[ResourceId]) -> ResourceVector {
        let Room { cpu, memory, whole_gpus, largest_gpu_part, .. } = self.room;
        let vector = ResourceVector { cpu, memory, whole_gpus, largest_gpu_part, ..Default::default() };
        let room_for = |id, amount| self.book(id).map_or(Amount::ZERO, |book| book.room_for(amount));
        custom_values(indexed, vector, room_for)
    }

    pub(crate) fn book(&self, id: ResourceId) -> Option<&CustomBook> {
        self.custom.binary_search_by_key(&id, |book| book.id).ok().map(|at| &self.custom[at])
    }
}

fn put_back_books(room: &mut Room, gpus: &mut GpuBooks, custom: &mut [CustomBook], withheld: &Withheld) {
    room.cpu = room.cpu.plus(withheld.cpu);
    room.memory = room.memory.plus(withheld.memory);
    if withheld.gpu_total() > 0 {
        for (instance, &part) in (0u8..).zip(&withheld.gpus) {
            gpus.set_free(instance, gpus.free(instance) + part);
        }
        room.follow(gpus);
    }
    for WithheldCustom { id, amount, units } in &withheld.custom {
        let at = custom.binary_search_by_key(id, |book| book.id);
        let book = &mut custom[at.expect("a book of which something is withheld stays")];
        book.available = book.available.plus(*amount);
        if let Some(of_units) = &mut book.units {
            of_units.put_back(units);
        }
    }
}

/// Moves as much cpu and memory as possible out of the free amounts.
fn withhold_plain(room: &mut Room, cpu: Amount, memory: Amount) -> Withheld {
    let cpu = cpu.min(room.cpu);
    let memory = memory.min(room.memory);
    room.cpu = room.cpu.minus(cpu);
    room.memory = room.memory.minus(memory);
    Withheld { cpu, memory, ..Withheld::default() }
}

/// Moves up to `amount` of a custom kind out of the free amount. For a kind with units, `of_units` takes it
/// from the units.
fn withhold_custom(
    book: &mut CustomBook,
    amount: Amount,
    of_units: impl FnOnce(&mut UnitBooks) -> Vec<u16>,
) -> WithheldCustom {
    let units = book.units.as_mut().map_or_else(Vec::new, |units| of_units(units));
    let amount = match &book.units {
        Some(units) => book.available.minus(units.free()),
        None => amount.min(book.available),
    };
    book.available = book.available.minus(amount);
    WithheldCustom { id: book.id, amount, units }
}

/// Adds the withheld amounts to the reserved part of the totals, or subtracts them if `sign` is -1.
pub(crate) fn add_reserved(totals: &mut Totals, withheld: &Withheld, sign: i128) {
    let known = [
        (ResourceKind::Cpu, withheld.cpu.units()),
        (ResourceKind::Memory, withheld.memory.units()),
        (ResourceKind::Gpu, withheld.gpu_total()),
    ];
    let custom = withheld.custom.iter().map(|of| (ResourceKind::Custom(of.id), of.amount.units()));
    for (kind, units) in known.into_iter().chain(custom) {
        totals.sum_mut(kind).reserved += sign * i128::from(units);
    }
}

impl NodeTable {
    /// Moves withheld amounts back to the free amounts.
    pub(super) fn put_back(&mut self, slot: Slot, withheld: &Withheld) {
        let (room, hot, cold) = self.parts_mut(slot);
        put_back_books(room, &mut hot.gpus, &mut cold.custom, withheld);
        self.reserved.change(slot, |totals| add_reserved(totals, withheld, -1));
    }

    /// Moves the amounts in `reserved` out of the free amounts, up to `most` if it is given.
    pub(super) fn withhold(
        &mut self,
        slot: Slot,
        reserved: &ReservedAmounts,
        most: Option<&FreeBooks>,
    ) -> Withheld {
        let (room, hot, cold) = self.parts_mut(slot);
        let within =
            |amount: Amount, of: fn(&Room) -> Amount| most.map_or(amount, |most| amount.min(of(&most.room)));
        let (cpu, memory) =
            (within(reserved.cpu, |room| room.cpu), within(reserved.memory, |room| room.memory));
        let mut withheld = withhold_plain(room, cpu, memory);
        if !reserved.gpu.is_zero() {
            let most = |instance| most.map_or(u16::MAX, |most| most.gpus.free(instance));
            let free: Vec<u16> =
                (0..GPU_INSTANCES_MAX as u8).map(|i| hot.gpus.free(i).min(most(i))).collect();
            withheld.gpus.copy_from_slice(&parts_withheld(&free, reserved.gpu));
            for (instance, part) in (0u8..).zip(withheld.gpus) {
                hot.gpus.set_free(instance, hot.gpus.free(instance) - part);
            }
            room.follow(&hot.gpus);
        }
        for &(id, amount) in &reserved.custom {
            let Ok(at) = cold.custom.binary_search_by_key(&id, |book| book.id) else { continue };
            let book = &mut cold.custom[at];
            let most = most.and_then(|most| most.book(id));
            let amount = most.map_or(amount, |most| amount.min(most.available));
            let of_units =
                |units: &mut UnitBooks| units.withhold(amount, most.and_then(|most| most.units.as_deref()));
            withheld.custom.push(withhold_custom(book, amount, of_units));
        }
        self.reserved.change(slot, |totals| add_reserved(totals, &withheld, 1));
        withheld
    }

    /// Moves the `wanted` amounts out of the free amounts, per instance, as far as they are free.
    pub(super) fn withhold_exactly(&mut self, slot: Slot, wanted: &HeldAmounts) -> Withheld {
        let (room, hot, cold) = self.parts_mut(slot);
        let mut withheld = withhold_plain(room, wanted.cpu, wanted.memory);
        for (instance, (part, &wanted)) in (0u8..).zip(withheld.gpus.iter_mut().zip(&wanted.gpus)) {
            let free = hot.gpus.free(instance);
            *part = wanted.min(u32::from(free)) as u16;
            hot.gpus.set_free(instance, free - *part);
        }
        room.follow(&hot.gpus);
        for (&id, &amount) in &wanted.custom {
            let Ok(at) = cold.custom.binary_search_by_key(&id, |book| book.id) else { continue };
            let book = &mut cold.custom[at];
            let of_unit = |unit| wanted.units.get(&(id, unit)).copied().unwrap_or(0);
            withheld.custom.push(withhold_custom(book, amount, |units| units.withhold_parts(of_unit)));
        }
        self.reserved.change(slot, |totals| add_reserved(totals, &withheld, 1));
        withheld
    }

    /// Returns the free amounts of a node with `withheld` put back.
    pub(crate) fn restored(&self, slot: Slot, withheld: &Withheld) -> FreeBooks {
        let mut room = *self.room(slot);
        let mut gpus = self.hot(slot).gpus;
        let mut custom = self.cold(slot).custom.clone();
        put_back_books(&mut room, &mut gpus, &mut custom, withheld);
        FreeBooks { room, gpus, custom }
    }

    /// Like [`fits`](Self::fits), with `withheld` put back.
    pub(crate) fn fits_restored(&self, slot: Slot, withheld: &Withheld, demand: &Demand) -> bool {
        if self.fits(slot, demand) {
            return true;
        }
        let room = self.room(slot);
        if room.places <= 0
            || demand.cpu > room.cpu.plus(withheld.cpu)
            || demand.memory > room.memory.plus(withheld.memory)
        {
            return false;
        }
        if demand.gpu == GpuRequest::None && demand.custom.is_none() {
            return true;
        }
        let restored = self.restored(slot, withheld);
        restored.room.covers(demand)
            && demand
                .custom()
                .iter()
                .all(|&(id, amount)| restored.book(id).is_some_and(|book| amount <= book.room_for(amount)))
    }
}
