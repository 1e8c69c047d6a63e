//! The allocations of a shard: one record each, found by id and linked per node.

use crate::broken::{Broken, broken};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::table::{NO_ALLOCATION, NodeTable};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::memory;
use crate::resource::{Amount, CustomAmounts, Demand, GpuAssignment, GpuRequest, UnitAssignments};
use crate::view::{AllocationImage, Dirty, MoreImage};

/// Records per page. Pages are never moved or copied, so memory use never doubles while the ledger grows.
const PAGE: usize = 1024;

/// A live allocation.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub(crate) id: AllocationId,
    pub(crate) demand: Demand,
    pub(crate) gpus: GpuAssignment,
    /// The units of its unit-instance kinds. Few allocations have any.
    pub(crate) units: Option<Arc<UnitAssignments>>,
    pub(crate) node: Slot,
}

/// Fields that few allocations have.
#[derive(Clone, Debug)]
struct Extra {
    custom: Option<CustomAmounts>,
    units: Option<Arc<UnitAssignments>>,
}

/// An allocation as stored. It fits one cache line, because a release reads a record that was written long ago,
/// and its neighbors in the node's list.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Record {
    id: AllocationId,
    cpu: Amount,
    memory: Amount,
    extra: Option<Box<Extra>>,
    gpu: GpuRequest,
    gpus: GpuAssignment,
    node: Slot,
    next: u32,
    previous: u32,
}

const _: () = assert!(size_of::<Option<Record>>() == 64, "a record is one cache line");

impl Record {
    fn new(allocation: Allocation, next: u32) -> Self {
        let Allocation { id, demand, gpus, units, node } = allocation;
        let Demand { cpu, memory, gpu, custom } = demand;
        let plain = custom.is_none() && units.is_none();
        let extra = if plain { None } else { Some(Box::new(Extra { custom, units })) };
        Self { id, cpu, memory, extra, gpu, gpus, node, next, previous: NO_ALLOCATION }
    }

    #[inline]
    fn into_allocation(self) -> Allocation {
        let (custom, units) = self.extra.map_or((None, None), |extra| (extra.custom, extra.units));
        let demand = Demand { cpu: self.cpu, memory: self.memory, gpu: self.gpu, custom };
        Allocation { id: self.id, demand, gpus: self.gpus, units, node: self.node }
    }
}

/// All live allocations of a shard.
#[derive(Default)]
pub(crate) struct Ledger {
    pages: Vec<Vec<Option<Record>>>,
    free: Vec<u32>,
    /// Records by the hash of their id. The id itself is in the record.
    by_id: HashTable<u32>,
    /// Records that changed since the last view, if views are made.
    dirty: Option<Box<Dirty>>,
}

/// Hashes an id. Ids of many partitions differ only in a few low bits of the sequence and the origin. The table
/// uses the low bits of the hash for the place and the high bits for a tag, so both must depend on all bits of
/// the id.
fn hash(id: AllocationId) -> u64 {
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    const SPREAD_TOO: u64 = 0xD6E8_FEB8_6659_FD93;
    let origin = u64::from(id.incarnation.0) << 16 | u64::from(id.partition.0);
    let mixed = (id.sequence.wrapping_mul(SPREAD) ^ origin).wrapping_mul(SPREAD_TOO);
    let folded = (mixed ^ mixed >> 32).wrapping_mul(SPREAD);
    folded ^ folded >> 32
}

impl Ledger {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[inline]
    fn record(&self, at: u32) -> Option<&Record> {
        self.pages.get(at as usize / PAGE)?.get(at as usize % PAGE)?.as_ref()
    }

    #[inline]
    fn place_mut(&mut self, at: u32) -> &mut Option<Record> {
        &mut self.pages[at as usize / PAGE][at as usize % PAGE]
    }

    #[inline]
    fn record_mut(&mut self, at: u32) -> &mut Record {
        self.place_mut(at).as_mut().expect("lists link live records")
    }

    /// Notes that a record changed in what views show.
    #[inline]
    fn touch(&mut self, at: u32) {
        if let Some(dirty) = &mut self.dirty {
            dirty.note(at, 1);
        }
    }

    /// Returns the changed records, by place, each noted as 1. While this is `None`, no change is noted.
    pub(super) fn dirty_mut(&mut self) -> &mut Option<Box<Dirty>> {
        &mut self.dirty
    }

