//! Free amounts as a value: of a node with some capacity put back, of a node after all releasing allocations
//! have ended, or of a bundle.

use std::sync::Arc;

use super::available::custom_values;
use super::table::Room;
use crate::books::{CustomBook, units_of};
use crate::ids::ResourceId;
use crate::index::ResourceVector;
use crate::resource::{
    Amount, Demand, GpuAssignment, GpuBooks, GpuRequest, ResourceKind, UnitAssignments, UnitBooks,
};
use crate::statement::ConflictReason;

/// The GPU instances and units of an allocation.
type Instances = (GpuAssignment, Option<Arc<UnitAssignments>>);

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

    /// Returns books in which everything that an allocation holds is free.
    pub(crate) fn of_allocation(
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> Self {
        let mut books = GpuBooks::default();
        gpus.instances().for_each(|instance| books.set_free(instance, gpus.part));
        let custom = demand.custom().iter().map(|&(id, amount)| {
            let of_units = id.is_unit_instance().then(|| {
                let held = units_of(units, id);
                let mut parts = vec![0; 64 - held.mask.leading_zeros() as usize];
                held.instances().for_each(|unit| parts[usize::from(unit)] = held.part);
                Box::new(UnitBooks::of_parts(&parts))
            });
            CustomBook { id, total: amount, available: amount, shortfall: Amount::ZERO, units: of_units }
        });
        let mut room = Room { cpu: demand.cpu, memory: demand.memory, ..Room::VACANT };
        room.follow(&books);
        Self { room, gpus: books, custom: custom.collect() }
    }

    /// Returns the instances that a demand takes, chosen as on a node.
    ///
    /// # Errors
    /// The resource that falls short.
    pub(crate) fn planned(&self, demand: &Demand) -> Result<Instances, ConflictReason> {
        if let Some(short) = short_of(self, demand) {
            return Err(short);
        }
        let gpus = self.gpus.choose(demand.gpu).expect("it falls short of nothing");
        let mut units = UnitAssignments::new();
        for &(id, amount) in demand.custom().iter().filter(|(id, _)| id.is_unit_instance()) {
            let books = self.book(id).and_then(|book| book.units.as_ref());
            let chosen = books.and_then(|books| books.choose(amount));
            units.push((id, chosen.expect("it falls short of nothing")));
        }
        Ok((gpus, (!units.is_empty()).then(|| Arc::new(units))))
    }

    /// Returns whether all of this is free, on these instances.
    pub(crate) fn covers_claim(
        &self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> bool {
        demand.cpu <= self.room.cpu
            && demand.memory <= self.room.memory
            && gpus.instances().all(|instance| self.gpus.free(instance) >= gpus.part)
            && demand.custom().iter().all(|&(id, amount)| {
                self.book(id).is_some_and(|book| match &book.units {
                    Some(books) => books.covers(units_of(units, id)),
                    None => amount <= book.available,
                })
            })
    }

    /// Takes as much of this as is free. Returns whether all of it was free.
    pub(super) fn claim(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> bool {
        let all = self.covers_claim(demand, gpus, units);
        self.room.cpu = self.room.cpu.saturating_minus(demand.cpu);
        self.room.memory = self.room.memory.saturating_minus(demand.memory);
        for instance in gpus.instances() {
            self.gpus.set_free(instance, self.gpus.free(instance).saturating_sub(gpus.part));
        }
        self.room.follow(&self.gpus);
        for &(id, amount) in demand.custom() {
            let Ok(at) = self.custom.binary_search_by_key(&id, |book| book.id) else { continue };
            let book = &mut self.custom[at];
            match &mut book.units {
                Some(books) => {
                    books.take_up_to(units_of(units, id));
                    book.available = books.free();
                }
                None => book.available = book.available.saturating_minus(amount),
            }
        }
        all
    }

    /// Takes free amounts.
    ///
    /// # Panics
    /// If they are not free.
    pub(super) fn take(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) {
        assert!(self.claim(demand, gpus, units), "more is taken of {self:?} than is free: {demand:?}");
    }

    /// Gives back amounts that were taken.
    pub(super) fn give(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) {
        self.room.cpu = self.room.cpu.plus(demand.cpu);
        self.room.memory = self.room.memory.plus(demand.memory);
        for instance in gpus.instances() {
            self.gpus.set_free(instance, self.gpus.free(instance) + gpus.part);
        }
        self.room.follow(&self.gpus);
        for &(id, amount) in demand.custom() {
            let at = self.custom.binary_search_by_key(&id, |book| book.id);
            self.custom[at.expect("what was taken has a book")].give(amount, units);
        }
    }
}

/// Returns the first resource of which `demand` takes more than is free, and the amount that is free.
pub(crate) fn short_of(free: &FreeBooks, demand: &Demand) -> Option<ConflictReason> {
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