    /// Returns the number of places, including free ones.
    pub(crate) fn places(&self) -> u32 {
        let places: usize = self.pages.iter().map(Vec::len).sum();
        u32::try_from(places).expect("fewer allocations than u32 can count")
    }

    /// Returns a place as views show it.
    pub(crate) fn image(&self, at: u32) -> AllocationImage {
        let Some(record) = self.record(at) else { return AllocationImage::default() };
        AllocationImage {
            id: record.id,
            cpu: record.cpu,
            memory: record.memory,
            gpu: record.gpu,
            gpus: record.gpus,
            node: Some(record.node),
            next: record.next,
            has_more: record.extra.is_some(),
        }
    }

    /// Returns the rarely used fields of a place as views show them.
    pub(crate) fn more_image(&self, at: u32) -> Option<MoreImage> {
        let extra = self.record(at)?.extra.as_deref()?;
        Some(MoreImage { custom: extra.custom.clone(), units: extra.units.clone() })
    }

    fn is(&self, at: u32, id: AllocationId) -> bool {
        self.record(at).is_some_and(|record| record.id == id)
    }

    /// Returns the probable place of the live allocation `id`, without reading its record.
    #[inline]
    pub(crate) fn place_hint(&self, id: AllocationId) -> Option<u32> {
        self.by_id.find(hash(id), |_| true).copied()
    }

    /// Returns the node of the record at a place, and its neighbors in the node's list. `None` if the place is
    /// free.
    #[inline]
    pub(crate) fn neighbours(&self, at: u32) -> Option<(Slot, u32, u32)> {
        self.record(at).map(|record| (record.node, record.previous, record.next))
    }

    /// Returns the live allocation of `id`.
    pub(crate) fn get(&self, id: AllocationId) -> Option<Allocation> {
        let at = *self.by_id.find(hash(id), |&at| self.is(at, id))?;
        self.record(at).cloned().map(Record::into_allocation)
    }

    /// Returns the node of the live allocation of `id`.
    pub(crate) fn slot_of(&self, id: AllocationId) -> Option<Slot> {
        let at = *self.by_id.find(hash(id), |&at| self.is(at, id))?;
        self.record(at).map(|record| record.node)
    }

    /// Records an allocation that its node's books already contain.
    ///
    /// # Panics
    /// If its id was already granted.
    pub(super) fn insert(&mut self, allocation: Allocation, nodes: &mut NodeTable) {
        let at = self.free.pop().unwrap_or_else(|| self.one_more());
        let id = allocation.id;
        let hot = nodes.hot_mut(allocation.node);
        let next = std::mem::replace(&mut hot.first_allocation, at);
        hot.allocations += 1;
        *self.place_mut(at) = Some(Record::new(allocation, next));
        self.touch(at);
        if next != NO_ALLOCATION {
            self.record_mut(next).previous = at;
        }
        let pages = &self.pages;
        let id_of = |at: &u32| {
            let record = pages[*at as usize / PAGE][*at as usize % PAGE].as_ref();
            record.expect("the table names live records").id
        };
        match self.by_id.entry(hash(id), |at| id_of(at) == id, |at| hash(id_of(at))) {
            Entry::Vacant(place) => place.insert(at),
            Entry::Occupied(_) => panic!("allocation {id} is granted twice"),
        };
    }

    /// Adds a place for one more record, and returns it.
    fn one_more(&mut self) -> u32 {
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let page = self.pages.len() - 1;
        let at = page * PAGE + self.pages[page].len();
        self.pages[page].push(None);
        let at = u32::try_from(at).expect("fewer allocations than u32 can count");
        assert!(at != NO_ALLOCATION, "fewer allocations than u32 can count");
        at
    }

    /// Removes an allocation. The caller must settle the node's books.
    pub(super) fn remove(&mut self, id: AllocationId, nodes: &mut NodeTable) -> Option<Allocation> {
        let pages = &self.pages;
        let is = |&at: &u32| {
            pages[at as usize / PAGE][at as usize % PAGE].as_ref().is_some_and(|record| record.id == id)
        };
        let (at, _) = self.by_id.find_entry(hash(id), is).ok()?.remove();
        let record = self.place_mut(at).take().expect("the table names live records");
        self.free.push(at);
        self.touch(at);
        let hot = nodes.hot_mut(record.node);
        if record.previous == NO_ALLOCATION {
            assert!(hot.first_allocation == at, "the list of node {} is broken", hot.id);
            hot.first_allocation = record.next;
        } else {
            self.record_mut(record.previous).next = record.next;
            self.touch(record.previous);
        }
        hot.allocations -= 1;
        if record.next != NO_ALLOCATION {
            self.record_mut(record.next).previous = record.previous;
        }
        Some(record.into_allocation())
    }

    /// Returns the allocations of one node, newest first.
    pub(crate) fn of_node<'a>(
        &'a self,
        node: Slot,
        nodes: &NodeTable,
    ) -> impl Iterator<Item = Allocation> + use<'a> {
        let mut at = nodes.hot(node).first_allocation;
        std::iter::from_fn(move || {
            if at == NO_ALLOCATION {
                return None;
            }
            let record = self.record(at).expect("lists link live records");
            at = record.next;
            Some(record.clone().into_allocation())
        })
    }

    /// Reports the bytes of each structure.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, u64)) {
        let records: usize = self.pages.iter().map(Vec::capacity).sum();
        let records = (records * size_of::<Option<Record>>()) as u64;
        add("allocation records", records + memory::of_vec(&self.pages) + memory::of_vec(&self.free));
        add("allocations by id", self.by_id.allocation_size() as u64);
        if let Some(dirty) = &self.dirty {
            add("changed allocations", dirty.bytes());
        }
    }

    /// Checks that the table and the records refer to each other.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let places: usize = self.pages.iter().map(Vec::len).sum();
        let live = self.pages.iter().flatten().flatten().count();
        if live != self.by_id.len() || live + self.free.len() != places {
            return Err(broken!("{live} records, {} by id, {} free", self.by_id.len(), self.free.len()));
        }
        for (at, record) in (0u32..).zip(self.pages.iter().flatten()) {
            if let Some(record) = record
                && self.by_id.find(hash(record.id), |&found| found == at).is_none()
            {
                return Err(broken!("allocation {} is not found by its id", record.id));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, PartitionId};

    #[test]
    fn sequences_side_by_side_spread_over_places_and_tags() {
        let mut places = vec![0u32; 1 << 12];
        let mut tags = vec![0u32; 1 << 7];
        for partition in 0..256 {
            for sequence in 1..=64 {
                let id =
                    AllocationId { incarnation: Incarnation(3), partition: PartitionId(partition), sequence };
                places[(hash(id) & 0xFFF) as usize] += 1;
                tags[(hash(id) >> 57) as usize] += 1;
            }
        }
        // The means are four per place and 128 per tag.
        assert!(places.iter().all(|&ids| ids <= 20), "{:?}", places.iter().max());
        assert!(tags.iter().all(|&ids| (64..=256).contains(&ids)), "{tags:?}");
    }

    /// What is far above the low bits, too: starts that are very far from each other.
    #[test]
    fn places_and_tags_depend_on_every_bit_of_an_id() {
        let ids: Vec<AllocationId> = (1..=64u16)
            .map(|number| AllocationId {
                incarnation: Incarnation(u32::from(number) * 5 % 97),
                partition: PartitionId(number),
                sequence: u64::from(number) * 1000,
            })
            .collect();
        let check = |name: &str, bits: u32, flip: fn(AllocationId, u32) -> AllocationId| {
            for bit in 0..bits {
                let differences = || ids.iter().map(|&id| hash(id) ^ hash(flip(id, bit)));
                let places = differences().filter(|differs| differs & 0xFFF != 0).count();
                let tags = differences().filter(|differs| differs >> 57 != 0).count();
                assert!(places >= 56 && tags >= 56, "{name}, bit {bit}: {places} and {tags} of 64");
            }
        };
        check("start", 32, |id, bit| AllocationId {
            incarnation: Incarnation(id.incarnation.0 ^ 1 << bit),
            ..id
        });
        check("partition", 16, |id, bit| AllocationId {
            partition: PartitionId(id.partition.0 ^ 1 << bit),
            ..id
        });
        check("sequence", 64, |id, bit| AllocationId { sequence: id.sequence ^ 1 << bit, ..id });
    }
}
